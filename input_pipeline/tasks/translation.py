"""Texts and their translations: two line-aligned files, or one of two columns."""

import itertools
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import TranslationExample

Pair = tuple[str, str]

_SOURCE, _TARGET = "{source}", "{target}"
# Share of the pairs of a source that may have an empty side.
_MAX_EMPTY = 0.01
_NAMED = 10  # lines that a message names


def direction(language: str) -> Pair:
    """Codes of the source and the target language of a direction, such as "en-de".

    Raises:
      ValueError: it is none.
    """
    source, _, target = language.partition("-")
    if not source or not target or "-" in target or source == target:
        raise ValueError(
            f"translation direction {language!r} must be the codes of two languages with a hyphen "
            "between them, such as en-de; correct it in task.train_languages, "
            "task.validation_languages or task.test_languages"
        )
    return source, target


def matching(
    root: pathlib.Path, pattern: str, language: str, language_codes: Mapping[str, str]
) -> pathlib.Path:
    """The file of a pattern, in which {source} and {target} stand for codes of a direction.

    Args:
      root: folder that patterns start from.
      pattern: a path below it.
      language: the direction.
      language_codes: other names of a language in files, such as {"deu": "de"}.

    Raises:
      ValueError: there is no such file, or one for each of several codes.
    """
    spellings = (files.spellings(code, language_codes) for code in direction(language))
    names = dict.fromkeys(
        pattern.replace(_SOURCE, source).replace(_TARGET, target)
        for source, target in itertools.product(*spellings)
    )
    found = [root / name for name in names if (root / name).is_file()]
    if len(found) != 1:
        looked_for = " and ".join(str(root / name) for name in names)
        raise ValueError(
            f"{language}: {len(found) or 'no'} files of {looked_for}, expected one; add or remove "
            f"files, or correct the pattern, in which {_SOURCE} and {_TARGET} stand for codes"
        )
    return found[0]


def read_files(
    paths: Sequence[pathlib.Path], language: str, language_codes: Mapping[str, str]
) -> list[TranslationExample]:
    """Read pairs from two files of which the i-th lines belong together, or one of two columns.

    Pairs with an empty side are left out, with a warning that names their lines.

    Args:
      paths: source and target, or a TSV file of both. They are its columns in this order, unless
        its first line names the two languages. Of the forms that `files.read_text` reads.
      language: the direction.
      language_codes: other names of a language in a first line, such as {"deu": "de"}.

    Raises:
      ValueError: files of unequal length, a line without two columns, more than one in a hundred
        pairs with an empty side, or none without.
    """
    is_one = len(paths) == 1
    pairs = _columns(paths[0], language, language_codes) if is_one else _aligned(*paths)
    where = " and ".join(map(str, paths))
    target_language = direction(language)[1]
    found = [
        TranslationExample("", source, target, target_language)
        for source, target in without_empty(pairs, where, "line")
    ]
    if not found:
        raise ValueError(f"{where}: no pair of texts; add some or remove the files")
    return found


def without_empty(pairs: Sequence[Pair], where: str, unit: str) -> Iterator[Pair]:
    """Yield the pairs of which no side is empty, and warn of the others.

    Args:
      pairs: sources and targets.
      where: they are from, for messages.
      unit: of `where` that a pair is, "line" or "example"; lines are counted from 1.

    Raises:
      ValueError: more than one in a hundred is empty: what files whose lines got out of step, or
        another dataset than expected, look like.
    """
    empty = [number for number, pair in enumerate(pairs) if not all(pair)]
    if empty:
        first = ", ".join(str(number + (unit == "line")) for number in empty[:_NAMED])
        message = (
            f"{where}: {len(empty)} of {len(pairs)} pairs have an empty side ({unit} {first}"
            f"{', ...' if len(empty) > _NAMED else ''})"
        )
        if len(empty) > _MAX_EMPTY * len(pairs):
            raise ValueError(f"{message}; remove these lines from both sides, or check the files")
        logging.warning("%s; they are left out", message)
    yield from (pair for pair in pairs if all(pair))


def _aligned(source: pathlib.Path, target: pathlib.Path) -> list[Pair]:
    one, two = ([line.strip() for _, line in files.numbered_lines(p)] for p in (source, target))
    if len(one) != len(two):
        raise ValueError(
            f"{source}: {len(one)} lines, but {target} has {len(two)}; line i of both must say the "
            "same: take both files from one version of the dataset"
        )
    return list(zip(one, two, strict=True))


def _columns(path: pathlib.Path, language: str, language_codes: Mapping[str, str]) -> list[Pair]:
    pairs: list[Pair] = []
    for where, line in files.numbered_lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2:
            raise ValueError(
                f"{where}: {len(cells)} columns, expected two separated by one tab; a text may "
                "hold no tab"
            )
        pairs.append((cells[0], cells[1]))
    pair, names = direction(language), tuple(language_codes.get(one, one) for one in pairs[0])
    if names in (pair, pair[::-1]):
        is_turned = names != pair
        pairs = [one[::-1] if is_turned else one for one in pairs[1:]]
    return pairs
