"""What each command imports at most, in a process of its own: imports follow use."""

import pathlib
import tempfile

from absl.testing import parameterized

from tests import commands, processes
from xlm.cli.main import VERBS

# Packages that take long to import, or that an installation may lack.
_HEAVY = (
    "apache_beam", "flax", "fontTools", "gguf", "jax", "matplotlib", "numba", "optax", "orbax",
    "sacrebleu", "safetensors", "scipy", "seqeval", "sklearn", "tensorboardX", "tensorflow",
    "tensorflow_datasets", "tiktoken", "tokenizers", "torch", "transformers", "pyarrow",
)  # fmt: skip
_VOCABULARY = {"numba", "fontTools", "scipy"}
_TRAINING = {"jax", "flax", "optax", "orbax", "scipy"}
_MODELS = {"safetensors"}
_COMMANDS = {
    "build-vocab": (("xlm.experiment.vocabulary",), _VOCABULARY),
    "clean": ((), _VOCABULARY),
    "count": ((), _VOCABULARY),
    "inspect": ((), _VOCABULARY),
    "prepare": (("xlm.experiment.rows",), {"scipy"}),
    "report": ((), {"jax"}),
    "train": (("xlm.experiment.training",), _TRAINING | _MODELS),
    "finetune": ((), _TRAINING | _MODELS),
    "predict": ((), _TRAINING | _MODELS),
    "translate": ((), _TRAINING | _MODELS),
    "import": ((), _MODELS),
    "export-tokenizer": ((), set()),
}


class ImportsTest(parameterized.TestCase):
    @parameterized.parameters(*_COMMANDS)
    def test_a_command_imports_only_what_it_uses(self, verb):
        stage, allowed = _COMMANDS[verb]
        modules = (f"xlm.cli.{VERBS[verb]}", *stage)
        code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
        done = processes.run_python("-c", code)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEmpty(set(done.stdout.split()) & set(_HEAVY) - allowed)

    def test_recipes_are_found_where_only_packages_are_on_the_path(self):
        """As of the command `xlm` after pip install -e."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("xlm", "vocap", "knn_sampling", "input_pipeline"):
                pathlib.Path(folder, name).symlink_to(commands.ROOT / name)
            code = (
                "import sys; sys.path[:0] = sys.argv[1:]; import xlm.experiment; "
                "import configs.quickstart; print(configs.__path__[0])"
            )
            done = processes.run_python("-P", "-c", code, folder, cwd=folder, PYTHONPATH="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.strip(), str(commands.ROOT / "configs"))
