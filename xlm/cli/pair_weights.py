"""Report the language pairs that robust sampling re-weighted most, with examples of their text.

    xlm pair-weights --config=configs/xy_lent.py:small,DATA --workdir=DIR \\
      --config.robust.num_phases=10

Give it the --config and flags of a run of train.py with `robust.num_phases` above 0. It reads the
phases in DIR/train/pair_weights.json, even during training, and sentence pairs from DIR/rows. It
writes report.md, report.html, a plot and pair_weights.json to DIR/report/pairs (XY-LENT Section
6.6, Figure 4). They list pairs whose losses their languages do not explain. `evaluation.seed` draws
the examples, independently of the weights.
"""

import pathlib

import numpy as np
import sentencepiece as spm
from absl import flags
from ml_collections import config_flags

from input_pipeline.bitext import language_pairs, pair_names
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.pair_phases import load_pair_record
from input_pipeline.pair_rows import PairRows
from xlm.common import html_report
from xlm.evaluation import pair_report
from xlm.experiment import data as data_builders
from xlm.experiment import output_layers, schema, seen
from xlm.experiment.robust import RECORD

_CONFIG = config_flags.DEFINE_config_file("config", None, "The config of train.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The working directory of the run.")
_PAIRS = flags.DEFINE_integer("pairs", 10, "Pairs to list at each end.", lower_bound=1)

OPTIONS = {"required": ("config", "workdir")}


def main(_) -> None:
    config = schema.checked(_CONFIG.value)
    folders = data_builders.Folders(pathlib.Path(_WORKDIR.value))
    dataset = data_builders.open_packed_dataset(folders)
    config = output_layers.resolved(seen.with_steps(config, dataset), dataset, folders)
    data_builders.open_train_stage(config, folders)  # refuses the record of another config
    record = load_pair_record(folders.train / RECORD)
    processor = spm.SentencePieceProcessor(model_proto=folders.read_tokenizer())
    examples = pair_examples(dataset, processor, data_builders.evaluation_settings(config).seed)
    languages = dict(zip(pair_names(dataset), language_pairs(dataset), strict=True))
    folder = folders.report / "pairs"
    print(pair_report.write_pair_report(record, languages, examples, folder, _PAIRS.value))
    print(f"report: {(folder / html_report.MARKDOWN).absolute()}")


def pair_examples(
    dataset: PackedDataset, processor: spm.SentencePieceProcessor, seed: int
) -> pair_report.Examples:
    """Build a function that draws sentence pairs of a pair from rows of all sets, by `seed`."""
    pairs = {"-".join(pair): (number, pair) for number, pair in enumerate(language_pairs(dataset))}

    def examples(name: str, count: int) -> list[tuple[str, str]]:
        number, pair = pairs[name]
        rows = [PairRows(dataset, bitext, pair) for bitext in dataset.bitexts]
        ends, rng = np.cumsum([*map(len, rows)]), np.random.default_rng([seed, number])
        found = []
        for drawn in rng.choice(ends[-1], min(count, ends[-1]), replace=False):
            place = np.searchsorted(ends, drawn, side="right")
            tokens = rows[place].entry(int(drawn - ends[place]) + len(rows[place]))
            for one in np.split(tokens, np.flatnonzero(tokens == dataset.special.bos))[1:]:
                first, _, second, _ = np.split(one, np.flatnonzero(one == dataset.special.eos))
                found.append(tuple(processor.decode(x[1:].tolist()) for x in (first, second)))
        return [found[i] for i in rng.choice(len(found), min(count, len(found)), replace=False)]

    return examples
