"""Many-to-many bitext: streams of sentence pairs in length buckets.

A set of parallel text holds each sentence once in each language. Any two of its languages form a
pair. An example is `<s> a </s> </s> b </s>`, or `<s> a </s> <s> b </s>` in two segments that do not
attend to each other, padded to the shortest bucket that holds it. All examples of a batch are of
one bucket. A stream is a pure function of (seed, step). In the order by blocks, a block is a range
of the ids of both languages, which may also hold sentences of other buckets.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

import numpy as np

from input_pipeline.array_files import has_damage
from input_pipeline.order import NO_BLOCKS, BatchOrder, BlockSettings, Places, hashed
from input_pipeline.packed_dataset import PackedDataset, SpecialIds, TokenizedSentences
from input_pipeline.pair_sampling import Pair
from input_pipeline.stream import BlockCache, OrderedStream, Seen

NUM_SPECIALS = 4
_ARRAYS = ("tokens", "segments", "positions")
POSITIONS = ("continue", "restart")
# Kinds of batches: pairs as one segment, and pairs whose sentences are separate segments.
PAIRS, SEPARATE_PAIRS = "pairs", "separate_pairs"
# Packed datasets whose pairs are kept once counted: every phase of a stream asks for them.
_STORES = 2
_TOKENS_AT_ONCE = 1 << 20  # tokens counted at a time, some 20 bytes each


@dataclasses.dataclass(frozen=True)
class BitextSettings:
    """Settings of sentence pairs; part of the `data` section of a config.

    Attributes:
      buckets: lengths that pairs are padded to, ascending; a pair too long for the last is cut.
      positions: "continue" through both sentences, or "restart" at zero in the second.
      alpha: without shares of language pairs, n sentence pairs of two languages weigh n^alpha.
      tokens: tokens per batch, padding included; a bucket of length L has tokens / L pairs.
      separate_segments: whether the sentences do not attend to each other, each with own positions.
    """

    buckets: tuple[int, ...]
    positions: str
    alpha: float
    tokens: int
    separate_segments: bool = False
    blocks: BlockSettings = NO_BLOCKS

    def __post_init__(self):
        buckets = self.buckets
        if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 8:
            raise ValueError(f"data.pair_buckets are {buckets}, must ascend from 8 or more")
        if odd := [length for length in buckets if self.tokens % length]:
            raise ValueError(
                f"data.pair_buckets: a batch of {self.tokens} tokens (train.batch_size times "
                f"store.length) is no whole number of pairs of {odd[0]}"
            )
        if self.positions not in POSITIONS:
            raise ValueError(f"data.pair_positions is {self.positions!r}, must be in {POSITIONS}")


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Two languages of a set, and the indices of their sentence pairs in one bucket."""

    name: str
    languages: Pair
    index: int  # in `language_pairs`
    sentences: np.ndarray  # [n] int64


_Columns = Mapping[tuple[str, str], TokenizedSentences]  # by set and language


class PairStream(OrderedStream):
    """Batches of pairs of one bucket, addressed by step. Without `pool` no thread reads ahead."""

    types = dict.fromkeys((*_ARRAYS, "pair"), np.dtype(np.int32))

    def __init__(
        self,
        store: PackedDataset,
        pairs: Sequence[_Pair],
        shares: np.ndarray,
        length: int,
        settings: BitextSettings,
        seed: int,
        pool: Executor | None = None,
    ):
        self._pairs, self._length = pairs, length
        self._columns = {
            (pair.name, language): store.bitext(pair.name, language)
            for pair in pairs
            for language in pair.languages
        }
        self._special, self._settings, self._seed = store.special, settings, seed
        self._vocab_size = store.vocab_size
        rows, row_bytes = [len(pair.sentences) for pair in pairs], map(self._bytes_of, pairs)
        size, blocks = settings.tokens // length, settings.blocks
        order = BatchOrder(seed, rows, shares, size, row_bytes, blocks)
        cache = BlockCache(self._load, pool, blocks.window_blocks) if pool else None
        super().__init__(order, cache)

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return batch `step`, or part `part` of its `num_parts` equal parts.

        int32 [B / num_parts, L] `tokens`, `segments` (1 for text, 2 for a separate second sentence,
        0 for padding) and `positions`, and [B / num_parts] `pair`, an index into `language_pairs`
        in either direction. Raise ValueError if the batch does not divide or a file is damaged.
        """
        places, wanted = self._take(step, part, num_parts)
        sources: list[_Columns] = [self._columns] * len(places.row)
        for examples, _, block in wanted or ():
            for example in examples:
                sources[example] = block.result()
        first = step * self.batch_size + part * (self.batch_size // num_parts)
        found = self._found(places, first)
        rows = [self._row(*one, source) for one, source in zip(found, sources, strict=True)]
        arrays = dict(zip(_ARRAYS, map(np.stack, zip(*rows, strict=True)), strict=True))
        if has_damage(arrays["tokens"], self._vocab_size):
            raise self._damaged(found)
        return {**arrays, "pair": np.array([pair.index for pair, *_ in found], np.int32)}

    def kind(self, step: int) -> str:
        return SEPARATE_PAIRS if self._settings.separate_segments else PAIRS

    def seen(self, steps: int) -> Seen:
        found = Seen()
        for pair, count in zip(self._pairs, self._order.counts_before(steps), strict=True):
            found[pair.languages] += int(count)
        return found

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        """Return set and languages, and index in the set, of each pair of a batch."""
        found = self._found(self._locate(step, 0, 1), step * self.batch_size)
        return [
            (f"{pair.name} {'-'.join(pair.languages[::-1] if flip else pair.languages)}", sentence)
            for pair, sentence, flip in found
        ]

    def _found(self, places: Places, first: int) -> list[tuple[_Pair, int, bool]]:
        """Return pair, sentence and whether it is flipped, for the examples from `first` on."""
        examples = np.arange(first, first + len(places.row))
        flips = hashed(examples, hashed(np.uint64(self._length), np.uint64(self._seed))) & 1
        pairs = (self._pairs[i] for i in places.language)
        return [
            (pair, int(pair.sentences[row]), bool(flip))
            for pair, row, flip in zip(pairs, places.row, flips, strict=True)
        ]

    def _damaged(self, found: Sequence[tuple[_Pair, int, bool]]) -> ValueError:
        """Return the error of a damaged batch, or raise that of the damaged file."""
        for pair, number, _ in found:
            for column in (self._columns[pair.name, language] for language in pair.languages):
                _ = column.ids[slice(*column.span(number, number))]
        return ValueError("a batch of pairs holds what its files do not: check the memory")

    def _bytes_of(self, pair: _Pair) -> float:
        """Return the mean bytes of ids that a block reads for a sentence pair."""
        columns = [self._columns[pair.name, language] for language in pair.languages]
        spans = [column.span(pair.sentences[0], pair.sentences[-1]) for column in columns]
        num_bytes = sum(
            (stop - start) * column.ids.dtype.itemsize
            for column, (start, stop) in zip(columns, spans, strict=True)
        )
        return max(num_bytes / len(pair.sentences), 1)

    def _load(self, pair: int, first: int, stop: int) -> _Columns:
        """Read sentence pairs `first` to `stop` of a pair: a part of each of its two columns."""
        one, sentences = self._pairs[pair], self._pairs[pair].sentences[first:stop]
        keys = [(one.name, language) for language in one.languages]
        return {key: self._columns[key].part(sentences[0], sentences[-1]) for key in keys}

    def _row(
        self, pair: _Pair, sentence: int, flip: bool, source: _Columns
    ) -> tuple[np.ndarray, ...]:
        languages = pair.languages[::-1] if flip else pair.languages
        one, two = (source[pair.name, lang].sentence(sentence) for lang in languages)
        tokens, second = join_pair(one, two, self._length, self._special)
        padding = self._length - len(tokens)
        positions = np.arange(self._length)
        segments = (np.arange(self._length) < len(tokens)).astype(np.int32)
        if self._settings.separate_segments:
            tokens[second] = self._special.bos
            segments[second : len(tokens)] = 2
        if self._settings.separate_segments or self._settings.positions == "restart":
            positions[second:] -= second
        tokens = np.pad(tokens, (0, padding), constant_values=self._special.pad)
        return tokens.astype(np.int32), segments, positions.astype(np.int32)


def join_pair(
    one: np.ndarray, two: np.ndarray, length: int, special: SpecialIds
) -> tuple[np.ndarray, int]:
    """Join a pair as `<s> one </s> </s> two </s>`; return it and the position of `</s> two </s>`.

    Beyond `length` tokens the longer sentence is cut first, then both, at their ends.
    """
    room = length - NUM_SPECIALS
    keep = min(len(one), max(room - len(two), room // 2))
    one, two = one[:keep], two[: room - keep]
    bos, eos = [special.bos], [special.eos]
    return np.concatenate([bos, one, eos, eos, two, eos]), len(one) + 2


@functools.lru_cache(maxsize=_STORES)
def count_pairs(store: PackedDataset) -> Mapping[tuple[str, Pair], int]:
    """Count the sentence pairs of each set and language pair (a, b), a < b, that has any."""
    return {
        (name, pair): int(has_both.sum())
        for name in store.bitexts
        for pair, has_both in _pairs_of(store, name)
    }


def _pairs_of(store: PackedDataset, name: str) -> Iterator[tuple[Pair, np.ndarray]]:
    """Yield the language pairs (a, b), a < b, of a set, and whether each sentence is in both."""
    is_there = {one: store.bitext(name, one).lengths > 0 for one in sorted(store.bitexts[name])}
    for pair in itertools.combinations(is_there, 2):
        has_both = is_there[pair[0]] & is_there[pair[1]]
        if has_both.any():
            yield pair, has_both


def pair_sizes(store: PackedDataset) -> dict[Pair, list[int]]:
    """Return the counts of `count_pairs` of all sets, by language pair."""
    counts = count_pairs(store)
    found: dict[Pair, list[int]] = {pair: [] for pair in _languages_of(counts)}
    for (_, pair), count in counts.items():
        found[pair].append(count)
    return found


def language_pairs(store: PackedDataset) -> list[Pair]:
    """Return the sorted language pairs (a, b), a < b, that have sentence pairs in any set."""
    return _languages_of(count_pairs(store))


def _languages_of(keys: Iterable[tuple[str, Pair]]) -> list[Pair]:
    return sorted({pair for _, pair in keys})


def pair_names(store: PackedDataset) -> list[str]:
    """Return the names of `language_pairs`, such as "de-en"."""
    return ["-".join(pair) for pair in language_pairs(store)]


def pair_streams(
    store: PackedDataset,
    settings: BitextSettings,
    seed: int,
    shares: Mapping[Pair, float] | None = None,
    pool: Executor | None = None,
) -> tuple[list[PairStream], np.ndarray]:
    """Return a stream for each bucket that has pairs, and its share of the steps.

    A language pair is drawn by `shares`, then one of its sentence pairs in all sets uniformly. The
    shares of `language_pairs` need not sum to one. Without them, two languages of a set with n
    sentence pairs weigh n^alpha. Short buckets have more pairs per batch, and so fewer batches.
    Raise ValueError if there is no bitext, or `shares` has other pairs.
    """
    weights = _sentence_weights(count_pairs(store), settings.alpha, shares)
    if not weights:
        raise ValueError(
            "data.pair_share or data.contrast_share is not 0, but the rows hold no bitext; set "
            "both to 0, or name parallel text in corpus.parallel and run prepare_data.py again"
        )
    streams, of_steps = [], []
    by_bucket = _pairs_by_bucket(store, settings.buckets, tuple(_languages_of(weights)))
    for length, pairs in zip(settings.buckets, by_bucket, strict=True):
        # Drop pairs of weight 0: the order gives every pair at least one example a cycle.
        pairs = [pair for pair in pairs if weights[pair.name, pair.languages]]
        if pairs:
            of_pairs = [len(p.sentences) * weights[p.name, p.languages] for p in pairs]
            weighted = np.array(of_pairs)
            streams.append(PairStream(store, pairs, weighted, length, settings, seed, pool))
            of_steps.append(sum(of_pairs) / streams[-1].batch_size)
    return streams, np.array(of_steps) / sum(of_steps)


def token_counts(
    store: PackedDataset, alpha: float, shares: Mapping[Pair, float] | None = None
) -> np.ndarray:
    """Count the tokens in the pairs of `pair_streams`: [V] float64, with the sum of the bitext."""
    of_sentences = _sentence_weights(count_pairs(store), alpha, shares)
    counts, total = np.zeros(store.vocab_size), 0
    for name, languages in store.bitexts.items():
        columns = {language: store.bitext(name, language) for language in languages}
        weights = {language: np.zeros(len(one.ends)) for language, one in columns.items()}
        for pair, has_both in _pairs_of(store, name):
            for language in pair:
                weights[language] += has_both * of_sentences[name, pair]
        for language, column in columns.items():
            counts += _weighted_counts(column, weights[language], store.vocab_size)
            total += len(column.ids)
    return counts * (total / max(counts.sum(), 1e-30))


def _weighted_counts(
    column: TokenizedSentences, weights: np.ndarray, vocab_size: int
) -> np.ndarray:
    """Add up the weights [N] of the sentences of each token, range by range: [V] float64."""
    counts, lengths, first = np.zeros(vocab_size), column.lengths, 0
    while first < len(weights):
        start = column.span(first, first)[0]
        stop = int(np.searchsorted(column.ends, start + _TOKENS_AT_ONCE, side="right"))
        stop = max(stop, first + 1)  # a sentence at least
        ids = column.ids[start : int(column.ends[stop - 1])]
        # Adds token by token, so that float sums do not depend on the ranges.
        np.add.at(counts, ids, np.repeat(weights[first:stop], lengths[first:stop]))
        first = stop
    return counts


def _sentence_weights(
    counts: Mapping[tuple[str, Pair], int], alpha: float, shares: Mapping[Pair, float] | None
) -> dict[tuple[str, Pair], float]:
    """Return the weight of one sentence pair of each set and language pair."""
    if shares is None:
        return {key: float(count) ** (alpha - 1) for key, count in counts.items()}
    of_pairs: collections.Counter[Pair] = collections.Counter()
    for (_, pair), count in counts.items():
        of_pairs[pair] += count
    _check_shares(shares, of_pairs)
    return {(name, pair): shares[pair] / of_pairs[pair] for name, pair in counts}


def _check_shares(shares: Mapping[Pair, float], pairs: Iterable[Pair]) -> None:
    """Raise ValueError unless `shares` has exactly these language pairs and usable values."""
    if different := sorted(set(shares) ^ set(pairs)):
        raise ValueError(
            f"shares of language pairs: {different[:3]} are not both in the packed dataset's "
            "bitext and in the shares; give one share to each of its pairs (a, b), a < b"
        )
    if wrong := {pair: share for pair, share in shares.items() if not 0 <= share < np.inf}:
        raise ValueError(f"shares of language pairs must be finite and at least 0: {wrong}")
    if shares and not any(shares.values()):
        raise ValueError("shares of language pairs are all 0; one pair at least must be drawn")


@functools.lru_cache(maxsize=_STORES)
def _pairs_by_bucket(
    store: PackedDataset, buckets: tuple[int, ...], ordered: tuple[Pair, ...]
) -> Sequence[Sequence[_Pair]]:
    """Return, for each bucket, all language pairs of all sets with their sentences in it."""
    found: list[list[_Pair]] = [[] for _ in buckets]
    index = {pair: number for number, pair in enumerate(ordered)}
    for name, languages in store.bitexts.items():
        lengths = {language: store.bitext(name, language).lengths for language in languages}
        for pair, has_both in _pairs_of(store, name):
            total = lengths[pair[0]] + lengths[pair[1]] + NUM_SPECIALS
            bucket = np.minimum(np.searchsorted(buckets, total), len(buckets) - 1)
            for number, pairs in enumerate(found):
                sentences = np.flatnonzero(has_both & (bucket == number))
                if len(sentences):
                    pairs.append(_Pair(name, pair, index[pair], sentences))
    return found
