"""Python on pages that explain, and the examples in docstrings."""

import contextlib
import dataclasses
import doctest
import io
import re
import sys
import types
from unittest import mock

import numpy as np
from absl.testing import parameterized

from knn_sampling import blockwise, softmax
from tests import commands, folders, pages, run_models_test
from tests.training import program_test
from xlm.common import artifacts
from xlm.experiment import evaluators, experiment, masked_lm, objectives, schema, streams
from xlm.experiment import model as builders
from xlm.experiment.data import Folders
from xlm.interop import model_folder
from xlm.models.encoder import Encoder, init_params
from xlm.objectives.objective import Objective
from xlm.training import row_adamw
from xlm.training.loop import train
from xlm.training.metrics import read_metrics


def blocks(page: str) -> list[str]:
    return [one.text for one in pages.blocks(page) if one.language == "python"]


class PagesTest(folders.FolderTest):
    def define(self, name: str, code: str) -> None:
        module = types.ModuleType(name)
        sys.modules[name] = module  # no mock.patch.dict, which takes away what a test imports
        self.addCleanup(sys.modules.pop, name)
        exec(code, vars(module))

    def train(self, config) -> list[dict[str, float]]:
        """Train with the objective that the config names, and return the records of training."""
        dataset, mesh = program_test.small_dataset(), builders.mesh(config)
        functions = builders.train_functions(
            config, objectives.objective(config, dataset, mesh), mesh
        )
        data = streams.training_data(config, dataset, mesh)
        train(functions, builders.train_settings(config), self.folder / "run", data)
        records = read_metrics(self.folder / "run" / "metrics.jsonl")
        return [one for one in records if "train/loss" in one]

    def test_a_term_beside_masked_lm(self):
        *_, code, _ = blocks("own_objective.md")
        self.define("decayed", code)
        config = program_test.config("plain")
        config.objective, config.train.num_steps = "decayed:build", 4
        found = self.train(config)[-1]
        self.assertGreater(found["train/squares"], 1)
        loss = found["train/plain_loss"] + 1e-4 * found["train/squares"]
        self.assertAlmostEqual(found["train/loss"], loss, places=4)

    def test_own_objective(self):
        module, recipe, *_ = blocks("own_objective.md")
        self.define("bigram", module)
        path = self.write("bigram_config.py", recipe)
        named = schema.checked(experiment.load_recipe(str(path)))

        config = program_test.config("plain")
        config.objective, config.bigram = named.objective, named.bigram
        config.optimizer.learning_rate, config.train.num_steps = 0.1, 30
        losses = [one["train/loss"] for one in self.train(config)]
        uniform = np.log(program_test.PADDED)
        self.assertBetween(losses[0], 0.9 * uniform, 1.1 * uniform)
        self.assertLess(losses[-1], losses[0] - 0.3)

    def run_of(self, name: str):
        """A run of an objective with random parameters: its config, folders, rows, parameters."""
        config = run_models_test.config(objective=f"{name}:build")
        folders = Folders(self.folder / "runs" / name)
        dataset = run_models_test.write_rows(folders)
        _, params = run_models_test.write_run(folders, config, dataset)
        return config, folders, dataset, params

    def export(self, folders: Folders, name: str):
        """Export a run, which must encode a text as the run does; return its parameters."""
        given = f"--workdir={folders.workdir}", f"--objective={name}:build"
        output, texts = self.folder / "model", self.write("texts.txt", "ab ba\n")
        commands.execute("export_model", *given, f"--output={output}")
        vectors = []
        for at, source in enumerate((given, [f"--workdir={output}"])):
            path = self.folder / f"{at}.npy"
            commands.execute("encode", *source, f"--input={texts}", f"--output={path}")
            vectors.append(np.load(path))
        np.testing.assert_allclose(*vectors, atol=1e-6)
        self.assertGreater(abs(vectors[0]).max(), 0)
        return model_folder.read_model(output)[1]

    def test_a_run_with_a_term_beside_masked_lm_is_evaluated_and_exported(self):
        *_, code, recipe = blocks("own_objective.md")
        self.define("decayed", code)
        path = self.write("decayed_config.py", recipe)
        named = schema.checked(experiment.load_recipe(str(path)))
        self.assertEqual((named.objective, named.data.contrast_share), ("decayed:build", 0))

        own = sys.modules["decayed"].Decayed  # with a parameter of its own, as the page says
        self.enter_context(mock.patch.object(own, "init", lambda one, key: {
            **one.masked_lm.init(key), "scale": np.ones(3, np.float32)}))  # fmt: skip
        config, folders, dataset, params = self.run_of("decayed")
        mesh = run_models_test.mesh()
        report = experiment.Experiment(config, folders.workdir).evaluate()
        found = artifacts.read_object(report.with_name("results.json"))["losses"]
        config.objective = "masked_lm"
        plain = objectives.objective(config, dataset, mesh)
        exact = evaluators.exact_masked_lm(config, plain, dataset, mesh, in_training=False)
        self.assertAlmostEqual(found["aa"]["loss"], exact.run(params)["aa"].loss, places=5)
        self.assertTrue(report.with_name("report.html").exists())
        exported = self.export(folders, "decayed")
        self.assertEqual(set(exported), set(params) - {"scale"})
        self.assertIn("head", exported)

    def test_an_encoder_without_a_head_is_exported_but_has_no_loss(self):
        @dataclasses.dataclass(frozen=True, eq=False)
        class Own(Objective):
            encoder: Encoder

            def init(self, key):
                return {"mine": init_params(self.encoder, key, has_head=False)}

            def encoder_params(self, params):
                return params["mine"]

        self.define("headless", "")
        sys.modules["headless"].build = lambda setup: Own(
            Encoder(masked_lm.encoder_settings(setup))
        )
        config, folders, _, params = self.run_of("headless")
        self.assertEqual(set(self.export(folders, "headless")), set(params["mine"]))
        with self.assertRaisesRegex(ValueError, "Own has no masked LM .*, so no held-out loss"):
            experiment.Experiment(config, folders.workdir).evaluate()

    def test_output_layer(self):
        (code,) = blocks("output_layer.md")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        said = re.findall(r"# ([0-9.]+) nats", code)
        self.assertEqual(f"{float(printed.getvalue()):.2f}", *said)


class DoctestsTest(parameterized.TestCase):
    @parameterized.parameters(blockwise, softmax, row_adamw)
    def test_examples(self, module):
        found = doctest.testmod(module)
        self.assertGreater(found.attempted, 0)
        self.assertEqual(found.failed, 0)
