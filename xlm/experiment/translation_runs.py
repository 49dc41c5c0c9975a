"""Runs of finetune.py that train a model to translate, and translate with it."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import tokenizer_hash
from input_pipeline.tasks import translation
from xlm.common import artifacts
from xlm.evaluation import translation_report
from xlm.evaluation.batch_layout import spread_rows
from xlm.evaluation.metrics import translation as metrics
from xlm.evaluation.task_results import ceiling_notes
from xlm.evaluation.tasks import ALL, Selection, TaskData
from xlm.evaluation.translating import Translator
from xlm.experiment import fine_tuning, translated_text, translation_pairs
from xlm.experiment import translation as builders
from xlm.experiment.pretrained import Pretrained
from xlm.experiment.run_folder import BEST, MODEL, TOKENIZER, ShouldStop, StopContext
from xlm.experiment.task_data import SPLITS
from xlm.experiment.task_settings import TaskSettings, task_settings
from xlm.interop.params_file import read_params
from xlm.training import hosts
from xlm.training.checkpoint import restore_mean_params
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.sharding import replicated

Data = dict[str, list[TaskData]]  # by split


def prepare(
    config: ConfigDict, pretrained: Pretrained, folder: pathlib.Path, stopping: StopContext
) -> Callable[[], dict[str, Any]]:
    """Read the data; return a function that trains, averages and evaluates."""
    options, where = task_settings(config), folder / translation_pairs.PAIRS
    builders.sources(options, "train")  # here, and the model below, for errors before long work
    examples = {split: builders.read_examples(options, split) for split in SPLITS[1:]}
    builders.model(config, pretrained)
    mesh = fine_tuning.mesh()
    translation_pairs.check_batches(config, mesh)
    pretrained = translation_pairs.prepared(config, pretrained, where)
    model = builders.model(config, pretrained)
    data: Data = {
        split: [builders.featured(options, model, *one) for one in found.items()]
        for split, found in examples.items()
    }
    ceilings = {split: translated_text.ceilings(model, data[split]) for split in SPLITS[1:]}
    for note in ceiling_notes({"ceilings": ceilings}):
        logging.warning("%s", note)
    settings = builders.train_settings(config)
    batches = translation_pairs.training_data(config, where, model, mesh)
    objective = builders.objective(config, model)
    functions = builders.train_functions(config, objective, mesh)
    # Here, since it would fail at the first evaluation otherwise, hours later.
    in_training = builders.translator(
        config, objective, model, mesh, builders.search_in_training(config)
    )
    notes = builders.notes(model, tokenizer_hash(pretrained.tokenizer))
    keep = fine_tuning.keeper(folder, notes)
    count, metric = config.train.averaged_checkpoints, options.task.metrics[0]

    def work() -> dict[str, Any]:
        if hosts.is_first():
            artifacts.write_bytes(folder / TOKENIZER, pretrained.tokenizer)
            artifacts.write_json(folder / MODEL, {**notes, "step": 0, "value": None})
        selection = Selection(
            metric, [_part(config, options, model, one) for one in data["validation"]], in_training,
            lambda one, rows: _scores(one, translated_text.detokenized(model, rows, _sources(one))),
            (lambda *_: None) if count else keep, {} if count else fine_tuning.kept(folder, [ALL]),
        )  # fmt: skip
        with stopping() as should_stop:
            train(
                functions, settings, folder, batches, [selection],
                initial_params=builders.initial_params(config, pretrained, model),
                should_stop=should_stop,
            )  # fmt: skip
            averaged = None
            if count:
                averaged, params = restore_mean_params(
                    folder / "checkpoints", functions, count, settings.checkpoint_every
                )
                keep(ALL, params, averaged[-1], None)
            translator = builders.translator(config, objective, model, mesh)
            step, results = _evaluate(
                data, translator, model, folder, mesh, should_stop, settings.num_steps
            )
        scores = [values[metric] for values in results["validation"].values()]
        results["selected"] = {
            "step": step,
            "averaged_steps": averaged,
            "on": list(results["validation"]),
            "metric": metric,
            "value": float(np.mean(scores)),
        }
        results["ceilings"] = ceilings
        known = builders.directions(options, "train")
        results["zero_shot"] = [one for one in results["test"] if one not in known]
        metadata = fine_tuning.run_metadata(config)
        if isinstance(pretrained, builders.Translated) and not config.random_init:
            metadata["hyperparameters"]["decoder"] = f"continued {pretrained.decoder_layers}"
        results["hyperparameters"] = metadata["hyperparameters"]
        results["decoding"] = {**config.decoding.to_dict(), **translator.throughput.rates()}
        if hosts.is_first():
            records = read_metrics(folder / "metrics.jsonl")
            translation_report.write(folder, metadata, results, records)
        return results

    return work


def _part(
    config: ConfigDict, options: TaskSettings, model: builders.TranslationModel, data: TaskData
) -> TaskData:
    """The examples of a direction to translate during training."""
    numbers = np.arange(len(data.examples))[:, None]
    chosen = spread_rows(numbers, config.evaluation.examples_in_training)[:, 0]
    examples = [data.examples[number] for number in chosen]
    return builders.featured(options, model, data.language, examples)


def _sources(data: TaskData) -> list[str]:
    return [one.source for one in data.examples]


def _scores(data: TaskData, texts: Sequence[str]) -> dict[str, float]:
    references = [one.target for one in data.examples]
    target = translation.direction(data.language)[1]
    return metrics.scores(references, texts, target)


def _evaluate(
    data: Data,
    translator: Translator,
    model: builders.TranslationModel,
    folder: pathlib.Path,
    mesh: Mesh,
    should_stop: ShouldStop,
    step: int,
) -> tuple[int, dict[str, Any]]:
    """Translate and score development and test data; return the parameters' step, and results."""
    hosts.wait_for_all(f"{BEST} is written")
    params, notes = read_params(folder / BEST)
    params = jax.device_put(params, replicated(mesh))  # once, and not for every batch
    unknown: dict[str, dict[str, Any]] = {}

    def scored(one: TaskData) -> tuple[dict[str, float], list[dict[str, Any]]]:
        best = translated_text.n_best(model, translator, params, one.features, _sources(one))
        texts = [found[0].text for found in best]
        found = translated_text.lost_characters(model, _sources(one), texts)
        if found["sources"]:
            split = "test" if one in data["test"] else "validation"
            unknown.setdefault(split, {})[one.language] = found
        return _scores(one, texts), [
            {"id": x.id, "source": x.source, "reference": x.target, "prediction": text}
            for x, text in zip(one.examples, texts, strict=True)
        ]

    results = fine_tuning.evaluated(data, folder, scored, should_stop, step)
    results["unknown"] = unknown
    both = (one.language for split in ("validation", "test") for one in data[split])
    results["signatures"] = {one: metrics.signatures(translation.direction(one)[1]) for one in both}
    return notes.step, results
