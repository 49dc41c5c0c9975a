"""AdamW against its formula, updates by rows against updates of a whole table."""

import dataclasses
import functools

import jax
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.collectives import collectives_of
from tests import factories
from xlm.training.optimizer import Optimizer, learning_rate_schedule, make_optimizer
from xlm.training.settings import MeshSettings, OptimizerSettings
from xlm.training.sharding import make_mesh, traced_on

SETTINGS = factories.optimizer_settings(
    learning_rate=0.5, warmup_steps=4, decay_power=2.0, weight_decay=0.1
)
PARAMS = {"matrix": np.full((2, 3), 2.0, np.float32), "bias": np.full(3, 2.0, np.float32)}


@functools.cache
def compiled(
    settings: OptimizerSettings, num_steps: int = 10, tables: tuple[str, ...] = ()
) -> Optimizer:
    made = make_optimizer(settings, num_steps, tables)
    names = ("init", "read", "update", "apply_pending_updates", "learning_rate")
    return made._replace(**{name: jax.jit(getattr(made, name)) for name in names})


def run(settings: OptimizerSettings, gradients: list, num_steps: int = 100, first=PARAMS):
    """Return the parameters after a step with each of the gradients, and the last state."""
    optimizer = compiled(settings, num_steps)
    params, state, found = first, optimizer.init(first), []
    for one in gradients:
        read, held = optimizer.read(params, state, {})
        jax.tree.map(np.testing.assert_array_equal, read, params)
        params, state = optimizer.update(one, held, params, state)
        found.append(jax.device_get(params))
    return found, state


def some_gradients(count: int) -> list:
    rng = np.random.default_rng(2)
    return [
        jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), PARAMS)
        for _ in range(count)
    ]


@functools.cache
def rates_of(settings: OptimizerSettings) -> list[float]:
    return jax.jit(learning_rate_schedule(settings, num_steps=10))(np.arange(10)).tolist()


class AdamWTest(parameterized.TestCase):
    def test_rates_by_depth(self):
        shapes = {"embeddings": (5, 4), "layers": (3, 4, 4), "task": (3,)}
        rng = np.random.default_rng(0)
        one = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
        found = []
        for decay in (0.5, 1.0):
            optimizer = make_optimizer(dataclasses.replace(SETTINGS, layer_decay=decay), 10)
            new, _ = jax.jit(optimizer.update)(one, {}, one, optimizer.init(one))
            found.append({name: np.array(new[name] - one[name]) for name in one})
        of_layers = np.reshape([0.125, 0.25, 0.5], (3, 1, 1))
        for name, share in {"embeddings": 1 / 16, "layers": of_layers, "task": 1.0}.items():
            self.assertGreater(np.abs(found[0][name]).max(), 1e-3)
            np.testing.assert_allclose(found[0][name], share * found[1][name], atol=1e-6)

    @parameterized.parameters("adamw", "stable_adamw")
    def test_equals_the_formula(self, kind):
        """StableAdamW slows an array whose gradient outgrows its moment."""
        gradients = some_gradients(6)
        gradients[3]["matrix"] *= 50
        rates = rates_of(SETTINGS)
        found, _ = run(dataclasses.replace(SETTINGS, kind=kind), gradients, 10)
        for name, decay in (("matrix", 0.1), ("bias", 0.0)):
            mean = square = np.zeros_like(PARAMS[name], np.float64)
            params, greatest = PARAMS[name].astype(np.float64), 0.0
            for step, after in enumerate(found):
                gradient = gradients[step][name].astype(np.float64)
                mean = 0.9 * mean + 0.1 * gradient
                square = 0.98 * square + 0.02 * gradient**2
                moment = square / (1 - 0.98 ** (step + 1))
                rms = np.sqrt(np.mean(gradient**2 / np.maximum(moment, 1e-12)))
                greatest = max(greatest, rms)
                adam = mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(moment) + 1e-6)
                rate = rates[step] / (max(1, rms) if kind == "stable_adamw" else 1)
                params = params - rate * (adam + decay * params)
                np.testing.assert_allclose(after[name], params, rtol=1e-5)
            self.assertGreater(np.abs(params - PARAMS[name]).max(), 0.01)
            if name == "matrix":
                self.assertGreater(greatest, 1.5)

    def test_biases_and_scales_of_all_layers_together_do_not_decay(self):
        shapes = {"kernel": (2, 3, 3), "bias": (2, 3), "scale": (2, 3), "table": (5, 3)}
        params = {"layers": {name: np.ones(shape, np.float32) for name, shape in shapes.items()}}
        optimizer = compiled(dataclasses.replace(SETTINGS, warmup_steps=0))
        zeros = jax.tree.map(np.zeros_like, params)
        found, _ = optimizer.update(zeros, {}, params, optimizer.init(params))
        decayed = {name for name, x in found["layers"].items() if (x < 1).all()}
        kept = {name for name, x in found["layers"].items() if (x == 1).all()}
        self.assertEqual((decayed, kept), ({"kernel", "table"}, {"bias", "scale"}))

    @parameterized.parameters((0.0, 0.0), (1.0, 0.1))
    def test_only_gradients_above_the_norm_are_clipped(self, clip_norm, weight_decay):
        # Adam nearly ignores the size of a gradient, so this has a large one after a small one.
        changes = {"clip_norm": clip_norm, "weight_decay": weight_decay, "warmup_steps": 0}
        settings = dataclasses.replace(SETTINGS, **changes)
        small = jax.tree.map(lambda p: np.full_like(p, 0.1), PARAMS)  # a norm of 0.3
        large = jax.tree.map(lambda p: np.full_like(p, 100.0), PARAMS)
        clipped = jax.tree.map(lambda p: np.full_like(p, 1 / 3), PARAMS)  # a norm of 1
        found, _ = run(settings, [small, large], 10)
        unclipped = dataclasses.replace(settings, clip_norm=0.0)
        expected, _ = run(unclipped, [small, clipped if clip_norm else large], 10)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-6)
        jax.tree.map(check, found, expected)
        self.assertGreater(np.abs(found[1]["bias"] - PARAMS["bias"]).min(), 0.1)


LAYERED = {
    "layers": {"kernel": np.full((2, 3, 6), 2.0, np.float32), "bias": np.ones((2, 6), "f")},
    "head": {"kernel": np.full((4, 3), 2.0, np.float32)},
}


class StableAdamWTest(parameterized.TestCase):
    def test_each_layer_has_its_own_rate(self):
        """A layer moves as in a model of its own."""
        settings = dataclasses.replace(SETTINGS, kind="stable_adamw", warmup_steps=0)
        optimizer = make_optimizer(settings, 10)

        def after(kernel, gradients):
            params = {"layers": {"kernel": kernel}}
            state = optimizer.init(params)
            for one in gradients:
                params, state = optimizer.update({"layers": {"kernel": one}}, {}, params, state)
            return np.asarray(params["layers"]["kernel"])

        rng = np.random.default_rng(3)
        kernel = rng.normal(size=(2, 3, 4)).astype(np.float32)
        gradients = rng.normal(size=(3, 2, 3, 4)).astype(np.float32)
        gradients[2, 0] *= 100
        together = after(kernel, gradients)
        for i in range(2):
            alone = after(kernel[i : i + 1], gradients[:, i : i + 1])
            np.testing.assert_allclose(together[i : i + 1], alone, rtol=1e-6)

    def test_rows_are_refused(self):
        for wrong in ({"kind": "stable_adamw"}, {"ema_decay": 0.5}):
            with self.assertRaisesRegex(ValueError, f"optimizer.{next(iter(wrong))} .* every row"):
                dataclasses.replace(SETTINGS, embedding_update="rows", **wrong)


class SafeguardsTest(parameterized.TestCase):
    @parameterized.parameters(100.0, float("inf"), float("nan"))
    def test_a_step_far_out_is_as_if_not_taken(self, factor):
        settings = dataclasses.replace(SETTINGS, max_norm_ratio=5.0, ema_decay=0.9)
        gradients = some_gradients(40)
        (*_, expected), usual = run(settings, gradients)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4)
        jax.tree.map(close, expected, run(SETTINGS, gradients)[0][-1])
        far = jax.tree.map(lambda g: np.float32(factor) * g, gradients[30])
        found, state = run(settings, [*gradients[:30], far, *gradients[30:]])
        jax.tree.map(np.testing.assert_array_equal, found[30], found[29])
        jax.tree.map(np.testing.assert_array_equal, found[-1], expected)
        jax.tree.map(np.testing.assert_array_equal, state.inner, usual.inner)
        metrics = make_optimizer(settings, 100).metrics(state)
        self.assertEqual({name: float(x) for name, x in metrics.items()}, {"skipped_steps": 1})

    def test_a_norm_that_falls_and_rises_slowly_skips_nothing(self):
        settings = dataclasses.replace(SETTINGS, max_norm_ratio=3.0)
        scales = np.concatenate([np.geomspace(100, 1, 60), np.geomspace(1, 4, 120)])
        gradients = [
            jax.tree.map(lambda g, scale=scale: np.float32(scale) * g, one)
            for one, scale in zip(some_gradients(180), scales, strict=True)
        ]
        _, state = run(settings, gradients, 200)
        self.assertEqual(int(state.skipped), 0)

    def test_the_average_is_that_of_all_steps(self):
        settings = dataclasses.replace(SETTINGS, ema_decay=0.6, max_norm_ratio=5.0)
        found, state = run(settings, some_gradients(12))
        mean = PARAMS["matrix"].astype(np.float64)
        for count, params in enumerate(found):
            share = min(0.6, (1 + count) / (10 + count))
            mean = share * mean + (1 - share) * params["matrix"]
        averaged = make_optimizer(settings, 100).averaged(state)
        np.testing.assert_allclose(averaged["matrix"], mean, rtol=1e-5)
        without = run(dataclasses.replace(settings, ema_decay=0.0), some_gradients(12))[0][-1]
        np.testing.assert_allclose(found[-1]["matrix"], without["matrix"], rtol=1e-4)


def layered_gradients(seed: int):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), LAYERED)


@functools.cache
def layered_steps(settings: OptimizerSettings) -> list:
    return run(settings, [layered_gradients(step) for step in range(4)], 10, LAYERED)[0]


class MuonTest(parameterized.TestCase):
    SETTINGS = dataclasses.replace(
        SETTINGS, kind="muon", learning_rate=0.2, muon_learning_rate=0.5, muon_momentum=0.8
    )

    def orthogonalised(self, matrix: np.ndarray) -> np.ndarray:
        """Five steps of Jordan's iteration, which moves singular values towards 1."""
        x = matrix / np.linalg.norm(matrix)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x

    def test_matrices_of_layers_follow_the_formula_one_by_one(self):
        rates = rates_of(self.SETTINGS)
        for layer in range(2):
            matrix = LAYERED["layers"]["kernel"][layer].astype(np.float64)
            mean = np.zeros_like(matrix)
            for step, params in enumerate(layered_steps(self.SETTINGS)):
                gradient = layered_gradients(step)["layers"]["kernel"][layer]
                mean = 0.8 * mean + 0.2 * gradient
                ahead = 0.8 * mean / (1 - 0.8 ** (step + 2))  # Nesterov's, unbiased
                ahead += 0.2 * gradient / (1 - 0.8 ** (step + 1))
                update = self.orthogonalised(ahead) * np.sqrt(6 / 3) + 0.1 * matrix
                matrix = matrix - 0.5 / 0.2 * rates[step] * update
                np.testing.assert_allclose(params["layers"]["kernel"][layer], matrix, rtol=1e-4)

    def test_a_matrix_of_fewer_outputs_than_inputs_is_not_scaled(self):
        settings = dataclasses.replace(self.SETTINGS, warmup_steps=0)

        def moved(gradient: np.ndarray) -> np.ndarray:
            params = {"layers": {"kernel": np.zeros_like(gradient)}}
            optimizer, grads = compiled(settings), {"layers": {"kernel": gradient}}
            found, _ = optimizer.update(grads, {}, params, optimizer.init(params))
            return np.asarray(found["layers"]["kernel"])

        wide = layered_gradients(0)["layers"]["kernel"]
        expected = np.swapaxes(moved(wide), 1, 2) / np.sqrt(6 / 3)
        np.testing.assert_allclose(moved(np.swapaxes(wide, 1, 2)), expected, rtol=1e-4)

    def test_both_begin_at_the_step_of_the_schedule_that_a_stage_begins_at(self):
        params = jax.tree.map(np.zeros_like, LAYERED)

        def moved(first_step: int):
            optimizer = make_optimizer(self.SETTINGS, 10, first_step=first_step)
            return optimizer.update(layered_gradients(0), {}, params, optimizer.init(params))[0]

        rates = rates_of(self.SETTINGS)
        expected = jax.tree.map(lambda x: x * rates[5] / rates[0], moved(0))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5)
        jax.tree.map(check, moved(5), expected)

    def test_all_else_follows_adamw(self):
        adamw = layered_steps(dataclasses.replace(self.SETTINGS, kind="adamw"))
        for found, expected in zip(layered_steps(self.SETTINGS), adamw, strict=True):
            np.testing.assert_array_equal(found["head"]["kernel"], expected["head"]["kernel"])
            np.testing.assert_array_equal(found["layers"]["bias"], expected["layers"]["bias"])
            moved = np.abs(found["layers"]["kernel"] - expected["layers"]["kernel"])
            self.assertGreater(moved.max(), 0.01)

    @parameterized.parameters((8, 1, 1), (1, 8, 1), (2, 2, 2))
    def test_devices_share_the_arithmetic_and_send_a_matrix_once(self, *axes):
        mesh = make_mesh(MeshSettings(*axes), jax.devices()[:8])
        tall, square, size = ("model", "fsdp"), ("fsdp", "model"), 64
        shapes = {"query": (6, size, size), "value": (6, size, size), "out": (6, 4 * size, size)}
        rng = np.random.default_rng(0)
        params, grads = (
            {"layers": {name: {"kernel": rng.normal(size=shape).astype(np.float32)}
                        for name, shape in shapes.items()}}
            for _ in range(2)
        )  # fmt: skip
        layout = {
            "layers": {
                name: {"kernel": NamedSharding(mesh, P(None, *(tall if name == "out" else square)))}
                for name in shapes
            }
        }
        optimizer = make_optimizer(self.SETTINGS, 10)

        def step(grads, params):
            return optimizer.update(grads, {}, params, optimizer.init(params))[0]

        expected = jax.jit(step)(grads, params)
        placed = [jax.device_put(tree, layout) for tree in (grads, params)]
        shared = jax.jit(traced_on(mesh, step), out_shardings=layout).lower(*placed).compile()
        for name, found in shared(*placed)["layers"].items():
            moved = expected["layers"][name]["kernel"]
            np.testing.assert_allclose(found["kernel"], moved, rtol=1e-4, atol=1e-5, err_msg=name)

        alone = jax.jit(step).lower(grads, params).compile().cost_analysis()["flops"]
        # 12 and 6 matrices are padded to 16 and 8.
        self.assertLess(shared.cost_analysis()["flops"], 1.5 * alone / 8)
        sent = sum(one.sent_bytes() for one in collectives_of(shared.as_text(), 8))
        self.assertLess(sent, 2 * sum(x.nbytes for x in jax.tree.leaves(params)))


V, E, NUM_STEPS, PATH = 40, 3, 60, "embeddings/table"
# With a large epsilon, the size of a gradient and hence wrong clipping matter.
DENSE = dataclasses.replace(SETTINGS, learning_rate=0.05, clip_norm=1.0, epsilon=0.1)


def large_params():
    rng = np.random.default_rng(0)
    table, norm, layers, head = (
        rng.normal(size=shape).astype(np.float32) for shape in ((V, E), E, (1, E, E), (E, E))
    )
    embeddings = {"table": table, "norm": norm}
    return {"embeddings": embeddings, "layers": {"kernel": layers}, "head": {"kernel": head}}


def ids_of(step: int) -> np.ndarray:
    """Return the rows [R] int32 that a step touches, mostly frequent ones; unused slots have V."""
    rng = np.random.default_rng([2, step])
    ids = np.unique(np.append(V * rng.random(9) ** 3, V - 1 - step % 2).astype(np.int32))
    return filled(rng.permutation(ids))


def filled(ids) -> np.ndarray:
    return np.append(ids, np.full(12 - len(ids), V)).astype(np.int32)


def taken(optimizer: Optimizer, params, state, steps: range, by_ids: bool):
    """Return parameters and state after steps with gradients of only the rows of `ids_of`."""
    for step in steps:
        ids, rng = ids_of(step), np.random.default_rng([1, step])
        read, held = optimizer.read(params, state, {PATH: ids} if by_ids else {})
        grads = jax.tree.map(lambda p, r=rng: r.normal(size=p.shape).astype("f"), large_params())
        table = grads["embeddings"]["table"]
        table[np.setdiff1d(np.arange(V), ids)] = 0
        if by_ids:
            grads["embeddings"]["table"] = np.append(table, np.zeros((1, E), "f"), axis=0)[ids]
        assert jax.tree.map(np.shape, grads) == jax.tree.map(np.shape, read)
        params, state = optimizer.update(grads, held, params, state)
    return params, state


class TableTest(parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_a_skipped_step_leaves_all_rows_and_what_is_pending(self, by_ids: bool):
        settings = dataclasses.replace(SETTINGS, embedding_update="rows", max_norm_ratio=5.0)
        optimizer = compiled(settings, 100, (PATH,))
        params = large_params()
        params, state = taken(optimizer, params, optimizer.init(params), range(22), by_ids)
        read, held = optimizer.read(params, state, {PATH: ids_of(22)} if by_ids else {})
        grads = jax.tree.map(lambda x: np.full(x.shape, 1e6, np.float32), read)
        after, skipped = optimizer.update(grads, held, params, state)
        self.assertEqual(int(skipped.skipped), 1)
        # Reading all rows applies equally many updates, with the same values.
        for one in ((params, state), (after, skipped)):
            found, of_all = optimizer.apply_pending_updates(*one)
            expected = locals().setdefault("expected", found)
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)
            self.assertEqual(int(of_all.inner.tables[PATH].count), 22)

    def test_dense_with_the_gradients_of_some_rows(self):
        optimizer = compiled(DENSE, NUM_STEPS, (PATH,))
        first = large_params(), optimizer.init(large_params())
        found, whole = (taken(optimizer, *first, range(5), by_ids) for by_ids in (True, False))
        jax.tree.map(np.testing.assert_array_equal, found, whole)
        table, ids = found[0]["embeddings"]["table"], filled([7, V, 3])
        params, held = optimizer.read(*found, {PATH: ids})
        expected = [table[7], np.zeros(E), table[3], *np.zeros((9, E))]
        np.testing.assert_array_equal(params["embeddings"]["table"], expected)
        np.testing.assert_array_equal(held[PATH], ids)

    @parameterized.parameters((1.0, "adamw"), (0.3, "muon"))
    def test_some_rows_follow_dense(self, clip_norm: float, kind: str):
        settings = dataclasses.replace(DENSE, clip_norm=clip_norm, kind=kind)
        by_rows = dataclasses.replace(settings, embedding_update="rows")
        of_dense, of_rows = (compiled(x, NUM_STEPS, (PATH,)) for x in (settings, by_rows))
        first, half = large_params(), range(NUM_STEPS // 2)
        dense = taken(of_dense, first, of_dense.init(first), half, by_ids=False)
        rows = taken(of_rows, first, of_rows.init(first), half, by_ids=True)

        def table(run) -> np.ndarray:
            return np.asarray(run[0]["embeddings"]["table"])

        moved = np.linalg.norm(table(dense) - first["embeddings"]["table"])
        behind = np.linalg.norm(table(rows) - table(dense)) / moved
        # Rows are up to date when read, and all rows after pending updates.
        ids = np.array([V - 3, 0, 20, V])
        read, _ = of_rows.read(*rows, {PATH: filled(ids)})
        rows = of_rows.apply_pending_updates(*rows)
        expected = [*table(rows)[ids[:3]], *np.zeros((9, E))]
        np.testing.assert_allclose(read["embeddings"]["table"], expected, rtol=1e-5, atol=1e-6)
        distance = np.linalg.norm(table(rows) - table(dense)) / moved
        self.assertLess(distance, 0.01)
        self.assertGreater(behind, 3 * distance)  # something was pending
        # The run continues from there.
        later = range(half.stop, half.stop + 5)
        dense, _ = taken(of_dense, *dense, later, by_ids=False)
        rows = of_rows.apply_pending_updates(*taken(of_rows, *rows, later, by_ids=True))
        self.assertLess(np.linalg.norm(table(rows) - table((dense,))) / moved, 0.01)
        # Other parameters are dense in both, and clipped by the norm of all gradients.
        for one in (dense, rows[0]):
            del one["embeddings"]["table"]
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        jax.tree.map(check, rows[0], dense)
