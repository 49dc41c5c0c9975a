"""Event files, read by TensorFlow, which checks the checksums and knows the messages."""

import pathlib
import tempfile
import time

import numpy as np
from absl.testing import absltest

from training.tensorboard import EventWriter


def read(path: pathlib.Path) -> list:
    import tensorflow as tf

    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    return [tf.compat.v1.Event.FromString(record) for record in records]


class EventWriterTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "events"

    def files(self) -> list[pathlib.Path]:
        return sorted(self.folder.iterdir())

    def test_what_is_written_is_read(self):
        before = time.time()
        writer = EventWriter(self.folder)
        writer.write(7, {"train/loss": 1.25, "eval/loss/sw": -3e-8})
        writer.write(3_000_000_000, {"train/loss": float("inf")})
        (path,) = self.files()
        self.assertIn("tfevents", path.name)
        version, start, first, second = read(path)
        self.assertEqual(version.file_version, "brain.Event:2")
        self.assertEqual((start.session_log.status, start.step), (start.session_log.START, 1))
        self.assertEqual((first.step, second.step), (7, 3_000_000_000))
        self.assertEqual(
            [(value.tag, value.simple_value) for value in first.summary.value],
            [("train/loss", 1.25), ("eval/loss/sw", float(np.float32(-3e-8)))],
        )
        self.assertEqual(second.summary.value[0].simple_value, float("inf"))
        for event in (version, start, first, second):
            self.assertBetween(event.wall_time, before, time.time())

    def test_a_resumed_run_takes_back_what_it_repeats(self):
        EventWriter(self.folder).write(5, {"loss": 1.0})
        EventWriter(self.folder, resume_step=4).write(5, {"loss": 1.0})
        old, new = self.files()
        self.assertLen(read(old), 3)
        self.assertEqual(read(new)[1].step, 5)  # from here on


if __name__ == "__main__":
    absltest.main()
