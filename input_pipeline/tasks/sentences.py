"""Two sides of a search for translations: Tatoeba and BUCC."""

import pathlib
from collections.abc import Iterator, Sequence

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import SentencePairs, Sentences


def aligned_pairs(source: Sequence[str], target: Sequence[str]) -> SentencePairs:
    """Return sentences of which the i-th ones of both sides are translations of each other."""
    ids = tuple(str(number) for number in range(len(source)))
    return SentencePairs(
        Sentences(ids, tuple(source)),
        Sentences(ids, tuple(target)),
        tuple((one, one) for one in ids),
    )


def read_aligned(paths: Sequence[pathlib.Path]) -> SentencePairs:
    """Read Tatoeba: one file of two columns, or two files (LASER), one sentence a line.

    Raise ValueError for a line without two columns, or files of unequal length.
    """
    if len(paths) == 1:
        rows = list(_two_columns(paths[0]))
        return aligned_pairs([row[1] for row in rows], [row[2] for row in rows])
    source, target = ([line.strip() for _, line in files.numbered_lines(path)] for path in paths)
    if len(source) != len(target):
        raise ValueError(
            f"{paths[1]}: {len(target)} lines, but {paths[0]} has {len(source)}; line i of both "
            "must say the same: take both files from one version of the dataset"
        )
    return aligned_pairs(source, target)


def read_mining(paths: Sequence[pathlib.Path]) -> SentencePairs:
    """Read BUCC 2018: the text, the English text, and the gold pairs unless they are hidden.

    Lines are id, tab, sentence; those of the gold file id, tab, English id. Raise ValueError for a
    line without two columns, a repeated id, or a gold id that is not in the text.
    """
    sides = [_sentences(path) for path in paths[:2]]
    known = [set(side.ids) for side in sides]
    gold = []
    for path in paths[2:]:
        for where, *pair in _two_columns(path):
            for number, sentence in enumerate(pair):
                if sentence not in known[number]:
                    raise ValueError(
                        f"{where}: {sentence!r} is no id of {paths[number]}; the gold file must be "
                        "of the same texts, with the English id second"
                    )
            gold.append((pair[0], pair[1]))
    return SentencePairs(sides[0], sides[1], tuple(gold))


def _sentences(path: pathlib.Path) -> Sentences:
    found: dict[str, str] = {}
    for where, name, text in _two_columns(path):
        if name in found:
            raise ValueError(f"{where}: the id {name!r} comes a second time; remove one line")
        found[name] = text
    return Sentences(tuple(found), tuple(found.values()))


def _two_columns(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    for where, line in files.numbered_lines(path):
        cells = line.split("\t")
        if len(cells) != 2:
            raise ValueError(
                f"{where}: {len(cells)} columns, expected two separated by one tab; a sentence may "
                "hold no tab"
            )
        yield where, cells[0].strip(), cells[1].strip()
