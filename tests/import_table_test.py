"""Permitted imports of each room, read off the source of every file."""

import ast
import pathlib
from collections.abc import Iterator

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Of our own rooms, a room may import these (and itself).
OURS = {
    "common":         set(),
    "vocap":          {"common"},
    "knn_sampling":   set(),
    "input_pipeline": {"common"},
    "models":         set(),
    "objectives":     {"models", "knn_sampling"},
    "training":       {"objectives", "common"},
    "evaluation":     {"objectives", "models", "knn_sampling", "input_pipeline", "training",
                       "vocap", "common"},
    "interop":        {"common", "vocap"},
    "builders":       {"configs", "evaluation", "training", "interop", "objectives", "models",
                       "knn_sampling", "input_pipeline", "vocap", "common"},
    "launch":         {"configs", "common"},
    "configs":        set(),
    "build_vocab":    {"builders", "configs", "common", "input_pipeline", "interop", "vocap"},
    "prepare_data":   {"builders", "configs", "common", "input_pipeline"},
    "train":          {"builders", "common", "training"},
    "finetune":       {"builders", "common", "evaluation", "training"},
    "predict":        {"common", "builders", "evaluation", "input_pipeline", "training"},
    "tools/xtreme_table":   {"common", "evaluation"},
    "evaluate":       {"builders", "common", "training", "evaluation", "knn_sampling", "vocap"},
    "tools/count_text":     {"common", "input_pipeline", "vocap"},
    "tools/estimate_memory": {"builders", "common"},
    "tools/fetch_text":     {"common", "input_pipeline"},
    "tools/export_tokenizer": {"common", "input_pipeline", "interop"},
    "tools/export_model":   {"builders", "common", "interop"},
    "tools/import_model":   {"common", "input_pipeline", "interop"},
    "tools/prune_model":    {"common", "input_pipeline", "interop"},
    "tools/pair_sampling":  {"builders", "common", "evaluation", "input_pipeline"},
    "tools/forgetting":     {"builders", "common", "evaluation", "input_pipeline", "objectives",
                             "training"},
    "tools/score_tokenizer": {"common", "input_pipeline", "interop", "vocap"},
    "tools/pair_weights":   {"builders", "common", "evaluation", "input_pipeline"},
    "research":       {"common", "builders", "configs", "evaluation", "input_pipeline", "interop",
                       "objectives", "training", "vocap"},
    "benchmarks":     {"common", "builders", "configs", "evaluation", "input_pipeline", "interop",
                       "knn_sampling", "models", "objectives", "training", "vocap"},
}  # fmt: skip

# Of other people's packages that not everyone may import, a room may import these.
THEIRS = {
    "common":         {"msgspec"},
    "vocap":          {"sentencepiece", "numba", "scipy", "matplotlib", "fontTools",
                       "apache_beam", "msgspec"},
    "knn_sampling":   {"jax"},
    "input_pipeline": {"tensorflow", "tensorflow_datasets", "sentencepiece", "scipy",
                       "apache_beam", "msgspec"},
    "models":         {"jax", "flax"},
    "objectives":     {"jax", "flax", "optax"},
    "training":       {"jax", "flax", "optax", "orbax", "tensorboardX", "msgspec"},
    "evaluation":     {"jax", "matplotlib", "msgspec", "sacrebleu", "scipy", "seqeval", "sklearn"},
    "interop":        {"sentencepiece", "tokenizers", "safetensors", "ml_dtypes", "msgspec"},
    "launch":         {"ml_collections", "xmanager"},
    "builders":       {"jax", "flax", "msgspec", "ml_collections", "sentencepiece"},
    "configs":        {"ml_collections"},
    "build_vocab":    {"ml_collections"},
    "prepare_data":   {"ml_collections"},
    "train":          {"jax", "ml_collections"},
    "finetune":       {"ml_collections"},
    "predict":        {"ml_collections"},
    "tools/xtreme_table":   set(),
    "evaluate":       {"jax", "ml_collections"},
    "tools/count_text":     set(),
    "tools/estimate_memory": {"ml_collections"},
    "tools/fetch_text":     set(),
    "tools/export_tokenizer": set(),
    "tools/export_model":   {"jax", "ml_collections"},
    "tools/import_model":   set(),
    "tools/prune_model":    set(),
    "tools/pair_sampling":  {"ml_collections"},
    "tools/forgetting":     {"jax", "ml_collections"},
    "tools/score_tokenizer": set(),
    "tools/pair_weights":   {"ml_collections", "sentencepiece"},
    "research":       {"jax", "matplotlib", "ml_collections", "scipy"},
    "benchmarks":     {"flax", "jax", "matplotlib", "ml_collections", "optax", "orbax",
                       "safetensors", "scipy", "sentencepiece", "tokenizers", "torch",
                       "transformers"},
}  # fmt: skip
RESTRICTED = set().union(*THEIRS.values())

# What one file does for all.
ONLY_IN = {
    # A recording is of parameters as they are on disk, read without the code that is checked by it.
    "orbax": {"training/checkpoint.py", "benchmarks/recording.py", "benchmarks/small_job.py"},
    "tensorflow_datasets": {"input_pipeline/tfds_text.py"},
    "apache_beam": {"vocap/count_beam.py", "input_pipeline/preparation_beam.py"},
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
    yield from {"orbax", "apache_beam", "tensorflow_datasets"} & set(imported(tree))
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
                self.assertEmpty(found & {*OURS, "tools"} - OURS[room] - {room})
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
        tools = {f"tools/{path.stem}" for path in ROOT.glob("tools/*.py")} - {"tools/__init__"}
        self.assertEqual(rooms - {"tools"} | modules | tools, set(OURS))
        self.assertEqual(set(OURS), set(THEIRS))


if __name__ == "__main__":
    absltest.main()
