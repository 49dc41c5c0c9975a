"""Two checkpoints compared on rows: against the evaluators themselves, and refusals."""

import dataclasses
import functools
import pathlib
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest

from configs import xy_lent
from input_pipeline.packed_dataset import PackedDataset
from research import forgetting
from research.forgetting import AUC, LOSS
from tests import factories, golden, tiny_tasks
from tests.cli.stores import write_dataset
from tests.task_results import task_results
from xlm.common import artifacts
from xlm.experiment import data as data_builders
from xlm.experiment import evaluators, model, objectives
from xlm.experiment.masked_lm import encoder_of, masked_lm_of
from xlm.experiment.pretrained import read_run
from xlm.training.checkpoint import Checkpoints
from xlm.training.state import TrainState

LENGTH = 16


def write_rows(workdir: pathlib.Path, languages: str, tokenizer: bytes, seed: int) -> PackedDataset:
    """Write a vocabulary and random rows, some held out, to a working directory."""
    folder = data_builders.Folders(workdir).rows
    folder.mkdir(parents=True)
    statistics = factories.write_rows(
        folder, languages.split(), LENGTH, 4, 56, 160, tiny_tasks.VOCAB, seed
    )
    return write_dataset(workdir, tokenizer, tiny_tasks.VOCAB, LENGTH, statistics)


def config_of(objective: str = "replaced_token", **changes):
    config = xy_lent.get_config("runlocal")
    config.objective = objective
    config.model.update(num_layers=1, embedding_size=8, hidden_size=8, mlp_size=8, unroll=1)
    config.data.pair_share = 0.0
    config.store.length = LENGTH
    config.mesh.data = 1
    config.update_from_flattened_dict(changes)
    return config


def initial_state(objective: str, dataset: PackedDataset) -> TrainState:
    config, mesh = (
        config_of(objective),
        forgetting.make_mesh(forgetting._ONE_DEVICE, jax.devices()[:1]),
    )
    made = objectives.objective(config, dataset, mesh)
    functions = model.train_functions(config, made, mesh)
    return factories.first_state(functions, factories.random_params(made))


def write_run(workdir: pathlib.Path, config, state: TrainState, seed: int) -> None:
    """Write a checkpoint of random parameters, none near zero."""
    folders = data_builders.Folders(workdir)
    data_builders.open_train_stage(config, folders).claim()
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda x: x + 0.5 * rng.normal(size=x.shape).astype(x.dtype), state.params
    )
    with Checkpoints(folders.train / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(7 + seed, dataclasses.replace(state, params=params))


class ForgettingTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.enterClassContext(mock.patch.object(forgetting, "read_run", functools.cache(read_run)))
        tokenizer = tiny_tasks.tokenizer()
        cls.first, cls.second, cls.masked = (cls.folder / n for n in ("first", "second", "masked"))
        # Rows of the second run have other text, in one language of the first.
        cls.stores = {
            cls.first: write_rows(cls.first, "aa bb", tokenizer, 0),
            cls.second: write_rows(cls.second, "aa", tokenizer, 1),
        }
        cls.state = initial_state("replaced_token", cls.stores[cls.first])
        for seed, workdir in enumerate(cls.stores):
            write_run(workdir, config_of(), cls.state, seed)
        dataset = write_rows(cls.masked, "aa", tokenizer, 1)
        write_run(cls.masked, config_of("masked_lm"), initial_state("masked_lm", dataset), 2)

    def changes(self) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
        """Scores before and after in the last report, by data and measure."""
        found = artifacts.read_json(self.output / forgetting.RESULTS)["changes"]
        return {
            (one["data"], one["measure"]): {
                name: (before, one["after"][name]) for name, before in one["before"].items()
            }
            for one in found
        }

    def report(self, before: pathlib.Path, after: pathlib.Path, *tasks, rows=(), **options) -> str:
        self.output = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "out"
        rows = rows or (str(self.first), str(self.second))
        tasks = [str(self.folder / name) for name in tasks]
        return forgetting.compare(before, after, rows, self.output, tasks=tasks, **options)

    def test_scores_are_those_of_the_evaluators(self):
        printed = self.report(self.first, self.second, rows=[str(self.first)])
        changes = self.changes()
        self.assertEqual(list(changes), [("first", LOSS), ("first", AUC)])
        self.assertIn(f"{self.first.name}, step 7", printed.replace("\\", ""))
        # The second model on rows of the first, in a language that its own rows lack.
        trained, dataset = (
            forgetting.read_run(data_builders.Folders(self.second)),
            self.stores[self.first],
        )
        config, mesh = config_of(), forgetting.make_mesh(forgetting._ONE_DEVICE, jax.devices()[:1])
        config.evaluation.max_sequences = 0
        exact = evaluators.exact_masked_lm(
            config, masked_lm_of(trained.objective), dataset, mesh, in_training=False
        ).run(trained.params)
        found = evaluators.detection(
            config, encoder_of(trained.objective), dataset, mesh, in_training=False
        ).run(trained.params)["unigram"]
        for measure, by_language, name in ((LOSS, exact, "loss"), (AUC, found, "auc")):
            change = changes["first", measure]
            self.assertCountEqual(change, ("aa", "bb"))
            for language, (before, after) in change.items():
                self.assertAlmostEqual(after, getattr(by_language[language], name), places=5)
                self.assertNotAlmostEqual(before, after, places=3)

    def test_a_run_and_itself(self):
        self.report(self.masked, self.masked, max_sequences=2, rows=[str(self.second)])
        ((key, change),) = self.changes().items()
        self.assertEqual(key, ("second", LOSS))
        before, after = change["aa"]
        self.assertEqual(before, after)
        self.report(self.masked, self.masked, rows=[str(self.second)])
        self.assertNotEqual(self.changes()[key]["aa"][0], before)

    @mock.patch.object(forgetting, "scores", lambda *_: {LOSS: {"aa": 4.0}})
    def test_scores_of_a_task(self):
        for task, split, title in (("cola", "validation", "cola, matthews, validation data"),):
            for name, score in (("one", 0.5), ("two", 0.4)):
                results = task_results(task, {"en": 0.8, "de": score}, split)
                artifacts.write_json(self.folder / name / "results.json", results)
            printed = self.report(self.masked, self.masked, "one", "two")
            self.assertEqual([data for data, _ in self.changes()], ["first", "second", "task"])
            self.assertIn(f"## task: {title}\n", printed)
            self.assertIn("| de | 50.0 | 40.0 | +20.0 |", printed)
        with self.assertRaisesRegex(ValueError, "--tasks names 1 folders, must be two"):
            self.report(self.masked, self.masked, "x")

    @mock.patch.object(forgetting, "read_model", mock.Mock(side_effect=AssertionError))
    def test_tasks_that_do_not_compare_are_found_first(self):
        own = task_results("text_classes", {"en": 0.5})
        for name, results in (
            ("en", task_results("xnli", {"en": 0.5})), ("de", task_results("xnli", {"de": 0.5})),
            ("dev", task_results("xnli", {"en": 0.5}, "validation")),
            ("tags", task_results("udpos", {"en": 0.5})), ("nothing", task_results("xnli", {})),
            ("report", {"changes": []}),
            ("mine", {**own, "dataset": "mine"}), ("yours", {**own, "dataset": "yours"}),
        ):  # fmt: skip
            artifacts.write_json(self.folder / f"xnli_{name}" / "results.json", results)
        for before, after, message in (
            ("en", "none", "xnli_none has no results.json; finish finetune.py there"),
            ("en", "de", "no language has a score in both .*, which have en and de; name runs"),
            ("en", "nothing", "xnli_nothing/results.json: there are no scores"),
            ("en", "dev", "xnli_en is of xnli, test data, and .*dev of xnli, validation data, so"),
            ("en", "tags", "xnli_en is of xnli, test data, and .*tags of udpos, test data, so"),
            ("en", "report",
             "results.json: the object has the unknown field changes; name the --w"),
            ("mine", "yours", "xnli_mine .*'mine', .*yours of 'yours'; name two"),
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, message):
                self.report(self.masked, self.masked, f"xnli_{before}", f"xnli_{after}")
        self.assertFalse(self.output.exists())

    def test_refusals(self):
        other = self.folder / "other"
        if not other.exists():
            write_rows(other, "aa", tiny_tasks.tokenizer() + b"\0", 1)
        with self.assertRaisesRegex(ValueError, "--after: .*other is no --workdir of train.py"):
            self.report(self.first, other)
        with self.assertRaisesRegex(ValueError, "--rows .*other: the vocabulary .* is not that of"):
            self.report(self.first, self.second, rows=[str(self.first), str(other)])
        with self.assertRaisesRegex(ValueError, "of ReplacedToken and --after of MaskedLM"):
            self.report(self.first, self.masked)
        rate = self.folder / "rate"
        write_rows(rate, "aa", tiny_tasks.tokenizer(), 1)
        write_run(rate, config_of(**{"mask.rate": 0.5}), self.state, 3)
        with self.assertRaisesRegex(ValueError, "mask.rate is 0.2 in --before and 0.5 in --after"):
            self.report(self.first, rate)
        empty = self.folder / "empty"
        write_rows(empty, "aa", tiny_tasks.tokenizer(), 1)
        data_builders.open_train_stage(config_of(), data_builders.Folders(empty)).claim()
        with self.assertRaisesRegex(ValueError, "holds no checkpoint; run train.py"):
            self.report(self.first, empty)
        self.assertFalse(self.output.exists())


class RelativeTest(absltest.TestCase):
    def test_what_is_worse_is_positive(self):
        # Table 6: XNLI of MLM + TLM in Swahili, 72.8 before and 45.8 after.
        self.assertAlmostEqual(forgetting.relative("accuracy", 0.728, 0.458), 37.1, places=1)
        self.assertAlmostEqual(forgetting.relative(LOSS, 4.0, 5.0), 25.0)
        self.assertAlmostEqual(forgetting.relative(LOSS, 5.0, 4.0), -20.0)
        self.assertAlmostEqual(forgetting.relative("matthews", -0.1, 0.2), -300.0)

    def test_the_report(self):
        changes = {
            ("task", "f1"): {"sw": (0.0, 0.25), "de": (0.5, 0.25)},
            ("ro_ws", LOSS): {"sw": (4.0, 5.0), "en": (5.0, 4.5)},
            ("task", "accuracy"): {"sw": (0.0, 0.25)},
            ("task", "matthews"): {},  # no common language
        }

        def write(folder: pathlib.Path) -> None:
            forgetting.write_report(changes, "made_up", folder)

        golden.check_report(self, __file__, "forgetting", write)
        with self.assertRaisesRegex(ValueError, "no language has a score both before and after"):
            forgetting.write_report({("rows", LOSS): {}}, "made up", pathlib.Path("nowhere"))
