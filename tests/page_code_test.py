"""Python on pages that explain: the objective of docs/own_objective.md, docs/output_layer.md."""

import contextlib
import io
import re
import sys
import types
from unittest import mock

import numpy as np
from absl.testing import absltest

from tests import commands, folders
from tests.training import program_test
from xlm.experiment import experiment, objectives, schema, streams
from xlm.experiment import model as builders
from xlm.training.loop import train
from xlm.training.metrics import read_metrics


def blocks(page: str) -> list[str]:
    text = (commands.ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


class PagesTest(folders.FolderTest):
    def test_own_objective(self):
        module, recipe = blocks("own_objective.md")
        bigram = types.ModuleType("bigram")
        self.enter_context(mock.patch.dict(sys.modules, bigram=bigram))
        exec(module, vars(bigram))
        path = self.write("bigram_config.py", recipe)
        named = schema.checked(experiment.load_recipe(str(path)))

        config = program_test.config("plain")
        config.objective, config.bigram = named.objective, named.bigram
        config.optimizer.learning_rate, config.train.num_steps = 0.1, 30
        store = program_test.store()
        mesh = builders.mesh(config)
        functions = builders.train_functions(
            config, objectives.objective(config, store, mesh), mesh
        )
        data = streams.training_data(config, store, mesh)
        train(functions, builders.train_settings(config), self.folder / "run", data)
        records = read_metrics(self.folder / "run" / "metrics.jsonl")
        losses = [one["train/loss"] for one in records if "train/loss" in one]
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


if __name__ == "__main__":
    absltest.main()
