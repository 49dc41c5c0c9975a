"""Many-to-many bitext: a stream of rows of sentence pairs.

A set of parallel text holds each sentence once in each language. Any two of its languages form a
pair. A row holds several sentence pairs of one set and language pair (`pair_rows`). A pair is
`<s> a </s> </s> b </s>` in one segment, or `<s> a </s> <s> b </s>` in two, and attends only to
itself. The stream is a pure function of (seed, step), ordered like packed text.
"""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np

from input_pipeline.order import NO_BLOCKS, BlockSettings, hashed
from input_pipeline.packed_dataset import PackedDataset, SpecialIds
from input_pipeline.pair_rows import PairRows, cut_lengths, parts_of, ranges
from input_pipeline.pair_sampling import Pair
from input_pipeline.stream import OrderedStream, Seen, block_cache

POSITIONS = ("continue", "restart")
# Kinds of batches: pairs as one segment, and pairs with a segment per sentence.
PAIRS, SEPARATE_PAIRS = "pairs", "separate_pairs"
# Most tokens that statistics count of a set's language pair, in so many ranges of its rows.
_COUNTED_TOKENS = 1 << 18
_RANGES = 16


@dataclasses.dataclass(frozen=True)
class BitextSettings:
    """Settings of sentence pairs, in rows; part of the `data` section of a config.

    Attributes:
      positions: "continue" through both sentences of a pair, or "restart" at zero in the second.
      alpha: without shares of language pairs, n sentence pairs of two languages weigh n^alpha.
      separate_segments: whether the sentences have own positions and ignore each other.
    """

    positions: str
    alpha: float
    batch_size: int
    separate_segments: bool = False
    blocks: BlockSettings = NO_BLOCKS


class PairStream(OrderedStream):
    """Batches of rows of pairs, by step. Without `pool` no thread reads ahead."""

    types = dict.fromkeys(("tokens", "segments", "positions", "pair"), np.dtype(np.int32))

    def __init__(
        self,
        dataset: PackedDataset,
        rows: Sequence[PairRows],
        shares: np.ndarray,
        settings: BitextSettings,
        seed: int,
        pool: Executor | None = None,
    ):
        index = {pair: number for number, pair in enumerate(language_pairs(dataset))}
        self._index = np.array([index[one.pair] for one in rows], np.int32)
        self._special, self._settings, self._seed = dataset.special, settings, seed
        self._names = [(one.name, one.pair) for one in rows]
        self._pairs_a_row = np.array([one.num_pairs / len(one) for one in rows])
        cache = block_cache(rows, pool, settings.blocks) if pool else None
        super().__init__(dataset, rows, shares, settings.batch_size, seed, settings.blocks, cache)

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return batch `step`, or part `part` of its `num_parts` equal parts.

        int32 [B / num_parts, L] `tokens`, `segments` and `positions`, and [B / num_parts] `pair`,
        an index into `language_pairs`. Segments of a row are 1 to P, or 2i + 1 and 2i + 2 for the
        sentences of pair i from 0 on. Padding has segment and position 0. Raise ValueError if the
        batch does not divide or a file is damaged.
        """
        tokens, places = self._tokens(step, part, num_parts)
        first = step * self.batch_size + part * len(tokens)
        flips = hashed(np.arange(first, first + len(tokens)), np.uint64(self._seed))
        arrays = lay_out(tokens, flips, self._special, self._settings)
        return {**arrays, "pair": self._index[places.language]}

    def kind(self, step: int) -> str:
        return SEPARATE_PAIRS if self._settings.separate_segments else PAIRS

    def pairs_per_step(self) -> float:
        """Return the mean number of sentence pairs in a batch."""
        return self.batch_size * float(self._order.shares @ self._pairs_a_row)

    def seen(self, steps: int) -> Seen:
        """Count the sentence pairs of the first `steps` batches, by the mean number per row."""
        found = Seen()
        counts = self._order.counts_before(steps) * self._pairs_a_row
        for (_, pair), count in zip(self._names, counts.round().astype(int).tolist(), strict=True):
            found[pair] += count
        return found

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        """Return, for each row of a batch, its set and languages and its index in their rows."""
        places = self._locate(step, 0, 1)
        found = (self._names[i] for i in places.language)
        names = [f"{name} {'-'.join(pair)}" for name, pair in found]
        return list(zip(names, places.row.tolist(), strict=True))


def lay_out(
    tokens: np.ndarray, flips: np.ndarray, special: SpecialIds, settings: BitextSettings
) -> dict[str, np.ndarray]:
    """Return `tokens`, `segments` and `positions` of rows [B, L] int32 of joined pairs.

    `flips` [B] uint64 are keys: hashed with a pair's slot in its row, they decide whether the
    second sentence comes first.
    """
    length, flat = tokens.shape[1], tokens.reshape(-1).copy()
    begin = np.flatnonzero(flat == special.bos)  # [P] of all pairs
    end, _, last = np.flatnonzero(flat == special.eos).reshape(-1, 3).T
    one, two, sizes = end - begin - 1, last - end - 2, last + 1 - begin
    row = begin // length
    slot = np.arange(len(row)) - np.searchsorted(row, row)
    is_flipped = (hashed(slot, flips[row]) & 1).astype(bool)
    start, a, b = (found[is_flipped] + more for found, more in ((begin, 1), (one, 0), (two, 0)))
    target, within = ranges(start, a + b + 2), ranges(0 * a, a + b + 2)
    a, b = np.repeat(a, a + b + 2), np.repeat(b, a + b + 2)
    # `a </s> </s> b` becomes `b </s> </s> a`.
    moved = np.where(within < b, a + 2, np.where(within < b + 2, a - b, -b - 2))
    flat[target] = flat[target + moved]
    second = np.where(is_flipped, two, one) + 2
    is_text, within = ranges(begin, sizes), ranges(0 * begin, sizes)
    is_second = within >= np.repeat(second, sizes)
    segments, positions = np.zeros_like(flat), np.zeros_like(flat)
    segments[is_text] = np.repeat(1 + slot, sizes)
    if settings.separate_segments:
        segments[is_text] = 2 * segments[is_text] - 1 + is_second
        flat[begin + second] = special.bos
    if settings.separate_segments or settings.positions == "restart":
        within = within - is_second * np.repeat(second, sizes)
    positions[is_text] = within
    names = ("tokens", "segments", "positions")
    return {
        name: array.reshape(tokens.shape)
        for name, array in zip(names, (flat, segments, positions), strict=True)
    }


def join_pair(
    one: np.ndarray, two: np.ndarray, length: int, special: SpecialIds
) -> tuple[np.ndarray, int]:
    """Join a pair as `<s> one </s> </s> two </s>`; return it and the position of `</s> two </s>`.

    To fit `length` tokens, it cuts the end of the longer sentence first, then of both.
    """
    kept, others = cut_lengths(np.array(len(one)), np.array(len(two)), length)
    one, two = one[:kept], two[:others]
    bos, eos = [special.bos], [special.eos]
    return np.concatenate([bos, one, eos, eos, two, eos]), len(one) + 2


def count_pairs(dataset: PackedDataset) -> Mapping[tuple[str, Pair], int]:
    """Return the number of sentence pairs of each set and language pair (a, b), a < b.

    Raise ValueError if an older version wrote the dataset, without rows of pairs.
    """
    if missing := sorted(set(dataset.bitexts) - set(dataset.pairs)):
        raise ValueError(
            f"{dataset.folder}: an older version wrote {missing[0]}, without rows of pairs; remove "
            f"{dataset.folder}/meta.json and run prepare_data.py again"
        )
    return {key: sum(pairs for *_, pairs in parts) for key, parts in parts_of(dataset).items()}


def pair_sizes(dataset: PackedDataset) -> dict[Pair, list[int]]:
    """Return the counts of `count_pairs` of all sets, by language pair in sorted order."""
    found = collections.defaultdict[Pair, list[int]](list)
    for (_, pair), count in count_pairs(dataset).items():
        found[pair].append(count)
    return dict(sorted(found.items()))


def language_pairs(dataset: PackedDataset) -> list[Pair]:
    """Return the sorted language pairs (a, b), a < b, that have sentence pairs in any set."""
    return sorted({pair for _, pair in count_pairs(dataset)})


def pair_names(dataset: PackedDataset) -> list[str]:
    """Return the names of `language_pairs`, such as "de-en"."""
    return ["-".join(pair) for pair in language_pairs(dataset)]


def pair_stream(
    dataset: PackedDataset,
    settings: BitextSettings,
    seed: int,
    shares: Mapping[Pair, float] | None = None,
    pool: Executor | None = None,
) -> PairStream:
    """Return the stream of all pairs.

    It draws a language pair by `shares` of sentence pairs, then one of its rows in all sets
    uniformly. Shares need not sum to one. Without them, two languages of a set with n sentence
    pairs weigh n^alpha. Raise ValueError if there is no bitext.
    """
    weights = _sentence_weights(count_pairs(dataset), settings.alpha, shares)
    if not weights:
        raise ValueError(
            "data.pair_share or data.contrast_share is not 0, but the rows hold no bitext; set "
            "both to 0, or name parallel text in corpus.parallel and run prepare_data.py again"
        )
    rows = [PairRows(dataset, *key) for key, weight in weights.items() if weight]
    # A sentence pair of weight w is drawn w times as often, however many pairs share its row.
    weighted = np.array([len(one) * weights[one.name, one.pair] for one in rows])
    return PairStream(dataset, rows, weighted, settings, seed, pool)


def token_counts(
    dataset: PackedDataset, alpha: float, shares: Mapping[Pair, float] | None = None
) -> np.ndarray:
    """Count the tokens of the rows of `pair_stream`: [V] float64 with the sum of all rows' tokens.

    It samples evenly spaced rows, some 262,144 tokens for each set and language pair.
    """
    weights = _sentence_weights(count_pairs(dataset), alpha, shares)
    counts, total = np.zeros(dataset.vocab_size), 0.0
    special = np.array(dataset.special.special_ids())
    at_once = max(_COUNTED_TOKENS // dataset.length // _RANGES, 1)
    for key, weight in weights.items():
        rows, found, read = PairRows(dataset, *key), np.zeros(dataset.vocab_size), 0
        bounds = np.linspace(0, len(rows), _RANGES + 1).astype(int).tolist()
        for first, end in itertools.pairwise(bounds):
            some = rows.read(first, min(first + at_once, end)) if first < end else ()
            found += np.bincount(np.ravel(some).astype(int), minlength=dataset.vocab_size)
            read += len(some)
        found[special] = 0
        counts += weight * len(rows) / read * found
        total += len(rows) / read * found.sum()
    return counts * (total / max(counts.sum(), 1e-30))


def _sentence_weights(
    counts: Mapping[tuple[str, Pair], int], alpha: float, shares: Mapping[Pair, float] | None
) -> dict[tuple[str, Pair], float]:
    """Return the weight of one sentence pair of each set and language pair."""
    if shares is None:
        return {key: float(count) ** (alpha - 1) for key, count in counts.items()}
    of_pairs: collections.Counter[Pair] = collections.Counter()
    for (_, pair), count in counts.items():
        of_pairs[pair] += count
    return {(name, pair): shares[pair] / of_pairs[pair] for name, pair in counts}
