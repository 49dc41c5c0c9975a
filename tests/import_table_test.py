"""Permitted imports of each room, read off the source of every file."""

import ast
import pathlib
from collections.abc import Iterator

from absl.testing import parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Of our own rooms, a room may import these (and itself).
OURS = {
    "vocap":            {"xlm.common", "xlm.interop"},  # the latter to save for transformers
    "knn_sampling":     set(),
    "input_pipeline":   {"xlm.common"},
    "configs":          {"xlm.common", "xlm.experiment", "xlm.interop"},
    "xlm.common":       set(),
    "xlm.models":       {"xlm.common"},
    "xlm.objectives":   {"xlm.models", "xlm.common", "knn_sampling"},
    "xlm.training":     {"xlm.objectives", "xlm.common"},
    "xlm.evaluation":   {"xlm.objectives", "xlm.models", "xlm.training", "xlm.common",
                         "knn_sampling", "input_pipeline", "vocap"},
    "xlm.interop":      {"xlm.common", "vocap"},
    "xlm.experiment":   {"xlm.evaluation", "xlm.training", "xlm.interop", "xlm.objectives",
                         "xlm.models", "xlm.common", "knn_sampling", "input_pipeline", "vocap"},
    "xlm.launch":       {"xlm.common", "configs"},
    "xlm.cli":          {"xlm.experiment", "xlm.evaluation", "xlm.training", "xlm.interop",
                         "xlm.objectives", "xlm.common", "configs", "knn_sampling",
                         "input_pipeline", "vocap"},
    "xlm":              {"xlm.cli"},
}  # fmt: skip
_ALL = set(OURS)
OURS |= {"research": _ALL, "benchmarks": _ALL}

# Of other people's packages that not everyone may import, a room may import these.
THEIRS = {
    "vocap":            {"sentencepiece", "numba", "scipy", "fontTools", "msgspec",
                         "tokenizers"},
    "knn_sampling":     {"jax"},
    "input_pipeline":   {"tensorflow", "tensorflow_datasets", "sentencepiece", "scipy", "pyarrow",
                         "msgspec", "numba", "fontTools"},
    "configs":          {"ml_collections"},
    "xlm.common":       {"apache_beam", "distributed", "markdown_it", "msgspec"},
    "xlm.models":       {"jax", "flax"},
    "xlm.objectives":   {"jax", "flax", "optax"},
    "xlm.training":     {"jax", "flax", "optax", "orbax", "tensorboardX", "wandb", "mlflow",
                         "msgspec"},
    "xlm.evaluation":   {"jax", "msgspec", "sacrebleu", "scipy", "seqeval", "sklearn"},
    "xlm.interop":      {"sentencepiece", "tokenizers", "safetensors", "ml_dtypes", "msgspec",
                         "gguf", "tiktoken", "onnxruntime", "onnxscript", "torch",
                         "transformers"},
    "xlm.experiment":   {"jax", "flax", "msgspec", "ml_collections", "sentencepiece"},
    "xlm.launch":       {"ml_collections", "xmanager"},
    "xlm.cli":          {"jax", "ml_collections", "sentencepiece"},
    "xlm":              set(),
    "research":         {"jax", "matplotlib", "ml_collections", "scipy", "sentencepiece",
                         "tokenizers"},
    "benchmarks":       {"flax", "jax", "matplotlib", "ml_collections", "optax", "orbax",
                         "safetensors", "scipy", "sentencepiece", "tokenizers", "torch",
                         "transformers"},
}  # fmt: skip
RESTRICTED = set().union(*THEIRS.values())

# What one file does for all.
ONLY_IN = {
    # A recording is of parameters as they are on disk, read without the code that is checked by it.
    "orbax": {"xlm/training/checkpoint.py", "benchmarks/recording.py", "benchmarks/small_job.py"},
    "tensorflow_datasets": {"input_pipeline/tfds_text.py"},
    "onnxruntime": {"xlm/interop/onnx_folder.py"},
    "torch": {
        "xlm/interop/onnx_folder.py",
        "xlm/interop/weights.py",
        "benchmarks/hostile_table.py",
    },
    "apache_beam": {"xlm/common/executors.py"},
    "distributed": {"xlm/common/executors.py"},
    "jax.make_mesh": {"xlm/training/sharding.py"},
    "Mesh(": {"xlm/training/sharding.py"},
}


def files_of(room: str) -> list[pathlib.Path]:
    folder = ROOT / room.replace(".", "/")
    found = folder.glob("*.py") if room == "xlm" else folder.rglob("*.py")
    return sorted(path for path in found if path.parent.name != "shipped")  # into other folders


def room_of(module: str) -> str:
    """The room of a module of ours, or the package of a module of others."""
    first, _, rest = module.partition(".")
    second = f"{first}.{rest.partition('.')[0]}"
    return second if second in OURS else first


def imported(tree: ast.AST) -> Iterator[str]:
    """Rooms, and packages of others, that a file imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (room_of(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "relative imports are not read by this test"
            yield from (room_of(f"{node.module}.{alias.name}") for alias in node.names)


def made(tree: ast.AST) -> Iterator[str]:
    """The entries of `ONLY_IN` that a file imports or calls."""
    yield from ONLY_IN.keys() & set(imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "jax.make_mesh":
            yield "jax.make_mesh"
        if isinstance(node, ast.ImportFrom) and node.module == "jax":
            yield from ("jax.make_mesh" for alias in node.names if alias.name == "make_mesh")
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Mesh":
            yield "Mesh("


class ImportTableTest(parameterized.TestCase):
    @parameterized.parameters(*OURS)
    def test_a_room_imports_only_what_it_may(self, room):
        self.assertNotEmpty(files_of(room))
        for path in files_of(room):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            with self.subTest(str(path.relative_to(ROOT))):
                found = set(imported(tree))
                self.assertEmpty(found & set(OURS) - OURS[room] - {room})
                self.assertEmpty(found & RESTRICTED - THEIRS[room])

    @parameterized.parameters(*OURS)
    def test_some_things_are_made_in_few_files(self, room):
        for path in files_of(room):
            name = str(path.relative_to(ROOT))
            for thing in made(ast.parse(path.read_text(encoding="utf-8"))):
                self.assertIn(name, ONLY_IN[thing], f"{thing} in {name}")

    def test_every_room_is_in_the_table(self):
        rooms = {*ROOT.glob("*/__init__.py"), *ROOT.glob("xlm/*/__init__.py")}
        found = {".".join(path.parent.relative_to(ROOT).parts) for path in rooms}
        self.assertEqual(found, set(OURS))
        self.assertEqual(set(OURS), set(THEIRS))
