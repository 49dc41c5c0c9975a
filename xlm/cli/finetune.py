"""Fine-tune an encoder on a task, and evaluate it in every language.

    python finetune.py --config=configs/finetune/udpos.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

CHECKPOINT is a working directory of train.py, or a folder of xlm import. DIR/best.safetensors has
the parameters with the best score on the development data, DIR/results.json the scores, and
DIR/predictions the predictions. Rerun the command to resume. Tatoeba and BUCC evaluate the encoder
without training. xlm table makes one table of many runs; predict.py takes a user's own text. On
several hosts, start the same command on each, with the flags of train.py; the first one writes.
--tune=MINUTES first tries settings on the development data, in DIR/tuning. --seeds=3 makes three
runs, with mean and spread in DIR/seeds.json.
"""

import sys

from absl import flags
from ml_collections import config_flags

from xlm.cli import endings
from xlm.common import artifacts
from xlm.evaluation import task_results
from xlm.evaluation.label_analysis import REMEDY
from xlm.experiment import schema
from xlm.experiment.experiment import Experiment
from xlm.experiment.model import set_up_compilation
from xlm.experiment.task_schema import FINE_TUNING, TRANSLATION
from xlm.experiment.task_settings import task_settings
from xlm.training import hosts
from xlm.training.signals import exit_if_stopped

_CONFIG = config_flags.DEFINE_config_file("config", None, "E.g. configs/finetune/udpos.py:DATA.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_TUNE = flags.DEFINE_float(
    "tune", 0.0, "Minutes to try other settings in, on development data.", lower_bound=0.0
)
_SEEDS = flags.DEFINE_integer(
    "seeds", 0, "Runs that differ in train.seed, in WORKDIR/seed0 and so on.", lower_bound=0
)
_join_hosts = hosts.define_flags()

OPTIONS = {
    "on_out_of_memory": endings.advice,
    "help_on": lambda section: schema.help_of(section, {**TRANSLATION, **FINE_TUNING}),
}


def main(_) -> None:
    experiment = Experiment(_CONFIG.value, _WORKDIR.value)
    if not experiment.is_task:
        raise ValueError("--config has no section task, so it is for pre-training: run train.py")
    set_up_compilation(experiment.config)
    _join_hosts()
    with exit_if_stopped():
        if _TUNE.value:
            experiment.tune(_TUNE.value)
        path = experiment.evaluate(seeds=_SEEDS.value)
    if hosts.is_first():
        if _SEEDS.value:
            results = artifacts.read_object(path)
            print(task_results.seeds_table(results))
        else:
            task, results = task_settings(experiment.config).task, task_results.read_results(path)
            print(task_results.table(task, results))
        print(f"results: {path.absolute()}")
        if results.get("collapse"):
            print(f"warning: the model has collapsed; {REMEDY}", file=sys.stderr)
            sys.exit(experiment.config.evaluation.collapse_status)
