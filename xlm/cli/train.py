"""Pre-train an encoder on the packed dataset of a working directory.

    python train.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/rows, writes checkpoints and metrics to DIR/train. If it is run again after a stop, it
resumes from the latest checkpoint, on CPUs bit for bit. On SIGTERM or Ctrl-C it completes the step
in flight, saves, and ends with status 75 (docs/training.md). On several hosts, start the same
command on each with --distributed; where no cluster manager, such as Slurm or a TPU pod, introduces
the hosts to each other, with --coordinator, --num_processes and --process_id as well.
"""

import functools
import pathlib
import sys

from absl import flags, logging
from ml_collections import config_flags

from xlm.common import entry_point
from xlm.experiment import data as data_builders
from xlm.experiment import memory, objectives, schema
from xlm.experiment import model as builders
from xlm.experiment.evaluators import training_evaluators
from xlm.experiment.initial import initial_params
from xlm.experiment.robust import training_data
from xlm.training import hosts, rewind
from xlm.training.loop import train
from xlm.training.signals import EXIT_STOPPED, Stopped, StopRequest

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_CONTINUE_FROM = flags.DEFINE_integer(
    "continue_from",
    None,
    "Step of a checkpoint from which to resume with other settings; docs/training.md.",
    lower_bound=1,
)
_join_hosts = hosts.define_flags()


def main(_) -> None:
    config = schema.checked(_CONFIG.value)
    builders.set_up_compilation(config)
    _join_hosts()
    folders = data_builders.Folders(pathlib.Path(_WORKDIR.value))

    store = data_builders.open_packed_dataset(folders)
    begins_at = _CONTINUE_FROM.value
    stage = data_builders.open_train_stage(config, folders, begins_at)
    mesh = builders.mesh(config)
    data = training_data(config, store, mesh, folders.train)
    objective = objectives.objective(config, store, mesh)
    builders.log_table_reads(config, objective, store)
    functions = builders.train_functions(config, objective, mesh)
    start = initial_params(config, objective, folders)
    settings = builders.train_settings(config)
    evaluators = training_evaluators(config, objective, store, mesh)
    # Claimed after all checks and before anything is written, which depends on the settings.
    try:
        claims = begins_at is None
        with hosts.held(stage, claims=claims), StopRequest() as should_stop:
            if begins_at is not None and not stage.claimed:
                by_rows = config.optimizer.embedding_update == "rows"
                rewind.rewind(folders.train, begins_at, functions, by_rows=by_rows)
                if hosts.is_first():
                    stage.claim()
            train(
                functions,
                settings,
                folders.train,
                data,
                evaluators,
                initial_params=start,
                should_stop=should_stop,
            )
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}{rewind.advice(folders.train)}") from error
    except Stopped as stopped:
        logging.info("%s", stopped)
        sys.exit(EXIT_STOPPED)
    if hosts.is_first():
        stage.finish()


def run() -> None:
    entry_point.run(
        main,
        on_out_of_memory=lambda: memory.advice(_CONFIG.value),
        help_on=functools.partial(schema.help_of, schema.PRETRAINING),
    )
