"""Replaced-token detection: interrupted against uninterrupted, sharded against one device.

All runs have a narrow generator, masked spans, correction of replaced tokens, and robust sampling
of pairs. Its phases begin with steps 2 and 5.
"""

import dataclasses
import functools
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.pair_phases import PairRecord, load_pair_record, write_pair_record
from tests import folders
from tests.training import program_test
from xlm.experiment import evaluators, robust
from xlm.experiment import model as builders
from xlm.experiment.robust import RECORD
from xlm.objectives.masked_lm import NEIGHBOURS
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped
from xlm.training.step import TrainFunctions


def config() -> ConfigDict:
    """Text and pairs in every step; k-NN sampling, and two tables by rows."""
    found = program_test.config("rows")
    found.objective = "replaced_token"
    # Layers would multiply the compilation. `program_test` has layers, Muon and a gated position
    # bias.
    found.replaced_token.update(generator_layers=0, embeddings="disentangled")
    found.replaced_token.update(generator_width=0.5, corrective_weight=1.0)
    found.mask.span = 3.0
    found.model.update(num_layers=0, position="learned")
    found.optimizer.kind = "adamw"
    found.data.update(kinds="joint", pair_share=0.5, pair_sampling="sinkhorn")
    found.robust.update(num_phases=2, shrink=False)  # which so few examples would make uniform
    return found


@functools.cache
def small_dataset() -> PackedDataset:
    folder = tempfile.TemporaryDirectory()
    small_dataset.folder = folder  # removed when the process ends
    return program_test.write_dataset(pathlib.Path(folder.name), ("aa", "bb", "cc"))


@functools.cache
def functions(axes: tuple[int, int, int]) -> TrainFunctions:
    return program_test.functions_of(config(), small_dataset(), axes)


@functools.cache
def detection(axes: tuple[int, int, int]) -> list:
    """The last evaluator of training, with compiled programs that all runs share."""
    compiled = functions(axes)
    found = evaluators.training_evaluators(
        config(), compiled.objective, small_dataset(), compiled.mesh
    )
    return found[-1:]


def tearDownModule():
    for one in (functions, detection):
        one.cache_clear()  # otherwise their programs would stay loaded


class RunTest(folders.FolderTest):
    def run_to_the_end(
        self, folder: pathlib.Path, axes: tuple[int, int, int] = program_test.SINGLE, **kwargs
    ):
        settings, compiled = builders.train_settings(config()), functions(axes)
        data = robust.training_data(config(), small_dataset(), compiled.mesh, folder)
        return train(compiled, settings, folder, data, detection(axes), **kwargs)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "train"
        cls.state = cls().run_to_the_end(cls.whole)

    @parameterized.parameters(4, 5)  # within a phase, and before the solution of one
    def test_a_stopped_run_goes_on_as_if_nothing_had_happened(self, stop_at):
        stopped = self.new_folder()
        with self.assertRaises(Stopped):
            self.run_to_the_end(stopped, should_stop=lambda step: step == stop_at)
        state = self.run_to_the_end(stopped)
        jax.tree.map(np.testing.assert_array_equal, state, self.state)
        for name in ("metrics.jsonl", RECORD):
            self.assertEqual((stopped / name).read_bytes(), (self.whole / name).read_bytes())

    def test_phases_of_a_lost_future_are_solved_again(self):
        ahead = self.new_folder()
        with self.assertRaises(Stopped):
            self.run_to_the_end(ahead, should_stop=lambda step: step == 4)
        shutil.copy(self.whole / RECORD, ahead / RECORD)  # as if killed after step 5
        record = load_pair_record(ahead / RECORD)
        first, later = record.phases
        self.assertEqual((first.step, later.step), (2, 5))
        for phase in record.phases:
            self.assertNotEqual(phase.weights, record.base)
            self.assertAlmostEqual(phase.divergence, config().robust.rho, places=9)
        wrong = dataclasses.replace(later, weights=record.base)
        write_pair_record(ahead / RECORD, PairRecord(record.base, (first, wrong)))
        self.run_to_the_end(ahead)
        self.assertEqual((ahead / RECORD).read_bytes(), (self.whole / RECORD).read_bytes())

    def test_devices_do_not_change_the_run(self):
        folder = self.new_folder()
        state = self.run_to_the_end(folder, (2, 2, 2))
        found, expected = (read_metrics(f / "metrics.jsonl") for f in (folder, self.whole))
        self.assertEqual([sorted(r) for r in found], [sorted(r) for r in expected])
        for one, other in zip(found, expected, strict=True):
            # Rounding differs, and differences add up over steps.
            rtol = 1e-5 if one["step"] <= 4 else 1e-4
            for name in one.keys() & {"train/loss", "train/grad_norm", "rtd/unigram/loss"}:
                np.testing.assert_allclose(one[name], other[name], rtol=rtol, err_msg=name)
            for name in one:
                if name.endswith("/replaced"):  # the same samples
                    self.assertEqual(one[name], other[name], name)
        # The index of step 6: nearly equal neighbours may change places.
        before, after = (np.asarray(x.aux_state[NEIGHBOURS]) for x in (self.state, state))
        is_other = after != before
        self.assertLess(is_other.mean(), 1e-3)
        of_devices, of_one = (load_pair_record(f / RECORD).phases for f in (folder, self.whole))
        for one, other in zip(of_devices, of_one, strict=True):
            for pair, weight in other.weights.items():
                np.testing.assert_allclose(one.weights[pair], weight, rtol=1e-3)
