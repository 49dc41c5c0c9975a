"""Build a vocabulary: one model of a tokenizer, with a report, from text per language.

    python build_vocab.py --config=configs/quickstart.py --workdir=DIR

Writes DIR/vocab/spm.model, report.md with its plots, and allocation.json with curves, probabilities
and every step. Rerun it with other settings of the `vocab` section before DIR/rows exists, and it
recomputes only the steps that depend on them. --config.vocab.tables=FOLDER reads the tables of xlm
count instead of text. --config.vocab.method=byte_bpe writes DIR/vocab/tokenizer.json instead of
spm.model, for xlm export-tokenizer.

--config.vocab.tokenizer=PATH builds nothing: DIR/vocab/spm.model becomes an existing SentencePiece
model (unigram or BPE) or Unigram tokenizer.json, such as XLM-R's, with the special tokens at this
project's ids.
"""

from absl import flags
from ml_collections import config_flags

from xlm.experiment import schema
from xlm.experiment.experiment import Experiment

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")

OPTIONS = {"help_on": schema.help_of}


def main(_) -> None:
    experiment = Experiment(_CONFIG.value, _WORKDIR.value)
    experiment.build_vocab()
