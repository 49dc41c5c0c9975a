"""Metrics on disk, after kills and resumes."""

import pathlib
import tempfile

from absl.testing import absltest

from training.metrics import MetricsWriter, read_metrics


class MetricsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "train" / "metrics.jsonl"

    def write(self, steps: range, resume_step: int = 0) -> None:
        writer = MetricsWriter(self.path, resume_step)
        for step in steps:
            writer.write(step, {"loss": 1 / step})
            writer.write(step, {"eval": step * 0.1})

    def test_there_and_back(self):
        self.assertEmpty(read_metrics(self.path))
        self.write(range(1, 3))
        self.assertEqual(
            read_metrics(self.path),
            [
                {"step": 1, "loss": 1.0},
                {"step": 1, "eval": 0.1},
                {"step": 2, "loss": 0.5},
                {"step": 2, "eval": 0.2},
            ],
        )

    def test_each_record_is_on_disk_at_once(self):
        writer = MetricsWriter(self.path)
        self.assertEmpty(read_metrics(self.path))
        writer.write(1, {"loss": 0.5})
        self.assertEqual(read_metrics(self.path), [{"step": 1, "loss": 0.5}])

    def test_a_resumed_run_writes_the_same_bytes(self):
        self.write(range(1, 11))
        uninterrupted = self.path.read_bytes()
        for resume_step in (9, 4, 0):
            self.write(range(resume_step + 1, 11), resume_step)
            self.assertEqual(self.path.read_bytes(), uninterrupted)

    def test_another_run_starts_from_nothing(self):
        self.write(range(1, 4))
        MetricsWriter(self.path)
        self.assertEqual(self.path.read_bytes(), b"")

    def test_a_line_that_was_cut_off_is_left_out(self):
        self.write(range(1, 4))
        whole = self.path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for cut in range(len(lines[-1])):
            self.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
            self.assertLen(read_metrics(self.path), len(lines) - 1)
        self.write(range(3, 4), resume_step=2)
        self.assertEqual(self.path.read_bytes(), whole)


if __name__ == "__main__":
    absltest.main()
