"""Tasks on a user's own files: from the files to results, and through predict.py."""

import json

import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks.examples import TextExample
from tests import folders, tiny_tasks
from xlm.common import artifacts
from xlm.evaluation.tasks import TaskData
from xlm.experiment import prediction, task_data
from xlm.experiment.task_settings import Tokenizer, task_settings

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
        told = "data in de, sw: .* selected on en alone, .* of them; name them in task.validation_"
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
