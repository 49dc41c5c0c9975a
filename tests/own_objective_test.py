"""An objective that this project does not have: a file, a section of the config, its name."""

import dataclasses
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from builders import evaluators, objectives, streams
from builders import model as builders
from tests import toy_objective
from tests.training import program_test
from training.loop import train
from training.metrics import read_metrics
from training.sharding import MeshSettings, make_mesh


def config_of(**changes):
    config = program_test.config("plain")
    config.objective = "tests.toy_objective:build"
    config.skip_gram = ConfigDict({"width": 8})
    config.optimizer.update(embedding_update="rows", learning_rate=0.05)
    config.update_from_flattened_dict(changes)
    return config


class OwnObjectiveTest(parameterized.TestCase):
    def functions(self, config, axes=(1, 1, 1)):
        settings = MeshSettings(*axes, vocab_multiple=8, rules=config.mesh.rules)
        mesh = make_mesh(settings, jax.devices()[: np.prod(axes)])
        objective = objectives.objective(config, program_test.store(), mesh)
        self.assertEmpty(
            evaluators.training_evaluators(config, objective, program_test.store(), mesh)
        )
        return builders.train_functions(config, objective, mesh)

    def train(self, functions, config, folder, num_steps=8):
        settings = dataclasses.replace(builders.train_settings(config), num_steps=num_steps)
        data = streams.training_data(config, program_test.store(), functions.mesh)
        return train(functions, settings, folder, data)

    def new_folder(self) -> pathlib.Path:
        return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def test_two_tables_and_what_it_learns_besides_go_through_the_engine(self):
        config, whole, stopped = config_of(), self.new_folder(), self.new_folder()
        functions = self.functions(config)
        first = jax.device_get(functions.init(np.int32(0)))
        state = self.train(functions, config, whole)
        self.train(functions, config, stopped, num_steps=4)
        again = self.train(self.functions(config), config, stopped)
        jax.tree.map(np.testing.assert_array_equal, again, state)

        seen = 8 * config.train.batch_size * program_test.L
        self.assertEqual(state.extra["counts"].sum() - len(state.extra["counts"]), seen)
        for name in ("input", "output"):
            moved = np.any(state.params[name]["table"] != first.params[name]["table"], axis=1)
            self.assertGreater(moved.mean(), 0.3)
            self.assertIn(f"{name}/table", state.opt_state.tables)
        losses = [r["train/loss"] for r in read_metrics(whole / "metrics.jsonl")]
        self.assertTrue(np.isfinite(losses).all())

    def test_rows_and_devices_do_not_change_it(self):
        def trained(update: str, axes: tuple[int, int, int]):
            config = config_of(**{"optimizer.embedding_update": update})
            return self.train(self.functions(config, axes), config, self.new_folder(), 3)

        expected = trained("dense", (1, 1, 1))
        for update in ("dense", "rows"):
            with self.subTest(update):
                found = trained(update, (2, 2, 2))
                both = map(jax.tree.leaves, (found.params, expected.params))
                for a, b in zip(*both, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
                np.testing.assert_array_equal(found.extra["counts"], expected.extra["counts"])

    @parameterized.parameters(
        ("nothing", "objective is 'nothing', must be one of masked_lm"),
        ("tests.nowhere:build", "'tests.nowhere:build' cannot be imported: No module"),
        ("tests.toy_objective:make", "'tests.toy_objective:make' cannot be imported: .*make"),
    )
    def test_a_name_that_leads_nowhere(self, name, message):
        with self.assertRaisesRegex(ValueError, message):
            objectives.objective(config_of(objective=name), program_test.store())

    def test_a_section_that_is_missing(self):
        config = config_of()
        del config.skip_gram
        with self.assertRaisesRegex(ValueError, "no section 'skip_gram', which objective 'tests.t"):
            objectives.objective(config, program_test.store())

    def test_its_rows_are_those_of_the_tables(self):
        self.assertEqual(toy_objective.SkipGram.tables, ("input/table", "output/table"))


if __name__ == "__main__":
    absltest.main()
