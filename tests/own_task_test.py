"""Tasks on a user's own files, of one label or several, or tags: to results and predictions."""

import json

import numpy as np
from absl.testing import absltest, parameterized
from scipy import special
from sklearn import metrics

from input_pipeline.tasks import delimited
from input_pipeline.tasks.examples import BadRow, TextExample
from input_pipeline.tasks.tasks import TASKS, Columns
from tests import folders, tiny_tasks
from xlm.common import artifacts
from xlm.evaluation import label_analysis, task_results
from xlm.evaluation.label_analysis import Labelled
from xlm.evaluation.metrics import classification
from xlm.evaluation.tasks import TaskData
from xlm.experiment import prediction, task_data, tuned_export
from xlm.experiment.task_settings import Tokenizer, task_settings
from xlm.objectives import fine_tuning

TOKENIZER = Tokenizer(tiny_tasks.tokenizer())
FEW = {"num_layers": 0, "optimizer__learning_rate": 1e-2}


class Case(folders.FolderTest):
    def write_texts(self, name: str, count: int, seed: int) -> None:
        """CSV, TSV or JSON lines of sentences on cats, dogs and, seldom, foxes."""
        rng, rows = np.random.default_rng(seed), []
        for number in range(count):
            label = rng.choice(["cat", "dog", "neither"], p=[0.45, 0.45, 0.1])
            word = "x" if label == "neither" else label
            rows.append((f"the {word} runs, {'a' * (number % 5)}{number % 7}.", label))
        if name.endswith("jsonl"):
            lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        elif name.endswith("tsv"):
            lines = ["text\tlabel", *map("\t".join, rows)]
        else:
            lines = ["label,text", *(f'{label},"{text}"' for text, label in rows)]
        self.write(name, "\n".join(lines) + "\n")

    def config(self, name: str, arg: str = "", **overrides):
        overrides = {**FEW, "train__epochs": 12.0, **overrides}
        return tiny_tasks.config(name, arg, task__root=str(self.folder), **overrides)

    def run_it(self, config, name: str = "run") -> dict:
        return tiny_tasks.run(config, self.folder / name)

    def predict(self, text: str) -> list[dict]:
        self.write("mine", text)
        with tiny_tasks.quick():
            model = prediction.FineTuned(self.folder / "run")
            (lines,) = model(model.read(self.folder / "mine"))
        return lines


class TextsTest(Case):
    def test_three_languages_in_three_formats(self):
        for name, count in (("train.en.csv", 80), ("train.de.jsonl", 40), ("train.sw.tsv", 40),
                            ("test.en.tsv", 20), ("test.de.csv", 20)):  # fmt: skip
            self.write_texts(name, count, seed=count)
        config = self.config("text", num_layers=1, task__class_weights=("balanced",))
        told = (
            "3 labels in the training data: cat|dog",
            "de: no development file; held out of training: ",
        )
        with self.assert_told(*told, level="INFO"):
            results = self.run_it(config)
        # A tenth of the training examples is selected on, in all languages that have some.
        self.assertEqual(results["held_out"], 0.1)
        self.assertEqual(results["selected"]["on"], ["de", "en", "sw"])
        self.assertEqual(results["selected"]["rule"], "all_languages")
        self.assertEqual(results["selected"]["metric"], "macro_f1")
        self.assertEqual(results["selected_on_test"], [])
        self.assertEqual(results["setting"], "trained_on:de+en+sw")
        self.assertEqual(set(results["test"]), {"en", "de"})
        for scores in results["test"].values():
            self.assertEqual(set(scores), {"macro_f1", "accuracy"})
            self.assertGreater(scores["accuracy"], 0.8)
        weights = results["class_weights"]
        self.assertEqual(list(weights), ["cat", "dog", "neither"])
        self.assertGreater(weights["neither"], 1.5 * max(weights["cat"], weights["dog"]))
        # Labels are the run's.
        recorded = artifacts.read_json(self.folder / "run" / "settings.json")["task"]["labels"]
        self.assertEqual(recorded, ["cat", "dog", "neither"])
        for path in self.folder.glob("train.*"):
            path.unlink()
        self.assertEqual(self.run_it(config), results)
        lines = self.predict('text,id\n"the cat runs, a1.",7\n"the dog runs, a2.",8\n')
        self.assertEqual([one["prediction"] for one in lines], ["cat", "dog"])
        self.assertEqual(lines, sorted(lines, key=lambda one: -one["probabilities"]["cat"]))
        for line in lines:
            self.assertAlmostEqual(sum(line["probabilities"].values()), 1.0, places=5)
            found = max(line["probabilities"], key=line["probabilities"].get)
            self.assertEqual(found, line["prediction"])
        plain = self.predict("the cat runs, a1.\nthe dog runs, a2.\n")
        self.assertEqual([one["prediction"] for one in plain], ["cat", "dog"])

    def test_a_number_in_one_language_without_test_files(self):
        rows = [{"text": "the cat " * i, "label": i - 2} for i in (1, 2, 3)]
        self.write("train.en.jsonl", "\n".join(map(json.dumps, rows * 8)))
        self.write("dev.en.jsonl", "\n".join(map(json.dumps, rows)))
        config = self.config("text", "number,", train__epochs=2.0)
        with self.assert_told(r"no test files .* below"):
            results = self.run_it(config)
        self.assertEqual(results["test"], {})
        self.assertEqual(set(results["validation"]["en"]), {"pearson", "spearman"})
        # Reported are then the scores that the checkpoint was selected by.
        self.assertEqual(results["selected_on_test"], ["en"])
        self.assertEqual(results["setting"], "zero_shot")
        (line,) = self.predict("the cat\n")
        self.assertEqual(set(line), {"id", "prediction"})

    def test_labels_and_weights_that_do_not_fit(self):
        self.write_texts("train.en.csv", 60, seed=0)
        numbers = "text,label\n" + "".join(f"t{i},{i}\n" for i in range(40))
        for text, arg, changes, message in (
            (None, "", {"class_weights": (1.0,)}, "weights is .1.0,., must be . numbers above"),
            (numbers, "number,", {"class_weights": ("balanced",)}, "text_numbers has no classes; "),
            (numbers, "", {"labels": ("0", "1")}, "train.en.csv, line 4: no label '2' in the"),
            # As --config.task.labels=0,1 has them.
            (numbers, "", {"labels": (0, 1)}, "line 4: no label '2' .* whose labels are 0, 1;"),
        ):
            if text:
                self.write("train.en.csv", text)
            config = self.config("text", arg)
            config.task.update(changes)
            with self.assertRaisesRegex(ValueError, message):
                self.run_it(config)
        config = tiny_tasks.config("xnli", task__labels=("a", "b"))
        with self.assertRaisesRegex(ValueError, "but xnli has labels of its own; leave it empty"):
            task_settings(config)


class FilesTest(Case):
    """Files, and messages about them, before anything is trained."""

    ROWS = "text,label\n" + "".join(f"the cat {i},{'yes' if i % 2 else 'no'}\n" for i in range(20))

    def test_files_of_no_language_are_named(self):
        self.write("Train.en.csv", self.ROWS)
        with self.assertRaisesRegex(ValueError, "which has Train.en.csv; rename files so that"):
            task_data.with_labels(self.config("text"))
        for name in ("train.en.csv", "train.de.csv", "dev.en.csv", "train.en.csv~"):
            self.write(name, self.ROWS)
        options = task_settings(task_data.with_labels(self.config("text")))
        told = "data in de, and none are held out: .* selected on en only; add files, or leave"
        with self.assert_told(told):
            task_data.read_split(options, TOKENIZER, "validation")
        found = sorted(path.name for path in task_data.data_files(options))
        self.assertEqual(found, ["dev.en.csv", "train.de.csv", "train.en.csv"])

    @parameterized.parameters({"validation_languages": ("en",)}, {"selection": "english"})
    def test_languages_that_select_nothing_are_trained_on_whole(self, **restricted):
        for language in ("en", "de", "sw"):
            self.write(f"train.{language}.csv", self.ROWS.replace("the", language))
        config = task_data.with_labels(self.config("text"))

        def read(split: str) -> dict[str, list]:
            options = task_settings(config)
            data = task_data.read_split(options, TOKENIZER, split)
            return {one.language: one.examples for one in data}

        everywhere = read("train"), read("validation")
        self.assertEqual(everywhere[1].keys(), {"en", "de", "sw"})
        config.task.update(restricted)
        trained = read("train")
        told = "data in de, sw, .* selected on en only; name them in task.validation_"
        with self.assert_told(told):
            scored = read("validation")
        # English is divided as before, of the others nothing is lost.
        self.assertEqual(scored, {"en": everywhere[1]["en"]})
        self.assertEqual(trained["en"], everywhere[0]["en"])
        for language in ("de", "sw"):
            self.assertLess(len(everywhere[0][language]), 20)
            self.assertLen(trained[language], 20)

    def test_files_of_other_names_are_left_out(self):
        for name in ("train.en.csv", "train.en.csv~", "train.en.csv.bak", "train.pt-BR.csv"):
            self.write(name, self.ROWS)
        self.write("train.english.csv", "x")
        config = self.config("text")
        with self.assert_told("train.english.csv: left out, 'english' in its name"):
            options = task_settings(task_data.with_labels(config))
            self.assertEqual(task_data.languages(options, "train"), ("en", "pt-BR"))
        (en, pt) = task_data.read_split(options, TOKENIZER, "train")
        self.assertEqual(len(en.examples), len(pt.examples))

    def test_names_without_a_language_and_other_names_of_development_files(self):
        rows = (
            self.ROWS.replace("label\n", "label,lang\n")
            .replace("yes", "yes,sw")
            .replace("no\n", "no,de\n")
        )
        self.write("train.csv", rows)
        self.write("valid.sw.csv", self.ROWS[:-1] + "x\n")
        self.write("validation.json", '{"text": "a", "label": "no"}\n')
        config = task_data.with_labels(self.config("text", task__labels=("no", "yes", "x")))
        config.task.max_bad_rows = 1
        options = task_settings(config)
        self.assertEqual(task_data.languages(options, "train"), ("de", "sw"))
        self.assertEqual(task_data.languages(options, "validation"), ("en", "sw"))
        with self.assert_told("no development examples of x, so no score says"):
            found = task_data.read_split(options, TOKENIZER, "validation")
        self.assertEqual([len(one.examples) for one in found], [1, 19])

    @parameterized.parameters("Yes", "\u200byes", "y es\u2060")
    def test_labels_that_look_alike_are_refused(self, other):
        self.write("train.en.csv", f"{self.ROWS}x,{other}\nx,y  es\n")
        message = r"the labels '.+' \(\d+ times\) and '.+ differ only"
        with self.assertRaisesRegex(ValueError, message):
            task_data.with_labels(self.config("text"))
        listed = self.config("text", task__labels=("yes", "no", other, "y  es"))
        self.assertLen(task_settings(task_data.with_labels(listed)).labels, 4)

    def test_test_texts_that_are_in_the_training_data(self):
        texts = [TextExample(str(i), f"the cat {i}", None, i % 2) for i in range(9)]
        data = {
            "train": [TaskData("en", texts[:5], None)],
            "validation": [TaskData("en", texts[5:6], None)],
            "test": [TaskData("en", texts[3:], None), TaskData("de", texts[6:], None)],
        }
        self.write("train.en.csv", self.ROWS)
        self.write("dev.en.csv", self.ROWS)
        options = task_settings(self.config("text"))
        with self.assert_told("2 of the test examples in en are training examples"):
            self.assertEqual(task_data.seen_in_training(options, data), {"en": 2})
        # Without a development file one of these is held out of the training data.
        (self.folder / "dev.en.csv").unlink()
        self.assertEqual(task_data.seen_in_training(options, data), {"en": 3})


class TagsTest(Case):
    def test_spans_with_blanks_between_columns(self):
        text = "-DOCSTART- -X- O\n\n" + "the DT O\ncat NN B-ANIMAL\nruns VB O\n\n" * 6
        text += "".join(f"{c} DT O\ndog NN B-ANIMAL\n\n" for c in "abcdefghijklmnopqrstuvwxyz")
        self.write("train.en.conll", text)
        self.write("test.en.conll", "the DT O\ndog NN B-ANIMAL\n")
        results = self.run_it(self.config("tags"))
        self.assertEqual(results["test"]["en"], {"f1": 1.0, "precision": 1.0, "recall": 1.0})
        (line,) = self.predict("the cat runs\n")
        self.assertEqual(line["prediction"], ["O", "B-ANIMAL", "O"])
        self.assertLen(line["probabilities"], 3)
        self.assertGreater(min(line["probabilities"]), 0.5)

    def test_tags_of_another_kind_are_scored_by_word(self):
        text = "the\tDT\ncat\tNN\n\n" + "".join(f"{c}\tDT\ndog\tNN\n\n" for c in "abcdefghijklmnop")
        self.write("train.en.tsv", text)
        self.write("dev.en.tsv", text)
        self.write("test.en.tsv", "the\tDT\ndog\tNN\n")
        with self.assertRaisesRegex(ValueError, "'DT' is not a tag of a span .*tags.py:words,DATA"):
            self.run_it(self.config("tags"))
        results = self.run_it(self.config("tags", "words,", task__class_weights=(1.0, 2.0)))
        self.assertEqual(results["test"]["en"], {"macro_f1": 1.0, "accuracy": 1.0})
        self.assertEqual(results["class_weights"], {"DT": 1.0, "NN": 2.0})


LABELS = ("cat", "dog", "fox")
TASK = TASKS["text_labels"].with_labels(LABELS, Columns(("text",), (), ("label",)))


class LabelListsTest(Case):
    def read(self, name: str, content: str, separator: str = ","):
        task = TASK.with_labels(LABELS, TASK.columns)
        object.__setattr__(task, "label_separator", separator)
        return [one for _, one in delimited.read_texts(self.write(name, content), task)]

    def test_lists_and_cells_say_the_same(self):
        rows = [("a", ["dog", "cat"]), ("b", []), ("c", ["fox"]), ("d", ["fox", "fox"])]
        lines = "\n".join(json.dumps({"text": text, "label": of}) for text, of in rows)
        found = self.read("a.jsonl", lines)
        self.assertEqual([one.label for one in found], [(0, 1), (), (2,), (2,)])
        for separator in ",|":
            cells = "\n".join(f'{text},"{f" {separator} ".join(of)}"' for text, of in rows)
            self.assertEqual(self.read("a.csv", f"text,label\n{cells}\n", separator), found)
        # Without a separator a cell is one label.
        _, other = self.read("a.csv", 'text,label\na,cat\nb,"cat,dog"\n', "")
        self.assertRegex(other.error, "line 3: no label 'cat,dog' in the training data")
        names = delimited.read_labels(self.write("b.jsonl", lines), TASKS["text_labels"])
        self.assertEqual([name for _, name in names], ["dog", "cat", "fox", "fox", "fox"])

    def test_faults_have_their_line(self):
        for cell, message in (
            ("null", "column 'label' is empty; fill it in"),
            ('["cat", ""]', "column 'label' is empty"),
            ('[["cat"]]', "column 'label' holds .*, not a text or number"),
            ('["wolf"]', "no label 'wolf' in the training data"),
        ):
            (found,) = self.read("a.jsonl", '{"text": "a", "label": ' + cell + "}\n")
            self.assertIsInstance(found, BadRow)
            self.assertRegex(found.error, f"a.jsonl, line 1: {message}")


class ScoresTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.gold = rng.random((50, 4)) < [0.6, 0.3, 0.1, 0.0]
        self.logits = (rng.normal(size=(50, 4)) + 2 * self.gold - 2).astype(np.float32)
        self.logits[:, 3] = -3  # neither there nor predicted
        self.found = Labelled(self.gold, self.logits)

    def test_scores_as_scikit_learn(self):
        found = self.logits > 0
        scores = classification.set_scores(self.gold, found)
        for way in ("micro", "macro"):
            expected = metrics.f1_score(self.gold[:, :3], found[:, :3], average=way)
            self.assertAlmostEqual(scores[f"{way}_f1"], expected)
        by_class = label_analysis.class_scores(self.found.counts, "abcd")
        columns = metrics.precision_recall_fscore_support(self.gold[:, :3], found[:, :3])
        for name, column in zip(("precision", "recall", "f1", "support"), columns, strict=True):
            np.testing.assert_allclose([one[name] for one in by_class.values()], column)

    def test_loss_entropy_and_probabilities(self):
        batch = {"labels": self.gold.astype(np.float32), "weights": np.ones(50)}
        loss, weight = fine_tuning.multilabel_loss(self.logits, batch)["loss"]
        likely = special.expit(self.logits.astype(float))
        expected = -np.log(np.where(self.gold, likely, 1 - likely)).mean()
        self.assertAlmostEqual(float(loss / weight), expected, places=5)
        # Weights are of labels that are there, and the entropy is the best loss of constant scores.
        weights = (1.0, 4.0, 0.5, 1.0)
        shares = self.gold.mean(axis=0)
        best = special.logit(shares) + np.log(weights)
        constant = np.tile(best.clip(-30), (50, 1)).astype(np.float32)
        loss, _ = fine_tuning.multilabel_loss(constant, batch, weights)["loss"]
        entropy = label_analysis.set_entropy(shares, np.array(weights))
        self.assertAlmostEqual(float(loss) / 50, entropy, places=5)
        # Calibration reads the same probabilities, one choice for each text and class.
        choices = self.found.choices
        np.testing.assert_allclose(special.softmax(choices.logits, axis=1)[:, 1], likely.ravel(),
                                   rtol=1e-5)  # fmt: skip
        np.testing.assert_array_equal(choices.gold, self.gold.ravel())
        np.testing.assert_array_equal(choices.found, (self.logits > 0).ravel())
        none = label_analysis.confusion(Labelled(self.gold, -np.abs(self.logits)).choices)
        self.assertIn("'no' is 100.0%", label_analysis.collapsed(none, ("no", "yes")))

    def test_baselines(self):
        answers, counts = [], np.array([60, 30, 70])
        for total, num_texts in ((4000, 100), (9, 500)):
            label_analysis.baselines(
                counts, total, lambda one: answers.append(one) or {"a": 0.0}, num_texts
            )
        self.assertTrue((answers[2] == [True, False, True]).all())
        np.testing.assert_allclose(answers[0].mean(axis=0), counts / 100, atol=0.03)
        self.assertTrue((answers[-1] == [False, False, True]).all())  # at least one label


class LabelListsRunTest(Case):
    def test_from_files_to_export(self):
        rng = np.random.default_rng(0)
        for name, count in (("train.en.jsonl", 120), ("train.sw.jsonl", 40), ("test.sw.jsonl", 30)):
            rows = []
            for i in range(count):
                of = [label for label in LABELS[:2] if rng.random() < 0.5]
                text = f"the {' '.join(of) or 'a'} runs, {'b' * (i % 5)}{i % 7}{i}."
                rows.append({"text": text, "label": of, "id": str(i)})
            self.write(name, "\n".join(map(json.dumps, rows)))
        config = self.config("text", "multilabel,", num_layers=1, task__id_column="id",
                             train__epochs=24.0)  # fmt: skip
        with self.assert_told("held out of training: no label .*, cat .*, dog ", level="INFO"):
            results = self.run_it(config)
        folder = self.folder / "run"
        self.assertGreater(results["test"]["sw"]["micro_f1"], 0.8)
        self.assertLess(results["baselines"]["majority"]["sw"]["micro_f1"], 0.75)
        self.assertEqual((results["collapse"], [*results["classes"]["sw"]]), ([], ["cat", "dog"]))
        lines = task_results.read_lines(folder / "predictions" / "test.sw.jsonl", dict)
        self.assertIn([], [line["gold"] for line in lines])
        for line in lines:
            likely = [name for name, share in line["probabilities"].items() if share > 0.5]
            self.assertEqual(line["prediction"], likely)
        self.assertNotIn("## Confusion", (folder / "report.md").read_text())
        (line, other) = self.predict("the cat dog runs, b1.\nthe a runs, b1.\n")
        self.assertEqual((line["prediction"], other["prediction"]), (["cat", "dog"], []))
        tuned_export.export(folder, self.folder / "exported")
        found = artifacts.read_json(self.folder / "exported" / "config.json")
        self.assertEqual(found["problem_type"], "multi_label_classification")
        self.assertEqual(found["id2label"], {"0": "cat", "1": "dog"})
