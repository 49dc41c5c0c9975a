"""Settings of the loop that do not fit each other."""

import dataclasses

from absl.testing import parameterized

from xlm.training.settings import TrainSettings


class TrainSettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"log_every": 0}, "train.log_every is 0, must be at least 1"),
        ({"accumulation_steps": 3}, "accumulation_steps is 3, must divide .* 8"),
        ({"batch_warmup_steps": 5}, "batch_warmup_steps is 5, but a batch has one"),
        ({"keep_every": 15}, "keep_every is 15, must be a multiple of .* 10: no"),
    )
    def test_what_does_not_fit(self, changes, message):
        settings = TrainSettings(batch_size=8, checkpoint_every=10)
        dataclasses.replace(settings, keep_every=30, accumulation_steps=4, batch_warmup_steps=5)
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(settings, **changes)
