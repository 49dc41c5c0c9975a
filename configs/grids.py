"""Grids: names of the runs that a figure or a table of a paper compares, for the launchers.

Each run is an argument of its config, so that the launchers and the stages start the same runs:

    python -m xlm.launch.start --config=configs/xlm_r.py:ablation,DATA --grid=alpha --workdir=DIR

The figures themselves, with their axes and the papers' values, are in `research/studies`.
"""

import hashlib
import importlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict


def _named(form: str, values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(form.format(value) for value in values)


_METHODS = ("vocap", "joint", "proportional", "clustered", "uniform")
_RATES = ("1e-3", "3e-3", "1e-2")
_BETAS = ("beta0", "beta3", "vocap", "beta10")
_TABLE_1 = (
    "xlmr_250k", "joint_250k", "joint_500k", "vocap_250k", "vocap_500k", "vocap_500k_knn",
    "vocap_500k_half", "vocap_500k_knn_half",
)  # fmt: skip
# By config, first word of its argument ("" for any) and name.
GRIDS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "xlm_r": {
        "ablation": {
            "languages": (
                *_named("languages_{}", (7, 15, 30, 60)), "reference",
                *_named("cc_{}", (7, 15, 30, 60, 100)),
            ),
            "alpha": (*_named("alpha_{}", (0.01, 0.1)), "reference", "alpha_0.5", "alpha_0.7"),
            "vocabulary": (
                *_named("parameters_{}k", (32, 64, 128, 256)), "reference",
                *_named("pieces_{}k", (128, 256, 512)),
            ),
            "capacity": ("languages_7", "languages_30", "reference", "wide_30", "wide_100"),
            "corpora": ("languages_7", "cc_7", "reference", "cc_100"),
            "batch": ("reference", "batch_4096", "batch_8192"),
            "steps": ("steps_50k", "steps_100k", "reference", "steps_400k"),
            "tokenizer": ("reference", "bpe", "segmented", "segmented_bpe"),
        },
        "small": {
            "languages": ("languages_7", "reference", "languages_30", "languages_60"),
            "alpha": (
                "alpha_0.01", "alpha_0.1", "reference", "alpha_0.5", "alpha_0.7", "alpha_1.0",
            ),
            "vocabulary": (
                *_named("parameters_{}k", (4, 16, 32)), *_named("pieces_{}k", (4, 16, 32)),
                "reference",
            ),
            "capacity": ("languages_7", "reference", "languages_30", "wide_15", "wide_30"),
            "corpora": ("wikipedia_7", "languages_7", "wikipedia_15", "reference"),
            "batch": ("batch_8", "batch_32", "batch_8_examples", "batch_32_examples", "reference"),
            "steps": (
                "steps_600", "steps_1200", "languages_7", "steps_4800", "steps_9600",
            ),
            "tokenizer": ("reference", "bpe"),
            "examples": (
                "languages_7", *_named("languages_{}_examples", (15, 30)),
                *_named("wide_{}_examples", (15, 30)),
            ),
        },
    },
    "vocap_paper": {
        "": {
            "table1": _TABLE_1,
            "table2": _named("short_{}", ("full", "knn", "target_sampling", "nce", "neg")),
            "table3": _named("short_{}", ("k5", "k10", "k25", "knn", "k100")),
            "table4": _named("short_{}", ("beta0", "beta3", "full", "beta10")),
        },
        "small": {
            "methods": (*_METHODS, *_named("{}_16k", _METHODS)),
            "beta": (*_BETAS, *_named("{}_16k", _BETAS)),
            "union": _named("{}_16k", ("joint", "joint_even", "vocap", "union", "union_fair")),
        },
    },
    "veco": {
        "": {
            "table2": ("base_xlm_text", "base_xlm", "base_text", "base"),
            "small_table2": ("small_xlm_text", "small_xlm", "small_text", "small"),
        },
    },
    "mmbert": {
        "tiny": {
            "blocks": ("gated", "rotary", "modern"),
            "optimizers": (
                "modern", *_named("adamw_{}", _RATES), *_named("stable_adamw_{}", _RATES),
            ),
            "phases": ("modern", "phases", "phases_even", "merged"),
        },
    },
    "xy_lent": {"": {"table2": ("base_250k", "base_english", "base", "base_mlm")}},
}  # fmt: skip


class Argument(NamedTuple):
    """Parts of the value of --config, "FILE:WORD.RUN,DATA"."""

    file: str
    word: str
    data: str


def parse(config: str) -> Argument:
    file, _, argument = config.partition(":")
    name, _, data = argument.partition(",")
    return Argument(file, name.partition(".")[0], data)


def find(config: str) -> dict[str, tuple[str, ...]]:
    """Return the grids of a config by name; raise ValueError if its argument has none."""
    file, word, _ = parse(config)
    if not (grids := GRIDS.get(pathlib.PurePath(file).stem)):
        raise ValueError(
            f"--config is {config!r}, which has no grids; those that have: {', '.join(GRIDS)}"
        )
    if not (found := grids.get(word) or grids.get("")):
        raise ValueError(
            f"--config is {config!r}, which has no grids for {word!r}; there are some for "
            + ", ".join(grids)
        )
    return found


def choose(config: str, name: str) -> tuple[str, ...]:
    """Return the runs of a grid of a config; raise ValueError if there is no such grid."""
    found = find(config)
    if name not in found:
        raise ValueError(f"--grid is {name!r}; {config} has: {', '.join(found)}")
    return found[name]


def config_of(config: str, run: str) -> str:
    """Return the value of --config for a run of a grid."""
    file, word, data = parse(config)
    argument = f"{word}.{run}" if word in GRIDS[pathlib.PurePath(file).stem] else run
    return f"{file}:{argument},{data}"


def load(config: str) -> ConfigDict:
    """Return the config of a value of --config, of a file that has grids."""
    file, _, argument = config.partition(":")
    return importlib.import_module(f"configs.{pathlib.PurePath(file).stem}").get_config(argument)


def run_folder(run: str, seed: int) -> str:
    """Return the working directory of a run below that of its grids."""
    return f"runs/{run}/seed{seed}"


def data_settings(config: ConfigDict) -> dict[str, Any]:
    """Return the keys of a config that affect its vocabulary and packed rows, except the root."""
    sections = {name: config[name].to_dict() for name in ("corpus", "vocab", "store")}
    for section, key in (("corpus", "root"), ("vocab", "num_workers"), ("store", "num_workers")):
        del sections[section][key]  # these do not change rows
    return sections


def data_folder(config: ConfigDict) -> str:
    """Return the folder of a run's vocabulary and packed rows below that of its grids.

    Runs with equal text, vocabulary and sequence length share it.
    """
    text = json.dumps(data_settings(config), sort_keys=True, default=list)
    return f"data/{hashlib.sha256(text.encode()).hexdigest()[:10]}"
