"""Training of pieces on several languages together; a hash of its inputs caches each result."""

import dataclasses
import functools
import logging
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from vocap import (
    bpe,
    byte_bpe,
    byte_tokens,
    entries,
    merge,
    methods,
    pretokens,
    tradeoff,
    unigram,
    union,
)
from vocap.allocation import language_probabilities
from vocap.pretokens import Texts
from vocap.settings import VocabularySettings
from vocap.union import Scored
from xlm.common import artifacts

# Sentences, or the path of a table of runs.
Source = Sequence[str] | pathlib.Path


@dataclasses.dataclass(frozen=True)
class Language:
    """One language of a build: `amount` is n_i and `probability` q_i of Eq. 3."""

    table: pretokens.PretokenTable
    heldout: pretokens.PretokenTable | None
    vocabularies: unigram.Vocabularies
    amount: float
    probability: float


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Paths of one language's artefacts, and the hash of its training text."""

    table: pathlib.Path
    heldout: pathlib.Path | None
    vocabularies: pathlib.Path
    digest: str


@dataclasses.dataclass(frozen=True)
class MixtureTrainer:
    """Trainer and scorer on the mixture of several languages."""

    sources: Mapping[str, Source]
    heldout: Mapping[str, Source]
    languages: dict[str, Language]
    prepared: Mapping[str, Prepared]
    settings: VocabularySettings
    cache: pathlib.Path
    parallel: Mapping[str, Sequence[str]]

    def train(self, languages: tuple[str, ...], sizes: tuple[int, ...]) -> unigram.Vocabularies:
        """Train the vocabularies of the languages' mixture."""
        settings = dataclasses.replace(self.settings.training, sizes=sizes)
        draws = settings.trainer == "sentencepiece"  # samples sentences by the seed
        key = artifacts.fingerprint(
            self._text_key(languages),
            settings.training_identity,
            self.settings.seed if draws else None,
        )

        def make() -> unigram.Vocabularies:
            if draws:
                sentences = self._sentences(languages)
                table = pretokens.most_frequent(
                    pretokens.count_pretokens(sentences), self.settings.max_characters
                )
            else:
                sentences, table = None, self._mixture(languages)
            if found := unigram.train_vocabularies(table, settings, sentences):
                return found
            raise ValueError(
                f"no vocabulary of {sizes[0]} to {sizes[-1]} pieces can be trained on "
                f"{', '.join(languages)} together: the text must have fewer characters and fill a "
                "size; change vocab.target_size, or leave the method out of vocab.compare"
            )

        path = self.cache / "together" / f"{key}.npz"
        return entries.kept(path, make, unigram.write_vocabularies, unigram.read_vocabularies)

    def train_merges(self, size: int) -> Scored:
        """Train the merges of all languages' mixture."""
        coverage, longest = self.settings.character_coverage, self.settings.max_piece_length
        languages = tuple(self.languages)

        def make() -> Scored:
            if found := bpe.train(
                self._mixture_of_all, size, character_coverage=coverage, max_piece_length=longest
            ):
                return found
            raise ValueError(
                f"no {size} pieces can be merged on {', '.join(languages)} together: there are "
                "more characters than that, or too little text; change vocab.target_size, or "
                "leave bpe out of vocab.compare"
            )

        key = artifacts.fingerprint(self._text_key(languages), size, coverage, longest)
        return entries.kept(self.cache / "merges" / f"{key}.npz", make, _write, _read)

    def tradeoff(self) -> tradeoff.Tradeoff | None:
        """Measure other sizes and parities of the union; None without text to measure on."""
        measured = self._measured("union")
        if any(lang not in measured or not measured[lang].num_sentences for lang in self.languages):
            return None
        one = self.settings
        parities = sorted({*tradeoff.PARITIES, one.parity})

        def make() -> dict[str, Any]:
            logging.info(
                "training other sizes and parities for report.html; vocab.explore=False skips them"
            )
            _, tables, shares, fairest = self._ends("union")
            found = tradeoff.measure(
                tables, shares, fairest, measured, one, is_parallel=bool(self.parallel)
            )
            return dataclasses.asdict(found)

        used = (one.budget, one.target_size, parities, self._measured_key())
        path = self.cache / "tradeoff" / f"{self._fair_key('union', *used)}.json"
        found = entries.kept(path, make, artifacts.write_json, artifacts.read_object)
        return tradeoff.Tradeoff(**found)

    def train_fairly(self, name: str, size: int) -> Scored:
        """Train "union" or "bytes", of all languages, at the shares q^beta, moved by `parity`."""
        one = self.settings

        def make() -> Scored:
            if one.parity:
                trainer, tables, shares, fairest = self._ends(name)
                shares = union.between(shares, fairest, one.parity)
            else:
                trainer, tables, shares = self._beginning(name)
            return trainer.train(tables, shares, one)

        measured = [one.parity, self._measured_key()] if one.parity else []
        path = self.cache / name / f"{self._fair_key(name, size, measured)}.npz"
        return entries.kept(path, make, _write, _read)

    def _fair_key(self, name: str, *more: Any) -> str:
        one = self.settings
        used: tuple[Any, ...] = (one.max_piece_length, one.beta, byte_tokens.PATTERN)
        if name == "union":
            used = (one.character_coverage, one.max_piece_length, one.em_iterations, one.beta)
            used += ("bytes",) if one.byte_fallback else ()
        return artifacts.fingerprint(self._text_key(tuple(self.languages)), used, *more)

    def _beginning(self, name: str) -> tuple[types.ModuleType, Texts, dict[str, float]]:
        """Return the trainer of "union" or "bytes", its text, and the shares of parity 0."""
        beta, languages = self.settings.beta, self.languages
        shares = {language: one.probability**beta for language, one in languages.items()}
        if name == "bytes":
            return byte_bpe, self._truncated(self.byte_pretokens[0]), shares
        return union, self._truncated(self.tables[0]), shares

    def _ends(
        self, name: str
    ) -> tuple[types.ModuleType, Texts, dict[str, float], dict[str, float]]:
        """Return the results of `_beginning`, and the shares of parity 1, which are cached."""
        trainer, tables, shares = self._beginning(name)

        def make() -> dict[str, float]:
            logging.info("searching shares at which all languages cost the same")
            return union.fairest_shares(
                tables, shares, self._measured(name), self.settings,
                is_parallel=bool(self.parallel), count=trainer.count_tokens,
            )  # fmt: skip

        key = self._fair_key(name, self.settings.budget, self._measured_key())
        path = self.cache / "shares" / f"{key}.json"
        fairest = entries.kept(path, make, artifacts.write_json, artifacts.read_object)
        return trainer, tables, shares, fairest

    def _measured(self, name: str) -> Texts:
        """Return the text to measure the costs of "union" or "bytes" on: parallel, or held out."""
        if not self.parallel:
            return (self.byte_pretokens if name == "bytes" else self.tables)[1]
        count: Callable = functools.partial(pretokens.count_pretokens, rules=self.settings.rules)
        count = byte_bpe.count if name == "bytes" else count
        return {language: count(text) for language, text in self.parallel.items()}

    @functools.cached_property
    def tables(self) -> tuple[Texts, Texts]:
        """Training and held-out text by language."""
        heldout = {language: one.heldout for language, one in self.languages.items()}
        return (
            {language: one.table for language, one in self.languages.items()},
            {language: table for language, table in heldout.items() if table is not None},
        )

    @functools.cached_property
    def byte_pretokens(self) -> tuple[Texts, Texts]:
        """Training and held-out text by language, as `byte_bpe` counts it."""
        # `byte_bpe.check` refuses tables as sources.
        train, heldout = (
            {one: byte_bpe.count(cast(Sequence[str], of[one])) for one in tables}
            for of, tables in zip((self.sources, self.heldout), self.tables, strict=True)
        )
        return train, heldout

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
        return entries.kept(
            self.cache / "scores" / f"{key}.npy",
            lambda: merge.fit_scores(
                choice.pieces, choice.scores, self._mixture_of_all, self.settings.em_iterations
            ),
            np.save,
            np.load,
        )

    def _text_key(self, languages: tuple[str, ...]) -> str:
        digests = {language: self.prepared[language].digest for language in languages}
        return artifacts.fingerprint(digests, self._shares(languages), self.settings.max_characters)

    def _shares(self, languages: tuple[str, ...]) -> dict[str, float]:
        """Return the languages' probabilities, renormalised to sum to one."""
        return language_probabilities(
            {language: self.languages[language].probability for language in languages}, alpha=1
        )

    @functools.cached_property
    def _mixture_of_all(self) -> pretokens.PretokenTable:
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

    def _mixture(self, languages: tuple[str, ...]) -> pretokens.PretokenTable:
        """Return the mixture, truncated to about `max_characters`."""
        tables = {language: self.languages[language].table for language in languages}
        return pretokens.mixture(self._truncated(tables), self._shares(languages))

    def _truncated(self, tables: Texts) -> Texts:
        """Return tables of about `max_characters` together.

        Each language loses the same share of its characters. The most frequent runs of the mixture
        itself would leave out languages without spaces, since most of their runs occur once.
        """
        limit = self.settings.max_characters
        total = sum(len(table.text.characters) for table in tables.values())
        if 0 < limit < total:
            tables = {
                language: pretokens.most_frequent(
                    table, max(1, limit * len(table.text.characters) // total)
                )
                for language, table in tables.items()
            }
        return tables

    def _sentences(self, languages: tuple[str, ...]) -> list[str]:
        """Draw sentences in which language i has the share q_i of the bytes."""
        total = sum(self.languages[language].table.num_bytes for language in languages)
        generator = np.random.default_rng(self.settings.seed)
        drawn: list[str] = []
        for language, share in self._shares(languages).items():
            source = self.sources[language]
            # `unigram.train_vocabularies` has refused tables.
            assert not isinstance(source, pathlib.Path)
            copies = share * total / self.languages[language].table.num_bytes
            drawn.extend(sentence for sentence in source for _ in range(int(copies)))
            rest = generator.random(len(source)) < copies % 1
            drawn.extend(sentence for sentence, keep in zip(source, rest, strict=True) if keep)
        return drawn


def _write(path: pathlib.Path, found: Scored) -> None:
    np.savez(path, pieces=np.array(found[0]), scores=found[1])


def _read(path: pathlib.Path) -> Scored:
    with np.load(path) as arrays:
        return tuple(arrays["pieces"].tolist()), arrays["scores"]
