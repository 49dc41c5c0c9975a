"""Row-sparse AdamW against `optax.adamw` on the whole table."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from xlm.training.row_adamw import RowAdamW, Rows, _distinct, row_adamw

V, E, R = 64, 4, 9
STEPS = 120
SCHEDULES = {
    "constant": 1e-2,
    "decay": optax.join_schedules(
        [optax.linear_schedule(0.0, 1e-2, 40), optax.polynomial_schedule(1e-2, 0.0, 2.0, 160)], [40]
    ),
    # accepts one step, not an array of steps
    "scalar": lambda step: jax.lax.cond(step < 40, lambda: 1e-2, lambda: 5e-3),
}


def start() -> np.ndarray:
    return np.random.default_rng(1).normal(scale=0.1, size=(V, E)).astype(np.float32)


def filled(*ids: int) -> np.ndarray:
    return np.append(ids, np.full(R - len(ids), V)).astype(np.int32)


def sparse_steps(scale: float = 1.0, num_steps: int = STEPS):
    """Ids [T, R] by Zipf's law, with two unused slots, and gradients [T, R, E]."""
    rng = np.random.default_rng(0)
    p = 1 / np.arange(1.0, V + 1) ** 1.5
    draw = functools.partial(rng.choice, V, R, replace=False, p=p / p.sum())
    ids = np.stack([draw() for _ in range(num_steps)]).astype(np.int32)
    ids[:, [2, 7]] = V
    grads = rng.normal(loc=0.5, size=(num_steps, R, E)) * scale
    return ids, grads.astype(np.float32)


def row_steps(optimizer, table, state, ids, grads):
    def step(carry, x):
        rows = optimizer.read(*carry, x[0])
        return optimizer.update(x[1], rows, *carry), None

    return jax.lax.scan(step, (table, state), (ids, grads))[0]


def dense_steps(optimizer, table, ids, grads):
    """The table after the same steps of an optax optimizer."""

    def step(carry, x):
        table, state = carry
        grads = jnp.zeros_like(table).at[x[0]].set(x[1], mode="drop")
        updates, state = optimizer.update(grads, state, table)
        return (optax.apply_updates(table, updates), state), None

    return jax.lax.scan(step, (table, optimizer.init(table)), (ids, grads))[0][0]


@functools.cache
def compiled():
    optimizer = row_adamw(SCHEDULES["decay"], weight_decay=0.1)
    run = functools.partial(row_steps, optimizer)
    return RowAdamW(*(jax.jit(function) for function in optimizer)), jax.jit(run)


@functools.cache
def after_steps():
    optimizer, run = compiled()
    return optimizer, *run(start(), optimizer.init(start()), *sparse_steps())


def assert_close(found, expected, rtol=1e-6, atol=1e-7):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), found, expected
    )


class AgainstDenseTest(parameterized.TestCase):
    @parameterized.parameters(("constant", None), ("decay", "in order"), ("scalar", "permuted"))
    def test_every_row_in_every_step(self, schedule, ids):
        settings = {"b2": 0.98, "eps": 1e-6, "weight_decay": 0.1}
        optimizer = row_adamw(SCHEDULES[schedule], **settings)
        rng = np.random.default_rng(0)
        grads = rng.normal(size=(20, V, E)).astype(np.float32)
        places = rng.permutation(V) if ids == "permuted" else np.arange(V)
        places = np.tile(places, (20, 1)).astype(np.int32)
        given = None if ids is None else places

        @jax.jit
        def both(table):
            dense = optax.adamw(SCHEDULES[schedule], **settings)
            rows = row_steps(optimizer, table, optimizer.init(table), given, grads)
            return *rows, dense_steps(dense, table, places, grads)

        table, state, dense = both(start())
        assert_close(table, dense)
        self.assertEqual(state.count, 20)
        np.testing.assert_array_equal(state.last_step, 20)

    @parameterized.parameters(
        ("constant", 0.0), ("constant", 0.01), ("decay", 0.0), ("decay", 1.0), ("scalar", 0.1)
    )
    def test_few_rows_in_a_step(self, schedule, weight_decay):
        # The truncated sum leaves out about 0.001 of a movement in missed steps. One eps for all of
        # them is off by at most a quarter of the relative variance of eps_j. Its deviation is
        # (1 - b2) / 2 times that of a geometric law of i, about 10 steps. So the error is at most
        # 0.1^2 / 4 = 0.0025, and only if eps and sqrt(v) are about equal.
        settings = {"b2": 0.98, "eps": 1e-6, "weight_decay": weight_decay}
        optimizer = row_adamw(SCHEDULES[schedule], **settings)
        adamw = optax.adamw(SCHEDULES[schedule], **settings)
        ids, grads = sparse_steps()

        @jax.jit
        @jax.vmap
        def both(scale):
            given = optimizer.init(jnp.asarray(start())), ids, grads * scale
            table, _ = optimizer.apply_pending_updates(
                *row_steps(optimizer, jnp.asarray(start()), *given)
            )
            return table, dense_steps(adamw, jnp.asarray(start()), *given[1:])

        # Gradients much larger than eps, about equal to it, and much smaller.
        scales = np.array([1.0, 1e-6, 1e-9], np.float32)
        for table, dense, bound in zip(*both(scales), (5e-4, 2.5e-3, 5e-4), strict=True):
            distance = np.linalg.norm(table - dense) / np.linalg.norm(dense - start())
            self.assertLess(distance, bound)


class PendingUpdatesTest(absltest.TestCase):
    def test_rows_brought_up_to_date_are_the_rows_that_would_be_read(self):
        optimizer, table, state = after_steps()
        current, current_state = optimizer.apply_pending_updates(table, state)
        self.assertGreater(np.abs(current - table).max(), 1e-3)
        for ids in (np.arange(V, dtype=np.int32)[::-1], None):
            found = optimizer.read(current, current_state, ids)
            assert_close(found, optimizer.read(table, state, ids))
            every = slice(None) if ids is None else ids
            np.testing.assert_array_equal(found.values, np.asarray(current)[every])


class SlotsTest(parameterized.TestCase):
    def test_unused_slots_read_zeros_and_write_nothing(self):
        optimizer, table, state = after_steps()
        ids = filled(V, 3, V, V, 0)
        rows = optimizer.read(table, state, ids)
        np.testing.assert_array_equal(np.stack(rows[1:])[:, ids == V], 0)
        grads = np.where(ids == V, np.nan, 0.5)[:, None].repeat(E, axis=1).astype(np.float32)
        found = optimizer.update(grads, rows, table, state)
        used = np.array([3, 0], np.int32)
        rows = optimizer.read(table, state, used)
        assert_close(found, optimizer.update(grads[ids < V], rows, table, state))
        others = np.setdiff1d(np.arange(V), used)
        for new, old in zip(jax.tree.leaves(found), [table, *state], strict=True):
            if old.ndim:
                np.testing.assert_array_equal(np.asarray(new)[others], np.asarray(old)[others])

    def test_the_scatters_are_promised_distinct_ids_and_get_them(self):
        # On a CPU a broken promise has no consequences.
        optimizer, table, state = after_steps()
        rows = optimizer.read(table, state, filled(V, 3, V))
        traced = jax.make_jaxpr(row_adamw(0.1).update)(np.ones((R, E), "f"), rows, table, state)
        scatters = [e for e in traced.eqns if e.primitive.name == "scatter"]
        self.assertLen(scatters, 5)
        for scatter in scatters:
            self.assertTrue(scatter.params["unique_indices"])
        places = np.asarray(_distinct(jnp.array([V, 3, V, 0, V], jnp.int32), V))
        self.assertLen(np.unique(places), 5)
        np.testing.assert_array_equal(places[[1, 3]], [3, 0])
        self.assertGreaterEqual(places[[0, 2, 4]].min(), V)

    @parameterized.parameters("update", "read and update", "apply_pending_updates")
    def test_donated_tables_are_changed_in_place(self, what):
        optimizer = row_adamw(SCHEDULES["decay"])
        table = jax.ShapeDtypeStruct((4096, 32), jnp.float32)
        ids = jax.ShapeDtypeStruct((16,), jnp.int32)
        grads = jax.ShapeDtypeStruct((16, 32), jnp.float32)
        state = jax.eval_shape(optimizer.init, table)
        rows = Rows(ids, grads, grads, grads)

        def both(ids, grads, table, state):
            rows = optimizer.read(table, state, ids)
            return optimizer.update(grads + rows.values, rows, table, state)

        function, *given = {
            "update": (optimizer.update, grads, rows),
            "read and update": (both, ids, grads),
            "apply_pending_updates": (optimizer.apply_pending_updates,),
        }[what]
        donating = jax.jit(function, donate_argnums=(len(given), len(given) + 1))
        memory = donating.lower(*given, table, state).compile().memory_analysis()
        self.assertGreaterEqual(memory.alias_size_in_bytes, 3 * 4 * table.size)
        if what != "apply_pending_updates":
            self.assertLess(memory.temp_size_in_bytes, 4 * table.size / 8)

    @parameterized.parameters(
        ({"b1": 0.95, "b2": 0.9}, r"b1 / sqrt\(b2\) is 1.0014.*optimizer.beta1"),
        ({"b1": 1.0}, r"b1 is 1.0, .*\[0, 1\)"),
        ({"b2": 1.0}, r"b2 1.0: must be .*\(0, 1\)"),
        ({"eps": 0.0}, "eps is 0.0, must be above 0; change optimizer.epsilon"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1.*at least 0"),
        ({"weight_decay": 10.0}, "weight_decay is 10.0, learning rate 0.1.*product below 1"),
    )
    def test_numbers_out_of_range(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            row_adamw(0.1, **settings)
