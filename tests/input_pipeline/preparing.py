"""Text of two languages with translations, and executors, for the tests of preparing it."""

import dataclasses
import pathlib

import numpy as np
import sentencepiece as spm

from input_pipeline import packed_dataset, preparation, text_files
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.preparation import Job
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from tests.input_pipeline import reading
from vocap import merge
from xlm.common.processes import Workers

LETTERS = "▁abcdefghijklmnopqrstuvwxyz0123456789."
MODEL = merge.write_model(list(LETTERS), -np.arange(1.0, len(LETTERS) + 1))
PROCESSOR = spm.SentencePieceProcessor(model_proto=MODEL)
SETTINGS = PackedDatasetSettings(length=64, parallel_length=32, num_workers=1)
SHARDED = dataclasses.replace(SETTINGS, shard_bytes=2048)


def documents(name: str, count: int, length: int = 3) -> list[list[str]]:
    return [[f"{name} {i} {j}." for j in range(length)] for i in range(count)]


def txt(found: list[list[str]]) -> str:
    return "\n\n".join("\n".join(document) for document in found) + "\n"


def in_order(function, job, tasks, name) -> None:
    for task in tasks:
        function(job, task)


def backwards(function, job, tasks, name) -> None:
    in_order(function, job, list(tasks)[::-1], name)


class By:
    """Executor that hands the tasks of a round, by its name, to a function."""

    is_local = False
    names = {"prepare_source": "parallel text", "write": "tokenise", "write_pairs": "pairs"}

    def __init__(self, execute):
        self.execute = execute

    def run(self, function, jobs) -> list:
        (of_round, job, _), tasks = jobs[0], [task for *_, task in jobs]
        name = self.names.get(of_round.__name__, of_round.__name__)
        self.execute(lambda *one: function(of_round, *one), job, tasks, name)
        return []


def prepare(job: Job, execute=in_order) -> PackedDataset:
    found = preparation.find(job)
    executor = execute if isinstance(execute, Workers) else By(execute)
    preparation.run(job, found, MODEL, executor)
    return preparation.finish(job, found)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and path.name != "inputs.json"
    }


class PreparationTest(reading.PackedFolderTest):
    def setUp(self):
        super().setUp()
        self.root = self.folder / "text"
        self.write("en.txt", txt([*documents("one", 40), *documents("long", 1, 130), ["ñandú"]]))
        self.write("more/en.jsonl", "".join(map(text_files.json_line, documents("one", 60, 3))))
        self.write("sw.txt", txt(documents("moja", 30)))
        pairs = zip(documents("a", 40), documents("b", 40), strict=True)
        rows = [[f"{x}\t{y}" for x, y in zip(*pair, strict=True)] for pair in pairs]
        rows[3][1], rows[4] = "\tb alone", ["one 2 0.\tb excluded"]
        self.write("en-sw.tsv", txt(rows))
        self.write("eval/en.txt", "one\n\nthree\n")
        self.write("eval/sw.txt", "moja\nmbili\ntatu\n")
        self.write("tested.ids", "one 2 0.\n")

    def write(self, name: str, text: str | bytes) -> pathlib.Path:
        return super().write(f"text/{name}", text)

    def spec(self, **changes) -> CorpusSpec:
        settings = {"text": (".", "more"), "parallel": ("*.tsv",), "parallel_eval": ("eval",),
                    "heldout_fraction": 0.2, "exclude": ("tested.ids",),
                    "block_bytes": 500}  # fmt: skip
        return CorpusSpec(**{"root": str(self.root), **settings, **changes})

    def job(self, name: str = "rows", settings=SETTINGS, **changes) -> Job:
        digest = packed_dataset.tokenizer_hash(MODEL)
        return Job(self.folder / name, self.spec(**changes), settings, digest)


# Translations of which other sources have a side.
LINES = [f"a long sentence that two sources have, {i}." for i in range(90)]
SHARED = txt([[f"{x}\t{y}" for x, y in zip(LINES, LINES[::-1], strict=True)]])
SHARED_TEXT = txt([LINES[i : i + 4] for i in range(0, 90, 4)])
