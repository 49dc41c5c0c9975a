"""An objective that this project does not have: a file, a section of the config, its name."""

import contextlib
import dataclasses
import sys
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from research import forgetting
from tests import commands, folders, tiny_tasks
from tests.task_results import task_results
from tests.training import program_test
from xlm.common import artifacts
from xlm.experiment import evaluators, initial, objectives, pretrained, streams, task_runs
from xlm.experiment import model as builders
from xlm.experiment.data import Folders
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh


def config_of(**changes):
    config = program_test.config("plain")
    config.objective = "tests.toy_objective:build"
    config.skip_gram = ConfigDict({"width": 8})
    config.optimizer.update(embedding_update="rows", learning_rate=0.05)
    config.update_from_flattened_dict(changes)
    return config


class OwnObjectiveTest(folders.FolderTest):
    def functions(self, config, axes=(1, 1, 1)):
        settings = MeshSettings(*axes, vocab_multiple=8, rules=config.mesh.rules)
        mesh = make_mesh(settings, jax.devices()[: np.prod(axes)])
        objective = objectives.objective(config, program_test.small_dataset(), mesh)
        self.assertEmpty(
            evaluators.training_evaluators(config, objective, program_test.small_dataset(), mesh)
        )
        return builders.train_functions(config, objective, mesh)

    def train(self, functions, config, folder, num_steps=8):
        settings = dataclasses.replace(builders.train_settings(config), num_steps=num_steps)
        data = streams.training_data(config, program_test.small_dataset(), functions.mesh)
        return train(functions, settings, folder, data)

    def test_two_tables_and_what_it_learns_besides_go_through_the_engine(self):
        config, whole, stopped = config_of(), self.folder / "whole", self.folder / "stopped"
        functions = self.functions(config)
        first = jax.device_get(functions.init(np.int32(0)))
        state = self.train(functions, config, whole)
        self.train(functions, config, stopped, num_steps=4)
        again = self.train(self.functions(config), config, stopped)
        jax.tree.map(np.testing.assert_array_equal, again, state)

        seen = 8 * config.train.batch_size * program_test.L
        self.assertEqual(state.aux_state["counts"].sum() - len(state.aux_state["counts"]), seen)
        for name in ("input", "output"):
            moved = np.any(state.params[name]["table"] != first.params[name]["table"], axis=1)
            self.assertGreater(moved.mean(), 0.3)
            self.assertIn(f"{name}/table", state.opt_state.tables)
        losses = [r["train/loss"] for r in read_metrics(whole / "metrics.jsonl")]
        self.assertTrue(np.isfinite(losses).all())

    def test_a_name_or_section_that_is_missing(self):
        for name, message in (
            ("nothing", "objective is 'nothing', must be one of masked_lm"),
            ("tests.nowhere:build", "'tests.nowhere:build' cannot be imported: No module"),
            ("tests.toy_objective:make", "'tests.toy_objective:make' cannot be imported: .*make"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                objectives.objective(config_of(objective=name), program_test.small_dataset())
        config = config_of()
        del config.skip_gram
        with self.assertRaisesRegex(ValueError, "no section 'skip_gram', which objective 'tests.t"):
            objectives.objective(config, program_test.small_dataset())

    def test_a_module_in_the_folder_that_the_command_runs_in(self):
        self.write("near_by.py", "from tests.toy_objective import build")
        dataset = dataclasses.replace(
            program_test.small_dataset(), folder=self.folder / "runs/one/rows"
        )
        with (
            mock.patch.object(sys, "path", [str(self.folder), *sys.path]),
            contextlib.chdir(self.folder),
        ):
            objectives.objective(config_of(objective="near_by:build"), dataset)

    def test_a_search_path_among_data_that_does_not_hold_the_module(self):
        (self.folder / "cache").mkdir()
        with mock.patch.object(sys, "path", [*sys.path, str(self.folder / "cache")]):
            dataset = dataclasses.replace(program_test.small_dataset(), folder=self.folder / "rows")
            objectives.objective(config_of(), dataset)


class CodeOfFoldersTest(folders.FolderTest):
    """A module in the folder `runs` of a checkout, which a run of somebody else names."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(sys, "path", [str(self.folder), *sys.path]))
        self.enter_context(mock.patch.object(objectives, "_ROOT", self.folder))
        self.workdir = self.folder / "runs/theirs"
        for place in ("runs", "work/own", "own"):
            tiny_tasks.write(
                self.folder / place / "canary.py", f"open({str(self.folder / 'ran')!r}, 'w')"
            )
        recorded = {**config_of().to_dict(), "objective": "runs.canary:build"}
        artifacts.write_json(self.workdir / "train/settings.json", recorded)
        artifacts.write_bytes(self.workdir / "vocab/spm.model", tiny_tasks.tokenizer())

    def tearDown(self):
        self.assertFalse((self.folder / "ran").exists())
        super().tearDown()

    def read_initial(self):
        config = config_of(**{"train.init_from": str(self.workdir)})
        folders = Folders(self.folder / "mine")
        artifacts.write_bytes(folders.tokenizer, tiny_tasks.tokenizer())
        initial.initial_params(config, None, folders)

    def search(self):
        run, text = self.folder / "run", self.folder / "in.txt"
        settings = tiny_tasks.config("tatoeba", init_from=str(self.workdir)).to_dict()
        artifacts.write_json(run / "settings.json", {**settings, "objective": "runs.canary:build"})
        artifacts.write_json(run / "results.json", task_results("tatoeba", {"af": 0.5}))
        tiny_tasks.write(text, "a\n")
        given = f"--workdir={run}", f"--input={text},{text}", f"--output={self.folder / 'out'}"
        commands.load("predict")
        raise ValueError(commands.execute("predict", *given).stderr)

    def fine_tune(self):
        config = tiny_tasks.config("udpos", init_from=str(self.workdir))
        task_runs.run(config, self.folder / "tuned")

    @parameterized.named_parameters(
        ("pretrained", lambda self: pretrained.read_pretrained(str(self.workdir))),
        ("sizes", lambda self: pretrained.read_settings(str(self.workdir))),
        ("fine_tuning", fine_tune),
        ("initial", read_initial),
        ("frozen_generator", lambda self: evaluators._frozen_generator(
            str(self.workdir), "replaced_token", program_test.small_dataset())),
        ("predict", search),
        ("forgetting", lambda self: forgetting.read_model("--before", self.workdir, 1)),
    )  # fmt: skip
    def test_a_folder_chooses_no_code(self, read):
        message = "train/settings.json: objective is 'runs.canary:build', which is not built in"
        with self.assertRaisesRegex(ValueError, message):
            read(self)

    @parameterized.parameters("runs.canary:build", "work.own.canary:build", "own.canary:build")
    def test_a_module_among_runs_or_data_is_never_imported(self, name):
        config = config_of(objective=name, **{"corpus.root": str(self.folder / "own")})
        dataset = dataclasses.replace(
            program_test.small_dataset(), folder=self.folder / "work/rows"
        )
        with self.assertRaisesRegex(ValueError, f"{name}', which would be imported from .*folder"):
            objectives.objective(config, dataset)

    def test_the_objective_that_a_user_names_is_taken_from_a_folder(self):
        recorded = config_of().to_dict()
        artifacts.write_json(self.workdir / "train/settings.json", recorded)
        found = pretrained.run_config(Folders(self.workdir), recorded["objective"])
        self.assertEqual(found.skip_gram.width, 8)
