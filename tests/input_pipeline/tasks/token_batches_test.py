"""Batches by tokens: what is in them, their shapes, and when."""

import collections
import itertools

import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks.batches import TokenStream, batch_sizes, token_batches
from input_pipeline.tasks.features import TranslationFeature

PAD = 1
BUCKETS = (8, 16, 32)
TOKENS = 100
SIZES = {8: 12, 16: 6, 32: 3}


class Listed(list):
    """Features in memory, which a stream reads as it reads those on disk."""

    texts = ()

    @property
    def sizes(self) -> np.ndarray:
        return np.array([one.size for one in self])

    def take(self, rows: np.ndarray) -> list[TranslationFeature]:
        return [self[row] for row in rows]


def pair(number: int, source: int, target: int) -> TranslationFeature:
    """A feature whose tokens say which it is."""
    sides = (np.full(n, 100 + number, np.int32) for n in (source, target))
    return TranslationFeature(number, next(sides), 7, next(sides))


def pairs(count: int, seed: int = 0, longest: int = 32) -> list[TranslationFeature]:
    lengths = np.random.default_rng(seed).integers(2, longest + 1, (count, 2))
    return [pair(i, int(one), int(two)) for i, (one, two) in enumerate(lengths)]


def numbers(batch: dict) -> list[int]:
    """Numbers of the features in a batch; checks that both sides are theirs."""
    found = batch["tokens"][:, 0] - 100
    for name, fill in (("tokens", PAD), ("target_inputs", PAD), ("target_outputs", -1)):
        for row, number in zip(batch[name], found, strict=True):
            assert set(row.tolist()) <= {number + 100, fill, 7}, (name, row)
    return found.tolist()


class TokenStreamTest(parameterized.TestCase):
    def epoch(self, stream: TokenStream, number: int) -> list[dict]:
        steps = range(number * stream.steps_per_epoch, (number + 1) * stream.steps_per_epoch)
        return [stream.batch(step) for step in steps]

    @parameterized.parameters((1, 6), (2, 32), (5, 16), (40, 32), (300, 32))
    def test_an_epoch_has_every_feature_once_and_less_than_a_batch_more(self, count, longest):
        features = pairs(count, longest=longest)
        stream = TokenStream(Listed(features), TOKENS, BUCKETS, 0, PAD)
        for epoch in (0, 1, 1000):
            batches = self.epoch(stream, epoch)
            seen = collections.Counter(itertools.chain.from_iterable(map(numbers, batches)))
            self.assertCountEqual(seen, range(count))
            more = seen.total() - count
            self.assertLess(more, max(SIZES.values()))
            self.assertLessEqual(max(seen.values()), 1 + -(-more // count))

    def test_every_batch_has_as_many_rows_as_fit(self):
        features = pairs(300)
        sizes = [feature.size for feature in features]
        up = 0
        for batch in self.epoch(TokenStream(Listed(features), TOKENS, BUCKETS, 0, PAD), 0):
            rows, length = batch["tokens"].shape
            self.assertEqual(rows, SIZES[length])
            self.assertEqual(batch["target_outputs"].shape, (rows, length))
            np.testing.assert_array_equal(batch["weights"], np.ones(rows, np.float32))
            of_rows = [sizes[number] for number in numbers(batch)]
            self.assertLessEqual(max(of_rows), length)
            up += sum(size <= length // 2 for size in of_rows)
        # Only leftovers of a bucket are in the next one, and those that fill up the last batch.
        self.assertLess(up, 12 + 6 + 3)

    def test_what_is_left_over_goes_up(self):
        # 12 + 1 short ones, 5 + 1 middle ones, and 3 long ones less one.
        lengths = [8] * 13 + [16] * 5 + [32] * 2
        features = [pair(i, n, 2) for i, n in enumerate(lengths)]
        stream = TokenStream(Listed(features), TOKENS, BUCKETS, 0, PAD)
        shapes = collections.Counter(b["tokens"].shape for b in self.epoch(stream, 0))
        self.assertEqual(shapes, {(12, 8): 1, (6, 16): 1, (3, 32): 1})

    def test_epochs_and_seeds_differ_in_batches_and_order(self):
        def batches(seed, epoch):
            stream = TokenStream(Listed(pairs(200)), TOKENS, BUCKETS, seed, PAD)
            return [tuple(numbers(batch)) for batch in self.epoch(stream, epoch)]

        first = batches(0, 0)
        self.assertEqual(first, batches(0, 0))
        for other in (batches(0, 1), batches(1, 0)):
            self.assertEmpty(set(map(frozenset, first)) & set(map(frozenset, other)))
            self.assertNotEqual([len(batch) for batch in first], [len(batch) for batch in other])
        lengths = [max(map(len, first)) == len(batch) for batch in first]
        self.assertNotEqual(lengths, sorted(lengths))
        self.assertNotEqual(lengths, sorted(lengths, reverse=True))

    def test_parts_are_the_batch(self):
        features = pairs(100)
        stream = TokenStream(Listed(features), TOKENS, BUCKETS, 0, PAD, multiple=3)
        for step in range(stream.steps_per_epoch):
            whole = stream.batch(step)
            parts = [stream.batch(step, part, 3) for part in range(3)]
            self.assertEqual({name: x.dtype for name, x in whole.items()}, dict(stream.types))
            for name, value in whole.items():
                np.testing.assert_array_equal(value, np.concatenate([p[name] for p in parts]))
            described = [number for _, number in stream.describe_batch(step)]
            self.assertEqual(described, numbers(whole))

    def test_what_does_not_fit(self):
        self.assertEqual(batch_sizes("key", 100, BUCKETS, 2), [12, 6, 2])
        with self.assertRaisesRegex(ValueError, "evaluation.batch_tokens is 8, .* 1 rows of 32"):
            batch_sizes("evaluation.batch_tokens", 8, BUCKETS)
        for features, buckets, multiple, message in (
            (pairs(3), BUCKETS, 4, "train.batch_tokens is 100, too few for 4 rows of 32"),
            ([], BUCKETS, 1, "no examples"),
            ([pair(0, 3, 33)], BUCKETS, 1, "longest example has 33 tokens, the last bucket 32"),
            ([pair(0, 3, 3)], (16, 8), 1, "must ascend"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                TokenStream(Listed(features), TOKENS, buckets, 0, PAD, multiple=multiple)


class TokenBatchesTest(parameterized.TestCase):
    @parameterized.parameters(0, 1, 5, 100)
    def test_every_feature_once_and_empty_rows_at_the_end(self, count):
        features, seen = pairs(count), []
        sizes = list(SIZES.values())
        for arrays, rows in token_batches(features, sizes, BUCKETS, PAD):
            self.assertLen(rows, SIZES[arrays["tokens"].shape[1]])
            is_there = rows >= 0
            np.testing.assert_array_equal(arrays["weights"], is_there)
            there = {name: value[is_there] for name, value in arrays.items()}
            self.assertEqual(numbers(there), rows[is_there].tolist())
            np.testing.assert_array_equal(arrays["target_outputs"][~is_there], -1)
            np.testing.assert_array_equal(arrays["tokens"][~is_there], PAD)
            np.testing.assert_array_equal(arrays["segments"][~is_there], 0)
            seen += rows[is_there].tolist()
        self.assertCountEqual(seen, range(count))
