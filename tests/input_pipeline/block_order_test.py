"""The order by blocks: what it visits, how random it looks, what it reads."""

import itertools

import numpy as np
from absl.testing import absltest, parameterized
from scipy import stats

from input_pipeline.order import BatchOrder, BlockSettings, StreamOrder, permute, visit_blocks

# Size, numbers of a block, blocks of a window: short blocks, one window, one block, blocks of one.
_SHAPES = (
    (1000, 16, 4), (1000, 10, 7), (64, 16, 9), (7, 16, 2), (33, 16, 1), (50, 1, 4), (1, 1, 1),
)  # fmt: skip
_CYCLE = 1 << 16
_SHARES = np.array([0.2, 0.5, 0.3])
_ROWS = np.array([40, 3000, 1001])


def visits(size: int, block: int, window: int, key: int) -> tuple[np.ndarray, ...]:
    """Number, first and end of its block, for all positions of an order."""
    return visit_blocks(*np.broadcast_arrays(np.arange(size), size, block), window, np.uint64(key))


def order(batch_size: int = 60, lanes: int = 1, block: int = 16, seed: int = 3) -> BatchOrder:
    settings = BlockSettings(block_bytes=block, window_blocks=4, lanes=lanes)
    return BatchOrder(seed, _ROWS, _SHARES, batch_size, np.ones(len(_ROWS)), settings)


class BlockSettingsTest(parameterized.TestCase):
    @parameterized.parameters((0, 7, 100), (2000, 1, 50), (2000, 5, 10), (2000, 900, 1))
    def test_the_windows_of_a_lane_are_bounded(self, window_bytes, num_languages, rows):
        settings = BlockSettings(block_bytes=1000, window_blocks=4, window_bytes=window_bytes)
        self.assertEqual(settings.block_rows(10, num_languages), rows)
        if window_bytes and rows > 1:
            self.assertLessEqual(num_languages * 4 * rows * 10, window_bytes)


class VisitBlocksTest(parameterized.TestCase):
    @parameterized.product(shape=_SHAPES, key=(0, 1, (1 << 64) - 1))
    def test_every_number_once_from_few_blocks_at_a_time(self, shape, key):
        size, block, window = shape
        number, first, stop = visits(*shape, key)
        np.testing.assert_array_equal(np.sort(number), np.arange(size))
        self.assertTrue(((first <= number) & (number < stop)).all())
        blocks = sorted(set(zip(first.tolist(), stop.tolist(), strict=True)))
        np.testing.assert_array_equal(np.concatenate([np.arange(*one) for one in blocks]),
                                      np.arange(size))  # fmt: skip
        sizes = [stop - first for first, stop in blocks]
        self.assertCountEqual(
            sizes, [block] * (size // block) + [size % block] * (size % block > 0)
        )
        # A block is open from its first to its last visit.
        seen = [np.flatnonzero(first == one) for one, _ in blocks]
        num_open = sum((np.arange(size) >= at[0]) & (np.arange(size) <= at[-1]) for at in seen)
        self.assertLessEqual(num_open.max(), window + 1)  # and the short one

    def test_positions_have_their_own_size_and_key(self):
        size, block = np.array([7, 100, 100, 100]), np.array([2, 8, 8, 16])
        visit, key = np.array([6, 55, 55, 55]), np.arange(4, dtype=np.uint64) // 2
        found = visit_blocks(visit, size, block, 3, key)
        for i in range(4):
            alone = visit_blocks(visit[i : i + 1], size[i], block[i], 3, key[i : i + 1])
            self.assertEqual([int(x[i]) for x in found], [int(x[0]) for x in alone])


class UniformityTest(absltest.TestCase):
    """Against the permutation of all sequences."""

    SIZE, BLOCK, WINDOW, KEYS = 1009, 16, 8, 200

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        index = np.tile(np.arange(cls.SIZE), cls.KEYS)
        keys = np.repeat(np.arange(cls.KEYS, dtype=np.uint64), cls.SIZE)
        of_all = np.broadcast_arrays(index, cls.SIZE, cls.BLOCK)
        numbers, first, _ = visit_blocks(*of_all, cls.WINDOW, keys)
        shape = (cls.KEYS, cls.SIZE)
        cls.by_blocks, cls.first = numbers.reshape(shape), first.reshape(shape)
        cls.by_rows = permute(index, cls.SIZE, keys).reshape(shape)

    def test_every_sequence_is_anywhere_in_an_epoch(self):
        for numbers in (self.by_blocks, self.by_rows):
            tenth = np.argsort(numbers, axis=1) * 10 // self.SIZE  # [keys, sequences]
            counts = np.stack([(tenth == one).sum(axis=0) for one in range(10)])
            expected = self.KEYS * np.bincount(np.arange(self.SIZE) * 10 // self.SIZE) / self.SIZE
            of_sequences = ((counts - expected[:, None]) ** 2 / expected[:, None]).sum(axis=0)
            # Sequences of a block move together, so that there are 63 independent ones.
            one_of_each = of_sequences[:: self.BLOCK]
            self.assertLess(one_of_each.max(), stats.chi2.ppf(1 - 0.001 / len(one_of_each), 9))
            self.assertAlmostEqual(of_sequences.mean(), 9, delta=4 * np.sqrt(18 / 63))

    def test_two_examples_are_of_one_block_as_often_as_a_window_predicts(self):
        same = np.mean(np.diff(self.by_rows // self.BLOCK) == 0)
        self.assertAlmostEqual(same, (self.BLOCK - 1) / (self.SIZE - 1), delta=0.002)
        for apart in (1, 7, 40):  # in the order; 1 for neighbours
            same = np.mean(self.first[:, apart:] == self.first[:, :-apart])
            # Two numbers of a window of n are of one block with chance (b - 1) / (n - 1); there are
            # eight windows, and two numbers of different windows are of different blocks.
            n = self.SIZE / 8
            expected = (self.BLOCK - 1) / (n - 1) * (n - apart) / (self.SIZE - apart) * 8
            self.assertAlmostEqual(same, expected, delta=0.05 * expected)

    def test_an_epoch_tells_nothing_about_the_next(self):
        between = [np.corrcoef(p, q)[0, 1] for p, q in itertools.pairwise(self.by_blocks)]
        self.assertAlmostEqual(np.mean(between), 0, delta=4 / np.sqrt(63 * self.KEYS))


class BatchOrderTest(parameterized.TestCase):
    @parameterized.parameters(0, 1000)
    def test_without_blocks_it_is_the_order_of_sequences(self, block):
        expected = StreamOrder(3, _ROWS, _SHARES)
        for step in (0, 7, 10**6):
            places = order(block=block).places(step, 10, 30)
            language, draw = expected.draw(60 * step + np.arange(10, 40))
            row = expected.sequence(language, draw)
            np.testing.assert_array_equal(places.language, language)
            np.testing.assert_array_equal(places.row, row)
            self.assertTrue((places.lane == -1).all())
            self.assertTrue(((places.first <= row) & (row < places.stop)).all())

    @parameterized.parameters(1, 4)
    def test_epochs_visit_every_sequence_once(self, lanes):
        found = order(_CYCLE, lanes)
        places = [found.places(step, 0, _CYCLE) for step in range(lanes)]  # a cycle of every lane
        language, row = (np.stack([one[i] for one in places]) for i in (0, 1))  # [steps, B]
        np.testing.assert_allclose(np.bincount(language.flat) / language.size, _SHARES, atol=1e-4)
        for i, num_rows in enumerate(_ROWS):
            visits = np.bincount(row[language == i], minlength=num_rows)
            self.assertLen(visits, num_rows)
            self.assertLessEqual(np.ptp(visits), 1)
        for lane, i in itertools.product(range(lanes), (1, 2)):
            mine = np.s_[:, lane * _CYCLE // lanes : (lane + 1) * _CYCLE // lanes]
            begin, end = _ROWS[i] * lane // lanes, _ROWS[i] * (lane + 1) // lanes
            visits = row[mine][language[mine] == i]
            epochs = visits[: len(visits) // (end - begin) * (end - begin)]
            epochs = epochs.reshape(-1, end - begin)
            self.assertTrue((np.sort(epochs, axis=1) == np.arange(begin, end)).all())
            self.assertLess(np.mean(epochs[0] == epochs[1]), 0.03)
        lanes_of_step = language[0].reshape(lanes, -1)
        for one, other in itertools.pairwise(lanes_of_step):  # as often as by chance
            self.assertAlmostEqual(np.mean(one == other), (_SHARES**2).sum(), delta=0.02)

    @parameterized.parameters((2, 1), (4, 4), (12, 4))
    def test_parts_make_up_the_batch_and_read_their_lanes(self, num_parts, lanes):
        found, size = order(lanes=lanes), 60 // num_parts
        for step in (0, 9, 10**6):
            parts = [found.places(step, part * size, size) for part in range(num_parts)]
            whole = found.places(step, 0, 60)
            for arrays in zip(whole, *parts, strict=True):
                np.testing.assert_array_equal(arrays[0], np.concatenate(arrays[1:]))
        if num_parts == lanes:
            places = [found.places(step, 0, size) for step in range(40)]
            rows = np.concatenate([one.row[one.language == 1] for one in places])
            self.assertLess(rows.max(), _ROWS[1] / lanes)

    def test_settings_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, "data.lanes is 2, but data.block_bytes is 0"):
            BlockSettings(lanes=2)
        with self.assertRaisesRegex(ValueError, "data.lanes is 7, must divide .* 60 examples"):
            order(lanes=7)
