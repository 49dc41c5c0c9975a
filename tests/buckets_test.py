"""Stages with text and working directory in a bucket: equal files to stages on a disk."""

import bz2
import gzip
import os
import signal
from unittest import mock

from absl.testing import parameterized

from input_pipeline import preparation
from tests import buckets, commands, executors_test, folders, processes, tiny_tasks
from tests.malformed import templates
from tests.prepare_data_test import write_text
from xlm.common import artifacts, executors, places
from xlm.experiment import counting
from xlm.experiment.experiment import Experiment

# Kills a stage at a repeated call of a function, once the bucket's manifest has a file.
KILLED = """
import json, os, pkgutil, signal, sys, time
from unittest import mock
import fsspec
from tests import commands
url, target, number, awaited, stage, *arguments = sys.argv[1:]
module, name = target.rsplit(".", 1)
owner, calls = pkgutil.resolve_name(module), []
function = getattr(owner, name)
fs, root = fsspec.url_to_fs(url, use_listings_cache=False)
def dying(*args, **kwargs):
    calls.append(1)
    if len(calls) > int(number):
        while not any(one.startswith(awaited) for one in
                      json.loads(fs.cat_file(root + "/.published.json"))["files"]):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*args, **kwargs)
with mock.patch.object(owner, name, dying):
    done = commands.execute(stage, *arguments)
print(done.stderr)
"""


class BucketsTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        write_text(self.folder / "text")
        english = (self.folder / "text/en.txt").read_bytes()
        lines = english.decode().split("\n\n")[:40]
        self.write("text/more/en.txt.bz2", bz2.compress(english[:500] + b"\n"))
        self.write("text/sw.txt.gz", gzip.compress((self.folder / "text/sw.txt").read_bytes()))
        (self.folder / "text/sw.txt").unlink()
        self.write("text/pairs/en-sw.tsv", "".join(f"{one}\t{one}\n\n" for one in lines))
        self.write("text/tests/en.txt", lines[3] + "\n")
        artifacts.write_bytes(self.folder / "spm.model", tiny_tasks.tokenizer())

    def arguments(self, root: str, workdir: str, tokenizer: str) -> list[str]:
        changes = {
            "corpus__root": root, "corpus__text": "('.','more')",
            "corpus__parallel": "('pairs/*.tsv',)", "corpus__exclude": "('**/tests/*',)",
            "vocab__tokenizer": tokenizer, "store__num_workers": "1", "store__shard_bytes": "6000",
            "train__num_steps": "6", "train__checkpoint_every": "2",
        }  # fmt: skip
        found = [one for one in templates.run_config(**changes) if "--workdir" not in one]
        return [*found, f"--workdir={workdir}"]

    def execute(self, stage: str, arguments: list[str]) -> None:
        done = commands.execute(stage, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)

    def kill(self, url: str, target: str, number: int, awaited: str, *arguments: str) -> None:
        fast = {places.PUBLISH_SECONDS: "0.1", "XLA_FLAGS": os.environ["XLA_FLAGS"]}
        done = processes.run_python(
            "-c", KILLED, url, target, str(number), awaited, *arguments, cwd=commands.ROOT, **fast
        )
        self.assertEqual(done.returncode, -signal.SIGKILL, done.stdout + done.stderr)

    def on_a_new_machine(self, name: str) -> None:
        cache = {places.CACHE: str(self.folder / name)}
        self.enter_context(mock.patch.dict(os.environ, cache))

    @parameterized.parameters(buckets.s3, buckets.gcs)
    def test_stages_killed_on_one_machine_resume_on_another(self, serve):
        local = self.folder / "run"
        here = self.arguments(str(self.folder / "text"), str(local), str(self.folder / "spm.model"))
        url = self.enter_context(serve())
        fs, root = buckets.fsspec.url_to_fs(url)
        fs.put(str(self.folder / "text"), f"{root}/text", recursive=True)
        fs.put_file(str(self.folder / "spm.model"), f"{root}/spm.model")
        run = f"{url}/run"
        there = self.arguments(f"{url}/text", run, f"{url}/spm.model")
        for stage in ("build_vocab", "prepare_data", "train"):
            self.execute(stage, here)
        self.on_a_new_machine("first")
        self.execute("build_vocab", there)
        manifest = "rows/work/rows-"
        self.kill(run, "input_pipeline.preparation.write", 2, manifest, "prepare_data", *there)
        self.on_a_new_machine("second")
        write = preparation.write
        with mock.patch.object(preparation, "write", side_effect=write) as written:
            self.execute("prepare_data", there)
        parts = len(list((local / "rows").glob("*.train*.npy")))
        self.assertBetween(written.call_count, 1, parts - 1)
        last = "train/checkpoints/4/_CHECKPOINT_METADATA"
        self.kill(run, "xlm.training.progress:Progress.before_step", 4, last, "train", *there)
        self.on_a_new_machine("third")
        with self.assert_told("resumed after step 4", level="INFO"):
            self.execute("train", there)
        self.on_a_new_machine("fourth")
        found = places.fetched(run)
        for name in (*(f"rows/{one.name}" for one in (local / "rows").glob("*.npy")),
                     "rows/meta.json", "train/metrics.jsonl", "vocab/spm.model"):  # fmt: skip
            self.assertEqual((found / name).read_bytes(), (local / name).read_bytes(), name)

    @parameterized.parameters(buckets.s3, buckets.gcs)
    def test_text_is_counted_and_merged_where_it_lies(self, serve):
        url = self.enter_context(serve())
        fs, root = buckets.fsspec.url_to_fs(url)
        fs.put(str(self.folder / "text"), f"{root}/text", recursive=True)
        self.enter_context(mock.patch.object(counting, "_PART_BYTES", 3000))
        self.enter_context(mock.patch.object(counting, "_MERGED_AT_ONCE", 3))
        self.enter_context(mock.patch.object(executors, "Workers", executors_test.Here))
        held = ("--heldout_fraction=0.2", "--block_bytes=100")
        for place, number in ((url, 2), (str(self.folder), 1)):
            text = (f"--input={place}/text/*.txt", f"--input={place}/text/*.gz")
            outs = (f"--output={place}/a.gz", f"--heldout_output={place}/b.gz")
            self.execute("count_text", [*text, *outs, *held, f"--num_workers={number}"])
            both = (f"--merge={place}/[ab].gz", f"--output={place}/c.gz")
            self.execute("count_text", [*both])
        for name in ("a.gz", "b.gz", "c.gz"):
            content = (self.folder / name).read_bytes()
            self.assertEqual(fs.cat_file(f"{root}/{name}"), content, name)
        self.assertNotIn("parts", str(fs.ls(root)))
        message = "a.gz is an input; choose another path"
        refused = commands.execute("count_text", f"--merge={url}/*.gz", f"--output={url}/a.gz")
        self.assertRegex(refused.stderr, message)

    def test_a_task_is_learned_predicted_and_exported_where_it_lies(self):
        done = tiny_tasks.finished("cola")
        url = self.enter_context(buckets.s3())
        fs, root = buckets.fsspec.url_to_fs(url)
        self.write("in.txt", "the cat runs\n")
        for name, source in (
            ("data", tiny_tasks.data_folder()), ("encoder", tiny_tasks.encoder_folder(0)),
            ("in.txt", self.folder / "in.txt"),
        ):  # fmt: skip
            fs.put(str(source), f"{root}/{name}", recursive=source.is_dir())
        changes = {"task__root": f"{url}/data", "init_from": f"{url}/encoder"}
        self.on_a_new_machine("first")
        experiment = Experiment(tiny_tasks.run_config("cola", **changes), f"{url}/tuned")
        with tiny_tasks.quick():
            experiment.train()
        self.on_a_new_machine("second")
        outputs = {}
        for place, work in ((url, f"{url}/tuned"), (self.folder, done)):
            predicted = ("--input", f"{place}/in.txt", "--output", f"{place}/out.jsonl")
            self.execute("predict", [f"--workdir={work}", *predicted])
            self.execute("export_model", [f"--workdir={work}", f"--output={place}/model"])
            outputs[place] = [
                places.fetched(f"{place}/out.jsonl"),
                places.fetched(f"{place}/model"),
            ]
        for there, here in zip(*outputs.values(), strict=True):
            for path in here.rglob("*") if here.is_dir() else [here]:
                if path.suffix != ".md":  # a card names the places
                    found = there / path.relative_to(here) if here.is_dir() else there
                    self.assertEqual(found.read_bytes(), path.read_bytes(), path)
        refused = commands.execute(
            "export_model", f"--workdir={url}/tuned", f"--output={url}/model"
        )
        self.assertRegex(refused.stderr, "model is not empty; choose another folder")
