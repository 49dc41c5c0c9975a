"""Predictions of runs in XTREME's formats."""

import json

from tests.evaluation.xtreme_cases import Case, answers
from xlm.evaluation import xtreme_submission


class SubmissionTest(Case):
    def text(self, name: str) -> str:
        return (self.folder / "out" / "predictions" / name).read_text(encoding="utf-8")

    def submit(self) -> dict[str, list[str]]:
        return xtreme_submission.write_submission(self.folder / "out", self.variants())

    def test_each_kind_in_xtremes_format(self):
        tags, ids = (["B-LOC", "I-LOC"], ["O"]), ["10", "11", "12"]
        f1, pairs = {"zh": {"f1": 0.5}}, [("zh-1", "en-4"), ("zh-2", "en-3")]
        for task, scores, lines in (
            ("xnli", {"zh": 0.5}, [{"id": "0", "prediction": "neutral"},
                                   {"id": "1", "prediction": "entailment"}]),
            ("wikiann", f1, [{"id": str(i), "words": tag, "prediction": tag}
                             for i, tag in enumerate(tags)]),
            ("xquad", {"zh": answers(0.5, 0.5)}, [{"id": "q7", "prediction": "北京“市”"},
                                                  {"id": "q8", "prediction": ""}]),
            ("tatoeba", {"zh": 0.5}, [{"id": i, "prediction": found}
                                      for i, found in zip(ids, reversed(ids), strict=True)]),
            ("bucc", f1, [{"source": s, "target": t, "score": 1.1} for s, t in pairs]),
        ):  # fmt: skip
            examples = {"test": {"zh": 2}} if task == "xnli" else {}
            folder = self.write(task, scores, task=task, examples=examples)
            self.predict(folder, "zh", lines)
        missing = self.submit()
        self.assertEqual(self.text("xnli/test-zh.tsv"), "neutral\nentailment\n")
        self.assertEqual(self.text("panx/test-zh.tsv"), "B-LOC\nI-LOC\n\nO\n")
        found = json.loads(self.text("xquad/test-zh.json"))
        self.assertEqual(found, {"q7": "北京“市”", "q8": ""})
        self.assertIn("北京“市”", self.text("xquad/test-zh.json"))
        self.assertEqual(self.text("tatoeba/test-zh.tsv"), "2\n1\n0\n")
        self.assertEqual(self.text("bucc2018/test-zh.tsv"), "zh-1\ten-4\nzh-2\ten-3\n")
        self.assertEqual(missing["bucc2018"], ["de", "fr", "ru"])
        self.assertEqual(missing["mlqa"], ["ar", "de", "en", "es", "hi", "vi", "zh"])
        self.assertLen(missing, 9)

    def test_the_seed_that_is_best_on_development_data_is_sent(self):
        for seed, value in enumerate((0.3, 0.6, 0.5)):
            folder = self.write(f"{seed}", {"en": 0.5}, seed=seed, selected={"value": value})
            self.predict(folder, "en", [{"id": "0", "prediction": f"label{seed}"}])
        self.submit()
        self.assertEqual(self.text("xnli/test-en.tsv"), "label1\n")

    def test_languages_and_tasks_that_xtreme_lacks_are_left_out(self):
        folder = self.write("a", {"de": 0.5, "my": 0.5})
        self.predict(folder, "de", [{"id": "0", "prediction": "neutral"}])
        self.write("b", {"aym": 0.5}, task="americasnli")
        self.submit()
        found = [path.name for path in (self.folder / "out").rglob("*.tsv")]
        self.assertEqual(found, ["test-de.tsv"])

    def test_predictions_of_validation_data_are_not_sent(self):
        scores = {"de": {"accuracy": 0.5}}
        folder = self.write("a", {}, task="pawsx", test={}, validation=scores)
        self.predict(folder, "de", [{"id": "0", "prediction": "1"}])
        path = folder / "predictions" / "test.de.jsonl"
        path.rename(path.with_name("validation.de.jsonl"))
        self.assertIn("de", self.submit()["pawsx"])
        self.assertEmpty(list(self.folder.rglob("*.tsv")))

    def test_predictions_of_unlabelled_tests_come_first(self):
        # From predict.py, on other examples than those of the scores.
        folder = self.write("a", {"de": 0.5, "fr": 0.5}, examples={"test": {"de": 1, "fr": 1}})
        for language in ("de", "fr"):
            self.predict(folder, language, [{"id": "0", "prediction": "neutral"}])
        for language in ("de", "sw"):
            lines = [{"id": str(i), "prediction": "entailment"} for i in range(2)]
            self.predict(folder, language, lines)
            path = folder / "predictions" / f"test.{language}.jsonl"
            path.rename(path.with_name(f"unlabelled.{language}.jsonl"))
        missing = self.submit()
        for language in ("de", "sw"):
            self.assertEqual(self.text(f"xnli/test-{language}.tsv"), "entailment\n" * 2)
        self.assertNotIn("sw", missing["xnli"])
        self.assertIn("fr", missing["xnli"])

    def test_predictions_that_do_not_fit_are_told(self):
        folder = self.write("a", {"de": 0.5}, examples={"test": {"de": 2}})
        with self.assertRaisesRegex(ValueError, r"test.de.jsonl: no such file, but .* of de"):
            self.submit()
        self.predict(folder, "de", [{"id": "0", "prediction": "neutral"}])
        with self.assertRaisesRegex(ValueError, "test.de.jsonl: 1 predictions for 2 examples"):
            self.submit()
        self.predict(folder, "de", [{"id": "0", "prediction": "neutral"}, {"id": "1"}])
        with self.assertRaisesRegex(ValueError, "test.de.jsonl, line 2: .* lacks the field pred"):
            self.submit()
        self.folder /= "tatoeba"
        self.folder.mkdir()
        folder = self.write("a", {"de": 0.5}, task="tatoeba")
        self.predict(folder, "de", [{"id": "0", "prediction": "7"}])
        with self.assertRaisesRegex(ValueError, "test.de.jsonl:1: prediction '7' is not one"):
            self.submit()

    def test_hyperparameters_that_nothing_chooses_between_are_told(self):
        for layer in (4, 8):
            hyperparameters = {"layer": layer}
            self.write(
                f"{layer}", {"de": 0.5}, task="tatoeba", hyperparameters=hyperparameters,
                selected=None,
            )  # fmt: skip
        with self.assertRaisesRegex(ValueError, "4 and .*8 are runs of tatoeba, and no score"):
            self.submit()
