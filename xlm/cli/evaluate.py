"""Evaluate the latest checkpoint of a working directory, and write the report of the whole job.

    python evaluate.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/vocab, DIR/rows and DIR/train. Writes DIR/report: results.json, plots and report.md, which
opens with the loss against the unigram level and examples of predictions. On several hosts, start
the same command on each, with the flags of train.py; the first one writes.
"""

from absl import flags
from ml_collections import config_flags

from xlm.cli import endings
from xlm.experiment import schema
from xlm.experiment.experiment import Experiment
from xlm.training import compilation, hosts

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_join_hosts = hosts.define_flags()


OPTIONS = {"on_out_of_memory": endings.advice, "help_on": schema.help_of}


def main(_) -> None:
    compilation.use_cache()
    _join_hosts()
    path = Experiment(_CONFIG.value, _WORKDIR.value).evaluate()
    if hosts.is_first():
        endings.show(endings.of_report(path))
