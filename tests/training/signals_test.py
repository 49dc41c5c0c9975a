"""Stop requests by real signals."""

import os
import queue
import signal
import subprocess
import sys
from unittest import mock

import jax
from absl.testing import parameterized
from jax.experimental import multihost_utils

from tests import commands
from xlm.training import signals
from xlm.training.signals import StopRequest

# Ctrl-C twice during compiled code, for which Python's handlers wait.
COMMAND = """\
import hashlib, os, signal, sys, threading, time
from xlm.common import interruption
from xlm.training.signals import StopRequest

def interrupt_twice():
    for _ in range(2):
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
interruption._PATIENCE = 0.5
interruption.listen()
if sys.argv[1] == "run":
    StopRequest().__enter__()
threading.Thread(target=interrupt_twice).start()
hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
"""


class StopRequestTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        numbers = (signal.SIGTERM, signal.SIGINT)
        self.handlers = {number: signal.getsignal(number) for number in numbers}

    def assert_handlers_are_back(self):
        for number, handler in self.handlers.items():
            self.assertIs(signal.getsignal(number), handler)

    @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
    def test_a_signal_is_remembered(self, number):
        with StopRequest() as should_stop:
            self.assertFalse(should_stop(1))
            told = queue.SimpleQueue[str]()
            tell = lambda form, *args: told.put(form % args)  # noqa: E731
            with mock.patch.object(signals.logging, "warning", tell):
                os.kill(os.getpid(), number)
                self.assertIn(number.name, told.get(timeout=60))
            self.assertTrue(should_stop(2))
            self.assertTrue(should_stop(3))
        self.assert_handlers_are_back()

    def test_a_second_ctrl_c_ends_it_and_a_second_sigterm_does_not(self):
        with StopRequest() as should_stop:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            self.assertTrue(should_stop(1))
        with self.assertRaises(KeyboardInterrupt), StopRequest():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        self.assert_handlers_are_back()

    @parameterized.parameters("run", "other")
    def test_a_second_ctrl_c_ends_compiled_code(self, kind):
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, kind], cwd=commands.ROOT, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 130, done.stderr)
        says = "the run finishes its step" if kind == "run" else "stops when compiled code returns"
        self.assertRegex(done.stderr, rf"\A\S*SIGINT: {says}.* second Ctrl-C stops it hard.*\n\Z")

    def test_a_command_with_handlers_of_its_own_is_left_alone(self):
        code = (
            "import os, signal, time; from xlm.common import interruption\n"
            "interruption._PATIENCE = 0.1; interruption.listen(); came = []\n"
            "signal.signal(signal.SIGINT, lambda *_: came.append(1))\n"
            "for _ in range(2): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.5)\n"
            "print(len(came))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=commands.ROOT, capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "2\n", ""))

    def test_several_hosts_agree_on_the_step(self):
        asked = []

        def reached(step: int) -> bool:
            asked.append(step)
            return step == 3

        with (
            mock.patch.object(jax, "process_count", lambda: 2),
            mock.patch.object(multihost_utils, "reached_preemption_sync_point", reached),
            StopRequest() as should_stop,
        ):
            self.assert_handlers_are_back()  # JAX handles SIGTERM
            self.assertEqual([should_stop(step) for step in (1, 2, 3)], [False, False, True])
        self.assertEqual(asked, [1, 2, 3])
