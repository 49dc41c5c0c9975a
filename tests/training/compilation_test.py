"""The cache of compiled programs, and flags of XLA."""

import os
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest

from tests import folders
from xlm.experiment import model
from xlm.experiment.schema import default_config
from xlm.training import compilation


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
        # A flag that it does not know would end the process when the backend starts.
        name, _, value = compilation._DETERMINISTIC.removeprefix("--").partition("=")
        lowered = jax.jit(lambda x: x).lower(jnp.zeros(()))
        lowered.compile(compiler_options={name: value == "true"})
        with self.assertRaisesRegex(jax.errors.JaxRuntimeError, "No such compile option"):
            lowered.compile(compiler_options={f"{name}_or_not": True})
