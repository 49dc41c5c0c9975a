"""Count the script runs of a text of any size into a table, or merge such tables.

    xlm count --input='DIR/en-*.txt.xz' --output=TABLES/en.runs.gz
    xlm count --merge='PARTS/*.runs.gz' --output=TABLES/en.runs.gz

Text is read as a stream, and --max_runs bounds memory. docs/counting.md has the details.
"""

import glob
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from absl import flags, logging

from input_pipeline import sources
from vocap import pretoken_tables
from vocap.text_rules import TextRules
from xlm.common import executors, outputs, places, schema
from xlm.experiment import counting

_INPUT = flags.DEFINE_multi_string(
    "input", [], "Text files, .txt or .jsonl, also compressed; a quoted pattern; repeatable."
)
_MERGE = flags.DEFINE_multi_string(
    "merge", [], "Instead of text: tables to add up; a quoted pattern; repeatable."
)
_OUTPUT = outputs.define_flags("The table to write, <lang>.runs.gz.")
_HELDOUT_FRACTION = flags.DEFINE_float(
    "heldout_fraction", 0.0, "Share of the text to count separately."
)
_HELDOUT_OUTPUT = flags.DEFINE_string("heldout_output", None, "The table of held-out text.")
_HELDOUT_SEED = flags.DEFINE_integer("heldout_seed", 0, "Seed of the choice of held-out text.")
_HELDOUT_BY = flags.DEFINE_enum(
    "heldout_by",
    "text",
    ["text", "sentence"],
    "text: hold out the same blocks of text as prepare_data.py. sentence: hold out sentences.",
)
_BLOCK_BYTES = flags.DEFINE_integer(
    "block_bytes", sources.DEFAULT_BLOCK_BYTES, "Size, as corpus.block_bytes.", lower_bound=0
)
_MAX_RUNS = flags.DEFINE_integer(
    "max_runs",
    pretoken_tables.DEFAULT_MAX_RUNS,
    "Runs held in memory; the tables do not depend on it.",
)

_WORKERS = flags.DEFINE_integer("num_workers", 1, "Processes that count parts.", lower_bound=1)
executors.define_flags()
_DEFINE = {str: flags.DEFINE_string, bool: flags.DEFINE_bool, tuple: flags.DEFINE_multi_string}
_RULES = {  # those of the build, see docs/keys.md
    name: _DEFINE[type(one.default)](name, one.default, f"As vocab.{name}.")
    for name, one in schema.section(TextRules).items()
}

OPTIONS = {"required": ("output",)}


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise ValueError(f"unexpected {argv[1:4]}; put patterns in quotes: --input='DIR/en-*.txt'")
    if bool(_INPUT.value) == bool(_MERGE.value):
        raise ValueError("give either text with --input or tables with --merge")
    if _MERGE.value:
        if _HELDOUT_FRACTION.value or _HELDOUT_OUTPUT.value:
            raise ValueError("tables cannot be split; hold text out when you count it")
        tables = _matching(_MERGE.value)
        # To add to a table, name it. An output that wildcards match would count its text twice.
        matched = [one for one in _MERGE.value if glob.has_magic(one)]
        with outputs.file(_OUTPUT.value, _matching(matched)) as aside:
            size = pretoken_tables.merge_tables(tables, aside)
        _log(_OUTPUT.value, size)
        return
    if bool(_HELDOUT_FRACTION.value) != bool(_HELDOUT_OUTPUT.value):
        raise ValueError("--heldout_fraction and --heldout_output belong together; give both")
    outs = [_OUTPUT.value, *filter(None, [_HELDOUT_OUTPUT.value])]
    if len({places.path(out).resolve() for out in outs}) < len(outs):
        raise ValueError(
            f"--output and --heldout_output are both {_OUTPUT.value}, where one table would "
            "replace the other; give held-out text a name of its own, <lang>.heldout.runs.gz"
        )
    paths, first = _matching(_INPUT.value), _OUTPUT.value
    with executors.chosen(_WORKERS.value, "--num_workers") as executor, ExitStack() as stack:
        asides = [stack.enter_context(outputs.file(out, paths)) for out in outs]
        parts = places.path(f"{first}.parts") if places.is_url(first) else outputs.parts(asides[0])
        sizes = counting.count(_settings(), paths, asides, parts, executor)
    if places.is_url(first):
        places.remove(f"{first}.parts")
    if len(sizes) > 1 and not sizes[1].num_sentences:
        logging.warning(
            "no block is held out by its hash; of such a small language, prepare_data.py holds out "
            "one block"
        )
    for out, size in zip(outs, sizes, strict=True):
        _log(out, size)


def _settings() -> counting.Counting:
    given = {name: flag.value for name, flag in _RULES.items()}
    given["user_defined_symbols"] = tuple(given["user_defined_symbols"])
    return counting.Counting(
        schema.settings(TextRules, given), _MAX_RUNS.value, _BLOCK_BYTES.value, _HELDOUT_BY.value,
        _HELDOUT_FRACTION.value, _HELDOUT_SEED.value,
    )  # fmt: skip


def _matching(patterns: Sequence[str]) -> list[Any]:
    """Return the files that match any of the patterns, each once."""
    found: dict[Any, Any] = {}
    for pattern in patterns:
        if not (files := places.matching(pattern)):
            raise ValueError(f"{pattern}: no such file; correct the path or the pattern")
        for path in files:
            found.setdefault(path.resolve(), path)
    return sorted(found.values(), key=str)


def _log(path: str, size: pretoken_tables.Size) -> None:
    logging.info(
        "wrote %s: %d sentences, %d distinct runs", path, size.num_sentences, size.num_runs
    )
