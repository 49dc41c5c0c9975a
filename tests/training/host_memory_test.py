"""Page faults of arrays that are made and dropped, which kept memory does not cost."""

import pathlib
import platform
import subprocess
import sys
import unittest
from importlib import metadata, util
from unittest import mock

import jax
from absl.testing import absltest, parameterized

from tests import commands, processes
from xlm.training import compilation

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of an array that glibc gives back to the kernel by default, and larger than its padding here.
PAGES = 25_000
PROGRAM = f"""
import resource, sys, threading
from xlm.training import compilation

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    # As in XLA, in a thread that has not allocated before.
    thread = threading.Thread(target=lambda: bytes(range(256)) * {PAGES * 4096 // 256})
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

is_kept = "keep" in sys.argv and compilation.keep_freed()
faults()
print(is_kept, faults())
"""


@unittest.skipIf(platform.libc_ver()[0] != "glibc", "the C library is not glibc")
class KeepFreedTest(absltest.TestCase):
    def run_program(self, *arguments: str, **variables: str) -> tuple[bool, int]:
        """Whether memory is kept, and the page faults of the second of two arrays."""
        environment = {**processes.environment(), **variables}
        for name in set(compilation.MALLOC_VARIABLES) - set(variables):
            environment.pop(name, None)
        command = [sys.executable, "-c", PROGRAM, *arguments]
        found = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr)
        is_kept, faults = found.stdout.split()
        return is_kept == "True", int(faults)

    def test_memory_is_used_again(self):
        given_back = self.run_program()[1]
        # Huge pages would make it fewer, but not as few as no new memory.
        self.assertGreater(given_back, 10)
        is_kept, faults = self.run_program("keep")
        self.assertTrue(is_kept)
        self.assertLess(faults, given_back / 10)

        # What the user has set stays.
        is_kept, faults = self.run_program("keep", MALLOC_TOP_PAD_="131072")
        self.assertFalse(is_kept)
        self.assertGreater(faults, 10)


class BackendTest(parameterized.TestCase):
    @parameterized.parameters(
        # JAX_PLATFORMS, whether there is a plugin, whether there is libtpu
        ("cpu", True, True, True),
        ("cpu,cuda", True, False, True),
        ("cuda", False, False, False),
        ("", False, False, True),
        ("", True, False, False),
        ("", False, True, False),
    )
    def test_cpu_backend(self, platforms, has_plugin, has_libtpu, expected):
        plugins, libtpu = ["xla_cuda"] * has_plugin, "spec" if has_libtpu else None
        self.addCleanup(jax.config.update, "jax_platforms", jax.config.jax_platforms)
        jax.config.update("jax_platforms", platforms)
        with (
            mock.patch.object(metadata, "entry_points", return_value=plugins),
            mock.patch.object(util, "find_spec", return_value=libtpu),
        ):
            self.assertEqual(compilation.is_of_cpu(), expected)

    @parameterized.parameters(
        ("train", "quickstart.py:runlocal", True), ("evaluate", "quickstart.py:runlocal", True),
        ("finetune", "finetune/xnli.py", True), ("predict", "finetune/tatoeba.py", True),
        ("predict", "finetune/tatoeba.py", False),
    )  # fmt: skip
    def test_commands_keep_memory_on_cpus_alone(self, command, config, is_of_cpu):
        self.enter_context(mock.patch.object(compilation, "is_of_cpu", return_value=is_of_cpu))
        keep_freed = self.enter_context(mock.patch.object(compilation, "keep_freed"))
        flags = f"--config=configs/{config}", "--workdir=/dev/null"  # where they end with an error
        self.assertEqual(commands.execute(command, *flags).returncode, 2)
        self.assertEqual(keep_freed.call_count, int(is_of_cpu))
