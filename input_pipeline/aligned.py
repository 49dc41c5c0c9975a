"""Folders of parallel text, one file per language, aligned line by line or by line ids."""

import pathlib
from collections.abc import Mapping, Sequence

from input_pipeline import text_files


def read_aligned(
    files: Mapping[str, pathlib.Path], ids: Mapping[str, pathlib.Path]
) -> list[tuple[str, ...]]:
    """Read rows of translations, one cell per file, "" for a missing translation.

    `ids` are files with the id of each line, none or one per language. Raise ValueError if files
    that belong together differ in length, or ids are missing.
    """
    if not files:
        return []
    columns = [_stripped(path) for path in files.values()]
    if not ids:
        first = next(iter(files.values()))
        for path, column in zip(files.values(), columns, strict=True):
            _check_length(path, len(column), first, len(columns[0]), "line-aligned files")
        return list(zip(*columns, strict=True))
    if missing := [path for language, path in files.items() if language not in ids]:
        raise ValueError(
            f"{missing[0]} has no ids, but {next(iter(ids.values()))} is there; add a file of ids "
            "for each language, or remove all of them"
        )
    keys = []
    for (language, path), column in zip(files.items(), columns, strict=True):
        keys.append(_stripped(ids[language]))
        _check_length(ids[language], len(keys[-1]), path, len(column), "a text and its ids")
    return join_by_ids(keys, columns)


def join_by_ids(
    ids: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """Join lines of the same id into rows, in the order in which ids first occur; drop empty lines.

    A line gets its own row if its id is empty, begins with "?" or is repeated in its column.
    """
    rows: dict[object, list[str]] = {}
    for number, (keys, lines) in enumerate(zip(ids, columns, strict=True)):
        for place, (key, line) in enumerate(zip(keys, lines, strict=True)):
            if not line:
                continue
            is_alone = not key or key.startswith("?") or rows.get(key, [""] * len(ids))[number]
            row = rows.setdefault((number, place) if is_alone else key, [""] * len(ids))
            row[number] = line
    return [tuple(row) for row in rows.values()]


def _stripped(path: pathlib.Path) -> list[str]:
    return [line.strip() for line in text_files.read_lines(path)]


def _check_length(
    path: pathlib.Path, length: int, other: pathlib.Path, expected: int, what: str
) -> None:
    if length != expected:
        raise ValueError(
            f"{path}: {length} lines, but {other.name} has {expected}; {what} must be equally long"
        )
