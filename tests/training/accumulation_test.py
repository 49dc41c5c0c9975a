"""Batches in parts against whole ones, and against the sum of their parts one by one."""

import functools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from builders import model as builders
from objectives.sums import means
from tests.training import program_test
from training.accumulation import WHOLE_BATCHES, Accumulation, accumulate
from training.loop import train
from training.metrics import read_metrics
from training.optimizer import OptimizerSettings, rows_of
from training.settings import TrainSettings
from training.sharding import MeshSettings, batch_sharding, make_mesh
from training.step import Program, make_program

V, E, B = 20, 3, 8
SETTINGS = TrainSettings(
    num_steps=8, batch_size=B, seed=0, log_every=1, evaluate_every=8, checkpoint_every=8,
    keep_checkpoints=1,
)  # fmt: skip
OPTIMIZER = OptimizerSettings(
    learning_rate=0.1, warmup_steps=0, decay_power=1.0, beta1=0.9, beta2=0.98, epsilon=0.1,
    weight_decay=0.1, clip_norm=0.05, embedding_update="dense",
)  # fmt: skip


class Lookup:
    """Fits the words of a row, of which some weigh nothing, and one more that the key draws."""

    table = ("table",)
    refresh_every = 0
    rolling_refresh = False
    exact_fraction = 0.0

    def __init__(self, draws: bool, by_rows: bool = True):
        self.draws, self.by_rows = draws, by_rows

    def init(self, key, length):
        return {
            "table": jax.random.normal(key, (V, E)),
            "scale": jnp.linspace(1.0, 2.0, E),
        }

    def empty_index(self):
        return None

    def prepare(self, index, batch, key, *, exact):
        drawn = jax.random.randint(key, (1,), 0, V) if self.draws else jnp.zeros(1, jnp.int32)
        tokens = batch["tokens"]
        if not self.by_rows:
            return (tokens, drawn, batch["target"]), None
        ids = jnp.unique(jnp.append(tokens, drawn), size=2 * B + 1, fill_value=V)
        find = functools.partial(jnp.searchsorted, ids)
        return (find(tokens), find(drawn), batch["target"]), ids

    def sums(self, params, prepared):
        tokens, drawn, target = prepared
        found = params["table"][tokens].sum(1) + params["table"][drawn]
        weight = (target > 0).astype(jnp.float32)
        loss = jnp.tanh(found @ params["scale"] / 8 - target / 2) ** 2
        return {"loss": ((loss * weight).sum(), weight.sum()), "drawn": (drawn[0] * 1.0, 1.0)}


def batch_of(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    target = rng.integers(0, 3, B).astype(np.float32)
    return {"tokens": rng.integers(0, V, (B, 2)).astype(np.int32), "target": target}


def program_of(
    objective, accumulation=WHOLE_BATCHES, axes=(1, 1, 1), embedding_update="dense"
) -> Program:
    mesh_settings = MeshSettings(*axes, vocab_multiple=1, rules=())
    mesh = make_mesh(mesh_settings, jax.devices()[: np.prod(axes)])
    optimizer = OptimizerSettings(**{**vars(OPTIMIZER), "embedding_update": embedding_update})
    return make_program(
        objective, optimizer, mesh_settings, mesh,
        num_steps=SETTINGS.num_steps, length=2, accumulation=accumulation,
    )  # fmt: skip


def run(program: Program, num_steps: int = 3):
    """Parameters after some steps, and the metrics of each."""
    state, metrics = program.init(np.int32(0)), []
    for step in range(num_steps):
        batch = jax.device_put(batch_of(step), batch_sharding(program.mesh))
        state, sums = program.train_step(state, batch, False)
        metrics.append(means(jax.device_get(sums)))
    return program.flush(state).params, metrics


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
        expected = run(program_of(objective))
        found = run(
            program_of(objective, Accumulation(num_parts, 0), embedding_update=embedding_update)
        )
        self.assert_equal(found, expected)
        self.assertEqual([m["batch_rows"] for m in found[1]], [B] * 3)
        first = program_of(objective).init(np.int32(0)).params
        for name, change in jax.tree.map(lambda a, b: np.abs(a - b).max(), found[0], first).items():
            self.assertGreater(change, 0.01, name)

    def test_devices_do_not_change_it(self):
        objective, accumulation = Lookup(draws=True), Accumulation(2, 0)
        expected = run(program_of(objective, accumulation))
        self.assert_equal(run(program_of(objective, accumulation, axes=(4, 1, 2))), expected)

    @parameterized.parameters(1, 2, 4)
    def test_each_part_has_a_key_and_weight_of_its_own(self, used):
        objective, key = Lookup(draws=True), jax.random.key(3)
        params, batch = objective.init(key, 2), batch_of(5)
        grads, sums = accumulate(
            objective, params, None, batch, key, exact=False, num_parts=4, num_used=used
        )
        total, weight, drawn = jax.tree.map(jnp.zeros_like, params), 0.0, []
        for number in range(used):
            part = {name: array[number::4] for name, array in batch.items()}
            prepared, ids = objective.prepare(
                None, part, jax.random.fold_in(key, number), exact=False
            )

            def loss(params, prepared=prepared, ids=ids):
                rows = params["table"].at[ids].get(mode="fill", fill_value=0)
                return objective.sums({**params, "table": rows}, prepared)["loss"]

            total = jax.tree.map(jnp.add, total, jax.grad(lambda p: loss(p)[0])(params))
            weight += loss(params)[1]
            drawn.append(float(objective.sums({**params}, prepared)["drawn"][0]))
        self.assertEqual(sums["loss"][1], weight)
        self.assertEqual(sums["drawn"], (sum(drawn), used))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b / weight, rtol=1e-5, atol=1e-7),
            grads, total,
        )  # fmt: skip

    def test_a_batch_that_cannot_be_cut(self):
        with self.assertRaisesRegex(ValueError, "accumulation_steps is 3, .* one of 8 rows"):
            run(program_of(Lookup(draws=False), Accumulation(3, 0)), 1)
        with self.assertRaisesRegex(ValueError, "accumulation_steps is 3, must divide .* 8"):
            TrainSettings(**{**vars(SETTINGS), "accumulation_steps": 3})
        with self.assertRaisesRegex(ValueError, "batch_warmup_steps is 5, but a batch has one"):
            TrainSettings(**{**vars(SETTINGS), "batch_warmup_steps": 5})


class WarmUpTest(parameterized.TestCase):
    @parameterized.parameters((0, [8] * 8), (4, [2, 4, 6, 8, 8, 8, 8, 8]), (6, [2, 2, 4, 6, 6, 8]))
    def test_the_batch_grows(self, warmup_steps, expected):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        train(
            program_of(Lookup(draws=True), Accumulation(4, warmup_steps)),
            SETTINGS,
            folder,
            lambda steps: map(batch_of, steps),
        )
        found = [r["train/batch_rows"] for r in read_metrics(folder / "metrics.jsonl")]
        self.assertEqual(found[: len(expected)], expected)
        self.assertEqual(found[-1], B)


class MaskedLMTest(absltest.TestCase):
    def test_a_model_takes_batches_in_parts(self):
        config = program_test.config("plain")
        objective = builders.objective(config, program_test.store())
        program = program_test.program("plain", program_test.SINGLE)
        batch = next(builders.batches(config, program_test.store(), program.mesh)(range(1)))
        state, _ = program.refresh(program.init(np.int32(0)), True)
        arguments = state.params, state.index, batch, jax.random.key(1)

        @jax.jit
        def whole(params, index, batch, key):
            prepared, ids = objective.prepare(index, batch, key, exact=False)
            return objective.sums(rows_of(params, objective.table, ids), prepared)

        parts = functools.partial(accumulate, objective, exact=False, num_parts=2, num_used=2)
        grads, sums = jax.jit(parts)(*arguments)
        for grad in jax.tree.leaves(grads):
            self.assertTrue(np.isfinite(grad).all())
        # As many targets, and a V' of its own for each part, of fewer words.
        found, expected = (jax.device_get(one) for one in (sums, whole(*arguments)))
        self.assertEqual(found["loss"][1], expected["loss"][1])
        self.assertLess(means(found)["candidates"], 0.9 * means(expected)["candidates"])


if __name__ == "__main__":
    absltest.main()
