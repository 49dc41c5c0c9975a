"""The report on the pairs of a robust run, with its examples decoded from packed rows."""

import contextlib
import io
import json
from unittest import mock

import sentencepiece as spm

from configs import xy_lent
from input_pipeline.pair_phases import PairRecord, Phase, write_pair_record
from tests import commands, tiny_tasks
from tests.cli.stores import write_dataset
from tests.folders import FolderTest
from xlm.common import artifacts
from xlm.experiment import data as data_builders

pair_weights = commands.load("pair_weights")

BASE = {"aa-bb": 0.4, "aa-cc": 0.4, "bb-cc": 0.2}
WEIGHTS = {"aa-bb": 0.2, "aa-cc": 0.4, "bb-cc": 0.4}
# Sentences of two sets, "" for one that is missing; cc has none that is short.
TEXT = {
    "one": {"aa": ["the cat", "", "a dog"], "bb": ["b runs", "b", "b sleeps"]},
    "two": {"aa": ["aaa", "aab"], "bb": ["", "bbb"], "cc": ["ccc", "ccd"]},
}


class PairWeightsTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.folders = data_builders.Folders(self.folder)
        self.processor = spm.SentencePieceProcessor(model_proto=tiny_tasks.tokenizer())
        self.config = xy_lent.get_config("runlocal")
        self.config.robust.num_phases = 2
        bitexts = {
            name: {
                lang: [self.processor.encode(text) for text in side] for lang, side in one.items()
            }
            for name, one in TEXT.items()
        }
        tokenizer = tiny_tasks.tokenizer()
        self.dataset = write_dataset(self.folder, tokenizer, tiny_tasks.VOCAB, 32, bitexts=bitexts)
        data_builders.open_train_stage(self.config, self.folders).claim()
        self.record = self.folders.train / "pair_weights.json"

    def report(self, *args: str) -> str:
        printed = io.StringIO()
        with (
            commands.parsed("pair_weights", f"--workdir={self.folder}", *args) as rest,
            contextlib.redirect_stdout(printed),
            mock.patch.object(pair_weights, "_CONFIG", mock.Mock(value=self.config)),
        ):
            pair_weights.main(rest)
        return printed.getvalue()

    def write_record(self):
        phase = Phase(1, WEIGHTS, {"aa-bb": 1.0, "aa-cc": 2.0, "bb-cc": 3.0}, 0.1, 0.5)
        write_pair_record(self.record, PairRecord(BASE, (phase,)))

    def test_the_report(self):
        self.write_record()
        printed = self.report()
        folder = self.folder / "report" / "pairs"
        self.assertIn((folder / "report.md").read_text(encoding="utf-8"), printed)
        found = json.loads((folder / "pair_weights.json").read_text(encoding="utf-8"))
        self.assertEqual((found["up"], found["down"]), (["bb-cc"], ["aa-bb"]))
        # The one sentence that both have, though each has two.
        self.assertEqual(found["examples"]["bb-cc"], [["bbb", "ccd"]])
        self.assertCountEqual(
            found["examples"]["aa-bb"],
            [["the cat", "b runs"], ["a dog", "b sleeps"], ["aab", "bbb"]],
        )

    def test_examples_are_drawn_by_the_seed_from_all_sets(self):
        draw = [
            pair_weights.pair_examples(self.dataset, self.processor, seed) for seed in range(12)
        ]
        drawn = [examples("aa-bb", 1)[0] for examples in draw]
        self.assertLen(set(drawn), 3)
        again = pair_weights.pair_examples(self.dataset, self.processor, 5)
        again("bb-cc", 1)  # what is drawn before changes nothing
        self.assertEqual(again("aa-bb", 1), [drawn[5]])

    def test_the_number_of_pairs(self):
        weights, losses = {"aa-bb": 0.2, "aa-cc": 0.3, "bb-cc": 0.5}, dict.fromkeys(BASE, 1.0)
        write_pair_record(self.record, PairRecord(BASE, (Phase(1, weights, losses, 0.1, 0.5),)))
        self.report("--pairs=1")
        results = artifacts.read_json(self.folder / "report" / "pairs" / "pair_weights.json")
        self.assertEqual((results["up"], results["down"]), (["bb-cc"], ["aa-bb"]))

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "pair_weights.json does not exist; .*robust"):
            self.report()
        self.write_record()
        (self.record.parent / "checkpoints" / "1").mkdir(parents=True)
        self.config.train.seed = 3
        with self.assertRaisesRegex(ValueError, "train.seed: there 0, now 3"):
            self.report()
        self.assertFalse((self.folder / "report").exists())
