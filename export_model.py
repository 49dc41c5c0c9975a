"""Writes the latest checkpoint of a working directory as a folder of `transformers`.

    python export_model.py --config=configs/quickstart.py --workdir=DIR --output=FOLDER

`AutoModelForMaskedLM.from_pretrained(FOLDER)` and `AutoTokenizer.from_pretrained(FOLDER)` read the
result, an XLM-R; so do import_model.py and prune_model.py. docs/interop.md has more.
"""

import dataclasses
import pathlib

import jax
from absl import flags, logging
from ml_collections import config_flags

import entry_point
from builders import data as data_builders
from builders import model as builders
from builders import objectives
from builders.masked_lm import masked_lm_of
from interop import xlm_roberta

_CONFIG = config_flags.DEFINE_config_file("config", None, "What was done, the config of train.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where it was done.")
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")


def main(_) -> None:
    config, folders = _CONFIG.value, data_builders.Folders(pathlib.Path(_WORKDIR.value))
    output = pathlib.Path(_OUTPUT.value)

    store = data_builders.open_row_store(folders)
    data_builders.open_train_stage(config, folders)  # refuses the checkpoints of another config
    # Before the checkpoint is read: the folder may be at fault.
    encoder = masked_lm_of(objectives.objective(config, store)).encoder
    sizes = dataclasses.asdict(encoder.settings)
    xlm_roberta.check_writable(output, sizes)
    trained = builders.restore(config, store, folders)
    params = jax.device_get(trained.params)
    xlm_roberta.write_model(output, params, sizes, folders.read_tokenizer())
    logging.info("wrote the model of step %d to %s", trained.step, output)


if __name__ == "__main__":
    entry_point.run(main, required=("config", "workdir", "output"))
