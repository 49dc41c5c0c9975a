"""Tests of preparing data with Beam: the dataset of local processes, byte for byte.

Where Apache Beam is missing, those that run it are skipped. To run them all, in an environment with
the extra [beam]:

    PYTHONPATH=. python tests/input_pipeline/preparation_beam_test.py
"""

import importlib.util
import sys
import unittest
from unittest import mock

import numpy as np
from absl.testing import absltest

from input_pipeline import packed_dataset, preparation, preparation_beam
from input_pipeline.cleaning import tasks
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.preparation import Job
from input_pipeline.preparation_beam import Pipelines
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from tests import commands
from tests.folders import FolderTest
from vocap import merge
from xlm.common.processes import Workers

HAS_BEAM = importlib.util.find_spec("apache_beam") is not None
# What DirectRunner runs on, after it has looked for another runner to download.
RUNNER = ("--runner=FnApiRunner",)
_SETTINGS = PackedDatasetSettings(length=32, parallel_length=16, num_workers=1, shard_bytes=1500)


def tokenizer() -> bytes:
    letters = "▁number 0123456789adso".replace(" ", "")
    return merge.write_model([*dict.fromkeys(letters)], -np.arange(1.0, 1 + len({*letters})))


class BeamTest(FolderTest):
    def setUp(self):
        super().setUp()
        text = self.folder / "text"
        text.mkdir()
        for number in range(3):
            documents = [f"number {number} {i}\nand so on {i}\n\n" for i in range(60)]
            (text / f"en-{number:05d}-of-00003.txt").write_text("".join(documents))
        (text / "en-sw.tsv").write_text("".join(f"so {i}\tna {i}\n\n" for i in range(30)))
        self.model = tokenizer()

    def job(self, name: str) -> Job:
        spec = CorpusSpec(
            root=str(self.folder / "text"), parallel=("*.tsv",), language_codes={"eng": "en"},
            heldout_fraction=0.1, parallel_heldout_fraction=0.1,
        )  # fmt: skip
        digest = packed_dataset.tokenizer_hash(self.model)
        return Job(self.folder / name, spec, _SETTINGS, digest)

    def finish(self, job: Job) -> dict[str, bytes]:
        found = preparation.find(job)
        with preparation.LocalProcesses(1) as execute:
            preparation.run(job, found, self.model, execute)
        preparation.finish(job, found)
        return {path.name: path.read_bytes() for path in job.folder.iterdir() if path.is_file()}

    def test_the_job_is_read_as_it_was_planned(self):
        job = self.job("rows")
        with self.assertRaisesRegex(ValueError, "job.json does not exist; run prepare_data.py"):
            preparation_beam.read_job(job.folder)
        preparation.begin(job, self.model)
        read, model = preparation_beam.read_job(job.folder)
        self.assertEqual((read, model), (job, self.model))

    def test_the_way_to_install_it_is_named(self):
        with (
            mock.patch.dict(sys.modules, {"apache_beam": None}),
            commands.error("pip install '\\.\\[beam"),
        ):
            preparation_beam.main(["--rows=a"])

    @unittest.skipUnless(HAS_BEAM, "Apache Beam is not installed; it is the extra [beam]")
    def test_cleaned_text_is_that_of_local_processes(self):
        lines = ["<b>keep me</b>", "and so on 7", "<b>keep me</b>", "\x07bell"]
        (self.folder / "text" / "sw.txt").write_text("\n".join(lines * 9))
        self.enterContext(mock.patch.object(tasks, "_BYTES_A_PROCESS", 0))
        found = []
        for name, workers in (("local", Workers(1, "")), ("beam", Pipelines(RUNNER))):
            spec, out = CorpusSpec(root=str(self.folder / "text")), self.folder / name
            settings = CleaningSettings(html=True, odd_characters=True, repeated_lines=1)
            tasks.clean(spec, settings, self.folder / f"{name}.work", out, workers, 1500)
            found.append({path.name: path.read_bytes() for path in out.iterdir()})
        self.assertEqual(*found)
        self.assertEqual(found[0]["sw.txt"].splitlines()[:3], [b"keep me", b"and so on 7", b"bell"])

    @unittest.skipUnless(HAS_BEAM, "Apache Beam is not installed; it is the extra [beam]")
    def test_the_files_are_those_of_local_processes(self):
        local, beam = self.job("local"), self.job("beam")
        preparation.begin(beam, self.model)
        preparation_beam.main([f"--rows={beam.folder}", *RUNNER])
        with mock.patch.object(preparation, "write", side_effect=AssertionError("not left to do")):
            found = self.finish(beam)
        expected = self.finish(local)
        found.pop("LOCK")
        self.assertEqual(sorted(found), sorted(expected))
        for name, content in found.items():
            self.assertTrue(content == expected[name], name)
        self.assertIn("en.train-00005-of-00006.npy", sorted(found))


if __name__ == "__main__":
    absltest.main()
