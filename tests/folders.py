"""Tests with a folder of their own."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

from absl.testing import parameterized


class FolderTest(parameterized.TestCase):
    """Each test has an empty folder, `self.folder`, removed at its end."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def new_folder(self) -> pathlib.Path:
        """Return the path of a new folder, which does not exist yet."""
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "new"

    def write(self, name: str, content: str | bytes) -> pathlib.Path:
        """Write a file of the folder unchanged."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    @contextlib.contextmanager
    def assert_told(self, *messages: str, level: str = "WARNING") -> Iterator[None]:
        """Expect the block to log lines that match each of some regular expressions."""
        with self.assertLogs(level=level) as logs:
            yield
        for message in messages:
            self.assertRegex("\n".join(logs.output), message)
