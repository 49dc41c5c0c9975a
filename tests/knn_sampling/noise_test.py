"""NCE and negative sampling against loops over their formulas, and draws of their classes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.test_util import check_grads

from knn_sampling.noise import (
    classes_at,
    cumulative_thresholds,
    draw_distinct,
    nce_loss,
    neg_loss,
    sample_classes,
)
from tests.knn_sampling.batches import assert_close, check_unused_positions, with_gradients

W, D, C = 7, 5, 9
NUM_NEGATIVES = 8
# A fraction, and two weights of zero.
WEIGHTS = np.array([1, 0, 1, 0.25, 1, 0, 1], np.float32)
LABELS = np.array([0, 1, 2, 3, 3, 0, 6], np.int32)
# Slots 1, 3 and 6 are targets only, two were drawn twice or more, the last two are unused.
COUNTS = np.array([1, 0, 2, 0, 1, 3, 0, 0, 0], np.float32)
SLOTS_USED = 7
NOISE = np.array([0.2, 0.05, 0.1, 1e-6, 0.15, 0.3, 0.01, 1, 1], np.float32)
KINDS = ("nce", "neg")


def random_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden states, rows and bias; unused rows are zero, as they are gathered."""
    rng = np.random.default_rng(2)
    hidden, rows, bias = (rng.normal(size=shape) for shape in ((W, D), (C, D), C))
    rows[SLOTS_USED:] = bias[SLOTS_USED:] = 0
    return hidden.astype(np.float32), rows.astype(np.float32), bias.astype(np.float32)


def losses_of(
    kind, hidden, rows, bias, labels=LABELS, weights=WEIGHTS, counts=COUNTS, noise=NOISE
) -> jax.Array:
    bias = jnp.asarray(bias) - (jnp.log(jnp.asarray(noise)) if kind == "nce" else 0)
    args = [jnp.asarray(x) for x in (hidden, labels, weights, rows, bias, counts)]
    if kind == "neg":
        return neg_loss(*args)
    return nce_loss(*args, num_negatives=NUM_NEGATIVES)


@functools.partial(jax.jit, static_argnames="kind")
def value_and_gradients(kind, hidden, rows, bias, *more):
    """Losses [W], and gradients of their sum for hidden states, rows and bias."""

    return with_gradients(lambda *inputs: losses_of(kind, *inputs, *more), hidden, rows, bias)


def slow_losses(kind, hidden, rows, bias) -> list[float]:
    """A logistic regression per position and draw, in float64."""

    def logit(position: int, slot: int) -> float:
        score = float(hidden[position].astype(np.float64) @ rows[slot] + bias[slot])
        return score - (math.log(NUM_NEGATIVES * float(NOISE[slot])) if kind == "nce" else 0)

    draws = [slot for slot in range(C) for _ in range(int(COUNTS[slot]))]
    losses = []
    for position, (label, weight) in enumerate(zip(LABELS, WEIGHTS, strict=True)):
        loss = math.log1p(math.exp(-logit(position, label)))
        for slot in draws:
            loss += math.log1p(math.exp(logit(position, slot)))
        losses.append(float(weight) * loss)
    return losses


class SamplingTest(parameterized.TestCase):
    def test_thresholds_are_exact(self):
        # 2^32 / 2^k are whole numbers; specials and padding have no share.
        p = np.array([0, 0.5, 0, 2**-24, 2**-32, 0.25 - 2**-24, 0.25 - 2**-32, 0, 0])
        expected = np.rint(np.cumsum(p) * 2**32)
        expected[-3:] = 2**32 - 1
        thresholds = cumulative_thresholds(p)
        self.assertEqual(thresholds.dtype, jnp.uint32)
        np.testing.assert_array_equal(thresholds, expected)
        np.testing.assert_array_equal(cumulative_thresholds(4 * p), thresholds)

    def test_classes_at_the_edges_of_their_shares(self):
        # Shares of 2^31, 429 (a probability of 1e-7), and the rest, between classes without one.
        share = 429
        p = np.array([0, 2**31, 0, share, 2**31 - share, 0]) / 2**32
        thresholds = cumulative_thresholds(p)
        integers = [0, 2**31 - 1, 2**31, 2**31 + share - 1, 2**31 + share, 2**32 - 2, 2**32 - 1]
        found = classes_at(thresholds, jnp.asarray(integers, jnp.uint32))
        self.assertEqual(found.dtype, jnp.int32)
        np.testing.assert_array_equal(found, [1, 1, 3, 3, 4, 4, 4])

    def test_frequencies(self):
        p = np.array([0, 0.4, 0.3, 0.15, 0.1, 0.04, 0.01, 0])
        num_samples = 200_000
        drawn = sample_classes(jax.random.key(0), cumulative_thresholds(p), num_samples)
        self.assertEqual(drawn.shape, (num_samples,))
        counts = np.bincount(drawn, minlength=len(p))
        np.testing.assert_array_equal(counts[p == 0], 0)
        expected = num_samples * p[p > 0]
        chi_square = ((counts[p > 0] - expected) ** 2 / expected).sum()
        self.assertLess(chi_square, 20.5)  # one in a thousand with five degrees of freedom

    @parameterized.parameters(([0.5, -0.1],), ([0.5, np.nan],), ([0.0, 0.0],), ([np.inf, 1.0],))
    def test_refuses_what_is_no_distribution(self, p):
        with self.assertRaisesRegex(ValueError, "finite and at least 0"):
            cumulative_thresholds(np.array(p))


class LossTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_equals_the_formula(self, kind: str):
        losses, _ = value_and_gradients(kind, *random_inputs())
        self.assertEqual(losses.dtype, jnp.float32)
        assert_close(losses, slow_losses(kind, *random_inputs()))
        assert_close(losses_of(kind, *random_inputs()), losses)  # eager

    @parameterized.parameters(*KINDS)
    def test_numerical_gradients(self, kind: str):
        # With the default step of 1e-4, float32 rounding would dominate.
        check_grads(
            lambda *x: value_and_gradients(kind, *x)[0], random_inputs(), 1, ["rev"], eps=1e-2
        )

    @parameterized.parameters(*KINDS)
    def test_unused_slots_have_no_influence_and_no_gradient(self, kind: str):
        hidden, rows, bias = random_inputs()
        losses, expected = value_and_gradients(kind, hidden, rows, bias)
        noise = NOISE.copy()
        rows[SLOTS_USED:], bias[SLOTS_USED:], noise[SLOTS_USED:] = 50.0, [-np.inf, np.inf], 0.0
        more = LABELS, WEIGHTS, COUNTS, noise
        changed, gradients = value_and_gradients(kind, hidden, rows, bias, *more)
        np.testing.assert_array_equal(changed, losses)
        jax.tree.map(np.testing.assert_array_equal, gradients, expected)
        for gradient in gradients[1:]:
            np.testing.assert_array_equal(gradient[SLOTS_USED:], 0)

    @parameterized.product(
        kind=KINDS, values=((np.nan, 0), (np.inf, C + 5), (1e30, -100), (np.nan, C - 1))
    )
    def test_positions_of_weight_zero_count_for_nothing(self, kind, values):
        hidden, rows, bias = random_inputs()
        bias[SLOTS_USED:] = -np.inf  # a label of no meaning may be a slot of none
        compute = functools.partial(value_and_gradients, kind)
        check_unused_positions(compute, (hidden, rows, bias), LABELS, WEIGHTS, *values)

    @parameterized.product(kind=KINDS, size=(-1e5, 1e5))
    def test_extreme_logits(self, kind: str, size: float):
        # All classes score the same: the target's term or each draw's is `size`, the others 0.
        hidden, rows, bias = random_inputs()
        losses, gradients = value_and_gradients(kind, hidden, 0 * rows, 0 * bias + size)
        terms = COUNTS.sum() if size > 0 else 1
        np.testing.assert_allclose(losses, WEIGHTS * terms * abs(size), rtol=1e-3)
        by_bias = WEIGHTS.sum() * COUNTS if size > 0 else -np.bincount(LABELS, WEIGHTS, C)
        assert_close(gradients[2], by_bias)

    @parameterized.parameters(*KINDS)
    def test_bfloat16_hidden_states_lose_only_what_rounding_loses(self, kind: str):
        hidden, rows, bias = random_inputs()
        short, short_rows = hidden.astype(jnp.bfloat16), rows.astype(jnp.bfloat16)
        # Eager, since a compiler might remove a mistaken rounding of logits to bfloat16.
        losses = losses_of(kind, short, rows, bias)
        self.assertEqual(losses.dtype, jnp.float32)
        # Products of rounded factors are exact in float32.
        rounded = short.astype(np.float32), short_rows.astype(np.float32)
        assert_close(losses, losses_of(kind, *rounded, bias))
        _, gradients = value_and_gradients(kind, short, rows, bias)
        self.assertEqual([g.dtype for g in gradients], [jnp.bfloat16, jnp.float32, jnp.float32])


class DrawDistinctTest(parameterized.TestCase):
    P = np.array([0.4, 0.0, 0.3, 0.15, 0.1, 0.05])
    draw = staticmethod(jax.jit(draw_distinct, static_argnums=3))

    def test_as_often_as_one_by_one(self):
        rng, left = np.random.default_rng(0), self.P * (np.arange(6) != 0)
        is_out = np.tile(np.arange(6) == 0, (20_000, 1))
        drawn, _ = self.draw(jax.random.key(1), self.P, is_out, 2)
        slowly = [rng.choice(6, 2, replace=False, p=left / left.sum()) for _ in range(5000)]
        found, expected = (np.bincount(np.ravel(x), minlength=6) / len(x) for x in (drawn, slowly))
        np.testing.assert_allclose(found, expected, atol=0.03)  # four standard deviations
        np.testing.assert_array_equal(found[[0, 1]], 0)

    @parameterized.parameters(1, 3, 4, 5, 6, 100)
    def test_different_classes_that_may_come(self, num_samples: int):
        is_out = np.tile(np.arange(6) == 3, (50, 1))
        drawn, time = self.draw(jax.random.key(2), self.P, is_out, num_samples)
        self.assertEqual((drawn.shape, time.shape), ((50, min(num_samples, 6)), (50, 1)))
        self.assertEqual((drawn.dtype, time.dtype), (jnp.int32, jnp.float32))
        self.assertTrue(np.isfinite(time).all())
        for row in np.asarray(drawn):
            real = row[row < 6]
            self.assertLen(set(real), min(num_samples, 4))
            self.assertTrue(set(real) <= {0, 2, 4, 5})
