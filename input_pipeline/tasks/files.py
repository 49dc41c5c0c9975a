"""Files of a dataset: which there are for a language, and their text.

A pattern is a path below the root folder, which may hold the wildcards of `glob`. `{language}`
stands for a language's code: `xnli/dev/{language}.tsv.xz`. Files of a pattern without it name the
languages of their examples themselves, as the original XNLI files do, or are in English.
"""

import codecs
import fnmatch
import functools
import glob
import logging
import lzma
import pathlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

from input_pipeline import text_files

PLACEHOLDER = "{language}"
_COMPRESSED = {  # first bytes, which tell a compression under any file name
    b"\x1f\x8b": "gz",
    b"\xfd7zXZ\0": "xz",
    b"BZh9": "bz2",
    b"\x28\xb5\x2f\xfd": "zst",
}
_NO_TEXT = {
    b"PK\x03\x04": "a zip archive, as .xlsx is: unpack it, or save the table as CSV in UTF-8",
    b"\xd0\xcf\x11\xe0": "a file of Excel: save the table as CSV in UTF-8",
    b"PAR1": "Parquet: write it as CSV or JSON lines (to_csv, to_json)",
    b"ARROW1": "Arrow: write it as CSV or JSON lines (to_csv, to_json)",
}
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CODE = "[A-Za-z0-9_-]+?"
# Wildcards of `glob`: sets such as [ct] and [!0-9], and those of which the expressions follow.
_WILDCARD = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]")
_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "."}
_TYPES = ("csv", "tsv", "txt")  # file types, although languages with such codes exist
# Ends of names that editors and downloads give to copies, which a wildcard does not mean.
_COPIES = ("~", ".bak", ".orig", ".swp", ".tmp", ".part", ".crdownload")


def read_text(path: pathlib.Path) -> str:
    """Return the text of a file, plain, `.gz`, `.xz`, `.bz2` or `.zst`, with `\\n` line ends.

    It is UTF-8, or UTF-16 with a byte order mark, as some programs write it. Raise ValueError if
    the file is a folder or a pipe, empty, damaged, in another encoding or a program's own format,
    or holds NUL bytes or more text than a file of its size may have.
    """
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, must be a file; name the files in it by a pattern")
    raw = _decompressed(path)
    for begins, message in _NO_TEXT.items():
        if raw.startswith(begins) and b"\0" in raw:
            raise ValueError(f"{path}: is {message}")
    text = _decoded(path, raw)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(text_files.nul_message(f"{path}, line {line}"))
    # A byte order mark is no letter; that of MRPC would hide the name of its first column.
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    if "\n" not in text:
        text = text.replace("\r", "\n")  # as Excel for Mac ends lines
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; add data or remove the file")
    return text


def _decompressed(path: pathlib.Path) -> bytes:
    """Return the bytes of a file, decompressed by its suffix, or else by its first bytes."""
    most = text_files.max_text_bytes(path)
    with open(path, "rb") as file:
        begins = file.read(8)
    of_content = (kind for start, kind in _COMPRESSED.items() if begins.startswith(start))
    suffix = path.suffix.lower().removeprefix(".")
    kind = suffix if suffix in text_files.OPENERS else next(of_content, "")
    try:
        with text_files.OPENERS[kind](path, "rb") as file:
            raw = bytearray()
            while len(raw) <= most and (block := file.read(1 << 20)):
                raw += block
    except (EOFError, lzma.LZMAError, zlib.error, OSError, ValueError) as error:
        if not kind:
            raise
        raise ValueError(
            f"{path}: cannot be read ({error}); the file may be cut off or damaged: copy or "
            "download it again"
        ) from error
    if len(raw) > most:
        raise ValueError(text_files.too_large_message(str(path)))
    return bytes(raw)


def _decoded(path: pathlib.Path, raw: bytes) -> str:
    encoding = "utf-16" if raw.startswith(_UTF_16) else "utf-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        name = encoding.upper()
        raise ValueError(
            f"{path}, line {line}: not {name} (byte 0x{raw[error.start]:02x}); convert the file: "
            "iconv -f ENCODING -t utf-8, where ENCODING is often latin1, cp1252 or utf-16"
        ) from error


def numbered_lines(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield (file and line number for messages, line); only a line feed ends a line."""
    lines = read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line


def spellings(language: str, language_codes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the codes of a language in file names; `language_codes` are such as {"deu": "de"}."""
    own = () if language_codes.get(language, language) != language else (language,)
    return (*own, *(name for name, code in language_codes.items() if code == language))


def matching(root: pathlib.Path, pattern: str, codes: Sequence[str]) -> list[pathlib.Path]:
    """Return the files of a pattern for any of `codes`; ValueError if a plain name is missing."""
    if PLACEHOLDER not in pattern and not glob.has_magic(pattern) and not (root / pattern).exists():
        raise ValueError(f"{root / pattern} does not exist; correct the name, or remove it")
    names = dict.fromkeys(pattern.replace(PLACEHOLDER, glob.escape(code)) for code in codes)
    return [
        root / match
        for name in names
        for match in sorted(glob.glob(name, root_dir=root, recursive=True))
        if not (glob.has_magic(pattern) and match.endswith(_COPIES))
    ]


def languages_of_names(root: pathlib.Path, pattern: str) -> set[str]:
    """Return the codes in the place of `{language}` in the names of existing files."""
    first, *rest = pattern.split(PLACEHOLDER)
    expression = f"(?P<code>{_CODE})".join(
        [_expression(first), "(?P=code)".join(map(_expression, rest))]
    )
    found = set()
    for name in glob.glob(pattern.replace(PLACEHOLDER, "*"), root_dir=root, recursive=True):
        match = re.fullmatch(expression, name)
        if not match or name.endswith(_COPIES):
            continue
        if text_files.is_language(match["code"]) and match["code"] not in _TYPES:
            found.add(match["code"])
        else:
            _warn_once(
                f"{root / name}: left out, {match['code']!r} in its name is no code of a language, "
                "such as en, ceb or zh-Hant"
            )
    return found


@functools.cache
def _warn_once(message: str) -> None:
    logging.warning(message)


def _expression(wildcards: str) -> str:
    """Return the regular expression of a part of a pattern; its `**/` may be no folder at all."""
    found, end = "", 0
    for wildcard in _WILDCARD.finditer(wildcards):
        found += re.escape(wildcards[end : wildcard.start()])
        one, end = wildcard[0], wildcard.end()
        # For a set, remove the end of string that `fnmatch` adds.
        found += _EXPRESSIONS.get(one) or re.sub(r"\\[Zz]$", "", fnmatch.translate(one))
    return found + re.escape(wildcards[end:])
