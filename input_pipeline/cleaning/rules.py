"""The rules, applied to blocks of lines, and counts of the text that each takes.

A cleaner rewrites a line until nothing changes, cuts it, then drops it if a later rule says so.
These steps look only at the line. A table of `FATE` drops lines by comparison with others.
"""

import collections
import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.inspection import characters as ch
from input_pipeline.inspection import files, scanning
from input_pipeline.inspection.language_identification import Identifier
from input_pipeline.text_files import Taken
from xlm.common import long_lines

_BLOCK, _LONGEST_DOCUMENT = 1 << 20, 1 << 22  # characters
# Repetitions are bounded, as lines have any length.
_SCRIPTS = re.compile(r"<(script|style)\b[^<>]{0,400}>.{0,9999}?</\1\s{0,9}>", re.IGNORECASE)
_TAGS = re.compile(r"[ \t]{0,9}(?:<[A-Za-z/!][^<>]{0,400}>[ \t]{0,9})+")
_APART = re.compile(r"^\s|\s$|</?(?:br|p|div|li|td|th|tr|h\d|hr|ul|ol|table)\b", re.IGNORECASE)
_ENTITIES = re.compile(r"&#?[A-Za-z0-9]{2,8};")
_ADDRESS = r"(?:[!-;=?-~]+|[^\s<>]+)"  # ASCII if possible: text may follow without a space
_URLS = re.compile(
    rf"[ \t]{{0,9}}(?:(?:[A-Za-z][A-Za-z0-9+.-]{{0,30}})?://{_ADDRESS}|www\.{_ADDRESS}"
    r"|[A-Za-z0-9._%+-]{0,64}@[A-Za-z0-9-]+\.[A-Za-z.]+)"
)
_APOSTROPHES = re.compile(r"(?<=[^\W\d_])['’‘ʼ´`＇](?=[^\W\d_])")
_DIGITS = re.compile(r"(?![0-9])\d")
DROPPING = ("least_letters", "other_script", "other_language", "boilerplate", "repeated_lines",
            "near_copies")  # fmt: skip
# Digest of a line or band of a passage, and the copies that a part keeps; -1 for boilerplate.
FATE = np.dtype([("digest", "i8"), ("kept", "i8")])

Counts = dict[str, Taken]  # by rule


def _without_html(line: str) -> str:
    line = _TAGS.sub(lambda found: " " if _APART.search(found[0]) else "", _SCRIPTS.sub(" ", line))
    return _ENTITIES.sub(lambda found: re.sub(r"\s", " ", html.unescape(found[0])), line)


def _steps(settings: CleaningSettings) -> list[tuple]:
    """Return the rules that rewrite a line: name, test whether it may apply, and change."""
    codes = np.flatnonzero(ch.tables().kinds[: ch.BAD_BYTE] & (ch.CONTROL | ch.INVISIBLE))
    odd = re.compile(f"[{''.join(re.escape(chr(one)) for one in codes)}]")
    mark = "'" if settings.apostrophes == "straight" else "’"
    is_address = re.compile(r"://|www\.|@").search
    every = (
        (settings.html, "html", re.compile("[<&]").search, _without_html),
        (settings.urls, "urls", is_address, lambda line: _URLS.sub("", line)),
        (settings.odd_characters, "odd_characters", odd.search, lambda line: odd.sub("", line)),
        (settings.apostrophes != "keep", "apostrophes", _APOSTROPHES.search,
         lambda line: _APOSTROPHES.sub(mark, line)),
        (settings.digits == "ascii", "digits", _DIGITS.search,
         lambda line: _DIGITS.sub(lambda found: str(unicodedata.digit(found[0])), line)),
    )  # fmt: skip
    return [tuple(step) for is_on, *step in every if is_on]


class Cleaner:
    """The rules for one part of a language; `counts` has the text that they took.

    `table` is a sorted `FATE`. `script` is the number of the language's script, `own` the
    language's number in `model`.
    """

    def __init__(
        self, settings: CleaningSettings, table: np.ndarray, script: int = 0, own: int = 0,
        model: Identifier | None = None,
    ):  # fmt: skip
        self.counts: Counts = collections.defaultdict(Taken)
        self._settings, self._steps = settings, _steps(settings)
        self._script, self._own, self._model = script, own, model
        self._digests = np.append(table["digest"], np.iinfo(np.int64).max)
        self._left: list[int] = np.append(table["kept"], 1 << 62).tolist()

    def blocks(self, marked: Iterable[str]) -> Iterator[tuple[list[str], Any, np.ndarray]]:
        """Yield lines, `scanning.LINE` and code points of the lines that are not "", and fates.

        `marked` comes from `text_files.read_marked`. A fate is an index of `DROPPING`, or -1.
        """
        is_blank, tables = True, ch.tables()
        for lines in map(self._rewritten, _cut(marked)):
            codes = scanning.decode("".join(f"{line}\n" for line in lines).encode())
            rows, letters = np.zeros(len(lines) + 1, scanning.LINE), np.zeros(256, np.int64)
            count, is_blank = scanning.find_lines(
                codes, tables.kinds, tables.scripts, rows, letters, letters[:8].copy(), is_blank
            )
            yield lines, (rows[:count], codes), self._fates(rows[:count], codes)

    def _rewritten(self, lines: list[str]) -> list[str]:
        result = []
        for line in lines:
            new = self._rewrite(line) if line and self._steps else line
            if self._settings.long_lines and len(new) > long_lines.LONGEST:
                self.counts["long_lines"].take(1, 0, new)
                result += long_lines.cut_line(new)
            elif new or not line:
                result.append(new)
        return result

    def _rewrite(self, line: str) -> str:
        before = None
        while line != before:
            before = line
            for name, search, change in self._steps:
                if search(line) and (new := change(line).strip()) != line:
                    self.counts[name].take(1, size(line) - (size(new) if new else 0), line)
                    line = new
        return line

    def _fates(self, rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
        fates = np.full(len(rows), -1)
        if self._model:
            fates[self._model.judge(codes, rows, self._own)[1] >= 0] = 2
        if self._settings.other_script:
            fates[files.is_other_script(rows, self._script)] = 1
        fates[rows["letters"] < self._settings.least_letters] = 0
        return fates

    def kept(self, lines: list[str], scanned: Any, fates: np.ndarray) -> Iterator[str]:
        """Yield the lines of a block that no rule drops, and count the others."""
        keys, owners, numbers = keys_of(scanned, fates, self._settings.near_copies)
        places = np.searchsorted(self._digests, keys)
        of_owners = np.full(len(fates), -1)
        for i in np.flatnonzero(self._digests[places] == keys).tolist():
            left = self._left[places[i]]
            if left <= 0:
                of_owners[owners[i]] = 5 if self._settings.near_copies else 4 + left
            self._left[places[i]] -= left > 0
        found = np.where(fates < 0, of_owners[numbers], fates).tolist()
        i = -1
        for line in lines:
            i += bool(line)
            if line and found[i] >= 0:
                self.counts[DROPPING[found[i]]].take(1, size(line), line)
            else:
                yield line


def keys_of(
    scanned: Any, fates: np.ndarray, of_passages: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the keys that identify copies, and the line or passage of each key, [n] both.

    The third result is the owner of each line: itself, or its passage.
    """
    rows, codes = scanned
    if not of_passages:
        owners = np.flatnonzero(fates < 0)
        return rows["digest"][owners], owners, np.arange(len(rows))
    numbers = np.zeros(len(rows), np.int32)
    count = scanning.find_passages(rows, numbers, files.PASSAGE, files.LONGEST_PASSAGE)
    bands = np.zeros((count, scanning.BANDS), np.int64)
    scanning.minhash_bands(codes, ch.tables().lower, rows, numbers, bands)
    sizes, letters = (np.bincount(numbers, rows[one], count) for one in ("size", "letters"))
    # Tables of numbers have hardly any shingles, so that all would look alike.
    owners = np.flatnonzero((sizes >= files.SHORTEST_PASSAGE) & (8 * letters >= sizes))
    return bands[owners].ravel(), np.repeat(owners, scanning.BANDS), numbers


def _cut(marked: Iterable[str]) -> Iterator[list[str]]:
    """Cut marked lines into blocks, at ends of documents and within very long documents."""
    block: list[str] = []
    length = of_document = 0
    for line in marked:
        block.append(line)
        length += len(line)
        of_document = of_document + len(line) if line else 0
        if of_document >= _LONGEST_DOCUMENT or (length >= _BLOCK and not line):
            yield block
            block, length, of_document = [], 0, 0
    if block:
        yield block


def size(line: str) -> int:
    return len(line.encode()) + 1
