"""Text that must not be trained on, since something is tested on it."""

import logging
import pathlib
import unicodedata
from collections.abc import Iterable, Sequence

from input_pipeline import text_files
from input_pipeline.text_files import Document

_Row = tuple[str, ...]


def letters(sentence: str) -> str:
    """A sentence without what the same one may differ in: case, spaces, punctuation, width."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LMN")


class Exclusion:
    """The sentences of test sets, compared by their letters, marks and digits alone."""

    def __init__(self, paths: Iterable[pathlib.Path]):
        """Reads the files at `paths`, of which every line, or cell between tabs, is a sentence.

        Raises:
          ValueError: a file is at fault, see `text_files.read_lines`.
        """
        self._sentences = {
            letters(cell)
            for path in paths
            for line in text_files.read_lines(path)
            for cell in line.split("\t")
        } - {""}

    def __contains__(self, sentence: str) -> bool:
        return bool(self._sentences) and letters(sentence) in self._sentences

    def of_documents(self, language: str, documents: Sequence[Document]) -> list[Document]:
        """The documents of a language without the sentences that are excluded."""
        kept = [[sentence for sentence in one if sentence not in self] for one in documents]
        _report(language, documents, kept)
        return [document for document in kept if document]

    def of_rows(self, name: str, blocks: Sequence[list[_Row]]) -> list[list[_Row]]:
        """Blocks of parallel text without the rows that hold an excluded sentence."""
        kept = [[row for row in one if not any(cell in self for cell in row)] for one in blocks]
        _report(name, blocks, kept)
        return [block for block in kept if block]


def _report(name: str, before: Sequence[list], after: Sequence[list]) -> None:
    if found := sum(map(len, before)) - sum(map(len, after)):
        logging.info("%s: %d of %d left out (corpus.exclude)", name, found, sum(map(len, before)))
