"""Merge models of the same vocabulary and architecture into one.

    xlm merge --model=FOLDER --model=FOLDER --output=FOLDER
    xlm merge --model=RUN --last=5 --output=FOLDER
    xlm merge --model=A --model=B --base=BEFORE --method=ties --output=FOLDER

FOLDER is a run of train.py, or comes from xlm export or xlm import. The first command writes the
mean of all parameters, the second the mean of a run's last five checkpoints. The third is TIES
(Yadav et al. 2023), for branches of one model, --base. It keeps the largest share --density of each
branch's differences from it, elects signs, and averages the differences that agree.
`train.init_from` and finetune.py read the output, and so does a next phase of training.
"""

from absl import flags, logging

from xlm.common import outputs
from xlm.experiment import merging

_MODELS = flags.DEFINE_multi_string("model", None, "A run or a model's folder; repeatable.")
_METHOD = flags.DEFINE_enum("method", "mean", ("mean", "ties"), "How parameters are merged.")
_BASE = flags.DEFINE_string("base", None, "The run or folder before the branches, for ties.")
_DENSITY = flags.DEFINE_float(
    "density", 0.2, "Share of each branch's differences that ties keeps.", 0.0, 1.0
)
_LAST = flags.DEFINE_integer("last", 1, "Last checkpoints of each run to average first.", 1)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")

OPTIONS = {"required": ("model", "output")}


def main(_) -> None:
    with outputs.folder(_OUTPUT.value, overwrite=False) as aside:
        merging.merge(
            aside, _MODELS.value, _METHOD.value, _BASE.value, density=_DENSITY.value,
            last=_LAST.value,
        )  # fmt: skip
    logging.info("merged %d models into %s", len(_MODELS.value), _OUTPUT.value)
