"""Examples from tensorflow-datasets, mocked, are the same as those from the datasets' files."""

import json

import tensorflow_datasets as tfds
from absl.testing import parameterized

from input_pipeline.tasks.examples import Answer
from input_pipeline.tasks.files import Source
from input_pipeline.tasks.loading import load_examples, load_pairs
from input_pipeline.tasks.tasks import TASKS
from tests.folders import FolderTest
from xlm.experiment.task_kinds import KINDS, SEARCHES

NLI = (
    "premise\thypothesis\tlabel\n"
    "Es regnet.\t„Es“ ist nass.\tentailment\nJa.\tNein.\tcontradiction\nJa.\tDoch.\tneutral\n"
)


def rows(*values: dict, seen: list[str] | None = None):
    """Make every mocked dataset hold these rows, and check that they are of its form."""

    def as_dataset(builder, *args, **kwargs):
        import tensorflow as tf

        del args, kwargs
        if seen is not None:
            seen.append(builder.builder_config.name)
        spec = builder.info.features.get_tensor_spec()
        return tf.data.Dataset.from_generator(lambda: iter(values), output_signature=spec)

    return tfds.testing.mock_data(as_dataset_fn=as_dataset)


def pair_rows(one: str, two: str, text: str, labels: dict[str, int], **others) -> list[dict]:
    """The rows of a table with a header, as tensorflow-datasets gives them."""
    cells = [line.split("\t") for line in text.splitlines()[1:]]
    return [
        {one: a, two: b, "label": labels[label], **{k: v(i) for k, v in others.items()}}
        for i, (a, b, label) in enumerate(cells)
    ]


SQUAD = {
    "a": ("Wer?", "Der Bär 🐻 schläft.", [("🐻", 8), ("Bär", 4), ("🐻", 8)]),
    "b": (" Was tut er? ", " Er schläft.\n", [("schläft", 4)]),
    "c": ("Wo?", "Hier.", []),
}


def squad_rows(prefix: str, is_version_2: bool = False) -> list[dict]:
    def answers(found):
        return {"text": [t for t, _ in found], "answer_start": [s for _, s in found]}

    rows = []
    for name, (question, context, found) in SQUAD.items():
        rows.append({"id": prefix + name, "title": "t", "question": question, "context": context,
                     "answers": answers(found)})  # fmt: skip
        if is_version_2:
            rows[-1].update(is_impossible=not found, plausible_answers=answers([("x", 1)]))
    return rows


class TfdsExamplesTest(FolderTest):
    def load(self, task: str, pattern: str, language: str) -> list:
        readers = KINDS[TASKS[task].kind].readers
        return load_examples(readers, Source(TASKS[task], self.folder, [pattern], language))

    def check(self, task: str, split: str, language: str, values: list[dict], text: str) -> list:
        """Loads the rows and the file, expects equal examples, and returns them."""
        (self.folder / f"f.{language}").write_text(text, encoding="utf-8")
        from_files = self.load(task, "f.{language}", language)
        with rows(*values):
            pattern = TASKS[task].tfds[split]
            from_tfds = self.load(task, pattern, language)
        self.assertEqual(from_tfds, from_files)
        self.assertNotEmpty(from_tfds)
        return from_tfds

    @parameterized.parameters("validation", "test", "translate_train")
    def test_xnli(self, split):
        labels = {"entailment": 0, "neutral": 1, "contradiction": 2}
        values = []
        for row in pair_rows("one", "two", NLI, labels):
            premise = {c: row["one"] if c == "de" else c for c in TASKS["xnli"].languages}
            others = {"language": ["ar", "de", "zh"], "translation": ["x", row["two"], "y"]}
            values.append({"premise": premise, "hypothesis": others, "label": row["label"]})
        self.check("xnli", split, "de", values, NLI)
        with rows(*values), self.assertRaisesRegex(ValueError, "no data for language 'sw'"):
            self.load("xnli", TASKS["xnli"].tfds[split], "sw")

    @parameterized.parameters("train", "test", "translate_train")
    def test_pawsx(self, split):
        text = "id\tsentence1\tsentence2\tlabel\n1\tA B.\tB A.\t1\n2\t Ä \tC.\t0\n"
        short = text.replace("id\t", "").replace("1\tA", "A").replace("2\t Ä ", "Ä")
        values = pair_rows("sentence1", "sentence2", short, {"0": 0, "1": 1})
        self.check("pawsx", split, "de", values, text)

    @parameterized.parameters(
        ("mnli", "premise", "hypothesis", "train", NLI),
        ("mnli", "premise", "hypothesis", "validation_mismatched", NLI),
        ("xnli", "premise", "hypothesis", "train", NLI),
        ("rte", "sentence1", "sentence2", "test", "sentence1\tsentence2\tlabel\nA.\tB.\t1\n"),
        ("qnli", "question", "sentence", "test", "question\tsentence\tlabel\nA?\tB.\t1\n"),
        ("qqp", "question1", "question2", "train", "question1\tquestion2\tlabel\nA?\tB?\t0\n"),
        ("mrpc", "sentence1", "sentence2", "train", "sentence1\tsentence2\tlabel\nA.\tB.\t-1\n"),
    )
    def test_glue(self, task, one, two, split, text):
        labels = {name: number for number, name in enumerate(TASKS[task].labels)}
        labels |= {"-1": -1, "0": 0, "1": 1}
        self.check(task, split, "en", pair_rows(one, two, text, labels, idx=int), text)

    def test_glue_scores_and_single_sentences(self):
        text = "sentence1\tsentence2\tscore\nA.\tB.\t3.8\nA.\tA.\t5.000\nA.\tC.\t-1\n"
        scores = {"3.8": 3.8, "5.000": 5.0, "-1": -1.0}
        values = pair_rows("sentence1", "sentence2", text, scores, idx=int)
        examples = self.check("stsb", "validation", "en", values, text)
        self.assertEqual([type(e.label) for e in examples], [float, float, type(None)])
        values = [{"sentence": s, "label": x, "idx": 0} for s, x in (("A.", 1), ("B.", 0))]
        for task in ("cola", "sst2"):
            self.check(task, "train", "en", values, "sentence\tlabel\nA.\t1\nB.\t0\n")

    @parameterized.parameters("train", "validation", "test")
    def test_wikiann(self, split):
        polish = {"langs": ["pl"] * 3, "spans": ["x"]}
        values = [{"tokens": ["Ada", " ", "Łódź"], "tags": [1, 0, 5], **polish},
                  {"tokens": ["i"], "tags": [0], "langs": ["pl"], "spans": ["None"]}]  # fmt: skip
        text = "pl:Ada\tB-PER\npl: \tO\npl:Łódź\tB-LOC\n\npl:i\tO\n"
        self.check("wikiann", split, "pl", values, text)

    def test_udpos(self):
        names = TASKS["udpos"].labels
        values = [{"tokens": ["zu", "Haus"], "upos": [names.index("ADP"), names.index("NOUN")]}]
        rest = "\t_" * 6
        text = (
            f"1-2\tzum\t_\t_{rest}\n1\tzu\tzu\tADP{rest}\n2\t_\tder\tDET{rest}\n"
            f"3\tHaus\tHaus\tNOUN{rest}\n\n"
        )
        self.check("udpos", "validation", "de", values, text)

    def test_tamil_and_tagalog_are_what_they_say(self):
        seen: list[str] = []
        with rows({"tokens": ["a"], "upos": [0]}, seen=seen):
            for language in ("ta", "tl", "te"):
                self.load("udpos", TASKS["udpos"].tfds["test"], language)
        self.assertEqual(seen, ["xtreme_pos_tl", "xtreme_pos_ta", "xtreme_pos_te"])

    @parameterized.parameters(
        ("squad", "validation", "en", ""),
        ("xquad", "test", "de", ""),
        ("xquad", "translate_train", "de", ""),
        ("xquad", "train", "en", ""),
        ("mlqa", "test", "de", ""),
        ("tydiqa", "train", "fi", "finnish-"),
        ("tydiqa", "validation", "fi", "finnish-"),
        ("squad2", "train", "en", ""),
    )
    def test_questions(self, task, split, language, prefix):
        values, paragraphs = squad_rows(prefix, is_version_2=task == "squad2"), []
        for name, (question, context, found) in SQUAD.items():
            answers = [{"text": text, "answer_start": start} for text, start in found]
            asked = {"id": prefix + name, "question": question, "is_impossible": not found}
            paragraphs.append({"context": context, "qas": [{**asked, "answers": answers}]})
        text = json.dumps({"data": [{"paragraphs": paragraphs}]})
        examples = self.check(task, split, language, values, text)
        self.assertEqual(examples[0].answers, (Answer("🐻", 8), Answer("Bär", 4)))
        self.assertEqual(examples[1].context, " Er schläft.\n")

    def test_answers_out_of_place(self):
        value = squad_rows("")[1]
        value["answers"]["answer_start"] = [3]
        pattern = "tfds:squad/v1.1:train"
        with rows(value), self.assertRaisesRegex(ValueError, f"{pattern}, question 'b': .*at char"):
            self.load("squad", pattern, "en")

    def test_tydiqa_of_another_language(self):
        values = squad_rows("english-") + squad_rows("finnish-")
        with rows(*values):
            found = self.load("tydiqa", TASKS["tydiqa"].tfds["train"], "en")
        self.assertEqual([one.id for one in found], ["english-a", "english-b", "english-c"])

    def test_tatoeba(self):
        (self.folder / "de-en.tsv").write_text("Ja.\tYes.\nÄh?\tEh?\n", encoding="utf-8")
        task, languages = TASKS["tatoeba"], {"source_language": "de", "target_language": "en"}
        values = [{"source_sentence": f"{one}\n", "target_sentence": f"{two}\n", **languages}
                  for one, two in (("Ja.", "Yes."), ("Äh?", "Eh?"))]  # fmt: skip
        reader = SEARCHES[task.kind].reader
        with rows(*values):
            found = load_pairs(reader, Source(task, self.folder, [task.tfds["test"]], "de"))
        files = Source(task, self.folder, ["{language}-en.tsv"], "de")
        self.assertEqual(found, load_pairs(reader, files))

    @parameterized.parameters(
        ("xnli", "tfds:xnli:train", "de", "xnli:train"),
        ("wikiann", "tfds:wikiann/{language}:test", "qq", "wikiann/qq:test"),
        ("wikiann", "tfds:no_such_set/{language}:test", "de", "no_such_set/de:test"),
        ("rte", "tfds:glue/rte:train", "de", "glue/rte:train"),
    )
    def test_what_is_not_there(self, task, pattern, language, message):
        value = {"sentence1": "A.", "sentence2": "B.", "label": 0, "idx": 0}
        with (
            rows(*[value] * (task == "rte")),
            self.assertRaisesRegex(ValueError, f"no data for language '{language}'.*{message}"),
        ):
            self.load(task, pattern, language)

    def test_every_pattern_names_a_dataset(self):
        for task in TASKS.values():
            for pattern in (task.tfds or {}).values():
                name = pattern.removeprefix("tfds:").rpartition(":")[0]
                for language in task.languages:
                    code = task.tfds_codes.get(language, language)
                    known = tfds.builder_cls(name.split("/")[0]).builder_configs
                    config = name.replace("{language}", code).partition("/")[2]
                    is_english = language == "en" and "xtreme_pawsx" in name
                    if config and not is_english:
                        self.assertIn(config, known, name)
