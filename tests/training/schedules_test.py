"""Every schedule at its corners and against its formula."""

import types

import jax
import numpy as np
from absl.testing import parameterized

from xlm.training.optimizer import learning_rate_schedule
from xlm.training.settings import SCHEDULES

NUM_STEPS = 100


def rates(num_steps: int = NUM_STEPS, **changes) -> np.ndarray:
    """Rates relative to the peak, from step 0 to the last, and for two steps after it."""
    values = {
        "learning_rate": 0.5, "warmup_steps": 0, "schedule": "polynomial", "decay_power": 1.0,
        "decay_fraction": 0.2, "final_rate_ratio": 0.0, "decay_shape": "power", **changes,
    }  # fmt: skip
    schedule = learning_rate_schedule(types.SimpleNamespace(**values), num_steps)
    return np.asarray(jax.jit(schedule)(np.arange(num_steps + 2))) / 0.5


# These reach the final rate at the last step.
ENDING = tuple(one for one in SCHEDULES if one != "inverse_sqrt")


class ScheduleTest(parameterized.TestCase):
    @parameterized.product(schedule=ENDING, warmup_steps=(0, 1, 10), final=(0.0, 0.1))
    def test_over_the_peak_to_the_final_rate(self, schedule, warmup_steps, final):
        found = rates(schedule=schedule, warmup_steps=warmup_steps, final_rate_ratio=final)
        up, down = np.split(found, [max(warmup_steps - 1, 0)])
        np.testing.assert_allclose(up, np.arange(1, len(up) + 1) / 10, rtol=1e-6)
        self.assertEqual(down[0], 1)
        self.assertTrue((np.diff(down) <= 0).all())
        np.testing.assert_allclose(down[-3:], final, rtol=1e-6)  # the last step's rate, which stays
        self.assertGreater(down[-4], final)

    def test_a_run_of_one_step_has_the_peak(self):
        for schedule in SCHEDULES:
            self.assertEqual(rates(1, schedule=schedule, decay_fraction=0.0)[0], 1)

    @parameterized.parameters(1.0, 2.0)
    def test_polynomial_and_cosine(self, power):
        changes = {"decay_power": power, "warmup_steps": 20, "final_rate_ratio": 0.25}
        share = np.arange(81) / 80
        for schedule, decay in (
            ("polynomial", (1 - share) ** power),
            ("cosine", (1 + np.cos(np.pi * share)) / 2),
        ):
            found = rates(schedule=schedule, **changes)
            np.testing.assert_allclose(found[19:-2], 0.25 + 0.75 * decay, rtol=1e-5)

    @parameterized.parameters("polynomial", "wsd")
    def test_one_minus_the_root(self, schedule):
        changes = {"decay_shape": "one_minus_sqrt", "final_rate_ratio": 0.25, "decay_fraction": 0.8}
        found = rates(schedule=schedule, warmup_steps=20, **changes)
        steps = 80
        expected = 0.25 + 0.75 * (1 - np.sqrt(np.arange(steps + 1) / steps))
        np.testing.assert_allclose(found[-steps - 3 : -2], expected, rtol=1e-5)

    @parameterized.parameters((0, 0.0), (1, 0.5), (20, 0.0), (20, 0.5))
    def test_inverse_square_root(self, warmup_steps, final):
        found = rates(schedule="inverse_sqrt", warmup_steps=warmup_steps, final_rate_ratio=final)
        first = max(warmup_steps, 1)
        number = np.arange(1, len(found) + 1)  # of the step, the first one's is 1
        expected = np.where(number < first, number / first, np.sqrt(first / number))
        np.testing.assert_allclose(found, np.maximum(expected, final * (number > first)), rtol=1e-5)
        # Eq. 3 of Vaswani et al., whose factor d^-0.5 is the peak times the root of the warm-up.
        if not final:
            attention = np.minimum(number**-0.5, number * first**-1.5)
            np.testing.assert_allclose(found, first**0.5 * attention, rtol=1e-5)

    @parameterized.parameters(1.0, 2.0)
    def test_wsd_is_stable_until_the_last_steps(self, power):
        found = rates(schedule="wsd", warmup_steps=20, decay_power=power, final_rate_ratio=0.25)
        np.testing.assert_array_equal(found[19:80], 1)
        expected = 0.25 + 0.75 * (1 - np.arange(21) / 20) ** power
        np.testing.assert_allclose(found[79:-2], expected, rtol=1e-5)
        self.assertLess(found[80], 1)

    @parameterized.product(schedule=SCHEDULES, power=(0.25, 3.0), warmup_steps=(0, 4))
    def test_no_rate_is_negative_or_not_finite(self, schedule, power, warmup_steps):
        for num_steps in (5, 49):
            found = rates(
                num_steps, schedule=schedule, decay_power=power, warmup_steps=warmup_steps
            )
            self.assertTrue((np.isfinite(found) & (found >= 0)).all())
            if schedule in ENDING:
                np.testing.assert_array_equal(found[-3:], 0)

    def test_warm_up_and_decay_that_do_not_fit(self):
        for warmup_steps in (10, -1):
            error = f"optimizer.warmup_steps is {warmup_steps}, .* below train.num_steps 10"
            with self.assertRaisesRegex(ValueError, error):
                rates(10, warmup_steps=warmup_steps)
        rates(10, schedule="wsd", warmup_steps=8)
        error = "decay_fraction is 0.2: its 2 steps and optimizer.warmup_steps 9"
        with self.assertRaisesRegex(ValueError, error):
            rates(10, schedule="wsd", warmup_steps=9)
        rates(10, warmup_steps=9)  # irrelevant to the others
