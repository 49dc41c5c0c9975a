"""Streaming readers of text files; errors name the file, the line and the remedy.

Formats: `<lang>.txt` (one sentence per line, a blank line between documents), `<lang>.jsonl` (one
document per line, in its `text` field), parallel TSV and `<lang>.ids` (ids of the lines of
`<lang>.txt`), each plain, `.gz`, `.xz`, `.bz2` or `.zst`, UTF-8. See docs/corpus_format.md.
"""

import bz2
import codecs
import collections
import contextlib
import contextvars
import dataclasses
import functools
import gzip
import io
import itertools
import json
import logging
import lzma
import pathlib
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from xlm.common import packages, places
from xlm.common.long_lines import cut_line

Document = list[str]  # sentences, in order

_COMPRESSION = 4  # approximate bytes of text per compressed byte
CONVERT = (
    "convert the file: iconv -f ENCODING -t utf-8, where ENCODING is often latin1, cp1252 or utf-16"
)
LEAVE_OUT = "or leave it out of text: clean.bad_lines, xlm clean"
# Limits of memory: a file of a kilobyte can hold a gigabyte of zeros.
MAX_LINE_BYTES = 64 << 20
_MAX_COMPRESSION = 200  # beyond the first 64 MiB; text has up to some 20
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)
_KINDS = ("txt", "jsonl", "tsv", "ids")
_BY_LINE = ("jsonl", "tsv")  # any line may begin a range
_ARCHIVES = ("zip", "7z", "lz4", "tar", "tgz", "Z", "rar")
# Skipped lines by file, within `skipping_bad_lines`.
_SKIPPED: contextvars.ContextVar["dict[pathlib.Path, Taken] | None"] = contextvars.ContextVar(
    "skipped", default=None
)
_EXAMPLES, _EXAMPLE_CHARACTERS = 5, 240
_BAD_LINE = type("_BadLine", (str,), {})()  # "" in place of a skipped line
# ISO 639 code with optional script and region, such as zh_Hant, aze-Latn, fra-CA.
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]{1,8})*")
_SHARD = re.compile(r"[-_.]([0-9]+)-of-([0-9]+)$")


# Level 19 and --long use windows of up to 2 GiB; the decoder's default refuses those above 128 MiB.
_MAX_WINDOW = 1 << 31
_CHUNK = 1 << 16
# A frame of one repeated byte has 32,768 times its compressed bytes: 64 MiB at most at a time.
_COMPRESSED_CHUNK = 1 << 11


def _open_zstd(path: pathlib.Path, mode: str = "rb") -> io.BufferedReader:
    """Open a `.zst` file, of one frame or several, for reading bytes.

    Raise ValueError if zstandard is not installed. Reading damage raises EOFError or OSError.
    """
    with packages.needed(str(path)):
        import zstandard  # noqa: F401
    return io.BufferedReader(_ZstdFrames(path), _CHUNK)


class _ZstdFrames(io.RawIOBase):
    """Decompressed bytes of all frames; zstandard's own reader ignores a truncated frame."""

    def __init__(self, path: pathlib.Path):
        import zstandard

        self._file = places.opened(path)
        self._error = zstandard.ZstdError
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame: Any = None  # decoder of a frame that was read in part
        self._compressed = b""
        self._found = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._found:
            self._compressed = self._compressed or self._file.read(_COMPRESSED_CHUNK)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end of its last frame")
                return 0
            if self._frame is None:
                self._frame = self._decoder.decompressobj()
            try:
                self._found = memoryview(self._frame.decompress(self._compressed))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._compressed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._found))
        buffer[:size] = self._found[:size]
        self._found = self._found[size:]
        return size


def _decompressed(opener: Callable[..., Any]) -> Callable[..., Any]:
    """Give `opener` the path of a local file, which it closes, or else a stream."""
    return lambda path, mode: opener(
        path if isinstance(path, pathlib.Path) else places.opened(path), mode
    )


# By suffix, "" for plain files.
OPENERS: dict[str, Callable[..., Any]] = {
    "": lambda path, _: places.opened(path),
    "gz": _decompressed(gzip.open),
    "xz": _decompressed(lzma.open),
    "bz2": _decompressed(bz2.open),
    "zst": _open_zstd,
}


def file_format(path: pathlib.Path) -> tuple[str, str, str] | None:
    """Split a file name into (stem, kind, compression); None if it is not a text file's.

    Raise ValueError for a text file of an unsupported compression.
    """
    stem, *suffixes = path.name.split(".")
    suffixes = [one if one == "Z" else one.lower() for one in suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in OPENERS else ""
    if suffixes and suffixes[-1] in _KINDS:
        return ".".join([stem, *suffixes[:-1]]), suffixes[-1], compression
    looks_like_text = any(suffix in _KINDS for suffix in suffixes) or is_language(stem)
    if suffixes and looks_like_text and (suffixes[-1] in _ARCHIVES or suffixes[0] in _KINDS):
        raise ValueError(
            f"{path}: unknown compression {suffixes[-1]!r}; text may be plain, .gz, .xz, "
            ".bz2 or .zst: recompress the file, or move it out of the folder"
        )
    return None


def text_bytes(path: pathlib.Path, size: int) -> int:
    """Return the bytes of text in a file of `size` bytes, estimated if it is compressed."""
    file_type = file_format(path)
    return size * (_COMPRESSION if file_type and file_type[2] else 1)


def is_language(code: str) -> bool:
    """Return whether `code` looks like a language code: en, ceb, zh_Hant, not a shard's name."""
    return _LANGUAGE.fullmatch(code) is not None and _SHARD.search(code) is None


def shard_of(stem: str) -> tuple[str, int, int] | None:
    """Split the name of a shard, "en-00000-of-00002", into ("en", 0, 2); None for others."""
    found = _SHARD.search(stem)
    return (stem[: found.start()], int(found[1]), int(found[2])) if found else None


@dataclasses.dataclass
class Taken:
    """Text taken for one reason: lines, bytes, and first examples."""

    lines: int = 0
    bytes: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)

    def take(self, lines: int, size: int, *examples: str) -> None:
        self.lines += lines
        self.bytes += size
        for one in examples:
            if len(self.examples) < _EXAMPLES and one[:_EXAMPLE_CHARACTERS] not in self.examples:
                self.examples.append(one[:_EXAMPLE_CHARACTERS])


@contextlib.contextmanager
def skipping_bad_lines() -> Iterator[dict[pathlib.Path, Taken]]:
    """Leave out lines that are not UTF-8, hold NUL or half characters, or JSON without a text.

    In aligned files they become blank lines. Empty files are left out, too. Yield both by file.
    """
    found: dict[pathlib.Path, Taken] = collections.defaultdict(Taken)
    token = _SKIPPED.set(found)
    try:
        yield found
    finally:
        _SKIPPED.reset(token)


def _refuse(path: pathlib.Path, message: str, line: str | bytes = b"") -> None:
    """Raise ValueError or, within `skipping_bad_lines`, count the line or empty file."""
    if (found := _SKIPPED.get()) is None:
        raise ValueError(message)
    size = len(line if isinstance(line, bytes) else line.encode())
    found[path].take(bool(line), size, message)


@functools.cache
def warn_once(message: str) -> None:
    logging.warning(message)


def has_text(path: pathlib.Path) -> bool:
    """Return whether a text file holds more than blanks; True for an unreadable file."""
    file_type = file_format(path)
    try:
        with OPENERS[file_type[2] if file_type else ""](path, "rb") as file:
            pieces = iter(functools.partial(file.read, _CHUNK), b"")
            return any(one.removeprefix(codecs.BOM_UTF8).strip() for one in pieces)
    except DAMAGE:
        return True  # a reader raises the error


def read_lines(
    path: pathlib.Path, start: int = 0, end: int | None = None, compression: str | None = None
) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without their line ends.

    `start` and `end` select a range of bytes of a plain file. A range has the whole documents that
    begin in it after a blank line, or the lines of JSON or TSV that begin in it. Ranges that
    together cover a file cover each of its documents once. With `compression` the name is ignored.

    Raises:
      ValueError: the file is empty, damaged, not UTF-8, not a regular file, holds NUL bytes, has a
        line over the limit, or more text than its compressed size allows.
    """
    file_type = file_format(path) if compression is None else ("", "", compression)
    if file_type is None:
        raise ValueError(
            f"{path}: not a text file, .txt, .jsonl, .tsv or .ids, or these .gz/.xz/.bz2/.zst"
        )
    number, origin = 0, f" after byte {start}" if start else ""
    left = max_text_bytes(path)

    def where() -> str:
        return f"{path}, line {number}{origin}"

    try:
        with OPENERS[file_type[2]](path, "rb") as file:
            if end is None:
                lines = iter(functools.partial(file.readline, MAX_LINE_BYTES + 1), b"")
            else:
                lines = _lines_of_range(file, file_type[1], start, end)
            for number, line in enumerate(lines, start=1):
                left -= len(line)
                if left < 0 or len(line) > MAX_LINE_BYTES:
                    raise ValueError(too_large_message(where()))
                try:
                    text, fault = line.decode(), nul_message(where()) if b"\0" in line else ""
                except UnicodeDecodeError as error:
                    byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
                    fault = f"{where()}: not UTF-8 ({byte}); {CONVERT}"
                if fault:
                    _refuse(path, f"{fault}, {LEAVE_OUT}", line)
                    yield _BAD_LINE
                    continue
                # Some editors write a byte order mark at the start.
                is_first = number == 1 and not start
                yield (text.removeprefix("\ufeff") if is_first else text).rstrip("\r\n")
    except DAMAGE as error:
        # Missing files and broken disks have an error number, damaged files do not.
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(
            f"{path}, after line {number}: cannot be read ({error}); the file may be cut off or "
            "damaged: copy or download it again"
        ) from error
    if number == 0 and end is None:
        _refuse(path, f"{path}: the file is empty; add text or remove the file, {LEAVE_OUT}")


def _lines_of_range(file: BinaryIO, kind: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the lines of a range of bytes, see `read_lines`."""
    position = start
    readline = functools.partial(file.readline, MAX_LINE_BYTES + 1)
    if start:
        # Skip from one byte earlier, to keep a line that begins at `start`.
        position = file.seek(start - 1) + len(readline())
        is_between = kind in _BY_LINE
        while not is_between and position < end and (line := readline()):
            is_between = not line.strip()
            position += len(line)
        if not is_between:
            return
    while line := readline():
        if position >= end and (kind in _BY_LINE or not line.strip()):
            return
        yield line
        position += len(line)


def check_regular(path: pathlib.Path) -> int:
    """Return the bytes of a file; raise ValueError for a pipe, whose text might never end."""
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise ValueError(
            f"{path}: is a pipe, a device or a socket; write to a regular file, or remove this one"
        )
    return found.st_size


def max_text_bytes(path: pathlib.Path) -> int:
    """Return the most bytes of text to read from a file, compressed or not."""
    return MAX_LINE_BYTES + _MAX_COMPRESSION * check_regular(path)


def too_large_message(where: str) -> str:
    return (
        f"{where}: a line of more than {MAX_LINE_BYTES >> 20} MiB, or a file that holds more than "
        f"{_MAX_COMPRESSION} times its bytes, is not text; break lines, or check the file"
    )


def nul_message(where: str) -> str:
    return (
        f"{where}: a NUL byte, as in UTF-16 or after a crash; convert the file: iconv -f utf-16 -t "
        "utf-8, or remove the bytes: tr -d '\\000'"
    )


def read_sentences(path: pathlib.Path) -> Iterator[str]:
    """Yield the sentences of `read_marked`, without "" and with long lines cut."""
    return itertools.chain.from_iterable(map(cut_line, filter(None, read_marked(path))))


def read_marked(path: pathlib.Path, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the sentences of a file, and "" (at least once) at the end of a document.

    `start` and `end` are as in `read_lines`. Raise ValueError as `read_lines`, or if a JSON line is
    not an object with a text field, the file has no text at all, or is TSV.
    """
    file_type = file_format(path)
    if file_type is not None and file_type[1] == "tsv":
        raise ValueError(
            f"{path}: this is parallel text; cut out one language's column, as in "
            "'cut -f 2 FILE > en.txt', and give that file"
        )
    lines = (line for line in read_lines(path, start, end) if line is not _BAD_LINE)
    if file_type is not None and file_type[1] == "jsonl":
        found = ((*document, "") for document in _read_jsonl(path, lines, start))
        sentences: Iterator[str] = itertools.chain.from_iterable(found)
    else:
        sentences = map(str.strip, lines)
    is_blank = True
    for sentence in sentences:
        is_blank = is_blank and not sentence
        yield sentence
    # A range may be blank: a document can be longer.
    if is_blank and end is None and path not in (_SKIPPED.get() or ()):
        _refuse(path, f"{path}: the file holds only blank lines; add text or remove the file")


def _read_jsonl(path: pathlib.Path, lines: Iterator[str], start: int) -> Iterator[Document]:
    origin = f" after byte {start}" if start else ""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = _text_of(line)
        except ValueError as error:
            _refuse(path, f"{path}, line {number}{origin}: {error}, {LEAVE_OUT}", line)
            continue
        yield [sentence.strip() for sentence in document.split("\n") if sentence.strip()]


def _text_of(line: str) -> str:
    """Return the text of a JSON line; raise ValueError if there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also for thousands of digits
        raise ValueError(f"not JSON ({error}); each line must be one JSON object") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError(
            "no text field; each line must be an object such as "
            '{"text": "First sentence.\\nSecond sentence."}'
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        fault = f"the text holds {text[error.start]!r}, half of a character; remove it"
        raise ValueError(fault) from error
    if "\0" in text:
        raise ValueError("the text holds a NUL character, \\u0000; remove it")
    return text


def json_line(sentences: Document) -> str:
    return json.dumps({"text": "\n".join(sentences)}, ensure_ascii=False) + "\n"


def open_parallel(
    path: pathlib.Path, start: int = 0, end: int | None = None
) -> tuple[tuple[str, ...], Iterator[tuple[str, ...]]]:
    """Open a TSV file of parallel text; return its languages, and rows of the file or a range.

    Either a header `id<TAB>lang<TAB>lang...` names the columns, or the file is called
    `<lang>-<lang>.tsv` and has these two columns and no header. A row has one cell per language, ""
    for a missing translation, or is () for a blank line at the end of a document. Raise ValueError
    as `read_lines`, for a header without languages, for rows of another width, or for none.
    """
    lines = enumerate(read_lines(path, start, end), start=1)
    file_type, origin = file_format(path), f" after byte {start}" if start else ""
    languages = file_type[0].split(".")[-1].split("-") if file_type else []
    has_header = not (len(languages) == 2 and all(map(is_language, languages)))
    if has_header:
        header = (next(read_lines(path)) if start else next(lines)[1]).split("\t")
        languages = header[1:]
        if len(header) < 3 or header[0] != "id" or not all(map(is_language, languages)):
            raise ValueError(
                f"{path}, line 1: expected a header such as 'id<TAB>en<TAB>de', found "
                f"{header[:4]}; or call the file <lang>-<lang>.tsv and give it two columns"
            )

    def rows() -> Iterator[tuple[str, ...]]:
        width, is_blank = len(languages) + has_header, True
        for number, line in lines:
            if not line or line.isspace():
                yield ()
                continue
            cells = line.split("\t")
            if len(cells) != width:
                raise ValueError(
                    f"{path}, line {number}{origin}: {len(cells)} columns, expected {width} "
                    f"({'id, ' * has_header}{', '.join(languages)}); a sentence may hold no tab, "
                    "and a missing translation keeps its empty cell"
                )
            is_blank = False
            yield tuple(map(str.strip, cells[has_header:]))
        if is_blank and end is None:
            raise ValueError(f"{path}: no sentence pairs; add rows or remove the file")

    return tuple(languages), rows()
