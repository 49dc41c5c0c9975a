"""Metrics on disk, after kills and resumes."""

import math

from absl.testing import parameterized

from tests import folders
from xlm.training.metrics import MetricsWriter, read_metrics


class MetricsTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "train" / "metrics.jsonl"

    def write_steps(self, steps: range, resume_step: int = 0) -> None:
        writer = MetricsWriter(self.path, resume_step)
        for step in steps:
            writer.write(step, {"loss": 1 / step})
            writer.write(step, {"eval": step * 0.1})

    def test_each_record_is_on_disk_at_once(self):
        self.assertEmpty(read_metrics(self.path))
        writer = MetricsWriter(self.path)
        self.assertEmpty(read_metrics(self.path))
        writer.write(1, {"loss": 0.5, "none": math.nan, "much": math.inf})
        self.assertEqual(self.path.read_text(), '{"step": 1, "loss": 0.5}\n')
        writer.write(1, {"eval": 0.1})
        records = [{"step": 1, "loss": 0.5}, {"step": 1, "eval": 0.1}]
        self.assertEqual(read_metrics(self.path), records)

    def test_a_resumed_run_writes_the_same_bytes(self):
        self.write_steps(range(1, 11))
        uninterrupted = self.path.read_bytes()
        for resume_step in (9, 4, 0):
            self.write_steps(range(resume_step + 1, 11), resume_step)
            self.assertEqual(self.path.read_bytes(), uninterrupted)
        MetricsWriter(self.path)  # another run starts from nothing
        self.assertEqual(self.path.read_bytes(), b"")

    def test_a_line_that_was_cut_off_is_left_out(self):
        self.write_steps(range(1, 4))
        whole = self.path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for cut in range(len(lines[-1])):
            self.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
            self.assertLen(read_metrics(self.path), len(lines) - 1)
        self.write_steps(range(3, 4), resume_step=2)
        self.assertEqual(self.path.read_bytes(), whole)

    def test_not_finite_numbers_of_earlier_releases_are_left_out(self):
        self.path.parent.mkdir()
        self.path.write_text('{"step": 1, "none": NaN, "much": Infinity, "loss": 2}\n')
        self.assertEqual(read_metrics(self.path), [{"step": 1, "loss": 2}])

    @parameterized.parameters(
        (b"{\n", "not JSON"), (b"\xff\n", "not JSON"), (b'{"loss": 1}\n', "step must be a whole"),
        (b'{"step": "1"}\n', "step is"), (b'{"step": 2, "loss": [1]}\n', "loss is"),
        (b"5\n", "is 5"), (b'{"step": 0.5}\n', "step must be a whole"),
    )  # fmt: skip
    def test_a_damaged_line_is_named(self, line, error):
        self.write_steps(range(1, 3))
        content = self.path.read_bytes()
        self.path.write_bytes(content + line + content)
        error = rf"metrics.jsonl, line 5: .*{error}.*; move the file away"
        with self.assertRaisesRegex(ValueError, error):
            MetricsWriter(self.path, resume_step=1)
        self.assertEqual(self.path.read_bytes(), content + line + content)
