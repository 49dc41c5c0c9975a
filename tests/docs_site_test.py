"""The manual as a site: all pages in its navigation, links that lead somewhere, short pages."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

from absl.testing import absltest

from tests import folders, prose
from xlm.cli.main import VERBS

# Pages that are longer, or whose mean sentence is, and by how much. Only ever take away from it.
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
