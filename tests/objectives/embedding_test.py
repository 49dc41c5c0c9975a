"""Loss of sentence vectors against plain loops, and batches in parts and on devices against one."""

import functools
import math

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import factories
from xlm.experiment.fine_tuning import MESH
from xlm.models.encoder import Encoder
from xlm.models.heads import PoolingHead
from xlm.objectives.contrastive import SentenceEmbedding, pair_loss
from xlm.objectives.objective import Batch
from xlm.training import sharding

B, S, L, D = 8, 3, 6, 16
SETTINGS = factories.encoder_settings(hidden_size=D, dropout_rate=0.3, attention_dropout_rate=0.1)
LOSS = functools.partial(pair_loss, temperature=0.2, dimensions=(4, D))


def text_ids() -> np.ndarray:
    """Ids of texts, of which a query, a passage, and a wrong passage come twice."""
    ids = np.arange(B * S, dtype=np.int32).reshape(B, S)
    ids[1, 0], ids[3, 1], ids[5, 2] = ids[0, 0], ids[2, 1], ids[4, 1]
    ids[7, 1] = ids[6, 0]
    return ids


def slowly(vectors, ids, temperature: float, margin: float, sizes) -> list[float]:
    """The loss of each pair, candidate by candidate."""

    def cosine(one, two, size):
        one, two = one[:size], two[:size]
        return float(one @ two / math.sqrt(float(one @ one) * float(two @ two)))

    passages = [(i, 1) for i in range(B)] + [(i, s) for i in range(B) for s in range(2, S)]
    losses = []
    for i in range(B):
        total, mine = 0.0, {ids[i, 0], ids[i, 1]}
        for size in sizes:
            own = (cosine(vectors[i, 0], vectors[i, 1], size) - margin) / temperature
            others = [
                cosine(vectors[i, 0], vectors[j, s], size) / temperature
                for j, s in passages
                if (j, s) != (i, 1) and ids[j, s] not in mine and not (s == 1 and ids[j, 0] in mine)
            ]
            queries = [
                cosine(vectors[j, 0], vectors[i, 1], size) / temperature
                for j in range(B)
                if j != i and ids[j, 0] not in mine and ids[j, 1] not in mine
            ]
            for some in (others, queries):
                total += math.log(math.exp(own) + sum(map(math.exp, some))) - own
        losses.append(total / 2 / len(sizes))
    return losses


def arrays(batch: int = B) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, L + 1, (batch, S, 1))
    index = np.arange(L)
    is_text = (index > 0) & (index < sizes - 1)
    tokens = np.where(index < sizes, rng.integers(5, 30, (batch, S, L)), factories.PAD)
    positions = np.broadcast_to(index, tokens.shape)
    found = {"tokens": tokens, "segments": index < sizes, "positions": positions,
             "text_ids": np.arange(batch * S).reshape(batch, S)}  # fmt: skip
    found = {name: array.astype(np.int32) for name, array in found.items()}
    return {**found, "pooled": is_text, "weights": np.ones(batch, np.float32)}


def objective(num_parts: int, by_rows: bool = False) -> SentenceEmbedding:
    return SentenceEmbedding(Encoder(SETTINGS), PoolingHead(), LOSS, by_rows, num_parts)


@functools.cache
def params():
    return factories.random_params(objective(1), 0.3)


def gradients(one: SentenceEmbedding, key: jax.Array, mesh=None):
    """Loss and gradients of the whole batch, on a mesh if there is one."""

    def loss(values, batch):
        total, weight = one.loss(values, {}, Batch(batch, "examples"), key)[0]["loss"]
        return total / weight

    given = arrays()
    run = jax.value_and_grad(loss)
    if mesh is not None:
        run = sharding.traced_on(mesh, run)
        given = {name: sharding.split(array, mesh) for name, array in given.items()}
    return jax.device_get(jax.jit(run)(params(), given))


class PairLossTest(parameterized.TestCase):
    @parameterized.parameters((0.2, 0.0, ()), (0.5, 0.3, (3, 16)))
    def test_plain_loops_say_the_same(self, temperature, margin, dimensions):
        vectors = np.random.default_rng(0).normal(size=(B, S, D)).astype(np.float32)
        ids, weights = text_ids(), np.arange(B, dtype=np.float32)
        found = pair_loss(
            vectors, {"text_ids": ids, "weights": weights}, temperature=temperature,
            contrast_margin=margin, dimensions=dimensions,
        )  # fmt: skip
        expected = slowly(vectors.astype(float), ids, temperature, margin, dimensions or (D,))
        np.testing.assert_allclose(found["loss"][0], np.dot(expected, weights), rtol=1e-5)
        self.assertEqual(found["loss"][1], weights.sum())

    def test_accuracy_is_of_both_ways(self):
        vectors = np.zeros((3, 2, 4), np.float32)
        vectors[:, 0] = np.eye(3, 4)
        vectors[:, 1] = np.eye(3, 4)[[0, 1, 1]] + 0.1 * np.eye(3, 4)[[2, 2, 0]]
        ids = np.arange(6).reshape(3, 2)
        found = pair_loss(vectors, {"text_ids": ids, "weights": np.ones(3)}, temperature=0.1)
        self.assertEqual(float(found["accuracy"][0]), 2.0)


class PartsTest(parameterized.TestCase):
    def check(self, found, expected):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(expected[1]))
        self.assertGreater(largest, 1e-3)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6 * max(1, largest)),
            found[1], expected[1],
        )  # fmt: skip

    def test_parts_have_the_gradients_of_one_batch(self):
        key, parts, one = jax.random.key(3), 4, objective(1)

        def at_once(values, batch):
            """All states in memory, with the dropout of the parts."""
            texts = {name: x for name, x in batch.items() if np.ndim(x) == 3}
            vectors = [
                one.outputs(values, {name: x[i::parts] for name, x in texts.items()}, part_key)
                for i, part_key in enumerate(jax.random.split(key, parts))
            ]
            together = jax.numpy.stack(vectors, 1).reshape(B, S, D)
            total, weight = LOSS(together, batch)["loss"]
            return total / weight

        expected = jax.device_get(jax.jit(jax.value_and_grad(at_once))(params(), arrays()))
        self.check(gradients(objective(parts), key), expected)
        other = gradients(objective(parts), jax.random.key(4))  # dropout is on
        self.assertGreater(abs(other[0] - expected[0]), 1e-3)

    def test_devices_have_the_gradients_of_one(self):
        key = jax.random.key(3)
        expected = gradients(objective(1), key)
        for devices in (2, 4, 8):
            mesh = sharding.make_mesh(MESH, jax.devices()[:devices])
            with self.subTest(devices):
                self.check(gradients(objective(1), key, mesh), expected)
        mesh = sharding.make_mesh(MESH, jax.devices()[:2])
        self.check(gradients(objective(2), key, mesh), gradients(objective(2), key))

    def test_parts_take_less_memory(self):
        def temporary(num_parts: int) -> int:
            one, batch = objective(num_parts), arrays(64)
            loss = lambda values: one.loss(  # noqa: E731
                values, {}, Batch(batch, ""), jax.random.key(0)
            )[0]["loss"][0]
            compiled = jax.jit(jax.grad(loss)).lower(params()).compile()
            return compiled.memory_analysis().temp_size_in_bytes

        self.assertLess(temporary(16), 0.5 * temporary(1))

    def test_a_batch_that_does_not_divide(self):
        with self.assertRaisesRegex(ValueError, "accumulation_steps is 3, must divide .* is 8"):
            gradients(objective(3), jax.random.key(0))


if __name__ == "__main__":
    absltest.main()
