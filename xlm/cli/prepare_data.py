"""Tokenise a corpus once into the packed dataset that training and evaluation read.

    python prepare_data.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/vocab/spm.model and writes DIR/rows. Each task streams an input file or a part of one.
Rerun the command to resume with the remaining tasks. --dask or --beam runs them on other machines.
--verify compares a finished dataset with the checksums of its manifest.
"""

import contextlib

from absl import flags
from ml_collections import config_flags

from xlm.common import executors
from xlm.experiment import rows, schema
from xlm.experiment.experiment import Experiment

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
executors.define_flags()
_VERIFY = flags.DEFINE_bool("verify", False, "Read a finished dataset and check its SHA-256.")

OPTIONS = {"help_on": schema.help_of}


def main(_) -> None:
    experiment = Experiment(_CONFIG.value, _WORKDIR.value)
    if _VERIFY.value:
        rows.verify(experiment.folders)
    else:
        with executors.remote(_WORKDIR.value) or contextlib.nullcontext() as executor:
            experiment.prepare(executor=executor)
