"""Settings of runs that go on from a checkpoint with other settings."""

from absl.testing import parameterized

from configs import quickstart
from tests import folders
from xlm.common import artifacts
from xlm.experiment import data as data_builders


class PhasesTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.folders = data_builders.Folders(self.folder)
        artifacts.write_json(self.folders.rows / "settings.json", {})
        self.folders.vocab.mkdir()
        self.path = self.folders.train / "settings.json"
        self.checkpoint = self.folders.train / "checkpoints" / "1"
        self.checkpoint.mkdir(parents=True)

    def stage(self, step: int | None = None, **changes) -> artifacts.Stage:
        config = quickstart.get_config("runlocal")
        config.train.num_steps = 8
        config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
        return data_builders.open_train_stage(config, self.folders, step)

    def test_each_phase_is_recorded_and_its_settings_are_those_of_the_folder(self):
        self.stage().claim()
        first = artifacts.read_object(self.path)
        for step, old, new in ((4, None, 1e-5), (2, 1e-5, 1e-6)):
            old = first["optimizer"]["learning_rate"] if old is None else old
            stage = self.stage(step, optimizer__learning_rate=new)
            self.assertFalse(stage.claimed)
            stage.claim()
            found = artifacts.read_object(self.path)
            changed = {"optimizer.learning_rate": [old, new]}
            self.assertEqual(found["phases"][-1], {"step": step, "changed": changed})
            self.assertEqual(found["optimizer"]["learning_rate"], new)
        self.assertLen(found["phases"], 2)
        # Without the flag the run goes on; with it, it is the same command again.
        for same in (None, 2):
            self.assertTrue(self.stage(same, optimizer__learning_rate=1e-6).claimed)
        with self.assertRaisesRegex(ValueError, "learning_rate: there 1e-06, now"):
            self.stage()
        # As they are, from another checkpoint.
        self.assertFalse(self.stage(1, optimizer__learning_rate=1e-6).claimed)

    def test_before_the_first_checkpoint_a_run_may_take_other_settings(self):
        self.stage(model__hidden_size=1_000_000).claim()  # out of memory
        with self.assertRaisesRegex(ValueError, "hidden_size: there 1000000, now 32"):
            self.stage()
        self.checkpoint.rmdir()
        self.stage().claim()
        self.assertEqual(artifacts.read_object(self.path)["model"]["hidden_size"], 32)

    @parameterized.parameters(
        ({"train__seed": 1}, "train.seed is 0 in .* and now 1, which would change"),
        ({"model__num_heads": 4}, "model.num_heads is"),
        ({"optimizer__embedding_update": "rows"}, "optimizer.embedding_update is"),
        ({"optimizer__clip_norm": 0.1, "data__alpha": 0.2}, "data.alpha is"),
        ({"train__num_steps": 3}, "--continue_from is 3, must be below train.num_steps 3"),
        # Phases of robust sampling keep the number of steps.
        ({"robust__num_phases": 2, "train__num_steps": 70}, "train.num_steps is"),
    )
    def test_what_a_phase_may_not_change(self, changes, error):
        with self.assertRaisesRegex(ValueError, "--continue_from is 3, but .*train has no run"):
            self.stage(3)
        self.stage(**{key: changes[key] for key in changes if key == "robust__num_phases"}).claim()
        with self.assertRaisesRegex(ValueError, error):
            self.stage(3, **changes)

    def test_a_run_that_changes_meanwhile_is_refused(self):
        self.stage().claim()
        mine, theirs = (self.stage(2, optimizer__learning_rate=rate) for rate in (1e-5, 1e-6))
        theirs.claim()
        with self.assertRaisesRegex(ValueError, "learning_rate: there 1e-06, now 1e-05"):
            self.enter_context(mine.locked(claims=False))
