"""The pass over one file: counts and examples of each kind of defect."""

import codecs
import dataclasses
import pathlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from input_pipeline import text_files
from input_pipeline.inspection import characters as ch
from input_pipeline.inspection import language_identification as identification
from input_pipeline.inspection import scanning, tallies
from input_pipeline.inspection.language_identification import Identifier
from xlm.common import artifacts, long_lines

_BLOCK = 4 << 20
_SAMPLE_BYTES = 1 << 20  # of a language, for the language identification
_SAMPLE_FILES = 64
_SAMPLE_PIECE = 1 << 16
_SAMPLE_READ = 32 << 20  # of a compressed file, which cannot be read from the middle
_EXAMPLE_CHARACTERS = 240
_CHECKED_FOR_NFC = 200  # lines of a block
# Documents are cut into passages of about the first size; those below the last are not compared.
PASSAGE, LONGEST_PASSAGE, SHORTEST_PASSAGE = 4096, 1 << 16, 300
MOST_PASSAGES = 1 << 21  # compared of a file, some 300 MB
LENGTH_BINS = 8  # for each doubling of a line's length
EXAMPLES = 5

# Markup, links, and UTF-8 that a program read as cp1252 or latin-1 and wrote as UTF-8 again:
# surely (Ã©, Â·, â€™, Å¡), or as two characters in a row of two or three bytes (Ð¿Ñ€).
_BYTE = rb"(?:\xc2[\x80-\xbf]|\xe2[\x80-\x84][\x80-\xbf]|\xc5[\x92\x93\xa0\xa1\xb8\xbd\xbe]|\xc6\x92|\xcb[\x86\x9c])"  # noqa: E501
_NO_QUOTE = rb"(?:\xc2[\x80-\x9f\xa1-\xaa\xac-\xba\xbc-\xbf]|\xe2\x80[\xa0-\xa2\xb0])"
_LETTER = rb"(?:[\x84-\x9f]|[\xa0-\xaf]%b)%b" % (_BYTE, _BYTE)  # of two or three bytes
_NOT_UNICODE = (
    rb"\xe1\x80(?:\xb9(?!\xe1(?:\x80[\x80-\xaa\xbf]|[\x81\x82]))"
    rb"|[\xb1\xbb](?<!\xe1[\x80-\x82].\xe1\x80.)(?<!\xea\xa9.\xe1\x80.))"
)
_PATTERNS = {
    "html": (rb"<[A-Za-z/!][^<>\n]{0,400}>", rb"&#?[A-Za-z0-9]{2,8};"),
    "urls": (rb"://[^\s<>]+", rb"www\.[^\s<>]+", rb"@[A-Za-z0-9-]+\.[A-Za-z.]+"),
    "mojibake": (
        rb"\xc3(?:[\x82\x83]%b|[\x84\x85]%b|\xa2(?:\xe2\x82\xac|\xc2\x80)%b|%b\xc3%b)"
        % (_BYTE, _NO_QUOTE, _BYTE, _LETTER, _LETTER),
        rb"\xef\xbf\xbd",
    ),
    # Impossible in Unicode, twice in a line: a virama without a consonant after it, or a vowel E or
    # a medial with no letter or sign before it (UTN 11; unicode.org/faq/myanmar.html).
    "zawgyi": (rb"%b[^\n]*?%b" % (_NOT_UNICODE, _NOT_UNICODE),),
}
_ODD = {"bad_utf8": ch.BAD, "control": ch.CONTROL, "invisible": ch.INVISIBLE}


class _Record(msgspec.Struct):
    text: str


@dataclasses.dataclass
class Kind:
    """Lines of one kind: number, bytes, bytes that the remedy takes, and examples."""

    lines: int = 0
    bytes: int = 0
    taken: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Kind") -> None:
        self.lines += other.lines
        self.bytes += other.bytes
        self.taken += other.taken
        self.examples = (self.examples + other.examples)[:EXAMPLES]


@dataclasses.dataclass
class FileReport:
    """Contents of a file. Sizes are bytes of text without spaces around lines, with line ends.

    Attributes:
      lengths: lines by length in characters, `LENGTH_BINS` bins for each doubling.
      letters: letters by script, as in `characters.scripts()`.
      judged: lines that the language identification judged.
      kinds: by name, as in `findings`; "other_language:<code>" for foreign languages.
      fault: why reading stopped before the end, or "".
      lines: `tallies.ROW` of its lines; `kept_share` of `tallies.Tally`.
      passages: digest, size and first line's digest of passages [n, 3]; `bands` [n, BANDS].
    """

    file_bytes: int
    num_bytes: int = 0
    num_lines: int = 0
    num_documents: int = 0
    longest: int = 0
    unreadable: int = 0
    fault: str = ""
    has_mark: bool = False
    kept_share: float = 1.0
    judged: int = 0
    kinds: dict[str, Kind] = dataclasses.field(default_factory=dict)
    lengths: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(256, np.int64))
    letters: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(256, np.int64))
    lines: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, tallies.ROW))
    passages: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3), np.int64))
    bands: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros((0, scanning.BANDS), np.int64)
    )

    def save(self, path: pathlib.Path) -> None:
        arrays = {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        rest = {k: v for k, v in vars(self).items() if k not in arrays}
        text = np.frombuffer(msgspec.json.encode(rest), np.uint8)
        with artifacts.atomic_path(path) as aside:
            np.savez(aside, rest=text, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: pathlib.Path) -> "FileReport":
        with np.load(path) as found:
            arrays = dict(found)
        rest = msgspec.json.decode(arrays.pop("rest").tobytes())
        kinds = {name: Kind(**one) for name, one in rest.pop("kinds").items()}
        return cls(kinds=kinds, **rest, **arrays)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of text: UTF-8, code points, `scanning.LINE` lines, document of each line."""

    data: bytes
    codes: np.ndarray
    lines: np.ndarray
    documents: np.ndarray

    def text(self, number: Any, most: int | None = None) -> str:
        line = self.lines[number]
        codes = self.codes[line["start"] : line["end"]][:most]
        codes = np.where(codes == ch.BAD_BYTE, 0xFFFD, codes)
        return codes.astype("<u4").tobytes().decode("utf-32-le")


class Reader:
    """Blocks of a file, up to any damage; it counts characters, lines and documents."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.report = FileReport(file_bytes=text_files.check_regular(path))
        self._odd = np.zeros(8, np.int64)
        self._is_blank = True

    def blocks(self) -> Iterator[Block]:
        for data in self.pieces():
            yield self.block(data)
        for name, bit in _ODD.items():
            # The remedies take only these characters, but clean.bad_lines takes whole lines.
            if name != "bad_utf8" and name in self.report.kinds:
                self.report.kinds[name].taken = int(self._odd[bit.bit_length() - 1])

    def pieces(self) -> Iterator[bytes]:
        """Yield text in pieces that end with lines; a blank line ends a document."""
        file_type = text_files.file_format(self.path)
        assert file_type
        is_json, opener = file_type[1] == "jsonl", text_files.OPENERS[file_type[2]]
        try:
            with opener(self.path, "rb") as file:
                for data in self._whole_lines(file):
                    yield self.documents_of(data) if is_json else data
        except text_files.DAMAGE as error:
            if getattr(error, "errno", None) is not None:
                raise
            self.report.fault = f"cannot be read to its end ({error})"

    def _whole_lines(self, file: Any) -> Iterator[bytes]:
        rest, left = b"", text_files.max_text_bytes(self.path)
        while piece := file.read(_BLOCK):
            left -= len(piece)
            if left < 0:
                self.report.fault = "holds far more text than a file of its size may"
                break
            end = piece.rfind(b"\n") + 1
            if not end and len(rest) < text_files.MAX_LINE_BYTES:
                rest += piece
                continue
            yield rest + piece[:end]
            rest = piece[end:]
        if rest:
            yield rest

    def documents_of(self, data: bytes) -> bytes:
        """Return the documents of JSON lines as text; count unreadable lines."""
        found = []
        for line in filter(bytes.strip, data.split(b"\n")):
            try:
                text = msgspec.json.decode(line, type=_Record).text
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.report.unreadable += 1
                continue
            sentences = filter(None, map(str.strip, text.split("\n")))
            found.append("\n".join(sentences).encode("utf-8", "surrogatepass") + b"\n\n")
        return b"".join(found)

    def block(self, data: bytes) -> Block:
        tables, report = ch.tables(), self.report
        if not report.num_lines and data.startswith(codecs.BOM_UTF8):
            report.has_mark, data = True, data[len(codecs.BOM_UTF8) :]
        codes = scanning.decode(data)
        lines = np.zeros(data.count(b"\n") + 1, scanning.LINE)
        count, self._is_blank = scanning.find_lines(
            codes, tables.kinds, tables.scripts, lines, report.letters, self._odd, self._is_blank
        )
        lines = lines[:count]
        documents = report.num_documents + np.cumsum(lines["is_first"])
        report.num_documents += int(lines["is_first"].sum())
        report.num_lines += count
        report.num_bytes += int(lines["size"].sum())
        return Block(data, codes, lines, documents)


def learn(
    found: Mapping[str, Sequence[pathlib.Path]], most_files: int = _SAMPLE_FILES
) -> tuple[dict[str, Block], dict[str, int], Identifier]:
    """Sample the files of each language; return samples, numbers of main scripts, identifier."""
    blocks, scripts = {}, {}
    for language, paths in found.items():
        some = paths[:: len(paths) // most_files + 1]
        blocks[language], letters = sample(some, _SAMPLE_BYTES)
        scripts[language] = int(np.argmax(letters[1:])) + 1
    fitted = identification.fit({one: (b.codes, b.lines) for one, b in blocks.items()})
    return blocks, scripts, fitted


def sample(paths: Sequence[pathlib.Path], most: int) -> tuple[Block, np.ndarray]:
    """Return some `most` bytes of text of several files, and letters by script.

    It reads plain files all over, compressed ones from their beginning.
    """
    readers = [Reader(path) for path in paths]
    total = sum(one.report.file_bytes for one in readers)
    pieces: list[bytes] = []
    for reader in readers:
        share = max(most * reader.report.file_bytes // max(total, 1), _SAMPLE_PIECE)
        pieces += _sample_of(reader, share)
    readers[0].report.num_lines = 0
    block = readers[0].block(b"".join(pieces))
    return block, readers[0].report.letters


def _sample_of(reader: Reader, most: int) -> list[bytes]:
    file_type, size = text_files.file_format(reader.path), reader.report.file_bytes
    if file_type and not file_type[2] and size > 2 * most:
        pieces = []
        with text_files.OPENERS[""](reader.path, "rb") as file:
            for start in np.linspace(0, size - _SAMPLE_PIECE, most // _SAMPLE_PIECE).astype(int):
                file.seek(start)
                piece = file.read(_SAMPLE_PIECE)
                begin = piece.find(b"\n") + 1 if start else 0
                pieces.append(piece[begin : piece.rfind(b"\n") + 1])
        return [reader.documents_of(one) for one in pieces] if file_type[1] == "jsonl" else pieces
    pieces, read = [], 0
    for piece in reader.pieces():
        pieces += piece.split(b"\n")
        read += len(piece)
        if read >= _SAMPLE_READ:
            break
    run = max(round(len(pieces) / 1000), 1)  # lines that stay together
    step = max(read / most, 1)
    chosen = np.unique((np.arange(0, len(pieces) / run, step)).astype(int)) * run
    return [b"\n".join(pieces[i : i + run]) + b"\n" for i in chosen]


def inspect(
    path: pathlib.Path, own: int, script: int, identifier: Identifier, compare: bool
) -> FileReport:
    """Inspect a file of the language `own` of the identifier, whose main script is `script`."""
    reader = Reader(path)
    report, tally = reader.report, tallies.Tally()
    passages, bands = [report.passages], [report.bands]
    for block in reader.blocks():
        lines = block.lines
        tally.add(tallies.line_rows(lines["digest"], lines["size"], block.documents))
        length = np.maximum(lines["end"] - lines["start"], 1)
        bins = (np.log2(length) * LENGTH_BINS).astype(int)
        report.lengths += np.bincount(bins, minlength=len(report.lengths))
        report.longest = max(report.longest, int(lines["size"].max(initial=0)))
        _count_kinds(report, block, script)
        judged, foreign = identifier.judge(block.codes, lines, own)
        report.judged += int(judged.sum())
        for other in np.unique(foreign[foreign >= 0]):
            name = f"other_language:{identifier.languages[other]}"
            _add(report, block, name, foreign == other)
        if sum(map(len, passages)) < MOST_PASSAGES:
            for some, found in zip((passages, bands), _passages(block, compare), strict=True):
                some.append(found)
    report.lines, report.kept_share = tally.rows(), tally.kept_share
    report.passages, report.bands = np.concatenate(passages), np.concatenate(bands)
    return report


def inspect_to(
    path: pathlib.Path, part: pathlib.Path, own: int, script: int, identifier: pathlib.Path,
    compare: bool,
) -> None:  # fmt: skip
    """Inspect a file with the identifier of a file; write the report to `part`."""
    inspect(path, own, script, identification.load(identifier), compare).save(part)


def _passages(block: Block, compare: bool) -> tuple[np.ndarray, np.ndarray]:
    lines = block.lines
    numbers = np.zeros(len(lines), np.int32)
    count = scanning.find_passages(lines, numbers, PASSAGE, LONGEST_PASSAGE)
    starts = np.searchsorted(numbers, np.arange(count))
    found = np.zeros((count, 3), np.int64)
    if count:
        place = np.arange(len(lines)) - starts[numbers] + 1  # order counts
        found[:, 0] = np.add.reduceat((lines["digest"] >> 8) * (2 * place + 1), starts)
        found[:, 1] = np.add.reduceat(lines["size"].astype(np.int64), starts)
        found[:, 2] = lines["digest"][starts]
    bands = np.zeros((count, scanning.BANDS), np.int64)
    if compare:
        scanning.minhash_bands(block.codes, ch.tables().lower, lines, numbers, bands)
    is_long = found[:, 1] >= SHORTEST_PASSAGE
    return found[is_long], bands[is_long]


def _count_kinds(report: FileReport, block: Block, script: int) -> None:
    lines, flags = block.lines, block.lines["flags"]
    seen = lines["letters"] + lines["digits"] + lines["others"]
    length = lines["end"] - lines["start"]
    for name, bit in _ODD.items():
        _add(report, block, name, flags & bit > 0)
    for name, patterns in _PATTERNS.items():
        spans = [found.span() for one in patterns for found in re.finditer(one, block.data)]
        begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
        places = np.searchsorted(lines["byte"], begins, side="right") - 1
        matched = np.bincount(places, ends - begins, len(lines)).astype(np.int64)
        _add(report, block, name, matched > 0, None if name in ("mojibake", "zawgyi") else matched)
    _add(report, block, "few_letters", (3 * lines["letters"] < seen) & (seen >= 20))
    _add(report, block, "long_lines", length > long_lines.LONGEST)
    _add(report, block, "other_script", is_other_script(lines, script))
    _add(report, block, "crlf", block.codes[np.minimum(lines["end"], len(block.codes) - 1)] == 13)
    maybe = np.flatnonzero(flags & ch.MAYBE_NOT_NFC)
    checked = maybe[:: len(maybe) // _CHECKED_FOR_NFC + 1]
    is_not = [not unicodedata.is_normalized("NFC", block.text(i)) for i in checked]
    step = len(maybe) / max(len(checked), 1)
    _add(report, block, "not_nfc", np.isin(np.arange(len(lines)), checked[is_not]), scale=step)


def is_other_script(lines: np.ndarray, script: int) -> np.ndarray:
    """Return whether nine tenths of the letters of each line [n] are of one other script."""
    # Votes are the letters of one script minus those of others.
    is_other = (lines["script"] != script) & (lines["script"] > 0)
    return is_other & (lines["votes"] * 5 >= lines["letters"] * 4) & (lines["letters"] >= 5)


def _add(
    report: FileReport, block: Block, name: str, chosen: np.ndarray,
    taken: np.ndarray | None = None, scale: float = 1.0,
) -> None:  # fmt: skip
    """Count lines `chosen` [n] of a kind; the remedy takes `taken` [n] bytes, or all of them."""
    hits = np.flatnonzero(chosen)
    if not len(hits):
        return
    kind = report.kinds.setdefault(name, Kind())
    sizes = block.lines["size"]
    lines, size, of_remedy = (
        round(int(one[hits].sum()) * scale)
        for one in (chosen, sizes, sizes if taken is None else taken)
    )
    wanted = EXAMPLES - len(kind.examples)
    shown = hits[np.unique(np.linspace(0, len(hits) - 1, wanted).astype(int))]
    kind.add(Kind(lines, size, of_remedy, [block.text(i, _EXAMPLE_CHARACTERS) for i in shown]))


def find_text(paths: Sequence[pathlib.Path], wanted: Sequence[int]) -> list[str]:
    """Return the beginnings of lines with given digests; read until all are found."""
    found: dict[int, str] = {}
    for path in paths:
        for block in Reader(path).blocks():
            for i in np.flatnonzero(np.isin(block.lines["digest"], wanted)):
                digest = int(block.lines["digest"][i])
                found.setdefault(digest, block.text(i, _EXAMPLE_CHARACTERS))
            if len(found) == len(set(wanted)):
                break
    return [found[one] for one in wanted if one in found]
