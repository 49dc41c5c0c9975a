"""Settings of the study of translation: starting points, tasks, folders."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from common import artifacts
from configs.finetune import multi30k
from studies import runs

SEARCH = "search.json"
# Runs of configs/veco.py; the first has the data.
VECO, XLM, XLM_TEXT = "translation", "translation_xlm", "translation_xlm_text"


@dataclasses.dataclass(frozen=True)
class Start:
    """Starting point of a model.

    Attributes:
      label: in tables.
      encoder: pre-training of `configs/veco.py` that it starts from; None for random parameters, of
        the sizes that all have.
      end: layers that the decoder starts from, the "first" or the "last".
      layers: number of layers of the decoder.
    """

    label: str
    encoder: str | None
    end: str = "last"
    layers: int = 2


RANDOM = "random"
STARTS = {
    RANDOM: Start("random parameters", None),
    "xlm_text": Start("MLM, random cross-attention", XLM_TEXT),
    "xlm": Start("MLM + TLM, random cross-attention", XLM),
    "veco_first": Start("VECO, first two layers", VECO, "first"),
    "veco_last": Start("VECO, last two layers", VECO),
    "veco_last_one": Start("VECO, last layer", VECO, layers=1),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """Task of translation.

    Attributes:
      label: in tables.
      direction: such as "en-de".
      folder: of the files, below `corpus.root`.
      change: changed keys of `configs/finetune/multi30k.py`.
    """

    label: str
    direction: str
    folder: str
    change: Mapping[str, Any]


_SETS = ("newssyscomb2009", *(f"newstest{year}" for year in range(2008, 2013)))
_NEWS = {
    "task.train": (
        *(f"train/{name}.{{{side}}}.txt.xz" for name in _SETS for side in ("source", "target")),
        *(f"train/newstest{year}.{{source}}-{{target}}.tsv.xz" for year in (2015, 2016, 2017)),
    ),
    "task.validation": tuple(
        f"dev/newstest2013.{{{side}}}.txt.xz" for side in ("source", "target")
    ),
    "task.test": ("train/newstest2018.{source}-{target}.tsv.xz",),
    "task.max_length": 96,
    "task.buckets": (32, 64),
    "decoding.max_length": 96,
}
TASKS = {
    "captions_en_de": Task("Multi30k, en-de", "en-de", "multi30k", {}),
    "captions_en_fr": Task("Multi30k, en-fr", "en-fr", "multi30k", {}),
    "captions_en_cs": Task("Multi30k, en-cs", "en-cs", "multi30k", {}),
    "news_en_de": Task("WMT news, en-de", "en-de", "wmt_news", _NEWS),
}


@dataclasses.dataclass(frozen=True)
class Study(runs.Stages):
    """Settings of the study.

    Attributes:
      config: config of the run `translation`.
      workdir: folder of the results.
      tasks, starts: those to run; the first task selects the rates.
      seeds: of pre-training and fine-tuning; the first selects the rates.
      scales: factors of the learning rates of fine-tuning.
      steps: of fine-tuning.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    config: ConfigDict
    workdir: pathlib.Path
    tasks: Sequence[str]
    starts: Sequence[str]
    seeds: Sequence[int]
    scales: Sequence[str]
    steps: int
    workers: int
    pin: bool

    def encoder(self, run: str, seed: int) -> pathlib.Path:
        """Return the working directory of a pre-training."""
        return self.workdir / "encoders" / run / f"seed{seed}"

    def folder(self, task: str, start: str, scale: str, seed: int) -> pathlib.Path:
        """Return the working directory of a run of finetune.py."""
        return self.workdir / "runs" / task / start / scale / f"seed{seed}"

    def record(self, task: str, start: str, scale: str, seed: int) -> dict[str, Any] | None:
        """Return the record of a finished run, see `studies.translation`; None if unfinished."""
        path = self.folder(task, start, scale, seed) / "record.json"
        return artifacts.read_json(path) if path.exists() else None

    def chosen_scale(self, start: str) -> str | None:
        """Return the scale with the best development BLEU; None while one is missing."""
        task, seed = self.tasks[0], self.seeds[0]
        found = {one: self.record(task, start, one, seed) for one in self.scales}
        scores = {one: record["validation"]["bleu"] for one, record in found.items() if record}
        if len(scores) < len(self.scales):
            return None
        return max(scores, key=lambda one: scores[one])

    def config_of(self, task: str) -> ConfigDict:
        """Return the config of a task, which its runs change."""
        root = pathlib.Path(self.config.corpus.root).absolute() / TASKS[task].folder
        config = multi30k.get_config(f"{TASKS[task].direction},{root}")
        config.update_from_flattened_dict(TASKS[task].change)
        return config
