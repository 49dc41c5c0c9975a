"""Tests of feeding batches to the training loop, and of what the room imports."""

import itertools
import sys
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import dataset
from input_pipeline.stream import PACKED, PhasedStream, TrainingStream
from tests.folders import FolderTest
from tests.input_pipeline.reading import training_store

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
        self.store = training_store(self.folder, {"en": 50, "sw": 50})
        self.stream = self.make_stream()

    def make_stream(self, **kwargs) -> _CountingStream:
        return _CountingStream(self.store, {"en": 0.7, "sw": 0.3}, batch_size=8, seed=0, **kwargs)

    def assert_batches(self, found, steps, *part):
        for batch, step in zip(found, steps, strict=True):
            expected = self.stream.batch(step, *part)
            self.assertCountEqual(batch, expected)
            for key, value in expected.items():
                self.assertEqual(batch[key].dtype, value.dtype)
                np.testing.assert_array_equal(batch[key], value)

    @parameterized.product(
        loader=LOADERS, steps=(range(7, 12), range(10**6, 10**6 + 3), range(0, 9, 3)),
        prefetch=(1, 20),
    )  # fmt: skip
    def test_loaders_give_the_batches_of_the_stream(self, loader, steps, prefetch):
        found = loaded(self.stream, steps, loader, prefetch=prefetch)
        self.assert_batches(found, steps)

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
