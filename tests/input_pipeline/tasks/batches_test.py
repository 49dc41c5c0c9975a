"""Batches of similar lengths: what is in them, when, and how long they are."""

import collections
import itertools

import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks.batches import FeatureStream, length_batches, padding_ratio
from input_pipeline.tasks.features import QuestionFeature, TaggedFeature, TextFeature

PAD = 1
BUCKETS = (8, 16, 24)


def text(number: int, length: int, label: float | int | None = 0) -> TextFeature:
    """A feature whose tokens say which it is."""
    return TextFeature(number, np.full(length, 100 + number, np.int32), label)


def texts(count: int) -> list[TextFeature]:
    lengths = np.random.default_rng(0).integers(2, 25, count)
    return [text(i, int(n), i % 3) for i, n in enumerate(lengths)]


def numbers(batch: dict) -> list[int]:
    """Numbers of the features in a batch; checks that they are whole."""
    for row, segments in zip(batch["tokens"], batch["segments"], strict=True):
        np.testing.assert_array_equal(segments, row != PAD)
        assert len(set(row[row != PAD].tolist())) <= 1, row
    return (batch["tokens"][:, 0] - 100).tolist()


def shortest_bucket(longest: int) -> int:
    return next(bucket for bucket in BUCKETS if bucket >= longest)


class FeatureStreamTest(parameterized.TestCase):
    def stream(self, count: int, size: int) -> FeatureStream:
        return FeatureStream(texts(count), size, BUCKETS, 0, PAD)

    @parameterized.parameters((1, 8), (3, 1), (8, 8), (9, 8), (63, 8), (500, 1))
    def test_an_epoch_has_every_feature_once_and_less_than_a_batch_more(self, count, size):
        stream = self.stream(count, size)
        self.assertEqual(stream.steps_per_epoch, -(-count // size))
        for epoch in (0, 1, 1000):
            steps = range(epoch * stream.steps_per_epoch, (epoch + 1) * stream.steps_per_epoch)
            batches = [stream.batch(step) for step in steps]
            seen = collections.Counter(itertools.chain.from_iterable(map(numbers, batches)))
            self.assertCountEqual(seen, range(count))
            self.assertEqual(seen.total(), size * len(steps))
            self.assertLessEqual(max(seen.values()), 1 + -(-(size - 1) // count))
            for batch in batches:
                np.testing.assert_array_equal(batch["weights"], np.ones(size, np.float32))

    def test_a_batch_is_as_long_as_its_longest_row_needs(self):
        features, stream = texts(500), self.stream(500, 8)
        for step in range(60):
            batch = stream.batch(step)
            longest = max(len(features[i].tokens) for i in numbers(batch))
            self.assertEqual(batch["tokens"].shape, (8, shortest_bucket(longest)))
            expected = [features[i].label for i in numbers(batch)]
            np.testing.assert_array_equal(batch["labels"], expected)

    def test_lengths_of_a_batch_are_similar_but_not_of_neighbours(self):
        features, stream = texts(8 * 40), self.stream(8 * 40, 8)
        lengths = np.array(
            [[len(features[i].tokens) for i in numbers(stream.batch(s))] for s in range(40)]
        )
        self.assertLess(np.ptp(lengths, axis=1).max(), 4)
        self.assertGreater(np.abs(np.diff(lengths.mean(axis=1))).mean(), 4)

    def test_what_cannot_be(self):
        with self.assertRaisesRegex(ValueError, "no examples for batches"):
            FeatureStream([], 8, BUCKETS, 0, PAD)
        with self.assertRaisesRegex(ValueError, "has 25 tokens, the last bucket 24"):
            FeatureStream([text(0, 25)], 8, BUCKETS, 0, PAD)
        for buckets in ((), (8, 8), (16, 8)):
            with self.assertRaisesRegex(ValueError, "must ascend"):
                FeatureStream([text(0, 5)], 8, buckets, 0, PAD)
        mixed = FeatureStream([text(0, 5), text(1, 5, None)], 2, BUCKETS, 0, PAD)
        with self.assertRaisesRegex(ValueError, "some examples have labels and some have none"):
            mixed.batch(0)


class LengthBatchesTest(parameterized.TestCase):
    @parameterized.parameters((1, 8), (7, 1), (8, 8), (9, 8), (100, 8))
    def test_every_feature_is_in_one_batch(self, count, size):
        features = texts(count)
        seen = []
        for batch, rows in length_batches(features, size, BUCKETS, PAD):
            real = rows >= 0
            np.testing.assert_array_equal(batch["weights"], real.astype(np.float32))
            np.testing.assert_array_equal(np.array(numbers(batch))[real], rows[real])
            lengths = [len(features[i].tokens) for i in rows[real]]
            self.assertEqual(batch["tokens"].shape, (size, shortest_bucket(max(lengths))))
            self.assertFalse(batch["segments"][~real].any())
            self.assertTrue((batch["tokens"][~real] == PAD).all())
            self.assertEqual(batch["positions"].dtype, np.int32)
            seen += zip(rows[real].tolist(), lengths, strict=True)
        self.assertCountEqual([row for row, _ in seen], range(count))
        lengths = [length for _, length in seen]
        self.assertEqual(lengths, sorted(lengths, reverse=True))

    def test_padding_ratio(self):
        self.assertEmpty(list(length_batches([], 8, BUCKETS, PAD)))
        features = texts(100)
        tokens = sum(b["tokens"].size for b, _ in length_batches(features, 8, BUCKETS, PAD))
        ratio = padding_ratio(features, 8, BUCKETS, 24)
        self.assertAlmostEqual(ratio, 13 * 8 * 24 / tokens)
        self.assertGreater(ratio, 1.2)
        self.assertEqual(padding_ratio(features, 8, (24,), 24), 1)

    def test_arrays_of_every_kind(self):
        offsets, zeros = np.array([[0, 0], [0, 2], [0, 0]], np.int32), np.zeros(3, np.int32)
        tags, tag = np.array([-1, 0, -1], np.int32), np.array([5], np.int32)
        question = QuestionFeature(0, zeros, offsets, offsets[:, 0] > 0, 1, 1)
        for name, feature, kind, shape in (
            ("labels", text(0, 3, 2), np.int32, ()),
            ("scores", text(0, 3, 2.5), np.float32, ()),
            ("tags", TaggedFeature(0, zeros, tags, 1, tag, 0), np.int32, (8,)),
            ("answerable", question, bool, (8,)),
        ):
            ((batch, rows),) = length_batches([feature], 2, BUCKETS, PAD)
            array = batch["labels" if name == "scores" else name]
            np.testing.assert_array_equal(rows, [0, -1])
            self.assertEqual((array.shape, array.dtype), ((2, *shape), kind))
            if name == "tags":
                self.assertEqual(array[0, 0], 5)
                self.assertTrue((array[1] == -1).all() and (batch["words"][1] == -1).all())
            if name == "answerable":
                np.testing.assert_array_equal(array[0], [True, True] + [False] * 6)
                self.assertTrue(array[1].all())
                np.testing.assert_array_equal([batch["starts"], batch["ends"]], [[1, 0]] * 2)
