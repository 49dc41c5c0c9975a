"""The strategy hands on to the right loss and refuses settings that cannot work."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.losses import full_softmax_loss
from knn_sampling.output_layer import OutputLayer

W, D, V, NUM_VALID = 6, 4, 24, 21
KNN = OutputLayer(kind="knn", num_valid=NUM_VALID, k=4, capacity=12, refresh_every=10, block_size=8)
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


class OutputLayerTest(parameterized.TestCase):
    def test_full_needs_no_index_and_counts_words_not_padding(self):
        batch = random_batch()
        self.assertFalse(FULL.uses_neighbours)
        result = FULL.loss(**batch, neighbours=None)
        np.testing.assert_array_equal(
            result.losses, full_softmax_loss(**batch, num_valid=NUM_VALID)
        )
        self.assertEqual(result.candidates, NUM_VALID)
        self.assertEqual(result.overflow, 0)

    @parameterized.parameters(V, 10 * V)
    def test_knn_over_all_words_equals_full(self, capacity: int):
        batch = random_batch()
        layer = dataclasses.replace(KNN, k=NUM_VALID, capacity=capacity)
        self.assertTrue(layer.uses_neighbours)
        index = layer.index(batch["table"])
        self.assertEqual(index.shape, (V, NUM_VALID))
        result = layer.loss(**batch, neighbours=index)
        full = FULL.loss(**batch, neighbours=None)
        np.testing.assert_allclose(result.losses, full.losses, rtol=1e-5)
        self.assertEqual(result.candidates, NUM_VALID)
        self.assertEqual(result.overflow, 0)

    def test_knn_reports_its_union_and_what_did_not_fit(self):
        batch = random_batch()
        index = KNN.index(batch["table"])
        targets = np.asarray(batch["targets"])[np.asarray(batch["weights"]) > 0]
        union = set(targets.tolist()) | set(np.asarray(index)[targets].ravel().tolist())
        for capacity in (W, 12, V):
            result = dataclasses.replace(KNN, capacity=capacity).loss(**batch, neighbours=index)
            self.assertEqual(result.candidates, len(union))
            self.assertEqual(result.overflow, max(0, len(union) - capacity))
            self.assertTrue((result.losses[batch["weights"] > 0] > 0).all())
        self.assertGreater(len(union), W)

    @parameterized.parameters(FULL, KNN)
    def test_results_are_float32_scalars_and_losses(self, layer: OutputLayer):
        batch = random_batch()
        index = layer.index(batch["table"]) if layer.uses_neighbours else None
        for cast in (jnp.float32, jnp.bfloat16):
            short = {name: batch[name].astype(cast) for name in ("hidden", "table")}
            result = layer.loss(**(batch | short), neighbours=index)
            self.assertEqual(jax.tree.map(jnp.shape, tuple(result)), ((W,), (), ()))
            self.assertEqual({x.dtype for x in result}, {jnp.dtype(jnp.float32)})

    @parameterized.parameters(FULL, KNN)
    def test_jit_equals_eager(self, layer: OutputLayer):
        batch = random_batch()
        index = layer.index(batch["table"]) if layer.uses_neighbours else None
        eager = layer.loss(**batch, neighbours=index)
        compiled = jax.jit(layer.loss)(**batch, neighbours=index)
        for a, b in zip(compiled, eager, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)

    @parameterized.parameters(
        ({"kind": "softmax"}, r"output_layer.kind is 'softmax', must be one of \('full', 'knn'\)"),
        ({"refresh_every": 0}, "output_layer.refresh_every is 0, must be at least 1"),
        ({"k": 0}, "output_layer.k is 0, must be between 1 and the vocabulary's 21 pieces"),
        ({"k": 22}, "output_layer.k is 22, must be between 1 and the vocabulary's 21 pieces"),
        ({"block_size": 0}, "output_layer.block_size is 0, must be at least 1"),
    )
    def test_settings_that_cannot_work(self, change: dict, message: str):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(KNN, **change)

    def test_full_ignores_the_settings_of_the_index(self):
        dataclasses.replace(FULL, k=0, capacity=0, refresh_every=0, block_size=0)

    def test_capacity_below_the_batch(self):
        batch = random_batch()
        layer = dataclasses.replace(KNN, capacity=W - 1)
        with self.assertRaisesRegex(ValueError, "capacity is 5, .* the 6 masked positions"):
            layer.loss(**batch, neighbours=layer.index(batch["table"]))

    def test_missing_index(self):
        with self.assertRaisesRegex(
            ValueError, "output_layer.kind 'knn' needs the neighbour index"
        ):
            KNN.loss(**random_batch(), neighbours=None)


if __name__ == "__main__":
    absltest.main()
