"""Lines and mean sentence of each page of docs: python -m tests.prose."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_LINES, MOST_WORDS = 250, 17.0
# Made from the schema of keys.
GENERATED = {"docs/keys.md"}

_NO_PROSE = re.compile(
    r"^---\n.*?^---\n|^ *```.*?^ *```|<!--.*?-->|^ *\|.*?$|^#+ .*?$|^ *!\[.*?$"
    r"|^ *::: .*?(?=\n\S|\Z)",
    re.M | re.S,
)
# Where a block begins: after an empty line, or with a mark of a list.
_BLOCK = re.compile(r"\n\s*\n|\n\s*(?:[-*+]|\d+\.)\s+|^\s*(?:[-*+]|\d+\.)\s+")
_NO_END = re.compile(r"\b(?:al|Eq|Eqs|Fig|No|vs|e\.g|i\.e|cf|approx)\.$")


def pages() -> list[pathlib.Path]:
    return sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def sentences(text: str) -> list[list[str]]:
    """Words of each sentence of running text; code is one word. No tables, no fragments."""
    found: list[list[str]] = []
    text = re.sub(r"\]\([^)]*\)", "]", _NO_PROSE.sub("\n\n", text))
    text = re.sub(r"`[^`]+`", "code", text)
    for block in _BLOCK.split(text):
        words: list[str] = []
        for word in block.split():
            if re.search(r"\w", word):
                words.append(word)
            if re.search(r"[.!?][\])*_\"']*$", word) and not _NO_END.search(word):
                found, words = [*found, words], []
        if block.rstrip().endswith(":"):
            found.append(words)
    return [words for words in found if len(words) > 1]


def measured(path: pathlib.Path) -> tuple[int, float]:
    """Lines of a page, and words of its mean sentence."""
    text = path.read_text(encoding="utf-8")
    lengths = [len(words) for words in sentences(text)]
    return len(text.splitlines()), sum(lengths) / max(len(lengths), 1)


if __name__ == "__main__":
    for page in pages():
        lines, words = measured(page)
        print(f"{lines:5} lines  {words:5.1f} words  {page.relative_to(ROOT)}")
