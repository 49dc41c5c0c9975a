"""Reading of text files; errors name the file, the line and the remedy.

Formats: `<lang>.txt` (one sentence per line, a blank line between documents), `<lang>.jsonl` (one
document per line, in its `text` field), parallel TSV and `<lang>.ids` (ids of the lines of
`<lang>.txt`), each plain, `.gz`, `.xz` or `.bz2`, UTF-8. docs/corpus_format.md describes them for
users.
"""

import bz2
import gzip
import itertools
import json
import lzma
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

Document = list[str]  # sentences, in order

_OPENERS: dict[str, Callable[..., Any]] = {
    "": open,
    "gz": gzip.open,
    "xz": lzma.open,
    "bz2": bz2.open,
}
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)
_KINDS = ("txt", "jsonl", "tsv", "ids")
_ARCHIVES = ("zst", "zip", "7z", "lz4", "tar", "tgz", "Z", "rar")
# ISO 639 code with optional script and region, such as zh_Hant, aze-Latn, fra-CA.
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]{1,8})*")
_PART = re.compile(r"[-_.][0-9]+-of-[0-9]+$")


def file_format(path: pathlib.Path) -> tuple[str, str, str] | None:
    """Split a file name into (stem, kind, compression), or None if it is no text file.

    Raises:
      ValueError: the name is that of a text file with an unsupported compression.
    """
    stem, *suffixes = path.name.split(".")
    compression = suffixes.pop() if suffixes and suffixes[-1] in _OPENERS else ""
    if suffixes and suffixes[-1] in _KINDS:
        return ".".join([stem, *suffixes[:-1]]), suffixes[-1], compression
    looks_like_text = any(suffix in _KINDS for suffix in suffixes) or is_language(stem)
    if suffixes and looks_like_text and (suffixes[-1] in _ARCHIVES or suffixes[0] in _KINDS):
        raise ValueError(
            f"{path}: unknown compression {suffixes[-1]!r}; text may be plain, .gz, .xz or "
            ".bz2: recompress the file, or move it out of the folder"
        )
    return None


def is_language(code: str) -> bool:
    """Return whether `code` has the form of a language code: en, ceb, zh_Hant, aze-Latn.

    The name of a part of a file, such as en-00000-of-00002, is none.
    """
    return _LANGUAGE.fullmatch(code) is not None and _PART.search(code) is None


def shard_of(stem: str) -> str:
    """Name of the file that one called "en-00000-of-00002" is a part of; "" if it is none."""
    found = _PART.search(stem)
    return stem[: found.start()] if found else ""


def read_lines(path: pathlib.Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without their line ends.

    Raises:
      ValueError: the file is empty, damaged, not UTF-8, or holds NUL bytes.
    """
    file_type = file_format(path)
    if file_type is None:
        raise ValueError(
            f"{path}: not a text file; expected .txt, .jsonl, .tsv or .ids, or these .gz/.xz/.bz2"
        )
    number = 0
    try:
        with _OPENERS[file_type[2]](path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8")
                if "\0" in text:
                    raise ValueError(nul_message(f"{path}, line {number}"))
                # Some editors write a byte order mark at the start; it is not text.
                yield (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x} at position "
            f"{error.start + 1}); convert the file: iconv -f ENCODING -t utf-8, where ENCODING is "
            "often latin1, cp1252 or utf-16"
        ) from error
    except _DAMAGE as error:
        # Missing files and broken disks have an error number, damaged files do not.
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(
            f"{path}, after line {number}: cannot be read ({error}); the file may be cut off or "
            "damaged: copy or download it again"
        ) from error
    if number == 0:
        raise ValueError(f"{path}: the file is empty; add text or remove the file")


def nul_message(where: str) -> str:
    """Message that there is a NUL byte."""
    return (
        f"{where}: a NUL byte, as in UTF-16 and where a crash left a hole; convert the file: iconv "
        "-f utf-16 -t utf-8, or remove the bytes: tr -d '\\000'"
    )


def read_documents(path: pathlib.Path) -> list[Document]:
    """Read the documents of a `.txt` or `.jsonl` file.

    Raises:
      ValueError: as `read_lines`; a JSON line is not an object with a text field; no text at all.
    """
    file_type = file_format(path)
    if file_type is not None and file_type[1] == "jsonl":
        documents = list(_read_jsonl(path))
    else:
        documents = [[]]
        for line in map(str.strip, read_lines(path)):
            if line:
                documents[-1].append(line)
            elif documents[-1]:
                documents.append([])
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(_only_blank_lines(path))
    return documents


def read_sentences(path: pathlib.Path) -> Iterator[str]:
    """Yield the sentences of a `.txt` or `.jsonl` file of any size, in constant memory.

    Raises:
      ValueError: as `read_documents`, but only when iteration reaches the fault; the file is TSV.
    """
    file_type = file_format(path)
    if file_type is not None and file_type[1] == "tsv":
        raise ValueError(
            f"{path}: this is parallel text; cut out one language's column, as in "
            "'cut -f 2 FILE > en.txt', and give that file"
        )
    if file_type is not None and file_type[1] == "jsonl":
        sentences: Iterator[str] = itertools.chain.from_iterable(_read_jsonl(path))
    else:
        sentences = filter(None, map(str.strip, read_lines(path)))
    is_blank = True
    for sentence in sentences:
        is_blank = False
        yield sentence
    if is_blank:
        raise ValueError(_only_blank_lines(path))


def _only_blank_lines(path: pathlib.Path) -> str:
    return f"{path}: the file holds only blank lines; add text or remove the file"


def _read_jsonl(path: pathlib.Path) -> Iterator[Document]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: not JSON ({error}); each line must be one JSON object"
            ) from error
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ValueError(
                f"{path}, line {number}: no text field; each line must be an object such as "
                '{"text": "First sentence.\\nSecond sentence."}'
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{path}, line {number}: the text holds {text[error.start]!r}, half of a character "
                "that was cut in two; remove it"
            ) from error
        yield [sentence.strip() for sentence in text.split("\n") if sentence.strip()]


def read_parallel(path: pathlib.Path) -> tuple[tuple[str, ...], list[list[tuple[str, ...]]]]:
    """Read parallel text from a TSV file.

    Either a header `id<TAB>lang<TAB>lang...` names the columns, or the file is called
    `<lang>-<lang>.tsv` and has these two columns and no header. A blank line ends a document; an
    empty cell is a missing translation.

    Returns:
      The languages, and per document a list of rows with one cell per language.

    Raises:
      ValueError: as `read_lines`; a header has no languages, or a row has a different width.
    """
    lines = enumerate(read_lines(path), start=1)
    file_type = file_format(path)
    pair = file_type[0].split(".")[-1].split("-") if file_type else []
    has_header = not (len(pair) == 2 and all(is_language(code) for code in pair))
    if has_header:
        header = next(lines)[1].split("\t")
        if len(header) < 3 or header[0] != "id" or not all(map(is_language, header[1:])):
            raise ValueError(
                f"{path}, line 1: expected a header such as 'id<TAB>en<TAB>de', found "
                f"{header[:4]}; or call the file <lang>-<lang>.tsv and give it two columns"
            )
        languages = tuple(header[1:])
    else:
        languages = (pair[0], pair[1])
    width = len(languages) + has_header
    documents: list[list[tuple[str, ...]]] = [[]]
    for number, line in lines:
        if not line.strip():
            documents.append([])
            continue
        cells = line.split("\t")
        if len(cells) != width:
            raise ValueError(
                f"{path}, line {number}: {len(cells)} columns, expected {width} "
                f"({'id, ' * has_header}{', '.join(languages)}); a sentence may hold no tab, and a "
                "missing translation keeps its empty cell"
            )
        documents[-1].append(tuple(cell.strip() for cell in cells[has_header:]))
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"{path}: no sentence pairs; add rows or remove the file")
    return languages, documents
