"""Malformed input: every command ends in a plain error with status 2, and leaves all as it was."""

import contextlib
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

from absl.testing import parameterized

from tests import commands, folders, fuzz_artefacts, tiny_tasks
from tests.malformed import cases, folder_cases, harness, templates


class MalformedTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(templates.quick())

    @parameterized.named_parameters(
        (re.sub(r"\W+", "_", f"{number} {case.kind} {case.name}"), case)
        for number, case in enumerate(cases.CASES)
    )
    def test_an_error_of_the_user(self, case):
        harness.check(self, case, templates.template(case.template))


class FuzzTest(folders.FolderTest):
    # Of seed 54: mutations that once ended in a panic, a TypeError or an error of several lines.
    FAILED_ONCE = (574, 1753, 1772, 3164, 4189, 4926)

    def test_mutated_artefacts_are_refused_or_valid(self):
        with tiny_tasks.quick():
            fuzzer = fuzz_artefacts.Fuzzer(self.folder, seed=54)
            problems = [fuzzer(number) for number in (*self.FAILED_ONCE, *range(60))]
        self.assertEqual([one for one in problems if one], [])
        self.assertGreater(fuzzer.counts["refused"], fuzzer.counts["valid"])


# A process that is at work in a stage until it is killed.
_AT_WORK = """
import pathlib, sys
from xlm.common import artifacts

with artifacts.Stage(pathlib.Path(sys.argv[1]), None).locked(claims=False):
    print("at work", flush=True)
    sys.stdin.read()
"""


class SystemTest(folders.FolderTest):
    """Other processes and a disk that are real, where `cases` has stand-ins."""

    def setUp(self):
        super().setUp()
        self.enter_context(templates.quick())
        self.folder /= "dir"

    def run_in_folder(self, command: str, *arguments: str) -> harness.Result:
        return harness.run(command, [one.replace("DIR", str(self.folder)) for one in arguments])

    @parameterized.parameters(("prepare_data", "text", "rows"), ("train", "rows", "train"))
    def test_a_second_process_ends_and_succeeds_once_the_first_was_killed(
        self, command, template, stage
    ):
        shutil.copytree(templates.template(template), self.folder)
        before = harness.snapshot(self.folder)
        stage_folder = self.folder / "work" / stage
        with subprocess.Popen(
            [sys.executable, "-c", _AT_WORK, stage_folder], cwd=commands.ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as first:  # fmt: skip
            self.assertEqual(first.stdout.readline(), "at work\n")
            second = self.run_in_folder(command, *templates.config())
            first.send_signal(signal.SIGKILL)
        self.assertEqual(second.status, 2, second)
        self.assertRegex(second.errors, rf"another process is at work in \S*work/{stage}.* wait")
        after = harness.snapshot(self.folder)
        self.assertEqual({**after, f"work/{stage}": None}, {**before, f"work/{stage}": None})
        again = self.run_in_folder(command, *templates.config())
        self.assertEqual(again.status, 0, again.errors)

    @parameterized.parameters(
        ("prepare_data", "work/rows", *templates.config()),
        ("export_tokenizer", "out", "--model=DIR/work/vocab/spm.model", "--output=DIR/out/hf"),
    )
    def test_a_full_disk(self, command, place, *arguments):
        shutil.copytree(templates.template("text"), self.folder)
        folder_cases.long_text(self.folder)
        disk = self.folder / place
        disk.mkdir(parents=True)
        with self.mounted(disk):
            full = self.run_in_folder(command, *arguments)
            left = [path.name for path in disk.rglob("*")]
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            again = self.run_in_folder(command, *arguments)
        self.assertEqual(full.status, 2, full)
        self.assertRegex(full.errors, f"{place}.*No space left on device; make room on the disk")
        self.assertEqual(set(left) - {"LOCK", "settings.json"}, set())
        self.assertEqual(again.status, 0, again.errors)

    @contextlib.contextmanager
    def mounted(self, folder: pathlib.Path) -> Iterator[None]:
        """A disk of two pages of memory at a folder; skips the test where none can be mounted."""
        mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(folder)]
        try:
            subprocess.run(mount, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            self.skipTest(f"no disk can be mounted here: {reason.strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
