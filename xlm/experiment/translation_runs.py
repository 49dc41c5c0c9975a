"""Runs of finetune.py that train a model to translate, and translate with it."""

import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import tokenizer_hash
from input_pipeline.tasks import translation
from input_pipeline.tasks.loading import translation_files
from xlm.common import artifacts
from xlm.evaluation.batch_layout import spread_rows
from xlm.evaluation.metrics import translation as metrics
from xlm.evaluation.task_results import ceiling_notes
from xlm.evaluation.tasks import ALL, Selection, TaskData
from xlm.evaluation.translating import Translator
from xlm.experiment import fine_tuning
from xlm.experiment import translation as builders
from xlm.experiment.pretrained import Pretrained
from xlm.experiment.run_folder import BEST, TOKENIZER, ShouldStop, StopContext, evaluated
from xlm.experiment.task_settings import TaskSettings, task_settings
from xlm.interop.params_file import read_params, write_params
from xlm.training import hosts
from xlm.training.checkpoint import restore_mean_params
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.sharding import replicated

_SPLITS = ("train", "validation", "test")
Data = dict[str, list[TaskData]]  # by split


def data_files(options: TaskSettings) -> list[pathlib.Path]:
    """The files that a run reads; none of tensorflow-datasets.

    Raises:
      ValueError: one is missing.
    """
    found: list[pathlib.Path] = []
    for split in _SPLITS:
        for direction in builders.directions(options, split):
            found += itertools.chain(*translation_files(options.source(split, direction)))
    return found


def prepare(
    config: ConfigDict, pretrained: Pretrained, folder: pathlib.Path, stopping: StopContext
) -> Callable[[], dict[str, Any]]:
    """Read the data; return what trains, averages, and translates development and test data."""
    options = task_settings(config)
    examples = {split: builders.read_examples(options, split) for split in _SPLITS}
    if config.translation.prune:
        pretrained = builders.pruned(config, pretrained, examples["train"])
    model = builders.model(config, pretrained)
    data: Data = {
        split: [builders.featured(options, model, *one) for one in found.items()]
        for split, found in examples.items()
    }
    ceilings = {split: builders.ceilings(model, data[split]) for split in _SPLITS[1:]}
    for note in ceiling_notes({"ceilings": ceilings}):
        logging.warning("%s", note)
    mesh, settings = fine_tuning.mesh(), builders.train_settings(config)
    batches = builders.training_data(config, data["train"], model, mesh)
    objective = builders.objective(config, model)
    functions = builders.train_functions(config, objective, mesh)
    # Here, since it would fail at the first evaluation otherwise, hours later.
    in_training = builders.translator(
        config, objective, model, mesh, config.evaluation.beams_in_training
    )
    notes = builders.notes(model, tokenizer_hash(pretrained.tokenizer))

    def keep(choice: str, params: Any, step: int, value: float | None) -> None:
        del choice  # the mean over all directions
        if hosts.is_first():
            found = {**notes, "step": step, "value": value}
            write_params(folder / BEST, jax.device_get(params), found)

    def work() -> dict[str, Any]:
        if hosts.is_first():
            artifacts.write_bytes(folder / TOKENIZER, pretrained.tokenizer)
        score = _scorer(model)
        averages = config.train.averaged_checkpoints > 0
        selection = Selection(
            options.task.metrics[0],
            [_part(config, options, model, one) for one in data["validation"]],
            in_training,
            lambda one, outputs: score(one, outputs)[1],
            (lambda *_: None) if averages else keep,
            {} if averages else _kept(folder),
        )
        with stopping() as should_stop:
            train(
                functions, settings, folder, batches, [selection],
                initial_params=builders.initial_params(config, pretrained, model),
                should_stop=should_stop,
            )  # fmt: skip
            steps = None
            if averages:
                count = config.train.averaged_checkpoints
                steps, params = restore_mean_params(
                    folder / "checkpoints", functions, count, settings.checkpoint_every
                )
                keep(ALL, params, steps[-1], None)
            translator = builders.translator(config, objective, model, mesh)
            results = _evaluate(
                data, translator, score, folder, mesh, should_stop, settings.num_steps
            )
        results["ceilings"] = ceilings
        return _finished(config, options, folder, steps, results, translator)

    return work


def _kept(folder: pathlib.Path) -> dict[str, float]:
    """Score of the best parameters that a run which was stopped has kept, if there are any."""
    path = folder / BEST
    value = read_params(path)[1].value if path.exists() else None
    return {} if value is None else {ALL: value}


def _part(
    config: ConfigDict, options: TaskSettings, model: builders.TranslationModel, data: TaskData
) -> TaskData:
    """The examples of a direction that are translated during training."""
    numbers = np.arange(len(data.examples))[:, None]
    chosen = spread_rows(numbers, config.evaluation.examples_in_training)[:, 0]
    examples = [data.examples[number] for number in chosen]
    return builders.featured(options, model, data.language, examples)


Score = Callable[[TaskData, Sequence[np.ndarray]], tuple[list[str], dict[str, float]]]


def _scorer(model: builders.TranslationModel) -> Score:
    """Texts and scores of the tokens that were found for some examples."""

    def score(data: TaskData, outputs: Sequence[np.ndarray]) -> tuple[list[str], dict[str, float]]:
        texts = builders.detokenized(model, outputs)
        references = [one.target for one in data.examples]
        target = translation.direction(data.language)[1]
        return texts, metrics.scores(references, texts, target)

    return score


def _evaluate(
    data: Data,
    translator: Translator,
    score: Score,
    folder: pathlib.Path,
    mesh: Mesh,
    should_stop: ShouldStop,
    step: int,
) -> dict[str, Any]:
    """Translate development and test data by the parameters that were kept; score them."""
    hosts.wait_for_all(f"{BEST} is written")
    params, notes = read_params(folder / BEST)
    params = jax.device_put(params, replicated(mesh))  # once, and not for every batch

    def scored(one: TaskData) -> tuple[dict[str, float], list[dict[str, Any]]]:
        texts, scores = score(one, translator(params, one.features))
        return scores, [
            {"id": x.id, "source": x.source, "reference": x.target, "prediction": text}
            for x, text in zip(one.examples, texts, strict=True)
        ]

    results = evaluated(data, folder, scored, should_stop, step)
    both = (one.language for split in ("validation", "test") for one in data[split])
    signatures = {one: metrics.signatures(translation.direction(one)[1]) for one in both}
    return {**results, "signatures": signatures, "step": notes.step}


def _finished(
    config: ConfigDict,
    options: TaskSettings,
    folder: pathlib.Path,
    averaged: Sequence[int] | None,
    results: Mapping[str, Any],
    translator: Translator,
) -> dict[str, Any]:
    """Results with how the parameters were chosen, and the report of them."""
    metric = options.task.metrics[0]
    scores = [values[metric] for values in results["validation"].values()]
    found = {
        **{name: value for name, value in results.items() if name != "step"},
        "selected": {
            "step": results["step"],
            "averaged_steps": averaged,
            "on": list(results["validation"]),
            "metric": metric,
            "value": float(np.mean(scores)),
        },
        "decoding": {**config.decoding.to_dict(), **translator.throughput.rates()},
    }
    if hosts.is_first():
        from xlm.evaluation import translation_report  # slow: matplotlib

        records = read_metrics(folder / "metrics.jsonl")
        translation_report.write(folder, builders.metadata(config), found, records)
    return found
