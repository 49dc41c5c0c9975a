"""Tests of the order of the training stream."""

import collections
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl.testing import parameterized

from input_pipeline.order import (
    BlockSettings,
    StreamOrder,
    drawn_shares,
    largest_remainder,
    permute,
)
from input_pipeline.stream import (
    PACKED,
    JointStream,
    PhasedStream,
    TrainingStream,
    block_cache,
    training_rows,
)
from tests import processes
from tests.folders import FolderTest
from tests.input_pipeline.reading import training_store

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
        store = training_store(self.folder, {"en": 300, "sw": 20, "de": 100})
        self.stream = TrainingStream(store, {"en": 6.0, "sw": 1.0, "de": 3.0}, batch_size=8, seed=3)

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

    @parameterized.product(num_parts=(2, 4), step=(0, 1_000_000))
    def test_parts_make_up_the_batch(self, num_parts, step):
        whole = self.stream.batch(step)
        parts = [self.stream.batch(step, part, num_parts) for part in range(num_parts)]
        for key, value in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), value)
        with self.assertRaisesRegex(ValueError, "8 rows does not divide into 3 equal parts"):
            self.stream.batch(0, 0, 3)

    @parameterized.parameters(False, True)
    def test_an_id_beyond_the_vocabulary_ends_the_run(self, is_cached):
        store = training_store(self.folder, {"de": 40, "en": 40})
        np.save(self.folder / "en.train.npy", np.full((40, 16), 1000, np.uint16))
        blocks = BlockSettings(block_bytes=32, window_blocks=2)
        rows, pool = training_rows(store), ThreadPoolExecutor(1)
        cache = block_cache(rows, pool, blocks) if is_cached else None
        stream = TrainingStream(store, {"de": 0.5, "en": 0.5}, 8, 0, blocks, cache)
        with self.assertRaisesRegex(ValueError, "en.train.npy: entry .* is not below 1000"):
            stream.batch(0)

    def test_phases_and_a_cache_of_more_languages_than_files_can_be_open(self):
        names = [f"l{i:03d}" for i in range(450)]
        store = training_store(self.folder, dict.fromkeys(names, 2))
        probabilities = dict.fromkeys(names, 1.0)

        def streams() -> list[TrainingStream]:
            blocks = BlockSettings(block_bytes=32, window_blocks=2)
            cache = block_cache(training_rows(store), ThreadPoolExecutor(1), blocks)
            cached = TrainingStream(store, probabilities, 900, 1, blocks, cache)
            return [*(TrainingStream(store, probabilities, 900, seed) for seed in (1, 2)), cached]

        expected = [stream.batch(0) for stream in streams()]
        with processes.few_open_files(300):
            found = [stream.batch(0) for stream in streams()]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one["tokens"], other["tokens"])
            self.assertGreater(len(np.unique(one["language"])), 300)


class JointStreamTest(FolderTest):
    def test_all_parts_of_a_batch_hold_both_tasks_in_their_order(self):
        store = training_store(self.folder, {"en": 300, "sw": 20})
        shares, step = {"en": 0.6, "sw": 0.4}, 7
        one, two = (TrainingStream(store, shares, size, size) for size in (12, 4))
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


class PhasesTest(FolderTest):
    def test_phases_change_the_shares(self):
        store = training_store(self.folder, {"aa": 200, "bb": 200})
        phases = {
            first: TrainingStream(store, {"aa": share, "bb": 1 - share}, 50, seed=first)
            for first, share in ((20, 0.1), (0, 0.9))
        }
        phased = PhasedStream(phases, {0: 0.7, 20: 0.3})
        for step in (0, 7, 19, 20, 21, 1000):
            first = 20 if step >= 20 else 0
            stream = phases[first]
            expected = stream.batch(step - first, 1, 2)
            for name, array in phased.batch(step, 1, 2).items():
                np.testing.assert_array_equal(array, expected[name])
            self.assertEqual(phased.describe_batch(step), stream.describe_batch(step - first))
            self.assertEqual((phased.kind(step), phased.types), (PACKED, stream.types))
            self.assertEqual(phased.step_values(step), {"alpha": 0.3 if first else 0.7})
            self.assertEmpty(stream.step_values(step))
