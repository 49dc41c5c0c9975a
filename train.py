"""Pre-trains an encoder on the rows of a working directory.

    python train.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/rows, writes checkpoints and metrics to DIR/train. Run again after a stop, it goes on
from the latest checkpoint as if nothing had happened. On several hosts, start the same command on
each with --distributed.
"""

import pathlib

import jax
from absl import flags, logging
from ml_collections import config_flags

import entry_point
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
    stage = data_builders.open_train_stage(config, folders)
    mesh = builders.mesh(config)
    objective = builders.objective(config, store, mesh)
    program = builders.program(config, objective, store, mesh)
    stage.claim()  # the checkpoints depend on the settings, the last one and all before it
    train(
        program,
        builders.train_settings(config),
        folders.train,
        builders.batches(config, store),
        evaluators=[
            builders.exact_masked_lm(config, objective, store, in_training=True),
            builders.sampled_loss(config, objective, store),
        ],
    )
    stage.finish()


if __name__ == "__main__":
    entry_point.run(main)
