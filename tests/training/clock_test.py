"""The clock of a run over several starts, and the end of a hanging run."""

import contextlib
import textwrap
import threading
import types
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

from tests import processes
from tests.folders import FolderTest
from tests.training import toy_runs
from xlm.training import clock as clocks
from xlm.training import run_report
from xlm.training.clock import Clock
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped


def tearDownModule():
    toy_runs.toy_functions.cache_clear()


class Result:
    """Result of a program in flight, until `done`."""

    def __init__(self):
        self.done = threading.Event()

    def block_until_ready(self):
        self.done.wait()
        return self


class PartsTest(FolderTest):
    def test_the_seconds_of_steps_are_without_pauses(self):
        with Clock(self.folder) as clock:
            clock.seconds = {part: 2.0**i for i, part in enumerate(clocks.PARTS)}
            self.assertEqual(clock.of_steps(), 1 + 16 + 32 + 256)

    def test_each_second_has_one_part_and_the_device_goes_first(self):
        now = [0.0]
        time = types.SimpleNamespace(monotonic=lambda: now[0])
        self.enter_context(mock.patch.object(clocks, "time", time))
        clock = self.enter_context(Clock(self.folder))

        def batches():
            for seconds in (2, 4, 8):
                now[0] += seconds
                yield seconds

        def finish(result):
            left = len(clock._in_flight)
            result.done.set()
            while len(clock._in_flight) == left:
                pass

        now[0] += 1  # starting
        found = clock.waiting(batches())
        next(found)  # data, 2
        refresh, first, second = Result(), Result(), Result()
        clock.turn("refresh")
        now[0] += 16
        clock.dispatched("refresh", refresh)
        clock.turn("steps")
        now[0] += 32  # the device runs the refresh before the step
        clock.dispatched("steps", first, 1)
        clock.turn("other")
        now[0] += 4096
        finish(refresh)
        now[0] += 64  # steps
        next(found)  # 4 more seconds of a busy device
        clock.turn("steps")
        clock.dispatched("steps", second, 2)
        clock.turn("other")
        finish(first)
        finish(second)
        now[0] += 128  # other
        next(found)  # data, 8

        @jax.jit
        def compiled(x):
            now[0] += 256
            return x + 1

        clock.turn("evaluation")
        now[0] += 512
        compiled(np.float32(1))
        now[0] += 512
        clock.turn("saving")
        now[0] += 2048
        expected = {"starting": 1, "data": 10, "refresh": 4144, "steps": 68, "other": 128,
                    "compiling": 256, "evaluation": 1024, "saving": 2048, "lost": 0}  # fmt: skip
        shares = {part: seconds / now[0] for part, seconds in expected.items()}
        self.assertEqual((clock.record(), clock.seconds), (shares, expected))


class Broken(toy_runs.Data):
    def batches(self, steps: range):
        for step, batch in zip(steps, super().batches(steps), strict=True):
            if step == 8:
                raise RuntimeError("a crash")
            yield batch


class RestartsTest(toy_runs.TestCase):
    def test_a_crash_loses_the_steps_after_its_checkpoint(self):
        with self.assertRaisesRegex(RuntimeError, "a crash"):
            train(self.functions, toy_runs.SETTINGS, self.folder, Broken())
        before = read_metrics(self.folder / clocks.GOODPUT)
        self.assertEqual(before[-1]["step"], 8)
        at_checkpoint = [one for one in before if one["step"] == 6][-1]
        self.train()
        after = read_metrics(self.folder / clocks.GOODPUT)
        place = len([one for one in before if one["step"] <= 6])
        self.assertEqual(after[:place], before[:place])
        lost = before[-1]["steps"] - at_checkpoint["steps"]
        self.assertGreater(lost, 0)
        moved = {"step": 6, "steps": at_checkpoint["steps"], "lost": lost}
        self.assertEqual(after[place], {**before[-1], **moved})
        for one, other in zip(after[place:-1], after[place + 1 :], strict=True):
            self.assertTrue(all(one[part] <= other[part] for part in clocks.PARTS))
        text = "\n".join(run_report.time_section(self.folder, [run_report.read(self.folder)]))
        self.assertIn(f"| compiling | {after[-1]['compiling'] / 60:,.1f} |", text)

    def test_a_stop_loses_nothing(self):
        with self.assertRaises(Stopped):
            self.train(should_stop=lambda step: step == 5)
        self.train()
        last = read_metrics(self.folder / clocks.GOODPUT)[-1]
        self.assertEqual((last["step"], last["lost"]), (10, 0))


class WatchdogTest(FolderTest):
    def ends(self, clock: Clock, ticks: int) -> bool:
        """Return whether the process ends after `ticks` without progress."""
        clock._silent = 0.0
        exits = mock.patch.object(clocks.os, "_exit", side_effect=SystemExit)
        waits = mock.patch.object(clock._ends, "wait", side_effect=[False] * ticks + [True])
        with exits as ended, waits as waited, mock.patch.object(clock, "_tell"):
            with contextlib.suppress(SystemExit):
                clock._watch()
            waited.assert_called_with(6)
        return ended.call_args == mock.call(clocks.EXIT_HUNG)

    def test_ordinary_runs_go_on(self):
        clock = self.enter_context(Clock(self.folder))
        clock._floor = 60.0  # without the watching thread

        def check(ticks: int, *parts: str):
            for part in parts:
                clock.turn(part)
                self.assertFalse(self.ends(clock, ticks), part)
                self.assertTrue(self.ends(clock, ticks + 1), part)

        check(240, "starting", "data")  # before the first step, with tracing and compilation
        clock._steps.extend([0.1, 0.1, 100.0])
        check(10, "data", "steps", "other")
        check(240, "evaluation", "saving", "refresh")
        clock.turn("steps")
        jax.jit(lambda x: check(240, "steps") or x + 1)(np.float32(1))
        clock._steps.extend([2.4, 2.4])  # 50 of them are 20 ticks
        check(20, "data", "steps", "other")


class HungTest(toy_runs.TestCase):
    @parameterized.parameters(("data", "batches"), ("steps", "hang"))
    def test_a_run_that_hangs_ends_with_its_stacks_and_resumes(self, part, function):
        code = f"""
            import dataclasses, pathlib, threading
            import jax
            from tests import factories
            from tests.training import toy_runs
            from xlm.training.loop import train

            class Data(toy_runs.Data):
                def batches(self, steps):
                    for step, batch in zip(steps, super().batches(steps)):
                        if step == 5 and {part == "data"}:
                            threading.Event().wait()
                        yield batch

            def hang(x):
                if x == 2:
                    threading.Event().wait()

            class Toy(toy_runs.Toy):
                def loss(self, params, rows, plan, key):
                    jax.debug.callback(hang, plan["x"][0])
                    return super().loss(params, rows, plan, key)

            settings = dataclasses.replace(toy_runs.SETTINGS, hang_minutes=0.1)
            data = Data(1, 1, 1, 1, 1, 2) if {part == "steps"} else Data()
            functions = factories.train_functions(Toy())
            train(functions, settings, pathlib.Path({str(self.folder)!r}), data)
        """
        done = processes.run_python("-c", textwrap.dedent(code), PYTHONFAULTHANDLER="")
        self.assertEqual(done.returncode, clocks.EXIT_HUNG, done.stderr)
        self.assertRegex(done.stderr, rf"the run hangs: .* after step 5, in {part}\.")
        (path,) = self.folder.glob("hung_*_0.txt")
        for text in (done.stderr, path.read_text()):
            self.assertIn(f" in {function}\n", text)
        self.assert_is_whole_run(self.train())
