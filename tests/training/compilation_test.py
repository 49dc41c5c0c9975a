"""The cache of compiled programs: where it is, and how to have another or none."""

import os
import pathlib
import tempfile
from unittest import mock

import jax
from absl.testing import absltest

from training import compilation


class CompilationTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
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

    def test_the_variable_of_jax_has_precedence(self):
        for value in ("", str(self.folder / "mine")):
            self.environment[compilation.VARIABLE] = value
            compilation.use_cache()
        self.update.assert_not_called()
        self.assertEmpty(list(self.folder.iterdir()))

    def test_without_a_place_there_is_a_warning(self):
        (self.folder / "cache").touch()
        with self.assertLogs(level="WARNING") as logs:
            compilation.use_cache()
        self.update.assert_not_called()
        self.assertIn("JAX_COMPILATION_CACHE_DIR", logs.output[0])


if __name__ == "__main__":
    absltest.main()
