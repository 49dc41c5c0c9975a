"""Finished runs of finetune.py by xlm export: folders, cards, and what is refused."""

import contextlib
import io
import json
import pathlib
import re
import shutil

import huggingface_hub
import jax
import numpy as np
from absl.testing import absltest
from safetensors.numpy import load_file

from configs.finetune import text
from input_pipeline.tasks.examples import TaggedExample, TextExample
from tests import commands, tiny_tasks
from tests.folders import FolderTest
from tests.interop.onnx_folder_test import HAS_ONNX
from tests.interop.xlm_roberta_parity_test import HAS_TORCH
from xlm.common import artifacts
from xlm.experiment import fine_tuning as builders
from xlm.experiment import model_card, prediction, tuned_export
from xlm.experiment.model_card import Facts
from xlm.experiment.task_settings import task_settings
from xlm.interop import model_folder
from xlm.interop.params_file import read_params
from xlm.models.encoder import EncoderSettings

SENTENCES = [("the", "catdog", "runs", "."), ("zebra",), ("a", "cat")]


class ExportCase(FolderTest):
    def setUp(self):
        super().setUp()
        self.output = self.folder / "out"

    def export(self, workdir: pathlib.Path, *flags: str):
        return commands.execute(
            "export_model", f"--workdir={workdir}", f"--output={self.output}", *flags
        )

    def assert_refused(self, error: str, workdir: pathlib.Path, *flags: str):
        result = self.export(workdir, *flags)
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, error)
        self.assertFalse(self.output.exists())

    def card_of(self, name: str) -> str:
        """Export a run and return its card, whose code is run if there is any for transformers."""
        workdir = tiny_tasks.finished(name)
        result = self.export(workdir)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEmpty(result.stderr)
        return (self.output / "README.md").read_text(encoding="utf-8")

    def run_code(self, card: str, **replaced: str) -> str:
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        for old, new in replaced.items():
            code = re.sub(rf"^{old} = .*$", f"{old} = {new}", code, flags=re.MULTILINE)
        printed = io.StringIO()
        with contextlib.chdir(self.output), contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), {})
        return printed.getvalue()


class CardTest(ExportCase):
    def test_card_of_tags(self):
        card = self.card_of("udpos")
        results = artifacts.read_json(tiny_tasks.finished("udpos") / "results.json")
        self.assertStartsWith(
            card,
            '---\nlanguage: ["en"]\nlicense: "unknown"\nbase_model: "tiny-xlmr-2"\n'
            'library_name: "transformers"\npipeline_tag: "token-classification"\n'
            'metrics: ["accuracy", "f1", "precision", "recall"]\nmodel-index:\n'
            '- name: "tiny-xlmr-2, fine-tuned on udpos"\n  results:\n',
        )
        self.assertIn("\n---\n\n# tiny-xlmr-2, fine-tuned on udpos\n", card)
        found = {
            (one.dataset_name, one.dataset_config, one.metric_type): one.metric_value
            for one in huggingface_hub.ModelCard(card).data.eval_results
        }
        expected = {
            ("udpos", language, name): score
            for language, scores in results["test"].items()
            for name, score in scores.items()
        }
        self.assertEqual(found, expected)
        self.assertIn("Labels: `ADJ`, `ADP`, ", card)
        for language, scores in results["test"].items():
            shown = [f"{100 * scores[name]:.1f}" for name in ("f1", "accuracy")]
            self.assertIn(f"\n| {language} | 24 | {' | '.join(shown)} |", card)
        self.assertIn("| train.epochs | 16.0 |", card)
        self.assertIn("| optimizer.learning_rate | 0.01 |", card)
        self.assertIn("| trained on | udpos in en: `udpos/train/{language}.tsv.xz` |", card)
        self.assertNotIn(str(tiny_tasks.scratch()), card)
        config = artifacts.read_json(self.output / "config.json")
        self.assertEqual(config["architectures"], ["XLMRobertaForTokenClassification"])
        self.assertEqual(config["id2label"]["7"], "NOUN")

    @absltest.skipUnless(HAS_ONNX, "torch, transformers or onnxruntime is not installed")
    def test_code_of_an_onnx_runs(self):
        result = self.export(tiny_tasks.finished("squad2"), "--format=onnx")
        self.assertEqual(result.returncode, 0, result.stderr)
        card = (self.output / "README.md").read_text(encoding="utf-8")
        self.assertIn("outputs = model.run(", card)
        self.run_code(card)

    @absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_code_tags_words_as_the_run_does(self):
        card = self.card_of("udpos")
        model = prediction.FineTuned(tiny_tasks.finished("udpos"))
        examples = [TaggedExample(str(i), words, ()) for i, words in enumerate(SENTENCES)]
        (lines,) = model(examples)
        for words, line in zip(SENTENCES, lines, strict=True):
            printed = self.run_code(card, words=json.dumps(words))
            expected = [f"{w} {tag}" for w, tag in zip(words, line["prediction"], strict=True)]
            self.assertEqual(printed.splitlines(), expected)

    def test_card_of_pairs_and_numbers(self):
        config = tiny_tasks.config("glue", "stsb,")
        options = task_settings(config)
        width = tiny_tasks.SETTINGS.hidden_size
        results = {
            "model": "mine", "seed": 3, "selected": {"step": 1, "metric": "pearson", "on": ["en"]},
            "validation": {"en": {"pearson": 0.5}}, "test": {"en": {"pearson": 0.25}},
            "examples": {"validation": {"en": 2}, "test": {"en": 2}},
        }  # fmt: skip
        head = tuned_export.task_head(options, self.task_params(1))
        card = model_card.text(Facts(config, options, results, head, 2, width, "ab12", ""))
        self.assertIn('texts, others = ["A text"], ["Another text"]\n', card)
        self.assertIn("print(scores[:, 0].tolist())", card)
        self.assertIn("Its output is a number.", card)
        self.assertIn("| en | 2 | 25.0 |", card)

    def task_params(self, size: int) -> dict:
        width = tiny_tasks.SETTINGS.hidden_size
        sizes = (("dense", width), ("output", size))
        return {name: {"kernel": np.zeros((width, n)), "bias": np.zeros(n)} for name, n in sizes}

    def card_of_own_texts(self, **changes) -> str:
        """The card of a run on a user's own files, of which no key names the languages."""
        config = text.get_config("/home/someone/mine")
        config.task.labels = ("no", "yes")
        scores = {language: {"macro_f1": 0.5} for language in ("de", "tr")}
        results = {
            "model": "mine", "seed": 0, "setting": "trained_on:de+sw", "validation": scores,
            "selected": {"step": 1, "metric": "macro_f1", "on": ["de", "tr"]}, "test": {},
            "examples": {"validation": {"de": 2, "tr": 2}},
        }  # fmt: skip
        options, width = task_settings(config), tiny_tasks.SETTINGS.hidden_size
        head = tuned_export.task_head(options, self.task_params(2))
        facts = Facts(config, options, {**results, **changes}, head, 2, width, "ab12", "")
        return model_card.text(facts)

    def test_card_names_the_languages_that_there_were_files_for(self):
        for setting, named, trained in (
            ("trained_on:de+sw", '["de", "sw"]', "de, sw"),
            ("transfer_from:sw", '["sw"]', "sw"),
            ("zero_shot", '["en"]', "en"),
        ):
            card = self.card_of_own_texts(setting=setting)
            self.assertStartsWith(card, f"---\nlanguage: {named}\n")
            expected = f"| trained on | mine in {trained}: `train.{{language}}.*` |"
            self.assertIn(expected, card)

    def test_card_of_one_of_several_models_has_scores_of_the_others(self):
        note = "The scores are not theirs, unless the step is the same"
        self.assertNotIn(note, self.card_of_own_texts())
        steps = {"step": 3, "metric": "macro_f1", "on": ["de", "tr"], "steps": {"de": 3, "tr": 2}}
        card = self.card_of_own_texts(selected=steps)
        for said in (note, "those of step 3, the best by macro_f1 on the validation data in de",
                     "steps: de 3, tr 2"):  # fmt: skip
            self.assertIn(said, card)

    @absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_code_answers_as_the_run_does(self):
        card = self.card_of("squad2")
        self.assertIn('pipeline_tag: "question-answering"', card)
        asked = [
            # Not the one whose score is the threshold, where rounding would decide.
            ("cat ?", "the dog sleeps . the cat runs . the dog sleeps"),
            ("fox ?", "the dog runs"),
        ]
        path = self.write("asked.txt", "".join(f"{one}\t{two}\n" for one, two in asked))
        model = prediction.FineTuned(tiny_tasks.finished("squad2"))
        (lines,) = model(model.read(path))
        self.assertEqual([line["prediction"] for line in lines], ["the cat runs", ""])
        for pair, line in zip(asked, lines, strict=True):
            printed = self.run_code(card, **{"question, context": json.dumps(pair)[1:-1]})
            self.assertEqual(printed, line["prediction"] + "\n")


class OwnFormTest(ExportCase):
    def card_of_own_form(self, workdir: pathlib.Path) -> str:
        """Export a run that transformers loads by our code, and return its card."""
        result = self.export(workdir)
        self.assertEqual(result.returncode, 0)
        self.assertIn("a form of our own: load it with trust_remote_code", result.stderr)
        return (self.output / "README.md").read_text(encoding="utf-8")

    def test_mean_states_keep_their_form(self):
        finished, workdir = tiny_tasks.finished("cola"), self.folder / "run"
        shutil.copytree(finished, workdir)
        settings = artifacts.read_json(workdir / "settings.json")
        settings["task"]["text_pooling"] = "mean"
        artifacts.write_json(workdir / "settings.json", settings)
        examples = [TextExample(str(i), text, None, None) for i, text in enumerate(("cat", "dog"))]
        # Without layers the state of <s> is the same for all texts, but not the mean.
        by_first, by_mean = (
            [line["probabilities"] for line in lines]
            for (lines,) in (prediction.FineTuned(one)(examples) for one in (finished, workdir))
        )
        self.assertEqual(by_first[0], by_first[1])
        self.assertNotEqual(by_mean[0], by_mean[1])
        card = self.card_of_own_form(workdir)
        self.assertIn("Its head reads the mean of the last states of all tokens but padding", card)
        self.assertNotIn("XLMRobertaForSequenceClassification", card)

    def test_crossed_pairs_keep_their_form(self):
        workdir = tiny_tasks.finished("pawsx")
        card = self.card_of_own_form(workdir)
        self.assertRegex(card, r"(?s)cross_attention is True.*; no class .* kind classification")
        trained, notes = read_params(workdir / "best.safetensors")
        sizes, found = model_folder.read_model(self.output)
        self.assertEqual(
            EncoderSettings(**sizes, dtype="float32"), builders.encoder_of_notes(notes.encoder)
        )
        jax.tree.map(np.testing.assert_array_equal, found, trained["encoder"])
        tensors = load_file(self.output / "model.safetensors")
        kernel = trained["task"]["output"]["kernel"]
        np.testing.assert_array_equal(tensors["task.output.kernel"], kernel)
        task = artifacts.read_json(self.output / "config.json")["task"]
        self.assertEqual((task["kind"], task["labels"]), ("classification", ["0", "1"]))
        self.assertNotIn("pipeline_tag", card)


class RefusedTest(ExportCase):
    def test_what_is_no_finished_run_of_fine_tuning(self):
        workdir = self.folder / "run"
        self.assert_refused("run is no run of train.py or finetune.py", workdir)
        shutil.copytree(tiny_tasks.finished("cola"), workdir)
        self.assert_refused("leave out --part", workdir, "--part=generator")
        self.assert_refused("no place for the head", workdir, "--format=sentence_transformers")
        (workdir / "results.json").unlink()
        self.assert_refused("no results.json; --workdir must be a finished run", workdir)
        crossed = tiny_tasks.finished("pawsx")
        self.assert_refused("no class computes a head", crossed, "--format=onnx")
        search = "run of bucc, of kind mining, which has no encoder with a head"
        self.assert_refused(search, tiny_tasks.finished("bucc"))
