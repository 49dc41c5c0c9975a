"""Folders that cases begin with, made once each: text, rows, a run, models, data of tasks."""

import contextlib
import functools
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import numpy as np

from tests import tiny_tasks
from tests.malformed import harness
from tests.task_results import task_results
from xlm.common import artifacts
from xlm.experiment import fine_tuning
from xlm.experiment import pretrained as pretrained_builders
from xlm.interop.params_file import write_params
from xlm.training.checkpoint import Checkpoints
from xlm.training.settings import TrainSettings

LANGUAGES = ("en", "sw")
# Small, and without what would be compiled.
_KEYS = {
    "corpus.root": "DIR/text", "corpus.parallel": "('*.tsv',)", "corpus.languages": "('en','sw')",
    "store.length": "32", "store.parallel_length": "16", "model.max_length": "64",
    "train.batch_size": "8",
}  # fmt: skip
TASK = ("--config.init_from=DIR/encoder", "--workdir=DIR/work")


def config(**changes: str) -> tuple[str, ...]:
    """Flags of a command: a config with changes, key, with __ for its dot -> value."""
    keys = {**_KEYS, **{key.replace("__", ".", 1): value for key, value in changes.items()}}
    flags = (f"--config.{key}={value}" for key, value in keys.items())
    return ("--config=configs/quickstart.py:runlocal", *flags, "--workdir=DIR/work")


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Commands do not train."""

    def train(*args, **kwargs):
        raise harness.ReachedTraining

    with (
        mock.patch("xlm.experiment.training.train", train),
        mock.patch("xlm.experiment.task_runs.train", train),
        mock.patch("xlm.experiment.translation_runs.train", train),
    ):
        yield


def text(folder: pathlib.Path) -> None:
    """Text in two languages and in both, and a tokenizer."""
    sentences = [f"the {one} {two} ." for one in ("cat", "dog") for two in ("runs", "sleeps")]
    for language in LANGUAGES:
        tiny_tasks.write(folder / f"text/{language}.txt", "\n\n".join(sentences * 3) + "\n")
    rows = "".join(f"{sentence}\t{sentence}\n\n" for sentence in sentences * 2)
    tiny_tasks.write(folder / "text/en-sw.tsv", rows)
    artifacts.write_bytes(folder / "work/vocab/spm.model", tiny_tasks.tokenizer())


def rows(folder: pathlib.Path) -> None:
    text(folder)
    with quick():
        arguments = [one.replace("DIR", str(folder)) for one in config()]
        result = harness.run("prepare_data", arguments)
    if result.status:
        raise AssertionError(result.errors)


def model(folder: pathlib.Path) -> None:
    shutil.copytree(tiny_tasks.encoder_folder(0), folder / "model")
    artifacts.write_bytes(folder / "new.model", tiny_tasks.tokenizer())
    tiny_tasks.write(folder / "en.txt", "the cat runs\n")


def tasks(folder: pathlib.Path) -> None:
    shutil.copytree(tiny_tasks.data_folder(), folder / "data")
    shutil.copytree(tiny_tasks.encoder_folder(0), folder / "encoder")


def run_config(**changes: str) -> tuple[str, ...]:
    """As `config`, of a run that compiles in a moment."""
    kept = {
        "model__num_layers": "0", "output_layer__kind": "full", "optimizer__kind": "adamw",
        "evaluation__retrieval_layer": "0",
    }  # fmt: skip
    return config(**{**kept, **changes})


def run(folder: pathlib.Path) -> None:
    rows(folder)

    def save(functions: Any, settings: TrainSettings, folder: pathlib.Path, *_, **__) -> None:
        with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
            checkpoints.save(1, functions.init(np.int32(settings.seed)))

    with quick(), mock.patch("xlm.experiment.training.train", save):
        result = harness.run("train", [one.replace("DIR", str(folder)) for one in run_config()])
    if result.status:
        raise AssertionError(result.errors)


def finished(folder: pathlib.Path) -> None:
    """A run of finetune.py that has ended, with parameters of zero, and text to predict on."""
    settings = tiny_tasks.config("pawsx", num_layers=0)
    pretrained = pretrained_builders.read_pretrained(settings.init_from)
    encoder = fine_tuning.encoder_settings(settings, pretrained.settings)
    objective = fine_tuning.with_head(settings, encoder)
    shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    params = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), shapes)
    notes = {**fine_tuning.model_notes(objective, pretrained), "step": 1, "value": 0.5}
    write_params(folder / "pairs/best.safetensors", params, notes)
    artifacts.write_json(folder / "pairs/results.json", task_results("pawsx", {"en": 0.5}))
    artifacts.write_json(folder / "pairs/settings.json", settings.to_dict())
    artifacts.write_bytes(folder / "pairs/spm.model", pretrained.tokenizer)
    tiny_tasks.write(folder / "in.txt", "the cat\tthe dog\n")
    shutil.copytree(tiny_tasks.encoder_folder(0), folder / "encoder")


TEMPLATES: dict[str, Callable[[pathlib.Path], None]] = {
    one.__name__: one for one in (text, rows, model, tasks, run, finished)
}


@functools.cache
def template(name: str) -> pathlib.Path:
    folder = tiny_tasks.scratch() / "templates" / name
    folder.mkdir(parents=True)
    TEMPLATES[name](folder)
    return folder


def truncate(path: pathlib.Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
