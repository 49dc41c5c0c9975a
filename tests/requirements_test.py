"""Imports of all files, also those in functions, against the dependencies of pyproject.toml."""

import importlib.metadata
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterable

from absl.testing import parameterized

from tests import selection

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = {
    path: path.relative_to(ROOT).parts[0].removesuffix(".py")
    for path in ROOT.rglob("*.py")
    if not path.relative_to(ROOT).parts[0].startswith((".", "runs", "build"))
}  # -> their room
ROOMS = [path for path, room in FILES.items() if room != "tests"]
# What is run with each extra; what these files import belongs to it as well.
RUN = {
    "all": ROOMS,
    "dev": list(FILES),
    "datasets": [ROOT / "xlm/cli/fetch_text.py"],
    "launch": list(ROOT.glob("xlm/launch/*.py")),
    "beam": [ROOT / "xlm/cli/count_text.py"],
    "dask": [ROOT / "xlm/cli/count_text.py"],
}  # fmt: skip
# Imported where an error names these extras (xlm/common/packages.py).
ELSEWHERE = {
    "apache_beam": "beam", "xmanager": "launch", "gguf": "export", "tiktoken": "export",
    "torch": "onnx", "transformers": "onnx", "onnxruntime": "onnx", "onnxscript": "onnx",
    "fsspec": "remote", "upath": "remote", "wandb": "wandb", "mlflow": "mlflow",
    "distributed": "dask", "pyarrow": "parquet", "mkdocs": "docs",
    "matplotlib": "dev",  # research/requirements.txt
}  # fmt: skip
# Required although no file imports them.
NOT_IMPORTED = {
    "all": {
        "tensorflow",  # for machines that tensorflow-cpu is not built for
        "tensorflow-cpu",  # for the others
        "importlib-resources",  # tensorflow-datasets imports it, and does not require it
        "conllu",  # the same, for xtreme_pos
    },
    # tensorflow-datasets imports them to prepare some datasets, and does not require them.
    "datasets": {"apache-beam", "mwparserfromhell", "mwxml"},
    # Run by scripts or pip, and what moto imports.
    "dev": {"pytest-xdist", "ruff", "mypy", "setuptools", "flask", "flask-cors", "boto3"},
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lines(extra: str, *, included: bool = True) -> set[str]:
    """Dependencies of an extra, and of those that it includes."""
    found = set(PROJECT["dependencies"]) if included else set()
    for line in PROJECT["optional-dependencies"][extra]:
        other = re.fullmatch(r"vocap-jax\[(.*)\]", line)
        found |= set().union(*map(lines, other[1].split(","))) if other and included else set()
        found |= set() if other else {line}
    return found


def required(extra: str, *, included: bool = True) -> set[str]:
    """Packages of an extra."""
    return {canonical(re.match(r"[\w.-]+", line)[0]) for line in lines(extra, included=included)}


def modules(paths: Iterable[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Modules of others that files import, or files of ours that they import -> one of these."""
    found, seen, waiting = {}, set(), list(paths)
    while waiting:
        if (path := waiting.pop()) in seen:
            continue
        seen.add(path)
        for name in selection.imported_names(path):
            ours, module = ROOT / name.replace(".", "/"), name.split(".")[0]
            waiting += FILES.keys() & {ours.with_suffix(".py"), ours.parent.with_suffix(".py")}
            if module not in sys.stdlib_module_names and module not in FILES.values():
                found[module] = path
    return found


DISTRIBUTIONS = {
    "upath": ["universal-pathlib"], "gcp_storage_emulator": ["gcp-storage-emulator"],
    **importlib.metadata.packages_distributions(),
}  # fmt: skip


def packages(module: str) -> set[str]:
    """Packages that have a module; where none is installed, one of its name."""
    return set(map(canonical, DISTRIBUTIONS.get(module, [module])))


class RequirementsTest(parameterized.TestCase):
    def test_the_list_for_pip_is_the_same(self):
        given = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
        plain = {line.replace('"', "'") for line in given if not line.startswith("#")}
        self.assertEqual(plain, lines("all"))

    @parameterized.parameters(*RUN)
    def test_what_is_imported_is_required(self, extra):
        for module, path in modules(RUN[extra]).items():
            there = required(extra) | required(ELSEWHERE.get(module, extra))
            self.assertNotEmpty(packages(module) & there, f"{path} imports {module}")

    @parameterized.parameters("all", "dev", "launch", "datasets", "beam", "dask")
    def test_what_is_required_is_imported_or_excepted(self, extra):
        imported = set().union(*map(packages, modules(RUN[extra])))
        named, excepted = required(extra, included=extra == "all"), NOT_IMPORTED.get(extra, set())
        self.assertEmpty(named - imported - excepted)
        self.assertEmpty(excepted - named)
