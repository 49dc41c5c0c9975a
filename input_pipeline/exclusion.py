"""Exclusion of the sentences of test sets, and of held-out translations, from training text."""

import bisect
import hashlib
import itertools
import logging
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from input_pipeline import text_files
from input_pipeline.sources import Row
from input_pipeline.text_files import Document
from xlm.common.long_lines import LONGEST, cut_line

T = TypeVar("T")
# Shorter sentences, such as "Yes, of course.", are held out and trained on.
_LEAST_BYTES = 24  # of their letters
# A word's label, such as NOUN, B-PER, I-WORK_OF_ART, PRP$, or `` and -LRB- for punctuation. A
# column of labels is not text. Numbers and lower-case words are not labels.
_TAG = re.compile(r"[A-Z][A-Z0-9_$]*([-.:|/+][A-Za-z0-9_$]+)*|-[LR][RCS]B-|[!-/:-@\[-`{-~]{1,2}")


def letters(sentence: str) -> str:
    """Normalise a sentence for comparison: fold case and width, drop spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LMN")


def sentences_of(path: pathlib.Path) -> Iterator[str]:
    """Yield the sentences of a test set; infer its format from its lines.

    Most lines of a file of tagged words have a word, a tab and a label such as NOUN or B-PER, and a
    blank line ends a sentence. Its sentences are words joined without spaces. JSON lines have
    sentences in their texts. In any other file each line or tab-separated cell is a sentence. Raise
    ValueError if the file is malformed.
    """
    file_type = text_files.file_format(path)
    if file_type is not None and file_type[1] == "jsonl":
        yield from text_files.read_sentences(path)
        return
    rows = [line.split("\t") for line in text_files.read_lines(path)]
    # A majority suffices: one odd label must not turn every word into a sentence.
    if 2 * sum(map(_is_tagged_word, rows)) <= sum(map(any, rows)):
        yield from itertools.chain.from_iterable(rows)
        return
    for has_words, sentence in itertools.groupby(rows, key=any):
        if has_words:
            yield "".join(row[0] for row in sentence)


def _is_tagged_word(row: Sequence[str]) -> bool:
    """Return whether cells are a word and its label; several words make a labelled sentence."""
    return len(row) == 2 and " " not in row[0] and _TAG.fullmatch(row[1]) is not None


class Exclusion:
    """Set of the sentences of test sets, compared by their letters, marks and digits only.

    It counts excluded sentences and rows, and cut long lines. Raise as `sentences_of`.
    """

    def __init__(self, paths: Iterable[pathlib.Path]):
        self._sentences = {
            letters(piece)
            for path in paths
            for sentence in sentences_of(path)
            for piece in cut_line(sentence)
        } - {""}
        self._heldout = np.zeros(0, np.uint64)  # sorted hashes
        self._counts = [0, 0, 0]

    def hold_out(self, found: np.ndarray) -> None:
        """Exclude held-out sentences from training text, given their `hashes`."""
        self._heldout = found

    def _is_heldout(self, sentence: str) -> bool:
        wanted = _hash(sentence) if len(self._heldout) else 0
        place = bisect.bisect_left(self._heldout, wanted)
        return wanted in self._heldout[place : place + 1]

    def __contains__(self, sentence: str) -> bool:
        pieces = map(letters, cut_line(sentence)) if self._sentences else ()
        return not self._sentences.isdisjoint(pieces)

    def counted(self, sentences: Iterable[str]) -> Iterator[str]:
        """Yield sentences unchanged, and count the long ones."""
        for sentence in sentences:
            self._counts[2] += len(sentence) > LONGEST
            yield sentence

    def of_block(self, sentences: Document, *, is_text: bool = True) -> Document:
        """Return the sentences to keep; not `is_text` for parallel text, which has been split."""
        kept = [one for one in sentences if one not in self]
        if is_text:
            kept = list(itertools.filterfalse(self._is_heldout, kept))
        return self._counted(sentences, kept)

    def has(self, row: Row) -> bool:
        return any(cell in self for cell in row)

    def of_rows(self, rows: Sequence[Row], *, is_heldout: bool) -> list[Row]:
        kept = [row for row in rows if not self.has(row)]
        if not is_heldout:
            kept = [row for row in kept if not any(map(self._is_heldout, row))]
        return self._counted(rows, kept)

    def tally(self) -> tuple[int, int, int]:
        """Return counts since the last call: sentences and rows seen, kept, and cut as long."""
        came, kept, num_long = self._counts
        self._counts = [0, 0, 0]
        return came, kept, num_long

    def _counted(self, came: Sequence[T], kept: list[T]) -> list[T]:
        self._counts[0] += len(came)
        self._counts[1] += len(kept)
        return kept


def hashes(sentences: Iterable[str]) -> np.ndarray:
    """Return the sorted hashes of sentences, [n] uint64, without short ones."""
    return np.unique(np.fromiter(filter(None, map(_hash, sentences)), np.uint64))


def joined(found: Iterable[np.ndarray]) -> np.ndarray:
    """Return sorted hashes of all of `found`, each once."""
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))


def _hash(sentence: str) -> int:
    """Return a 64-bit hash of a sentence's letters; 0 for a short sentence."""
    text = letters(sentence).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big") if len(text) >= _LEAST_BYTES else 0


def log_tally(
    name: str, came: int, kept: int, num_long: int, *,
    reason: str = "corpus.exclude, held-out translations",
) -> None:  # fmt: skip
    """Log how many sentences were left out and lines cut; see `Exclusion.tally`."""
    if num_long:
        message = "%s: lines of more than %d characters, cut at ends of sentences and spaces: %d"
        logging.warning(message, name, LONGEST, num_long)
    if came > kept:
        logging.info("%s: %d of %d left out (%s)", name, came - kept, came, reason)
