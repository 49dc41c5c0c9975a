"""Searches for the settings of fine-tuning on development data, and runs of several seeds."""

import copy
import math
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import msgspec
from absl import logging
from ml_collections import ConfigDict

from xlm.common import artifacts, declarations
from xlm.evaluation import xtreme_runs
from xlm.experiment import task_runs
from xlm.experiment.run_folder import StopContext
from xlm.experiment.task_settings import task_settings
from xlm.training.signals import StopRequest

TUNING, DEFAULTS, TRIALS, SEEDS = "tuning", "defaults", "trials.json", "seeds.json"
_RATES = (3.0, 0.3, 10.0)  # times the default rate
_LONGER, _WARMUP = 2, 0.3  # times the epochs; share of the steps
_OTHER = {"mean": "first", "first": "mean"}


class Trial(declarations.Artefact, frozen=True, kw_only=True):
    """A run of the search; `error` says why it has no score. An interrupted one has neither."""

    name: str
    keys: dict[str, str | float]
    seconds: float = 0.0
    development: float | None = None
    error: str = ""

    @property
    def has_ended(self) -> bool:
        return self.development is not None or bool(self.error)

    @property
    def value(self) -> float:
        return -math.inf if self.development is None else self.development


def search(
    config: ConfigDict, folder: pathlib.Path, minutes: float, stopping: StopContext = StopRequest
) -> tuple[ConfigDict, dict[str, Any]]:
    """Try changes to the best settings so far on development data; choose the first best ones.

    No trial reads test data. None begins once all have taken `minutes`, or `folder` has a run.
    Returns the config with the best settings, and notes on the search for results.json. Raises
    ValueError if config or data are at fault or have changed, and Stopped after a request to stop;
    the same call resumes.
    """
    task, hosts = task_settings(config).task, jax.process_count()
    if task.is_search or task.is_translation or hosts > 1:
        fault = f"{task.name} on {hosts} hosts"
        raise ValueError(f"--tune is of fine-tuning on one host, not of {fault}; leave it out")
    where, trials = folder / TUNING, dict[str, Trial]()
    if (where / TRIALS).exists():
        found = declarations.read(where / TRIALS, list[Trial], remedy="choose another --workdir")
        trials = {one.name: one for one in found}
    is_over = any(folder.glob("settings.json")) or any(folder.glob("seed*/settings.json"))
    if is_over and not trials:
        raise ValueError(f"{folder} has a run without --tune; leave it out, or choose another")
    where.mkdir(parents=True, exist_ok=True)
    with artifacts.locked(where):
        best = trials.get(DEFAULTS) or Trial(name=DEFAULTS, keys={})
        if not best.error:  # again, if it has ended: the run refuses another config or other data
            best = _run(config, where, trials, best, stopping)
        for change in _changes(config, where / DEFAULTS):
            keys = {**best.keys, **change}
            name = "+".join(f"{key.partition('.')[2]}_{value}" for key, value in keys.items())
            spent = sum(one.seconds for one in trials.values())
            if name not in trials and (is_over or spent >= 60 * minutes):
                break
            one = trials.get(name) or Trial(name=name, keys=keys)
            if not one.has_ended:
                one = _run(config, where, trials, one, stopping)
            if one.value > best.value:
                best = one
    logging.info("%d trials; chosen: %s", len(trials), best.name)
    rows = [{**msgspec.to_builtins(one), "chosen": one is best} for one in trials.values()]
    return _changed(config, best.keys), {"tuning": rows}


def _changes(config: ConfigDict, defaults: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yield changes to the config, or to the record of the run `defaults`; best guess first."""
    recorded, options = artifacts.read_object(defaults / "settings.json"), task_settings(config)
    for factor in _RATES:
        rate = factor * recorded["optimizer"]["learning_rate"]
        yield {"optimizer.learning_rate": float(f"{rate:.3g}")}
    if options.task.is_of_words:
        yield {"task.pooling": _OTHER[options.pooling]}
    elif options.task.is_embedding or (options.task.is_of_texts and not options.cross_attention):
        yield {"task.text_pooling": _OTHER[recorded["task"]["text_pooling"]]}
    yield {"train.epochs": _LONGER * config.train.epochs}
    if config.optimizer.warmup_share < _WARMUP and config.optimizer.schedule != "wsd":
        yield {"optimizer.warmup_share": _WARMUP}


def _run(
    config: ConfigDict, where: pathlib.Path, trials: dict[str, Trial], one: Trial, stopping: Any
) -> Trial:
    """Complete a trial; record it in `trials` and on disk from its start, to resume it."""
    score, error, start = one.development, "", time.monotonic()

    def record(**now: Any) -> Trial:
        trials[one.name] = msgspec.structs.replace(one, **now)
        artifacts.write_json(where / TRIALS, msgspec.to_builtins([*trials.values()]))
        return trials[one.name]

    record()
    try:
        tried = _changed(config, {**one.keys, "task.test": ()})
        score = task_runs.run(tried, where / one.name, stopping)["selected"]["value"]
        error = "no score" if score is None else ""  # a correlation that is not defined
        shutil.rmtree(where / one.name / "checkpoints", ignore_errors=True)
    except FloatingPointError as fault:
        error = str(fault)
    finally:
        took = 0.0 if one.has_ended else time.monotonic() - start
        ended = record(development=score, error=error, seconds=one.seconds + took)
    shown = error or f"{100 * ended.value:.1f} on development data"
    logging.info("trial %s: %s, %.0f seconds", one.name, shown, ended.seconds)
    return ended


def run_seeds(
    config: ConfigDict, folder: pathlib.Path, count: int, notes: Mapping[str, Any] | None = None
) -> pathlib.Path:
    """Complete the runs of `count` seeds, from train.seed on; see `task_runs.run`.

    Returns the path of seeds.json: (mean, standard deviation) by language and metric.
    """
    seeds = range(config.train.seed, config.train.seed + count)
    folders, collapse = [folder / f"seed{seed}" for seed in seeds], []
    for seed, one in zip(seeds, folders, strict=True):
        results = task_runs.run(_changed(config, {"train.seed": seed}), one, notes=notes)
        collapse += [f"seed {seed}: {line}" for line in results.get("collapse", ())]
    (runs,) = xtreme_runs.variants(map(xtreme_runs.read_run, folders), "mean")
    languages = {one: {one} for one in runs.languages}
    scores = {
        name: {
            metric: (found.center, found.spread)
            for metric in runs.runs[0].scores[runs.languages[0]]
            if (found := runs.over_seeds(xtreme_runs.average, members, metric))
        }
        for name, members in {**languages, "mean": {*languages}}.items()
    }
    whole = {"split": runs.runs[0].split, "seeds": [*seeds], "scores": scores, "collapse": collapse}
    if jax.process_index() == 0:
        artifacts.write_json(folder / SEEDS, {**whole, **(notes or {})})
    return folder / SEEDS


def _changed(config: ConfigDict, keys: Mapping[str, Any]) -> ConfigDict:
    changed = copy.deepcopy(config)
    changed.update_from_flattened_dict(dict(keys))
    return changed
