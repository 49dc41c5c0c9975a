"""Files and folders that are written whole, and workers that end with their parent."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest, parameterized

from tests.folders import FolderTest
from xlm.common import artifacts, entry_point, processes


class ReplacingTest(FolderTest):
    def test_the_file_appears_only_when_the_block_ends_without_an_exception(self):
        path = self.folder / "new" / "a.txt"
        with artifacts.atomic_path(path) as aside:
            self.assertEqual(aside.suffix, ".txt")
            aside.write_text("whole")
            self.assertFalse(path.exists())
        with self.assertRaisesRegex(RuntimeError, "half way"), artifacts.atomic_path(path) as aside:
            aside.write_text("ne")
            raise RuntimeError("half way")
        self.assertEqual(path.read_text(), "whole")
        self.assertEqual(list(path.parent.iterdir()), [path])

    def test_what_a_killed_process_left_aside_goes_under_the_next_lock(self):
        own = self.folder / ".a.host-12.txt"
        own.touch()
        left = [artifacts.aside_of(self.folder / name) for name in ("a", "b.x.npy")]
        left[0].mkdir()
        (left[0] / "file").touch()
        left[1].touch()
        self.assertLen({artifacts.aside_of(own) for _ in range(100)}, 100)
        with artifacts.Stage(self.folder, None).locked(claims=False):
            self.assertCountEqual(self.folder.iterdir(), [own, self.folder / "LOCK"])

    def test_content_is_on_the_disk_before_its_name_is(self):
        path, events = self.folder / "a.txt", []

        def record(name):
            function = getattr(os, name)
            return mock.patch.object(os, name, lambda *args: [events.append(name), function(*args)])

        with record("fsync"), record("replace"):
            artifacts.write_text(path, "whole")
        self.assertEqual(events, ["fsync", "replace", "fsync"])  # content, name, folder

    def test_only_regular_files_are_replaced_and_read(self):
        target, link, pipe = (self.folder / name for name in ("target", "link", "pipe"))
        target.write_text("a user's")
        link.symlink_to(target)
        os.mkfifo(pipe)
        for path, kind in ((link, "a link"), (pipe, "a pipe"), (pathlib.Path("/dev/null"), "a de")):
            with self.assertRaisesRegex(OSError, f"{path}: is {kind}.*; only regular files are wr"):
                artifacts.write_text(path, "ours")
        for path, kind in ((pipe, "a pipe"), (pathlib.Path("/dev/zero"), "a device")):
            with self.assertRaisesRegex(OSError, f"{path}: is {kind}; only regular files are read"):
                artifacts.read_json(path)
        self.assertEqual(target.read_text(), "a user's")
        self.assertTrue(link.is_symlink())

    @parameterized.parameters((0o022, 0o644), (0o027, 0o640), (0o077, 0o600))
    def test_those_can_read_whom_the_umask_lets(self, umask, mode):
        before = os.umask(umask)
        self.addCleanup(os.umask, before)
        with mock.patch.object(artifacts, "_UMASK", umask):
            with artifacts.atomic_path(self.folder / "file") as aside:
                aside.touch(0o600)  # as writers do that make a file of their own
            (self.folder / "aside").mkdir()
            (self.folder / "aside/file").touch(0o600)
            artifacts.publish(self.folder / "aside", self.folder / "new")
        for path in (self.folder / "file", self.folder / "new/file"):
            self.assertEqual(path.stat().st_mode & 0o777, mode)

    def test_json_comes_back_and_what_is_none_leaves_the_old_file(self):
        path, value = self.folder / "v.json", {"\u00e9": ["\u6587", 1.5, None], "a": {"b": True}}
        artifacts.write_json(path, value)
        with self.assertRaisesRegex(ValueError, "v.json cannot be written as JSON"):
            artifacts.write_json(path, {"loss": float("nan")})
        with self.assertRaisesRegex(TypeError, "not JSON serializable"):
            artifacts.write_json(path, {"a": object()})
        self.assertEqual(artifacts.read_json(path), value)
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_a_folder_is_no_file_to_write(self):
        (self.folder / "x").mkdir()
        for given in (".", "..", "x", "x/..", "new/..", "/"):
            with (
                contextlib.chdir(self.folder),
                self.assertRaises(IsADirectoryError) as caught,
                artifacts.atomic_path(given),
            ):
                self.fail("the block has run")
            message = entry_point.describe(caught.exception)
            self.assertEqual(message.split("; ")[0], f"{pathlib.Path(given)}: Is a directory")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["x"])


class FingerprintTest(absltest.TestCase):
    def test_the_order_of_keys_does_not_matter_and_all_else_does(self):
        value = {"a": [1, 2], "b": "x"}
        same = artifacts.fingerprint({"b": "x", "a": (1, 2)})
        self.assertEqual(artifacts.fingerprint(value), same)
        others = [{**value, "a": [2, 1]}, {**value, "b": "y"}, {**value, "c": None}, [value], "a"]
        prints = {artifacts.fingerprint(other) for other in others}
        prints |= {artifacts.fingerprint(), artifacts.fingerprint(value, value), same}
        prints |= {artifacts.fingerprint("a", "b"), artifacts.fingerprint("ab")}
        self.assertLen(prints, len(others) + 5)


class StageTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.folder /= "stage"
        self.settings = {"sizes": (1, 2), "text": {"seed": 3, "path": "a"}}

    def is_done(self, settings, **options) -> bool:
        return artifacts.open_stage(self.folder, settings, **options).done

    def test_the_same_settings_open_the_folder_again_and_find_it_done(self):
        other = {**self.settings, "more": 5}
        artifacts.open_stage(self.folder, other)  # one that failed, before it claimed the folder
        stage = artifacts.open_stage(self.folder, self.settings)
        self.assertFalse(stage.done or self.is_done(self.settings))
        stage.claim()
        self.assertFalse(self.is_done(self.settings))
        with self.assertRaisesRegex(ValueError, "more: there"):
            artifacts.open_stage(self.folder, other)
        stage.finish()
        self.assertTrue(self.is_done(self.settings))
        artifacts.open_stage(self.folder, self.settings).claim()
        self.assertTrue(self.is_done(self.settings))
        (self.folder / "settings.json").unlink()
        self.assertFalse(self.is_done(self.settings))

    @parameterized.parameters(
        ({"sizes": (1, 3)}, r"\n  sizes: there \[1, 2\], now \[1, 3\]\n"),
        ({"text": {"seed": 4, "path": "a"}}, r"\n  text\.seed: there 3, now 4\n"),
        ({"text": {"path": "a"}}, r"\n  text\.seed: there 3, now '\(absent\)'\n"),
        ({"more": 5}, r"\n  more: there '\(absent\)', now 5\n"),
        ({"sizes": 7, "text": {"seed": 3, "path": "b"}},
         r"\n  sizes: there \[1, 2\], now 7\n  text\.path: there 'a', now 'b'\n"),
    )  # fmt: skip
    def test_other_settings_are_refused_by_every_key_that_differs(self, changed, lines):
        artifacts.open_stage(self.folder, self.settings).finish()
        with self.assertRaisesRegex(ValueError, f"made under another config:{lines}.*--workdir"):
            artifacts.open_stage(self.folder, {**self.settings, **changed})
        self.assertTrue(artifacts.open_stage(self.folder, self.settings).done)

    def test_a_folder_from_before_a_setting_existed_has_its_default(self):
        artifacts.open_stage(self.folder, self.settings).finish()
        defaults = {"more": [5], "text": {"kind": "plain", "seed": 9, "unused": 1}, "unused": 2}
        now = {**self.settings, "more": (5,), "text": {**self.settings["text"], "kind": "plain"}}
        self.assertTrue(artifacts.open_stage(self.folder, now, defaults=defaults).done)
        # A default stands in for nothing that is there, and settings of before are not passed over.
        for changed, line in (
            ({**now, "more": 6}, r"more: there \[5\], now 6"),
            ({**now, "text": {**now["text"], "seed": 9}}, "text.seed: there 3, now 9"),
            ({**now, "text": {**now["text"], "kind": "b"}}, "text.kind: there 'plain', now 'b'"),
            ({"sizes": now["sizes"], "more": (5,)}, "text: there {'path'.*now '.absent.'"),
        ):
            with self.assertRaisesRegex(ValueError, line):
                artifacts.open_stage(self.folder, changed, defaults=defaults)
        with self.assertRaisesRegex(ValueError, r"more: there '\(absent\)'"):
            artifacts.open_stage(self.folder, now)

    def test_uncompared_settings_are_recorded_and_may_differ(self):
        artifacts.open_stage(self.folder, self.settings).finish()
        moved = {**self.settings, "text": {"seed": 3, "path": "b"}}
        stage = artifacts.open_stage(self.folder, moved, uncompared=["text.path", "lost", "text.a"])
        self.assertTrue(stage.done)
        stage.claim()
        self.assertEqual(artifacts.read_json(self.folder / "settings.json")["text"]["path"], "a")
        self.assertFalse(stage.has_recorded(["text.path"]))
        stage.record()
        self.assertTrue(stage.has_recorded(["text.path", "lost"]))
        self.assertFalse((self.folder / "DONE").exists())
        for changed, line in (
            ({**moved, "text": {"seed": 4, "path": "b"}}, r"text\.seed: there 3, now 4\nChoose"),
            ({**moved, "text": {"seed": 3}}, r"text\.path: there 'b', now '\(absent\)'"),
        ):
            with self.assertRaisesRegex(ValueError, line):
                artifacts.open_stage(self.folder, changed, uncompared=["text.path"])

    def test_only_the_settings_of_the_last_that_finished_are_done(self):
        first, other = self.settings, {**self.settings, "more": 5}
        artifacts.open_stage(self.folder, first).finish()
        stage = artifacts.open_stage(self.folder, other, replace=lambda: True)
        self.assertFalse(stage.done)
        # Nothing has been written yet, so the old results stand.
        self.assertTrue(self.is_done(first, replace=lambda: True))
        stage.finish()
        self.assertTrue(self.is_done(other))
        self.assertFalse(self.is_done(first, replace=lambda: True))
        # One that replaces and is stopped leaves nothing done.
        artifacts.open_stage(self.folder, first, replace=lambda: True).claim()
        for settings in (first, other):
            self.assertFalse(self.is_done(settings, replace=lambda: True))
        # Nor does going back to the settings before take the mixture for theirs.
        artifacts.open_stage(self.folder, other, replace=lambda: True).claim()
        self.assertFalse(self.is_done(other))

    def test_stopped_between_the_two_files_of_a_claim_it_is_not_done(self):
        artifacts.open_stage(self.folder, self.settings).finish()
        other = {**self.settings, "more": 5}
        stage = artifacts.open_stage(self.folder, other, replace=lambda: True)
        stopped = mock.patch.object(artifacts, "write_json", side_effect=KeyboardInterrupt)
        with stopped, self.assertRaises(KeyboardInterrupt):
            stage.claim()
        self.assertFalse(self.is_done(self.settings))

    def test_a_folder_of_results_that_is_a_link_is_refused(self):
        self.folder.mkdir()
        (self.folder / "checkpoints").symlink_to(self.folder.parent)
        with (
            self.assertRaisesRegex(ValueError, "checkpoints: is a link to a folder"),
            artifacts.open_stage(self.folder, {}).locked(),
        ):
            self.fail("held")
        self.assertFalse((self.folder / "settings.json").exists())
        (self.folder / "checkpoints").unlink()
        with artifacts.open_stage(self.folder, {}).locked():
            self.assertTrue((self.folder / "settings.json").exists())

    def test_settings_are_compared_again_under_the_lock(self):
        late = artifacts.open_stage(self.folder, self.settings)
        replacing = artifacts.open_stage(
            self.folder, self.settings, replace=lambda: not (self.folder / "rows").exists()
        )
        other = artifacts.open_stage(self.folder, {**self.settings, "more": 5})
        with other.locked():
            pass
        with self.assertRaisesRegex(ValueError, "(?s)another config.*more: there 5"), late.locked():
            self.fail("the folder is held")
        (self.folder / "rows").touch()
        with self.assertRaisesRegex(ValueError, "another config"), replacing.locked():
            self.fail("the folder is held")
        (self.folder / "rows").unlink()
        with replacing.locked():
            self.assertFalse(other.done)

    def test_a_folder_is_read_by_several_stages_or_written_by_one(self):
        vocab, train, rows = (self.folder / name for name in ("vocab", "train", "rows"))
        vocab.mkdir(parents=True)
        writer = artifacts.Stage(vocab, None)
        first, second = (artifacts.Stage(one, None, reads=[vocab]) for one in (train, rows))
        busy = self.assertRaisesRegex(ValueError, f"another process is at work in {vocab}")
        with first.locked(), second.locked(), busy:
            self.enter_context(writer.locked())
        with writer.locked(), self.assertRaisesRegex(ValueError, f"at work in {vocab}"):
            self.enter_context(first.locked())


# Two workers that say when they import their modules, and when they are at their jobs.
SCRIPT = """
import os, pathlib, signal, sys, time
from xlm.common import entry_point, processes

def say(what):
    pathlib.Path(sys.argv[1], f"{what}-{os.getpid()}").touch()

def work():
    while True:
        say("job")
        time.sleep(0.01)

def main(_):
    with processes.Workers(2, "vocab.num_workers") as workers:
        list(workers.run(work, [(), ()]))

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    entry_point.call(main, [])
else:
    say("import")
    time.sleep(0.5)
"""


class WorkersTest(FolderTest):
    @parameterized.product(
        how=[("kill", signal.SIGKILL, -signal.SIGKILL, []),
             ("kill", signal.SIGTERM, entry_point.EXIT_TERMINATED, ["error: terminated"]),
             ("killpg", signal.SIGINT, entry_point.EXIT_INTERRUPTED, ["error: interrupted"])],
        when=["import", "job"],
    )  # fmt: skip
    def test_they_end_with_their_parent(self, how, when):
        send, number, status, message = how
        script = self.write("script.py", SCRIPT)
        with subprocess.Popen(
            [sys.executable, script, self.folder],
            env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[2])},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            while len(list(self.folder.glob(f"{when}-*"))) < 2:
                time.sleep(0.01)
            getattr(os, send)(process.pid, number)
            _, errors = process.communicate(timeout=60)  # until no worker has the pipe any more
        self.assertEqual(process.returncode, status)
        told = [line for line in errors.splitlines() if "resource_tracker" not in line]
        self.assertEqual([line.partition(";")[0] for line in told], message)
        if when == "import":
            self.assertEmpty(list(self.folder.glob("job-*")))

    @parameterized.parameters(
        (os._exit, (1,), MemoryError, "a worker .*was killed; lower vocab.num_workers and run the"),
        (bytearray, (1 << 60,), MemoryError, "a worker process has none left, .*lower vocab.num_w"),
        (int, ("x",), ValueError, "^invalid literal for int"),
    )
    def test_an_error_in_a_worker_arrives(self, function, arguments, error, message):
        with processes.Workers(2, "vocab.num_workers") as workers:
            with self.assertRaisesRegex(error, message):
                list(workers.run(function, [arguments, arguments]))
            self.assertNotIn(os.getpid(), workers.run(os.getpid, [(), ()]))  # by others
