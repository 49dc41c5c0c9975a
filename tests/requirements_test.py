"""Imports of all files, also those in functions, against the requirements of their environment."""

import ast
import functools
import importlib.metadata
import pathlib
import re
import sys
from collections.abc import Iterable

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = {
    path: path.relative_to(ROOT).parts[0].removesuffix(".py")
    for path in ROOT.rglob("*.py")
    if not path.relative_to(ROOT).parts[0].startswith((".", "runs"))
}  # -> their room
ROOMS = [path for path, room in FILES.items() if room != "tests"]
# What is run in each environment; what these files import belongs to it as well.
RUN = {
    "requirements.txt": ROOMS,
    "requirements-dev.txt": list(FILES),
    "requirements-datasets.txt": [ROOT / "xlm/cli/fetch_text.py"],
    "requirements-launch.txt": list(ROOT.glob("xlm/launch/*.py")),
    "requirements-beam.txt": [ROOT / "xlm/cli/count_text.py", *ROOT.glob("[a-z]*/**/*_beam*.py")],
}
# Imported where an error names these requirements (xlm/common/packages.py).
ELSEWHERE = {
    "apache_beam": "requirements-beam.txt",
    "xmanager": "requirements-launch.txt",
    "torch": "requirements-dev.txt",
    "transformers": "requirements-dev.txt",
}
# Required although no file imports them.
NOT_IMPORTED = {
    "requirements.txt": {
        "tensorflow",  # for machines that tensorflow-cpu is not built for
        "tensorflow-cpu",  # for the others
        "importlib-resources",  # tensorflow-datasets imports it, and does not require it
        "conllu",  # the same, for xtreme_pos
    },
    # tensorflow-datasets imports them to prepare some datasets, and does not require them.
    "requirements-datasets.txt": {"apache-beam", "mwparserfromhell", "mwxml"},
    "requirements-dev.txt": {"pytest-xdist", "ruff", "mypy"},  # run by scripts/
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(file: str, *, included: bool = True) -> set[str]:
    """Packages that a requirements file names, and those of the file that it includes."""
    text = (ROOT / file).read_text(encoding="utf-8")
    others = re.findall(r"^-r (\S+)", text, re.M) if included else ()
    own = set(map(canonical, re.findall(r"^\w[\w.-]*", text, re.M)))
    return own.union(*map(required, others))


@functools.cache
def imports(path: pathlib.Path) -> set[str]:
    """Dotted names that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules(paths: Iterable[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Modules of others that files import, or files of ours that they import -> one of these."""
    found, seen, waiting = {}, set(), list(paths)
    while waiting:
        if (path := waiting.pop()) in seen:
            continue
        seen.add(path)
        for name in imports(path):
            ours, module = ROOT / name.replace(".", "/"), name.split(".")[0]
            waiting += FILES.keys() & {ours.with_suffix(".py"), ours.parent.with_suffix(".py")}
            if module not in sys.stdlib_module_names and module not in FILES.values():
                found[module] = path
    return found


DISTRIBUTIONS = importlib.metadata.packages_distributions()


def packages(module: str) -> set[str]:
    """Packages that have a module; where none is installed, one of its name."""
    return set(map(canonical, DISTRIBUTIONS.get(module, [module])))


class RequirementsTest(parameterized.TestCase):
    def test_every_environment_is_known(self):
        self.assertEqual({path.name for path in ROOT.glob("requirements*.txt")}, set(RUN))

    @parameterized.parameters(*RUN)
    def test_what_is_imported_is_required(self, file):
        for module, path in modules(RUN[file]).items():
            there = required(file) | required(ELSEWHERE.get(module, file))
            self.assertNotEmpty(packages(module) & there, f"{path} imports {module}")

    @parameterized.parameters(*RUN)
    def test_what_is_required_is_imported_or_excepted(self, file):
        imported = set().union(*map(packages, modules(RUN[file])))
        named, excepted = required(file, included=False), NOT_IMPORTED.get(file, set())
        self.assertEmpty(named - imported - excepted)
        self.assertEmpty(excepted - named)

    def test_rooms_import_nothing_of_tests(self):
        for path in ROOMS:
            found = [
                one for one in imports(path) if re.match(r"(tests|pytest|absl\.testing)\b", one)
            ]
            self.assertEmpty(found, path)


if __name__ == "__main__":
    absltest.main()
