"""Build of one vocabulary from text per language.

Every artefact is cached under a hash of its inputs: tables of runs under their text, vocabularies
under their text and the trainer's settings, joint trainings and scores under all their texts and
settings. An interrupted build resumes. A changed setting recomputes only its dependents.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from vocap import (
    byte_bpe,
    byte_tokens,
    comparison,
    entries,
    merge,
    methods,
    nested,
    pretoken_tables,
    pretokens,
    text_rules,
    unigram,
)
from vocap.allocation import language_probabilities
from vocap.mixture_trainer import Language, MixtureTrainer, Prepared, Source
from vocap.settings import BYTE_BPE, VocabularySettings
from vocap.tradeoff import Tradeoff
from xlm.common import artifacts, processes

# Part of the cache's path: raise it with every change of artefacts.
CACHE_VERSION = 2

# Wraps an iteration, given its name and length.
Progress = Callable[[Iterable, str, int], Iterable]


@dataclasses.dataclass(frozen=True)
class BuiltVocabulary:
    """A built model and its report's data; `scores` begin with the built method.

    `model` is a SentencePiece model, or a tokenizer.json if the choice is of the kind `BYTE_BPE`.
    Only the method "union" has a `tradeoff`.
    """

    model: bytes
    languages: dict[str, Language]
    choice: methods.Choice
    scores: dict[str, dict[str, comparison.Score]]
    tradeoff: Tradeoff | None = None


def build_vocabulary(
    train: Mapping[str, Source],
    heldout: Mapping[str, Source],
    settings: VocabularySettings,
    cache: pathlib.Path,
    progress: Progress = lambda items, *_: items,
    parallel: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> BuiltVocabulary:
    """Build a vocabulary from training text per language.

    `heldout` has text of some or all languages, to compare methods on. `progress` wraps the
    iteration over finished work, given its name and length. `parallel` has translations in all
    languages, on which `settings.parity` measures costs. Raise ValueError if a language has no
    feasible size, or the target size cannot be reached.
    """
    # Checked here, before hours of training.
    if settings.parity and not parallel and (without := sorted(set(train) - set(heldout))):
        raise ValueError(
            f"vocab.parity is {settings.parity}, but there is no text of {', '.join(without)} to "
            "measure their tokens on; give parallel text by vocab.parallel, or hold text out "
            "(corpus.heldout_fraction)"
        )
    if "byte_bpe" in (settings.method, *settings.compare):
        byte_bpe.check(settings, (*train.values(), *heldout.values()))
    if settings.amounts:
        language_probabilities(settings.amounts, settings.alpha, train)
    _check_initial_sizes(settings, train)
    limits = dict.fromkeys(train, _first_limit(settings.budget, len(train)))
    while True:
        prepared = _prepare(train, heldout, settings, limits, cache, progress)
        languages = _read_languages(prepared, settings)
        limited = [
            language
            for language, one in languages.items()
            if not settings.sizes and one.vocabularies.curve.sizes[-1] >= limits[language]
        ]
        if not limited or _num_pieces(languages) >= settings.budget:
            together = MixtureTrainer(
                train, heldout, languages, prepared, settings, cache, parallel
            )
            built = _choose(together, progress)
            reached = built.choice.allocation.sizes if built.choice.allocation else {}
            ends = {
                language: one.vocabularies.curve.sizes[-1] for language, one in languages.items()
            }
            limited = [language for language in limited if reached.get(language) == ends[language]]
            if not limited:
                return built
        limits |= {language: 4 * limits[language] for language in limited}


def _first_limit(budget: int, num_languages: int) -> int:
    """Return the largest size to train at first: some four equal shares, a power of two."""
    return 1 << max(12, min(4 * budget // num_languages, budget).bit_length())


def _num_pieces(languages: Mapping[str, Language]) -> int:
    """Return the number of distinct pieces of the largest vocabularies."""
    curves = [one.vocabularies.curve for one in languages.values()]
    return len({piece for curve in curves for piece in curve.vocabulary(len(curve.sizes) - 1)})


def _choose(together: MixtureTrainer, progress: Progress) -> BuiltVocabulary:
    """Choose the pieces by each wanted method, score them, and write the model of the first."""
    languages, settings = together.languages, together.settings
    probabilities = {language: one.probability for language, one in languages.items()}
    choices, scores = {}, {}
    wanted = dict.fromkeys((settings.method, *settings.compare))
    for method in progress(wanted, "methods", len(wanted)):
        choices[method] = methods.choose(
            method,
            {language: one.vocabularies for language, one in languages.items()},
            probabilities,
            settings,
            together,
        )
        scores[method] = together.fit_scores(choices[method])
    choice = choices[settings.method]
    of_model = choice.pieces, scores[settings.method]
    return BuiltVocabulary(
        model=byte_tokens.tokenizer_json(*of_model, settings.fixed, settings.user_defined_symbols)
        if choice.kind == BYTE_BPE
        else merge.write_model(*of_model, choice.kind, settings),
        languages=languages,
        choice=choice,
        scores={
            method: _score(choices[method], scores[method], together)
            for method in progress(wanted, "comparison", len(wanted))
        },
        tradeoff=together.tradeoff() if settings.method == "union" and settings.explore else None,
    )


def _check_initial_sizes(settings: VocabularySettings, languages: Iterable[str]) -> None:
    """Check the initial sizes as far as is possible without curves; see `allocation`."""
    if unknown := sorted(set(settings.initial_sizes) - set(languages)):
        raise ValueError(
            f"vocab.allocation has sizes for {', '.join(unknown)}, but the languages are "
            f"{', '.join(sorted(languages))}; remove them, or add the languages to the corpus"
        )
    for language, size in settings.initial_sizes.items():
        if settings.sizes and size not in settings.sizes:
            raise ValueError(
                f"vocab.allocation has the size {size} for {language}, but vocab.sizes are "
                f"{', '.join(map(str, settings.sizes))}; choose one of them, or add it"
            )


def _prepare(
    train: Mapping[str, Source],
    heldout: Mapping[str, Source],
    settings: VocabularySettings,
    limits: Mapping[str, int],
    cache: pathlib.Path,
    progress: Progress,
) -> dict[str, Prepared]:
    """Count and train all languages that the cache lacks, up to sizes of `limits`."""
    prepared, missing = {}, []
    for language in sorted(train):
        digest = _text_digest(train[language], settings)
        own = dataclasses.replace(settings.training, limit=limits[language])
        key = artifacts.fingerprint(digest, own.training_identity, settings.max_characters)
        aside = heldout.get(language)
        prepared[language] = Prepared(
            table=_table_path(train[language], digest, cache, language),
            heldout=None
            if aside is None
            else _table_path(aside, _text_digest(aside, settings), cache, f"{language}-heldout"),
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
    # Largest first, so that a large language does not start last while other cores idle.
    missing.sort(key=lambda language: -_size(train[language]))
    jobs = [
        (lang, train[lang], heldout.get(lang), prepared[lang],
         dataclasses.replace(settings, limit=limits[lang]))
        for lang in missing
    ]  # fmt: skip
    with processes.Workers(settings.num_workers, "vocab.num_workers") as workers:
        for _ in progress(workers.run(_build_language, jobs), "languages", len(jobs)):
            pass
    return prepared


def _read_languages(
    prepared: Mapping[str, Prepared], settings: VocabularySettings
) -> dict[str, Language]:
    tables = {language: _read_table(one.table, settings) for language, one in prepared.items()}
    amounts = settings.amounts or {lang: table.num_bytes for lang, table in tables.items()}
    probabilities = language_probabilities(amounts, settings.alpha, tables)
    return {
        language: Language(
            table=tables[language],
            heldout=None if one.heldout is None else _read_table(one.heldout, settings),
            vocabularies=unigram.read_vocabularies(one.vocabularies),
            amount=amounts[language],
            probability=probabilities[language],
        )
        for language, one in prepared.items()
    }


def _read_table(path: pathlib.Path, settings: VocabularySettings) -> pretokens.PretokenTable:
    """Read a table, with its required characters; ValueError if other rules counted it."""
    table = pretoken_tables.read_table(path)
    if table.rules != settings.rules.name:
        raise ValueError(
            f"{path} was counted by the rules {table.rules}, but vocab.normalizer, whitespace, "
            f"split_digits, pattern and user_defined_symbols say {settings.rules.name}; count the "
            "text again with the flags of these names, or restore the keys"
        )
    if not settings.required_chars:
        return table
    used = np.unique(table.text.characters).tobytes().decode("utf-32-le")
    needed = text_rules.required_characters(used, settings.required_chars, settings.rules)
    return dataclasses.replace(table, required=frozenset(needed))


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


def _text_digest(source: Source, settings: VocabularySettings) -> str:
    digest, rules = source_digest(source), settings.text_identity
    return artifacts.fingerprint(digest, rules) if rules else digest


def _table_path(source: Source, digest: str, cache: pathlib.Path, name: str) -> pathlib.Path:
    if isinstance(source, pathlib.Path):
        return source
    return cache / "tables" / f"{name}-{digest}.runs.gz"


def _build_language(
    language: str,
    train: Source,
    heldout: Source | None,
    prepared: Prepared,
    settings: VocabularySettings,
) -> None:
    """Count, train and measure one language; may run in a worker process."""
    for source, path in ((train, prepared.table), (heldout, prepared.heldout)):
        if path is not None and not path.exists():
            assert not isinstance(source, pathlib.Path | None)
            with entries.written(path) as aside:
                pretoken_tables.write_table(
                    aside, pretokens.count_pretokens(source, settings.rules)
                )
    if prepared.vocabularies.exists():
        return
    table = _read_table(prepared.table, settings)
    vocabularies = unigram.train_vocabularies(
        pretokens.most_frequent(table, settings.max_characters),
        settings.training,
        None if isinstance(train, pathlib.Path) else train,
    )
    if vocabularies is None:
        characters = len(np.unique(table.text.characters))
        sizes = "..".join(map(str, (*settings.sizes[:1], *settings.sizes[-1:])))
        raise ValueError(
            f"language {language!r}: none of vocab.sizes {sizes} can be trained on its "
            f"{table.num_sentences} sentences with {characters} distinct characters; a size must "
            "exceed the characters and be small enough for the text to fill: add text, or offer "
            "other sizes"
        )
    with entries.written(prepared.vocabularies) as aside:
        unigram.write_vocabularies(aside, vocabularies)


def _score(
    choice: methods.Choice, scores: np.ndarray, text: MixtureTrainer
) -> dict[str, comparison.Score]:
    counts_of = comparison.counter(choice.pieces, scores, choice.kind)
    if choice.kind == BYTE_BPE:
        return comparison.score(counts_of, *text.byte_pretokens)
    spelled = choice.pieces if text.settings.byte_fallback else None
    return comparison.score(counts_of, *text.tables, spelled)
