"""Blocks read ahead: the same batches as without, each block once, and a bounded number of them."""

import collections
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline import dataset
from input_pipeline.order import BlockSettings, Places
from input_pipeline.stream import (
    BlockCache,
    PhasedStream,
    TrainingStream,
    block_cache,
    training_rows,
)
from tests.folders import FolderTest
from tests.input_pipeline.reading import training_store

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
        self.store = training_store(self.folder, {"en": 900, "sw": 30, "de": 400})

    def stream(self, cache=None, seed=3) -> TrainingStream:
        return TrainingStream(self.store, _SHARES, 12, seed, _SETTINGS, cache)

    def assert_equal(self, found, expected):
        self.assertCountEqual(found, expected)
        for name, array in expected.items():
            self.assertEqual(found[name].dtype, array.dtype)
            np.testing.assert_array_equal(found[name], array)

    @parameterized.product(loader=("tf.data", "threads"), read_ahead=(0, 3), parts=((0,), (1, 3)))
    def test_a_cache_changes_no_batch(self, loader, read_ahead, parts):
        rows = training_rows(self.store)
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
                names = [self.store.languages[one] for one in batch["language"]]
                described = list(zip(names, batch["tokens"][:, 1].tolist(), strict=True))
                self.assertEqual(plain.describe_batch(step), described)

    def test_a_host_of_a_lane_reads_every_block_of_it_once_an_epoch(self):
        reads = collections.Counter()

        def load(*block):
            reads[block] += 1
            language, first, stop = block
            return self.store.rows(self.store.languages[language], "train")[first:stop]

        cached = self.stream(BlockCache(load, ThreadPoolExecutor(2), _SETTINGS.window_blocks))
        # 115 steps of 6 examples, 60 % of them English, of which lane 1 has 450 sequences.
        data = dataset.StreamedData(cached, "threads", (1,), num_parts=2, read_ahead=8)
        self.assertLen(list(data.batches(range(115))), 115)
        of_large = [(first, stop) for language, first, stop in reads if language == 1]
        self.assertEqual({n for (language, *_), n in reads.items() if language == 1}, {1})
        self.assertBetween(len(of_large), 25, 29)
        self.assertGreaterEqual(min(first for first, _ in of_large), 450)  # not of lane 0
