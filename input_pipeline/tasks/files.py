"""Files of a dataset: which there are for a language, and their text.

A pattern is a path below the root folder in which `{language}` stands for a language's code, and
which may hold the wildcards of `glob`: `xnli/dev/{language}.tsv.xz`. A pattern without
`{language}` names files that tell the languages of their examples themselves, as the original XNLI
files do, or that are in English.
"""

import bz2
import glob
import gzip
import lzma
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from input_pipeline import text_files

PLACEHOLDER = "{language}"
_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}
_CODE = "[A-Za-z0-9_-]+?"


def read_text(path: pathlib.Path) -> str:
    """The text of a UTF-8 file, plain, `.gz`, `.xz` or `.bz2`, with `\\n` line ends.

    Raises:
      ValueError: the file is empty, damaged, not UTF-8, or holds NUL bytes.
    """
    raw = path.read_bytes()
    try:
        raw = _DECOMPRESS.get(path.suffix, bytes)(raw)
    except (EOFError, lzma.LZMAError, zlib.error, OSError, ValueError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); the file may be cut off or damaged: copy or "
            "download it again"
        ) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: not UTF-8 (byte 0x{raw[error.start]:02x}); convert the file: "
            "iconv -f ENCODING -t utf-8, where ENCODING is often latin1, cp1252 or utf-16"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(text_files.nul_message(f"{path}, line {line}"))
    # A byte order mark is no letter; that of MRPC would hide the name of its first column.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; add data or remove the file")
    return text


def numbered_lines(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yields (file and line number for messages, line); as `read_text`.

    Only a line feed ends a line: texts of the web hold other characters that Python counts as
    line ends.
    """
    lines = read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        yield f"{path}, line {number}", line


def spellings(language: str, language_codes: Mapping[str, str]) -> tuple[str, ...]:
    """Codes of a language in file names: its own, and the others of `language_codes`.

    Args:
      language: the code in this project.
      language_codes: other names of languages, such as {"deu": "de"}.
    """
    own = () if language_codes.get(language, language) != language else (language,)
    return (*own, *(name for name, code in language_codes.items() if code == language))


def matching(root: pathlib.Path, pattern: str, codes: Sequence[str]) -> list[pathlib.Path]:
    """The files of a pattern for a language that may be called any of `codes`.

    Raises:
      ValueError: the pattern is the name of one file, which does not exist.
    """
    if PLACEHOLDER not in pattern and not glob.has_magic(pattern) and not (root / pattern).exists():
        raise ValueError(f"{root / pattern} does not exist; correct the name, or remove it")
    names = dict.fromkeys(pattern.replace(PLACEHOLDER, glob.escape(code)) for code in codes)
    return [
        root / match
        for name in names
        for match in sorted(glob.glob(name, root_dir=root, recursive=True))
    ]


def languages_of_names(root: pathlib.Path, pattern: str) -> set[str]:
    """The codes that stand in the place of `{language}` in the names of the files there are."""
    first, *rest = pattern.split(PLACEHOLDER)
    expression = f"(?P<code>{_CODE})".join(
        [_expression(first), "(?P=code)".join(map(_expression, rest))]
    )
    found = set()
    for name in glob.glob(pattern.replace(PLACEHOLDER, "*"), root_dir=root, recursive=True):
        match = re.fullmatch(expression, name)
        if match and text_files.is_language(match["code"]):
            found.add(match["code"])
    return found


def _expression(wildcards: str) -> str:
    """The regular expression of a part of a pattern."""
    return re.escape(wildcards).replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", ".")
