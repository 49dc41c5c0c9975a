"""Names of test files: python -m tests.selection quick|changed.

quick: those that need no jax, and one for each promise that does. changed: those whose imports lead
to a file that differs from the branch `main` of origin, or from the last commit; those that run
whole commands count as importing all.
"""

import ast
import functools
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = sorted(ROOT.glob("tests/**/*_test.py"))
# Of what needs jax: the miniature job from Python, objectives against numpy, an algorithm that
# communicates against itself on one device, stops and resumes, the wheel.
PROMISES = (
    "tests/python_test.py", "tests/objectives/masking_test.py", "tests/knn_sampling/losses_test.py",
    "tests/knn_sampling/blockwise_test.py", "tests/training/loop_stops_test.py",
    "tests/schema_test.py", "tests/wheel_test.py",
)  # fmt: skip
# Too slow for what they check; and whoever changes what they read has the whole suite.
_SLOW = ("tests/malformed_test.py", "tests/end_to_end_test.py")
_RUN_COMMANDS = {ROOT / "tests/commands.py", ROOT / "tests/processes.py"}


@functools.cache
def imported_names(path: pathlib.Path) -> set[str]:
    """Dotted names that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@functools.cache
def imports(path: pathlib.Path) -> tuple[frozenset[pathlib.Path], bool]:
    """Files of ours that a file imports, also in functions, and whether it imports jax."""
    names = imported_names(path)
    places = [ROOT / name.replace(".", "/") for name in names]
    modules = {path.with_suffix(".py") for place in places for path in (place, place.parent)}
    found = filter(pathlib.Path.is_file, modules | {place / "__init__.py" for place in places})
    return frozenset(found), any(name.split(".")[0] in ("jax", "flax") for name in names)


def closure(path: pathlib.Path) -> tuple[set[pathlib.Path], bool]:
    """All files that a file imports, directly or not, itself too; whether one imports jax."""
    seen: set[pathlib.Path] = set()
    waiting, needs_jax = [path], False
    while waiting:
        if (one := waiting.pop()) in seen:
            continue
        seen.add(one)
        others, has_jax = imports(one)
        waiting += others
        needs_jax |= has_jax
    return seen, needs_jax


def quick() -> list[str]:
    light = (path for path in TESTS if not closure(path)[1])
    names = {str(path.relative_to(ROOT)) for path in light} - set(_SLOW)
    return sorted(names | set(PROMISES))


def changed() -> list[str]:
    base = _git("merge-base", "HEAD", "origin/main") or ["HEAD"]
    names = {*_git("diff", "--name-only", base[0]), *_git("ls-files", "-o", "--exclude-standard")}
    files = {ROOT / name for name in names}
    if {ROOT / "tests/conftest.py", ROOT / "pyproject.toml"} & files:
        return [str(path.relative_to(ROOT)) for path in TESTS]
    is_source = any(one.suffix == ".py" and "tests" not in one.parts for one in files)
    found = {"tests/docs_test.py"} if any(one.suffix == ".md" for one in files) else set()
    for path in TESTS:
        reached, _ = closure(path)
        if reached & files or (is_source and reached & _RUN_COMMANDS):
            found.add(str(path.relative_to(ROOT)))
    return sorted(found)


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split() if done.returncode == 0 else []


if __name__ == "__main__":
    print(*{"quick": quick, "changed": changed}[sys.argv[1]](), sep="\n")
