"""Predictions on a user's own files: each kind of line, chunks, and runs that do not fit."""

import dataclasses
import json
import pathlib
import shutil
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks import unlabelled
from input_pipeline.tasks.examples import BadRow, QuestionExample, TaggedExample, TextExample
from input_pipeline.tasks.tasks import TASKS
from tests import folders, tiny_tasks
from tests.malformed import harness
from vocap import merge
from xlm.common import artifacts
from xlm.experiment import prediction, task_data
from xlm.experiment.pretrained import read_pretrained
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import Tokenizer, task_settings


class UnlabelledTest(folders.FolderTest):
    def read(self, task: str, text: str, name: str = "mine.txt"):
        tiny_tasks.write(self.folder / name, text)
        return KINDS[TASKS[task].kind].readers.unlabelled(self.folder / name, TASKS[task])

    def test_lines_of_every_kind(self):
        question = {"context": "Der Bär.", "qas": [{"id": "x", "question": "Wer?"}]}
        squad = json.dumps({"data": [{"paragraphs": [question]}]})
        for task, name, text, expected in (
            ("cola", "mine.txt", "Eins.\n Zwei.\n", [TextExample("1", "Eins.", None, None),
                                                    TextExample("2", "Zwei.", None, None)]),
            # A tab is text but where it ends a column.
            ("cola", "mine.txt", "Eins.\tZwei.\n\tDrei.\n", [
                TextExample("1", "Eins.\tZwei.", None, None), TextExample("2", "Drei.", None, None)
            ]),
            ("xnli", "mine.tsv.xz", "下雨。\t湿。\n", [TextExample("1", "下雨。", "湿。", None)]),
            ("udpos", "mine.txt", "我 爱 北京\n", [TaggedExample("1", ("我", "爱", "北京"), ())]),
            ("tydiqa", "mine.txt", "Wer?\tDer Bär.\n",
             [QuestionExample("1", "Wer?", "Der Bär.", ())]),
            ("tydiqa", "mine.json.xz", squad, [QuestionExample("x", "Wer?", "Der Bär.", ())]),
        ):  # fmt: skip
            self.assertEqual(self.read(task, text, name), expected)

    @parameterized.parameters(
        ("xnli", "a\tb\nc\n", "line 2: 1 columns, but xnli takes two texts with one tab"),
        ("xquad", "a\tb\tc\n", "line 1: 3 columns, but xquad takes question and context"),
        ("cola", "Eins.\tZwei.\n", "line 1: 2 columns, but cola takes one text"),
        ("xquad", "\n \n", "the file is empty"),
    )
    def test_lines_that_do_not_fit(self, task, text, error):
        with self.assertRaisesRegex(ValueError, f"mine.tsv.*{error}"):
            for one in self.read(task, text, "mine.tsv"):
                if isinstance(one, BadRow):
                    raise ValueError(one.error)


class FineTunedTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(tiny_tasks.quick())

    @parameterized.parameters("cola", "udpos", "squad2", "pawsx")
    def test_the_data_of_the_run_gets_what_the_run_has_predicted(self, name):
        folder = tiny_tasks.finished(name)
        model = prediction.FineTuned(folder)
        path = folder / "predictions" / "test.en.jsonl"
        expected = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        examples = model.read(self.write_mine(folder))
        (lines,) = model(examples)
        self.assert_equal_lines(lines, expected)
        # And chunk by chunk.
        with mock.patch.object(prediction, "CHUNK", 5):
            chunks = list(model(examples))
        self.assertLen(chunks, -(-len(examples) // 5))
        self.assert_equal_lines([line for chunk in chunks for line in chunk], expected)

    def test_every_row_has_a_line_with_what_is_copied(self):
        model = prediction.FineTuned(tiny_tasks.finished("cola"))
        examples = model.read(self.write("mine.txt", "the cat\n\n\tdog\truns\n\n"))
        (plain,) = model([one for one in examples if not isinstance(one, BadRow)])
        with mock.patch.object(prediction, "CHUNK", 2):
            found = [line for chunk in model(examples, with_text=True) for line in chunk]
        self.assertEqual([one["id"] for one in found], ["1", "2", "3", "4"])
        self.assertEqual([one.pop("text") for one in found[::2]], ["the cat", "dog\truns"])
        self.assert_equal_lines(found[::2], plain)
        for one in found[1::2]:
            self.assertIsNone(one["prediction"])
            self.assertRegex(one["error"], "mine.txt, line [24]: the line is empty")
        rows = [dataclasses.replace(examples[0], cells={"a": 1, "b": 2}), examples[1]]
        ((one, two),) = model(rows, columns=["b"])
        self.assertEqual((one["columns"], two["columns"]), ({"b": 2}, {"b": None}))
        with self.assertRaisesRegex(ValueError, "names 'c', but the input's columns are a, b;"):
            list(model(rows, columns=["c"]))
        with self.assertRaisesRegex(ValueError, "no row of 1 can be read: .*line 2"):
            list(model(rows[1:]))

    def write_mine(self, folder: pathlib.Path) -> pathlib.Path:
        """The English test data of a run as a user would write it."""
        options = task_settings(prediction.run_config(folder))
        if options.task.kind == "extractive_qa":
            return pathlib.Path(options.root) / options.test[0]
        tokenizer = Tokenizer(tiny_tasks.tokenizer())
        (data,) = (
            d for d in task_data.read_split(options, tokenizer, "test") if d.language == "en"
        )
        lines = []
        for one in data.examples:
            if isinstance(one, TaggedExample):
                lines.append(" ".join(one.words))
            else:
                lines.append(one.text + (f"\t{one.text_pair}" if one.text_pair else ""))
        return self.write("mine.txt", "\n".join(lines) + "\n")

    def assert_equal_lines(self, found: list[dict], expected: list[dict]) -> None:
        def check(one, two):
            if isinstance(one, float):
                self.assertAlmostEqual(one, two, places=5)
            else:
                self.assertEqual(one, two)

        ours = {"id": "", "gold": None}  # only runs know labels
        lines = ([{**line, **ours} for line in both] for both in (found, expected))
        jax.tree.map(check, *lines)

    def test_another_tokenizer_is_named(self):
        folder = self.folder / "run"
        shutil.copytree(tiny_tasks.finished("udpos"), folder)
        pieces = [*tiny_tasks.PIECES[:-1], "q2"]
        other = merge.write_model(pieces, -np.arange(1.0, len(pieces) + 1))
        (folder / "spm.model").write_bytes(other)
        hashes = [prediction.tokenizer_hash(m) for m in (other, tiny_tasks.tokenizer())]
        error = f"spm.model is tokenizer {hashes[0]}, but .* trained with tokenizer {hashes[1]}"
        with self.assertRaisesRegex(ValueError, error):
            prediction.FineTuned(folder)


class EntryPointTest(folders.FolderTest):
    """The commands themselves."""

    def setUp(self):
        super().setUp()
        self.enter_context(tiny_tasks.quick())
        self.write("one", "the cat runs\nfox\n")
        self.write("two", "zebra\n\nfox\nthe cat runs\n")

    def test_a_run_its_table_and_predictions(self):
        workdir = self.folder / "run"
        given = [
            f"--config=configs/finetune/tatoeba.py:{tiny_tasks.data_folder()}",
            f"--config.init_from={tiny_tasks.encoder_folder(0)}", "--config.task.layer=0",
            "--config.task.max_length=24", "--config.task.test_languages=('af',)",
            f"--workdir={workdir}",
        ]  # fmt: skip
        done = harness.run("finetune", given)
        self.assertEqual(done.status, 0, done.errors)
        self.assertIn("| af | 6 | 100.0 |", done.output)
        output = self.folder / "out.jsonl"
        inputs = f"--input={self.folder / 'one'},{self.folder / 'two'}"
        given = [f"--workdir={workdir}", inputs, f"--output={output}"]
        done = harness.run("predict", given)
        self.assertEqual(done.status, 0, done.errors)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        self.assertEqual(
            [(one["id"], one["prediction"]) for one in lines], [("1", "4"), ("2", "3")]
        )
        before = output.read_bytes()
        for name, message in ((output, "exists"), (self.folder / "one", "is an input")):
            done = harness.run("predict", [*given, f"--output={name}"])
            self.assertRegex(done.errors, rf"error .*{name} {message}")
            self.assertEqual(done.status, 2)
        given.append("--overwrite")
        model = tiny_tasks.encoder_folder(0) / "model.safetensors"
        for name in (workdir / "settings.json", model):
            done = harness.run("predict", [*given, f"--output={name}"])
            self.assertIn(f"{name} is an input", done.errors)
        self.assertEqual(output.read_bytes(), before)
        with artifacts.locked(workdir):
            done = harness.run("predict", given)
            self.assertIn(f"another process is at work in {workdir}", done.errors)
        settings = json.loads((workdir / "settings.json").read_text())
        (workdir / "settings.json").write_text(json.dumps({**settings, "parameters": "others"}))
        done = harness.run("predict", given)
        self.assertEqual(done.status, 2, done.errors)
        self.assertIn("made with parameters others: the encoder has changed", done.errors)


class SearchTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(tiny_tasks.quick())

    def test_pairs_are_mined_without_a_run(self):
        texts = {"one": "the cat runs\nfox\nqqq\n", "two": "zebra\nfox\nthe cat runs\n"}
        sides = [unlabelled.read_sentences(self.write(name, texts[name])) for name in texts]
        config = tiny_tasks.config("bucc", num_layers=0, task__layer=0)
        found = prediction.search_lines(config, *sides, None)
        self.assertEqual(
            {(one["source"], one["target"]) for one in found[:2]}, {("1", "3"), ("2", "2")}
        )
        limit = found[1]["score"]
        self.assertEqual(prediction.search_lines(config, *sides, limit), found[:2])

    def test_the_threshold_is_that_of_the_run(self):
        folder = tiny_tasks.finished("bucc")
        config = prediction.run_config(folder)
        known = json.loads((folder / "results.json").read_text())["thresholds"]["zh"]
        self.assertEqual(prediction.mining_threshold(config, folder, "zh"), known)
        for language in ("de", ""):
            message = rf"--language is '{language}'; .* has thresholds of zh: choose one"
            with self.assertRaisesRegex(ValueError, message):
                prediction.mining_threshold(config, folder, language)
        config.task.threshold = 1.5
        self.assertEqual(prediction.mining_threshold(config, None, "zh"), 1.5)

    def test_the_encoder_is_that_of_the_run(self):
        folder = self.folder / "run"
        shutil.copytree(tiny_tasks.finished("bucc"), folder)
        config = prediction.run_config(folder)
        side = unlabelled.read_sentences(self.write("mine", "the cat\nfox\n"))
        expected = prediction.search_lines(config, side, side, None, folder)
        self.assertLen(expected, 2)
        same = read_pretrained(config.init_from)
        halved = jax.tree.map(lambda x: x / 2, same.params)
        other = merge.write_model(tiny_tasks.PIECES, -np.arange(2.0, len(tiny_tasks.PIECES) + 2))
        changes = {"parameters": {"params": halved}, "tokenizer": {"tokenizer": other}}
        for name, changed in changes.items():
            now = dataclasses.replace(same, **changed)
            with mock.patch.object(prediction, "read_pretrained", return_value=now):
                message = (
                    f"init_from is '{config.init_from}', with {name} {now.digests()[name]}, but "
                    f"{folder} was made with {name} {same.digests()[name]}: .* put the run's back"
                )
                with self.assertRaisesRegex(ValueError, message):
                    prediction.search_lines(config, side, side, None, folder)
                prediction.search_lines(config, side, side, None)  # without a run any will do
                settings = json.loads((folder / "settings.json").read_text())
                self.assertEqual(settings.pop(name), same.digests()[name])
                (folder / "settings.json").write_text(json.dumps(settings))
                prediction.search_lines(config, side, side, None, folder)  # of an older run
