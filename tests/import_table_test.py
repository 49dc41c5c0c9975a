"""Who may import whom, read off the source of every file."""

import ast
import pathlib
from collections.abc import Iterator

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Of our own rooms, a room may import these (and itself).
OURS = {
    "artifacts":      set(),
    "vocap":          {"artifacts"},
    "knn_sampling":   set(),
    "input_pipeline": {"artifacts"},
    "models":         set(),
    "objectives":     {"models", "knn_sampling"},
    "training":       {"objectives", "artifacts"},
    "evaluation":     {"objectives", "models", "knn_sampling", "input_pipeline", "training",
                       "vocap", "artifacts"},
    "interop":        {"artifacts", "vocap"},
    "builders":       {"evaluation", "training", "interop", "objectives", "models", "knn_sampling",
                       "input_pipeline", "vocap", "artifacts"},
    "launch":         {"configs", "entry_point"},
    "configs":        set(),
    "entry_point":    set(),
    "build_vocab":    {"builders", "entry_point", "artifacts", "input_pipeline", "vocap"},
    "prepare_data":   {"builders", "entry_point", "artifacts", "input_pipeline"},
    "train":          {"builders", "entry_point", "training"},
    "finetune":       {"builders", "entry_point", "evaluation", "training"},
    "predict":        {"artifacts", "builders", "entry_point", "evaluation", "input_pipeline"},
    "xtreme_table":   {"entry_point", "evaluation"},
    "evaluate":       {"builders", "entry_point", "artifacts", "training", "evaluation",
                       "knn_sampling"},
    "count_text":     {"entry_point", "input_pipeline", "vocap"},
    "estimate_memory": {"builders", "entry_point"},
    "fetch_text":     {"entry_point", "input_pipeline"},
    "export_tokenizer": {"entry_point", "input_pipeline", "interop"},
    "export_model":   {"builders", "entry_point", "interop"},
    "import_model":   {"entry_point", "interop"},
    "prune_model":    {"entry_point", "input_pipeline", "interop"},
    "benchmarks":     {"artifacts", "builders", "entry_point", "evaluation", "input_pipeline",
                       "interop", "knn_sampling", "models", "objectives", "training", "vocap"},
}  # fmt: skip

# Of other people's packages that not everyone may import, a room may import these.
THEIRS = {
    "artifacts":      set(),
    "vocap":          {"sentencepiece", "numba", "scipy", "matplotlib", "fontTools",
                       "apache_beam"},
    "knn_sampling":   {"jax"},
    "input_pipeline": {"tensorflow", "tensorflow_datasets", "sentencepiece"},
    "models":         {"jax", "flax"},
    "objectives":     {"jax", "flax", "optax"},
    "training":       {"jax", "flax", "optax", "orbax"},
    "evaluation":     {"jax", "matplotlib", "scipy", "seqeval", "sklearn"},
    "interop":        {"sentencepiece", "tokenizers", "safetensors", "ml_dtypes"},
    "launch":         {"ml_collections", "xmanager"},
    "builders":       {"jax", "flax", "ml_collections", "sentencepiece"},
    "configs":        {"ml_collections"},
    "entry_point":    set(),
    "build_vocab":    {"ml_collections"},
    "prepare_data":   {"ml_collections"},
    "train":          {"jax", "ml_collections"},
    "finetune":       {"ml_collections"},
    "predict":        {"ml_collections"},
    "xtreme_table":   set(),
    "evaluate":       {"jax", "ml_collections"},
    "count_text":     set(),
    "estimate_memory": {"ml_collections"},
    "fetch_text":     set(),
    "export_tokenizer": set(),
    "export_model":   {"jax", "ml_collections"},
    "import_model":   set(),
    "prune_model":    set(),
    "benchmarks":     {"jax", "matplotlib", "ml_collections", "optax", "orbax", "safetensors",
                       "scipy", "sentencepiece", "tokenizers", "torch", "transformers"},
}  # fmt: skip
RESTRICTED = set().union(*THEIRS.values())

# What one file does for all.
ONLY_IN = {
    # A recording is of parameters as they are on disk, read without the code that is checked by it.
    "orbax": {"training/checkpoint.py", "benchmarks/recording.py"},
    "apache_beam": {"vocap/count_beam.py"},
    "jax.make_mesh": {"training/sharding.py"},
    "Mesh(": {"training/sharding.py"},
}


def files_of(room: str) -> list[pathlib.Path]:
    folder = ROOT / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imported(tree: ast.AST) -> Iterator[str]:
    """Top-level packages that a file imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, "relative imports are not read by this test"
            yield node.module.split(".")[0]


def made(tree: ast.AST) -> Iterator[str]:
    """The entries of `ONLY_IN` that a file imports or calls."""
    yield from {"orbax", "apache_beam"} & set(imported(tree))
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
        rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
        modules = {path.stem for path in ROOT.glob("*.py")}
        self.assertEqual(rooms | modules, set(OURS))
        self.assertEqual(set(OURS), set(THEIRS))


if __name__ == "__main__":
    absltest.main()
