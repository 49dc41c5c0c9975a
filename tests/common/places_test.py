"""Folders in buckets of servers on the loopback address: what readers see, and when."""

import contextlib
import json
import os
import pathlib
import shutil
import time
from unittest import mock

from absl.testing import parameterized

from input_pipeline import preparation_plan
from tests import buckets
from tests.folders import FolderTest
from xlm.common import places


class PlacesTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.held: dict[str, set[str]] = {}
        self.on("first")

    def on(self, machine: str) -> None:
        """Go on as another machine, or one again."""
        cache = {places.CACHE: str(self.folder / machine)}
        self.enter_context(mock.patch.dict(os.environ, cache))
        self.enter_context(mock.patch("socket.gethostname", lambda: machine))
        held = self.held.setdefault(machine, set())
        self.enter_context(mock.patch.object(places, "_held", held))

    def contents(self, folder: pathlib.Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    def fill(self, folder: pathlib.Path, files: dict[str, str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    @parameterized.parameters(buckets.s3, buckets.gcs)
    def test_what_is_published_is_fetched(self, serve):
        url = self.enter_context(serve()) + "/runs/a"
        files = {"a/DONE": "", "a/b/c.bin": "x" * 3_000_000, "m.jsonl": "1\n", ".x.y": "hidden"}
        with places.locked(url) as copy:
            self.fill(copy, {**files, "a/.z.0123456789abcdef.tmp": "1", "a/LOCK": "", "gone": "g"})
            (copy / "link").symlink_to("a/b", target_is_directory=True)
        with places.locked(url) as again, places.locked(url):
            self.assertEqual(again, copy)
            (copy / "gone").unlink()
            with (copy / "m.jsonl").open("a") as file:
                file.write("2\n")
        self.on("second")
        found = places.fetched(url)
        expected = {name: text.encode() for name, text in files.items()}
        self.assertEqual(self.contents(found), {**expected, "m.jsonl": b"1\n2\n"})
        self.assertEqual(os.readlink(found / "link"), "a/b")
        self.assertEqual(places.fetched(f"{url}/m.jsonl").read_text(), "1\n2\n")
        with self.assertRaisesRegex(ValueError, f"{url}/none: there is no such file"):
            places.fetched(f"{url}/none")

    @parameterized.parameters(buckets.s3, buckets.gcs)
    def test_text_is_found_and_watched(self, serve):
        root = places.path(self.enter_context(serve()) + "/text")
        for name, content in (("en.txt", b"one\n"), ("a/b/sw.txt", b"two\n"), ("a/c.md", b"3")):
            root.fs.pipe_file(f"{root.path}/{name}", content)
        names = [str(path) for path in places.glob(root, "**/*.txt")]
        self.assertCountEqual(names, [f"{root}/en.txt", f"{root}/a/b/sw.txt"])
        path = places.join(root, "./en.txt")
        before = preparation_plan.states([path])
        preparation_plan.check_unchanged(before)
        path.fs.pipe_file(path.path, b"two\n")
        with self.assertRaisesRegex(ValueError, f"{path}: has changed while it was read"):
            preparation_plan.check_unchanged(before)

    def test_a_publication_that_is_cut_off_shows_no_mixture(self):
        bucket = self.enter_context(buckets.s3())
        old = {"DONE": "", "settings.json": "old", "model": "old", "only": "old", "m.jsonl": "1"}
        new = {"DONE": "", "settings.json": "new", "model": "new", "more/x": "new", "m.jsonl": "12"}
        seen = set()
        for number in range(9):
            url, fails = f"{bucket}/run{number}", number
            self.on("first")
            with places.locked(url) as copy:
                self.fill(copy, old)

            def cut(function):
                def call(*args, **kwargs):
                    nonlocal fails
                    if (fails := fails - 1) < 0:
                        raise InterruptedError
                    return function(*args, **kwargs)

                return call

            place = places._Place(url)
            place.fetch()
            time.sleep(0.01)  # so that DONE is another one
            self.fill(copy, new)
            with contextlib.ExitStack() as stack:
                for name in ("_put_file", "pipe_file", "rm_file"):
                    wrapped = cut(getattr(place._fs, name))
                    stack.enter_context(mock.patch.object(place._fs, name, wrapped))
                with contextlib.suppress(InterruptedError), mock.patch.object(place, "_renew"):
                    place._publish()
            self.on("second")
            try:
                found = {name: text.decode() for name, text in
                         self.contents(places.fetched(url)).items()}  # fmt: skip
            except FileNotFoundError:  # one is missing that is listed
                self.fail(f"after {number} writes")
            if "DONE" in found:
                self.assertIn(found, (old, new), number)
            seen.add(found.get("model") + str("DONE" in found))
        self.assertEqual(seen, {"oldTrue", "oldFalse", "newFalse", "newTrue"})

    def test_work_that_is_not_published_stays_unless_another_machine_went_on(self):
        url = self.enter_context(buckets.s3()) + "/run"
        with places.locked(url) as copy:
            self.fill(copy, {"a": "1"})
        (copy / "b").write_text("of a killed process")
        with places.locked(url):
            self.assertEqual(self.contents(copy), {"a": b"1", "b": b"of a killed process"})
        (copy / "b").write_text("lost")
        (copy / "d").write_text("lost")
        self.on("second")
        with places.locked(url) as other:
            (other / "c").write_text("3")
        self.on("first")
        expected = {"a": b"1", "b": b"of a killed process", "c": b"3"}
        self.assertEqual(self.contents(places.fetched(url)), expected)

    @parameterized.parameters(buckets.s3, buckets.gcs)
    def test_one_process_works_on_a_folder(self, serve):
        url = self.enter_context(serve()) + "/run"
        with places.locked(url):
            self.on("second")
            with self.assertRaisesRegex(
                ValueError, rf"on first works on {url}; .* the last \d+ s ago"
            ):
                self.enter_context(places.locked(url))
        with places.locked(url) as copy:
            self.fill(copy, {"a": "1"})
        place = places._Place(url)
        for host, sign in (("first", 0), ("second", time.time())):  # too old, and of this machine
            void = json.dumps({"host": host, "time": sign}).encode()
            place._fs.pipe_file(place._key(places.LOCK), void)
            with places.locked(url):
                pass
        lost = f"on third has taken the folder over.* are in {copy}"
        with self.assertRaisesRegex(OSError, lost), places.locked(url):
            place._fs.pipe_file(place._key(places.LOCK), json.dumps({"host": "third"}).encode())
            (copy / "a").write_text("mine")
        self.on("fourth")
        self.assertEqual(self.contents(places.fetched(url)), {"a": b"1"})

    @parameterized.parameters(({"../x": [1, 1]},), ({"/x": [1, 1]},), ({"a/b": "../../x"},))
    def test_names_that_lead_out_of_a_folder_are_refused(self, files):
        place = places._Place(self.enter_context(buckets.s3()) + "/run")
        manifest = json.dumps({"id": "1", "files": files}).encode()
        place._fs.pipe_file(place._key(places.MANIFEST), manifest)
        with self.assertRaisesRegex(ValueError, "outside of it; remove it"):
            places.fetched(place.url)

    def test_a_bucket_that_is_not_there_is_named(self):
        self.enter_context(buckets.s3())
        message = "s3://nowhere/run: The specified bucket does not exist; correct the URL"
        with self.assertRaisesRegex(ValueError, message):
            self.enter_context(places.locked("s3://nowhere/run"))

    def test_copies_have_a_bound(self):
        url = self.enter_context(buckets.s3()) + "/run"
        with places.locked(url) as copy:
            self.fill(copy, {"a": "x" * 2_000_000})
        self.on("second")
        small = {places.CACHE_GB: "0.001"}
        message = rf"{self.folder}/second would hold 0\.002 GB, may hold 0\.001"
        with mock.patch.dict(os.environ, small), self.assertRaisesRegex(ValueError, message):
            places.fetched(url)
