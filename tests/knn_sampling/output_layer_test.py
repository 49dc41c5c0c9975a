"""The strategy hands on to the right loss and refuses settings that cannot work."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.candidates import union_of_neighbours
from knn_sampling.losses import candidate_softmax_loss, full_softmax_loss
from knn_sampling.neighbours import NeighbourIndex, log_inclusion, nearest_neighbours
from knn_sampling.output_layer import OutputLayer, OutputLoss

W, D, V, NUM_VALID = 6, 4, 24, 21
KNN = OutputLayer(
    kind="knn",
    num_valid=NUM_VALID,
    k=4,
    capacity=12,
    refresh_every=10,
    block_size=8,
    log_q_correction=False,
    exact_fraction=0.0,
    frequency_bias=False,
)
CORRECTED = dataclasses.replace(KNN, log_q_correction=True)
FULL = dataclasses.replace(KNN, kind="full")


def random_batch() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {
        "hidden": jnp.asarray(rng.normal(size=(W, D)), jnp.float32),
        "targets": jnp.asarray(rng.integers(0, NUM_VALID, W), jnp.int32),
        "weights": jnp.array([1.0, 1, 0, 1, 1, 0.5]),
        "table": jnp.asarray(rng.normal(size=(V, D)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=V), jnp.float32),
    }


def probabilities() -> jax.Array:
    """How often each word is a target: never, for padding."""
    counts = np.append(np.random.default_rng(1).random(NUM_VALID), np.zeros(V - NUM_VALID))
    return jnp.asarray(counts / counts.sum(), jnp.float32)


def index_of(layer: OutputLayer) -> NeighbourIndex:
    return layer.index(random_batch()["table"], probabilities(), W)


def loss_of(layer: OutputLayer, batch, index=None, exact: bool = False) -> OutputLoss:
    return jax.jit(layer.loss, static_argnames="exact")(**batch, index=index, exact=exact)


class OutputLayerTest(parameterized.TestCase):
    @parameterized.parameters((FULL, False), (KNN, True))
    def test_full_needs_no_index_and_counts_words_not_padding(self, layer, exact: bool):
        batch = random_batch()
        result = loss_of(layer, batch, exact=exact)
        expected = full_softmax_loss(**batch, num_valid=NUM_VALID)
        np.testing.assert_allclose(result.losses, expected, rtol=1e-6)
        self.assertEqual(result.candidates, NUM_VALID)
        self.assertEqual(result.overflow, 0)

    @parameterized.parameters((KNN, V), (KNN, 10 * V), (CORRECTED, V))
    def test_knn_over_all_words_equals_full(self, layer: OutputLayer, capacity: int):
        batch = random_batch()
        layer = dataclasses.replace(layer, k=NUM_VALID, capacity=capacity)
        result = loss_of(layer, batch, index_of(layer))
        full = full_softmax_loss(**batch, num_valid=NUM_VALID)
        np.testing.assert_allclose(result.losses, full, rtol=1e-5)
        self.assertEqual(result.candidates, NUM_VALID)
        self.assertEqual(result.overflow, 0)

    @parameterized.parameters(W, V)
    def test_knn_reports_its_union_and_what_did_not_fit(self, capacity: int):
        batch, index = random_batch(), index_of(KNN)
        targets = np.asarray(batch["targets"])[np.asarray(batch["weights"]) > 0]
        union = set(targets.tolist()) | set(np.asarray(index.neighbours)[targets].ravel().tolist())
        self.assertBetween(len(union), W + 1, V)
        result = loss_of(dataclasses.replace(KNN, capacity=capacity), batch, index)
        self.assertEqual(result.candidates, len(union))
        self.assertEqual(result.overflow, max(0, len(union) - capacity))

    def test_correction_takes_log_q_from_the_logits(self):
        batch, index = random_batch(), index_of(CORRECTED)
        log_q = jax.jit(log_inclusion, static_argnums=2)(index.neighbours, probabilities(), W)
        np.testing.assert_allclose(index.log_inclusion, log_q, rtol=1e-6)

        @jax.jit
        def expected_of(bias: jax.Array) -> jax.Array:
            hidden, targets, weights, table, _ = batch.values()
            candidates = union_of_neighbours(index.neighbours, targets, weights, KNN.capacity)
            return candidate_softmax_loss(hidden, weights, table, bias, candidates)

        corrected = loss_of(CORRECTED, batch, index).losses
        expected = expected_of(batch["bias"] - index.log_inclusion)
        np.testing.assert_allclose(corrected, expected, rtol=1e-6)
        plain = loss_of(KNN, batch, index_of(KNN)).losses
        np.testing.assert_allclose(plain, expected_of(batch["bias"]), rtol=1e-6)
        self.assertGreater(jnp.abs(corrected - plain).max(), 0.01)

    @parameterized.parameters(KNN, CORRECTED)
    def test_index_has_the_neighbours_and_the_shapes_of_an_empty_one(self, layer: OutputLayer):
        index = index_of(layer)
        table = random_batch()["table"]
        expected = nearest_neighbours(table, k=layer.k, num_valid=NUM_VALID)
        np.testing.assert_array_equal(index.neighbours, expected)
        shapes, empty = (jax.eval_shape(lambda x=x: x) for x in (index, layer.empty_index(V)))
        self.assertEqual(shapes, empty)
        self.assertIsNone(FULL.empty_index(V))

    @parameterized.parameters(FULL, KNN, CORRECTED)
    def test_results_are_float32_for_bfloat16_inputs(self, layer: OutputLayer):
        batch = random_batch()
        index = index_of(layer) if layer.uses_neighbours else None
        short = {name: batch[name].astype(jnp.bfloat16) for name in ("hidden", "table")}
        result = loss_of(layer, batch | short, index)
        self.assertEqual(jax.tree.map(jnp.shape, tuple(result)), ((W,), (), ()))
        self.assertEqual({x.dtype for x in result}, {jnp.dtype(jnp.float32)})

    @parameterized.parameters(
        ({"kind": "softmax"}, r"output_layer.kind is 'softmax', must be one of \('full', 'knn'\)"),
        ({"refresh_every": 0}, "output_layer.refresh_every is 0, must be at least 1"),
        ({"k": 0}, "output_layer.k is 0, must be between 1 and the vocabulary's 21 pieces"),
        ({"k": 22}, "output_layer.k is 22, must be between 1 and the vocabulary's 21 pieces"),
        ({"block_size": 0}, "output_layer.block_size is 0, must be at least 1"),
        ({"exact_fraction": 1.5}, "output_layer.exact_fraction is 1.5, must be between 0 and 1"),
        ({"exact_fraction": -0.1}, "output_layer.exact_fraction is -0.1, must be between 0 and 1"),
    )
    def test_settings_that_cannot_work(self, change: dict, message: str):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(KNN, **change)

    def test_full_ignores_the_settings_of_the_index(self):
        dataclasses.replace(FULL, k=0, capacity=0, refresh_every=0, block_size=0)

    def test_capacity_below_the_batch(self):
        layer = dataclasses.replace(KNN, capacity=W - 1)
        with self.assertRaisesRegex(ValueError, "capacity is 5, .* the 6 masked positions"):
            loss_of(layer, random_batch(), index_of(layer))

    def test_missing_index(self):
        with self.assertRaisesRegex(
            ValueError, "output_layer.kind 'knn' needs the neighbour index"
        ):
            loss_of(KNN, random_batch())


if __name__ == "__main__":
    absltest.main()
