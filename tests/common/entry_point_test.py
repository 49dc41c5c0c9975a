"""Memory that runs out, paths that no run can have, output that nobody can show, and help."""

import contextlib
import io
import os
import subprocess
import sys

from absl.testing import parameterized

from tests import commands, processes
from tests.malformed import harness
from xlm.cli.main import VERBS
from xlm.common import entry_point

COMMAND = """\
from absl import flags
from xlm.common import entry_point
flags.DEFINE_string({flag!r}, "x", "")
def main(_):
    for i in range(10000):
        print(chr(0x6587), i)
    print("results are written", file=open("/dev/stderr", "w"))
entry_point.run(main, required=())
"""


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
    @parameterized.parameters(*VERBS.values())
    def test_help_says_what_each_flag_is(self, name):
        done = harness.run(name, ["--help"])
        self.assertEqual((done.status, done.errors), (0, ""))
        own = done.output.partition("\nFlags:\n")[2]
        self.assertRegex(own, r"\n  --\S+: \S")
        self.assertNotRegex(own, r"\n  --\S+:\s*\n")


def chained(first: BaseException) -> Exception:
    """As Orbax raises what tensorstore has."""
    try:
        raise OSError("the checkpoint could not be written") from first
    except OSError as error:
        return error


class OutOfMemoryTest(parameterized.TestCase):
    def ended(self, fault: BaseException, advice=lambda: "take less") -> tuple[int, str]:
        def main(_):
            raise fault

        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), self.assertRaises(SystemExit) as raised:
            entry_point.call(main, [], advice)
        return raised.exception.code, printed.getvalue()

    @parameterized.parameters(
        (MemoryError("Unable to allocate 7 GiB"), "Unable to allocate 7 GiB"),
        (MemoryError(), "more than there is"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating\n 5 bytes."), "allocating 5 b"),
        (RuntimeError("INTERNAL: Out of memory allocating 5 bytes."), "allocating 5 b"),
        (RuntimeError("INTERNAL: std::bad_alloc"), "std::bad_alloc"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
        (chained(ValueError("RESOURCE_EXHAUSTED: Out of memory")), "RESOURCE_EXHAUSTED"),
        (ValueError("x [os_error_code='12']"), "os_error_code"),
    )
    def test_it_is_an_error_of_its_own_with_the_commands_advice(self, fault, asked):
        status, printed = self.ended(fault)
        self.assertEqual(status, entry_point.EXIT_OUT_OF_MEMORY)
        self.assertRegex(
            printed, rf"\Aerror [^\n]*: out of memory: [^\n]*{asked}[^\n]*; take less\n\Z"
        )

    def test_advice_that_fails_hides_nothing(self):
        status, printed = self.ended(MemoryError("5 bytes"), lambda: 1 // 0)
        self.assertEqual(status, entry_point.EXIT_OUT_OF_MEMORY)
        self.assertIn("5 bytes; no estimate (ZeroDivisionError)", printed)

    def test_a_full_disk_is_none(self):
        full = ValueError("RESOURCE_EXHAUSTED: No space left on device [os_error_code='28']")
        self.assertEqual(self.ended(chained(full))[0], entry_point.EXIT_USER_ERROR)
        with self.assertRaises(ZeroDivisionError):
            entry_point.call(lambda _: 1 // 0, [])


class MachineTest(parameterized.TestCase):
    """What the machine lacks is said in a line, before anything is written."""

    @parameterized.parameters(
        (None, "ulimit -v 1000000", 3, "address space is 1,024 MB, .*; raise it"),
        ("cuda", ":", 2, "JAX_PLATFORMS is 'cuda', but JAX finds no such device; unset it"),
    )
    def test_for_jax(self, platforms, limit, status, message):
        code = (
            "import jax; from xlm.common import entry_point\n"
            "def main(_): jax.devices()\n"
            "entry_point.run(main, required=())"
        )
        environment = {**processes.environment(), "PYTHONPATH": str(commands.ROOT)}
        environment.pop("JAX_PLATFORMS", None)
        environment |= {"JAX_PLATFORMS": platforms} if platforms else {}
        done = subprocess.run(
            ["bash", "-c", f'{limit}; exec "$0" -c "$1"', sys.executable, code],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], rf"\Aerror [^\n]*: .*{message}")

    def test_python_without_docstrings(self):
        code = "from xlm.experiment import schema; schema.checked(schema.default_config())"
        environment = {**processes.environment(), "PYTHONOPTIMIZE": "2"}
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=commands.ROOT, check=True)


class SignalTest(parameterized.TestCase):
    @parameterized.parameters(
        # As numba's dispatcher does, for an exception that a signal raised under it.
        ("SIGINT", "hide()", 130),
        ("SIGINT", "In(); time.sleep(9)", 130),
        ("SIGTERM", "In(); time.sleep(9)", 143),
    )
    def test_a_signal_ends_a_command_in_a_line_wherever_it_comes(self, name, line, status):
        code = (
            "import os, signal, time; from xlm.common import entry_point\n"
            # Ignored where a shell has started the tests in the background.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "class In:\n"
            f"    def __del__(self): signal.raise_signal(signal.{name})\n"
            "def hide():\n"
            f"    try: signal.raise_signal(signal.{name})\n"
            "    except KeyboardInterrupt: raise SystemError('an exception set') from None\n"
            f"def main(_): {line}\n"
            "entry_point.run(main, required=())"
        )
        environment = {**processes.environment(), "PYTHONPATH": str(commands.ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(
            done.stderr, r"\Aerror: \w+; the same command resumes what it has saved\n\Z"
        )


class WorkdirTest(parameterized.TestCase):
    @parameterized.parameters("run[1]", "a/b*", "new\nline", "\x1b[0m")
    def test_paths_that_runs_cannot_have_are_refused_at_the_start(self, workdir):
        commands.load("build_vocab")
        arguments = (f"--workdir={workdir}",)
        printed = io.StringIO()
        with (
            commands.parsed("build_vocab", *arguments),
            contextlib.redirect_stderr(printed),
            self.assertRaises(SystemExit) as raised,
        ):
            entry_point.parse(["build_vocab", *arguments])
        self.assertEqual(raised.exception.code, entry_point.EXIT_USER_ERROR)
        self.assertRegex(printed.getvalue(), r"\Aerror [^\n]*: --workdir is '[^\n]*choose another")
