"""Keys of the config with which the stages of an interrupted job are started."""

import warnings

from absl import app
from absl.testing import absltest

from tests import commands


class StagesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # ml_collections reads the file of a config so, at import that of the default.
        self.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", r"the load_module", DeprecationWarning)
        self.command = commands.load("benchmarks.kill_and_resume")

    def flags(self, *arguments: str) -> None:
        config = "--config=configs/xy_lent.py:runlocal"
        self.enter_context(commands.parsed("benchmarks.kill_and_resume", config, *arguments))

    def test_stages_have_the_keys_of_the_command(self):
        self.flags("--config.robust.num_phases=2", "--config.optimizer.embedding_update=dense",
                   "--steps=90", "--stages=evaluate,train")  # fmt: skip
        known, names = self.command.wanted_stages()
        self.assertEqual(names, ["train", "evaluate"])
        script, *found = known["train"].command("JOB")
        self.assertEqual(script, "train.py")
        self.assertContainsSubset(
            ["--config=configs/xy_lent.py:runlocal", "--workdir=JOB/work",
             "--config.train.num_steps=90", "--config.train.checkpoint_every=15",
             "--config.optimizer.embedding_update=dense", "--config.robust.num_phases=2"],
            found,
        )  # fmt: skip

    def test_workers_are_looked_for_in_the_stages_that_have_some(self):
        self.flags("--kill=worker")
        self.assertEqual(self.command.wanted_stages()[1], ["count", "build_vocab", "prepare_data"])
        self.flags("--stages=tune")
        with self.assertRaisesRegex(app.UsageError, "no 'tune', only count, build_vocab"):
            self.command.wanted_stages()
