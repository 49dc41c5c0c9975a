"""Declarations of artefacts: fields, types, limits and versions, checked when a file is read.

An artefact's declaration is a `msgspec.Struct` beside the code that writes it, derived from
`Artefact`. Files are data: they never run as code, and names in them are never paths.
"""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from xlm.common import artifacts

T = TypeVar("T")

MAX_NAME_BYTES = 100
# Of a language, a set or a file: always one part of a path, and no HTML.
_NAME = r"\A(?!\.)[^/\\<>|\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,100}\Z"

Name = Annotated[str, msgspec.Meta(pattern=_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_HEXADECIMAL = r"\A[0-9a-f]{8,64}\Z"
Digest = Annotated[str, msgspec.Meta(pattern=_HEXADECIMAL)]
_PATTERNS = {
    _NAME: " without slashes and control characters, < > and |",
    _HEXADECIMAL: " of hexadecimal digits",
}

_PLACE = re.compile(r"^(.*?)(?: - at `(?:(key)` in `)?\$(.*?)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_CHOICES = re.compile(r"`str` matching regex '\\\\A\(\?:(.*)\)\\\\Z'")
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
_KINDS |= {"object": "an object", "array": "a list", "null": "null"}


class Artefact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of declarations; refuses unknown fields."""


def one_of(*words: str) -> msgspec.Meta:
    """Annotate a text as one of `words`; messages list them."""
    return msgspec.Meta(pattern=rf"\A(?:{'|'.join(words)})\Z")


def is_name(text: str) -> bool:
    """Whether a text is safe as one part of a path and in a report: no separators, no HTML."""
    return re.match(_NAME, text) is not None and len(text.encode()) <= MAX_NAME_BYTES


def check_name(text: str, place: str, remedy: str) -> str:
    """Return `text`; raise ValueError unless `is_name`."""
    if not is_name(text):
        raise ValueError(
            f"{place}: {text!r} is no name: 1 to {MAX_NAME_BYTES} bytes, without slashes, "
            f"control characters, < > and |, and not beginning with a dot; {remedy}"
        )
    return text


@contextlib.contextmanager
def of_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix the message of a ValueError with the name of the file at fault."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read(path: str | os.PathLike[str], kind: type[T], *, remedy: str) -> T:
    """Read a JSON artefact, a regular file of at most `artifacts.MAX_BYTES`.

    Raises OSError if it cannot be read, and ValueError, with file, field, value and `remedy`, if it
    is not as declared.
    """
    return parse(artifacts.read_bytes(path), kind, place=str(path), remedy=remedy)


def read_plain(path: str | os.PathLike[str], kind: type, *, remedy: str) -> Any:
    """Read a JSON artefact as `read`, and return it as plain objects and lists."""
    content = artifacts.read_bytes(path)
    parse(content, kind, place=str(path), remedy=remedy)
    return msgspec.json.decode(content)


def parse(content: bytes | str, kind: Any, *, place: str, remedy: str) -> Any:
    """Parse JSON by its declaration; see `read`, with any name `place` in messages."""
    try:
        # Decoding skips undeclared fields, whose bytes may be no text.
        text = content.decode() if isinstance(content, bytes) else content
        return _decoder(kind).decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fault = _fault(error, content, kind)
    fault = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in fault)

    raise ValueError(f"{place}: {fault}; {remedy}".removeprefix(": "))


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder:
    return msgspec.json.Decoder(kind)


def _fault(error: Exception, content: bytes | str, kind: Any) -> str:
    """Describe an error with the place and the value at fault."""
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as other:
        return f"not JSON ({other}), and may be cut off or damaged"
    match = _PLACE.match(str(error))
    assert match is not None
    reason, of_key, path = match.groups()
    steps, value = _found(document, path or "", kind)
    name = ".".join(map(str, steps))
    for pattern, words in _PATTERNS.items():
        reason = reason.replace(f" matching regex {pattern!r}", words)
    reason = _CHOICES.sub(lambda found: "one of " + found[1].replace("|", ", "), reason)
    reason = re.sub(r"`([\w| ]+)`", lambda found: _kind_of(found[1]), reason)
    if reason.startswith("Object "):
        reason = reason.replace("missing required", "lacks the").replace("contains", "has the")
        return f"{name or 'the object'} {reason.removeprefix('Object ')}"
    reason = re.sub(r"^Expected (.*?)(, got .*)?$", r"must be \1", reason)
    if of_key:
        return f"a key of {name or 'the object'} {reason}; it has {_shown(sorted(value))}"
    return f"{name or 'its content'} is {_shown(value)}, {reason}"


def _kind_of(types: str) -> str:
    return " or ".join(_KINDS.get(one, one) for one in types.split(" | "))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _found(document: Any, path: str, kind: Any) -> tuple[list[str | int], Any]:
    """Return the steps of msgspec's path, with keys in place of `[...]`, and the value there."""
    steps: list[str | int] = []
    value = document
    for name, number in _STEP.findall(path):
        if isinstance(value, dict):
            key = name if number != "..." else _refused(value, document, path, kind)
            steps, value = [*steps, key], value.get(key)
        elif isinstance(value, list) and number.isdigit():
            steps, value = [*steps, int(number)], value[int(number)]
    return steps, value


def _refused(entries: dict[str, Any], document: Any, path: str, kind: Any) -> str:
    """First key of `entries`, an object in `document`, that by itself is refused at `path`."""
    every = dict(entries)
    try:
        for key, one in every.items():
            entries.clear()
            entries[key] = one
            try:
                _decoder(kind).decode(json.dumps(document))
            except msgspec.ValidationError as error:
                if str(error).endswith(f"`${path}`"):
                    return key
        return "..."
    finally:
        entries.clear()
        entries.update(every)


def parse_lines(content: bytes, kind: type[T], *, place: str, remedy: str) -> Iterator[T]:
    """Parse JSON lines of one declaration; drop a last line that was cut off."""
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        if line.endswith(b"\n"):
            yield parse(line, kind, place=f"{place}, line {number}", remedy=remedy)
