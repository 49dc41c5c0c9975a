"""Compare the ways to sample language pairs, before training on them.

    xlm pair-sampling --config=configs/bitext.py --workdir=DIR
    xlm pair-sampling --config=configs/bitext.py --counts=pairs.tsv --output=DIR

Reads the bitext in DIR/rows. To plan a run before there is data, give a table of counts, with a row
"one<TAB>other<TAB>sentence pairs" for each pair of `corpus.languages`, or for each set of a pair.
Prints report.md, and writes it with report.json and plots to DIR/pair_sampling or --output: the
share of each pair by each method, pairs without any, and repetitions in the run of the config.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from input_pipeline import text_files
from input_pipeline.bitext import pair_sizes
from input_pipeline.pair_sampling import METHODS, Pair, PairSampling, sample_pairs
from xlm.common import outputs
from xlm.evaluation import pair_sampling_report
from xlm.experiment import data as data_builders
from xlm.experiment import schema, seen, streams

_CONFIG = config_flags.DEFINE_config_file("config", None, "The run, e.g. configs/bitext.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "A working directory with rows.")
_COUNTS = flags.DEFINE_string("counts", None, "Instead of --workdir: a .tsv table of counts.")
_OUTPUT = outputs.define_flags("The folder to write; needed with --counts.")
_EXAMPLES = flags.DEFINE_integer(
    "examples", 0, "Sentence pairs in the run; 0 to derive them from the config's steps.",
    lower_bound=0,
)  # fmt: skip

OPTIONS = {"required": ("config",)}


def main(_) -> None:
    config = schema.checked(_CONFIG.value)
    if bool(_WORKDIR.value) == bool(_COUNTS.value):
        raise ValueError("give either --workdir, with rows, or --counts, a table")
    if _COUNTS.value and not _OUTPUT.value:
        raise ValueError("--counts needs --output, a folder to write to")
    folder = _OUTPUT.value or str(pathlib.Path(_WORKDIR.value, "pair_sampling"))
    inputs = [_WORKDIR.value or _COUNTS.value]
    with outputs.folder(folder, inputs, overwrite=None if _OUTPUT.value else True) as aside:
        path = _report(config, aside)
    path = pathlib.Path(folder, path.name).absolute()
    print(path.read_text(encoding="utf-8"))
    print(f"report: {path}")


def _report(config: ConfigDict, folder: pathlib.Path) -> pathlib.Path:
    settings, dataset = data_builders.data_settings(config), None
    if _COUNTS.value:
        sizes = read_counts(pathlib.Path(_COUNTS.value), tuple(config.corpus.languages))
    else:
        folders = data_builders.Folders(pathlib.Path(_WORKDIR.value))
        dataset = data_builders.open_packed_dataset(folders)
        sizes = pair_sizes(dataset)
    if not sizes:
        raise ValueError(
            f"{_WORKDIR.value}: the rows hold no bitext; name parallel text to train on in "
            "corpus.parallel and run prepare_data.py again"
        )
    methods = list(METHODS)
    if settings.pair_sampling != "pivot" and not any(settings.pair_pivot in pair for pair in sizes):
        logging.warning("no pairs with data.pair_pivot %s: left out", settings.pair_pivot)
        methods.remove("pivot")
    samplings = [
        sample_pairs(sizes, dataclasses.replace(settings, pair_sampling=method))
        for method in methods
    ]
    examples = {one.method: _examples(config, dataset, one) for one in samplings}
    return pair_sampling_report.write_report(folder, samplings, examples, settings)


def read_counts(path: pathlib.Path, languages: Sequence[str] = ()) -> dict[Pair, list[int]]:
    """Read the numbers of sentence pairs by language pair (a, b), a < b, one for each of its sets.

    Keeps only pairs of `languages`, if there are any. Raises ValueError if a row is not two
    languages and a number of sentence pairs, or no pair is left.
    """
    found: dict[Pair, list[int]] = {}
    left_out: set[str] = set()
    for number, line in enumerate(text_files.read_lines(path), start=1):
        cells = line.split("\t")
        is_row = len(cells) == 3 and cells[0] != cells[1]
        is_row = is_row and all(map(text_files.is_language, cells[:2]))
        if not (is_row and cells[2].isdecimal() and int(cells[2])):
            raise ValueError(
                f"{path}, line {number}: {line!r} must be two different languages, such as en and "
                "zh_Hant, and their number of sentence pairs, 1 or more, between tabs; remove "
                "headers and other columns"
            )
        one, two = sorted(cells[:2])
        if unknown := {one, two}.difference(languages or (one, two)):
            left_out |= unknown
            continue
        found.setdefault((one, two), []).append(int(cells[2]))
    named = ", ".join(sorted(left_out))
    if not found:
        raise ValueError(
            f"{path}: no pair is of two languages of corpus.languages, {', '.join(languages)}; the "
            f"others are {named}: add them, or spell them as there"
        )
    if left_out:
        logging.info("%s: left out languages that corpus.languages lacks: %s", path, named)
    return found


def _examples(
    config: ConfigDict, dataset: data_builders.PackedDataset | None, sampling: PairSampling
) -> float:
    """Return the number of sentence pairs in the run; a lower bound if lengths are unknown."""
    if _EXAMPLES.value:
        return float(_EXAMPLES.value)
    data = data_builders.data_settings(config)
    config = config if dataset is None else seen.with_steps(config, dataset)
    steps, share = config.train.num_steps, data.pair_share + data.contrast_share
    if not share:
        raise ValueError(
            "data.pair_share and data.contrast_share are 0, so the run draws no pairs; set one, or "
            "give their number with --examples"
        )
    if dataset is None:
        return steps * share * config.train.batch_size  # a row has one pair at least
    shares = None if sampling.method == "alpha" else sampling.shares()
    return steps * streams.pairs_per_step(config, dataset, shares)
