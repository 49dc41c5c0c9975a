"""Python on pages that explain, and the examples in docstrings."""

import contextlib
import doctest
import io
import re
import sys
import types
from unittest import mock

import numpy as np
from absl.testing import parameterized

from knn_sampling import blockwise, softmax
from tests import folders, pages
from tests.training import program_test
from xlm.experiment import experiment, objectives, schema, streams
from xlm.experiment import model as builders
from xlm.training import row_adamw
from xlm.training.loop import train
from xlm.training.metrics import read_metrics


def blocks(page: str) -> list[str]:
    return [one.text for one in pages.blocks(page) if one.language == "python"]


class PagesTest(folders.FolderTest):
    def define(self, name: str, code: str) -> None:
        module = types.ModuleType(name)
        self.enter_context(mock.patch.dict(sys.modules, {name: module}))
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
        *_, code = blocks("own_objective.md")
        self.define("decayed", code)
        config = program_test.config("plain")
        config.objective, config.train.num_steps = "decayed:build", 4
        found = self.train(config)[-1]
        self.assertGreater(found["train/squares"], 1)
        loss = found["train/plain_loss"] + 1e-4 * found["train/squares"]
        self.assertAlmostEqual(found["train/loss"], loss, places=4)

    def test_own_objective(self):
        module, recipe, _ = blocks("own_objective.md")
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
