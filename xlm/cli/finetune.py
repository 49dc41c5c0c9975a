"""Fine-tune an encoder on a task, and evaluate it in every language.

    python finetune.py --config=configs/finetune/udpos.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

CHECKPOINT is a working directory of train.py, or a folder of xlm import. DIR/best.safetensors keeps
the parameters with the best score on the development data, DIR/results.json the scores,
DIR/predictions the predictions. Rerun the command to resume. Tatoeba and BUCC evaluate the encoder
as it is, without training. xlm table makes one table of many runs; predict.py takes a user's own
text. On several hosts, start the same command on each with the flags that train.py has; the first
writes.
"""

import pathlib
import sys

from absl import flags, logging
from ml_collections import config_flags

from xlm.evaluation import task_results
from xlm.experiment import memory, schema, task_runs
from xlm.experiment.model import set_up_compilation
from xlm.experiment.task_schema import FINE_TUNING, TRANSLATION
from xlm.experiment.task_settings import task_settings
from xlm.training import hosts
from xlm.training.signals import EXIT_STOPPED, Stopped

_CONFIG = config_flags.DEFINE_config_file("config", None, "E.g. configs/finetune/udpos.py:DATA.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_join_hosts = hosts.define_flags()

_KEYS = {**TRANSLATION, **FINE_TUNING}
OPTIONS = {
    "on_out_of_memory": lambda: memory.advice(_CONFIG.value),
    "help_on": lambda section: schema.help_of(_KEYS, section),
}


def main(_) -> None:
    config = task_runs.checked(_CONFIG.value)
    set_up_compilation(config)
    _join_hosts()
    folder = pathlib.Path(_WORKDIR.value)
    try:
        results = task_runs.run(config, folder)
    except Stopped as stopped:
        logging.info("%s", stopped)
        sys.exit(EXIT_STOPPED)
    if hosts.is_first():
        print(task_results.table(task_settings(config).task, results))
        print(f"results: {(folder / task_runs.RESULTS).absolute()}")
