"""Merge models of the same vocabulary and architecture into one.

    xlm merge --model=FOLDER --model=FOLDER --output=FOLDER
    xlm merge --model=RUN --last=5 --output=FOLDER
    xlm merge --model=A --model=B --base=BEFORE --method=ties --output=FOLDER

FOLDER is a run of train.py, or comes from xlm export or xlm import. The first command writes the
mean of all parameters, the second that of a run's last five checkpoints. The third is TIES
(Yadav et al. 2023), for branches that began at the same model, --base: of each difference from it
the largest --density stays, signs are elected, and what agrees is averaged. `train.init_from` and
finetune.py read the output, as the next phase of a training does.
"""

import dataclasses
import pathlib

import jax
from absl import flags, logging

from xlm.common import outputs
from xlm.experiment.pretrained import Pretrained, read_last, read_pretrained
from xlm.interop import model_folder
from xlm.training.averaging import mean_params, ties

_MODELS = flags.DEFINE_multi_string("model", None, "A run or a model's folder; repeatable.")
_METHOD = flags.DEFINE_enum("method", "mean", ("mean", "ties"), "How parameters are merged.")
_BASE = flags.DEFINE_string("base", None, "The run or folder before the branches, for ties.")
_DENSITY = flags.DEFINE_float(
    "density", 0.2, "Share of each branch's differences that ties keeps.", 0.0, 1.0
)
_LAST = flags.DEFINE_integer("last", 1, "Checkpoints of each run that are averaged first.", 1)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")

OPTIONS = {"required": ("model", "output")}


def main(_) -> None:
    if (_METHOD.value == "ties") != (_BASE.value is not None):
        raise ValueError(
            f"--method is {_METHOD.value} and --base is {_BASE.value}; ties needs the model before "
            "the branches as --base, and mean takes none"
        )
    if len(_MODELS.value) == 1 and _LAST.value == 1:
        raise ValueError("--model is given once; name two models or more, or --last checkpoints")
    with outputs.folder(_OUTPUT.value, overwrite=False) as aside:
        first = _read(_MODELS.value[0])
        others = (_like(first, name) for name in _MODELS.value[1:])
        trees = (one.params for one in (first, *others))
        if _METHOD.value == "ties":
            params = ties(_like(first, _BASE.value).params, trees, _DENSITY.value)
        else:
            params = jax.device_get(mean_params(trees))
        model_folder.write_model(aside, params, dataclasses.asdict(first.settings), first.tokenizer)
    logging.info("merged %d models into %s", len(_MODELS.value), _OUTPUT.value)


def _read(name: str) -> Pretrained:
    if _LAST.value == 1:
        return read_pretrained(name, keeps_decoder=True)
    found, steps = read_last(pathlib.Path(name), _LAST.value)
    logging.info("%s: the mean of steps %s", name, steps)
    return found


def _like(first: Pretrained, name: str) -> Pretrained:
    """Read a model; ValueError unless it has the tokenizer and the parameters of the first."""
    found = _read(name)
    if found.tokenizer != first.tokenizer:
        raise ValueError(
            f"{name} has another tokenizer than {_MODELS.value[0]}; merge only models "
            "of one vocabulary"
        )
    shapes = [
        {jax.tree_util.keystr(path): x.shape for path, x in jax.tree.leaves_with_path(one.params)}
        for one in (first, found)
    ]
    if differing := sorted(set(shapes[0].items()) ^ set(shapes[1].items())):
        raise ValueError(
            f"{name} and {_MODELS.value[0]} differ in {differing[0][0]}, here "
            f"{shapes[1].get(differing[0][0], 'none')}, there "
            f"{shapes[0].get(differing[0][0], 'none')}; merge only models of one architecture"
        )
    return found
