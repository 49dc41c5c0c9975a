"""Two sides of a search for translations: Tatoeba and BUCC."""

import pathlib
from collections.abc import Sequence

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import SentencePairs, Sentences
from input_pipeline.tasks.files import Pair


def aligned_pairs(pairs: Sequence[Pair]) -> SentencePairs:
    """Return sentences of which the i-th ones of both sides are translations of each other."""
    ids = tuple(map(str, range(len(pairs))))
    source, target = (Sentences(ids, side) for side in zip(*pairs, strict=True))
    return SentencePairs(source, target, tuple(zip(ids, ids, strict=True)))


def read_aligned(paths: Sequence[pathlib.Path]) -> SentencePairs:
    """Read Tatoeba: one file of two columns, or two files (LASER); see `files.read_pairs`."""
    return aligned_pairs(files.read_pairs(paths))


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
                        f"{where}: {sentence!r} is no id of {paths[number]}; the gold file must be "
                        "of the same texts, with the English id second"
                    )
            gold.append((pair[0], pair[1]))
    return SentencePairs(sides[0], sides[1], tuple(gold))


def _sentences(path: pathlib.Path) -> Sentences:
    found: dict[str, str] = {}
    for where, name, text in files.read_columns(path):
        if name in found:
            raise ValueError(f"{where}: the id {name!r} comes a second time; remove one line")
        found[name] = text
    return Sentences(tuple(found), tuple(found.values()))
