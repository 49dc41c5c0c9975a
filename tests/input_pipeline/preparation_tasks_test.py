"""Tests of the tasks of a preparation: whoever runs them, killed, resumed, or fed other text."""

import dataclasses
import itertools
import time
import tracemalloc
from unittest import mock

from absl import app
from absl.testing import parameterized

from input_pipeline import (
    manifest,
    overlap,
    preparation,
    preparation_job,
    preparation_plan,
    selection,
    tokenization,
)
from input_pipeline.preparation import Job
from tests import processes
from tests.input_pipeline.preparing import (
    MODEL,
    SETTINGS,
    SHARDED,
    SHARED,
    SHARED_TEXT,
    By,
    PreparationTest,
    backwards,
    contents,
    documents,
    in_order,
    prepare,
    txt,
)
from xlm.common import artifacts, entry_point
from xlm.common.processes import Workers


@dataclasses.dataclass(frozen=True)
class _Task:
    number: int
    text_bytes: int = 1


def fail_or_wait(job: Job, task: _Task) -> None:
    if not task.number:
        raise ValueError("wrong")
    time.sleep(1)
    (job.work / f"{task.number}.json").touch()


class TasksTest(PreparationTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Slow to write as text; all that is tested here is which tasks are run.
        cls.enterClassContext(mock.patch.object(preparation, "_KEPT_FROM", 0))

    def test_the_bytes_do_not_depend_on_who_runs_the_tasks(self):
        prepare(self.job("one", SHARDED))
        prepare(self.job("back", SHARDED), backwards)
        self.enterContext(mock.patch.object(preparation, "_BYTES_A_PROCESS", 1))
        with Workers(2, "") as workers:
            prepare(self.job("two", SHARDED), workers)
        expected = contents(self.folder / "one")
        self.assertGreater(len(expected), 10)
        self.assertEqual(contents(self.folder / "back"), expected)
        self.assertEqual(contents(self.folder / "two"), expected)

    @parameterized.parameters("parallel text", "scan", "select", "tokenise", "count")
    def test_a_runner_that_loses_a_task_fails(self, round_):
        def losing(function, job, tasks, name) -> None:
            in_order(function, job, tasks[name == round_ :], name)

        job = self.job("lost", SHARDED)
        message = rf"{round_}: 1 of \d+ tasks have left no results in .*lost/work"
        with self.assertRaisesRegex(ValueError, message):
            prepare(job, losing)

    def test_sentences_and_files_that_a_runner_loses_are_missed(self):
        blocks_of = preparation_plan.blocks_of

        def shorter(*args):
            return itertools.islice(blocks_of(*args), 2)

        def cut_short(function, job, tasks, name) -> None:
            patched = blocks_of if name != "tokenise" else shorter
            with mock.patch.object(preparation_plan, "blocks_of", patched):
                in_order(function, job, tasks, name)

        def removing(function, job, tasks, name) -> None:
            in_order(function, job, tasks, name)
            if name == "count":
                next(job.work.glob("en.train*.npy")).unlink()

        for execute, message in (
            (cut_short, r"-of-\d+: \d+ sentences were read in \d+ blocks, and \d+ in "),
            (removing, r"en\.train\S*\.npy: missing, must have"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                prepare(self.job("lost", SHARDED), execute)

    def test_a_language_of_more_parts_than_files_can_be_open(self):
        changes = {"heldout_by": "position", "max_train_bytes": 50_000}
        self.write("en.txt", txt(documents("one", 260, 30)))
        settings = dataclasses.replace(SETTINGS, shard_bytes=1024)
        only = {"text": (".",), "languages": ("en",), "parallel": (), **changes}
        store = prepare(self.job("whole", settings, **only))
        self.assertGreater(len(store.shards["en"]["train"]), 72)
        job = self.job("few", settings, **only)
        with processes.few_open_files(72), mock.patch.object(selection, "_DIGESTS_AT_ONCE", 200):
            prepare(job)
        self.assertEqual(contents(job.folder), contents(self.folder / "whole"))

    def test_a_source_of_many_languages_raises_the_limit_of_open_files(self):
        names = [f"{a}{b}" for a in "abcde" for b in "vwxyz"]
        rows = [["\t".join([f"{i}", *(f"{x} {i} {j}" for x in names)]) for j in range(2)]
                for i in range(20)]  # fmt: skip
        self.write("sets/all.tsv", "\t".join(["id", *names]) + "\n" + txt(rows))
        changes = {"text": (), "parallel": ("sets/*.tsv",), "parallel_eval": ()}
        prepare(self.job("whole", **changes))
        job = self.job("few", **changes)
        with processes.few_open_files(40):
            with self.assertRaisesRegex(OSError, "Too many open files") as caught:
                prepare(job)
            self.assertIn("ulimit -n", entry_point.describe(caught.exception))
            with mock.patch.object(app, "run"):
                entry_point.run(lambda _: None, required=())
            prepare(job)
        self.assertEqual(contents(job.folder), contents(self.folder / "whole"))

    def test_a_run_that_was_killed_goes_on_with_what_is_left(self):
        ran: list[str] = []

        def killed_after(limit: int):
            def execute(function, job, tasks, name) -> None:
                for task in tasks:
                    if len(ran) == limit:
                        raise KeyboardInterrupt
                    function(job, task)
                    ran.append(name)

            return execute

        prepare(self.job("whole", SHARDED), killed_after(-1))
        total, ran[:] = len(ran), []
        self.assertGreaterEqual(total, 20)
        job = self.job("parts", SHARDED)
        for limit in range(5, total, 5):
            with self.assertRaises(KeyboardInterrupt):
                prepare(job, killed_after(limit))
        found = preparation.find(job)
        preparation.run(job, found, MODEL, By(killed_after(-1)))
        self.assertLen(ran, total)
        # And one that was killed while files were moved.
        for path in sorted(job.work.glob("en.*.npy"))[:3]:
            path.rename(job.folder / path.name)
        prepare(job, killed_after(-1))
        self.assertLen(ran, total)
        self.assertEqual(contents(job.folder), contents(self.folder / "whole"))

    def test_only_what_depends_on_a_corrected_file_is_done_again(self):
        ran: list[str] = []

        def recorded(function, job, tasks, name) -> None:
            for task in tasks:
                function(job, task)
                ran.extend([task.id] if name == "scan" else [])

        good = (self.root / "sw.txt").read_bytes()
        (self.root / "sw.txt").write_bytes(good + b"\n\n\xff\n")
        with self.assertRaisesRegex(ValueError, "sw.txt, line 122: not UTF-8"):
            prepare(self.job(), recorded)
        self.assertEqual(ran, ["en-00000-of-00001"])
        (self.root / "sw.txt").write_bytes(good)
        prepare(self.job(), recorded)
        self.assertEqual(ran[1:], ["sw-00000-of-00001"])

    @parameterized.parameters(
        ("tested.ids", "one 2 0.\none 2 1.\none 30 0.\na 7 1.\n", "text"),
        ("en-sw.tsv", SHARED, "document"),
    )
    def test_a_test_set_that_has_changed_begins_anew(self, name, text, heldout_by):
        def killed(function, job, tasks, name) -> None:
            if name == "tokenise":
                raise KeyboardInterrupt
            in_order(function, job, tasks, name)

        self.write("de.txt", SHARED_TEXT)
        with self.assertRaises(KeyboardInterrupt):
            prepare(self.job(heldout_by=heldout_by), killed)
        (self.root / name).write_text(text)
        prepare(self.job(heldout_by=heldout_by))
        preparation_job._EXCLUSIONS.clear()
        prepare(self.job("clean", heldout_by=heldout_by))
        self.assertEqual(contents(self.folder / "rows"), contents(self.folder / "clean"))

    def test_parallel_text_counts_as_text_that_is_kept_behind_an_error(self):
        def failing(function, job, tasks, name) -> None:
            if name == "scan":
                raise ValueError
            in_order(function, job, tasks, name)

        job = self.job()
        size = preparation.find(job).text_bytes
        for limit, is_kept in ((size, True), (size + 1, False)):
            with mock.patch.object(preparation, "_KEPT_FROM", limit), self.assertRaises(ValueError):
                prepare(job, failing)
            self.assertEqual(job.work.exists(), is_kept)

    def test_notes_of_unknown_settings_are_not_used(self):
        job = self.job()
        artifacts.write_json(job.work / "scan-en-00000-of-00001.json", {"made_from": "unknown"})
        preparation.begin(job, MODEL)
        self.assertEqual({path.name for path in job.work.iterdir()}, {"job.json", "spm.model"})

    @parameterized.parameters(
        ("scan-sw-00000-of-00001", "digests", ["x"], 'digests.0 is "x", must be text of hex'),
        ("select-en", "train", -1, "train is -1, must be a whole number"),
        ("rows-en-00000-of-00001", "files", {"a/b": {}}, "a key of files must be text"),
    )
    def test_a_damaged_note_is_named(self, name, field, value, message):
        job = self.job()
        preparation.run(job, preparation.find(job), MODEL, By(in_order))
        path = job.work / f"{name}.json"
        artifacts.write_json(path, {**artifacts.read_json(path), field: value})
        with self.assertRaisesRegex(ValueError, f"{name}.json: {message}.*; remove .* run the"):
            prepare(job)

    def test_no_task_goes_on_behind_an_error(self):
        job = self.job()
        with Workers(2, "") as workers:
            with self.assertRaisesRegex(ValueError, "wrong"):
                list(workers.run(fail_or_wait, [(job, _Task(number)) for number in range(6)]))
            left = sorted(job.work.glob("*"))
        self.assertEqual(sorted(job.work.glob("*")), left)

    @parameterized.parameters(
        ("tokenise", "sw.txt", "sw.txt"), ("parallel text", "en-sw.tsv", "en-sw.tsv"),
        ("parallel text", "eval/en.txt", "eval/en.txt"), ("parallel text", "eval/de.txt", "eval"),
    )  # fmt: skip
    def test_text_that_changes_before_or_while_it_is_read(self, round_, name, named):
        def writing(function, job, tasks, of) -> None:
            if of == round_:
                with (self.root / name).open("a") as file:
                    file.write("\nmore\tmore\n")
            in_order(function, job, tasks, of)

        with self.assertRaisesRegex(ValueError, f"{named}: has changed while it was read"):
            prepare(self.job(), writing)

    def test_parallel_text_that_changes_while_it_is_read(self):
        def digest(source) -> str:
            with (self.root / "en-sw.tsv").open("a") as file:
                file.write("\nmore\tmore\n")
            return ""

        self.enterContext(mock.patch.object(preparation_plan, "source_digest", digest))
        with self.assertRaisesRegex(ValueError, "en-sw.tsv: has changed while it was read"):
            prepare(self.job())

    def test_parallel_text_that_comes_later_is_not_taken_for_another(self):
        def writing(function, job, tasks, name) -> None:
            if name == "parallel text":
                self.write("a.en-sw.tsv", "another\tset\n\n" * 30)
            in_order(function, job, tasks, name)

        prepare(self.job("clean"))
        store = prepare(self.job(), writing)
        self.assertEqual(list(store.bitexts), ["en-sw"])
        self.assertEqual(contents(self.folder / "rows"), contents(self.folder / "clean"))


class MemoryTest(PreparationTest):
    def test_it_does_not_grow_with_the_text(self):
        peaks, sizes = [], []
        self.enterContext(mock.patch.object(tokenization, "_CHARACTERS_AT_ONCE", 2000))
        self.enterContext(mock.patch.object(manifest, "_BLOCK_BYTES", 1 << 13))
        self.enterContext(mock.patch.object(overlap, "_TOKENS_AT_ONCE", 256))
        self.enterContext(mock.patch.object(overlap, "_MOST_ROWS", 4))
        text = [[f"{i} {j} " + "und noch " * 20 for j in range(10)] for i in range(60)]
        for count in (15, 60):
            self.write("de.txt", txt(text[:count]))
            sizes.append((self.root / "de.txt").stat().st_size)
            job = self.job(f"rows-{count}", languages=("de",), parallel=(), parallel_eval=())
            tracemalloc.start()
            prepare(job)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        # Records of 33 bytes a block are all that does.
        self.assertLess(peaks[1] - peaks[0], 0.05 * (sizes[1] - sizes[0]))
