"""Worker processes: they end with the one that started them, and their errors arrive there."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import parameterized

from tests.folders import FolderTest
from xlm.common import entry_point, processes

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
