"""Build of one vocabulary from text per language.

Every artefact is cached under a hash of its inputs: tables of runs under their text, vocabularies
under their text and the trainer's settings, joint trainings and scores under all texts and settings
involved. An interrupted build resumes. A changed setting recomputes only what depends on it.
"""

import dataclasses
import functools
import hashlib
import pathlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from vocap import (
    bpe,
    byte_bpe,
    byte_tokens,
    comparison,
    entries,
    merge,
    methods,
    nested,
    run_tables,
    runs,
    unigram,
    union,
)
from vocap.allocation import language_probabilities
from vocap.settings import BYTE_BPE, VocabularySettings
from xlm.common import artifacts, processes

# Part of the cache's path: raise it with every change that makes artefacts differ.
CACHE_VERSION = 2

# Sentences, or a table of runs that was counted elsewhere.
Source = Sequence[str] | pathlib.Path
# Wraps an iteration, given its name and length.
Progress = Callable[[Iterable, str, int], Iterable]


@dataclasses.dataclass(frozen=True)
class Language:
    """One language of a build: `amount` is n_i and `probability` q_i of Eq. 3."""

    table: runs.RunTable
    heldout: runs.RunTable | None
    vocabularies: unigram.Vocabularies
    amount: float
    probability: float


@dataclasses.dataclass(frozen=True)
class BuiltVocabulary:
    """A built model and its report's data; `scores` begin with the built method.

    `model` is a SentencePiece model, or a tokenizer.json if the choice is of the kind `BYTE_BPE`.
    """

    model: bytes
    languages: dict[str, Language]
    choice: methods.Choice
    scores: dict[str, dict[str, comparison.Score]]


def build_vocabulary(
    train: Mapping[str, Source],
    heldout: Mapping[str, Source],
    settings: VocabularySettings,
    cache: pathlib.Path,
    progress: Progress = lambda items, *_: items,
    parallel: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> BuiltVocabulary:
    """Build a vocabulary from training text per language.

    `heldout` has text of some or all languages, on which methods are compared. `progress` wraps the
    iteration over finished work, given its name and length. `parallel` has sentences that say the
    same in all languages, by which `settings.parity` measures their costs. Raises ValueError if a
    language has no feasible size, or the target size cannot be reached.
    """
    # Checked here, before hours of training.
    if settings.parity and not parallel and (without := sorted(set(train) - set(heldout))):
        raise ValueError(
            f"vocab.parity is {settings.parity}, but there is no text of {', '.join(without)} to "
            "measure their tokens on; give parallel text by vocab.parallel, or hold some text out "
            "(corpus.heldout_fraction)"
        )
    if "byte_bpe" in (settings.method, *settings.compare):
        byte_bpe.check(settings, (*train.values(), *heldout.values()))
    if settings.amounts:
        language_probabilities(settings.amounts, settings.alpha, train)
    _check_initial_sizes(settings, train)
    prepared = _prepare(train, heldout, settings, cache, progress)
    languages = _read_languages(prepared, settings)
    probabilities = {language: one.probability for language, one in languages.items()}
    together = MixtureTrainer(train, heldout, languages, prepared, settings, cache, parallel)
    choices, scores = {}, {}
    wanted = dict.fromkeys((settings.method, *settings.compare))
    for method in progress(wanted, "methods", len(wanted)):
        choices[method] = methods.choose(
            method,
            {language: one.vocabularies for language, one in languages.items()},
            probabilities,
            beta=settings.beta,
            budget=settings.budget,
            num_clusters=settings.num_clusters,
            train_together=together.train,
            train_merges=together.train_merges,
            train_union=together.train_union,
            train_bytes=together.train_bytes,
            initial_sizes=settings.initial_sizes,
        )
        scores[method] = together.fit_scores(choices[method])
    choice = choices[settings.method]
    of_model = choice.pieces, scores[settings.method]
    return BuiltVocabulary(
        model=byte_tokens.tokenizer_json(*of_model)
        if choice.kind == BYTE_BPE
        else merge.write_model(*of_model, choice.kind),
        languages=languages,
        choice=choice,
        scores={
            method: _score(choices[method], scores[method], together)
            for method in progress(wanted, "comparison", len(wanted))
        },
    )


def _check_initial_sizes(settings: VocabularySettings, languages: Iterable[str]) -> None:
    """Check the initial sizes as far as is possible without curves; see `allocation`."""
    if unknown := sorted(set(settings.initial_sizes) - set(languages)):
        raise ValueError(
            f"vocab.allocation has sizes for {', '.join(unknown)}, but the languages are "
            f"{', '.join(sorted(languages))}; remove them, or add the languages to the corpus"
        )
    for language, size in settings.initial_sizes.items():
        if size not in settings.sizes:
            raise ValueError(
                f"vocab.allocation has the size {size} for {language}, which is none of "
                f"vocab.sizes, {', '.join(map(str, settings.sizes))}; choose one of them, or add it"
            )


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """Paths of one language's artefacts, and the hash of its training text."""

    table: pathlib.Path
    heldout: pathlib.Path | None
    vocabularies: pathlib.Path
    digest: str


def _prepare(
    train: Mapping[str, Source],
    heldout: Mapping[str, Source],
    settings: VocabularySettings,
    cache: pathlib.Path,
    progress: Progress,
) -> dict[str, _Prepared]:
    """Count and train all languages that the cache does not hold."""
    prepared, missing = {}, []
    for language in sorted(train):
        digest = source_digest(train[language])
        key = artifacts.fingerprint(
            digest, dataclasses.asdict(settings.training), settings.max_characters
        )
        aside = heldout.get(language)
        prepared[language] = _Prepared(
            table=_table_path(train[language], digest, cache, language),
            heldout=None
            if aside is None
            else _table_path(aside, source_digest(aside), cache, f"{language}-heldout"),
            vocabularies=cache / "vocabularies" / f"{language}-{key}.npz",
            digest=digest,
        )
        paths = (prepared[language].table, prepared[language].heldout)
        # The user's own tables are not in the cache.
        cached = [path for path in paths if path and path not in (train[language], aside)]
        found = [entries.is_whole(path) for path in (*cached, prepared[language].vocabularies)]
        if not all(found):
            missing.append(language)
    if missing and settings.trainer == "nested":
        nested.compile_kernels()  # once; the workers load them from numba's cache
    # Longest first, so that a large language does not start last and leave the other cores idle.
    missing.sort(key=lambda language: -_size(train[language]))
    jobs = [(lang, train[lang], heldout.get(lang), prepared[lang], settings) for lang in missing]
    with processes.Workers(settings.num_workers, "vocab.num_workers") as workers:
        for _ in progress(workers.run(_build_language, jobs), "languages", len(jobs)):
            pass
    return prepared


def _read_languages(
    prepared: Mapping[str, _Prepared], settings: VocabularySettings
) -> dict[str, Language]:
    tables = {language: run_tables.read_table(one.table) for language, one in prepared.items()}
    amounts = settings.amounts or {lang: table.num_bytes for lang, table in tables.items()}
    probabilities = language_probabilities(amounts, settings.alpha, tables)
    return {
        language: Language(
            table=tables[language],
            heldout=None if one.heldout is None else run_tables.read_table(one.heldout),
            vocabularies=unigram.read_vocabularies(one.vocabularies),
            amount=amounts[language],
            probability=probabilities[language],
        )
        for language, one in prepared.items()
    }


def _size(source: Source) -> int:
    return source.stat().st_size if isinstance(source, pathlib.Path) else sum(map(len, source))


def source_digest(source: Source) -> str:
    if isinstance(source, pathlib.Path):
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    digest = hashlib.sha256()
    for sentence in source:
        digest.update(sentence.encode() + b"\n")
    return digest.hexdigest()[:16]


def _table_path(source: Source, digest: str, cache: pathlib.Path, name: str) -> pathlib.Path:
    if isinstance(source, pathlib.Path):
        return source
    return cache / "tables" / f"{name}-{digest}.runs.gz"


def _build_language(
    language: str,
    train: Source,
    heldout: Source | None,
    prepared: _Prepared,
    settings: VocabularySettings,
) -> None:
    """Count, train and measure one language; may run in a worker process."""
    for source, path in ((train, prepared.table), (heldout, prepared.heldout)):
        if path is not None and not path.exists():
            assert not isinstance(source, pathlib.Path | None)
            with entries.written(path) as aside:
                run_tables.write_table(aside, runs.count_runs(source))
    if prepared.vocabularies.exists():
        return
    table = run_tables.read_table(prepared.table)
    vocabularies = unigram.train_vocabularies(
        runs.most_frequent(table, settings.max_characters),
        settings.training,
        None if isinstance(train, pathlib.Path) else train,
    )
    if vocabularies is None:
        characters = len(np.unique(table.text.characters))
        raise ValueError(
            f"language {language!r}: none of vocab.sizes {settings.sizes[0]}..{settings.sizes[-1]} "
            f"can be trained on its {table.num_sentences} sentences with {characters} distinct "
            "characters; a size must exceed the characters and be small enough for the text to "
            "fill: add text, or offer other sizes"
        )
    unigram.write_vocabularies(prepared.vocabularies, vocabularies)


def _write_scored(path: pathlib.Path, found: tuple[Sequence[str], np.ndarray]) -> None:
    with entries.written(path) as aside:
        np.savez(aside, pieces=np.array(found[0]), scores=found[1])


def _read_scored(path: pathlib.Path) -> tuple[tuple[str, ...], np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return tuple(arrays["pieces"].tolist()), arrays["scores"]


def _score(
    choice: methods.Choice, scores: np.ndarray, text: "MixtureTrainer"
) -> dict[str, comparison.Score]:
    counts_of = comparison.counter(choice.pieces, scores, choice.kind)
    return comparison.score(
        counts_of, *(text.pretokens if choice.kind == BYTE_BPE else text.tables)
    )


@dataclasses.dataclass(frozen=True)
class MixtureTrainer:
    """Trainer and scorer on the mixture of several languages."""

    sources: Mapping[str, Source]
    heldout: Mapping[str, Source]
    languages: Mapping[str, Language]
    prepared: Mapping[str, _Prepared]
    settings: VocabularySettings
    cache: pathlib.Path
    parallel: Mapping[str, Sequence[str]]

    def train(self, languages: tuple[str, ...], sizes: tuple[int, ...]) -> unigram.Vocabularies:
        """Train the vocabularies of the languages' mixture; see `methods.TrainTogether`."""
        settings = dataclasses.replace(self.settings.training, sizes=sizes)
        draws = settings.trainer == "sentencepiece"  # samples sentences by the seed
        key = artifacts.fingerprint(
            self._text_key(languages),
            dataclasses.asdict(settings),
            self.settings.seed if draws else None,
        )
        path = self.cache / "together" / f"{key}.npz"
        if not entries.is_whole(path):
            if draws:
                sentences = self._sentences(languages)
                table = runs.most_frequent(runs.count_runs(sentences), self.settings.max_characters)
            else:
                sentences, table = None, self._mixture(languages)
            vocabularies = unigram.train_vocabularies(table, settings, sentences)
            if vocabularies is None:
                raise ValueError(
                    f"no vocabulary of {sizes[0]} to {sizes[-1]} pieces can be trained on "
                    f"{', '.join(languages)} together: the sizes must exceed their characters and "
                    "be small enough for the text to fill; change vocab.target_size, or leave the "
                    "method out of vocab.compare"
                )
            unigram.write_vocabularies(path, vocabularies)
        return unigram.read_vocabularies(path)

    def train_merges(self, size: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Train the merges of all languages' mixture; see `methods.TrainScored`."""
        coverage, longest = self.settings.character_coverage, self.settings.max_piece_length
        languages = tuple(self.languages)
        key = artifacts.fingerprint(self._text_key(languages), size, coverage, longest)
        path = self.cache / "merges" / f"{key}.npz"
        if not entries.is_whole(path):
            merges = bpe.train(
                self._mixture_of_all, size, character_coverage=coverage, max_piece_length=longest
            )
            if merges is None:
                raise ValueError(
                    f"no {size} pieces can be merged on {', '.join(languages)} together: there are "
                    "more characters than that, or too little text; change vocab.target_size, or "
                    "leave bpe out of vocab.compare"
                )
            _write_scored(path, merges)
        return _read_scored(path)

    def train_union(self, size: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Train the pieces of all languages as one problem; see `methods.TrainScored`."""
        one = self.settings
        used = (one.character_coverage, one.max_piece_length, one.em_iterations, one.beta)
        return self._train_fairly("union", size, used)

    def train_bytes(self, size: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Train merges of the bytes of all languages' mixture; see `methods.TrainScored`."""
        used = (self.settings.max_piece_length, self.settings.beta, byte_tokens.PATTERN)
        return self._train_fairly("bytes", size, used)

    def _train_fairly(
        self, name: str, size: int, used: tuple[Any, ...]
    ) -> tuple[tuple[str, ...], np.ndarray]:
        """Train "union" or "bytes" at the shares q^beta, moved by `parity`."""
        one = self.settings
        key = artifacts.fingerprint(
            self._text_key(tuple(self.languages)), size, used,
            [one.parity, self._measured_key()] if one.parity else [],
        )  # fmt: skip
        path = self.cache / name / f"{key}.npz"
        if not entries.is_whole(path):
            trainer: types.ModuleType = union
            count, (train, heldout) = runs.count_runs, self.tables
            if name == "bytes":
                trainer, count, (train, heldout) = byte_bpe, byte_bpe.count, self.pretokens
            tables = self._truncated(train)
            measured = {language: count(text) for language, text in self.parallel.items()}
            shares = {lang: found.probability**one.beta for lang, found in self.languages.items()}
            shares = union.fair_shares(
                tables, shares, measured or heldout, one, is_parallel=bool(self.parallel),
                count=trainer.count_tokens,
            )  # fmt: skip
            _write_scored(path, trainer.train(tables, shares, one))
        return _read_scored(path)

    @functools.cached_property
    def tables(self) -> tuple[dict[str, runs.RunTable], dict[str, runs.RunTable]]:
        """Training and held-out text by language."""
        heldout = {language: one.heldout for language, one in self.languages.items()}
        return (
            {language: one.table for language, one in self.languages.items()},
            {language: table for language, table in heldout.items() if table is not None},
        )

    @functools.cached_property
    def pretokens(self) -> tuple[dict[str, runs.RunTable], dict[str, runs.RunTable]]:
        """The same as `byte_bpe` counts it."""
        train, heldout = self.tables
        return (
            byte_bpe.count_each(self.sources, train), byte_bpe.count_each(self.heldout, heldout)
        )  # fmt: skip

    def fit_scores(self, choice: methods.Choice) -> np.ndarray:
        """Score the chosen pieces on the mixture of all languages, in the pieces' order."""
        if choice.is_scored:
            return choice.scores
        key = artifacts.fingerprint(
            self._text_key(tuple(self.languages)),
            choice.pieces,
            choice.scores.tolist(),
            self.settings.em_iterations,
        )
        path = self.cache / "scores" / f"{key}.npy"
        if not entries.is_whole(path):
            log_probs = merge.fit_scores(
                choice.pieces, choice.scores, self._mixture_of_all,
                self.settings.em_iterations,
            )  # fmt: skip
            with entries.written(path) as aside:
                np.save(aside, log_probs)
        return np.load(path, allow_pickle=False)

    def _text_key(self, languages: tuple[str, ...]) -> str:
        digests = {language: self.prepared[language].digest for language in languages}
        return artifacts.fingerprint(digests, self._shares(languages), self.settings.max_characters)

    def _shares(self, languages: tuple[str, ...]) -> dict[str, float]:
        """Return the languages' probabilities, renormalised to sum to one."""
        return language_probabilities(
            {language: self.languages[language].probability for language in languages}, alpha=1
        )

    @functools.cached_property
    def _mixture_of_all(self) -> runs.RunTable:
        return self._mixture(tuple(self.languages))

    def _measured_key(self) -> str:
        """Identify the text on which the languages' costs are measured."""
        if self.parallel:
            return artifacts.fingerprint({one: list(text) for one, text in self.parallel.items()})
        return artifacts.fingerprint(
            {
                language: str(one.heldout and one.heldout.name)
                for language, one in self.prepared.items()
            }
        )

    def _mixture(self, languages: tuple[str, ...]) -> runs.RunTable:
        """Return the mixture, truncated to about `max_characters`."""
        tables = {language: self.languages[language].table for language in languages}
        return runs.mixture(self._truncated(tables), self._shares(languages))

    def _truncated(self, tables: Mapping[str, runs.RunTable]) -> Mapping[str, runs.RunTable]:
        """Return tables of about `max_characters` together.

        Each language loses the same share of its characters. Taking the most frequent runs of the
        mixture itself would discriminate against languages without spaces, since most of their runs
        occur once.
        """
        limit = self.settings.max_characters
        total = sum(len(table.text.characters) for table in tables.values())
        if 0 < limit < total:
            tables = {
                language: runs.most_frequent(
                    table, max(1, limit * len(table.text.characters) // total)
                )
                for language, table in tables.items()
            }
        return tables

    def _sentences(self, languages: tuple[str, ...]) -> list[str]:
        """Draw sentences so that language i makes up the share q_i of the bytes."""
        total = sum(self.languages[language].table.num_bytes for language in languages)
        generator = np.random.default_rng(self.settings.seed)
        drawn: list[str] = []
        for language, share in self._shares(languages).items():
            source = self.sources[language]
            if isinstance(source, pathlib.Path):
                raise ValueError(
                    "vocab.trainer = sentencepiece needs text; tables of runs do not suffice"
                )
            copies = share * total / self.languages[language].table.num_bytes
            drawn.extend(sentence for sentence in source for _ in range(int(copies)))
            rest = generator.random(len(source)) < copies % 1
            drawn.extend(sentence for sentence, keep in zip(source, rest, strict=True) if keep)
        return drawn
