"""Files of a dataset: those of a language, and their text.

A pattern is a path below the root folder, with wildcards of `glob`. `{language}` stands for a
language's code: `xnli/dev/{language}.tsv.xz`. Files of a pattern without it name the languages of
their examples themselves, as the original XNLI files do, or are in English.
"""

import codecs
import dataclasses
import fnmatch
import glob
import itertools
import lzma
import pathlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

from input_pipeline import text_files
from input_pipeline.tasks.tasks import Task

Pair = tuple[str, str]

PLACEHOLDER = "{language}"
_COMPRESSED = {  # first bytes, which show a compression under any file name
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
_READ_WHOLE = 1 << 23  # bytes of a file, compressed or not
# Wildcards of `glob`: sets such as [ct] and [!0-9], and wildcards with the expressions below.
_WILDCARD = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]")
_EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "."}
_TYPES = ("csv", "tsv", "txt")  # file types, although languages with such codes exist
# Suffixes of copies by editors and downloads, which wildcards leave out.
_COPIES = ("~", ".bak", ".orig", ".swp", ".tmp", ".part", ".crdownload")


def read_text(path: pathlib.Path) -> str:
    """Return the text of a file, plain, `.gz`, `.xz`, `.bz2` or `.zst`, with `\\n` line ends.

    It is UTF-8, or UTF-16 with a byte order mark. Raise ValueError if the file is a folder or a
    pipe, empty, damaged, in another encoding or a program's own format, or holds NUL bytes or more
    text than its size allows.
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
    # A byte order mark would hide the name of the first column, as in MRPC.
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    if "\n" not in text:
        text = text.replace("\r", "\n")  # line ends of Excel for Mac
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; add data or remove the file")
    return text


def _decompressed(path: pathlib.Path) -> bytes:
    most, kind = text_files.max_text_bytes(path), _compression(path)
    try:
        with text_files.OPENERS[kind](path, "rb") as file:
            raw = bytearray()
            while len(raw) <= most and (block := file.read(1 << 20)):
                raw += block
    except (EOFError, lzma.LZMAError, zlib.error, OSError, ValueError) as error:
        if not kind:
            raise
        raise ValueError(
            f"{path}: cannot be read ({error}); it may be cut off or damaged: download it again"
        ) from error
    if len(raw) > most:
        raise ValueError(text_files.too_large_message(str(path)))
    return bytes(raw)


def _compression(path: pathlib.Path) -> str:
    """Return the compression by a file's suffix, or else by its first bytes; "" for none."""
    with open(path, "rb") as file:
        begins = file.read(8)
    of_content = (kind for start, kind in _COMPRESSED.items() if begins.startswith(start))
    suffix = path.suffix.lower().removeprefix(".")
    return suffix if suffix in text_files.OPENERS else next(of_content, "")


def _decoded(path: pathlib.Path, raw: bytes) -> str:
    encoding = "utf-16" if raw.startswith(_UTF_16) else "utf-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: not {encoding.upper()} (byte 0x{raw[error.start]:02x}); "
            f"{text_files.CONVERT}"
        ) from error


def numbered_lines(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield (file and line number, line), for lines that end with a line feed."""
    lines = _streamed(path) or read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line


def _streamed(path: pathlib.Path) -> Iterator[str] | None:
    """Return the lines of a large file; None for a small one, UTF-16 or a single long line."""
    if not path.is_file() or path.stat().st_size <= _READ_WHOLE:
        return None
    kind = _compression(path)
    with text_files.OPENERS[kind](path, "rb") as file:
        begin = file.read(_READ_WHOLE)
    is_whole = b"\n" not in begin or begin.startswith((*_UTF_16, *_NO_TEXT))
    return None if is_whole else text_files.read_lines(path, compression=kind)


def read_columns(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """Yield place, first and second cell of each line; ValueError for other than two columns."""
    for where, line in numbered_lines(path):
        cells = line.split("\t")
        if len(cells) != 2:
            raise ValueError(
                f"{where}: {len(cells)} columns, expected two, with one tab between them"
            )
        yield where, cells[0].strip(), cells[1].strip()


def read_pairs(paths: Sequence[pathlib.Path]) -> Iterator[Pair]:
    """Yield pairs of texts from one file of two columns, or from two files, line by line.

    Raise ValueError for a line without two columns, or at the end of files of unequal length.
    """
    if len(paths) == 1:
        yield from ((one, two) for _, one, two in read_columns(paths[0]))
        return
    sides = [(line for _, line in numbered_lines(path)) for path in paths]
    for number, (one, two) in enumerate(itertools.zip_longest(*sides)):
        if one is None or two is None:
            longer = number + 1 + sum(1 for _ in sides[one is None])
            counts = (number, longer) if one is None else (longer, number)
            raise ValueError(
                f"{paths[0]}: {counts[0]} lines, but {paths[1]} has {counts[1]}; equal lines must "
                "be translations: take both files from one version of the dataset"
            )
        yield one.strip(), two.strip()


@dataclasses.dataclass(frozen=True)
class Source:
    """Places of the examples of a task in a language.

    Attributes:
      root: folder of the patterns.
      patterns: of files, or splits of tensorflow-datasets as "tfds:NAME:SPLIT".
      language_codes: other names of languages in files, such as {"deu": "de"}.
      data_dir: data folder of tensorflow-datasets; None for its default.
      max_bad_rows: most faulty rows to leave out.
    """

    task: Task
    root: pathlib.Path
    patterns: Sequence[str]
    language: str = "en"
    language_codes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data_dir: str | None = None
    max_bad_rows: int = 0

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the language in file names."""
        return self.codes_of(self.language)

    def codes_of(self, language: str) -> tuple[str, ...]:
        known = self.language_codes
        own = () if known.get(language, language) != language else (language,)
        return (*own, *(name for name, code in known.items() if code == language))

    def matching(self, pattern: str) -> list[pathlib.Path]:
        """Return the files of a pattern; ValueError if a plain name is missing."""
        return matching(self.root, pattern, self.codes)


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
    """Return the codes that stand for `{language}` in the names of existing files."""
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
        elif match["code"] not in (*_TYPES, "json", "jsonl", "conll"):
            text_files.warn_once(
                f"{root / name}: left out, {match['code']!r} in its name is not a language code "
                "such as en, ceb or zh-Hant"
            )
    return found


def _expression(wildcards: str) -> str:
    """Return the regular expression of a part of a pattern; `**/` also matches no folder."""
    found, end = "", 0
    for wildcard in _WILDCARD.finditer(wildcards):
        found += re.escape(wildcards[end : wildcard.start()])
        one, end = wildcard[0], wildcard.end()
        # Remove the end of string that `fnmatch` adds to a set.
        found += _EXPRESSIONS.get(one) or re.sub(r"\\[Zz]$", "", fnmatch.translate(one))
    return found + re.escape(wildcards[end:])
