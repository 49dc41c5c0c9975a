"""Pre-train an encoder on the packed dataset of a working directory.

    python train.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/rows, writes checkpoints and metrics to DIR/train. Rerun the command to resume from the
latest checkpoint, on CPUs bit for bit. On SIGTERM or Ctrl-C it completes the step in flight, saves,
and ends with status 75 (docs/resume.md). On several hosts, start the same command on each with
--distributed. Without a cluster manager, such as Slurm or a TPU pod, add --coordinator,
--num_processes and --process_id.
"""

from absl import flags
from ml_collections import config_flags

from xlm.cli import endings
from xlm.experiment import model, schema
from xlm.experiment.experiment import Experiment
from xlm.training import hosts
from xlm.training.signals import exit_if_stopped

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_CONTINUE_FROM = flags.DEFINE_integer(
    "continue_from",
    None,
    "Step of a checkpoint from which to resume with other settings; docs/training.md.",
    lower_bound=1,
)
_join_hosts = hosts.define_flags()


OPTIONS = {"on_out_of_memory": endings.advice, "help_on": schema.help_of}


def main(_) -> None:
    experiment = Experiment(_CONFIG.value, _WORKDIR.value)
    if experiment.is_task:
        raise ValueError(f"--config is of the task {experiment.config.task.name}: run finetune.py")
    model.set_up_compilation(experiment.config)
    _join_hosts()
    with exit_if_stopped():
        experiment.train(continue_from=_CONTINUE_FROM.value)
    if hosts.is_first():
        endings.show(endings.of_training(experiment.folders.train))
