"""Training of a tiny model: interrupted against uninterrupted, sharded against one device."""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import shutil
import tempfile

import jax
import numpy as np
from absl.testing import parameterized
from jax.sharding import Mesh
from ml_collections import ConfigDict

from configs import quickstart
from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import PackedDataset, SpecialIds
from tests import factories, folders
from tests.input_pipeline.reading import pack_rows
from xlm.common.schema import settings as settings_of
from xlm.experiment import evaluators as evaluator_builders
from xlm.experiment import model as builders
from xlm.experiment import objectives, streams
from xlm.models.encoder import output_table
from xlm.objectives.masked_lm import NEIGHBOURS, TABLE
from xlm.training.checkpoint import restore_latest
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.settings import AXES, MeshSettings
from xlm.training.sharding import make_mesh
from xlm.training.signals import Stopped
from xlm.training.step import TrainFunctions

VOCAB, PADDED, L = 509, 512, 16
SINGLE = (1, 1, 1)


def config(variant: str):
    """Refreshes before steps 0, 3 and 6, evaluations after every second, checkpoints after 4 and 8.

    "plain" is the paper's algorithm. "rows" has everything for a large vocabulary: a step touches
    at most 400 of its 512 table rows. It has an encoder layer, which takes half of the compilation
    and adds no new kind of state. "hosts" is "plain" with a layer and with pairs in every step.
    """
    config = quickstart.get_config("runlocal")
    config.model.update(
        embedding_size=8, hidden_size=16, num_layers=0, mlp_size=16, max_length=L, dropout_rate=0.1
    )
    config.mesh.vocab_multiple = 8
    layer = config.output_layer
    layer.update(k=4, capacity=140, refresh_every=3, full_softmax_fraction=0.0)
    config.optimizer.warmup_steps = 2
    config.train.update(num_steps=8, batch_size=8, log_every=1, evaluate_every=2)
    config.train.checkpoint_every = 4
    config.evaluation.update(batch_size=4, num_folds=3)
    if variant in ("rows", "hosts"):
        config.model.num_layers = 1
    if variant == "hosts":
        config.data.update(kinds="joint", pair_share=0.5)
    if variant == "rows":
        layer.update(k=9, capacity=136, group_size=4)
        config.optimizer.embedding_update = "rows"
    if variant == "pairs":
        # "rows" has a position bias, the others have Muon.
        config.model.position, config.optimizer.kind = "learned", "adamw"
        config.data.update(pair_share=0.3, contrast_share=0.3, pair_positions="restart")
        config.data.alpha_phases = ((2, 0.0),)
        config.mask.update(rate=0.2, final_rate=0.6)
    return config


def write_dataset(folder: pathlib.Path, languages: tuple[str, ...] = ("aa", "bb")) -> PackedDataset:
    """Write rows of random documents in some languages, and pairs of these."""
    special = SpecialIds(bos=0, pad=1, eos=2, unk=3, mask=4)
    rng = np.random.default_rng(0)
    statistics: dict[str, dict[str, dict[str, int]]] = {language: {} for language in languages}
    for language, one in statistics.items():
        for split, count in (("train", 60), ("heldout", 4)):
            documents = [rng.integers(5, VOCAB, rng.integers(3, 40)) for _ in range(count)]
            tokens = np.concatenate(documents)
            rows = pack_rows(documents, L, special, np.dtype(np.uint16))
            np.save(folder / f"{language}.{split}.npy", rows)
            one[split] = {"rows": len(rows), "tokens": len(tokens), "characters": 3 * len(tokens)}
            if split == "train":
                np.save(folder / f"{language}.counts.npy", np.bincount(tokens, minlength=VOCAB))
        sentences = rng.integers(5, VOCAB, (20, 6))
        np.save(folder / f"set.{language}.bitext.npy", sentences.reshape(-1).astype(np.uint16))
        np.save(folder / f"set.{language}.ends.npy", np.arange(6, 126, 6))
    bitexts = {"set": tuple(statistics)}
    dataset = PackedDataset(folder, VOCAB, L, "", special, statistics, {}, bitexts)
    return factories.with_pair_rows(dataset)


@functools.cache
def small_dataset() -> PackedDataset:
    folder = tempfile.TemporaryDirectory()
    small_dataset.folder = folder  # removed when the process ends
    return write_dataset(pathlib.Path(folder.name))


def functions_of(
    config: ConfigDict, dataset: PackedDataset, axes: tuple[int, int, int]
) -> TrainFunctions:
    config.mesh.update(dict(zip(AXES, axes, strict=True)))
    mesh_settings = settings_of(MeshSettings, config.mesh)
    mesh = make_mesh(mesh_settings, jax.devices()[: np.prod(axes)])
    return builders.train_functions(config, objectives.objective(config, dataset, mesh), mesh)


@functools.cache
def functions(variant: str, axes: tuple[int, int, int]) -> TrainFunctions:
    return functions_of(config(variant), small_dataset(), axes)


@functools.cache
def evaluators(variant: str, mesh: Mesh) -> list:
    settings = config(variant)
    objective = objectives.objective(settings, small_dataset(), mesh)
    found = evaluator_builders.training_evaluators(settings, objective, small_dataset(), mesh)
    return found if variant == "rows" else found[:1]


class Stop(Exception):
    """Interruption of a run."""


def train_variant(
    functions: TrainFunctions, variant: str, folder: pathlib.Path, num_steps: int = 8, **kwargs
):
    settings = builders.train_settings(config(variant))
    data = kwargs.pop("data", data_of(variant, functions))
    return train(
        functions, dataclasses.replace(settings, num_steps=num_steps), folder, data, **kwargs
    )


def data_of(variant: str, functions: TrainFunctions) -> StreamedData:
    return streams.training_data(config(variant), small_dataset(), functions.mesh)


@dataclasses.dataclass(frozen=True)
class Broken(StreamedData):
    """Data that fail before step `stop_at`."""

    stop_at: int | None = None

    def batches(self, steps):
        for step, batch in zip(steps, super().batches(steps), strict=True):
            if step == self.stop_at:
                raise Stop
            yield batch


def train_and_watch(
    functions: TrainFunctions, variant: str, folder: pathlib.Path, stop_at: int | None = None
):
    """Train with evaluations; return the last state and the inputs of each step."""
    seen = []

    def train_step(objective, state, batch):
        index = np.asarray(state.aux_state[NEIGHBOURS])
        seen.append((int(state.step), batch["tokens"], index))
        return functions.train_step(objective, state, batch)

    watched = dataclasses.replace(functions, train_step=train_step)
    data = Broken(**vars(data_of(variant, functions)), stop_at=stop_at)
    state = None
    with contextlib.suppress(Stop):
        state = train_variant(
            watched, variant, folder, data=data, evaluators=evaluators(variant, functions.mesh)
        )
    return state, seen


class ResumeTest(folders.FolderTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        parent = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

        @functools.cache
        def whole_run(variant: str):
            """Folder, last state and steps of an uninterrupted run; do not write to it."""
            state, steps = train_and_watch(functions(variant, SINGLE), variant, parent / variant)
            return parent / variant, jax.device_get(state), steps

        cls.whole_run = staticmethod(whole_run)

    def assert_is_whole_run(self, state, folder: pathlib.Path, variant: str):
        whole, expected, _ = self.whole_run(variant)
        jax.tree.map(np.testing.assert_array_equal, state, expected)
        found, metrics = ((one / "metrics.jsonl").read_bytes() for one in (folder, whole))
        self.assertEqual(found, metrics)

    @parameterized.parameters("plain", "rows")
    def test_a_stopped_run_goes_on_as_if_nothing_had_happened(self, variant: str):
        whole, expected, expected_steps = self.whole_run(variant)
        stopped = self.new_folder()
        _, first_steps = train_and_watch(functions(variant, SINGLE), variant, stopped, stop_at=5)
        # Resumes from the checkpoint after step 4, with the index of step 3.
        fresh = functions.__wrapped__(variant, SINGLE)
        state, steps = train_and_watch(fresh, variant, stopped)
        self.assert_is_whole_run(state, stopped, variant)
        self.assertEqual([step[0] for step in first_steps], [0, 1, 2, 3, 4])
        self.assertEqual([step[0] for step in steps], [4, 5, 6, 7])
        indices = [step[2] for step in expected_steps]
        changes = [not np.array_equal(a, b) for a, b in itertools.pairwise(indices)]
        self.assertEqual(changes, [False, False, True, False, False, True, False])
        jax.tree.map(np.testing.assert_array_equal, first_steps, expected_steps[:5])
        jax.tree.map(np.testing.assert_array_equal, steps, expected_steps[4:])
        metrics = (whole / "metrics.jsonl").read_bytes()
        self.assertEqual(metrics.count(b"eval/loss/aa"), 4)
        self.assertEqual(metrics.count(b"index/staleness"), 3)
        self.assertEqual(metrics.count(b"sampling/exact_loss"), 4 * (variant == "rows"))
        if variant == "rows":
            self.assert_all_is_on(expected, read_metrics(whole / "metrics.jsonl"))

    @parameterized.parameters(3, 4)
    def test_a_run_that_was_asked_to_stop_goes_on_as_if_it_had_not(self, stop_at):
        rows, stopped = functions("rows", SINGLE), self.new_folder()
        arguments = {"evaluators": evaluators("rows", rows.mesh)}
        with self.assertRaises(Stopped):
            train_variant(
                rows, "rows", stopped, should_stop=lambda step: step == stop_at, **arguments
            )
        # Evaluations follow even steps, and only then are all rows up to date.
        step, saved = restore_latest(stopped / "checkpoints", rows.abstract_after)
        self.assertEqual(step, stop_at)
        behind = bool((saved.opt_state.tables[TABLE].last_step < step).any())
        self.assertEqual(behind, stop_at % 2 == 1)
        state = train_variant(rows, "rows", stopped, **arguments)
        self.assert_is_whole_run(state, stopped, "rows")

    def test_a_run_of_rows_and_pairs_of_both_kinds(self):
        whole, stopped = self.new_folder(), self.new_folder()
        pairs = functions("pairs", SINGLE)
        expected = train_variant(pairs, "pairs", whole)
        train_variant(pairs, "pairs", stopped, num_steps=4)
        state = train_variant(pairs, "pairs", stopped)
        jax.tree.map(np.testing.assert_array_equal, state, expected)
        records = read_metrics(whole / "metrics.jsonl")
        self.assertEqual(read_metrics(stopped / "metrics.jsonl"), records)
        records = [r for r in records if "train/loss" in r]
        of_pairs, separate, of_rows = (
            [r for r in records if name in r]
            for name in ("train/tlm_loss", "train/contrast_loss", "train/alpha")
        )
        self.assertBetween(len(of_pairs), 1, 5)
        self.assertBetween(len(separate), 1, 5)
        self.assertEqual(len(of_pairs) + len(separate) + len(of_rows), 8)
        # The third step on rows begins the second phase.
        alphas = [config("pairs").data.alpha] * 2 + [0.0] * (len(of_rows) - 2)
        np.testing.assert_allclose([r["train/alpha"] for r in of_rows], alphas, rtol=1e-6)
        # The loss of a step lies between those of its languages.
        for r in of_rows:
            of_languages = [v for name, v in r.items() if name.startswith("train/loss/")]
            self.assertBetween(r["train/loss"], min(of_languages), max(of_languages))

    def assert_all_is_on(self, state, records: list[dict[str, float]]):
        """Otherwise the test could not detect a state that is not restored."""
        # Saved rows are up to date, and several steps did not touch some of them.
        np.testing.assert_array_equal(state.opt_state.tables[TABLE].last_step, 8)
        candidates = [r["train/candidates"] for r in records if "train/candidates" in r]
        self.assertLess(min(candidates), 128)
        stale = [r["index/staleness"] for r in records if "index/staleness" in r]
        self.assertGreater(stale[0], 0.9)  # the empty index
        self.assertGreater(min(stale[-3:]), 0)

    def test_a_checkpoint_goes_on_on_another_mesh(self):
        start, whole, folder = (self.new_folder() for _ in range(3))
        train_variant(functions("rows", SINGLE), "rows", start, num_steps=4)
        for other in (whole, folder):
            shutil.copytree(start, other)
        expected = train_variant(functions("rows", SINGLE), "rows", whole, num_steps=7)
        state = train_variant(functions("rows", (2, 2, 2)), "rows", folder, num_steps=7)
        for name, count in (("train/loss", 7), ("train/grad_norm", 7), ("index/same_language", 3)):
            mine, others = (
                [r[name] for r in read_metrics(f / "metrics.jsonl") if name in r]
                for f in (folder, whole)
            )
            self.assertLen(mine, count)
            np.testing.assert_allclose(mine, others, rtol=1e-5)
        np.testing.assert_array_equal(state.aux_state[NEIGHBOURS], expected.aux_state[NEIGHBOURS])

        rows, (table, bias) = PADDED // 2, output_table(state.params)
        matrices, (adam, *_) = state.opt_state.others.matrices[0], state.opt_state.others.others
        moments = state.opt_state.tables[TABLE]
        for array, shape in (
            (table, (rows, 2)),  # of width 8, over fsdp and data
            (moments.first_moment, (rows, 2)),
            (moments.second_moment, (rows, 2)),
            (moments.last_step, (rows,)),
            (moments.last_log_decay, (rows,)),
            (bias, (rows,)),
            (adam.mu["head"]["bias"], (rows,)),
            (matrices.mu["layers"]["mlp"]["wide"]["kernel"], (1, 8, 4)),
        ):
            self.assertLen(array.addressable_shards, 8)
            self.assertEqual({shard.data.shape for shard in array.addressable_shards}, {shape})
