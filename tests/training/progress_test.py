"""The progress line of a run: mean losses by kind of step, since the last line."""

import io
import pathlib
import re
from unittest import mock

import numpy as np

from tests import folders
from xlm.common import console
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Batch, Objective
from xlm.training.clock import Clock
from xlm.training.metrics import read_metrics
from xlm.training.progress import Progress
from xlm.training.settings import TrainSettings

TERMS = {"packed": "mlm", "pairs": "tlm", "own": "mine"}
KINDS = ("packed", "pairs", "packed", "packed", "pairs", "packed", "packed", "own", "packed")
NAMES = {"mlm": "masked LM", "tlm": "TLM", "mine": "mine"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ProgressTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.losses = np.random.default_rng(0).uniform(1, 9, len(KINDS)).astype(np.float32)
        term = mock.Mock(Objective)
        self.objective = Mixture({kind: Term(term, name, 0.5) for kind, name in TERMS.items()})

    def train(self, log_every: int, folder: pathlib.Path, objective=None) -> Progress:
        """Take all steps, with losses that no device has computed."""
        functions, data = mock.Mock(stage="first"), mock.Mock()
        functions.mesh.size, data.step_values.return_value = 1, {}
        settings = TrainSettings(num_steps=len(KINDS), log_every=log_every)
        folder.mkdir()
        with Clock(folder) as clock, Progress(functions, settings, folder, 0, data, clock) as found:
            for step, (kind, loss) in enumerate(zip(KINDS, self.losses, strict=True)):
                batch = Batch({"tokens": np.zeros((2, 4), np.int32)}, kind)
                found.before_step(step, objective or self.objective, functions, None, batch)
                weighted = {"loss": (loss, np.float32(2)), "grad_norm": (loss, np.float32(1))}
                own = {f"{TERMS[kind]}_loss": (2 * loss, np.float32(2))}
                found.after_step(step + 1, weighted | own)
            found.flush_metrics()
        return found

    def lines(self, log_every: int, seconds: float = 0.0, objective=None) -> list[str]:
        folder = self.folder / f"every_{log_every}_{seconds}"
        with mock.patch.object(console, "_SECONDS", seconds), self.assertLogs(level="INFO") as logs:
            self.train(log_every, folder, objective)
        return [one.partition("train  ")[2].strip() for one in logs.output if "train  " in one]

    def expected(self, first: int, last: int) -> dict[str, str]:
        """Mean losses of the steps after `first` up to `last`, from metrics.jsonl."""
        records = read_metrics(self.folder / "every_1_0.0" / "metrics.jsonl")[first:last]
        found = {}
        for name, shown in NAMES.items():
            if of := [one[key] for one in records if (key := f"train/{name}_loss") in one]:
                found[shown] = f"{np.mean(of):.2f}"
        return found

    def test_means_by_kind_are_those_of_the_metrics_since_the_last_line(self):
        self.assertLen(self.lines(1), len(KINDS))
        shown: dict[str, str] = {}
        for number, line in enumerate(self.lines(3), start=1):
            shown |= self.expected(3 * number - 3, 3 * number)  # of others as before
            losses = ", ".join(f"{name} {loss}" for name, loss in shown.items())
            start = f"{3 * number} of 9 steps ({100 * number / 3:.0f}%), {losses}, 00:00 left"
            speed = r", [\d,]+ tokens/s" if number > 1 else ""  # compilation comes first
            self.assertRegex(line, f"^{re.escape(start)}{speed}$")
        self.assertEqual(number, 3)

    def test_the_time_left_is_that_of_steps_after_the_first(self):
        with mock.patch.object(Clock, "of_steps", side_effect=[100.0, 104.0, 110.0, 120.0]):
            lines = self.lines(3)
        found = [re.search(r"(\d\d:\d\d) left", line)[1] for line in lines]
        self.assertEqual(found, ["00:12", "00:06", "00:00"])
        self.assertNotIn("left", self.lines(1)[0])

    def test_lines_are_seldom_and_then_of_all_steps_between(self):
        self.lines(1)
        (line,) = self.lines(3, seconds=1e9)
        losses = ", ".join(f"{name} {loss}" for name, loss in self.expected(0, 9).items())
        self.assertStartsWith(line, f"9 of 9 steps (100%), {losses}, ")

    def test_without_a_mixture_there_is_one_loss(self):
        *_, last = self.lines(3, objective=Objective())
        self.assertIn(f"(100%), loss {np.mean(self.losses[6:]) / 2:.2f}, ", last)

    def test_a_line_is_drawn_again_on_a_terminal(self):
        screen = Terminal()
        quick = mock.patch.multiple(console, _DELAY=1e-9)
        with (
            quick,
            mock.patch.object(console, "_stream", lambda: screen),
            self.assertLogs(level="INFO"),
        ):
            self.train(3, self.folder / "drawn")
        *states, end = screen.getvalue().split("\r")[1:]
        self.assertLen([one for one in states if "/9 steps" in one], len(KINDS))
        self.assertRegex(end, r" {10}train +100% \|#+\| 9/9 steps, masked LM \d.*, 00:00 left.*\n$")

    def test_a_quiet_run_keeps_no_losses(self):
        with self.assertNoLogs(level="WARNING"):
            found = self.train(3, self.folder / "quiet")
        self.assertEmpty(found._losses)
