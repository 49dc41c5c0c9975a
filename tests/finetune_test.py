"""Runs of every kind of task from files to results: learned, selected, misused."""

import dataclasses
import functools
import json
import pathlib
import shutil
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import tokenizer_hash
from input_pipeline.tasks.tasks import TASKS
from tests import commands, folders, tiny_tasks, tiny_translation
from tests.memory_test import tuning_config
from vocap import merge
from xlm.common import artifacts
from xlm.evaluation import task_results, xtreme_runs
from xlm.evaluation.metrics import retrieval
from xlm.evaluation.tasks import TaskData
from xlm.experiment import fine_tuning as builders
from xlm.experiment import task_data, task_schema
from xlm.experiment.memory import estimate_fine_tuning
from xlm.experiment.pretrained import read_pretrained
from xlm.experiment.task_settings import Tokenizer, task_settings
from xlm.interop import model_folder
from xlm.interop.params_file import read_params
from xlm.models.encoder import CROSS_ATTENTION
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped


def predictions(folder: pathlib.Path, name: str) -> list[dict]:
    path = folder / "predictions" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class KindsTest(folders.FolderTest):
    def results_of(self, config: ConfigDict) -> dict:
        """Run to the end, and check the results."""
        tiny_tasks.run(config, self.folder / "run")
        return self.check(self.folder / "run")

    def check(self, folder: pathlib.Path) -> dict:
        """`xlm table` reads the results of a run, and the printed table names them."""
        results = artifacts.read_json(folder / "results.json")
        found = xtreme_runs.read_run(folder)
        task = TASKS[results["task"]]
        self.assertEqual(found.scores, results["test"])
        self.assertEqual(set(found.examples), set(found.scores))
        printed = task_results.table(task, results)
        for language, scores in found.scores.items():
            self.assertContainsSubset(task.metrics, scores)
            self.assertRegex(printed, rf"(?m)^\| {language} \| {found.examples[language]} \|")
        return results

    def test_tags_are_learned_and_transfer(self):
        folder = tiny_tasks.finished("udpos")
        results = self.check(folder)
        self.assertEqual(results["model"], "tiny-xlmr-2")
        self.assertEqual(results["setting"], "zero_shot")
        self.assertEqual(results["selected"]["on"], ["en"])
        self.assertEqual(results["selected"]["value"], results["validation"]["en"]["f1"])
        self.assertGreater(results["test"]["en"]["accuracy"], 0.95)
        # Of its four words English has two.
        self.assertBetween(results["test"]["sw"]["accuracy"], 0.4, 1.0)
        self.assertGreaterEqual(results["padding_ratio"], 1.0)
        options = task_settings(tiny_tasks.config("udpos"))
        read = functools.partial(task_data.read_split, options, Tokenizer(tiny_tasks.tokenizer()))
        known = [one.words for one in read("train")[0].examples]
        seen = {one.language: sum(e.words in known for e in one.examples) for one in read("test")}
        self.assertEqual(results["seen_in_training"], {k: n for k, n in seen.items() if n})
        for line in predictions(folder, "test.sw"):
            self.assertLen(line["prediction"], len(line["words"]))
        params, notes = read_params(folder / "best.safetensors")
        self.assertEqual(params["task"]["output"]["kernel"].shape, (16, 17))
        self.assertNotIn("head", params["encoder"])
        self.assertEqual(notes.tokenizer, tokenizer_hash(tiny_tasks.tokenizer()))

    def test_training_in_all_languages_at_once(self):
        config = tiny_tasks.run_config("udpos", model_name="tiny")
        config.task.update(train_languages=("en", "sw"), selection="all_languages")
        config.train.epochs = 8.0  # as many steps as in one language
        results = self.results_of(config)
        self.assertEqual((results["setting"], results["model"]), ("trained_on:en+sw", "tiny"))
        self.assertEqual(results["selected"]["on"], ["en", "sw"])
        mean = np.mean([scores["f1"] for scores in results["validation"].values()])
        self.assertAlmostEqual(results["selected"]["value"], mean)
        self.assertGreater(results["test"]["sw"]["accuracy"], 0.95)

    def test_a_model_for_each_language(self):
        """Each language is tested with the best parameters by its own development data."""
        config = tiny_tasks.run_config("udpos")
        config.task.selection = "each_language"
        config.train.evaluations = 8
        results = self.results_of(config)
        folder, selected = self.folder / "run", results["selected"]
        self.assertEqual(set(selected["steps"]), {"en", "sw"})
        scored = {
            record["step"]: record
            for record in read_metrics(folder / "metrics.jsonl")
            if "validation/f1" in record
        }
        for language, step in selected["steps"].items():
            name = f"validation/f1/{language}"
            self.assertEqual(results["validation"][language]["f1"], scored[step][name])
            self.assertEqual(scored[step][name], max(one[name] for one in scored.values()))
            _, notes = read_params(folder / "best_by_language" / f"{language}.safetensors")
            self.assertEqual(notes.step, step)
        _, notes = read_params(folder / "best.safetensors")
        self.assertEqual((notes.step, notes.value), (selected["step"], selected["value"]))
        printed = task_results.table(TASKS["udpos"], results)
        self.assertIn("a checkpoint for each language, the best by its f1", printed)
        stopped = self.folder / "stopped"
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, stopped, stops_after=20)  # between two checkpoints
        self.assertEqual(tiny_tasks.run(config, stopped), results)

    def test_pairs_that_attend_to_each_other(self):
        folder = tiny_tasks.finished("pawsx")
        results = self.check(folder)
        self.assertEqual(set(results["test"]), {"de", "en"})
        params, _ = read_params(folder / "best.safetensors")
        self.assertContainsSubset(CROSS_ATTENTION, params["encoder"]["layers"])
        width = 2 * tiny_tasks.SETTINGS.hidden_size
        self.assertEqual(params["task"]["dense"]["kernel"].shape, (width, width))
        start = tiny_tasks.params(dataclasses.replace(tiny_tasks.SETTINGS, cross_attention=True))
        before, after = (
            one["layers"]["cross_attention"]["value"]["kernel"]
            for one in (start, params["encoder"])
        )
        self.assertGreater(np.abs(after - before).max(), 0)

    def test_questions_of_which_some_have_no_answer(self):
        folder = tiny_tasks.finished("squad2")
        results = self.check(folder)
        self.assertGreater(results["test"]["en"]["f1"], 0.8)
        for line in predictions(folder, "test.en"):
            withheld = line["null_score"] - line["score"] > results["null_threshold"]
            self.assertEqual(line["prediction"] == "", withheld)
        found = {line["id"]: line["prediction"] for line in predictions(folder, "test.en")}
        right = {"q0": "the cat sleeps", "n0": ""}
        self.assertEqual({name: found[name] for name in right}, right)

    def test_translations_that_are_the_same_are_found(self):
        results = self.results_of(tiny_tasks.config("tatoeba"))
        self.assertEqual(results["test"]["af"], {"accuracy": 1.0})
        self.assertLess(results["test"]["sw"]["accuracy"], 1.0)
        self.assertEqual(results["hyperparameters"], {"layer": 1})
        self.assertNotIn("thresholds", results)
        found = predictions(self.folder / "run", "test.af")
        self.assertEqual([line["prediction"] for line in found], [str(i) for i in range(6)])
        config = tiny_tasks.config("tatoeba", random_init=True)
        random = tiny_tasks.run(config, self.folder / "random")
        self.assertEqual(random["model"], results["model"] + ", random")
        both = (predictions(self.folder / name, "test.sw") for name in ("run", "random"))
        self.assertNotEqual(*both)

    def test_pairs_are_mined_above_the_threshold_of_the_development_data(self):
        results = self.check(tiny_tasks.finished("bucc"))
        self.assertEqual(results["test"]["zh"]["recall"], 1.0)
        self.assertNotIn("validation", results)
        other = {**results["thresholds"]}
        config = tiny_tasks.run_config("bucc")
        # Test data with other gold pairs have the same threshold.
        wrong = self.folder / "gold.tsv"
        wrong.write_text("z0\te1\nz1\te0\n")
        config.task.test = (*config.task.test[:2], str(wrong))
        results = tiny_tasks.run(config, self.folder / "other")
        self.assertEqual(results["thresholds"], other)
        self.assertEqual(results["test"]["zh"]["f1"], 0)
        self.assertEqual(results["validation"]["zh"]["recall"], 1.0)

    def test_a_threshold_chosen_on_the_test_data_under_other_names_is_marked(self):
        config = tiny_tasks.run_config("bucc")
        names = [pathlib.Path(name).name for name in config.task.test]
        own = pathlib.Path(config.task.root) / "bucc2018"
        (self.folder / "links").symlink_to(own)
        shutil.copytree(own, self.folder / "copies")
        marked = {}
        for how in ("links", "copies"):
            config.task.test = tuple(str(self.folder / how / name) for name in names)
            results = tiny_tasks.run(config, self.folder / "runs" / how)
            marked[how] = results["selected_on_test"]
            self.assertEqual(results["validation"], results["test"])
        # as in docs/fine_tuning.md
        self.assertEqual(marked, {"links": ["zh"], "copies": []})
        self.assertEqual(self.check(tiny_tasks.finished("bucc"))["selected_on_test"], ["zh"])
        config.task.test = tuple(str(self.folder / "links" / name) for name in names)
        config.task.threshold = 1.0
        results = tiny_tasks.run(config, self.folder / "runs" / "given")
        self.assertEqual(results["selected_on_test"], [])

    def test_a_run_by_the_mean_state_is_told_from_one_by_the_first(self):
        for name, pooling, told in (
            ("xnli", "mean", "mean"), ("xnli", "first", None), ("udpos", "mean", None)
        ):  # fmt: skip
            found = builders.run_metadata(tiny_tasks.config(name, task__text_pooling=pooling))
            self.assertEqual(found["hyperparameters"].get("text_pooling"), told)

    def test_frozen_embeddings_stay_and_layers_learn(self):
        config = tiny_tasks.config("udpos", train__epochs=1.0)
        config.optimizer.frozen = ("embeddings",)
        results = tiny_tasks.run(config, self.folder / "run")
        self.assertEqual(results["hyperparameters"]["frozen"], "embeddings")
        params, _ = read_params(self.folder / "run" / "best.safetensors")
        before, after = read_pretrained(config.init_from).params, params["encoder"]
        jax.tree.map(np.testing.assert_array_equal, after["embeddings"], before["embeddings"])
        for one, other in zip(
            *map(jax.tree.leaves, (after["layers"], before["layers"])), strict=True
        ):
            self.assertTrue((one != other).any())

    def test_the_table_by_rows(self):
        """Like the whole table, except for missed updates between reads of a row."""
        found = {}
        for update in ("dense", "rows"):
            config = tiny_tasks.config("udpos", num_layers=0, train__epochs=2.0)
            config.model.dropout_rate = 0.0
            config.optimizer.update(embedding_update=update, learning_rate=1e-3)
            config.task.max_length = 8
            config.train.batch_size = 4
            tiny_tasks.run(config, self.folder / update)
            params = read_params(self.folder / update / "best.safetensors")[0]
            found[update] = params["encoder"]["embeddings"]["table"]
        start = read_pretrained(config.init_from).params["embeddings"]["table"]
        way = np.abs(found["dense"] - start).max()
        self.assertGreater(way, 1e-3)
        np.testing.assert_allclose(found["rows"], found["dense"], atol=0.02 * way)
        self.assertTrue((found["rows"] != found["dense"]).any())

    def test_an_encoder_with_other_positions_learns_in_little_memory(self):
        encoder = dataclasses.replace(
            tiny_tasks.SETTINGS, num_layers=1, norm_position="pre", embedding_size=8,
            position="gated", distance_buckets=8, max_distance=16,
        )  # fmt: skip
        exported, params = self.folder / "exported", tiny_tasks.params(encoder)
        sizes = dataclasses.asdict(encoder)
        model_folder.write_model(exported, params, sizes, tiny_tasks.tokenizer())
        config = tiny_tasks.config(
            "udpos", init_from=str(exported), model__dtype="bfloat16", model__remat="full",
            train__epochs=24.0, train__accumulation_steps=2, optimizer__learning_rate=1e-2,
        )  # fmt: skip
        results = self.results_of(config)
        self.assertGreater(results["test"]["en"]["accuracy"], 0.95)
        params, notes = read_params(self.folder / "run" / "best.safetensors")
        self.assertEqual({x.dtype for x in jax.tree.leaves(params)}, {np.dtype(np.float32)})
        found = notes.encoder
        self.assertEqual((found.position, found.dtype, found.remat), ("gated", "bfloat16", "full"))
        made = builders.with_head(config, builders.encoder_of_notes(found))
        row = dict.fromkeys(("tokens", "segments", "positions"), np.zeros((1, 8), np.int32))
        hidden = jax.eval_shape(made.hidden, params["encoder"], row)
        self.assertEqual(hidden.dtype, "bfloat16")
        before = tiny_tasks.params(encoder)["distances"]["bias"]
        self.assertTrue((params["encoder"]["distances"]["bias"] != before).any())


class SelectionTest(folders.FolderTest):
    """Data of selection, and their mention in results, without a run."""

    def options(self, name: str, **changes):
        return task_settings(tiny_tasks.config(name, **changes))

    def test_development_data_that_select(self):
        self.assertEqual(task_data.languages(self.options("udpos"), "validation"), ("en",))
        every = self.options("udpos", task__selection="all_languages")
        self.assertEqual(task_data.languages(every, "validation"), ("en", "sw"))
        data = [TaskData(language, (), ()) for language in ("sw", "en")]
        options = self.options("udpos", task__validation_languages=("sw", "en"))
        self.assertEqual(task_data.selected_on(options, data), data[1:])
        with self.assertRaisesRegex(ValueError, "'english', but .* are .'sw'.; add en, or set"):
            task_data.selected_on(options, data[:1])
        self.assertEqual(task_data.selected_on(every, data), data)

    def test_development_data_that_serve_as_test_data(self):
        # UD-POS has a test file per language, XNLI's here is one file.
        for name, expected in (("udpos", []), ("xnli", ["en"])):
            self.assertEqual(task_data.selected_on_test(self.options(name), ["en"]), expected)
        found = task_data.selected_on_test(self.options("xnli"), ["sw", "en", "sw"])
        self.assertEqual(found, ["sw", "en"])

    @parameterized.parameters(
        ("xnli", ("en",), "zero_shot"),
        ("xnli", ("sw",), "transfer_from:sw"),
        ("xnli", ("en", "sw"), "translate_train_all"),
        ("xnli", ("en", "de"), "trained_on:de+en"),  # tested on Swahili, too
        ("udpos", ("en", "sw"), "trained_on:en+sw"),  # its training data are no translations
    )
    def test_the_setting_is_named_by_what_is_trained_on(self, name, languages, expected):
        config = tiny_tasks.config(
            name, task__train_languages=languages, task__test_languages=("en", "sw")
        )
        self.assertEqual(builders.run_metadata(config)["setting"], expected)

    def test_patterns_of_tensorflow_datasets(self):
        """Translations are taken where they are trained on."""
        config = tiny_tasks.config("xquad")
        config.task.train = ("tfds",)
        options = task_settings(config)
        for split, language, pattern in (
            ("train", "en", "tfds:squad/v1.1:train"),
            ("train", "de", "tfds:xquad/{language}:translate-train"),
            ("test", "de", "xquad/xquad.{language}.json.xz"),
        ):
            self.assertEqual(options.patterns(split, language), (pattern,))
        options = self.options("pawsx", task__test=("tfds",))
        self.assertEqual(task_data.languages(options, "test"), TASKS["pawsx"].languages)


class WrongInputTest(folders.FolderTest):
    """Faults are refused before the folder is claimed, so you can correct them."""

    def check(self, config: ConfigDict, error: str) -> None:
        with self.assertRaisesRegex(ValueError, error):
            tiny_tasks.run(task_schema.checked(config), self.folder / "run")
        self.assertFalse((self.folder / "run").exists())

    def test_no_data_at_all(self):
        config = tiny_tasks.config("udpos")
        config.task.root = str(self.folder)
        config.task.selection = "all_languages"
        self.check(config, r"udpos has no data for language 'en'")
        config.task.train_languages = ()
        self.check(config, r"task.train: there are no files .* correct task.root or the patterns")

    def test_configs_that_cannot_be(self):
        config = tiny_tasks.config("bucc")
        config.task.test = config.task.test[:2]
        self.check(config, "bucc, zh: .* have no gold pairs; name their file third in task.test")
        config.task.test = ("tfds",)
        self.check(config, "task.test is 'tfds', but tensorflow-datasets has no test split of bucc")
        config = tiny_tasks.config("pawsx", task__cross_attention=True)
        config.init_from = str(tiny_tasks.encoder_folder(2))
        self.check(config, "tiny-xlmr-2' .init_from. has no cross-attention; start from .*veco")
        config = tiny_tasks.config("udpos", task__cross_attention=True)
        self.check(config, "task.cross_attention is True, but udpos is no classification")
        config = tiny_tasks.config("udpos", train__accumulation_steps=3)
        self.check(config, "accumulation_steps is 3, must divide")
        config = tiny_tasks.run_config("udpos")
        config.task.update(selection="each_language", validation_languages=("en",))
        self.check(config, "no development data in sw")

    @parameterized.parameters(
        ("glue", "cola,", "x.tsv", "sentence\nthe cat\n", "1 of 1 examples .* have no label"),
        ("udpos", "", "x.tsv", "the\ncat\n\ndog\n", "2 of 2 examples .* have no label"),
        ("xquad", "", "x.json", tiny_tasks.squad([("n", "?", "the", "")]), "no answer, .* 'n'"),
    )
    def test_examples_without_labels(self, name, arg, file, text, error):
        config = tiny_tasks.config(name, arg)
        config.task.test = (str(self.write(file, text)),)
        self.check(config, error + r".*task.test \(predict.py")

    def test_a_checkpoint_of_another_tokenizer(self):
        tiny_tasks.run(tiny_tasks.config("tatoeba"), self.folder / "done")
        other, pieces = self.folder / "tiny-xlmr-2", [*tiny_tasks.PIECES[1:], "q2"]
        tokenizer = merge.write_model(pieces, -np.arange(1.0, len(pieces) + 1))
        sizes = dataclasses.asdict(tiny_tasks.SETTINGS)
        model_folder.write_model(other, tiny_tasks.params(), sizes, tokenizer)
        with self.assertRaisesRegex(ValueError, "(?s)made under another config:.*tokenizer: there"):
            tiny_tasks.run(tiny_tasks.config("tatoeba", init_from=str(other)), self.folder / "done")

    def test_a_class_of_one_row_is_named_if_weights_are_balanced(self):
        task = dataclasses.replace(TASKS["text_classes"], labels=("a", "b"))
        options = mock.Mock(class_weights=("balanced",), task=task)
        examples = [mock.Mock(label=label) for label in (0, 0, 1)]
        with self.assert_told("class 'b' is there once in the training data"):
            found = task_data.class_weights(options, [mock.Mock(examples=examples)])
        self.assertEqual(found, (3 / 4, 3 / 2))
        with self.assertNoLogs(level="WARNING"):
            task_data.class_weights(options, [mock.Mock(examples=2 * examples)])

    @parameterized.parameters("validation", "test")
    def test_a_language_that_no_rule_scores(self, split):
        for language in ("de", "fr"):
            text = tiny_tasks.squad([("q", "cat ?", "the cat", "cat")])
            tiny_tasks.write(self.folder / f"{language}.json", text)
        config = tiny_tasks.config("mlqa", task__selection="all_languages")
        config.task.validation_languages = ("en",) if split == "test" else ()
        config.task[split] = (f"{self.folder}/{{language}}.json",)
        self.check(
            config,
            "mlqa has no normalisation for 'fr'; its languages are en, .*zh; name languages of "
            f"these in task.{split}_languages, or remove",
        )
        config.task[f"{split}_languages"] = ("de",)
        tokenizer = Tokenizer(tiny_tasks.tokenizer())
        (found,) = task_data.read_split(task_settings(config), tokenizer, split)
        self.assertEqual(found.language, "de")
        # Training data need no rule.
        config.task.update(train=config.task[split], train_languages=("fr",))
        (found,) = task_data.read_split(task_settings(config), tokenizer, "train")
        self.assertEqual(found.language, "fr")

    def test_buckets_and_margins(self):
        for wrong in ((0, 16), (-8, 16)):
            error = rf"task.buckets is \({wrong[0]}, 16\), in which {wrong[0]} must be at least 1"
            self.check(tiny_translation.config(task__buckets=wrong), error)
        self.check(tiny_tasks.config("udpos", task__buckets=(0, 16)), "task.buckets is .* least 1")
        for least in ((1, 16), ()):
            task_settings(task_schema.checked(tiny_translation.config(task__buckets=least)))
        for margin in retrieval.MARGINS:
            task_settings(tiny_tasks.config("bucc", task__margin=margin))

    @parameterized.parameters("tatoeba", "bucc", "translation")
    def test_weights_of_what_has_no_classes(self, name):
        config = tiny_translation.config() if name == "translation" else tiny_tasks.config(name)
        config.task.class_weights = (1.0, 2.0)
        self.check(
            config,
            rf"task.class_weights is \(1.0, 2.0\), but {name} has no classes; set it to \(\)",
        )

    def test_rules_that_select_nothing(self):
        for name in ("tatoeba", "bucc"):
            config = tiny_tasks.config(name, task__selection="each_language")
            self.check(config, f"but {name} trains no model for any language; set it to english")
        for rule in ("english", "each_language"):
            config = tiny_translation.config(task__selection=rule)
            self.check(config, f"selection is '{rule}', but .* the mean over its directions; set")


LORA = {"optimizer__lora_rank": 4, "optimizer__lora_targets": ("mlp/wide",),
        "optimizer__layer_decay": 0.9, "optimizer__learning_rate": 1e-2,
        "train__epochs": 4.0}  # fmt: skip


class LoraRunTest(folders.FolderTest):
    def test_a_run_is_kept_merged(self):
        config = tiny_tasks.config("udpos", **LORA, task__label_smoothing=0.9)
        run, output = (self.folder / name for name in ("run", "exported"))
        results = tiny_tasks.run(config, run)
        records = read_metrics(run / "metrics.jsonl")
        # Least loss of 17 classes in training, and in evaluations, which have no smoothing.
        self.assertGreater(min(one.get("train/loss", 3) for one in records), 2.77)
        self.assertLess(results["training_loss"], 2.6)
        params, _ = read_params(run / "best.safetensors")
        self.assertEqual(set(params), {"encoder", "task"})
        base = {k: v for k, v in read_pretrained(config.init_from).params.items() if k != "head"}
        ways = jax.tree.map(lambda one, other: one - other, params["encoder"], base)
        way = ways["layers"]["mlp"]["wide"].pop("kernel")
        self.assertEqual(np.linalg.matrix_rank(way, tol=1e-5).tolist(), [4, 4])
        self.assertEqual({float(np.abs(one).max()) for one in jax.tree.leaves(ways)}, {0.0})
        made = commands.execute("export_model", f"--workdir={run}", f"--output={output}")
        self.assertEqual(made.returncode, 0, made.stderr)
        exported = read_pretrained(str(output)).params
        of_encoder = {name: exported[name] for name in base}
        jax.tree.map(np.testing.assert_array_equal, of_encoder, params["encoder"])
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertIn("| lora | rank 4, alpha 16: mlp/wide |\n| layer_decay | 0.9 |", card)

    @parameterized.parameters(
        ({"optimizer__frozen": ("embeddings",)}, "frozen is .* the whole encoder is frozen"),
        ({"optimizer__lora_targets": ("mlp/deep",)}, "names 'mlp/deep', must be .*mlp/wide"),
        ({"optimizer__lora_targets": ()}, "lora_rank is 4, but .*targets are"),
        ({"optimizer__lora_rank": 0, "optimizer__frozen": ("layers",)}, "layer_decay is 0.9, but"),
        ({"task__label_smoothing": 0.1}, "label_smoothing is 0.1, but xquad has no"),
    )
    def test_what_cannot_be_is_refused(self, changes, error):
        with self.assertRaisesRegex(ValueError, error):
            tiny_tasks.run(tiny_tasks.config("xquad", **{**LORA, **changes}), self.folder / "run")
        self.assertFalse((self.folder / "run").exists())

    def test_moments_of_the_factors_alone_are_estimated(self):
        whole = estimate_fine_tuning(tuning_config(), 1, "xlmr_base").state
        state = estimate_fine_tuning(tuning_config(optimizer__lora_rank=8), 1, "xlmr_base").state
        self.assertEqual(state["parameters"] - whole["parameters"], 4 * 12 * 2 * 16 * 768)
        self.assertLess(state["gradients"], 0.01 * whole["gradients"])
