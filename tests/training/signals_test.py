"""Being asked to stop, by real signals."""

import os
import signal
from unittest import mock

import jax
from absl.testing import parameterized
from jax.experimental import multihost_utils

from xlm.training.signals import StopRequest


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
            with self.assertLogs(level="WARNING") as logs:
                os.kill(os.getpid(), number)
            self.assertIn(number.name, logs.output[0])
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
            self.assert_handlers_are_back()  # SIGTERM is for JAX to hear
            self.assertEqual([should_stop(step) for step in (1, 2, 3)], [False, False, True])
        self.assertEqual(asked, [1, 2, 3])
