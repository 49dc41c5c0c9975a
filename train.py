"""Pre-trains an encoder on the rows of a working directory.

    python train.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/rows, writes checkpoints and metrics to DIR/train. Run again after a stop, it goes on
from the latest checkpoint as if nothing had happened. On several hosts, start the same command on
each with --distributed.
"""

import pathlib

import jax
from absl import app, flags, logging
from ml_collections import config_flags

import artifacts
from builders import data as data_builders
from builders import model as builders
from training.loop import train

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "This is one of several hosts.")


def main(_) -> None:
    if _DISTRIBUTED.value:
        jax.distributed.initialize()
    logging.info("process %d of %d", jax.process_index() + 1, jax.process_count())
    logging.info("devices: %s", jax.devices())
    config, folders = _CONFIG.value, data_builders.Folders(pathlib.Path(_WORKDIR.value))

    store = data_builders.open_row_store(folders)
    stage = artifacts.open_stage(
        folders.train,
        {
            "rows": artifacts.read_json(folders.rows / "settings.json"),
            # How batches are loaded does not change them.
            "data": {key: config.data[key] for key in ("alpha", "across_documents")},
            **{
                section: config[section].to_dict()
                for section in ("model", "mask", "output_layer", "optimizer", "train")
            },
        },
    )
    objective = builders.objective(config, store)
    program = builders.program(config, objective, store)
    stage.claim()  # the checkpoints depend on the settings, the last one and all before it
    train(
        program,
        builders.train_settings(config),
        folders.train,
        builders.batches(config, store),
        evaluators=[builders.exact_masked_lm(config, objective, store, in_training=True)],
    )
    stage.finish()


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main)
