"""The order of the training stream, and batches read ahead and fed to the loop."""

import collections
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline import dataset
from input_pipeline.order import (
    BlockSettings,
    Places,
    StreamOrder,
    drawn_shares,
    largest_remainder,
    permute,
)
from input_pipeline.stream import (
    PACKED,
    BlockCache,
    JointStream,
    PhasedStream,
    TrainingStream,
    block_cache,
    training_rows,
)
from tests import processes
from tests.folders import FolderTest
from tests.input_pipeline.reading import training_dataset

_CYCLE = 1 << 16
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 64, 255, 256, 257, 1000, 1024, 1025, 4096, 65_537)


def locate(order: StreamOrder, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Languages and sequences of examples of the stream."""
    language, occurrence = order.draw(examples)
    return language, order.sequence(language, occurrence)


class LargestRemainderTest(parameterized.TestCase):
    @parameterized.parameters(
        ([0.26, 0.33, 0.41], 10, [3, 3, 4]), ([0.24, 0.37, 0.39], 10, [2, 4, 4]),
        ([0.4, 0.3, 0.2, 0.1], 4, [2, 1, 1, 0]), ([1e-12, 1 - 2e-12, 1e-12], 3, [0, 3, 0]),
    )  # fmt: skip
    def test_the_largest_remainders_are_rounded_up(self, shares, total, expected):
        np.testing.assert_array_equal(largest_remainder(np.array(shares), total), expected)


class PermuteTest(parameterized.TestCase):
    @parameterized.parameters(*_SIZES)
    def test_it_is_a_bijection(self, size):
        for key in (0, 1, 12345, (1 << 64) - 1):
            permuted = permute(np.arange(size), size, np.uint64(key))
            np.testing.assert_array_equal(np.sort(permuted), np.arange(size))

    def test_positions_may_each_have_their_own_size_and_key(self):
        sizes = np.repeat(_SIZES[:12], 40)
        index = np.arange(len(sizes)) % sizes
        keys = np.arange(len(sizes), dtype=np.uint64) * np.uint64(977)
        one_by_one = [int(permute(*one)) for one in zip(index, sizes, keys, strict=True)]
        np.testing.assert_array_equal(permute(index, sizes, keys), one_by_one)

    @parameterized.parameters(2, 3, 4)
    def test_all_permutations_of_a_few_are_equally_likely(self, size):
        index, keys = np.tile(np.arange(size), 24_000), np.arange(24_000, dtype=np.uint64)
        permuted = permute(index, size, np.repeat(keys, size)).reshape(-1, size)
        counts = collections.Counter(map(tuple, permuted.tolist()))
        self.assertCountEqual(counts, itertools.permutations(range(size)))
        expected = 24_000 / len(counts)
        deviation = np.sqrt(expected)  # of a fair draw, at most
        self.assertLess(max(counts.values()) - expected, 4 * deviation)
        self.assertLess(expected - min(counts.values()), 4 * deviation)


class StreamOrderTest(parameterized.TestCase):
    @parameterized.product(first_cycle=(0, 1_000_000), num_cycles=(1, 3))
    def test_whole_cycles_hold_exact_shares_and_visit_all_rows_alike(self, first_cycle, num_cycles):
        rows, shares = [1, 7, 1000, 30_000, 200_000], np.array([0.001, 0.099, 0.2, 0.3, 0.4])
        order = StreamOrder(5, rows, shares)
        start = first_cycle * _CYCLE
        language, row = locate(order, np.arange(start, start + num_cycles * _CYCLE))
        drawn = np.bincount(language)
        before, after = map(order.counts_before, (start, start + num_cycles * _CYCLE))
        np.testing.assert_array_equal(drawn, after - before)
        np.testing.assert_allclose(drawn / drawn.sum(), shares, atol=1 / _CYCLE)
        for i, num_rows in enumerate(rows):
            visits = np.bincount(row[language == i], minlength=num_rows)
            self.assertLen(visits, num_rows)
            # An epoch that began before these cycles may end in them, hence one more.
            self.assertLessEqual(np.ptp(visits), 1 if first_cycle == 0 else 2)

    def test_small_shares_are_drawn_as_often_as_asked(self):
        """Also a share of less than a draw in a cycle, which is drawn in some cycles only."""
        shares = np.array([0.7, 0.2999, 5e-5, 49e-6, 9e-7, 1e-7, 1e-51])
        shares /= shares.sum()
        order = StreamOrder(5, [1000] * len(shares), shares)
        drawn, numbers = np.zeros((256, len(shares)), int), np.zeros(len(shares), int)
        for cycle in range(256):
            language, number = order.draw(np.arange(cycle * _CYCLE, (cycle + 1) * _CYCLE))
            drawn[cycle] = np.bincount(language, minlength=len(shares))
            # Numbers go on from cycle to cycle, without a gap.
            for one in range(len(shares)):
                own = np.sort(number[language == one])
                np.testing.assert_array_equal(own, numbers[one] + np.arange(len(own)))
            numbers += drawn[cycle]
        total = 256 * _CYCLE
        np.testing.assert_allclose(drawn.sum(axis=0) / total, shares, atol=1.001 / total, rtol=0)
        np.testing.assert_array_equal(drawn_shares(shares), drawn.sum(axis=0) / total)
        self.assertLessEqual(np.ptp(drawn, axis=0).max(), 1)
        # 15 draws of the share 9e-7 lie apart: at least eight cycles between two.
        self.assertGreaterEqual(np.diff(np.flatnonzero(drawn[:, 4])).min(), 8)

    def test_epochs_of_a_language_are_different_permutations(self):
        # An epoch lasts two cycles; each half shows half of the rows.
        order = StreamOrder(0, [2 * _CYCLE], np.ones(1))
        halves = [locate(order, np.arange(c * _CYCLE, (c + 1) * _CYCLE))[1] for c in range(4)]
        self.assertEmpty(set(halves[0]) & set(halves[1]))
        self.assertEmpty(set(halves[2]) & set(halves[3]))
        shared = len(set(halves[0]) & set(halves[2]))
        self.assertAlmostEqual(shared / _CYCLE, 0.5, delta=0.01)

    def test_languages_and_seeds_have_orders_of_their_own(self):
        def first_cycle(seed):
            order = StreamOrder(seed, [_CYCLE, _CYCLE], np.full(2, 0.5))
            language, row = locate(order, np.arange(_CYCLE))
            return language, set(row[language == 0]), set(row[language == 1])

        language, first, second = first_cycle(0)
        other_language, other_first, _ = first_cycle(1)
        for a, b in ((first, second), (first, other_first)):
            self.assertAlmostEqual(len(a & b) / len(a), 0.5, delta=0.02)
        self.assertAlmostEqual(np.mean(language == other_language), 0.5, delta=0.02)


class TurnsTest(parameterized.TestCase):
    @parameterized.parameters(
        ((0.5, 0.5), "01" * 6), ((0.75, 0.25), "001000100010"), ((0.5, 0.25, 0.25), "012001200120")
    )
    def test_shares_are_spread_evenly(self, shares, expected):
        order = StreamOrder(0, np.ones(len(shares)), np.array(shares), in_turns=True)
        for start in (0, 4000, 7 * _CYCLE):
            which, numbers = order.draw(np.arange(start, start + 12))
            self.assertEqual("".join(map(str, which)), expected)
            for one in range(len(shares)):
                first = int(order.counts_before(start)[one])
                own = numbers[which == one]
                np.testing.assert_array_equal(own, first + np.arange(len(own)))


class TrainingStreamTest(FolderTest):
    def setUp(self):
        super().setUp()
        packed = training_dataset(self.folder, {"en": 300, "sw": 20, "de": 100})
        self.stream = TrainingStream(
            packed, {"en": 6.0, "sw": 1.0, "de": 3.0}, batch_size=8, seed=3
        )

    @parameterized.parameters(0, 1, 1_000_000)
    def test_a_batch_holds_the_rows_that_the_order_names(self, step):
        batch = self.stream.batch(step)
        order = StreamOrder(3, [100, 300, 20], np.array([0.3, 0.6, 0.1]))
        language, row = locate(order, np.arange(8 * step, 8 * step + 8))
        self.assertEqual(self.stream.languages, ("de", "en", "sw"))
        for value in batch.values():
            self.assertEqual(value.dtype, np.int32)
        self.assertEqual(batch["tokens"].shape, (8, 16))
        np.testing.assert_array_equal(batch["language"], language)
        np.testing.assert_array_equal(batch["tokens"][:, :2].T, [language, row])

    def test_phases_and_a_cache_of_more_languages_than_files_can_be_open(self):
        names = [f"l{i:03d}" for i in range(450)]
        packed = training_dataset(self.folder, dict.fromkeys(names, 2))
        probabilities = dict.fromkeys(names, 1.0)

        def streams() -> list[TrainingStream]:
            blocks = BlockSettings(block_bytes=32, window_blocks=2)
            cache = block_cache(training_rows(packed), ThreadPoolExecutor(1), blocks)
            cached = TrainingStream(packed, probabilities, 900, 1, blocks, cache)
            return [*(TrainingStream(packed, probabilities, 900, seed) for seed in (1, 2)), cached]

        expected = [stream.batch(0) for stream in streams()]
        with processes.few_open_files(300):
            found = [stream.batch(0) for stream in streams()]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one["tokens"], other["tokens"])
            self.assertGreater(len(np.unique(one["language"])), 300)


class JointStreamTest(FolderTest):
    def test_all_parts_of_a_batch_hold_both_tasks_in_their_order(self):
        packed = training_dataset(self.folder, {"en": 300, "sw": 20})
        shares, step = {"en": 0.6, "sw": 0.4}, 7
        one, two = (TrainingStream(packed, shares, size, size) for size in (12, 4))
        joint = JointStream(one, two, accumulation_steps=2)
        whole = joint.batch(step)
        self.assertEqual({name: array.dtype for name, array in whole.items()}, joint.types)
        for task, stream in enumerate((one, two)):
            for name, array in stream.batch(step).items():
                np.testing.assert_array_equal(whole[name][whole["task"] == task], array)
        halves = [joint.batch(step, part, 2) for part in (0, 1)]
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([one[name] for one in halves]), array)
        for part in (*halves, whole):
            for first in (0, 1):  # of accumulation
                self.assertEqual(part["task"][first::2].mean(), 0.25)
        self.assertEqual((whole["segments"].max(), whole["pair"].max()), (0, -1))
        described = [(one.languages.index(name), row) for name, row in joint.describe_batch(step)]
        np.testing.assert_array_equal(described, whole["tokens"][:, :2])
        self.assertEqual(joint.seen(9), one.seen(9) + two.seen(9))


_SHARES = {"en": 0.6, "sw": 0.1, "de": 0.3}
# Blocks of 16 sequences of 16 uint16, two in a window: the first and the last language are large.
_SETTINGS = BlockSettings(block_bytes=512, window_blocks=2, lanes=2)


def places(*blocks: tuple[int, int, int]) -> Places:
    """One example of each block: language, first number, end."""
    language, first, stop = np.array(blocks).T
    return Places(language, first, first, stop, np.zeros_like(first))


class BlockCacheTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.loads = collections.Counter()
        self.cache = BlockCache(self.load, ThreadPoolExecutor(2), window_blocks=2)

    def load(self, *block):
        self.loads[block] += 1
        return block

    def read(self, *blocks) -> list:
        return [one.block.result() for one in self.cache.request(places(*blocks))]

    def test_a_bounded_number_is_kept_of_each_language_those_used_last(self):
        blocks = [(0, i, i + 1) for i in range(5)]
        self.read((1, 0, 9))
        for block in blocks[:4]:  # a window and two more
            self.assertEqual(self.read(block), [block])
        self.read(blocks[0])
        self.read(blocks[4])  # in place of the second
        self.read(*blocks[2:], blocks[0], (1, 0, 9))
        self.assertEqual(self.loads, dict.fromkeys((*blocks, (1, 0, 9)), 1))
        self.read(blocks[1])
        self.assertEqual(self.loads[blocks[1]], 2)

    def test_blocks_are_read_at_once_and_before_they_are_asked_for(self):
        both = threading.Barrier(2, timeout=10)
        cache = BlockCache(lambda *one: (both.wait(), one), ThreadPoolExecutor(2), window_blocks=2)
        cache.request(places((0, 0, 4), (0, 4, 8)))
        for one in cache.request(places((0, 0, 4), (0, 4, 8))):
            self.assertTrue(one.block.result(timeout=10))

    def test_a_failure_is_raised_and_the_block_read_again(self):
        failing = mock.Mock(side_effect=[OSError("the disk is gone"), "a block"])
        cache = BlockCache(failing, ThreadPoolExecutor(1), window_blocks=2)
        (wanted,) = cache.request(places((0, 0, 4)))
        with self.assertRaisesRegex(OSError, "the disk is gone"):
            wanted.block.result()
        (wanted,) = cache.request(places((0, 0, 4)))
        self.assertEqual(wanted.block.result(), "a block")


class StreamTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.packed = training_dataset(self.folder, {"en": 900, "sw": 30, "de": 400})

    def stream(self, cache=None, seed=3) -> TrainingStream:
        return TrainingStream(self.packed, _SHARES, 12, seed, _SETTINGS, cache)

    def assert_equal(self, found, expected):
        self.assertCountEqual(found, expected)
        for name, array in expected.items():
            self.assertEqual(found[name].dtype, array.dtype)
            np.testing.assert_array_equal(found[name], array)

    @parameterized.product(loader=("tf.data", "threads"), read_ahead=(0, 3), parts=((0,), (1, 3)))
    def test_a_cache_changes_no_batch(self, loader, read_ahead, parts):
        rows = training_rows(self.packed)
        cached, plain = (
            PhasedStream({0: self.stream(cache), 5: self.stream(cache, seed=4)})
            for cache in (block_cache(rows, ThreadPoolExecutor(3), _SETTINGS), None)
        )
        steps, num_parts = range(1, 20, 2), 1 if parts == (0,) else 4
        data = dataset.StreamedData(cached, loader, parts, num_parts, read_ahead=read_ahead)
        for step, (_, batch) in zip(steps, data.batches(steps), strict=True):
            each = [plain.batch(step, part, num_parts) for part in parts]
            expected = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
            self.assert_equal(batch, expected)
            if num_parts == 1:
                names = [self.packed.languages[one] for one in batch["language"]]
                described = list(zip(names, batch["tokens"][:, 1].tolist(), strict=True))
                self.assertEqual(plain.describe_batch(step), described)

    def test_a_host_of_a_lane_reads_every_block_of_it_once_an_epoch(self):
        reads = collections.Counter()

        def load(*block):
            reads[block] += 1
            language, first, stop = block
            return self.packed.rows(self.packed.languages[language], "train")[first:stop]

        cached = self.stream(BlockCache(load, ThreadPoolExecutor(2), _SETTINGS.window_blocks))
        # 115 steps of 6 examples, 60 % of them English, of which lane 1 has 450 sequences.
        data = dataset.StreamedData(cached, "threads", (1,), num_parts=2, read_ahead=8)
        self.assertLen(list(data.batches(range(115))), 115)
        of_large = [(first, stop) for language, first, stop in reads if language == 1]
        self.assertEqual({n for (language, *_), n in reads.items() if language == 1}, {1})
        self.assertBetween(len(of_large), 25, 29)
        self.assertGreaterEqual(min(first for first, _ in of_large), 450)  # not of lane 0


LOADERS = ("tf.data", "threads")


class _CountingStream(TrainingStream):
    """A stream that notes which steps it was asked for, and can fail at one."""

    def __init__(self, *args, fail_at=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []
        self.fail_at = fail_at

    def batch(self, step, part=0, num_parts=1):
        self.asked.append(step)
        if step == self.fail_at:
            raise OSError("the disk is gone")
        return super().batch(step, part, num_parts)


def loaded(stream, steps, loader, **settings):
    data = dataset.StreamedData(stream, loader, **settings)
    return (batch for _, batch in data.batches(steps))


class BatchesTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.packed = training_dataset(self.folder, {"en": 50, "sw": 50})
        self.stream = self.make_stream()

    def make_stream(self, **kwargs) -> _CountingStream:
        return _CountingStream(self.packed, {"en": 0.7, "sw": 0.3}, batch_size=8, seed=0, **kwargs)

    def assert_batches(self, found, steps, *part):
        for batch, step in zip(found, steps, strict=True):
            expected = self.stream.batch(step, *part)
            self.assertCountEqual(batch, expected)
            for key, value in expected.items():
                self.assertEqual(batch[key].dtype, value.dtype)
                np.testing.assert_array_equal(batch[key], value)

    @parameterized.parameters(*LOADERS)
    def test_every_batch_is_made_once_and_a_loop_without_end_can_be_left(self, loader):
        list(loaded(self.stream, range(5, 25), loader))
        self.assertCountEqual(self.stream.asked, range(5, 25))
        self.stream.asked.clear()
        found = loaded(self.stream, range(10**9), loader, prefetch=2)
        self.assert_batches(itertools.islice(found, 3), range(3))
        del found
        self.assertLess(max(self.stream.asked), 20)

    @parameterized.parameters(*LOADERS)
    def test_a_failure_to_read_reaches_the_loop(self, loader):
        stream = self.make_stream(fail_at=3)
        with self.assertRaisesRegex(OSError, "^the disk is gone$"):
            list(loaded(stream, range(5), loader))

    @parameterized.parameters(*LOADERS)
    def test_a_stream_as_the_loop_wants_it(self, loader):
        stream = PhasedStream({0: self.stream, 2: self.make_stream()}, {0: 0.7, 2: 0.3})
        data = dataset.StreamedData(stream, loader, parts=(1,), num_parts=2, prefetch=1)
        kinds, found = zip(*data.batches(range(4)), strict=True)
        self.assertEqual(kinds, (PACKED,) * 4)
        self.assert_batches(found, (0, 1, 0, 1), 1, 2)  # each phase begins anew
        self.assertEqual([data.step_values(i)["alpha"] for i in range(4)], [0.7] * 2 + [0.3] * 2)
        for step in range(4):  # of all hosts
            self.assertEqual(data.describe_batch(step), self.stream.describe_batch(step % 2))
        self.assertLen(data.describe_batch(0), 8)

    def test_without_tensorflow_the_other_loader_is_named(self):
        with (
            mock.patch.dict(sys.modules, {"tensorflow": None}),
            self.assertRaisesRegex(ValueError, 'config.data.loader="threads"'),
        ):
            dataset.StreamedData(self.stream, "tf.data")
