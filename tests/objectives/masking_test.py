"""Properties of masking: per sequence, in the mean, and as a function of the key."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from xlm.objectives.masking import Masked, mask_tokens
from xlm.objectives.settings import MaskSettings

BOS, PAD, EOS, UNK, MASK = range(5)
SPECIAL = (BOS, PAD, EOS, MASK)
VOCAB = 50
BERT = MaskSettings(rate=0.15, mask_share=0.8, random_share=0.1)
# Shares may be off by four standard deviations.
DEVIATIONS = 4.0


def rows_with_text(counts: list[int], length: int, seed: int = 0) -> np.ndarray:
    """Rows [B, L] with given numbers of text tokens at random places, else special tokens."""
    rng = np.random.default_rng(seed)
    rows = rng.choice(SPECIAL, (len(counts), length))
    for row, count in zip(rows, counts, strict=True):
        places = rng.permutation(length)[:count]
        row[places] = rng.choice(np.setdiff1d(np.arange(VOCAB), SPECIAL), count)
    return rows.astype(np.int32)


def mask_eagerly(key: jax.Array, tokens, settings: MaskSettings = BERT, rate=None) -> Masked:
    ids = {"vocab_size": VOCAB, "mask_id": MASK, "special_ids": SPECIAL}
    return mask_tokens(key, tokens, settings, **ids, rate=rate)


mask = functools.partial(jax.jit, static_argnames="settings")(mask_eagerly)


class EveryRowTest(parameterized.TestCase):
    """Rows of length 40 with no, some and only text."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = rows_with_text(list(range(41)), length=40)
        cls.masked = jax.tree.map(np.asarray, mask(jax.random.key(0), cls.tokens))

    def test_positions_differ_and_targets_are_what_stood_there(self):
        masked = self.masked
        self.assertEqual(masked.positions.shape, (41, BERT.slots(40)))
        for positions in masked.positions:
            self.assertLen(set(positions.tolist()), len(positions))
        expected = np.take_along_axis(self.tokens, masked.positions, axis=1)
        np.testing.assert_array_equal(masked.targets, expected)
        self.assertEmpty(set(masked.targets[masked.weights > 0].tolist()) & set(SPECIAL))

    def test_all_else_is_left_as_it_is(self):
        chosen = np.zeros(self.tokens.shape, bool)
        rows, slots = np.nonzero(self.masked.weights)
        chosen[rows, self.masked.positions[rows, slots]] = True
        np.testing.assert_array_equal(self.masked.inputs[~chosen], self.tokens[~chosen])
        self.assertTrue((self.masked.inputs[chosen] != self.tokens[chosen]).any())
        put_in = self.masked.inputs[self.masked.inputs != self.tokens]
        self.assertEmpty(set(put_in.tolist()) & {BOS, PAD, EOS})

    def assert_share(self, masked: Masked, rate: float):
        self.assertContainsSubset(np.unique(masked.weights).tolist(), [0.0, 1.0])
        expected = [0, *(max(round(rate * count), 1) for count in range(1, 41))]
        np.testing.assert_array_equal(masked.weights.sum(axis=1), expected)

    @parameterized.parameters(0.01, 0.15, 0.5, 0.99)
    def test_the_number_masked_is_the_rounded_share(self, rate):
        settings = MaskSettings(rate=rate, mask_share=0.8, random_share=0.1)
        self.assert_share(mask(jax.random.key(0), self.tokens, settings), rate)

    @parameterized.parameters(0.1, 0.25, 0.5)
    def test_a_step_may_have_a_rate_of_its_own(self, rate):
        settings = MaskSettings(0.1, 0.8, 0.1, final_rate=0.5)
        masked = mask(jax.random.key(0), self.tokens, settings, rate=jnp.float32(rate))
        self.assertEqual(masked.weights.shape[1], settings.slots(self.tokens.shape[1]))
        self.assert_share(masked, rate)


class SharesTest(parameterized.TestCase):
    """A batch of text only, with some five thousand masked tokens."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokens = rows_with_text([256] * 128, length=256)

    def counts(self, settings: MaskSettings, seed: int) -> tuple[int, int, np.ndarray]:
        """Masked tokens, tokens replaced by `<mask>`, and other replacements."""
        masked = jax.tree.map(np.asarray, mask(jax.random.key(seed), self.tokens, settings))
        there = np.take_along_axis(masked.inputs, masked.positions, axis=1)[masked.weights > 0]
        target = masked.targets[masked.weights > 0]
        return len(target), np.sum(there == MASK), there[(there != MASK) & (there != target)]

    def assert_share(self, count: int, total: int, share: float):
        deviation = np.sqrt(share * (1 - share) / total)
        self.assertAlmostEqual(count / total, share, delta=DEVIATIONS * deviation)

    @parameterized.parameters((0.8, 0.1), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.5, 0.5))
    def test_shares(self, mask_share, random_share):
        settings = MaskSettings(rate=0.15, mask_share=mask_share, random_share=random_share)
        total, by_mask, pieces = self.counts(settings, 0)
        self.assertEqual(total, 128 * 38)
        self.assert_share(by_mask, total, mask_share)
        # Special pieces and the original piece change nothing.
        self.assert_share(len(pieces), total, random_share * (1 - (len(SPECIAL) + 1) / VOCAB))

    def test_all_pieces_are_put_in_alike(self):
        settings = MaskSettings(rate=0.15, mask_share=0.0, random_share=1.0)
        total, _, pieces = self.counts(settings, 0)
        text = np.setdiff1d(np.arange(VOCAB), SPECIAL)
        counts = np.bincount(pieces, minlength=VOCAB)
        self.assertEqual(counts[list(SPECIAL)].sum(), 0)
        for piece in text:
            # Each is drawn with probability 1 / VOCAB, and visible unless it is the original.
            self.assert_share(counts[piece], total, (1 - 1 / len(text)) / VOCAB)

    def test_all_text_is_chosen_alike(self):
        tokens = rows_with_text([20], length=40)
        keys = jax.random.split(jax.random.key(0), 4000)
        masked = jax.jit(jax.vmap(mask_eagerly, in_axes=(0, None)))(keys, tokens)
        chosen = np.asarray(masked.positions)[np.asarray(masked.weights) > 0]
        counts = np.bincount(chosen, minlength=40)
        is_text = ~np.isin(tokens[0], SPECIAL)
        for count in counts[is_text]:
            self.assert_share(count, 4000, 3 / 20)


def slow_spans(key: jax.Array, row: np.ndarray, settings: MaskSettings) -> set[int]:
    """The masked places of a row: spans in the order of their random numbers."""
    where = jax.random.split(key, 3)[0]
    ranks = np.asarray(jax.random.uniform(where, (1, len(row))))[0]
    coin = jax.random.bernoulli(jax.random.fold_in(where, 1), 1 / settings.span, (1, len(row)))[0]
    spans, places = [], np.flatnonzero(~np.isin(row, SPECIAL)).tolist()
    number, before = -1, None
    for place in range(len(row)):
        if place not in places:
            number, before = number + 1, None
            continue
        if before is None or coin[place]:
            number += 1
            spans.append((ranks[number], []))
        spans[-1][1].append(place)
        before = place
    ordered = [at for _, span in sorted(spans, key=lambda one: -one[0]) for at in span]
    return set(ordered[: max(round(settings.rate * len(places)), 1)] if places else [])


class SpansTest(parameterized.TestCase):
    """Rows of half text, of only text, and of pairs of sentences."""

    @parameterized.parameters((0.15, 3.0), (0.4, 5.0), (0.3, 1.5))
    def test_against_loops_over_spans(self, rate, span):
        settings = MaskSettings(rate, 1.0, 0.0, span=span)
        halves = np.tile(rows_with_text([16], 16)[0], 2)
        halves[[0, 16]], halves[[7, 8, 15]] = BOS, EOS
        for row in (*rows_with_text([20, 32], 32), halves):
            for seed in range(4):
                key = jax.random.key(seed)
                found = jax.tree.map(np.asarray, mask(key, row[None], settings))
                places = found.positions[found.weights > 0].tolist()
                self.assertEqual(set(places), slow_spans(key, row, settings))


class MaskSettingsTest(parameterized.TestCase):
    def test_shares_that_sum_to_more_than_one(self):
        with self.assertRaisesRegex(ValueError, "mask_share 0.8 and .* sum to at most 1"):
            MaskSettings(rate=0.15, mask_share=0.8, random_share=0.3)

    @parameterized.parameters((0.1, 0.5, 41), (0.4, 0.2, 10), (0.3, 0.6, 1))
    def test_the_rate_moves_on_a_line_from_the_first_step_to_the_last(self, rate, final, num_steps):
        settings = MaskSettings(rate, 0.8, 0.1, final_rate=final)
        steps = np.arange(num_steps + 3, dtype=np.int32)  # beyond the end it stays
        found = jax.jit(lambda step: settings.rate_at(step, num_steps))(steps)
        expected = np.interp(steps, [0, max(num_steps - 1, 1)], [rate, final])
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        self.assertEqual(found.dtype, jnp.float32)
        self.assertIsNone(BERT.rate_at(jnp.int32(3), 10))  # does not change

    @parameterized.parameters((0.15, 128, 20), (0.15, 20, 3), (0.5, 7, 4), (0.01, 10, 1))
    def test_slots_hold_the_masks_of_a_full_row(self, rate, length, expected):
        settings = MaskSettings(rate=rate, mask_share=0.8, random_share=0.1)
        self.assertEqual(settings.slots(length), expected)
        self.assertGreaterEqual(expected, round(rate * length))
