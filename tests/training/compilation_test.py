"""Compilation cache, XLA flags, kept memory, and counted products."""

import os
import pathlib
import platform
import subprocess
import sys
import unittest
from importlib import metadata, util
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from jax.sharding import PartitionSpec as P

from tests import commands, folders, processes
from xlm.experiment import model
from xlm.experiment.schema import default_config
from xlm.training import compilation
from xlm.training.flops import matmul_flops
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh


class CompilationTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.update = self.enter_context(mock.patch.object(jax.config, "update"))
        self.environment = self.enter_context(mock.patch.dict(os.environ))
        self.environment.pop(compilation.VARIABLE, None)
        self.environment["XDG_CACHE_HOME"] = str(self.folder / "cache")

    def test_where_a_person_expects_it(self):
        compilation.use_cache()
        expected = self.folder / "cache" / "vocap" / "compiled"
        self.update.assert_called_once_with("jax_compilation_cache_dir", str(expected))
        self.assertTrue(expected.is_dir())
        self.environment.update(XDG_CACHE_HOME="", HOME=str(self.folder))
        compilation.use_cache()
        self.assertTrue((self.folder / ".cache" / "vocap" / "compiled").is_dir())

    def test_jax_has_precedence_and_no_place_is_a_warning(self):
        for value in ("", str(self.folder / "mine")):
            self.environment[compilation.VARIABLE] = value
            compilation.use_cache()
        self.assertEmpty(list(self.folder.iterdir()))
        (self.folder / "cache").touch()
        del self.environment[compilation.VARIABLE]
        with self.assertLogs(level="WARNING") as logs:
            compilation.use_cache()
        self.update.assert_not_called()
        self.assertIn("JAX_COMPILATION_CACHE_DIR", logs.output[0])


class DeterministicTest(absltest.TestCase):
    def test_flags_of_the_caller_are_kept(self):
        both, off = (
            "--xla_a=1 --xla_gpu_deterministic_ops=true",
            "--xla_gpu_deterministic_ops=false",
        )
        for given, expected in (("--xla_a=1", both), (both, both), (off, off)):
            with mock.patch.dict(os.environ, XLA_FLAGS=given):
                compilation.use_deterministic_operations()
                self.assertEqual(os.environ["XLA_FLAGS"], expected)

    def test_commands_set_it_if_the_config_says_so(self):
        config = default_config()
        with mock.patch.dict(os.environ, {"XLA_FLAGS": "", compilation.VARIABLE: ""}):
            model.set_up_compilation(config)
            self.assertEqual(os.environ["XLA_FLAGS"], "")
            config.train.deterministic = True
            model.set_up_compilation(config)
            self.assertIn("deterministic_ops=true", os.environ["XLA_FLAGS"])

    def test_xla_knows_it(self):
        # An unknown flag would end the process at the start of the backend.
        name, _, value = compilation._DETERMINISTIC.removeprefix("--").partition("=")
        lowered = jax.jit(lambda x: x).lower(jnp.zeros(()))
        lowered.compile(compiler_options={name: value == "true"})
        with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "No such compile option"):
            lowered.compile(compiler_options={f"{name}_or_not": True})


ROOT = pathlib.Path(__file__).resolve().parents[2]
# An array that glibc returns to the kernel by default, and larger than its padding here.
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
        """Return whether memory is kept, and the page faults of the second of two arrays."""
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
        # Huge pages cause fewer faults, but more than kept memory.
        self.assertGreater(given_back, 10)
        is_kept, faults = self.run_program("keep")
        self.assertTrue(is_kept)
        self.assertLess(faults, given_back / 10)

        # The user's setting stays.
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


X, W = jnp.ones((3, 5)), jnp.ones((5, 5))
ONE = 2 * 3 * 5 * 5


def count(function, *args) -> float:
    return matmul_flops(jax.jit(function).trace(*args).jaxpr)


class FlopsTest(parameterized.TestCase):
    def test_products(self):
        self.assertEqual(count(lambda x, w: jnp.tanh(x @ w) + x, X, W), ONE)
        batched = jnp.ones((7, 3, 5)), jnp.ones((7, 5, 2))
        self.assertEqual(count(jnp.matmul, *batched), 2 * 7 * 3 * 5 * 2)
        self.assertEqual(count(lambda x: x + x, X), 0)
        # Gradients add two products for w and one for x; the first x needs none.
        loss = lambda w, x: ((x @ w) @ w).sum()  # noqa: E731
        self.assertEqual(count(jax.grad(loss), W, X), (2 + 3) * ONE)

    @parameterized.parameters(True, False)
    def test_loops_of_known_length(self, scan):
        def repeated(x, w):
            if scan:
                return jax.lax.scan(lambda x, _: (x @ w, None), x, length=4)[0]
            return jax.lax.fori_loop(0, 4, lambda _, x: x @ w, x)

        self.assertEqual(count(repeated, X, W), 4 * ONE)

    def test_the_costliest_branch(self):
        def branches(i, x, w):
            return jax.lax.switch(i, [lambda: x, lambda: x @ w @ w, lambda: x @ w])

        self.assertEqual(count(branches, 0, X, W), 2 * ONE)

    def test_functions_in_functions(self):
        @jax.custom_vjp
        def product(x, w):
            return x @ w

        product.defvjp(lambda x, w: (x @ w, w), lambda w, g: (g @ w.T, w))
        self.assertEqual(count(lambda x, w: jax.jit(product)(x, w), X, W), ONE)
        remat = jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w)).sum())
        # Forward, forward again, and the gradient of w.
        self.assertEqual(count(jax.value_and_grad(remat), W, X), 3 * ONE)

    def test_devices_do_not_change_it(self):
        mesh = make_mesh(MeshSettings(4, 1, 2, vocab_multiple=1, rules=()))

        def local(x, w):
            return jax.lax.psum(x @ w, "model")

        split = jax.shard_map(
            local, mesh=mesh, in_specs=(P("data", "model"), P("model")), out_specs=P("data")
        )
        x, w = jnp.ones((8, 6)), jnp.ones((6, 3))
        self.assertEqual(count(split, x, w), count(jnp.matmul, x, w))
