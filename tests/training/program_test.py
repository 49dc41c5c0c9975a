"""Training a real, tiny model: stopped against uninterrupted, sharded against single."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

from builders import data as data_builders
from builders import model as builders
from configs import quickstart
from input_pipeline.row_store import RowStore, SpecialIds, pack_rows
from models.encoder import output_table
from training.loop import train
from training.metrics import read_metrics
from training.optimizer import OptimizerSettings
from training.sharding import MeshSettings, make_mesh
from training.step import Program, make_program

VOCAB, L = 61, 16
SINGLE = (1, 1, 1)
SHARDED = ((4, 1, 2), (2, 2, 2))


@functools.cache
def config():
    """Refreshes before steps 0, 3 and 6, checkpoints after 2, 4, 6 and 8."""
    config = quickstart.get_config("runlocal")
    config.model.update(
        embedding_size=8, hidden_size=16, num_layers=1, mlp_size=16, max_length=L, dropout_rate=0.1
    )
    config.mesh.vocab_multiple = 8
    config.mesh.rules = (*config.mesh.rules, ("embed", "fsdp"))
    config.output_layer.update(k=4, capacity=40, block_size=16, refresh_every=3, exact_fraction=0.0)
    config.optimizer.warmup_steps = 2
    config.train.update(num_steps=8, batch_size=8, log_every=1, evaluate_every=2)
    config.train.checkpoint_every = 2
    config.evaluation.update(batch_size=4, num_folds=3)
    return config


def write_store(folder: pathlib.Path) -> RowStore:
    """Rows of random documents in two languages."""
    special = SpecialIds(bos=0, pad=1, eos=2, unk=3, mask=4)
    rng = np.random.default_rng(0)
    statistics: dict[str, dict[str, dict[str, int]]] = {"aa": {}, "bb": {}}
    for language, one in statistics.items():
        for split, count in (("train", 60), ("heldout", 4)):
            documents = [rng.integers(5, VOCAB, rng.integers(3, 40)) for _ in range(count)]
            tokens = np.concatenate(documents)
            rows = pack_rows(documents, L, special, np.dtype(np.uint16))
            np.save(folder / f"{language}.{split}.npy", rows)
            one[split] = {"rows": len(rows), "tokens": len(tokens), "characters": 3 * len(tokens)}
            if split == "train":
                np.save(folder / f"{language}.counts.npy", np.bincount(tokens, minlength=VOCAB))
    return RowStore(folder, VOCAB, L, "", special, statistics, {})


@functools.cache
def store() -> RowStore:
    folder = tempfile.TemporaryDirectory()
    store.folder = folder  # removed when the process ends
    return write_store(pathlib.Path(folder.name))


@functools.cache
def program(axes: tuple[int, int, int]) -> Program:
    return make_fresh_program(axes)


def make_fresh_program(axes: tuple[int, int, int]) -> Program:
    """The program over as many devices as the axes need."""
    mesh_settings = MeshSettings(*axes, vocab_multiple=8, rules=config().mesh.rules)
    return make_program(
        builders.objective(config(), store()),
        data_builders.settings(OptimizerSettings, config().optimizer, "optimizer"),
        mesh_settings,
        make_mesh(mesh_settings, jax.devices()[: np.prod(axes)]),
        num_steps=config().train.num_steps,
        length=L,
    )


class Stop(Exception):
    """What stops a run."""


class TestCase(parameterized.TestCase):
    def new_folder(self) -> pathlib.Path:
        return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "train"

    def train(self, program: Program, folder: pathlib.Path, num_steps: int = 8, **kwargs):
        settings = dataclasses.replace(builders.train_settings(config()), num_steps=num_steps)
        batches = builders.batches(config(), store())
        return train(program, settings, folder, **{"batches": batches, **kwargs})


class ResumeTest(TestCase):
    def train_and_watch(self, program: Program, folder: pathlib.Path, stop_at: int | None = None):
        """Trains with evaluations; returns the last state and what each step was given."""
        seen = []

        def train_step(state, batch, exact):
            index = None if state.index is None else np.asarray(state.index.neighbours)
            seen.append((int(state.step), int(state.index_step), batch["tokens"], index))
            return program.train_step(state, batch, exact)

        def batches(steps):
            for step, batch in zip(steps, builders.batches(config(), store())(steps), strict=True):
                if step == stop_at:
                    raise Stop
                yield batch

        objective = builders.objective(config(), store())
        evaluator = builders.exact_masked_lm(config(), objective, store(), in_training=True)
        state = None
        with contextlib.suppress(Stop):
            state = self.train(
                dataclasses.replace(program, train_step=train_step),
                folder,
                batches=batches,
                evaluators=[evaluator],
            )
        return state, seen

    def test_a_stopped_run_goes_on_as_if_nothing_had_happened(self):
        whole, stopped = self.new_folder(), self.new_folder()
        expected, expected_steps = self.train_and_watch(program(SINGLE), whole)
        _, first_steps = self.train_and_watch(program(SINGLE), stopped, stop_at=5)
        # From the checkpoint after step 4, with the index of step 3.
        state, steps = self.train_and_watch(make_fresh_program(SINGLE), stopped)

        self.assertEqual([step[0] for step in first_steps], [0, 1, 2, 3, 4])
        self.assertEqual([step[0] for step in steps], [4, 5, 6, 7])
        self.assertEqual([step[1] for step in expected_steps], [0, 0, 0, 3, 3, 3, 6, 6])
        jax.tree.map(np.testing.assert_array_equal, first_steps, expected_steps[:5])
        jax.tree.map(np.testing.assert_array_equal, steps, expected_steps[4:])

        jax.tree.map(np.testing.assert_array_equal, state, expected)
        metrics = (whole / "metrics.jsonl").read_bytes()
        self.assertEqual((stopped / "metrics.jsonl").read_bytes(), metrics)
        self.assertEqual(metrics.count(b"eval/loss/aa"), 4)

    def test_the_index_of_the_checkpoint_is_another_than_a_fresh_one(self):
        # Or else the test above could not tell whether it was restored.
        folder = self.new_folder()
        state = self.train(program(SINGLE), folder, num_steps=4)
        old = np.asarray(state.index.neighbours)
        fresh = program(SINGLE).refresh(state)
        self.assertFalse(np.array_equal(fresh.index.neighbours, old))


class LayoutTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.start, cls.whole = (
            pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) for _ in range(2)
        )
        case = cls()
        case.train(program(SINGLE), cls.start, num_steps=4)
        shutil.copytree(cls.start, cls.whole, dirs_exist_ok=True)
        cls.state = case.train(program(SINGLE), cls.whole, num_steps=7)

    def assert_same_run(self, state, folder: pathlib.Path):
        found, expected = (
            [record["train/loss"] for record in read_metrics(f / "metrics.jsonl")]
            for f in (folder, self.whole)
        )
        self.assertLen(found, 7)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        self.assertEqual(state.index_step, 6)
        np.testing.assert_array_equal(state.index.neighbours, self.state.index.neighbours)

    def assert_is_sharded(self, state, axes: tuple[int, int, int]):
        _, fsdp, model = axes
        for tree in (state.params, *jax.tree.leaves(state.opt_state, is_leaf=_is_moments)):
            if not _is_moments(tree):
                continue
            table, bias = output_table(tree)
            self.assertEqual(table.shape, (64, 8))
            self.assertLen(table.addressable_shards, 8)
            for shard in table.addressable_shards:
                self.assertEqual(shard.data.shape, (64 // model, 8 // fsdp))
            self.assertEqual(bias.addressable_shards[0].data.shape, (64 // model,))

    @parameterized.parameters(*SHARDED)
    def test_devices_do_not_change_the_run(self, *axes):
        folder = self.new_folder()
        state = self.train(program(axes), folder, num_steps=7)
        self.assert_same_run(state, folder)
        self.assert_is_sharded(state, axes)

    @parameterized.parameters(*SHARDED)
    def test_a_checkpoint_goes_on_on_another_mesh(self, *axes):
        folder = self.new_folder()
        shutil.copytree(self.start, folder)
        state = self.train(program(axes), folder, num_steps=7)
        self.assert_same_run(state, folder)
        self.assert_is_sharded(state, axes)


def _is_moments(tree) -> bool:
    """Whether a part of the state is like the parameters."""
    return isinstance(tree, dict) and "embeddings" in tree


if __name__ == "__main__":
    absltest.main()
