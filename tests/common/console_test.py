"""What a command shows in a pipe and on a terminal, quiet and verbose."""

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import sys
import termios

from absl.testing import parameterized

from tests import commands

COMMAND = """\
import logging, os, sys
from xlm.common import console, entry_point

console._SECONDS, console._DELAY = 0.0, 1e-9
NOISE = '''
import logging
for level in (10, 20, 30): logging.getLogger("jax").log(level, "noise %d", level)
'''

def main(_):
    # The one of a command runs Python code, amid which a handler of a signal may log.
    assert console._stream() is sys.__stderr__ is not sys.stderr
    logging.info("two\\nlines")
    for _ in range(2):
        logging.warning("a file is left out; add it")
    exec(compile(NOISE, "/x/site-packages/jax/noise.py", "exec"))
    for i in console.bar(range(3), "count", 3, "files"):
        if i == 1:
            logging.info("in between")
    for name in ("nothing", "unknown"):
        list(console.bar([], name, 0 if name == "nothing" else None, "files"))
    print("report: here", flush=True)
    os._exit(0)  # what was logged was there at once

entry_point.run(main, required=())
"""
OURS = "two\n          lines", "warning: a file is left out; add it"


class ConsoleTest(parameterized.TestCase):
    def test_plain_lines_in_a_pipe(self):
        shown = self.shown()
        for i, share in ((1, 33), (2, 67), (3, 100)):
            self.assertIn(f"count          {i} of 3 files ({share}%), 00:00 left", shown)
        self.assertEqual([*shown[:3], shown[4]], [*OURS, "warning: noise 30", "in between"])
        self.assertLen(shown, 7)

    @parameterized.parameters(
        (["--quiet"], [OURS[1], "warning: noise 30"]),
        (["--verbose"], [*OURS, "noise 20", "warning: noise 30"]),
        (["--verbose", "--quiet"], [OURS[1], "warning: noise 30"]),
    )
    def test_quiet_and_verbose(self, given, expected):
        self.assertEqual(self.shown(*given)[: len(expected)], expected)
        self.assertLen(self.shown(*given), len(expected) + 4 * ("--quiet" not in given))

    def test_bars_make_room_on_a_terminal_and_fit_it(self):
        states = self.drawn(rows=24, columns=50)
        self.assertTrue(any(re.fullmatch(r" {10}count +33% \|█+.*", one) for one in states), states)
        self.assertLessEqual(max(len(one) for one in states if "count" in one), 50)
        # A line begins where the bar was, and the bar is there again below it.
        at = next(i for i, one in enumerate(states) if one.endswith("  in between"))
        self.assertRegex(states[at], r"^\d\d:\d\d:\d\d  in between$")
        self.assertEqual((states[at - 1].strip(), "count" in states[at + 1]), ("", True))
        self.assertIn("count          100% |", " ".join(states))

    def test_bars_on_a_terminal_of_no_size(self):
        self.assertIn("count          100% |", " ".join(self.drawn(rows=0, columns=0)))

    def drawn(self, rows: int, columns: int) -> list[str]:
        """What a terminal shows, each time that its line is drawn."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            self.command(), stderr=theirs, stdout=subprocess.DEVNULL, cwd=commands.ROOT
        )
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # how Linux ends it
            while part := os.read(ours, 4096):
                text += part
        os.close(ours)
        self.assertEqual(process.wait(), 0, text)
        return re.split(r"[\r\n]+", text.decode())

    def command(self, *given: str) -> list[str]:
        return [sys.executable, "-c", COMMAND, *given]

    def shown(self, *given: str) -> list[str]:
        """What a command logs, without times of day."""
        done = subprocess.run(
            self.command(*given), cwd=commands.ROOT, capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stdout), (0, "report: here\n"), done.stderr)
        first, *found = re.split(r"^\d\d:\d\d:\d\d  ", done.stderr, flags=re.M)
        self.assertEqual(first, "")
        return [one.removesuffix("\n") for one in found]
