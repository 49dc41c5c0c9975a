"""Parallel text with planted defects, a test for reports on pairs.

    python -m research.planted_defects --data=DATA --folder=tatoeba_bitext --output=DIR \\
        --defects=shuffled:de-fr,near_copies:en-nl,wrong_language:es-it:fi

DIR links to everything in DATA except the named pairs. It has their files, `<a>-<b>.tsv` (also
compressed), with a damaged second column:

- `shuffled`: sentences change places, so none stands beside its translation.
- `near_copies`: the first column with a few letters replaced.
- `wrong_language`: sentences of a third language, from other pairs of the folder.

Use DIR as DATA in a config. DATA is unchanged. The same seed gives the same files.
"""

import bz2
import collections
import gzip
import itertools
import lzma
import pathlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from absl import flags

from input_pipeline import text_files
from xlm.common import artifacts, entry_point

KINDS = ("shuffled", "near_copies", "wrong_language")
# Replaced share of the letters of a near copy, at least one per sentence.
_EXCHANGED = 0.05

Row = tuple[str, ...]

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": lambda data: gzip.compress(data, mtime=0),  # no time stamp in the file
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


class Defect(NamedTuple):
    """Defect to plant: one of `KINDS`, pair of the file, and language of the wrong text."""

    kind: str
    pair: str
    language: str = ""


def parse(text: str) -> Defect:
    """Parse KIND:PAIR or wrong_language:PAIR:LANGUAGE; ValueError for anything else."""
    kind, _, rest = text.partition(":")
    pair, _, language = rest.partition(":")
    if kind not in KINDS or not pair or bool(language) != (kind == "wrong_language"):
        raise ValueError(
            f"defect {text!r} must be KIND:PAIR, of {' and '.join(KINDS[:2])}, "
            "or wrong_language:PAIR:LANGUAGE"
        )
    return Defect(kind, pair, language)


def damaged(defect: Defect, rows: Sequence[Row], wrong: Sequence[str], seed: int) -> list[Row]:
    """Return the `rows` (two cells) of a pair with a damaged second column.

    Rows with an empty cell stay unchanged. `wrong` are sentences of the wrong language, repeated if
    there are too few. Raise ValueError if the pair has too little text for the defect.
    """
    rng = random.Random(f"{seed} {defect.kind} {defect.pair}")
    full = [i for i, row in enumerate(rows) if all(row)]
    sources, targets = ([rows[i][side] for i in full] for side in (0, 1))
    if defect.kind == "shuffled":
        new = _shuffled(targets, rng)
    elif defect.kind == "near_copies":
        counts = collections.Counter(filter(str.isalpha, "".join(sources)))
        new = [_near_copy(text, counts, rng) for text in sources]
    else:
        if not wrong:
            raise ValueError(
                f"no other pair of the folder has text of {defect.language!r} for the wrong "
                f"language of {defect.pair}; name a language of other pairs"
            )
        pool = sorted(set(wrong))
        new = [
            text for _ in range(-(-len(full) // len(pool))) for text in rng.sample(pool, len(pool))
        ]
    if sum(old != one for old, one in zip(targets, new, strict=False)) < len(full) / 2:
        raise ValueError(
            f"{defect.pair} has too little text for {defect.kind}: most of its {len(full)} rows "
            "would stay unchanged; choose another pair"
        )
    result = list(rows)
    for i, text in zip(full, new, strict=False):
        result[i] = (rows[i][0], text)
    return result


def _shuffled(texts: Sequence[str], rng: random.Random) -> list[str]:
    """Return the texts in a random cycle, so none keeps its place."""
    order = rng.sample(range(len(texts)), len(texts))
    result = list(texts)
    for place, origin in zip(order, order[1:] + order[:1], strict=True):
        result[place] = texts[origin]
    return result


def _near_copy(text: str, counts: Mapping[str, int], rng: random.Random) -> str:
    """Replace a few letters of the text by others, drawn by their counts."""
    letters = [i for i, letter in enumerate(text) if letter.isalpha()]
    count = min(len(letters), max(1, round(_EXCHANGED * len(letters))))
    copy = list(text)
    for i in rng.sample(letters, count):
        others = {letter: n for letter, n in counts.items() if letter != text[i]} or counts
        (copy[i],) = rng.choices(list(others), list(others.values()))
    return "".join(copy)


def plant(
    data: pathlib.Path, folder: str, output: pathlib.Path, defects: Sequence[Defect], seed: int
) -> None:
    """Write a corpus to `output`, with defects in the pair files of `folder`, below `data`.

    Raise ValueError, and write nothing, if a pair is named twice or does not exist, a file is
    malformed or has too little text, or `output` is in `data`.
    """
    files = _pair_files(data / folder)
    _check(defects, files, data / folder)
    if output.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--output: {output} is in --data, {data}; choose a folder outside it")
    texts = {files[one.pair].name: _damaged_file(one, files, seed) for one in defects}
    _link(data, pathlib.PurePath(folder).parts, output, set(texts))
    for name, documents in texts.items():
        text = "\n".join("".join("\t".join(row) + "\n" for row in one) for one in documents)
        _, _, compression = text_files.file_format(pathlib.Path(name)) or ("", "", "")
        artifacts.write_bytes(output / folder / name, _COMPRESS[compression](text.encode()))


def _pair_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the headerless files of two languages, by pair."""
    if not folder.is_dir():
        raise ValueError(f"--folder: {folder} is no folder")
    found = {}
    for path in sorted(folder.iterdir()):
        stem, kind, _ = text_files.file_format(path) or ("", "", "")
        codes = stem.split("-")
        if kind == "tsv" and len(codes) == 2 and all(map(text_files.is_language, codes)):
            found[stem] = path
    return found


def _check(defects: Sequence[Defect], files: dict[str, pathlib.Path], folder: pathlib.Path) -> None:
    pairs = [defect.pair for defect in defects]
    if repeated := {pair for pair in pairs if pairs.count(pair) > 1}:
        raise ValueError(f"{sorted(repeated)} are named twice; plant one defect in a pair")
    for defect in defects:
        if defect.pair not in files:
            raise ValueError(
                f"{folder} has no {defect.pair}.tsv (also .gz, .xz, .bz2); its pairs are "
                f"{', '.join(list(files)[:8])} ..."
            )
        if defect.language in defect.pair.split("-"):
            raise ValueError(
                f"{defect.language!r} is a language of {defect.pair} itself; choose a third one"
            )


def _damaged_file(defect: Defect, files: dict[str, pathlib.Path], seed: int) -> list[list[Row]]:
    documents = _documents(files[defect.pair])
    wrong = [
        text
        for pair, path in files.items()
        if defect.language and defect.language in pair.split("-")
        for text in _column(path, pair.split("-").index(defect.language))
    ]
    rows = damaged(defect, [row for document in documents for row in document], wrong, seed)
    remaining = iter(rows)
    return [[next(remaining) for _ in document] for document in documents]


def _column(path: pathlib.Path, side: int) -> list[str]:
    return [row[side] for document in _documents(path) for row in document if row[side]]


def _documents(path: pathlib.Path) -> list[list[Row]]:
    rows = text_files.open_parallel(path)[1]
    return [list(found) for is_row, found in itertools.groupby(rows, bool) if is_row]


def _link(
    data: pathlib.Path, parts: Sequence[str], output: pathlib.Path, but: Collection[str]
) -> None:
    """Link `data` into `output`, except the files `but` of the folder at `parts`."""
    output.mkdir(parents=True, exist_ok=True)
    for path in data.iterdir():
        if parts and path.name == parts[0]:
            _link(path, parts[1:], output / path.name, but)
        elif parts or path.name not in but:
            link = output / path.name
            if not link.is_symlink():
                link.symlink_to(path.resolve())


def main(_) -> None:
    given = flags.FLAGS
    defects = [parse(one) for one in given.defects]
    folders = pathlib.Path(given.data), given.folder, pathlib.Path(given.output)
    plant(*folders, defects, given.seed)


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Data folder.")
    flags.DEFINE_string("folder", "tatoeba_bitext", "Folder of the pair files, below --data.")
    flags.DEFINE_string("output", None, "Output folder.")
    flags.DEFINE_list("defects", None, "Defects, KIND:PAIR or wrong_language:PAIR:LANGUAGE.")
    flags.DEFINE_integer("seed", 0, "Random seed.")
    entry_point.run(main, required=("data", "output", "defects"))
