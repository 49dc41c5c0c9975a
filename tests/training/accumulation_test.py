"""Batches in parts against whole ones, and against the sum of their parts one by one."""

import functools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import factories
from xlm.objectives.objective import Batch, Objective, gathered_rows, means
from xlm.training.accumulation import WHOLE_BATCHES, Accumulation, accumulate
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.settings import MeshSettings, TrainSettings
from xlm.training.sharding import batch_sharding, traced_on
from xlm.training.step import TrainFunctions

V, E, B = 20, 3, 8
SETTINGS = TrainSettings(
    num_steps=8, batch_size=B, seed=0, log_every=1, evaluate_every=8, checkpoint_every=8,
    keep_checkpoints=1,
)  # fmt: skip


class Lookup(Objective):
    """Fits the tokens of a sequence, of which some weigh nothing, and one more that the key draws.

    Learns besides parameters how many losses it has seen, and the last of them.
    """

    tables = ("table",)

    def __init__(self, draws: bool, by_rows: bool = True):
        self.draws, self.by_rows = draws, by_rows

    def init(self, key):
        return {"table": jax.random.normal(key, (V, E)), "scale": jnp.linspace(1.0, 2.0, E)}

    def init_extra(self):
        return {"seen": jnp.int32(0), "last": jnp.float32(0)}

    def learn(self, extra, observed):
        return {"seen": extra["seen"] + 1, "last": observed}

    def plan(self, extra, batch, key, step):
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
    """The same, taken shard by shard; a metric says what a shard drew in its loss."""

    def example_axes(self, plan, num_shards):
        return 0, None, 0

    def loss(self, params, rows, plan, key):
        metrics, observed = super().loss(params, rows, plan, key)
        return {**metrics, "noise": (jax.random.uniform(key), 1.0)}, observed


def arrays_of(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    target = rng.integers(0, 3, B).astype(np.float32)
    return {"tokens": rng.integers(0, V, (B, 2)).astype(np.int32), "target": target}


class Data:
    def batches(self, steps):
        return (("lookups", arrays_of(step)) for step in steps)

    def step_values(self, step):
        return {}


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
    """Parameters after some steps, the metrics of each, and the extra state."""
    state, metrics = factories.first_state(functions, first_params()), []
    for step in range(num_steps):
        arrays = jax.device_put(arrays_of(step), batch_sharding(functions.mesh))
        batch = Batch(arrays, "lookups")
        state, found = functions.train_step(functions.objective, state, batch)
        metrics.append(means(jax.device_get(found)))
    # No updates are pending, as parts read the whole table.
    return state.params, metrics, state.extra


@functools.cache
def first_params() -> dict[str, np.ndarray]:
    return jax.device_get(Lookup(draws=False).init(jax.random.key(0)))


@functools.cache
def on_one_device(accumulation: Accumulation, of: type[Lookup] = Lookup, **changes):
    """Results of `run`."""
    return jax.device_get(run(functions_of(of(**changes), accumulation)))


@functools.cache
def in_four_parts() -> list:
    """Results of `accumulate` at each of 4 steps in which the batch grows, and of parts alone."""
    objective, key, steps = Lookup(draws=True), jax.random.key(3), np.arange(4, dtype=np.int32)
    params, extra, arrays = objective.init(key), objective.init_extra(), arrays_of(5)

    @jax.jit
    def accumulated(step):
        batch = Batch(arrays, "lookups")
        return accumulate(objective, params, extra, batch, key, step, Accumulation(4, 4))

    @jax.jit
    @jax.vmap
    def of_part(arrays, number):
        part_key = jax.random.fold_in(key, number)
        plan, touched = objective.plan({}, Batch(arrays, "lookups"), part_key, jnp.int32(0))

        def loss(params):
            rows = params["table"].at[touched["table"]].get(mode="fill", fill_value=0)
            found = objective.loss(params, {"table": rows}, plan, key)[0]
            return found["loss"][0], found

        return jax.grad(loss, has_aux=True)(params)

    split = {name: np.stack([array[n::4] for n in steps]) for name, array in arrays.items()}
    stacked = jax.device_get(of_part(split, steps))
    parts = [jax.tree.map(lambda x, n=n: x[n], stacked) for n in steps]
    return [(jax.device_get(accumulated(step)), parts) for step in steps]


class AccumulationTest(parameterized.TestCase):
    def assert_equal(self, found, expected):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
            found[0], expected[0],
        )  # fmt: skip
        for a, b in zip(found[1], expected[1], strict=True):
            for name in ("loss", "grad_norm"):
                self.assertAlmostEqual(a[name], b[name], places=5)

    @parameterized.product(
        num_parts=(2, 4, 8), by_rows=(True, False), embedding_update=("dense", "rows")
    )
    def test_parts_are_the_whole(self, num_parts, by_rows, embedding_update):
        objective = Lookup(draws=False, by_rows=by_rows)
        expected = on_one_device(WHOLE_BATCHES, draws=False, by_rows=by_rows)
        found = run(
            functions_of(objective, Accumulation(num_parts, 0), embedding_update=embedding_update)
        )
        self.assert_equal(found, expected)
        self.assertEqual([m["batch_rows"] for m in found[1]], [B] * 3)
        self.assertEqual((expected[2]["seen"], found[2]["seen"]), (3, 3 * num_parts))
        for name, change in jax.tree.map(
            lambda a, b: np.abs(a - b).max(), found[0], first_params()
        ).items():
            self.assertGreater(change, 0.01, name)

    @parameterized.parameters(
        (Lookup, (2, 2, 1), 0, "rows"),
        (Lookup, (4, 1, 2), 2, "dense"),
        (ShardedLookup, (4, 1, 2), 0, "dense"),
        (ShardedLookup, (2, 2, 1), 2, "rows"),
    )
    def test_devices_do_not_change_it(self, of, axes, warmup_steps, embedding_update):
        objective, accumulation = of(draws=True), Accumulation(2, warmup_steps)
        expected = on_one_device(accumulation, of, draws=True)
        found = run(functions_of(objective, accumulation, axes, embedding_update))
        self.assert_equal(found, expected)
        np.testing.assert_allclose(found[2]["last"], expected[2]["last"], rtol=1e-5)
        self.assertEqual((found[2]["seen"], expected[2]["seen"]), (6 - bool(warmup_steps),) * 2)

    @parameterized.parameters((ShardedLookup, 4), (Lookup, 1))
    def test_each_shard_has_a_key_of_its_own(self, of, num_shards):
        objective, key = of(draws=True), jax.random.key(3)
        mesh = functions_of(objective, axes=(4, 1, 1)).mesh
        accumulated = functools.partial(accumulate, objective, accumulation=Accumulation(2, 0))
        batch = Batch(jax.device_put(arrays_of(0), batch_sharding(mesh)), "lookups")
        args = objective.init(key), objective.init_extra(), batch, key, jnp.int32(0)
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
        # Of the 4 parts, `used` are in use at a step when the batch grows in 4 steps.
        (grads, metrics, extra), parts = in_four_parts()[used - 1]
        total, weight, drawn = jax.tree.map(np.zeros_like, grads), 0.0, []
        for of_this, found in parts[:used]:
            total = jax.tree.map(np.add, total, of_this)
            last, part_weight = found["loss"]
            weight += part_weight
            drawn.append(float(found["drawn"][0]))
        self.assertEqual(metrics["loss"][1], weight)
        self.assertEqual(metrics["drawn"], (sum(drawn), used))
        self.assertEqual(extra["seen"], used)
        np.testing.assert_allclose(extra["last"], last, rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b / weight, rtol=1e-5, atol=1e-7),
            grads, total,
        )  # fmt: skip

    def test_a_batch_that_cannot_be_cut(self):
        with self.assertRaisesRegex(ValueError, "accumulation_steps is 3, .* one of 8 examples"):
            run(functions_of(Lookup(draws=False), Accumulation(3, 0)), 1)
        with self.assertRaisesRegex(ValueError, "accumulation_steps is 3, must divide .* 8"):
            TrainSettings(**{**vars(SETTINGS), "accumulation_steps": 3})
        with self.assertRaisesRegex(ValueError, "batch_warmup_steps is 5, but a batch has one"):
            TrainSettings(**{**vars(SETTINGS), "batch_warmup_steps": 5})


class WarmUpTest(parameterized.TestCase):
    @parameterized.parameters((0, [8] * 8), (4, [2, 4, 6, 8, 8, 8, 8, 8]), (6, [2, 2, 4, 6, 6, 8]))
    def test_the_batch_grows(self, warmup_steps, expected):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        train(
            functions_of(Lookup(draws=True), Accumulation(4, warmup_steps)),
            SETTINGS,
            folder,
            Data(),
        )
        found = [r["train/batch_rows"] for r in read_metrics(folder / "metrics.jsonl")]
        self.assertEqual(found[: len(expected)], expected)
        self.assertEqual(found[-1], B)

    def test_it_stays_whole_in_a_long_run(self):
        for step in (10_000, 2**20, 2**31 - 1):
            parts = Accumulation(2048, 10_000).parts_at(jnp.int32(step))
            self.assertEqual(parts, 2048)


class MaskedLMTest(absltest.TestCase):
    def test_a_model_takes_batches_in_parts(self):
        objective = factories.masked_lm(factories.output_layer_settings(k=2))
        tokens = factories.packed_tokens()
        tokens[1, 6:] = factories.PAD  # so that the second part has fewer targets
        batch = Batch({"tokens": tokens}, "packed")

        @jax.jit
        def parts_and_whole(params, batch):
            key, step = jax.random.key(1), jnp.int32(0)
            extra, _ = objective.refresh(params, objective.init_extra(), objective.due(0), step)
            plan, touched = objective.plan(extra, batch, key, step)
            rows = gathered_rows(params, touched)
            grads, parts, _ = accumulate(
                objective, params, extra, batch, key, step, Accumulation(2, 0)
            )
            return grads, parts, objective.loss(params, rows, plan, key)[0]

        params = factories.random_params(objective)
        grads, found, expected = jax.device_get(parts_and_whole(params, batch))
        for grad in jax.tree.leaves(grads):
            self.assertTrue(np.isfinite(grad).all())
        # As many targets, and a V' of its own for each part, of fewer tokens.
        self.assertEqual(found["loss"][1], expected["loss"][1])
        self.assertLess(means(found)["candidates"], 0.9 * means(expected)["candidates"])


if __name__ == "__main__":
    absltest.main()
