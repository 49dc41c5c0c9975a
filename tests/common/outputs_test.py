"""Outputs of commands: what is written, what is refused, and what is left when a process ends."""

import contextlib
import os
import pathlib
from unittest import mock

from absl import flags
from absl.testing import parameterized

from tests import commands
from tests.folders import FolderTest
from xlm.common import artifacts, outputs


class OutputsTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.enter_context(commands.no_flags())
        outputs.define_flags("The output.")
        flags.FLAGS(["command"])
        self.folder = self.folder.resolve()
        self.enter_context(contextlib.chdir(self.folder))

    def names(self, folder: str = ".") -> list[str]:
        return sorted(os.listdir(folder))

    def refused(self, message: str):
        return self.assertRaisesRegex((ValueError, OSError), message)

    @parameterized.parameters("out 文.x", "-x", "new/../out", "new/deep/out", "./out")
    def test_a_file_is_whole_or_absent(self, name):
        path = pathlib.Path(name).resolve()
        with self.assertRaises(KeyboardInterrupt), outputs.file(name) as aside:
            aside.write_text("part")
            raise KeyboardInterrupt
        self.assertEmpty(self.names())
        for content in ("whole", "again"):
            with outputs.file(name) as aside:
                aside.write_text(content)
                self.assertNotEqual(path.exists() and path.read_text(), content)
            self.assertEqual(path.read_text(), content)
            self.assertEqual(self.names(str(path.parent)), [path.name])
            flags.FLAGS.overwrite = False
            with self.refused(f"{path} exists; .* --overwrite"), outputs.file(name):
                self.fail("the block has run")
            flags.FLAGS.overwrite = True

    def test_only_files_of_no_other_use_are_replaced(self):
        flags.FLAGS.overwrite = True
        pathlib.Path("in").write_text("a user's")
        pathlib.Path("link").symlink_to("in")
        pathlib.Path("hard").hardlink_to("in")
        os.mkfifo("pipe")
        os.mkdir("folder")
        for name, message in (
            ("in", "/in is an input, .*; choose another path"),
            ("folder/../in", "is an input"),
            ("hard", "hard is an input"),
            ("link", "link: is a link; only regular files are written"),
            ("pipe", "pipe: is a pipe"),
            ("/dev/stdout", "/dev/stdout: is a link"),
            ("folder", "Is a directory"),
            ("new/", "new/ is a folder; name a file in it"),
            ("-", "--output is '-', must be a path"),
            ("", "--output is '', must be a path"),
        ):
            for given in ("in", self.folder / "folder/../in", "link"):
                with self.refused(message), outputs.file(name, ["none", given]):
                    self.fail("the block has run")
        self.assertEqual(pathlib.Path("in").read_text(), "a user's")
        self.assertEqual(self.names(), ["folder", "hard", "in", "link", "pipe"])

    @parameterized.parameters("file", "link")
    def test_what_has_come_meanwhile_stays(self, kind):
        path = pathlib.Path("out")
        with self.refused("out exists|out: is a link"), outputs.file("out") as aside:
            aside.write_text("ours")
            path.write_text("a user's") if kind == "file" else path.symlink_to("elsewhere")
        self.assertEqual(path.is_symlink() or path.read_text(), kind == "link" or "a user's")
        self.assertEqual(self.names(), ["out"])

    def test_another_writer_is_told(self):
        pathlib.Path("link").symlink_to(self.folder)
        with outputs.file("out") as aside:
            for name in ("out", "link/out", f"{self.folder}/out"):
                with self.refused("another process is at work in .*out"), outputs.file(name):
                    self.fail("the block has run")
            with outputs.file("other") as other:
                other.touch()
            aside.touch()
        self.assertEqual(self.names(), ["link", "other", "out"])

    def test_parts_stay_until_the_output_is_whole(self):
        os.mkdir("out.parts")
        for content in ("first", "second"):
            with self.assertRaises(KeyboardInterrupt), outputs.file("out") as aside:
                self.assertEmpty(list(aside.parent.iterdir()))
                artifacts.write_text(outputs.parts(aside, "key") / content, content)
                raise KeyboardInterrupt
            (hidden,) = self.folder.glob(".out.*.output")
            for left in ("new/out", "LOCK"):  # as if it had been killed
                artifacts.write_text(hidden / left, "part")
        with outputs.file("out") as aside:
            self.assertEqual(self.names(outputs.parts(aside, "key")), ["first", "second"])
            aside.touch()
        self.assertEqual(self.names(), ["out", "out.parts"])

    def test_files_of_a_folder_are_replaced_by_name(self):
        artifacts.write_text("out/sub/kept", "a user's")
        artifacts.write_text("out/report.md", "old")
        for overwrite, more in ((None, "add --overwrite"), (False, "choose another folder$")):
            output = outputs.folder("out", overwrite=overwrite)
            with self.refused(f"out is not empty; .*{more}"), output:
                self.fail("the block has run")
        flags.FLAGS.overwrite = True
        for name in ("out/", "out/sub/..", "new/../out"):
            with outputs.folder(name) as aside:
                artifacts.write_text(aside / "report.md", "new")
                artifacts.write_text(aside / "sub/deep/more", "new")
            self.assertEqual(self.names("out/sub"), ["deep", "kept"])
        os.rename("out/sub", "elsewhere")
        pathlib.Path("out/sub").symlink_to("../elsewhere")
        for name in ("sub/kept", "sub"):  # through a link, and in place of one
            with self.refused("out/sub: is a link"), outputs.folder("out") as aside:
                artifacts.write_text(aside / "report.md", "newer")
                artifacts.write_text(aside / name, "ours")
        self.assertEqual(pathlib.Path("elsewhere/kept").read_text(), "a user's")
        self.assertEqual(pathlib.Path("out/report.md").read_text(), "new")
        self.assertEqual(self.names(), ["elsewhere", "out"])

    def test_a_folder_that_is_or_holds_an_input_is_refused(self):
        flags.FLAGS.overwrite = True
        artifacts.write_text("runs/a/results.json", "{}")
        pathlib.Path("link").symlink_to("runs")
        for name in ("runs", "runs/a", ".", "link", "link/a/"):
            with self.refused("is or holds an input, .*a"), outputs.folder(name, ["link/a"]):
                self.fail("the block has run")
        with outputs.folder("runs/a/report", ["runs/a"]) as aside:
            artifacts.write_text(aside / "report.md", "new")
        self.assertEqual(self.names("runs/a"), ["report", "results.json"])

    def test_a_new_folder_comes_at_once_also_where_a_link_leads(self):
        pathlib.Path("link").symlink_to("elsewhere/real")
        with self.refused("link: is a link to nothing"), outputs.folder("link"):
            self.fail("the block has run")
        os.makedirs("elsewhere/real")
        with self.assertRaises(KeyboardInterrupt), outputs.folder("link", overwrite=False) as aside:
            artifacts.write_text(aside / "model", "part")
            raise KeyboardInterrupt
        self.assertEqual(self.names(), ["elsewhere", "link"])
        with outputs.folder("link", overwrite=False) as aside:
            artifacts.write_text(aside / "model", "whole")
        self.assertEqual(self.names("elsewhere/real"), ["model"])
        self.assertEqual(self.names("elsewhere"), ["real"])

    def test_a_mounted_disk_is_refused_before_anything_is_written(self):
        os.mkdir("disk")
        pathlib.Path("link").symlink_to("disk")
        disk = self.folder / "disk"
        with mock.patch.object(os.path, "ismount", lambda path: path == disk):
            with self.refused("disk: a disk is mounted .*; name a f"), outputs.folder("link"):
                self.fail("the block has run")
            with outputs.folder("link/inside") as aside:
                aside.mkdir()

    @parameterized.parameters(outputs.file, outputs.folder)
    def test_an_error_of_the_system_names_the_output(self, output):
        with self.assertRaises(FileNotFoundError) as caught, output("out"):
            pass  # without writing
        self.assertEqual(caught.exception.filename, f"{self.folder}/out")
