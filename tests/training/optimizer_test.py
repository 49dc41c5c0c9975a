"""The schedule at its corners, and AdamW against its formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from training.optimizer import OptimizerSettings, learning_rate_schedule, make_optimizer

SETTINGS = OptimizerSettings(
    learning_rate=0.5,
    warmup_steps=4,
    decay_power=2.0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-6,
    weight_decay=0.1,
    clip_norm=0.0,
)
PARAMS = {"matrix": np.full((2, 3), 2.0, np.float32), "vector": np.full(3, 2.0, np.float32)}


def steps_taken(settings: OptimizerSettings, gradients: list, num_steps: int = 10):
    """The updates of each step, parameters held fixed."""
    optimizer = make_optimizer(settings, num_steps)
    state = optimizer.init(PARAMS)
    updates = []
    for one in gradients:
        update, state = jax.jit(optimizer.update)(one, state, PARAMS)
        updates.append(update)
    return updates


class ScheduleTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, 0.0), (1, 0.125), (4, 0.5), (7, 0.5 * 0.25), (9, 0.5 / 36), (10, 0.0), (99, 0.0)
    )
    def test_warm_up_to_the_peak_then_decay_to_zero(self, step, expected):
        schedule = learning_rate_schedule(SETTINGS, num_steps=10)
        self.assertAlmostEqual(float(schedule(step)), expected, places=6)

    def test_without_warm_up_it_starts_at_the_peak(self):
        settings = dataclasses.replace(SETTINGS, warmup_steps=0)
        self.assertEqual(learning_rate_schedule(settings, num_steps=10)(0), 0.5)

    @parameterized.parameters(10, 11, -1)
    def test_a_warm_up_that_is_no_part_of_the_run(self, warmup_steps):
        settings = dataclasses.replace(SETTINGS, warmup_steps=warmup_steps)
        with self.assertRaisesRegex(
            ValueError, f"optimizer.warmup_steps is {warmup_steps}, .* below train.num_steps 10"
        ):
            learning_rate_schedule(settings, num_steps=10)


class OptimizerTest(parameterized.TestCase):
    def test_adamw(self):
        rng = np.random.default_rng(0)
        gradients = [
            jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), PARAMS)
            for _ in range(6)
        ]
        schedule = learning_rate_schedule(SETTINGS, num_steps=10)
        for name, decay in (("matrix", 0.1), ("vector", 0.0)):
            mean = square = np.zeros_like(PARAMS[name], np.float64)
            for step, updates in enumerate(steps_taken(SETTINGS, gradients)):
                gradient = gradients[step][name].astype(np.float64)
                mean = 0.9 * mean + 0.1 * gradient
                square = 0.98 * square + 0.02 * gradient**2
                adam = mean / (1 - 0.9 ** (step + 1))
                adam /= np.sqrt(square / (1 - 0.98 ** (step + 1))) + 1e-6
                expected = -float(schedule(step)) * (adam + decay * PARAMS[name])
                np.testing.assert_allclose(updates[name], expected, rtol=1e-4)

    @parameterized.parameters((0.0, 0.0), (1.0, 0.0), (0.0, 0.1))
    def test_only_gradients_above_the_norm_are_clipped(self, clip_norm, weight_decay):
        # Adam all but ignores the size of a gradient, so look at a large one after a small one.
        settings = dataclasses.replace(
            SETTINGS, clip_norm=clip_norm, weight_decay=weight_decay, warmup_steps=0
        )
        small = jax.tree.map(lambda p: np.full_like(p, 0.1), PARAMS)  # a norm of 0.3
        large = jax.tree.map(lambda p: np.full_like(p, 100.0), PARAMS)
        clipped = jax.tree.map(lambda p: np.full_like(p, 1 / 3), PARAMS)  # a norm of 1
        found = steps_taken(settings, [small, large])
        unclipped = dataclasses.replace(settings, clip_norm=0.0)
        expected = steps_taken(unclipped, [small, clipped if clip_norm else large])
        check = jax.tree_util.Partial(np.testing.assert_allclose, rtol=1e-5)
        jax.tree.map(check, found, expected)
        self.assertGreater(jnp.abs(found[1]["vector"]).min(), 0)


if __name__ == "__main__":
    absltest.main()
