"""Runs of replaced-token detection: stopped against uninterrupted, sharded against single."""

import functools
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest
from ml_collections import ConfigDict

from builders import data as data_builders
from builders import evaluators, objectives, streams
from builders import model as builders
from objectives.masked_lm import NEIGHBOURS
from tests.training import program_test
from training.loop import train
from training.metrics import read_metrics
from training.sharding import AXES, MeshSettings, make_mesh
from training.signals import Stopped
from training.step import TrainFunctions


def config(axes: tuple[int, int, int] = program_test.SINGLE) -> ConfigDict:
    """Text and pairs; k-NN sampling, tables by rows, two of them."""
    found = program_test.config("rows")
    found.objective = "replaced_token"
    found.replaced_token.update(generator_layers=1, embeddings="disentangled")
    found.model.update(num_layers=2, unroll=1)
    found.data.update(pair_share=0.4, pair_buckets=(program_test.L,), pair_sampling="sinkhorn")
    found.mesh.update(dict(zip(AXES, axes, strict=True)))
    return found


@functools.cache
def functions(axes: tuple[int, int, int] = program_test.SINGLE) -> TrainFunctions:
    settings = config(axes)
    mesh_settings = data_builders.settings(MeshSettings, settings.mesh, "mesh")
    mesh = make_mesh(mesh_settings, jax.devices()[: np.prod(axes)])
    objective = objectives.objective(settings, program_test.store(), mesh)
    return builders.train_functions(settings, objective, mesh)


class RunTest(absltest.TestCase):
    def run_to_the_end(self, folder: pathlib.Path, compiled: TrainFunctions, **kwargs):
        settings, mesh = config(), compiled.mesh
        evaluated = evaluators.training_evaluators(
            settings, compiled.objective, program_test.store(), mesh
        )
        return train(
            compiled,
            builders.train_settings(settings),
            folder,
            streams.training_data(settings, program_test.store(), mesh),
            evaluated[-1:],
            **kwargs,
        )

    def new_folder(self) -> pathlib.Path:
        return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "train"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "train"
        cls.state = cls().run_to_the_end(cls.whole, functions())

    def test_a_stopped_run_goes_on_as_if_nothing_had_happened(self):
        stopped = self.new_folder()
        with self.assertRaises(Stopped):
            self.run_to_the_end(stopped, functions(), should_stop=lambda step: step == 5)
        state = self.run_to_the_end(stopped, functions())
        jax.tree.map(np.testing.assert_array_equal, state, self.state)
        metrics = (self.whole / "metrics.jsonl").read_bytes()
        self.assertEqual((stopped / "metrics.jsonl").read_bytes(), metrics)

    def test_all_terms_are_recorded(self):
        records = read_metrics(self.whole / "metrics.jsonl")
        for task in ("mrtd", "trtd"):
            of_task = [r for r in records if f"train/{task}_loss" in r]
            self.assertBetween(len(of_task), 1, 7)
            for r in of_task:
                total = (
                    r[f"train/{task}/generator_loss"] + 50 * r[f"train/{task}/discriminator_loss"]
                )
                self.assertAlmostEqual(r["train/loss"], total, places=3)
        found = [r["rtd/unigram/auc"] for r in records if "rtd/unigram/auc" in r]
        self.assertLen(found, 4)
        self.assertLen(set(found), 4)  # other parameters, other scores
        self.assertTrue(all(0 < auc < 1 for auc in found))

    def test_devices_do_not_change_the_run(self):
        folder = self.new_folder()
        state = self.run_to_the_end(folder, functions((2, 2, 2)))
        found, expected = (read_metrics(f / "metrics.jsonl") for f in (folder, self.whole))
        self.assertEqual([sorted(r) for r in found], [sorted(r) for r in expected])
        for one, other in zip(found, expected, strict=True):
            for name in one.keys() & {"train/loss", "train/grad_norm", "rtd/unigram/loss"}:
                np.testing.assert_allclose(one[name], other[name], rtol=1e-5, err_msg=name)
            for name in one:
                if name.endswith("/replaced"):  # the same samples
                    self.assertEqual(one[name], other[name], name)
        np.testing.assert_array_equal(state.extra[NEIGHBOURS], self.state.extra[NEIGHBOURS])


if __name__ == "__main__":
    absltest.main()
