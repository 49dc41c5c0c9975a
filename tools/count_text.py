"""Count the script runs of a text of any size into a table, or merge such tables.

    python -m tools.count_text --input='DIR/en-*.txt.xz' --output=TABLES/en.runs.gz
    python -m tools.count_text --merge='PARTS/*.runs.gz' --output=TABLES/en.runs.gz

Text is read as a stream; memory is bounded by --max_runs. docs/counting.md has the details.
"""

import glob
import pathlib
from collections.abc import Iterator, Sequence

from absl import flags, logging
from tqdm import tqdm

from common import entry_point
from input_pipeline import blocks, text_files
from vocap import run_tables

_INPUT = flags.DEFINE_multi_string(
    "input", [], "Text files, .txt or .jsonl, also compressed; a quoted pattern; repeatable."
)
_MERGE = flags.DEFINE_multi_string(
    "merge", [], "Instead of text: tables to add up; a quoted pattern; repeatable."
)
_OUTPUT = flags.DEFINE_string("output", None, "The table to write, <lang>.runs.gz.")
_HELDOUT_FRACTION = flags.DEFINE_float(
    "heldout_fraction", 0.0, "Share of the text that is counted separately."
)
_HELDOUT_OUTPUT = flags.DEFINE_string("heldout_output", None, "The table of what is held out.")
_HELDOUT_SEED = flags.DEFINE_integer("heldout_seed", 0, "Picks what is held out.")
_HELDOUT_BY = flags.DEFINE_enum(
    "heldout_by",
    "text",
    ["text", "sentence"],
    "text: hold out blocks of text, those that prepare_data.py holds out. sentence: hold out "
    "sentences, as vocap.count_beam does.",
)
_BLOCK_BYTES = flags.DEFINE_integer(
    "block_bytes", blocks.DEFAULT_BLOCK_BYTES, "Of a block, as corpus.block_bytes.", lower_bound=0
)
_MAX_RUNS = flags.DEFINE_integer(
    "max_runs",
    run_tables.DEFAULT_MAX_RUNS,
    "Runs held in memory; the tables do not depend on it.",
)


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise ValueError(f"unexpected {argv[1:4]}; put patterns in quotes: --input='DIR/en-*.txt'")
    if bool(_INPUT.value) == bool(_MERGE.value):
        raise ValueError("give either text with --input or tables with --merge")
    if _MERGE.value:
        if _HELDOUT_FRACTION.value or _HELDOUT_OUTPUT.value:
            raise ValueError("tables cannot be split; hold text out when it is counted")
        tables = _matching(_MERGE.value)
        _check_not_matched(_OUTPUT.value, _MERGE.value)
        _log(_OUTPUT.value, run_tables.merge_tables(tables, _OUTPUT.value))
        return
    if bool(_HELDOUT_FRACTION.value) != bool(_HELDOUT_OUTPUT.value):
        raise ValueError("--heldout_fraction and --heldout_output belong together; give both")
    if _HELDOUT_OUTPUT.value and _same_file(_HELDOUT_OUTPUT.value, _OUTPUT.value):
        raise ValueError(
            f"--output and --heldout_output are both {_OUTPUT.value}, where one table would "
            "replace the other; give what is held out a name of its own, <lang>.heldout.runs.gz"
        )
    paths = _matching(_INPUT.value)
    _check_not_read(paths)
    if not _HELDOUT_OUTPUT.value:
        size = run_tables.count_to_table(_sentences(paths), _OUTPUT.value, _MAX_RUNS.value)
        _log(_OUTPUT.value, size)
        return
    heldout = run_tables.HeldOut(_HELDOUT_FRACTION.value, _HELDOUT_SEED.value)
    outs = (_OUTPUT.value, _HELDOUT_OUTPUT.value)
    if _HELDOUT_BY.value == "sentence":
        sizes = run_tables.count_split(_sentences(paths), heldout, *outs, _MAX_RUNS.value)
    else:
        sizes = run_tables.count_groups(_blocks(paths), *outs, _MAX_RUNS.value)
    for out, size in zip(outs, sizes, strict=True):
        _log(out, size)


def _blocks(paths: Sequence[pathlib.Path]) -> Iterator[tuple[Sequence[str], bool]]:
    """Yield the blocks of the text and whether each is held out."""
    counts = [0, 0]
    for path in tqdm(paths, desc="count", unit="file"):
        for block in blocks.cut_blocks(text_files.read_marked(path), _BLOCK_BYTES.value):
            digest = blocks.text_digest(block, _HELDOUT_SEED.value)
            side = blocks.is_heldout(digest, _HELDOUT_FRACTION.value)
            counts[side] += 1
            yield block, side
    if not counts[True]:
        logging.warning(
            "none of %d blocks is held out by its hash; of a language that is no larger, "
            "prepare_data.py holds out one",
            counts[False],
        )


def _sentences(paths: Sequence[pathlib.Path]) -> Iterator[str]:
    for path in tqdm(paths, desc="count", unit="file"):
        yield from text_files.read_sentences(path)


def _matching(patterns: Sequence[str]) -> list[pathlib.Path]:
    """Files that match any of the patterns, each once, however it is spelled."""
    found: dict[pathlib.Path, pathlib.Path] = {}
    for pattern in patterns:
        if not (files := glob.glob(pattern, recursive=True)):
            raise ValueError(f"{pattern}: no such file; correct the path or the pattern")
        for path in map(pathlib.Path, sorted(files)):
            found.setdefault(path.resolve(), path)
    return sorted(found.values())


def _check_not_read(paths: Sequence[pathlib.Path]) -> None:
    """Raise ValueError if an output is one of the texts, which a table would replace."""
    for flag, output in (("output", _OUTPUT.value), ("heldout_output", _HELDOUT_OUTPUT.value)):
        for path in paths if output else ():
            if _same_file(path, output):
                raise ValueError(
                    f"--{flag}={output} is {path}, which --input names, so that a table would "
                    "replace the text; give the table a name of its own, <lang>.runs.gz"
                )


def _check_not_matched(output: str, patterns: Sequence[str]) -> None:
    """Raise ValueError if a pattern with wildcards matches the output of an earlier merge.

    Its text would count twice, unasked. Who adds to a table names it.
    """
    for pattern in filter(glob.has_magic, patterns):
        if any(_same_file(path, output) for path in glob.glob(pattern, recursive=True)):
            raise ValueError(
                f"{output} exists and --merge={pattern} matches it, so what it counts would be "
                "added again; write to another folder than that of the parts, or name the tables "
                "without wildcards to add to this one"
            )


def _same_file(one: str | pathlib.Path, other: str) -> bool:
    return pathlib.Path(one).resolve() == pathlib.Path(other).resolve()


def _log(path: str, size: run_tables.Size) -> None:
    logging.info(
        "wrote %s: %d sentences, %d distinct runs", path, size.num_sentences, size.num_runs
    )


if __name__ == "__main__":
    entry_point.run(main, required=("output",))
