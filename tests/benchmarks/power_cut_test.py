"""What a disk holds after a power cut, against what was synced."""

import pathlib
import random
import tempfile

from absl.testing import absltest

from benchmarks import power_cut


class RecordingTest(absltest.TestCase):
    def recording(self, *changes: tuple[str, ...]) -> power_cut.Recording:
        """A recording of changes in a folder with a file `old` of "old\n"."""
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (self.folder / "before").mkdir()
        (self.folder / "before" / "old").write_text("old\n")
        lines = [
            f"{action}\t/top/{one}\t/top/{two}\t{offset or 0}\t{len(data)}\n{data}"
            for action, one, two, offset, data in (
                (*change, "", "", "", "")[:5] for change in changes
            )
        ]
        (self.folder / "log").write_text("".join(lines))
        return power_cut.Recording(
            self.folder / "before", pathlib.Path("/top"), self.folder / "log"
        )

    def disks(self, recording: power_cut.Recording, moment: int) -> set[frozenset]:
        """What files may hold."""
        found = set()
        for seed in range(40):
            disk = self.folder / f"{moment}-{seed}"
            recording.write(disk, moment, random.Random(seed))
            files = (path for path in disk.rglob("*") if path.is_file())
            found.add(frozenset((path.name, path.read_text()) for path in files))
        return found

    def test_only_what_was_synced_is_safe(self):
        old, new = ("old", "old\n"), ("old", "new")
        written = ("create", ".x"), ("write", ".x", "", "0", "new")
        renamed = ("rename", ".x", "old")
        data, name = ("sync", ".x"), ("sync", "")
        unsafe = self.recording(*written, renamed)
        self.assertLen(self.disks(unsafe, 1), 3)
        self.assertIn(frozenset({("old", "")}), self.disks(unsafe, 2))
        self.assertEqual([tuple(one) for one in unsafe.published()], [("old", False, False)])
        # Either file is whole; the name is safe once its folder was synced.
        synced = self.recording(*written, data, renamed, name)
        self.assertContainsSubset(
            self.disks(synced, 3), {frozenset({old}), frozenset({old, (".x", "new")}),
                                    frozenset({new})},
        )  # fmt: skip
        self.assertEqual(self.disks(synced, 4), {frozenset({new})})
        self.assertEqual([tuple(one) for one in synced.published()], [("old", True, True)])
