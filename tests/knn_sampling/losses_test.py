"""Losses against textbook formulas, and the restricted softmax against the full one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.test_util import check_grads

from knn_sampling.blockwise import blockwise_softmax_loss
from knn_sampling.candidates import Candidates, union_of_neighbours
from knn_sampling.losses import ABSENT, candidate_softmax_loss, full_softmax_loss, with_z_loss
from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.softmax import knn_softmax_loss
from tests.knn_sampling.batches import assert_close, check_unused_positions, with_gradients

W, D, V = 12, 8, 30
TARGETS = np.random.default_rng(0).integers(0, 20, W).astype(np.int32)
# A fraction, and two weights of zero.
WEIGHTS = np.array([1, 0, 1, 0.25, 1, 1, 0, 1, 1, 1, 1, 1], np.float32)
USED = WEIGHTS > 0


def random_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    hidden, table, bias = (rng.normal(size=shape) for shape in ((W, D), (V, D), V))
    return hidden.astype(np.float32), table.astype(np.float32), bias.astype(np.float32)


@functools.partial(jax.jit, static_argnames="capacity")
def candidates_of(table, capacity: int) -> Candidates:
    """V' of all positions as one group."""
    index = nearest_neighbours(table, k=3, num_valid=V)
    return union_of_neighbours(index, *map(jnp.asarray, (TARGETS[None], WEIGHTS[None])), capacity)


@functools.partial(jax.jit, static_argnames="num_valid")
def full(hidden, table, bias, num_valid: int = V, targets=TARGETS, weights=WEIGHTS):
    def loss(hidden, table, bias):
        return full_softmax_loss(hidden, targets, weights, table, bias, num_valid=num_valid)

    return with_gradients(loss, hidden, table, bias)


def restricted_loss(candidates: Candidates, hidden, table, bias, weights, unused: float = 0.0):
    """The loss over one group's candidates; rows of unused slots are `unused`."""
    ids = candidates.ids[0]
    rows = table.at[ids].get(mode="fill", fill_value=unused)
    its_bias = bias.at[ids].get(mode="fill", fill_value=ABSENT)
    return candidate_softmax_loss(hidden, candidates.labels[0], weights, rows, its_bias)


@functools.partial(jax.jit, static_argnames="unused")
def restricted(candidates, hidden, table, bias, weights=WEIGHTS, unused: float = 0.0):
    def loss(hidden, table, bias):
        return restricted_loss(candidates, hidden, table, bias, weights, unused)

    return with_gradients(loss, hidden, table, bias)


def evaluate(kind: str, hidden, table, bias, targets=TARGETS, weights=WEIGHTS):
    """The loss of `kind`, over the whole vocabulary or 16 candidates."""
    if kind == "full":
        return full(hidden, table, bias, targets=targets, weights=weights)
    index = nearest_neighbours(random_inputs()[1], k=3, num_valid=V)
    union = jax.jit(union_of_neighbours, static_argnums=3)
    candidates = union(index, targets[None], weights[None], 16)
    return restricted(candidates, hidden, table, bias, weights)


def eager_losses(kind: str, hidden, table, bias) -> jax.Array:
    hidden, table, bias = map(jnp.asarray, (hidden, table, bias))
    if kind == "full":
        return full_softmax_loss(hidden, TARGETS, WEIGHTS, table, bias, num_valid=V)
    candidates = candidates_of(random_inputs()[1], 16)
    return restricted_loss(candidates, hidden, table, bias, WEIGHTS)


def slow_value_and_gradients(columns: np.ndarray, *inputs):
    """Softmax over the chosen classes in float64, with the explicit gradient p - 1."""
    hidden, table, bias = (np.asarray(x, np.float64) for x in inputs)
    exps = np.exp(hidden @ table[columns].T + bias[columns])
    probabilities = exps / exps.sum(axis=1, keepdims=True)
    is_target = columns[None, :] == TARGETS[:, None]
    losses = -WEIGHTS * np.log((probabilities * is_target).sum(axis=1), where=USED, out=np.zeros(W))
    by_logit = WEIGHTS[:, None] * (probabilities - is_target)
    by_table, by_bias = np.zeros_like(table), np.zeros_like(bias)
    by_table[columns] = by_logit.T @ hidden
    by_bias[columns] = by_logit.sum(axis=0)
    return losses, (by_logit @ table[columns], by_table, by_bias)


class FullSoftmaxLossTest(parameterized.TestCase):
    def test_no_gradient_is_scattered_into_the_logits(self):
        program = jax.make_jaxpr(full)(*random_inputs())
        self.assertNotIn("scatter", str(program))

    @parameterized.parameters(V, 20)
    def test_equals_the_formula(self, num_valid: int):
        inputs = random_inputs()
        expected = slow_value_and_gradients(np.arange(num_valid), *inputs)
        assert_close(full(*inputs, num_valid=num_valid), expected)


class CandidateSoftmaxLossTest(parameterized.TestCase):
    @parameterized.parameters(W, 16, 25)
    def test_equals_softmax_over_the_chosen_columns(self, capacity: int):
        inputs = random_inputs()
        candidates = candidates_of(inputs[1], capacity)
        columns = np.asarray(candidates.ids[0])
        columns = columns[columns < V]
        self.assertLess(len(columns), V)
        expected = slow_value_and_gradients(columns, *inputs)
        assert_close(restricted(candidates, *inputs), expected)

    def test_unused_slots_have_no_influence(self):
        inputs = random_inputs()
        loose = candidates_of(inputs[1], 25)
        size = int(loose.union_size[0])
        self.assertLess(size, 25)
        expected = restricted(loose._replace(ids=loose.ids[:, :size]), *inputs)
        more = loose._replace(ids=jnp.pad(loose.ids, ((0, 0), (0, 40)), constant_values=V))
        for candidates, unused in ((loose, 0.0), (more, 0.0), (loose, 50.0)):
            assert_close(restricted(candidates, *inputs, unused=unused), expected, 1e-6, 1e-6)


class EitherLossTest(parameterized.TestCase):
    @parameterized.product(
        kind=("full", "knn"), values=((np.nan, 0), (np.inf, V + 5), (1e30, -100), (np.nan, V - 1))
    )
    def test_positions_of_weight_zero_count_for_nothing(self, kind, values):
        compute = functools.partial(evaluate, kind)
        check_unused_positions(compute, random_inputs(), TARGETS, WEIGHTS, *values)
        zeros = evaluate(kind, *random_inputs(), weights=np.zeros_like(WEIGHTS))
        jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), zeros)

    @parameterized.parameters("full", "knn")
    def test_numerical_gradients(self, kind: str):
        # With the default step of 1e-4, float32 rounding would dominate.
        check_grads(lambda *x: evaluate(kind, *x)[0], random_inputs(), 1, modes=["rev"], eps=1e-2)

    @parameterized.parameters("full", "knn")
    def test_bfloat16_inputs_lose_only_what_rounding_them_loses(self, kind: str):
        hidden, table, bias = random_inputs()
        exact, _ = evaluate(kind, hidden, table, bias)
        short = hidden.astype(jnp.bfloat16), table.astype(jnp.bfloat16)
        # A compiler might remove a mistaken rounding of logits to bfloat16.
        losses = eager_losses(kind, *short, bias)
        self.assertEqual(losses.dtype, jnp.float32)
        # Products of bfloat16 are exact in float32, so the type of the product must not matter.
        assert_close(losses, evaluate(kind, *(x.astype(np.float32) for x in short), bias)[0])
        # Rounding moves each factor by a relative 2^-8 at most, and so a logit by the bound below;
        # log-sum-exp moves no further than its furthest logit, and the target's logit does too.
        products = np.abs(hidden) @ np.abs(table).T
        bound = 2 * (2 * 2**-8 + 2**-16) * products.max(axis=1) * WEIGHTS
        np.testing.assert_array_less(np.abs(losses - exact)[USED], bound[USED])


class ZLossTest(parameterized.TestCase):
    @parameterized.parameters(
        full_softmax_loss, functools.partial(blockwise_softmax_loss, block_size=8)
    )
    def test_adds_the_squared_log_of_the_sum(self, loss):
        def total(hidden, table, bias):
            found = with_z_loss(loss, 0.1)(hidden, TARGETS, WEIGHTS, table, bias, num_valid=V - 3)
            return found.sum(), found

        def expected(hidden, table, bias):
            logits = (hidden @ table.T + bias[None])[:, : V - 3]
            log_z = jax.nn.logsumexp(logits, axis=1)
            found = WEIGHTS * (log_z - logits[np.arange(W), TARGETS] + 0.1 * log_z**2)
            return found.sum(), found

        with_gradient = (jax.jit(jax.grad(f, (0, 1, 2), has_aux=True)) for f in (total, expected))
        found, wanted = (f(*random_inputs()) for f in with_gradient)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, wanted
        )


class KNNSoftmaxTest(parameterized.TestCase):
    def test_it_is_the_softmax_over_the_union(self):
        hidden, table, bias = map(jnp.asarray, random_inputs())

        def loss(k: int, capacity: int, table=table, weights=None) -> jax.Array:
            index = nearest_neighbours(table, k=k, num_valid=V)
            options = {"capacity": capacity, "weights": weights}
            return knn_softmax_loss(hidden, jnp.array(TARGETS), table, bias, index, **options)

        expected = full_softmax_loss(hidden, TARGETS, WEIGHTS, table, bias, num_valid=V)
        np.testing.assert_allclose(loss(V, V, weights=WEIGHTS), expected, rtol=1e-5, atol=1e-6)

        index = np.asarray(nearest_neighbours(table, k=3, num_valid=V))
        union = sorted({*TARGETS.tolist(), *index[TARGETS].ravel().tolist()})
        self.assertLess(len(union), V)
        logits = np.asarray(hidden @ table.T + bias[None])
        of_targets = logits[np.arange(W), TARGETS]
        expected = np.log(np.exp(logits[:, union]).sum(1)) - of_targets
        np.testing.assert_allclose(loss(3, V), expected, rtol=1e-5)
        grads = jax.grad(lambda table: loss(3, V, table).sum())(table)
        touched = np.flatnonzero(np.abs(np.asarray(grads)).sum(1))
        self.assertEqual(touched.tolist(), union)
        # Targets stay if neighbours do not fit.
        self.assertTrue(np.isfinite(loss(3, W)).all())
        with self.assertRaisesRegex(ValueError, "capacity is 2, must be at least 12"):
            loss(3, 2)
