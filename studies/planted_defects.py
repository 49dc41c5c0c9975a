"""Parallel text with planted defects, to see whether a report on pairs finds them.

    python -m studies.planted_defects --data=DATA --folder=tatoeba_bitext --workdir=DIR \\
      --shuffled=de-fr --near_copies=en-nl --wrong_language=es-it:fi

DIR links to everything in DATA but the pairs named, whose files, `<a>-<b>.tsv` (also compressed),
are written anew with a damaged second column:

- `shuffled`: sentences change places, so that none is the translation beside it.
- `near_copies`: the first column with a few letters exchanged.
- `wrong_language`: sentences of a third language, from the other pairs of the folder.

So DIR takes the place of DATA in a config, and DATA stays as it is. DIR/planted.json says what was
planted where; the same seed gives the same files.
"""

import bz2
import collections
import dataclasses
import gzip
import itertools
import lzma
import pathlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence

from absl import flags

from common import artifacts, entry_point
from input_pipeline import text_files

MANIFEST = "planted.json"
# Files of a folder that this command has written, which may itself be damaged further.
_OWN = (MANIFEST, "settings.json", "DONE", "LOCK")
KINDS = ("shuffled", "near_copies", "wrong_language")
NUM_EXAMPLES = 5  # of changed rows in the manifest
# Share of the letters of a near copy that are exchanged, at least one in each sentence.
_EXCHANGED = 0.05

Row = tuple[str, ...]

_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": lambda data: gzip.compress(data, mtime=0),  # no time of day in the file
    "xz": lzma.compress,
    "bz2": bz2.compress,
}


@dataclasses.dataclass(frozen=True)
class Defect:
    """Defect to plant.

    Attributes:
      kind: one of `KINDS`.
      pair: the name of the file, such as "de-en".
      language: of the wrong text; "" for other kinds.
    """

    kind: str
    pair: str
    language: str = ""


def damaged(defect: Defect, rows: Sequence[Row], wrong: Sequence[str], seed: int) -> list[Row]:
    """Return the rows of a pair with the second column damaged.

    Rows with an empty cell are left as they are. A pure function of its arguments.

    Args:
      defect: kind and pair; both are part of the seed.
      rows: two cells each.
      wrong: sentences of the wrong language, repeated where they are too few.
      seed: of the choices.

    Raises:
      ValueError: there is too little text for this defect.
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
                f"language of {defect.pair}; name a language of other pairs in --wrong_language"
            )
        pool = sorted(set(wrong))
        new = [
            text for _ in range(-(-len(full) // len(pool))) for text in rng.sample(pool, len(pool))
        ]
    if sum(old != one for old, one in zip(targets, new, strict=False)) < len(full) / 2:
        raise ValueError(
            f"{defect.pair} has too little text for {defect.kind}: most of its {len(full)} rows "
            "would stay as they are; choose another pair"
        )
    result = list(rows)
    for i, text in zip(full, new, strict=False):
        result[i] = (rows[i][0], text)
    return result


def _shuffled(texts: Sequence[str], rng: random.Random) -> list[str]:
    """Return the texts in a random cycle: none stays in its place."""
    order = rng.sample(range(len(texts)), len(texts))
    result = list(texts)
    for place, origin in zip(order, order[1:] + order[:1], strict=True):
        result[place] = texts[origin]
    return result


def _near_copy(text: str, counts: Mapping[str, int], rng: random.Random) -> str:
    """Return the text with a few letters replaced by others, drawn by their counts."""
    letters = [i for i, letter in enumerate(text) if letter.isalpha()]
    count = min(len(letters), max(1, round(_EXCHANGED * len(letters))))
    copy = list(text)
    for i in rng.sample(letters, count):
        others = {letter: n for letter, n in counts.items() if letter != text[i]} or counts
        (copy[i],) = rng.choices(list(others), list(others.values()))
    return "".join(copy)


def plant(
    data: pathlib.Path,
    folder: str,
    output: pathlib.Path,
    defects: Sequence[Defect],
    seed: int,
) -> dict:
    """Write the corpus with defects to `output`; return its manifest.

    A second call with the same arguments finds the result of the first.

    Args:
      data: root of a corpus.
      folder: of pair files, below `data`.
      output: root of the new corpus.
      defects: one or none for each pair.
      seed: of the choices.

    Raises:
      ValueError: a pair is named twice or does not exist, a file is malformed, there is too little
        text, or `output` holds something else. Nothing is planted.
    """
    settings = {
        "data": str(data.resolve()),
        "folder": folder,
        "defects": [dataclasses.asdict(defect) for defect in defects],
        "seed": seed,
    }
    files = _pair_files(data / folder)
    _check(defects, files, data / folder)
    _check_output(data, output)
    stage = artifacts.open_stage(output, settings)
    if stage.done:
        return artifacts.read_json(output / MANIFEST)
    texts = {defect.pair: _damaged_file(defect, files, seed) for defect in defects}
    with stage.held():
        _link(data, pathlib.PurePath(folder).parts, output, {files[pair].name for pair in texts})
        found = []
        for defect in defects:
            old, new = texts[defect.pair]
            name = files[defect.pair].name
            _write_documents(output / folder / name, new)
            found.append({**dataclasses.asdict(defect), "file": name, **_changes(old, new)})
        manifest = {"folder": folder, "seed": seed, "defects": found}
        artifacts.write_json(output / MANIFEST, manifest)
        stage.finish()
    return manifest


def _pair_files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the files of two languages without a header, by pair."""
    if not folder.is_dir():
        raise ValueError(f"--folder: {folder} is no folder")
    found = {}
    for path in sorted(folder.iterdir()):
        stem, kind, _ = text_files.file_format(path) or ("", "", "")
        codes = stem.split("-")
        if kind == "tsv" and len(codes) == 2 and all(map(text_files.is_language, codes)):
            found[stem] = path
    return found


def _check_output(data: pathlib.Path, output: pathlib.Path) -> None:
    """Raise ValueError unless `output` is new, or of an earlier call, and outside `data`."""
    if output.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--workdir: {output} is in --data, {data}; choose a folder outside it")
    is_used = output.exists() and any(output.iterdir())
    if is_used and not (output / "settings.json").exists():
        raise ValueError(f"--workdir: {output} holds other files; choose an empty folder")


def _check(defects: Sequence[Defect], files: dict[str, pathlib.Path], folder: pathlib.Path) -> None:
    pairs = [defect.pair for defect in defects]
    if repeated := {pair for pair in pairs if pairs.count(pair) > 1}:
        raise ValueError(f"{sorted(repeated)} are named twice; plant one defect in a pair")
    for defect in defects:
        if defect.kind not in KINDS:
            raise ValueError(f"unknown defect {defect.kind!r}, must be one of {KINDS}")
        if defect.pair not in files:
            raise ValueError(
                f"{folder} has no {defect.pair}.tsv (also .gz, .xz, .bz2); its pairs are "
                f"{', '.join(list(files)[:8])} ..."
            )
        if defect.language in defect.pair.split("-"):
            raise ValueError(
                f"--wrong_language: {defect.language!r} is a language of {defect.pair} itself; "
                "choose a third one"
            )


def _damaged_file(
    defect: Defect, files: dict[str, pathlib.Path], seed: int
) -> tuple[list[list[Row]], list[list[Row]]]:
    """Return the documents of a pair before and after."""
    documents = _documents(files[defect.pair])
    wrong = [
        text
        for pair, path in files.items()
        if defect.language and defect.language in pair.split("-")
        for text in _column(path, pair.split("-").index(defect.language))
    ]
    rows = damaged(defect, [row for document in documents for row in document], wrong, seed)
    remaining = iter(rows)
    return documents, [[next(remaining) for _ in document] for document in documents]


def _column(path: pathlib.Path, side: int) -> list[str]:
    """Return the sentences of one side."""
    return [row[side] for document in _documents(path) for row in document if row[side]]


def _documents(path: pathlib.Path) -> list[list[Row]]:
    """Read the rows of each document of a file of pairs."""
    rows = text_files.open_parallel(path)[1]
    return [list(found) for is_row, found in itertools.groupby(rows, bool) if is_row]


def _write_documents(path: pathlib.Path, documents: Sequence[Sequence[Row]]) -> None:
    """Write rows, with a blank line between documents, in the compression that `path` names."""
    text = "\n".join("".join("\t".join(row) + "\n" for row in document) for document in documents)
    _, _, compression = text_files.file_format(path) or ("", "", "")
    artifacts.write_bytes(path, _COMPRESS[compression](text.encode()))


def _changes(old: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]]) -> dict:
    """Return how many rows of a file there are and were changed, and some of them."""
    both = [
        pair
        for before, after in zip(old, new, strict=True)
        for pair in zip(before, after, strict=True)
    ]
    changed = [pair for pair in both if pair[0] != pair[1]]
    examples = [
        {"source": after[0], "before": before[1], "after": after[1]}
        for before, after in changed[:NUM_EXAMPLES]
    ]
    return {"rows": len(both), "changed": len(changed), "examples": examples}


def _link(
    data: pathlib.Path, parts: Sequence[str], output: pathlib.Path, but: Collection[str]
) -> None:
    """Link everything of `data` into `output`, but the files `but` of the folder at `parts`."""
    output.mkdir(exist_ok=True)
    for path in data.iterdir():
        if parts and path.name == parts[0]:
            _link(path, parts[1:], output / path.name, but)
        elif not (path.name in _OWN or (not parts and path.name in but)):
            link = output / path.name
            if not link.is_symlink():
                link.symlink_to(path.resolve())


def defects_of(
    shuffled: Sequence[str], near_copies: Sequence[str], wrong_language: Sequence[str]
) -> list[Defect]:
    """Convert the values of the flags.

    Raises:
      ValueError: there is no defect, or a wrong language is not PAIR:LANGUAGE.
    """
    found = [Defect("shuffled", pair) for pair in shuffled]
    found += [Defect("near_copies", pair) for pair in near_copies]
    for value in wrong_language:
        pair, _, language = value.partition(":")
        if not language:
            raise ValueError(f"--wrong_language is {value!r}, must be as de-en:fi")
        found.append(Defect("wrong_language", pair, language))
    if not found:
        raise ValueError("nothing to plant; give --shuffled, --near_copies or --wrong_language")
    return found


def main(_) -> None:
    given = flags.FLAGS
    manifest = plant(
        pathlib.Path(given.data),
        given.folder,
        pathlib.Path(given.workdir),
        defects_of(given.shuffled, given.near_copies, given.wrong_language),
        given.seed,
    )
    for one in manifest["defects"]:
        print(f"{one['kind']}: {one['file']}, {one['changed']} of {one['rows']} rows changed")


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Root of the corpus.")
    flags.DEFINE_string("folder", "tatoeba_bitext", "Folder of the pair files, below --data.")
    flags.DEFINE_string("workdir", None, "Root of the new corpus.")
    flags.DEFINE_list("shuffled", [], "Pairs whose sentences change places.")
    flags.DEFINE_list("near_copies", [], "Pairs whose second side becomes nearly the first.")
    flags.DEFINE_list("wrong_language", [], "Pairs and languages, de-en:fi.")
    flags.DEFINE_integer("seed", 0, "Of the choices.")
    entry_point.run(main, required=("data", "workdir"))
