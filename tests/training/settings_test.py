"""Settings of the loop: lengths, and what may be off."""

import dataclasses

from absl.testing import absltest, parameterized

from xlm.training.settings import TrainSettings

SETTINGS = TrainSettings(
    num_steps=10, batch_size=4, seed=0, log_every=2, evaluate_every=4, checkpoint_every=3,
    keep_checkpoints=2,
)  # fmt: skip


class TrainSettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        "num_steps", "batch_size", "log_every", "evaluate_every", "checkpoint_every",
        "keep_checkpoints",
    )  # fmt: skip
    def test_lengths_are_positive(self, name):
        self.assert_smallest(name, 1)

    def test_checkpoints_that_are_not_saved_cannot_be_kept(self):
        dataclasses.replace(SETTINGS, checkpoint_every=10, keep_every=30)
        with self.assertRaisesRegex(
            ValueError, "keep_every is 15, must be a multiple of .* 10: no"
        ):
            dataclasses.replace(SETTINGS, checkpoint_every=10, keep_every=15)

    @parameterized.parameters("keep_every", "peak_flops", "profile_from", "profile_steps")
    def test_what_may_be_off(self, name):
        self.assert_smallest(name, 0)

    def assert_smallest(self, name: str, smallest: int):
        dataclasses.replace(SETTINGS, **{name: smallest})
        with self.assertRaisesRegex(
            ValueError, f"train.{name} is {smallest - 1}, must be at least {smallest}"
        ):
            dataclasses.replace(SETTINGS, **{name: smallest - 1})


if __name__ == "__main__":
    absltest.main()
