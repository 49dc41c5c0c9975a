"""The training stream: language and sequence of example i of the batch of step s.

A pure function of (seed, step): to resume, ask for the next step. There is no iterator state, and
the order does not depend on the number of hosts or threads. `order` has the arithmetic. Threads
read blocks ahead, and again if they have left the cache.
"""

import collections
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import numpy as np

from input_pipeline.array_files import ShardedRows
from input_pipeline.order import NO_BLOCKS, BatchOrder, BlockSettings, Places, StreamOrder
from input_pipeline.packed_dataset import PackedDataset

# Blocks kept beyond a window: a short one, and one for threads that overtake each other.
_SLACK = 2
# Kinds of the batches of `TrainingStream` and `JointStream`.
PACKED, JOINT = "packed", "joint"
# Sequences by language, and sentence pairs by language pair.
Seen = collections.Counter[str | tuple[str, str]]


class Stream:
    """Batches addressed by step; `types` are the dtypes of all arrays that a batch may hold."""

    types: Mapping[str, np.dtype]

    def kind(self, step: int) -> str:
        """Return the kind of a step's examples, which determines the arrays of its batch."""
        raise NotImplementedError

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts."""
        raise NotImplementedError

    def request(self, step: int, part: int = 0, num_parts: int = 1) -> None:
        """Begin to read for `batch` of these arguments, without waiting."""

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        """Return a name and an index for each example of the batch of `step`."""
        raise NotImplementedError

    def step_values(self, step: int) -> dict[str, float]:
        """Return settings of the stream that change with the step, by name."""
        return {}

    def seen(self, steps: int) -> Seen:
        """Count the examples of the first `steps` batches, without making the batches."""
        raise NotImplementedError


def part_size(batch_size: int, num_parts: int) -> int:
    """Return the sequences in each of `num_parts` equal parts; ValueError if there are none."""
    if batch_size % num_parts:
        raise ValueError(
            f"a batch of {batch_size} rows does not divide into {num_parts} equal parts; choose a "
            "train.batch_size that does"
        )
    return batch_size // num_parts


class _ChosenStream(Stream):
    """Base of streams that delegate each step to a step of another stream."""

    def kind(self, step: int) -> str:
        stream, number = self._of(step)
        return stream.kind(number)

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        stream, number = self._of(step)
        return stream.batch(number, part, num_parts)

    def request(self, step: int, part: int = 0, num_parts: int = 1) -> None:
        stream, number = self._of(step)
        stream.request(number, part, num_parts)

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        stream, number = self._of(step)
        return stream.describe_batch(number)

    def step_values(self, step: int) -> dict[str, float]:
        stream, number = self._of(step)
        return stream.step_values(number)

    def _of(self, step: int) -> tuple[Stream, int]:
        """Return the stream of a step, and the step's number in that stream."""
        raise NotImplementedError


class MixedStream(_ChosenStream):
    """Mixture of streams by `shares`, in random order or, `in_turns`, evenly spread."""

    def __init__(
        self, streams: Sequence[Stream], shares: np.ndarray, seed: int, in_turns: bool = False
    ):
        self._streams = list(streams)
        self.types = {name: kind for one in streams for name, kind in one.types.items()}
        self._order = StreamOrder(seed, np.ones(len(streams)), shares / shares.sum(), in_turns)

    def steps_before(self, step: int, number: int) -> int:
        """Return the number of steps before `step` that take stream `number`."""
        return int(self._order.counts_before(step)[number])

    def seen(self, steps: int) -> Seen:
        parts = zip(self._streams, self._order.counts_before(steps).tolist(), strict=True)
        return sum((stream.seen(own) for stream, own in parts), Seen())

    def _of(self, step: int) -> tuple[Stream, int]:
        which, number = self._order.draw(np.array([step]))
        return self._streams[which[0]], int(number[0])


class PhasedStream(_ChosenStream):
    """Schedule of streams by first step, one of them 0. Each starts with its first batch.

    `alphas` are the exponents of the phases' shares by first step, if they differ.
    """

    def __init__(self, phases: Mapping[int, Stream], alphas: Mapping[int, float] | None = None):
        self._phases, self._alphas = dict(sorted(phases.items())), alphas
        self.types = {name: kind for one in phases.values() for name, kind in one.types.items()}

    def seen(self, steps: int) -> Seen:
        ends = [*list(self._phases)[1:], steps]
        parts = zip(self._phases.items(), ends, strict=True)
        took = ((one, min(end, steps) - first) for (first, one), end in parts)
        return sum((one.seen(own) for one, own in took if own > 0), Seen())

    def step_values(self, step: int) -> dict[str, float]:
        if self._alphas is None:
            return super().step_values(step)
        return {"alpha": self._alphas[self._first(step)]}

    def _of(self, step: int) -> tuple[Stream, int]:
        first = self._first(step)
        return self._phases[first], step - first

    def _first(self, step: int) -> int:
        return max(first for first in self._phases if first <= step)


class JointStream(Stream):
    """Batches of rows of text and rows of pairs, from the same step of two streams.

    Parts for hosts and for accumulation (rows i, i + A, ... of A `accumulation_steps`) hold both in
    the same shares. For r : s rows of text and pairs, A r of text and A s of pairs take turns.
    """

    _names = ("tokens", "segments", "positions", "language", "pair", "task")
    types = dict.fromkeys(_names, np.dtype(np.int32))

    def __init__(self, text: Stream, pairs: Stream, accumulation_steps: int):
        self._streams, self._steps = (text, pairs), accumulation_steps

    def kind(self, step: int) -> str:
        return JOINT

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts.

        Arrays are those of both streams and int32 `task` [B / num_parts], 0 for text and 1 for
        pairs. Text has `pair` -1, pairs have `language` -1. Segments and positions of text are 0:
        its tokens determine them.
        """
        found = [one.batch(step, part, num_parts) for one in self._streams]
        for task, arrays in enumerate(found):
            rows = np.zeros(len(arrays["tokens"]), np.int32)
            others = {"language": rows - 1, "pair": rows - 1, "task": rows + task}
            others |= dict.fromkeys(("segments", "positions"), np.zeros_like(arrays["tokens"]))
            found[task] = others | arrays
        return {name: self._in_turns([one[name] for one in found]) for name in self.types}

    def _in_turns(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Join rows of text and of pairs [n, ...] in turns."""
        turns, shape = math.gcd(*map(len, parts)) // self._steps, parts[0].shape[1:]
        found = np.concatenate([one.reshape(turns, -1, *shape) for one in parts], axis=1)
        return found.reshape(-1, *shape)

    def request(self, step: int, part: int = 0, num_parts: int = 1) -> None:
        for one in self._streams:
            one.request(step, part, num_parts)

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        text, pairs = (one.describe_batch(step) for one in self._streams)
        rows = [*text, *pairs]
        return [rows[i] for i in self._in_turns(np.split(np.arange(len(rows)), [len(text)]))]

    def step_values(self, step: int) -> dict[str, float]:
        return self._streams[0].step_values(step)

    def seen(self, steps: int) -> Seen:
        return sum((one.seen(steps) for one in self._streams), Seen())


class Wanted(NamedTuple):
    """Block of a batch, which holds the examples with indices `examples`, [n] int64.

    `first` is the number of its first sequence, `block` the future from `BlockCache`.
    """

    examples: np.ndarray
    first: int
    block: Future[Any]


class BlockCache:
    """Cache of blocks that threads read: the last requested ones of each language and lane.

    Requests in the order of the steps read every block of a window once. A request keeps all of its
    own blocks. `load` reads a block, given the index of its language, its first number and its end.
    """

    def __init__(self, load: Callable[[int, int, int], Any], pool: Executor, window_blocks: int):
        self._load, self._pool, self._limit = load, pool, window_blocks + _SLACK
        self._lock = threading.Lock()
        # By language and lane, then by first number and end, the last requested at the end.
        self._kept: dict[tuple[int, int], collections.OrderedDict] = collections.defaultdict(
            collections.OrderedDict
        )

    def request(self, places: Places) -> list[Wanted]:
        """Return the blocks of a batch, and begin to read the missing ones."""
        with self._lock:
            found = [
                Wanted(index, first, self._block(self._kept[language, lane], language, first, stop))
                for index, language, lane, first, stop in _blocks_of(places)
            ]
            for kept in self._kept.values():
                while len(kept) > self._limit:
                    kept.popitem(last=False)
        return found

    def _block(
        self, kept: collections.OrderedDict, language: int, first: int, stop: int
    ) -> Future[Any]:
        """Return a block from the cache, or begin to read it; mark it as requested last."""
        found = kept.get((first, stop))
        # A failed read is repeated.
        if found is None or (found.done() and found.exception()):
            found = kept[first, stop] = self._pool.submit(self._load, language, first, stop)
        kept.move_to_end((first, stop))
        return found


def _blocks_of(places: Places) -> list[tuple[np.ndarray, int, int, int, int]]:
    """Return the indices of the places in each block, its language, lane, first number and end."""
    keys = np.stack([places.language, places.lane, places.first, places.stop])
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    starts = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    return [
        (index, *key)
        for index, key in zip(
            np.split(order, starts), keys[:, np.append(0, starts)].T.tolist(), strict=True
        )
    ]


_Read = tuple[Places, list[Wanted] | None]  # of a batch; without a cache no blocks


class OrderedStream(Stream):
    """Base of streams of rows in a `BatchOrder`, by `shares` of `rows`, which need not sum to one.

    `rows` are like `ShardedRows`, [sequences, L] each. Without a `cache` (`block_cache`), rows are
    read one by one, and no thread reads ahead.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        rows: Sequence[Any],
        shares: np.ndarray,
        batch_size: int,
        seed: int,
        settings: BlockSettings,
        cache: BlockCache | None,
    ):
        self._rows, self._length, self._vocab_size = rows, dataset.length, dataset.vocab_size
        row_bytes = [one.dtype.itemsize * dataset.length for one in rows]
        self._order = BatchOrder(seed, [*map(len, rows)], shares, batch_size, row_bytes, settings)
        self._cache, self.batch_size = cache, batch_size
        self._requested: dict[tuple[int, ...], _Read] = {}

    def request(self, step: int, part: int = 0, num_parts: int = 1) -> None:
        if self._cache is not None:
            self._requested[step, part, num_parts] = self._read(step, part, num_parts)

    def _tokens(self, *key: int) -> tuple[np.ndarray, Places]:
        """Return tokens [B, L] int32 and places of a part of a batch, and forget its request."""
        requested = self._requested.pop(key, None)
        places, wanted = requested or self._read(*key)
        tokens = np.empty((len(places.row), self._length), np.int32)
        if wanted is None:
            for copy, number, row in zip(tokens, places.language, places.row, strict=True):
                copy[:] = self._rows[number].entry(int(row))
        else:
            for index, first, block in wanted:
                tokens[index] = block.result()[places.row[index] - first]
        largest = tokens.view(np.uint32).max(axis=1)
        if largest.max(initial=0) >= self._vocab_size:
            example = largest.argmax()
            raise self._rows[places.language[example]].damaged(int(places.row[example]))
        return tokens, places

    def _read(self, step: int, part: int, num_parts: int) -> _Read:
        places = self._locate(step, part, num_parts)
        return places, self._cache.request(places) if self._cache else None

    def _locate(self, step: int, part: int, num_parts: int) -> Places:
        size = part_size(self.batch_size, num_parts)
        return self._order.places(step, part * size, size)


class TrainingStream(OrderedStream):
    """Batches of packed sequences of all languages, drawn by `probabilities` (Eq. 3)."""

    types = dict.fromkeys(("tokens", "language"), np.dtype(np.int32))

    def __init__(
        self,
        dataset: PackedDataset,
        probabilities: Mapping[str, float],
        batch_size: int,
        seed: int,
        settings: BlockSettings = NO_BLOCKS,
        cache: BlockCache | None = None,
    ):
        self.languages = dataset.languages
        shares = np.array([probabilities[language] for language in self.languages])
        super().__init__(dataset, training_rows(dataset), shares, batch_size, seed, settings, cache)

    def batch(self, step: int, part: int = 0, num_parts: int = 1) -> dict[str, np.ndarray]:
        """Return the batch of `step`, or part `part` of its `num_parts` equal parts.

        int32 `tokens` [B / num_parts, L] and `language` [B / num_parts], an index into
        `self.languages`. Raise ValueError if the batch does not divide or a file is damaged.
        """
        tokens, places = self._tokens(step, part, num_parts)
        return {"tokens": tokens, "language": places.language.astype(np.int32)}

    def kind(self, step: int) -> str:
        return PACKED

    def seen(self, steps: int) -> Seen:
        counts = self._order.counts_before(steps).tolist()
        return Seen(dict(zip(self.languages, counts, strict=True)))

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        """Return, for each example of a batch, its language and index in the training sequences."""
        places = self._locate(step, 0, 1)
        names = (self.languages[language] for language in places.language)
        return list(zip(names, places.row.tolist(), strict=True))


def training_rows(dataset: PackedDataset) -> list[ShardedRows]:
    """Return the training sequences of each language, [sequences, L], read from disk."""
    return [dataset.rows(language, "train") for language in dataset.languages]


def block_cache(rows: Sequence[Any], pool: Executor, settings: BlockSettings) -> BlockCache:
    """Create a cache of blocks of rows, for streams over the same rows."""
    return BlockCache(
        lambda number, first, stop: rows[number].read(first, stop), pool, settings.window_blocks
    )
