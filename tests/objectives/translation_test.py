"""The loss of a translation: definition and dependences."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from tests.evaluation.translating_test import ALL, PAD, PIECES, SHALLOW, features, model, params
from xlm.objectives.objective import Batch

LENGTH = 12
LAYERS = (FullSoftmax, BlockwiseSoftmax)


@functools.cache
def batch() -> dict[str, np.ndarray]:
    """Two examples, and an empty one of weight zero."""
    some = [
        dataclasses.replace(one, target=np.array([*target, 2], np.int32))
        for one, target in zip(features((7, 3)), ([9, 8, 7, 6, 5], [30, 31]), strict=True)
    ]
    rows = [one.arrays(LENGTH, PAD) for one in some]
    fill = {"tokens": PAD, "target_inputs": PAD, "target_outputs": -1}
    rows.append({name: np.full_like(x, fill.get(name, 0)) for name, x in rows[0].items()})
    arrays = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return {**arrays, "weights": np.array([1, 1, 0], np.float32)}


def loss(one, values, arrays, key=None):
    return one.loss(values, {}, Batch(arrays, "examples"), key)[0]


@functools.partial(jax.jit, static_argnums=0)
def of_layers(settings, values):
    one = model(settings)
    layers = [dataclasses.replace(one, output_layer=layer(PIECES)) for layer in LAYERS]
    return one.hidden(values, batch()), [loss(layer, values, batch()) for layer in layers]


class LossTest(parameterized.TestCase):
    @parameterized.parameters(ALL[0], ALL[4])
    def test_against_the_definition(self, settings):
        values = jax.device_get(params(settings))
        hidden, losses = jax.device_get(of_layers(settings, values))
        table, bias = (np.asarray(x, np.float64) for x in model(settings).output_table(values))
        logits = (hidden.astype(np.float64) @ table.T + bias)[..., :PIECES]
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        nll = smooth = count = 0
        for i, j in np.argwhere(batch()["target_outputs"] >= 0):
            label = batch()["target_outputs"][i, j]
            nll -= log_probs[i, j, label]
            smooth -= 0.9 * log_probs[i, j, label] + 0.1 * log_probs[i, j].mean()
            count += 1
        self.assertEqual(count, 9)
        for found in losses:
            for name, expected in (("nll", nll), ("loss", smooth)):
                np.testing.assert_allclose(found[name][0], expected, rtol=1e-5)
                self.assertEqual(found[name][1], count)

    def test_a_token_sees_the_source_and_the_tokens_before_it(self):
        values, hidden_of = params(ALL[0]), jax.jit(model(ALL[0]).hidden)
        hidden = np.asarray(hidden_of(values, batch()))

        def changed(name: str, row: int, column: int) -> np.ndarray:
            arrays = dict(batch())
            arrays[name] = arrays[name].copy()
            arrays[name][row, column] = 12
            found = np.asarray(hidden_of(values, arrays))
            return np.abs(found - hidden).max(axis=-1) > 1e-6

        by_target = changed("target_inputs", 0, 3)
        np.testing.assert_array_equal(by_target[0], np.arange(LENGTH) >= 3)
        self.assertFalse(by_target[1:].any())
        by_source = changed("tokens", 0, 4)
        self.assertTrue(by_source[0].all())
        self.assertFalse(by_source[1:].any())
        self.assertFalse(changed("tokens", 1, 7).any())  # padding

    def test_embeddings_are_shared_and_symbols_are_no_classes(self):
        one, values = model(SHALLOW[0]), params(SHALLOW[0])
        grads = jax.jit(jax.grad(lambda x: loss(one, x, batch())["loss"][0]))(values)
        grads = jax.device_get(grads)
        self.assertNotIn("embeddings", grads["decoder"])
        of_rows = np.abs(grads["encoder"]["embeddings"]["table"]).max(axis=1) > 0
        self.assertTrue(of_rows[:PIECES].all())  # the softmax reads all of them
        symbols = set(batch()["target_inputs"][:2, 0].tolist())
        self.assertEqual(set(np.flatnonzero(of_rows[PIECES:]) + PIECES), symbols)
        self.assertFalse(grads["decoder"]["head"]["bias"][PIECES:].any())

    def test_dropout_depends_on_the_key(self):
        settings = dataclasses.replace(SHALLOW[0], dropout_rate=0.3)
        one, values = model(settings), params(SHALLOW[0])
        of_key = jax.jit(lambda values, key: loss(one, values, batch(), key)["loss"][0])
        losses = [float(of_key(values, key)) for key in (None, *map(jax.random.key, (0, 0, 1)))]
        self.assertEqual(losses[1], losses[2])
        self.assertLen(set(losses), 3)

    def test_parameters(self):
        found = nn.unbox(jax.eval_shape(model(ALL[4]).init, jax.random.key(0)))
        expected = jax.tree.map(jnp.shape, params(ALL[4]))
        self.assertEqual(jax.tree.map(jnp.shape, found), expected)
