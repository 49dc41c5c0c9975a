"""Unigram vocabularies of every size in one training: trunk and cut.

SentencePiece's unigram training starts from up to a million seeds. It alternates two EM iterations
with a prune of the pieces that cost the likelihood least: a quarter, or the excess over 1.1 t if
that is less. Only the last prune depends on the target size t. So one training without a target,
the trunk, serves all sizes. Each target cuts the trunk's ranking at its own last prune, then takes
its required characters and the best-scored pieces.

Besides those of `seeds`, differences from SentencePiece 0.2.3 are below its own rounding. Sums are
in double precision, which decides near-ties. Its last check for unreachable pieces is omitted,
since the preceding prune removes them.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.special

from vocap import lattice
from vocap.alp import UNKNOWN_PENALTY
from vocap.pretokens import PretokenTable, count_pretokens
from vocap.seeds import Seeds, TrainingText, cover, find_seeds, piece_strings

_EM_ITERATIONS = 2
_MIN_EXPECTED_COUNT = 0.5
_SHRINKING_FACTOR = 0.75
_CUT_FACTOR = 1.1
_LEAST_STEP = 20  # pieces, between sizes that follow the text
_PENALTY_STEP = 1e-4  # distinguishes the scores of characters that are added back at the end


@dataclasses.dataclass(frozen=True)
class SizedVocabulary:
    """One cut, highest score first, with its best segmentation of the text.

    `ids` [S] int32 index `NestedVocabularies.pieces`; `log_probs` [S] float64 are natural logs and
    `counts` [S] float64 occurrences in that segmentation.
    """

    ids: np.ndarray
    log_probs: np.ndarray
    counts: np.ndarray


@dataclasses.dataclass(frozen=True)
class NestedVocabularies:
    """Vocabularies of one text by ascending size, and the distinct `pieces` of all of them.

    Every vocabulary holds all required characters; others occur `num_unknown` times.
    """

    pieces: tuple[str, ...]
    vocabularies: tuple[SizedVocabulary, ...]
    num_unknown: float


def train(
    table: PretokenTable,
    sizes: Sequence[int] | None,
    *,
    limit: int = 0,
    character_coverage: float,
    max_piece_length: int,
    max_seeds: int,
) -> NestedVocabularies:
    """Train the vocabularies of all feasible `sizes`, by default `sizes_of_text` up to `limit`.

    Sizes do not count the unknown piece.
    """
    text = cover(table, character_coverage)
    size = len(text.alphabet)
    if sizes is None:
        sizes = sizes_of_text(size, limit)
    targets = sorted(target for target in set(sizes) if target >= size > 0)
    if not targets:
        return NestedVocabularies((), (), text.num_unknown)
    trunk = Trunk(text, find_seeds(text, max_piece_length, max_seeds))
    cuts: list[SizedVocabulary] = []  # ids are those of the seeds until all cuts are known
    while targets:
        trunk.fit()
        ranking = trunk.rank()
        while targets and ranking.is_last_for(desired(targets[-1])):
            cut = trunk.cut(ranking, targets.pop())
            if cut is not None:
                cuts.append(cut)
        if targets:
            trunk.prune(ranking)
    used = np.unique(np.concatenate([cut.ids for cut in cuts])) if cuts else np.zeros(0, int)
    return NestedVocabularies(
        pieces=tuple(piece_strings(text, trunk.seed_begins[used], trunk.seed_lengths[used])),
        vocabularies=tuple(
            dataclasses.replace(cut, ids=np.searchsorted(used, cut.ids).astype(np.int32))
            for cut in reversed(cuts)
        ),
        num_unknown=text.num_unknown,
    )


def sizes_of_text(num_characters: int, limit: int) -> list[int]:
    """Return sizes from the number of characters up to a limit, each step an eighth larger."""
    more = [0, _LEAST_STEP]
    while num_characters + more[-1] < limit:
        more.append(more[-1] + max(_LEAST_STEP, more[-1] // 8))
    return [num_characters + pieces for pieces in more]


def with_unknown(log_probs: np.ndarray) -> np.ndarray:
    """Return [V + 1], the log probabilities of pieces and, last, of an unknown character."""
    return np.append(log_probs, np.min(log_probs) - UNKNOWN_PENALTY)


def desired(target: int) -> int:
    """Return the number of pieces before the final choice; SentencePiece includes the unknown."""
    return int(_CUT_FACTOR * (target + 1))


@dataclasses.dataclass(frozen=True)
class Ranking:
    """Ranking of the pieces for a prune, and the best segmentation `paths` of the text.

    `kept` are the characters in use, which are never pruned; `candidates` the other pieces in use,
    the largest loss first. A prune without a target leaves `shrunk` pieces.
    """

    kept: np.ndarray
    candidates: np.ndarray
    shrunk: int
    paths: lattice.Paths

    def first(self, size: int) -> np.ndarray:
        return np.concatenate([self.kept, self.candidates[: max(size - len(self.kept), 0)]])

    def is_last_for(self, desired: int) -> bool:
        """Return whether the prune to `desired` pieces ends a training."""
        return desired >= min(self.shrunk, len(self.kept) + len(self.candidates))


class Trunk:
    """The training without a target: pieces, scores, and the lattice of the text.

    Pieces 0 to A - 1 are the characters. Characters that drop out of the model stay in the lattice
    as unknown, so that every text has a path.
    """

    def __init__(self, text: TrainingText, seeds: Seeds) -> None:
        self.seed_begins, self.seed_lengths = seeds.begins, seeds.lengths
        self._text = text
        self._lattice = seeds.lattice
        self._seed_of = np.arange(len(seeds.scores))
        self._size = len(text.alphabet)
        self._in_model = np.ones(len(seeds.scores), bool)
        self._scores = np.log(seeds.scores) - np.log(seeds.scores.sum())
        self._by_frequency = np.argsort(-text.frequency, kind="stable")
        self._nats = 3.0  # per character, updated by each E-step

    def fit(self) -> None:
        """Run two EM iterations; pieces with an expected count below one half drop out."""
        for _ in range(_EM_ITERATIONS):
            lengths = self.seed_lengths[self._seed_of]
            counts, log_likelihood = self._lattice.expected_counts(
                self._with_unknown(), lengths, self._text.weights, self._nats
            )
            self._nats = -log_likelihood / self._text.frequency.sum()
            self._book_unknown(counts)
            stays = self._in_model & (counts >= _MIN_EXPECTED_COUNT)
            logs = scipy.special.digamma(np.maximum(counts, _MIN_EXPECTED_COUNT))
            self._scores = logs - scipy.special.digamma(counts[stays].sum())
            self._restrict(stays)

    def rank(self, *, by_tokens: bool = False) -> Ranking:
        """Rank pieces by the loss of likelihood without them or, `by_tokens`, by the tokens added.

        The second-best segmentation of the piece itself replaces its occurrences.
        """
        scores = self._with_unknown()
        paths = self._lattice.best_paths(scores)
        counts = paths.counts(self._text.weights, len(scores))
        self._book_unknown(counts)
        in_use = self._in_model & (counts > 0)

        unknown_as = np.arange(len(scores))
        unknown_as[: self._size][~self._in_model[: self._size]] = self._first
        other, num_pieces, log_counts = lattice.second_best(
            self._lattice.begins, self._lattice.arcs, scores,
            self.seed_begins[self._seed_of], self.seed_lengths[self._seed_of], counts, unknown_as,
        )  # fmt: skip
        total = counts.sum()
        ranked = np.flatnonzero(in_use & (other <= scores) & (np.arange(len(scores)) >= self._size))
        count, alternatives = counts[ranked], num_pieces[ranked]
        if by_tokens:
            loss = count * (alternatives - 1)
        else:
            log_prob = np.log(count) - np.log(total)
            log_prob_of_other = log_counts[ranked] - alternatives * np.log(
                total + count * (alternatives - 1)
            )
            loss = count / total * (log_prob - log_prob_of_other)
        return Ranking(
            kept=np.flatnonzero(in_use[: self._size]),
            candidates=ranked[np.argsort(-loss, kind="stable")],
            shrunk=int(_SHRINKING_FACTOR * self._in_model.sum()),
            paths=paths,
        )

    def prune(self, ranking: Ranking) -> None:
        stays = np.zeros(len(self._in_model), bool)
        stays[ranking.first(ranking.shrunk)] = True
        self._restrict(stays)

    def first_ranked(self, ranking: Ranking, target: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the seeds of all characters and of the first candidates, and their scores.

        They are `target` in all, or fewer if there are too few candidates.
        """
        ids = np.concatenate([np.arange(self._size), ranking.candidates[: target - self._size]])
        return self._seed_of[ids], self._with_unknown()[ids]

    def cut(self, ranking: Ranking, target: int) -> SizedVocabulary | None:
        """Return the vocabulary of `target` pieces, or None if the text cannot fill it."""
        kept = ranking.first(desired(target))
        lowest = self._scores[kept].min(initial=0.0)
        scores = np.full(len(self._scores), -np.inf)
        in_cut = np.zeros(len(scores), bool)
        in_cut[kept] = True
        returning = self._by_frequency[~in_cut[self._by_frequency]]
        scores[self._by_frequency] = self._scores[self._by_frequency]
        scores[returning] = lowest + _PENALTY_STEP * np.arange(len(returning))
        others = kept[kept >= self._size]
        if len(others) < target - self._size:
            return None
        by_score = np.argsort(-self._scores[others], kind="stable")
        chosen = others[by_score[: target - self._size]]
        scores[chosen] = self._scores[chosen]

        counts = self._counts_under(scores, returning, ranking)
        ids = np.concatenate([np.arange(self._size), chosen])
        ids = ids[np.argsort(-scores[ids], kind="stable")]
        return SizedVocabulary(self._seed_of[ids], scores[ids], counts[ids])

    def _counts_under(
        self, scores: np.ndarray, returning: np.ndarray, ranking: Ranking
    ) -> np.ndarray:
        """Count each piece in the best segmentation under `scores`."""
        counts = ranking.paths.counts(self._text.weights, len(scores))
        returns = np.zeros(self._size, bool)
        returns[returning] = True
        affected = _holds(ranking.paths.pieces, np.isneginf(scores), ranking.paths.offsets)
        affected |= _holds(self._text.characters, returns, self._text.offsets)
        lattice.changed_counts(
            self._lattice.offsets, self._lattice.begins, self._lattice.arcs, self._text.weights,
            scores, ranking.paths.pieces, ranking.paths.offsets, affected, counts,
        )  # fmt: skip
        return counts

    def _book_unknown(self, counts: np.ndarray) -> None:
        """Move the counts of unknown characters to the first piece, as SentencePiece does."""
        dropped = np.flatnonzero(~self._in_model[: self._size])
        counts[self._first] += counts[dropped].sum() + self._text.num_unknown
        counts[dropped] = 0

    @property
    def _first(self) -> int:
        """Index of the model's most frequent character; without any, of its first piece."""
        characters = self._by_frequency[self._in_model[self._by_frequency]]
        return int(characters[0] if len(characters) else np.flatnonzero(self._in_model)[0])

    def _with_unknown(self) -> np.ndarray:
        """Return [V] scores; characters outside the model have the score of the unknown."""
        lowest = self._scores[self._in_model].min()
        return np.where(self._in_model, self._scores, lowest - UNKNOWN_PENALTY)

    def _restrict(self, stays: np.ndarray) -> None:
        """Remove pieces from the model, and all but characters from the lattice."""
        remain = stays.copy()
        remain[: self._size] = True
        new_ids = np.where(remain, np.cumsum(remain) - 1, -1)
        self._lattice = self._lattice.keep(new_ids)
        self._seed_of = self._seed_of[remain]
        self._in_model = stays[remain]
        self._scores = self._scores[remain]


def _holds(items: np.ndarray, marked: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return [N] bool, whether any of the items between offsets is marked."""
    return np.add.reduceat(marked[items].astype(np.int64), offsets[:-1]) > 0


def compile_kernels() -> None:
    """Compile, or load from numba's cache, all kernels of a training."""
    train(
        count_pretokens(["ab abc abcd", "ab abc"]),
        (6, 7),
        character_coverage=1.0,
        max_piece_length=4,
        max_seeds=100,
    )
