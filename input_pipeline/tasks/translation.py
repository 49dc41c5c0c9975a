"""Texts and their translations, to train on or to search for: aligned files, or two columns."""

import itertools
import logging
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import SentencePairs, Sentences
from input_pipeline.tasks.files import Pair, Source

_SOURCE, _TARGET = "{source}", "{target}"
# Most pairs of a source with an empty side, as a share.
_MAX_EMPTY = 0.01
_NAMED = 10  # lines that a message names


def direction(language: str) -> Pair:
    """Return the languages of a direction such as "en-de"; ValueError if it is malformed."""
    source, _, target = language.partition("-")
    if not source or not target or "-" in target or source == target:
        raise ValueError(
            f"translation direction {language!r} must be two codes, such as en-de; correct it in "
            "task.train_languages, task.validation_languages or task.test_languages"
        )
    return source, target


def matching(text: Source, pattern: str) -> pathlib.Path:
    """Return the file of a pattern, in which {source} and {target} stand for the direction's codes.

    Raise ValueError if there is no such file, or several for several codes.
    """
    spellings = map(text.codes_of, direction(text.language))
    names = dict.fromkeys(
        pattern.replace(_SOURCE, source).replace(_TARGET, target)
        for source, target in itertools.product(*spellings)
    )
    found = [text.root / name for name in names if (text.root / name).is_file()]
    if len(found) != 1:
        looked_for = " and ".join(str(text.root / name) for name in names)
        raise ValueError(
            f"{text.language}: {len(found) or 'no'} files of {looked_for}, expected one; add or "
            f"remove files, or correct the codes {_SOURCE} and {_TARGET} in the pattern"
        )
    return found[0]


def check_distinct(
    sources: Mapping[str, Sequence[Sequence[pathlib.Path]]],
    language_codes: Mapping[str, str],
    where: str,
) -> None:
    """Raise ValueError if two directions share a text, or both sides of one are one file.

    Opposite directions may share a file of two columns whose first line names the languages.
    `where` is the config key of the files.
    """
    owners: dict[tuple[pathlib.Path, ...], str] = {}
    for language, texts in sources.items():
        for paths in texts:
            names = " and ".join(map(str, paths))
            files_of_text = tuple(path.resolve() for path in paths)
            if len(set(files_of_text)) < len(files_of_text):
                raise ValueError(
                    f"{where}: {language} has one file as source and target, {names}; name two "
                    f"files, with {_SOURCE} and {_TARGET} in place of codes"
                )
            owner = owners.setdefault(files_of_text, language)
            if owner == language:
                continue
            is_named = False
            if len(paths) == 1 and direction(owner) == direction(language)[::-1]:
                _, line = next(files.numbered_lines(paths[0]))
                codes = _codes(line.split("\t"), language_codes)
                is_named = codes in (direction(owner), direction(language))
            if not is_named:
                raise ValueError(
                    f"{where}: {owner} and {language} have the same text, {names}; put {_SOURCE} "
                    f"and {_TARGET} in place of codes into the names of files, or name the "
                    "languages of the two columns of a *.tsv in its first line"
                )


def _codes(cells: Sequence[str], language_codes: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(language_codes.get(cell.strip(), cell.strip()) for cell in cells)


def read_files(
    paths: Sequence[pathlib.Path], text: Source, languages: Collection[str]
) -> Iterator[Pair]:
    """Yield pairs of two line-aligned files, source and target, or of a TSV file of both.

    The first line of a TSV file may name its two languages; otherwise its first column is the
    source. If it names languages of the run (`languages`), they must be those of the direction. A
    warning names the lines of pairs with an empty side, which are left out. Raise ValueError for
    files of unequal length, a line without two columns, a first line that names other languages,
    more than one pair in a hundred with an empty side, or only such pairs.
    """
    first, pairs, wanted = 1, files.read_pairs(paths), direction(text.language)
    if len(paths) == 1:
        line = next(pairs)
        names = _codes(line, text.language_codes)
        if names in (wanted, wanted[::-1]):
            first = 2
            pairs = (pair[::-1] for pair in pairs) if names != wanted else pairs
        elif {*names} <= {*wanted, *languages}:
            raise ValueError(
                f"{paths[0]}, line 1: names the languages {' and '.join(line)}, but the direction "
                f"is {text.language}; correct it, or name a file by its {_SOURCE} and {_TARGET}"
            )
        else:
            pairs = itertools.chain([line], pairs)
    where = " and ".join(map(str, paths))
    pairs = without_empty(pairs, where, "line", first)
    if (begin := next(pairs, None)) is None:
        raise ValueError(f"{where}: no pair of texts; add some or remove the files")
    yield from itertools.chain([begin], pairs)


def without_empty(pairs: Iterable[Pair], where: str, unit: str, first: int = 0) -> Iterator[Pair]:
    """Yield the pairs without an empty side, and warn of the others; `unit` is "line" or the like.

    Raise ValueError at the end if more than one in a hundred has one: then lines are out of step,
    or it is another dataset than expected.
    """
    empty, stop = list[int](), first
    for number, pair in enumerate(pairs, start=first):
        stop = number + 1
        if all(pair):
            yield pair
        else:
            empty.append(number)
    if empty:
        named = ", ".join(map(str, empty[:_NAMED]))
        message = (
            f"{where}: {len(empty)} of {stop - first} pairs have an empty side ({unit} {named}"
            f"{', ...' if len(empty) > _NAMED else ''})"
        )
        if len(empty) > _MAX_EMPTY * (stop - first):
            raise ValueError(f"{message}; remove these lines from both sides, or check the files")
        logging.warning("%s; they are left out", message)


def aligned_pairs(pairs: Sequence[Pair]) -> SentencePairs:
    """Return the sides of a search; the i-th sentences of both are translations."""
    ids = tuple(map(str, range(len(pairs))))
    source, target = (Sentences(ids, side) for side in zip(*pairs, strict=True))
    return SentencePairs(source, target, tuple(zip(ids, ids, strict=True)))


def read_aligned(paths: Sequence[pathlib.Path]) -> SentencePairs:
    """Read Tatoeba: one file of two columns, or two files (LASER); see `files.read_pairs`."""
    return aligned_pairs(list(files.read_pairs(paths)))


def read_mining(paths: Sequence[pathlib.Path]) -> SentencePairs:
    """Read BUCC 2018: the text, the English text, and the gold pairs unless they are hidden.

    Lines are id, tab, sentence; those of the gold file id, tab, English id. Raise ValueError for a
    line without two columns, a repeated id, or a gold id that is not in the text.
    """
    sides = [_sentences(path) for path in paths[:2]]
    known = [set(side.ids) for side in sides]
    gold = []
    for path in paths[2:]:
        for where, *pair in files.read_columns(path):
            for number, sentence in enumerate(pair):
                if sentence not in known[number]:
                    raise ValueError(
                        f"{where}: {sentence!r} is not an id of {paths[number]}; use the gold file "
                        "of the same texts, with the English id second"
                    )
            gold.append((pair[0], pair[1]))
    return SentencePairs(sides[0], sides[1], tuple(gold))


def _sentences(path: pathlib.Path) -> Sentences:
    found: dict[str, str] = {}
    for where, name, text in files.read_columns(path):
        if name in found:
            raise ValueError(f"{where}: the id {name!r} is repeated; remove one line")
        found[name] = text
    return Sentences(tuple(found), tuple(found.values()))
