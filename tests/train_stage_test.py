"""Settings of a run that is resumed, and of one that goes on from a checkpoint with others."""

from absl.testing import parameterized

from configs import quickstart
from tests import folders
from xlm.common import artifacts
from xlm.experiment import data as data_builders


class Case(folders.FolderTest):
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


class ResumeTest(Case):
    def resume(self, changes: dict, **optimizer) -> None:
        """Open the stage of a run under a config with changes."""
        self.stage(**optimizer).claim()
        self.stage(**optimizer, **changes)

    def test_only_what_changes_no_step_may_change(self):
        self.resume({
            "train.log_every": 7, "train.keep_checkpoints": 9, "train.keep_every": 5,
            "train.deterministic": True, "mesh.slices": 2, "mesh.fsdp": 2,
            "train.tensorboard": True, "train.peak_flops": 1e12, "train.profile_from": 5,
            "train.profile_steps": 5, "train.evaluate_every": 7, "train.checkpoint_every": 9,
            "data.loader": "tf.data", "data.prefetch": 9, "data.read_threads": 0,
            "data.read_ahead": 0, "evaluation.max_sequences": 7,
        })  # fmt: skip
        changes = {
            "train.num_steps": 7, "train.batch_size": 8, "train.seed": 1, "data.alpha": 0.1,
            "optimizer.schedule": "cosine", "model.num_heads": 4, "output_layer.k": 3,
            "train.prng": "rbg", "data.block_bytes": 1 << 20, "data.window_blocks": 8,
        }  # fmt: skip
        keys = "".join(f"  {key}: there .*, now .*\n" for key in sorted(changes))
        with self.assertRaisesRegex(ValueError, f"another config:\n{keys}Choose"):
            self.resume(changes)

    def test_a_run_from_before_a_key_existed_has_its_default(self):
        self.stage().claim()
        recorded = artifacts.read_json(self.path)
        del recorded["optimizer"]["muon_momentum"], recorded["model"]["position"]
        recorded["data"]["pair_buckets"] = [128]  # a key that is gone
        artifacts.write_json(self.path, recorded)
        with self.assertRaisesRegex(
            ValueError, "config:\n  model.position: there 'learned', now 'gated'\nChoose"
        ):
            self.stage()
        self.stage(model__position="learned")

    def test_what_is_missing_is_told_with_what_to_run(self):
        with self.assertRaisesRegex(ValueError, "rows holds no .* run prepare_data.py"):
            data_builders.open_packed_dataset(self.folders)
        with self.assertRaisesRegex(ValueError, "spm.model does not exist; run build_vocab.py"):
            self.folders.read_tokenizer()

    @parameterized.parameters("evaluate_every", "checkpoint_every")
    def test_when_rows_are_brought_up_to_date_may_not(self, key):
        with self.assertRaisesRegex(ValueError, f"train.{key}: there 2, now 7"):
            self.resume({f"train.{key}": 7}, optimizer__embedding_update="rows")


class PhasesTest(Case):
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
