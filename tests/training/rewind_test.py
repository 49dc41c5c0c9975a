"""Runs that go on from an earlier checkpoint, as they are and with other rates."""

import shutil

import jax
import numpy as np
from absl.testing import absltest

from tests import factories
from tests.training.toy_runs import NUM_STEPS, Data, TestCase, Toy, toy_functions, whole_run
from xlm.objectives.objective import Batch
from xlm.training.rewind import advice, rewind


def tearDownModule():
    toy_functions.cache_clear()  # or its programs would stay loaded


class RewindTest(TestCase):
    def setUp(self):
        super().setUp()
        shutil.copytree(whole_run()[0], self.folder, dirs_exist_ok=True)

    def rewind(self, step: int) -> None:
        rewind(self.folder, step, self.functions, by_rows=False)

    def test_with_the_same_settings_the_run_is_that_of_before(self):
        for name in ("abandoned-9", "abandoned-9-2"):
            self.rewind(9)
            self.assertEqual(self.latest()[0], 9)
            metrics = [one / "metrics.jsonl" for one in (self.folder / name, whole_run()[0])]
            self.assertEqual(*(one.read_bytes() for one in metrics))
            self.assertTrue((self.folder / name / "10").is_dir())
            self.assert_is_whole_run(self.train())

    def test_with_another_rate_the_steps_are_those_of_its_optimizer(self):
        # The last step of the first settings has rate 0.
        rates = factories.optimizer_settings(learning_rate=1e-3, final_rate_ratio=0.5)
        functions = factories.train_functions(Toy(), rates)
        self.rewind(9)
        _, state = self.latest()
        found = self.train(functions=functions)
        ((kind, arrays),) = Data().batches(range(9, NUM_STEPS))
        exact = functions.objective.at_step(9)
        expected, _ = functions.train_step(exact, state, Batch(jax.device_put(arrays), kind))
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertFalse((found.params["w"] == whole_run()[1].params["w"]).all())

    def test_nothing_moves_where_there_is_no_such_checkpoint_or_a_damaged_one(self):
        (self.folder / "checkpoints/9/state/manifest.ocdbt").write_bytes(b"")
        for step, error in (
            (3, "--continue_from is 3, must be a step of a checkpoint in .*: 9, 10"),
            (9, "--continue_from is 9, whose checkpoint is damaged: .*; choose another of 9, 10"),
        ):
            with self.assertRaisesRegex(ValueError, error):
                self.rewind(step)
        self.assertEmpty(list(self.folder.glob("abandoned*")))
        self.assertIn("--continue_from=10 goes on", advice(self.folder))


if __name__ == "__main__":
    absltest.main()
