"""Exclusion of the sentences of test sets from training text."""

import itertools
import logging
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from input_pipeline import text_files
from input_pipeline.text_files import Document

_Row = tuple[str, ...]
# A word's label, such as NOUN, O or B-PER; a column of nothing but labels is not text.
_TAG = re.compile(r"[A-Z_]+(-[A-Za-z]+)?")


def letters(sentence: str) -> str:
    """Normalise a sentence for comparison: fold case and width, drop spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LMN")


def sentences_of(path: pathlib.Path) -> Iterator[str]:
    """Yield the sentences of a test set, whose format is inferred from its lines.

    For a file of tagged words (a word, a tab and a label such as NOUN or B-PER on each line, a
    blank line after a sentence) a sentence is its words joined without spaces; for any other file,
    a line or a tab-separated cell.

    Raises:
      ValueError: the file is malformed, see `text_files.read_lines`.
    """
    rows = [line.split("\t") for line in text_files.read_lines(path)]
    if not all(row == [""] or (len(row) == 2 and _TAG.fullmatch(row[1])) for row in rows):
        yield from itertools.chain.from_iterable(rows)
        return
    for has_words, sentence in itertools.groupby(rows, key=lambda row: len(row) == 2):
        if has_words:
            yield "".join(word for word, _ in sentence)


class Exclusion:
    """Set of the sentences of test sets, compared by their letters, marks and digits only."""

    def __init__(self, paths: Iterable[pathlib.Path]):
        """Read the files at `paths`, see `sentences_of`.

        Raises:
          ValueError: a file is malformed, see `text_files.read_lines`.
        """
        self._sentences = {
            letters(sentence) for path in paths for sentence in sentences_of(path)
        } - {""}

    def __contains__(self, sentence: str) -> bool:
        return bool(self._sentences) and letters(sentence) in self._sentences

    def of_documents(self, language: str, documents: Sequence[Document]) -> list[Document]:
        """Return the documents of a language without excluded sentences."""
        kept = [[sentence for sentence in one if sentence not in self] for one in documents]
        _report(language, documents, kept)
        return [document for document in kept if document]

    def of_rows(self, name: str, blocks: Sequence[list[_Row]]) -> list[list[_Row]]:
        """Return blocks of parallel text without the rows that hold an excluded sentence."""
        kept = [[row for row in one if not any(cell in self for cell in row)] for one in blocks]
        _report(name, blocks, kept)
        return [block for block in kept if block]


def _report(name: str, before: Sequence[list], after: Sequence[list]) -> None:
    if found := sum(map(len, before)) - sum(map(len, after)):
        logging.info("%s: %d of %d left out (corpus.exclude)", name, found, sum(map(len, before)))
