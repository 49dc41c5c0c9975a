"""Translation from files to results: learned, stopped, started from checkpoints, misused."""

import functools
import json
import pathlib
import shutil
from unittest import mock

import flax.linen as nn
import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import read_column
from input_pipeline.tasks import pair_columns
from input_pipeline.tasks.tasks import TASKS
from research import translation_search
from tests import commands, folders, tiny_tasks, tiny_translation
from xlm.common import artifacts
from xlm.evaluation import task_results
from xlm.experiment import (
    prediction,
    task_runs,
    translated_text,
    translation,
    translation_pairs,
    translation_runs,
)
from xlm.experiment.task_settings import Tokenizer, task_settings
from xlm.interop import vocabulary
from xlm.interop.params_file import read_params
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped

predict, translate = commands.load("predict"), commands.load("translate")


@functools.cache
def learned() -> pathlib.Path:
    """The folder of a run that has learned the words."""
    folder = tiny_tasks.scratch() / "learned"
    config = tiny_translation.config()
    config.train.update(num_steps=160, evaluate_every=80, checkpoint_every=40)
    # What learns such a task within seconds: alignments from near tokens on.
    config.architecture.update(
        num_layers=2, hidden_size=32, embedding_size=32, initializer="fan_in", position="gated",
        distance_slope=0.5,
    )  # fmt: skip
    config.evaluation.beams_in_training = 1
    tiny_tasks.run(config, folder)
    return folder


def short(**overrides) -> ConfigDict:
    """The config of a short run in two directions; such runs share compiled functions."""
    return tiny_translation.config("en-de+en-fr", train__accumulation_steps=2, **overrides)


@functools.cache
def whole_run() -> pathlib.Path:
    """The folder of a short run that nothing stopped."""
    folder = tiny_tasks.scratch() / "whole"
    tiny_tasks.run(short(), folder)
    return folder


class LearningTest(folders.FolderTest):
    def test_words_are_learned(self):
        results = artifacts.read_json(learned() / "results.json")
        self.assertGreater(results["test"]["en-de"]["chrf"], 0.6)
        self.assertEqual(results["examples"], {"validation": {"en-de": 12}, "test": {"en-de": 11}})
        self.assertEqual(results["setting"], "supervised")
        self.assertEqual(results["selected"]["averaged_steps"], [120, 160])
        self.assertEqual(results["selected"]["value"], results["validation"]["en-de"]["bleu"])
        self.assertRegex(results["signatures"]["en-de"]["bleu"], r"tok:13a.*version:")
        self.assertRegex(task_results.table(TASKS["translation"], results), r"\| en-de \| 11 \|")
        lines = (learned() / "predictions" / "test.en-de.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        right = [one["prediction"] == tiny_translation.translated(one["source"]) for one in found]
        self.assertGreater(np.mean(right), 0.3)
        # The symbol and the tokenizer are kept.
        params, notes = read_params(learned() / "best.safetensors")
        self.assertEqual(notes.symbols, {"de": tiny_tasks.VOCAB})
        self.assertLen(params["encoder"]["embeddings"]["table"], tiny_tasks.VOCAB + 1)
        self.assertNotIn("embeddings", params["decoder"])
        self.assertEqual((learned() / "spm.model").read_bytes(), tiny_tasks.tokenizer())

    def test_the_report_has_curves_signatures_and_examples(self):
        text = (learned() / "report.md").read_text()
        self.assertIn("mean of 2 checkpoints, of steps 120 to 160", text)
        self.assertIn("![BLEU by step](bleu.svg)", text)
        self.assertTrue((learned() / "bleu.svg").exists())
        steps = [one for one in read_metrics(learned() / "metrics.jsonl")
                 if "validation/bleu/en-de" in one]  # fmt: skip
        self.assertEqual([one["step"] for one in steps], [80, 160])
        for one in steps:
            value = 100 * one["validation/bleu/en-de"]
            self.assertIn(f"| {one['step']} | {value:.1f} |", text)

    def test_the_ceiling_of_a_tokenizer_that_normalises(self):
        text, run = "the cat runs the dog .\n", self.folder / "run"
        for split, first in (("train", text), ("dev", text), ("test", "the　ｃａｔ runs .\n")):
            for language in ("en", "de"):
                tiny_tasks.write(self.folder / f"{split}.{language}", first + text * 8)
        config = tiny_translation.config(task__root=str(self.folder))
        with self.assertLogs(level="WARNING") as logs:
            results = tiny_tasks.run(config, run)
        ceiling = results["ceilings"]["test"]["en-de"]
        self.assertBetween(ceiling, 0.5, 0.99)
        self.assertEqual(results["ceilings"]["validation"], {"en-de": 1.0})
        note = f"en-de, test: a perfect model reaches {100 * ceiling:.1f} BLEU, since the tokenizer"
        self.assertIn(note, logs.output[0])
        self.assertIn(note, (run / "report.md").read_text())
        self.assertIn(note, task_results.table(TASKS["translation"], results))

    def test_another_search_gives_what_the_run_gave(self):
        results = artifacts.read_json(learned() / "results.json")
        with tiny_tasks.quick():
            found = translation_search.search(learned(), beams=[2], averaged=[2])
        self.assertEqual([one["split"] for one in found], ["validation", "test"])
        for one in found:
            self.assertGreater(one["sentences_per_second"], 0)
            self.assertEqual(one["bleu"], results[one["split"]]["en-de"]["bleu"])

    def test_two_directions_are_told_apart_by_the_symbol(self):
        tested = ("en-de", "en-fr", "de-fr")
        config = short(train__averaged_checkpoints=0, task__test_languages=tested)
        results = tiny_tasks.run(config, self.folder / "run")
        self.assertEqual(set(results["test"]), {*tested})
        self.assertEqual(results["zero_shot"], ["de-fr"])
        self.assertIn("| de-fr, test, zero-shot |", (self.folder / "run/report.md").read_text())
        scores = [results["test"][one]["chrf"] for one in tested[:2]]
        table = task_results.table(TASKS["translation"], results)
        self.assertRegex(table, r"\| de-fr, zero-shot \|")
        self.assertRegex(table, rf"\| mean .*\| {100 * np.mean(scores):.1f} \|")
        _, notes = read_params(self.folder / "run" / "best.safetensors")
        self.assertEqual(notes.symbols, {"de": tiny_tasks.VOCAB, "fr": tiny_tasks.VOCAB + 1})
        # Without an average the best parameters in training are taken.
        self.assertIn(results["selected"]["step"], (4, 8))
        self.assertIsNone(results["selected"]["averaged_steps"])

    def test_another_search_of_a_finished_run_trains_nothing(self):
        changes = {"decoding__max_length": 2, "evaluation__batch_tokens": 24 * 4}
        shutil.copytree(whole_run(), self.folder / "run")
        found = tiny_tasks.run(short(**changes), self.folder / "run")
        expected = tiny_tasks.run(short(**changes), self.folder / "new")
        for name in ("validation", "test", "selected"):
            self.assertEqual(found[name], expected[name])
        self.assertEqual(found["decoding"]["max_length"], 2)
        recorded = artifacts.read_json(self.folder / "run/settings.json")
        self.assertEqual(recorded["decoding"]["max_length"], 2)
        kept = (self.folder / "run/best.safetensors").read_bytes()
        self.assertEqual(kept, (whole_run() / "best.safetensors").read_bytes())
        with mock.patch.object(translation_runs, "prepare") as prepare:
            self.assertEqual(tiny_tasks.run(short(**changes), self.folder / "run"), found)
        prepare.assert_not_called()

    def test_no_key_of_the_search_is_of_the_training(self):
        config = short(train__averaged_checkpoints=0)
        found = translation.search_in_training(config)
        config.decoding.update(max_length=2, no_repeat_ngram=1, samples=2, mbr=True)
        self.assertEqual(translation.search_in_training(config), found)
        later = ["decoding", "evaluation.batch_tokens"]
        self.assertEqual(task_runs._read_after_training(config), later)
        self.assertIn("evaluation", task_runs._read_after_training(short()))

    @parameterized.parameters(6, 8)  # between checkpoints, and in the evaluation
    def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(self, step):
        config = short()
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, self.folder / "one", stops_after=step)
        self.assertFalse((self.folder / "one" / "results.json").exists())
        tiny_tasks.run(config, self.folder / "one")
        whole = whole_run()
        root = tiny_translation.data_folder()
        data = {str(root / f"{split}.{language}") for split in ("train", "dev", "test")
                for language in ("en", "de", "fr")}  # fmt: skip
        self.assertEqual(set(artifacts.read_json(whole / "data.json")), data)
        predictions = [f"predictions/test.{one}.jsonl" for one in ("en-de", "en-fr")]
        for name in ("best.safetensors", "metrics.jsonl", *predictions):
            self.assertEqual(
                (self.folder / "one" / name).read_bytes(), (whole / name).read_bytes(), name
            )

    def test_other_data_are_tokenised_anew(self):
        config, folder = tiny_translation.config(), self.folder / "pairs"
        pretrained = translation.read_start(config)
        first, second = self.write("one.tsv", "the\tcat\ndog\t.\n"), self.folder / "two.tsv"
        second.write_text("runs\t字\n" * 2)
        config.task.update(root=str(self.folder), train=(first.name,))
        found = translation_pairs.prepared(config, pretrained, folder)
        self.assertEqual(found.tokenizer, pretrained.tokenizer)
        with mock.patch.object(pair_columns, "write", side_effect=AssertionError):
            translation_pairs.prepared(config, pretrained, folder)
        config.task.train = (second.name,)
        found = translation_pairs.prepared(config, pretrained, folder)
        self.assertNotEqual(found.tokenizer, pretrained.tokenizer)
        ids = read_column(folder, "en-de.0.0", "target").ids[:]
        self.assertEqual(Tokenizer(found.tokenizer).processor.decode(ids.tolist()), "字 字")


def pruned(config: ConfigDict, pretrained):
    """The start with the pieces that the training data use."""
    config.translation.prune = True
    found = translation_pairs.pieces_of_data(config, pretrained)
    return translation.with_pieces(pretrained, found)


class StartTest(folders.FolderTest):
    def start(self, *, cross_attention: bool = True, make=tiny_translation.config, **overrides):
        source = str(tiny_translation.checkpoint(cross_attention))
        config = make(random_init=False, init_from=source, **overrides)
        pretrained = translation.read_start(config)
        return config, pretrained, translation.model(config, pretrained)

    def params(self, *args):
        make = translation.initial_params(*args)
        assert make is not None
        return make()

    @parameterized.parameters(("first", 0), ("last", 1))
    def test_layers_of_a_checkpoint(self, end, start):
        config, pretrained, model = self.start(
            translation__decoder_layers=2, translation__decoder_from=end
        )
        found, layers = self.params(config, pretrained, model), pretrained.params["layers"]
        expected = jax.tree.map(lambda x: x[start : start + 2], layers)
        jax.tree.map(np.testing.assert_array_equal, found["decoder"]["layers"], expected)
        self.assertIn("cross_attention", found["decoder"]["layers"])
        self.assertNotIn("cross_attention", found["encoder"]["layers"])
        own = found["encoder"]["layers"]["mlp"]
        jax.tree.map(np.testing.assert_array_equal, own, layers["mlp"])
        table = found["encoder"]["embeddings"]["table"]
        np.testing.assert_array_equal(table[:-1], pretrained.params["embeddings"]["table"])
        self.assertBetween(table[-1].std(), 0.5 * table.std(), 2 * table.std())
        # Nothing else is random: all parameters of the run are there.
        shapes = nn.unbox(
            jax.eval_shape(translation.objective(config, model).init, jax.random.key(0))
        )
        self.assertEqual(jax.tree.map(np.shape, found), jax.tree.map(np.shape, shapes))

    def test_an_encoder_without_cross_attention_starts_with_a_random_one(self):
        with self.assertLogs(level="WARNING") as logs:
            config, pretrained, model = self.start(cross_attention=False, make=short)
        self.assertRegex(logs.output[0], "has no cross-attention; .* starts with random")
        found = self.params(config, pretrained, model)
        self.assertNotIn("cross_attention", found["decoder"]["layers"])
        results = tiny_tasks.run(config, self.folder / "run")
        self.assertEqual(results["model"], "checkpoint-False")
        with self.assertRaisesRegex(ValueError, "has no cross-attention; .*encoder_decoder; "):
            self.start(cross_attention=False, translation__needs_cross_attention=True)

    def test_a_random_decoder_behind_a_checkpoint_s_encoder(self):
        config, pretrained, model = self.start(
            cross_attention=False, translation__decoder_from="random", translation__decoder_layers=4
        )
        found = self.params(config, pretrained, model)
        self.assertEqual(set(found), {"encoder"})
        config.train.update(num_steps=1, checkpoint_every=1, averaged_checkpoints=1)
        config.optimizer.learning_rate = 1e-9
        results = tiny_tasks.run(config, self.folder / "run")
        self.assertEqual(results["hyperparameters"]["decoder"], "random 4")
        params, _ = read_params(self.folder / "run" / "best.safetensors")
        kernel = params["encoder"]["layers"]["mlp"]["wide"]["kernel"]
        expected = pretrained.params["layers"]["mlp"]["wide"]["kernel"]
        np.testing.assert_allclose(kernel, expected, atol=1e-6)
        self.assertLen(params["decoder"]["layers"]["mlp"]["wide"]["kernel"], 4)

    def test_embeddings_are_pruned_to_the_data(self):
        config, pretrained, _ = self.start()
        examples = translation.read_examples(task_settings(config), "train")
        small = pruned(config, pretrained)
        self.assertLess(small.settings.vocab_size, tiny_tasks.VOCAB)
        old, new = (translation.model(config, one) for one in (pretrained, small))
        for text in (one.source for one in examples["en-de"][:5]):
            pieces = [model.tokenizer.processor.encode(text, out_type=str) for model in (old, new)]
            self.assertEqual(*pieces)
            rows = [
                self.params(config, one, model)["encoder"]["embeddings"]["table"][
                    model.tokenizer.processor.encode(text)
                ]
                for one, model in ((pretrained, old), (small, new))
            ]
            np.testing.assert_array_equal(*rows)
        config.translation.prune = True
        config.train.update(num_steps=1, checkpoint_every=1, averaged_checkpoints=1)
        tiny_tasks.run(config, self.folder / "run")
        params, notes = read_params(self.folder / "run" / "best.safetensors")
        self.assertLen(params["encoder"]["embeddings"]["table"], small.settings.vocab_size + 1)
        self.assertEqual(notes.symbols, {"de": small.settings.vocab_size})

    def test_a_symbol_that_no_text_uses_is_not_pruned(self):
        config, pretrained, _ = self.start()

        def pieces(one) -> tuple[str, ...]:
            return vocabulary.vocabulary(one.tokenizer).pieces

        kept = pieces(pruned(config, pretrained))
        symbol = next(piece for piece in pieces(pretrained) if piece not in kept)
        config, pretrained, _ = self.start(translation__language_pieces={"de": symbol})
        small = pruned(config, pretrained)
        self.assertEqual({*pieces(small)}, {*kept, symbol})
        found, id_ = translation.model(config, small), pieces(small).index(symbol)
        self.assertEqual(found.symbols, {"de": id_})
        self.assertIn(id_, found.token_ids().forbidden)
        self.assertEqual(found.encoder.vocab_size, len(pieces(small)))


class ContinueTest(folders.FolderTest):
    def config(self, directions: str = "en-de+en-fr", **overrides) -> ConfigDict:
        source = str(learned())
        return tiny_translation.config(
            directions, random_init=False, init_from=source,
            translation__decoder_layers=5, **overrides,
        )  # fmt: skip

    def test_zero_steps_give_equal_translations(self):
        config = self.config()
        options, pretrained = task_settings(config), translation.read_start(config)
        found = translation_pairs.pieces_of_data(config, pretrained)
        self.assertIs(translation.with_pieces(pretrained, found), pretrained)
        model = translation.model(config, pretrained)
        self.assertEqual(model.symbols, {"de": tiny_tasks.VOCAB, "fr": tiny_tasks.VOCAB + 1})
        found = translation.initial_params(config, pretrained, model)()
        old, _ = read_params(learned() / "best.safetensors")
        table, bias = found["encoder"]["embeddings"]["table"], found["decoder"]["head"]["bias"]
        self.assertBetween(table[-1].std(), 0.5 * table.std(), 2 * table.std())
        found["encoder"]["embeddings"]["table"] = table[:-1]
        found["decoder"]["head"]["bias"] = bias[:-1]
        jax.tree.map(np.testing.assert_array_equal, found, old)
        found["encoder"]["embeddings"]["table"] = table
        found["decoder"]["head"]["bias"] = bias
        objective = translation.objective(config, model)
        translator = translation.translator(config, objective, model, None)
        examples = translation.read_examples(options, "test")["en-de"]
        data = translation.featured(options, model, "en-de", examples)
        sources = [one.source for one in examples]
        best = translated_text.n_best(model, translator, found, data.features, sources)
        texts = [one[0].text for one in best]
        lines = (learned() / "predictions" / "test.en-de.jsonl").read_text().splitlines()
        self.assertEqual(texts, [json.loads(line)["prediction"] for line in lines])

    def test_new_forms_keep_old_rows_and_move_symbols(self):
        config = self.config()
        pretrained = translation.read_start(config)
        tiny_tasks.write(self.folder / "train.tsv", "the\tｔhe 漢\n" * 2)
        config.task.update(root=str(self.folder), train=("train.tsv",), train_languages=("en-de",))
        grown = translation_pairs.prepared(config, pretrained, self.folder / "pairs")
        config.task.train_languages = ("en-de", "en-fr")
        self.assertEqual(grown.symbols, {"de": tiny_tasks.VOCAB + 2})
        old, new = (one.params["encoder"]["embeddings"]["table"] for one in (pretrained, grown))
        np.testing.assert_array_equal(new[: tiny_tasks.VOCAB], old[: tiny_tasks.VOCAB])
        np.testing.assert_array_equal(new[-1], old[-1])
        model = translation.model(config, grown)
        pieces = model.tokenizer.processor
        t = pieces.piece_to_id("t")
        np.testing.assert_array_equal(new[pieces.piece_to_id("ｔ")], old[t])
        bias = [one.params["decoder"]["head"]["bias"] for one in (pretrained, grown)]
        self.assertEqual(bias[1][pieces.piece_to_id("ｔ")], bias[0][t])
        self.assertEqual(model.symbols["fr"], tiny_tasks.VOCAB + 3)
        self.assertEqual(pieces.decode(pieces.encode("ｔhe 漢")), "ｔhe 漢")

    def test_a_continued_run_says_so_and_needs_no_test_data(self):
        config = self.config("en-fr", task__test=())
        config.train.update(num_steps=1, checkpoint_every=1, averaged_checkpoints=1)
        results = tiny_tasks.run(config, self.folder / "run")
        self.assertEqual(results["hyperparameters"]["decoder"], "continued 1")
        self.assertEqual(results["test"], {})
        self.assertIn("## Examples: en-fr", (self.folder / "run" / "report.md").read_text())
        with self.assertRaisesRegex(ValueError, "prune is True, but .* is a run of translation"):
            tiny_tasks.run(self.config(translation__prune=True), self.folder / "other")


class UnknownTest(folders.FolderTest):
    def test_unknown_parts_are_copied_in_order_and_the_lost_are_counted(self):
        config = tiny_translation.config()
        model = translation.model(config, translation.read_start(config))
        processor = model.tokenizer.processor
        unk, the = processor.unk_id(), processor.piece_to_id("▁the")
        rows = [np.array(one) for one in ([the, unk, the, unk], [unk, unk], [the], [])]
        sources = ["漢 the 字", "x 漢", "the 語", "the"]
        texts = translated_text.detokenized(model, rows, sources)
        self.assertEqual(texts, ["the漢 the字", "漢", "the", ""])
        self.assertEqual(
            translated_text.lost_characters(model, sources, texts),
            {"sources": 3, "lost": 1, "examples": ["語"]},
        )
        self.assertEqual(model.token_ids().unk, unk)


class OlderRunTest(folders.FolderTest):
    @mock.patch.object(
        translation_runs, "prepare", return_value=lambda: {"test": {"en-de": {"bleu": 0.5}}}
    )
    def test_a_run_made_before_a_key_existed_is_read_with_its_default(self, prepare):
        config, folder = tiny_translation.config(), self.folder / "run"
        results = tiny_tasks.run(config, folder)
        expected = prediction.run_config(folder)
        tiny_tasks.without_keys(folder, "architecture.embedding_norm", "optimizer.muon_momentum")
        self.assertEqual(prediction.run_config(folder), expected)
        self.assertNotIn("embedding_update", expected.optimizer)
        self.assertEqual(tiny_tasks.run(config, folder), results)
        prepare.assert_called_once()  # and not for the run that has ended


class WrongInputTest(folders.FolderTest):
    def check(self, error: str, **overrides) -> None:
        config = tiny_translation.config(**overrides)
        with self.assertRaisesRegex(ValueError, error):
            tiny_tasks.run(config, self.folder / "run")
        self.assertFalse((self.folder / "run" / "settings.json").exists())

    def data(self, **lines: str) -> str:
        for split in ("train", "dev", "test"):
            for language in ("en", "de"):
                text = lines.get(f"{split}_{language}", "the cat\n" * 4)
                tiny_tasks.write(self.folder / "data" / f"{split}.{language}", text)
        return str(self.folder / "data")

    def test_files(self):
        self.check("1 of 4 pairs have an empty side .line 2.*; remove these lines",
                   task__root=self.data(dev_de="the\n\nthe\nthe\n"))  # fmt: skip
        self.check("en-xx: no files of .*train.xx", task__train_languages=("en-xx",))
        self.check("task.test: en-de and en-fr have the same text, .*test.en and .*test.de; put",
                   task__test_languages=("en-de", "en-fr"),
                   task__test=("test.en", "test.de"))  # fmt: skip

    @parameterized.parameters(
        ({"decoding__max_length": 25}, "decoding.max_length is 25, but the model has 24 positions"),
        ({"task__max_length": 25}, "task.max_length is 25, but the encoder has 24 positions"),
        ({"task__train_languages": ("ende",)}, "direction 'ende' must be two codes"),
        ({"task__test_languages": ("en-fr",)}, "no symbol for the target language fr; the model"),
        (
            {"translation__language_pieces": {"de": "<2de>"}},
            "pieces: '<2de>' of 'de' is not a piece",
        ),
        (
            {"random_init": False, "init_from": "CHECKPOINT", "translation__decoder_layers": 4},
            "decoder_layers is 4, but .* has 3 layers to start from",
        ),
        ({"train__averaged_checkpoints": 3}, "8 steps give 2 checkpoints; lower it"),
        ({"train__batch_tokens": 8}, "train.batch_tokens is 8, too few for 1 rows of 24 tokens"),
        ({"optimizer__frozen": ("layers",)}, "frozen names .'layers'., must be"),
        ({"random_init": False}, "is no encoder; give a --workdir of train.py"),
        ({"init_from": "/gone"}, "spm.model does not exist; run build_vocab.py"),
    )
    def test_settings(self, overrides, error):
        if overrides.get("init_from") == "CHECKPOINT":
            overrides = {**overrides, "init_from": str(tiny_translation.checkpoint(True))}
        self.check(error, **overrides)
