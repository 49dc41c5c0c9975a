"""Settings of the study of XY-LENT in small: its arms, their groups, their folders."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from configs.xy_lent import SMALL
from studies import runs

REFERENCE = "small"
# Label of each arm, which is a run of `configs.xy_lent.SMALL`.
LABELS = {
    "small": "RTD, many-to-many pairs by Eq. 2",
    "small_english": "pairs with English only",
    "small_mlm": "MLM + TLM",
    "small_2x": "twice the vocabulary",
    "small_m2m": "pairs by Eq. 1",
    "small_proportional": "pairs in proportion",
    "small_shared": "shared embeddings",
    "small_separate": "separate embeddings",
    "small_lambda10": "lambda 10",
    "small_adamw": "AdamW",
    "small_generator2": "generator of two layers",
}
# Title and arms of each group: a table and a plot.
GROUPS = {
    "learning": ("Does it learn?", ("small",)),
    "ablation": (
        "Embeddings, lambda, optimizer, depth of the generator",
        (
            "small", "small_shared", "small_separate", "small_lambda10", "small_adamw",
            "small_generator2",
        ),
    ),
    "table2": (
        "The arms of Table 2: pairs, objective, vocabulary",
        ("small", "small_english", "small_mlm", "small_2x"),
    ),
    "sampling": (
        "Sampling of language pairs", ("small", "small_m2m", "small_proportional"),
    ),
}  # fmt: skip
# Groups whose encoders are fine-tuned.
TUNED = ("table2", "sampling")

_OF_DATA = ("corpus.", "vocab.", "store.")


def data_name(arm: str) -> str:
    """Name of the vocabulary and packed rows of an arm: the first arm with equal settings."""
    return next(name for name in SMALL if _data_keys(name) == _data_keys(arm))


def _data_keys(arm: str) -> dict[str, Any]:
    return {key: value for key, value in SMALL[arm].items() if key.startswith(_OF_DATA)}


@dataclasses.dataclass(frozen=True)
class Study(runs.Stages):
    """Settings of a run of the study.

    Attributes:
      config: config of the arm `REFERENCE`, from which the others differ.
      workdir: folder of the results.
      arms: arms to run.
      seeds: of pre-training and fine-tuning; the first selects the rates.
      tasks: tasks to fine-tune on, see `xy_lent_tasks.TASKS`.
      rates: learning rates of fine-tuning.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    config: ConfigDict
    workdir: pathlib.Path
    arms: Sequence[str]
    seeds: Sequence[int]
    tasks: Sequence[str]
    rates: Sequence[str]
    workers: int
    pin: bool

    def encoder(self, arm: str, seed: int) -> pathlib.Path:
        """Return the working directory of a pre-training."""
        return self.workdir / "encoders" / arm / f"seed{seed}"

    def record(self, arm: str, seed: int) -> pathlib.Path:
        """Return the file with the results of a pre-training."""
        return self.encoder(arm, seed) / "record.json"

    def data(self, arm: str) -> pathlib.Path:
        """Return the folder with the vocabulary and the packed rows of an arm."""
        return self.workdir / "data" / data_name(arm)

    def config_of(self, arm: str) -> ConfigDict:
        """Return the config of an arm."""
        config = self.config.copy_and_resolve_references()
        config.update_from_flattened_dict(SMALL[arm])
        return config

    def tuned_arms(self) -> list[str]:
        """Return the chosen arms that are fine-tuned."""
        tuned = {arm for group in TUNED for arm in GROUPS[group][1]}
        return [arm for arm in self.arms if arm in tuned]
