"""Files, names and links of the documentation exist, and the manual builds as a site."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from absl.testing import absltest, parameterized

from tests import folders, prose
from xlm.cli.main import VERBS
from xlm.experiment import schema, task_schema

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Without the folder of results, which appears once a README command has run.
ROOMS = sorted(
    path.name
    for path in ROOT.iterdir()
    if path.is_dir() and path.name[0] != "." and path.name != "runs"
)
# Paths below a room, and commands, but no working directories, data or other projects.
_PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join(ROOMS)})/[\w./-]*\.(?:py|md|sh|txt|png|tsv))\b")
_SCRIPT = re.compile(r"\bpython3? ([a-z_]+\.py)\b")
_MODULE = re.compile(r"\bpython3? -m ((?:benchmarks|research|xlm.launch|vocap)\.[a-z_]+)")
_TOOL = re.compile(r"\b((?:benchmarks)\.[a-z_]+)\b")
_VERB = re.compile(r"`xlm ([a-z][a-z-]*)")
_PLACEHOLDER = re.compile(r"/(X|mine)\.py$")
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_ANCHOR = re.compile(r"\]\(([^)#]*)#([^)]+)\)")


def texts() -> Iterator[tuple[pathlib.Path, str]]:
    """Markdown files, shell scripts, and the docstrings and comments of Python files."""
    for path in sorted(
        [
            *ROOT.glob("*.md"),
            *ROOT.glob("*/*.md"),
            *ROOT.glob("docs/*/*.md"),
            *ROOT.glob("scripts/*.sh"),
        ]
    ):
        yield path, path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.py"), *ROOT.glob("[a-z]*/**/*.py")]):
        if "tests" in path.parts:  # placeholders in names
            continue
        yield path, path.read_text(encoding="utf-8")


def exists(name: str) -> bool:
    return (ROOT / name).exists()


class NamesTest(parameterized.TestCase):
    def test_files_and_commands(self):
        missing = []
        for path, text in texts():
            names = set(_PATH.findall(text)) | set(_SCRIPT.findall(text))
            names = {name for name in names if not _PLACEHOLDER.search(name)}
            unknown = set(_VERB.findall(text)) - set(VERBS) if path.suffix == ".md" else ()
            missing += [(str(path.relative_to(ROOT)), f"xlm {verb}") for verb in unknown]
            modules = set(_MODULE.findall(text)) | set(_TOOL.findall(text))
            missing += [(str(path.relative_to(ROOT)), name) for name in names if not exists(name)]
            missing += [
                (str(path.relative_to(ROOT)), module)
                for module in modules
                if not exists(module.replace(".", "/") + ".py")
            ]
        self.assertEmpty(missing)

    def test_tests(self):
        sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.py")]
        defined = set(re.findall(r"def (test_\w+)\(", "".join(sources)))
        for path, text in texts():
            named = set(re.findall(r"`(test_\w+)`", text)) if path.suffix == ".md" else set()
            self.assertEmpty(named - defined, path.name)

    def test_links(self):
        for path, text in texts():
            if path.suffix != ".md":
                continue
            for link in _LINK.findall(text):
                if not link.startswith(("http://", "https://")):
                    self.assertTrue((path.parent / link).exists(), f"{path.name}: {link}")
            for link, anchor in _ANCHOR.findall(text):
                if link.startswith("http"):
                    continue
                page = (path.parent / link).read_text("utf-8") if link else text
                headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
                self.assertIn(anchor, slugs, f"{path.name}: {link}#{anchor}")

    def test_keys_of_configs(self):
        # Flags --config.section.key of pre-training and fine-tuning.
        families = (schema.PRETRAINING, task_schema.FINE_TUNING, task_schema.TRANSLATION)
        known = {key for family in families for keys in family.values() for key in keys}
        for path, text in texts():
            if path.suffix != ".md":
                continue
            for key in re.findall(r"--config\.([a-z_.]+[a-z_])", text):
                self.assertIn(key.rpartition(".")[2], known, f"{path.name}: --config.{key}")

    def test_the_reference_of_keys_is_up_to_date(self):
        self.assertEqual((ROOT / "docs" / "keys.md").read_text(encoding="utf-8"), schema.page())


# Pages over the limits of length or mean sentence, and their sizes. Only remove entries.
TOO_LONG: dict[str, tuple[int, float]] = {}


class PagesTest(absltest.TestCase):
    def test_every_page_is_in_the_navigation_once(self):
        nav = (prose.ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
        named = Counter(re.findall(r"([\w/]+\.md)$", nav, re.M))
        docs = prose.ROOT / "docs"
        for page in [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]:
            uri = page.relative_to(docs).with_suffix(".md").as_posix()
            self.assertEqual(named.pop(uri, 0), 1, f"name {uri} once below nav in mkdocs.yml")
        self.assertEmpty(named, "pages that mkdocs.yml names and docs/ lacks")

    def test_every_verb_is_in_the_reference(self):
        page = (prose.ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
        for verb, module in VERBS.items():
            self.assertIn(f'::: xlm.cli.{module}\n    options: {{heading: "xlm {verb}"', page)

    def test_pages_and_sentences_are_short(self):
        for page in prose.pages():
            name = page.relative_to(prose.ROOT).as_posix()
            lines, words = prose.measured(page)
            most = TOO_LONG.get(name, (prose.MOST_LINES, prose.MOST_WORDS))
            with self.subTest(name):
                if name not in prose.GENERATED:
                    self.assertLessEqual(lines, most[0], "lines: split the page, or shorten it")
                self.assertLessEqual(words, most[1], "words of the mean sentence: shorten some")
                is_fine = lines <= prose.MOST_LINES and words <= prose.MOST_WORDS
                self.assertFalse(is_fine and name in TOO_LONG, "take it out of TOO_LONG")

    def test_sentences(self):
        text = (
            "# No\n\nOne `a b c` two. See [here](x.md), Eq. 4: [B].\n\n- One two\n  five!\n- six\n"
        )
        found = prose.sentences(text + "\n| a. b. |\n\n```\nno. no.\n```\nIt prints this:\n")
        self.assertEqual([len(words) for words in found], [3, 5, 3, 3])


@absltest.skipUnless(importlib.util.find_spec("mkdocs"), "mkdocs is not installed: the extra docs")
class SiteTest(folders.FolderTest):
    def test_it_is_built_without_a_warning_and_asks_nothing_of_the_network(self):
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={self.folder}"],
            cwd=prose.ROOT, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(prose.ROOT), "NO_MKDOCS_2_WARNING": "1"},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        built = {path: path.read_text("utf-8") for path in self.folder.rglob("*.html")}
        loaded = r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>"
        for path, text in built.items():
            self.assertEmpty(re.findall(loaded, text), path)
        page = self.html(built, "architecture.html")
        self.assertIn('href="repository/research/index.html"', page)  # outside of docs
        self.assertIn("knn_softmax_loss", self.html(built, "reference/python.html"))
        self.assertIn('href="tutorials/quickstart.html"', self.html(built, "index.html"))
        self.assertIn("vocap.build", self.html(built, "tutorials/quickstart.html"))
        self.assertTrue((self.folder / "search/search_index.js").exists())

    def html(self, built: dict[pathlib.Path, str], name: str) -> str:
        return built[self.folder / name]
