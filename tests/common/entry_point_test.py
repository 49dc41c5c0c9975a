"""Commands whose output nobody can show, and the help of all commands."""

import os
import subprocess
import sys

from absl import app
from absl.testing import absltest, parameterized

from tests import commands
from tests.malformed import harness

COMMAND = """\
from absl import flags
from common import entry_point
flags.DEFINE_string({flag!r}, "x", "")
def main(_):
    for i in range(10000):
        print(chr(0x6587), i)
    print("results are written", file=open("/dev/stderr", "w"))
entry_point.run(main, required=())
"""
TOOLS = sorted(path.stem for path in commands.ROOT.glob("tools/[a-z]*.py"))


class ShownTest(parameterized.TestCase):
    def run_command(self, redirection: str, flag: str = "output") -> tuple[int, str]:
        """Exit status and errors of a command that prints, in a shell whose terminal has ASCII."""
        ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$0" -c "$1" {redirection}', sys.executable,
             COMMAND.format(flag=flag)],
            env={**os.environ, **ascii_alone}, cwd=commands.ROOT, capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stderr

    @parameterized.parameters(">&-", "| true", "| head -1", "")
    def test_a_reader_may_leave(self, redirection):
        self.assertEqual(self.run_command(redirection), (0, "results are written\n"))

    def test_a_full_disk_ends_no_command_that_has_files(self):
        status, errors = self.run_command(">/dev/full")
        self.assertEqual(status, 0, errors)
        self.assertRegex(errors, r"\Aresults are .*\n.*standard output: No space.*all files are wr")
        status, errors = self.run_command(">/dev/full", flag="devices")
        self.assertEqual(status, 2, errors)
        self.assertRegex(errors, "\nerror .*: standard output: No space left.*; make room")


class HelpTest(parameterized.TestCase):
    @parameterized.parameters("predict", *(f"tools.{name}" for name in TOOLS))
    def test_help_says_what_each_flag_is(self, name):
        app.define_help_flags()
        done = harness.run(name, ["--help"])
        self.assertEqual((done.status, done.errors), (0, ""))
        own = done.output.partition("\nflags:\n")[2]
        self.assertRegex(own, r"\n  --\S+: \S")
        self.assertNotRegex(own, r"\n  --\S+:\s*\n")


if __name__ == "__main__":
    absltest.main()
