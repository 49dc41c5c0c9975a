"""Gradient accumulation against whole batches and sums of microbatches; keys of a step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.stream import PACKED
from tests import factories, folders
from tests.training import toy_runs
from xlm.objectives.objective import Batch, Objective, gathered_rows, means
from xlm.objectives.settings import MaskSettings
from xlm.training.accumulation import WHOLE_BATCHES, Accumulation, accumulate
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.settings import MeshSettings, TrainSettings
from xlm.training.sharding import batch_sharding, traced_on
from xlm.training.step import TrainFunctions

V, E, B = 20, 3, 8
SETTINGS = TrainSettings(
    num_steps=8, batch_size=B, log_every=1, evaluate_every=8, checkpoint_every=8
)


class Lookup(Objective):
    """Fits the weighted tokens of a sequence, and one token drawn by the key.

    Its auxiliary state is the number of losses so far, and the last loss.
    """

    tables = ("table",)

    def __init__(self, draws: bool, by_rows: bool = True):
        self.draws, self.by_rows = draws, by_rows

    def init(self, key):
        return {"table": jax.random.normal(key, (V, E)), "scale": jnp.linspace(1.0, 2.0, E)}

    def init_aux_state(self):
        return {"seen": jnp.int32(0), "last": jnp.float32(0)}

    def learn(self, aux_state, observed):
        return {"seen": aux_state["seen"] + 1, "last": observed}

    def plan(self, aux_state, batch, key, step):
        drawn = jax.random.randint(key, (1,), 0, V) if self.draws else jnp.zeros(1, jnp.int32)
        tokens = batch["tokens"]
        if not self.by_rows:
            return (tokens, drawn, batch["target"]), {}
        ids = jnp.unique(jnp.append(tokens, drawn), size=2 * B + 1, fill_value=V)
        find = functools.partial(jnp.searchsorted, ids)
        return (find(tokens), find(drawn), batch["target"]), {"table": ids}

    def loss(self, params, rows, plan, key):
        tokens, drawn, target = plan
        table = rows.get("table", params["table"])
        found = table[tokens].sum(1) + table[drawn]
        weight = (target > 0).astype(jnp.float32)
        losses = jnp.tanh(found @ params["scale"] / 8 - target / 2) ** 2
        total = (losses * weight).sum()
        metrics = {"loss": (total, weight.sum()), "drawn": (drawn[0].astype(jnp.float32), 1.0)}
        return metrics, total


class ShardedLookup(Lookup):
    """The same by shards; a metric has the token that a shard drew in its loss."""

    def example_axes(self, plan, num_shards):
        return 0, None, 0

    def loss(self, params, rows, plan, key):
        metrics, observed = super().loss(params, rows, plan, key)
        return {**metrics, "noise": (jax.random.uniform(key), 1.0)}, observed


def arrays_of(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    target = rng.integers(0, 3, B).astype(np.float32)
    return {"tokens": rng.integers(0, V, (B, 2)).astype(np.int32), "target": target}


class Data(toy_runs.Data):
    def batches(self, steps):
        return (("lookups", arrays_of(step)) for step in steps)


def functions_of(
    objective, accumulation=WHOLE_BATCHES, axes=(1, 1, 1), embedding_update="dense"
) -> TrainFunctions:
    optimizer = factories.optimizer_settings(
        epsilon=0.1, weight_decay=0.1, clip_norm=0.05, embedding_update=embedding_update
    )
    mesh_settings = MeshSettings(*axes, vocab_multiple=1, rules=())
    return factories.train_functions(
        objective, optimizer, mesh_settings, SETTINGS.num_steps, accumulation=accumulation
    )


def run(functions: TrainFunctions, num_steps: int = 3):
    state, metrics = factories.first_state(functions, first_params()), []
    for step in range(num_steps):
        arrays = jax.device_put(arrays_of(step), batch_sharding(functions.mesh))
        batch = Batch(arrays, "lookups")
        state, found = functions.train_step(functions.objective, state, batch)
        metrics.append(means(jax.device_get(found)))
    # No updates are pending, since microbatches read the whole table.
    return state.params, metrics, state.aux_state


@functools.cache
def first_params() -> dict[str, np.ndarray]:
    return jax.device_get(Lookup(draws=False).init(jax.random.key(0)))


@functools.cache
def on_one_device(accumulation: Accumulation, of: type[Lookup] = Lookup, **changes):
    return jax.device_get(run(functions_of(of(**changes), accumulation)))


class AccumulationTest(parameterized.TestCase):
    def assert_equal(self, found, expected):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
            found[0], expected[0],
        )  # fmt: skip
        for a, b in zip(found[1], expected[1], strict=True):
            for name in ("loss", "grad_norm"):
                self.assertAlmostEqual(a[name], b[name], places=5)

    @parameterized.parameters((2, True, "rows"), (4, False, "dense"), (8, True, "dense"))
    def test_parts_are_the_whole(self, num_parts, by_rows, embedding_update):
        objective, parts = Lookup(draws=False, by_rows=by_rows), Accumulation(num_parts, 0)
        expected = on_one_device(WHOLE_BATCHES, draws=False, by_rows=by_rows)
        found = run(functions_of(objective, parts, embedding_update=embedding_update))
        self.assert_equal(found, expected)
        self.assertEqual([m["batch_rows"] for m in found[1]], [B] * 3)
        self.assertEqual((expected[2]["seen"], found[2]["seen"]), (3, 3 * num_parts))
        for name, first in first_params().items():
            self.assertGreater(np.abs(found[0][name] - first).max(), 0.01, name)

    @parameterized.parameters((ShardedLookup, 4), (Lookup, 1))
    def test_each_shard_has_a_key_of_its_own(self, of, num_shards):
        objective, key = of(draws=True), jax.random.key(3)
        mesh = functions_of(objective, axes=(4, 1, 1)).mesh
        accumulated = functools.partial(accumulate, objective, accumulation=Accumulation(2, 0))
        batch = Batch(jax.device_put(arrays_of(0), batch_sharding(mesh)), "lookups")
        args = objective.init(key), objective.init_aux_state(), batch, key, jnp.int32(0)
        metrics = jax.jit(traced_on(mesh, accumulated))(*args)[1]
        self.assertEqual(metrics["drawn"][1], 2 * num_shards)
        if of is ShardedLookup:
            fold_in = jax.vmap(jax.random.fold_in)
            of_parts = fold_in(jnp.stack([key] * 8), np.repeat([0, 1], 4))
            keys = fold_in(of_parts, np.tile(range(4), 2))
            expected = np.sum(jax.vmap(jax.random.uniform)(keys))
            np.testing.assert_allclose(metrics["noise"][0], expected, rtol=1e-5)

    @parameterized.parameters(1, 2, 4)
    def test_each_part_has_a_key_and_weight_of_its_own(self, used):
        # The batch grows over 4 steps, so a step uses `used` of the 4 microbatches.
        objective, key, arrays = Lookup(draws=True), jax.random.key(3), arrays_of(5)
        accumulated = functools.partial(accumulate, objective, accumulation=Accumulation(4, 4))
        args = Batch(arrays, "lookups"), key, jnp.int32(used - 1)
        args = first_params(), objective.init_aux_state(), *args
        grads, metrics, aux_state = jax.jit(accumulated)(*args)

        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def of_part(params, arrays, number):
            part_key = jax.random.fold_in(key, number)
            plan, touched = objective.plan({}, Batch(arrays, "lookups"), part_key, jnp.int32(0))
            found, _ = objective.loss(params, gathered_rows(params, touched), plan, key)
            return found["loss"][0], found

        parts = [{name: x[number::4] for name, x in arrays.items()} for number in range(used)]
        params = jax.tree.map(jnp.asarray, first_params())
        results = [of_part(params, part, number) for number, part in enumerate(parts)]
        losses, drawn = zip(
            *((found["loss"], found["drawn"][0]) for _, found in results), strict=True
        )
        weight = sum(weight for _, weight in losses)
        self.assertEqual(metrics["loss"][1], weight)
        self.assertEqual(metrics["drawn"], (sum(drawn), used))
        self.assertEqual(aux_state["seen"], used)
        np.testing.assert_allclose(aux_state["last"], losses[-1][0], rtol=1e-5)
        expected = jax.tree.map(lambda *x: sum(x) / weight, *(of_this for of_this, _ in results))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
        jax.tree.map(check, grads, expected)

    def test_a_batch_that_cannot_be_cut(self):
        with self.assertRaisesRegex(ValueError, "accumulation_steps is 3, .* one has 8 examples"):
            run(functions_of(Lookup(draws=False), Accumulation(3, 0)), 1)


class WarmUpTest(folders.FolderTest):
    @parameterized.parameters((0, [8] * 8), (4, [2, 4, 6, 8, 8, 8, 8, 8]), (6, [2, 2, 4, 6, 6, 8]))
    def test_the_batch_grows(self, warmup_steps, expected):
        functions = functions_of(Lookup(draws=True), Accumulation(4, warmup_steps))
        train(functions, SETTINGS, self.folder, Data())
        found = [r["train/batch_rows"] for r in read_metrics(self.folder / "metrics.jsonl")]
        self.assertEqual(found[: len(expected)], expected)
        self.assertEqual(found[-1], B)

    def test_it_stays_whole_in_a_long_run(self):
        for step in (10_000, 2**31 - 1):
            self.assertEqual(Accumulation(2048, 10_000).microbatches_at(jnp.int32(step)), 2048)


SOME, ALL = MaskSettings(0.3, 1.0, 0.0), MaskSettings(0.99, 1.0, 0.0)
# Sources of randomness in the loss of a batch, one each: output layer, dropout, masks.
MASKS, DROPOUT, SAMPLES = ("full", 0.0, SOME), ("full", 0.5, ALL), ("nce", 0.0, ALL)
NOTHING = ("full", 0.0, ALL)
TOLERANCE = 1e-4  # for a sum of 40 losses in another order


def losses(random, **kwargs) -> list[float]:
    """Losses of two steps on one batch, for seeds 0, 0 and 1, without learning."""
    kind, dropout_rate, mask = random
    objective = factories.masked_lm(
        factories.output_layer_settings(kind=kind, num_negatives=5),
        factories.encoder_settings(num_layers=0, dropout_rate=dropout_rate),
        mask=mask,
    )
    optimizer = factories.optimizer_settings(learning_rate=0.0)
    functions = factories.train_functions(objective, optimizer, **kwargs)
    params = factories.random_params(objective)
    batch = Batch({"tokens": factories.packed_tokens()}, PACKED)

    @jax.jit
    def two_steps(seed, params, batch):
        def step(state, _):
            state, metrics = functions.train_step(objective, state, batch)
            return state, metrics["loss"][0]

        first = dataclasses.replace(functions.init(seed), params=params)
        return jax.lax.scan(step, first, length=2)[1]

    found = [two_steps(np.int32(seed), params, batch) for seed in (0, 0, 1)]
    return np.concatenate(found).tolist()


class KeysTest(parameterized.TestCase):
    @parameterized.parameters(
        (MASKS, {}), (DROPOUT, {"prng": "rbg"}), (SAMPLES, {"accumulation": Accumulation(2, 0)})
    )
    def test_every_step_and_seed_has_a_key_of_its_own(self, random, changes):
        found = losses(random, **changes)
        self.assertEqual(found[:2], found[2:4])
        distances = np.diff(np.sort(found[2:]))
        self.assertGreater(distances.min(), 10 * TOLERANCE)

    def test_the_key_is_all_that_is_random(self):
        # Otherwise the test above could not attribute its differences.
        self.assertLess(np.ptp(losses(NOTHING)), TOLERANCE)
