"""Keys of the config with which the processes of an interrupted run are started."""

import pathlib
import tempfile
import warnings
from unittest import mock

from absl import app
from absl.testing import absltest

from tests import commands


class OverridesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # ml_collections reads the file of a config so, at import that of the default.
        self.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", r"the load_module", DeprecationWarning)
        self.command = commands.load("benchmarks.kill_and_resume")

    def flags(self, *arguments: str) -> None:
        """Parse flags of the command, of a config with robust sampling."""
        config = "--config=configs/xy_lent.py:runlocal"
        self.enter_context(commands.parsed("benchmarks.kill_and_resume", config, *arguments))

    def test_processes_have_the_keys_of_the_command(self):
        self.flags("--config.robust.num_phases=2", "--config.optimizer.embedding_update=dense")
        workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        run = self.command.Run(workdir, self.command.overrides_of(90), {})
        with mock.patch.object(self.command.subprocess, "Popen") as popen:
            run.start("train.py")
        _, script, *found = popen.call_args.args[0]
        self.assertEqual(script, "train.py")
        self.assertCountEqual(
            found,
            [
                "--config=configs/xy_lent.py:runlocal",
                f"--workdir={workdir}",
                "--config.train.num_steps=90",
                "--config.train.checkpoint_every=20",
                "--config.train.evaluate_every=30",
                "--config.optimizer.embedding_update=dense",
                "--config.robust.num_phases=2",
            ],
        )

    def test_the_number_of_steps_has_a_flag_of_its_own(self):
        self.flags("--config.train.num_steps=7")
        with self.assertRaisesRegex(app.UsageError, "num_steps is 7; give --steps=7 instead"):
            self.command.overrides_of(90)


if __name__ == "__main__":
    absltest.main()
