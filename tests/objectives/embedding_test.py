"""Loss of sentence vectors against plain loops, and batches in parts and on devices against one."""

import functools
import math

import jax
import numpy as np
from absl.testing import parameterized
from jax.flatten_util import ravel_pytree

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


def slowly(vectors, ids, temperature: float, margin: float, sizes) -> tuple[list, list]:
    """Loss and hits of each pair, candidate by candidate."""
    passages = [(i, 1) for i in range(B)] + [(i, s) for i in range(B) for s in range(2, S)]
    losses, hits = [], []
    for i in range(B):
        mine, found = set(ids[i, :2]), []
        for size in sizes:

            def score(j, s, size=size):
                one, two = vectors[j, 0, :size], vectors[s][:size]
                return one @ two / math.sqrt((one @ one) * (two @ two)) / temperature

            own = score(i, (i, 1)) - margin / temperature
            others = [score(i, (j, s)) for j, s in passages
                      if not mine & {ids[j, s], *(ids[j, :2] if s == 1 else ())}]  # fmt: skip
            queries = [score(j, (i, 1)) for j in range(B) if not mine & set(ids[j, :2])]
            for some in (others, queries):
                loss = math.log(math.exp(own) + sum(map(math.exp, some))) - own
                found.append((loss, own > max(some)))
        losses.append(np.mean([loss for loss, _ in found]))
        hits.append(np.mean([hit for _, hit in found[-2:]]))
    return losses, hits


def arrays(batch: int = B) -> dict[str, np.ndarray]:
    """Examples of which the seventh is the first one again, and so on."""
    rng = np.random.default_rng(0)
    sizes, index = rng.integers(3, L + 1, (batch, S, 1)), np.arange(L, dtype=np.int32)
    tokens = np.where(index < sizes, rng.integers(5, 30, (batch, S, L)), factories.PAD)
    return {
        "tokens": tokens.astype(np.int32), "segments": (index < sizes).astype(np.int32),
        "positions": np.broadcast_to(index, tokens.shape), "pooled": (index < sizes) & (index > 0),
        "text_ids": np.arange(batch * S, dtype=np.int32).reshape(batch, S) % (6 * S),
        "weights": np.ones(batch, np.float32),
    }  # fmt: skip


def objective(num_parts: int, by_rows: bool = False) -> SentenceEmbedding:
    return SentenceEmbedding(
        Encoder(SETTINGS), PoolingHead(), LOSS, by_rows, num_microbatches=num_parts
    )


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
        vectors[:3, 1] += vectors[:3, 0]  # pairs that find each other
        ids, weights = arrays()["text_ids"], np.arange(B, dtype=np.float32)
        ids[7, 1] = ids[3, 0]
        found = pair_loss(
            vectors, {"text_ids": ids, "weights": weights}, temperature=temperature,
            contrast_margin=margin, dimensions=dimensions,
        )  # fmt: skip
        expected = slowly(vectors.astype(float), ids, temperature, margin, dimensions or (D,))
        for name, of_pairs in zip(("loss", "accuracy"), expected, strict=True):
            np.testing.assert_allclose(found[name][0], np.dot(of_pairs, weights), rtol=1e-5)
            self.assertEqual(found[name][1], weights.sum())


class PartsTest(parameterized.TestCase):
    def check(self, found, expected):
        found, expected = (ravel_pytree(one)[0] for one in (found, expected))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        self.assertGreater(np.abs(expected[:-1]).max(), 1e-2)

    def test_parts_have_the_gradients_of_one_batch(self):
        key, parts, one = jax.random.key(3), 4, objective(1)

        def at_once(values, batch):
            """All states in memory, with the dropout of the parts."""
            texts = {name: x for name, x in batch.items() if np.ndim(x) == 3}
            keys = enumerate(jax.random.split(key, parts))
            part = lambda i: {name: x[i::parts] for name, x in texts.items()}  # noqa: E731
            found = [one.outputs(values, part(i), part_key) for i, part_key in keys]
            total, weight = LOSS(jax.numpy.stack(found, 1).reshape(B, S, D), batch)["loss"]
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
            self.check(gradients(objective(1), key, mesh), expected)
        mesh = sharding.make_mesh(MESH, jax.devices()[:2])
        self.check(gradients(objective(2), key, mesh), gradients(objective(2), key))

    def test_parts_take_less_memory(self):
        def temporary(num_parts: int) -> int:
            one, batch = objective(num_parts), arrays(64)

            def loss(values):
                return one.loss(values, {}, Batch(batch, ""), jax.random.key(0))[0]["loss"][0]

            done = jax.jit(jax.grad(loss)).lower(params()).compile()
            return done.memory_analysis().temp_size_in_bytes

        self.assertLess(temporary(16), 0.5 * temporary(1))
