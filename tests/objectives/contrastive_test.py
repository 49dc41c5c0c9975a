"""Contrasts against plain loops: of two languages, and of sentence vectors by parts, on devices."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.flatten_util import ravel_pytree

from input_pipeline.bitext import SEPARATE_PAIRS
from input_pipeline.stream import PACKED
from tests import factories
from tests.factories import BOS, EOS, PAD, SPECIAL, packed_tokens
from xlm.experiment.fine_tuning import MESH
from xlm.models.encoder import Encoder
from xlm.models.heads import PoolingHead
from xlm.models.segments import packed_segments
from xlm.objectives.contrastive import (
    SentenceContrast,
    SentenceEmbedding,
    contrastive_loss,
    pair_loss,
)
from xlm.objectives.objective import Batch
from xlm.objectives.settings import ContrastSettings
from xlm.training import sharding

NUM, WIDTH = 5, 7
CONTRAST = ContrastSettings(weight=0.5, temperature=0.1)


def random_vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(NUM, WIDTH)).astype(np.float32)


def both_ways(one: np.ndarray, two: np.ndarray, temperature: float) -> tuple[list, list]:
    def cosine(a, b) -> float:
        return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))

    losses, accuracies = [], []
    for i in range(NUM):
        loss, right = 0.0, 0.0
        for query, others in ((one[i], two), (two[i], one)):
            scores = [cosine(query, other) / temperature for other in others]
            loss -= scores[i] - math.log(sum(math.exp(x) for x in scores))
            right += scores[i] == max(scores)
        losses.append(loss / 2)
        accuracies.append(right / 2)
    return losses, accuracies


contrast = jax.jit(contrastive_loss)


class ContrastiveLossTest(parameterized.TestCase):
    @parameterized.parameters(1.0, 0.2, 0.05)
    def test_plain_loops_say_the_same(self, temperature):
        one, two = random_vectors(0), random_vectors(1)
        two[:2] += 4 * one[:2]  # two pairs that match each other
        losses, accuracies = jax.device_get(contrast(one, two, temperature))
        expected = both_ways(one.astype(np.float64), two.astype(np.float64), temperature)
        # A small loss is a difference of scores of up to 1 / temperature.
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5, atol=1e-6 / temperature)
        np.testing.assert_array_equal(accuracies, expected[1])
        self.assertBetween(float(accuracies.mean()), 0.4, 0.9)

    def test_a_sentence_without_text_breaks_nothing(self):
        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def differentiated(one):
            losses, _ = contrastive_loss(one, random_vectors(1), 0.1)
            return losses.sum(), losses

        one = random_vectors(0)
        one[2] = 0
        gradient, losses = differentiated(one)
        self.assertTrue(np.isfinite(losses).all())
        self.assertTrue(np.isfinite(gradient).all())


class SentenceContrastTest(absltest.TestCase):
    SENTENCES = (slice(0, 6), slice(6, 14))  # of `packed_tokens`

    def test_the_loss_is_of_each_sentence_and_their_contrast(self):
        full = factories.output_layer_settings(kind="full")
        objective = SentenceContrast(factories.masked_lm(full), CONTRAST)
        params, key = factories.random_params(objective), jax.random.key(7)
        tokens = packed_tokens()
        tokens[0, 9:] = [EOS] + [PAD] * 6  # fewer masked tokens, but equal weight of its pair
        segments, positions = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
        pairs = {"tokens": tokens, "segments": segments, "positions": positions}

        @functools.partial(jax.jit, static_argnums=0)
        def of_step(objective, params, batch: Batch):
            plan, _ = objective.plan({}, batch, key, jnp.int32(0))
            return plan, objective.loss(params, {}, plan, None)[0]

        plan, found = jax.device_get(of_step(objective, params, Batch(pairs, SEPARATE_PAIRS)))
        packed = factories.masked_lm(full)
        _, alike = of_step(packed, params, Batch({"tokens": tokens}, PACKED))
        np.testing.assert_allclose(found["separate_mlm_loss"], alike["loss"], rtol=1e-6)

        vectors = [self.alone(params, plan.masked.inputs[:, at]) for at in self.SENTENCES]
        losses, accuracies = jax.device_get(contrast(*vectors, CONTRAST.temperature))
        masked = plan.masked.weights.sum(axis=1)
        self.assertGreater(len(set(masked.tolist())), 1)
        expected = masked.sum() * losses.mean(), masked.sum() * accuracies.mean()
        np.testing.assert_allclose(found["contrast_loss"][0], expected[0], rtol=1e-4)
        np.testing.assert_allclose(found["contrast_accuracy"][0], expected[1], rtol=1e-6)
        total = found["separate_mlm_loss"][0] + CONTRAST.weight * found["contrast_loss"][0]
        np.testing.assert_allclose(found["loss"][0], total, rtol=1e-6)
        for name in ("loss", "separate_mlm_loss", "contrast_loss", "contrast_accuracy"):
            self.assertEqual(found[name][1], masked.sum())

    @staticmethod
    def alone(params, sentences: np.ndarray) -> np.ndarray:
        """Mean state of each sentence's text, from a batch of only those sentences."""
        encoder = factories.masked_lm().encoder
        encode = functools.partial(encoder.apply, deterministic=True, method="encode")
        is_text = ~np.isin(sentences, SPECIAL)
        places = np.broadcast_to(np.arange(sentences.shape[1]), sentences.shape)
        segments = np.asarray(sentences != PAD, np.int32)
        states = np.asarray(jax.jit(encode)({"params": params}, sentences, segments, places))
        return np.stack([states[i][row].mean(axis=0) for i, row in enumerate(is_text)])


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
    """Examples whose text ids repeat after six."""
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
    """Loss and gradients of the whole batch, on the mesh if given."""

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
            """Loss with all states in memory, with the dropout of the parts."""
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
