"""Runs of finetune.py: train and evaluate a model, or search with a pre-trained encoder."""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from input_pipeline.tasks.batches import padding_ratio
from input_pipeline.tasks.examples import BadRow
from xlm.common import artifacts
from xlm.evaluation import task_report
from xlm.evaluation.label_analysis import Labelled
from xlm.evaluation.task_results import Scores, read_results, reported_split, write_lines
from xlm.evaluation.tasks import ALL, Line, Predictor, Selection, TaskData, mean_loss
from xlm.experiment import fine_tuning as builders
from xlm.experiment import (
    prediction,
    run_data,
    schema,
    task_analysis,
    task_data,
    task_schema,
    translation,
    translation_runs,
)
from xlm.experiment.pretrained import SETTINGS, Pretrained, read_pretrained
from xlm.experiment.run_folder import (
    BAD_ROWS,
    BEST,
    DATA,
    RESULTS,
    TOKENIZER,
    ShouldStop,
    StopContext,
    best_of,
)
from xlm.experiment.task_kinds import KINDS, SEARCHES
from xlm.experiment.task_settings import EACH_LANGUAGE, TaskSettings, Tokenizer, task_settings
from xlm.interop.params_file import Notes, read_params
from xlm.training import hosts
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.signals import StopRequest

_OF_START = ("parameters", "start_step")  # compared by `_start`
_SAMPLE = 1000  # rows of the training data whose loss is in the results


def run(
    config: ConfigDict, folder: pathlib.Path, stopping: StopContext = StopRequest,
    notes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Complete a run, and return the content of results.json; a finished run does nothing.

    `stopping` makes the context that can stop the run, see `StopRequest`. Raises ValueError if
    config, encoder or data are at fault, or the folder belongs to another config, other data or
    another process. Raises Stopped after a request to stop; the same call resumes.
    """
    # A finished run does not need its data any more.
    known = prediction.run_config(folder).task.labels if (folder / RESULTS).exists() else ()
    config = task_data.with_labels(config, known)
    options = task_settings(config)
    prepare: Callable[..., Callable[[], dict[str, Any]]]
    files: Callable[[TaskSettings], list[pathlib.Path]]
    if options.task.is_translation:
        prepare, files = translation_runs.prepare, translation.data_files
        pretrained = translation.read_start(config)
    else:
        prepare, files = _search if options.task.is_search else _fine_tune, task_data.data_files
        pretrained = read_pretrained(
            config.init_from, keeps_decoder=options.cross_attention, objective=config.objective
        )
        config = builders.by_width(config, pretrained.settings)
    defaults = schema.default_config(task_schema.family_of(config.task.name)).to_dict()
    stage = artifacts.open_stage(
        folder,
        {**_settings(config), **_start(folder, config, pretrained)},
        defaults={**defaults, "start_step": None},
        uncompared=["task.dataset", *(later := [*_read_after_training(config), *_OF_START])],
    )
    if stage.done and stage.has_recorded(later):
        run_data.check_ended(folder, lambda: files(options))
        logging.info("%s is up to date", folder)
        return read_results(folder / RESULTS)
    # Before the run claims the folder, so that other data can replace data at fault.
    work = prepare(config, pretrained, folder, stopping)
    data = run_data.digests(files(options))
    run_data.check_resumed(folder, data)
    with hosts.locked(stage):
        run_data.check_resumed(folder, data)  # again: another process may have begun meanwhile
        # A start that was cut off before it recorded its data has no checkpoint either.
        is_new = not any((folder / name).exists() for name in (DATA, "checkpoints"))
        if is_new and hosts.is_first():
            artifacts.write_json(folder / DATA, data)
        if hosts.is_first() and not stage.has_recorded(later):
            stage.record()
        results = {**builders.run_metadata(config), **work(), **(notes or {})}
        results |= {"scored": scored} if (scored := task_data.scored_files(options, data)) else {}
        if hosts.is_first():
            artifacts.write_json(folder / RESULTS, results)
            stage.finish()
    hosts.wait_for_all("the results are written")  # which the next command reads
    return results


def _read_after_training(config: ConfigDict) -> list[str]:
    """Keys of search and evaluation without effect on steps and selection.

    A finished run evaluates again when they change. The searches that select have settings of
    their own, in the `evaluation` section.
    """
    if "decoding" not in config:
        return ["evaluation.batch_size"]
    selects = not config.train.averaged_checkpoints
    return ["decoding", "evaluation.batch_tokens" if selects else "evaluation"]


def _start(folder: pathlib.Path, config: ConfigDict, pretrained: Pretrained) -> dict[str, Any]:
    """Return the record of a run's start, even if the source has trained further meanwhile.

    Checkpoints of the folder hold all parameters. Raises ValueError if results depend on others.
    """
    source, step, last = config.init_from, pretrained.step, pretrained.num_steps
    now = {**pretrained.digests(), "start_step": step}
    if not any((folder / name).exists() for name in ("checkpoints", BEST, RESULTS)):
        if step is not None:
            unfinished = " (unfinished)" * (step < last)
            logging.info("starts from %s at step %d of %d%s", source, step, last, unfinished)
        return now
    then = prediction.read_start(folder)
    started = {one: getattr(then, one) for one in _OF_START}
    is_other_path = artifacts.read_object(folder / SETTINGS).get("init_from") != source
    if is_other_path or then.parameters == now["parameters"]:  # the path is compared
        return now | started
    there, here = (-1 if one is None else one for one in (then.start_step, step))
    if task_settings(config).task.is_search or not 0 <= there < here:
        at, is_at = (f" at step {one}" if one >= 0 else "" for one in (there, here))
        raise ValueError(
            f"{folder} was made with init_from {source!r}{at}, which holds other parameters "
            f"now{is_at}; choose another --workdir, or put that encoder back"
        )
    logging.info("started from %s at step %d; its parameters of step %d change nothing here",
                 source, there, here)  # fmt: skip
    return now | started


def _settings(config: ConfigDict) -> dict[str, Any]:
    """All settings that the results depend on, except the start."""
    recorded = config.to_dict()
    del recorded["objective"]  # a permission, and no setting
    family = task_schema.family_of(config.task.name)
    for name, unread in schema.with_effect("train", "evaluation", family=family).items():
        recorded[name] = {k: v for k, v in recorded[name].items() if k not in unread}
    return recorded


def _fine_tune(
    config: ConfigDict, pretrained: Pretrained, folder: pathlib.Path, stopping: StopContext
) -> Callable[[], dict[str, Any]]:
    """Read the data; return a function that trains, and evaluates the best parameters."""
    options = task_settings(config)
    task, kind = options.task, KINDS[options.task.kind]
    tokenizer, mesh = Tokenizer(pretrained.tokenizer), builders.mesh()
    encoder = builders.encoder_settings(config, pretrained.settings)  # before the data, for errors
    bad: dict[str, BadRow] = {}
    data = {one: task_data.read_split(options, tokenizer, one, bad) for one in task_data.SPLITS}
    weights = task_data.class_weights(options, data["train"])
    selecting = task_data.selected_on(options, data["validation"])
    seen = task_data.seen_in_training(options, data)
    objective = builders.with_factors(config, builders.with_head(config, encoder, weights))
    scored_loss = objective.task_loss
    if "label_smoothing" in kind.loss_keys:  # to compare with the entropy of labels
        scored_loss = functools.partial(scored_loss, label_smoothing=0.0)  # type: ignore[call-arg]
    settings = builders.train_settings(config, sum(len(one.features) for one in data["train"]))
    predictor = builders.predictor(config, objective, tokenizer.special.pad, mesh)
    batches = builders.training_data(config, data["train"], tokenizer.special.pad, mesh)
    functions = builders.train_functions(config, objective, mesh, settings.num_steps)
    keep = builders.keeper(folder, builders.model_notes(objective, pretrained), objective.merged)
    by_language = options.selection == EACH_LANGUAGE

    def score(one: TaskData, outputs: Sequence[np.ndarray]) -> dict[str, float]:
        return kind.score(task, one, kind.decide(options, one, outputs), None)

    def loss(one: TaskData, outputs: Sequence[np.ndarray]) -> float:
        return mean_loss(scored_loss, one.features, outputs, tokenizer.special.pad)

    def work() -> dict[str, Any]:
        choices = [ALL, *(one.language for one in selecting if by_language)]
        kept, name = builders.kept(folder, choices), f"validation/{task.metrics[0]}"
        records = read_metrics(folder / "metrics.jsonl")
        selection = Selection(
            task.metrics[0], selecting, predictor, score, keep, kept, by_language=by_language,
            loss=None if task.is_embedding else loss, patience=config.train.patience,
            history={int(one["step"]): one[name] for one in records if name in one},
        )  # fmt: skip
        if hosts.is_first():
            artifacts.write_bytes(folder / TOKENIZER, pretrained.tokenizer)
            if bad:
                lines = ({"error": one.error, "row": dict(one.cells)} for one in bad.values())
                write_lines(folder / BAD_ROWS, lines)
        with stopping() as should_stop:
            initial = builders.initial_params(
                objective, pretrained, config.train.seed, random=config.random_init
            )
            state = train(
                functions, settings, folder, batches, [selection],
                initial_params=initial, should_stop=should_stop, is_over=selection.is_over,
            )  # fmt: skip
            hosts.wait_for_all("the best parameters are written")
            best = read_params(best_of(folder, ALL))
            found, labelled = _evaluate(
                options, data, predictor, folder, best, should_stop, settings.num_steps
            )
        if (last := int(state.step)) < settings.num_steps:
            found["selected"]["stopped_early"] = last
        if kind.logits:
            rows = [row for one in data["train"] for row in one.features]
            sample = TaskData("", (), rows[:: math.ceil(len(rows) / _SAMPLE)])
            outputs = predictor(best[0], sample.features)
            found |= task_analysis.analysed(
                options, data, labelled, np.array(weights or 1.0), loss(sample, outputs)
            )
        if bad:
            found["bad_rows"] = len(bad)
        if seen:
            found["seen_in_training"] = seen
        if weights:
            found["class_weights"] = dict(zip(task.labels, weights, strict=True))
        rows = [row for one in data["test"] or data["validation"] for row in one.features]
        size = config.evaluation.batch_size
        found["padding_ratio"] = padding_ratio(rows, size, options.lengths, options.max_length)
        if hosts.is_first():
            whole, split = {**builders.run_metadata(config), **found}, reported_split(found)
            task_report.write(folder, task, whole, data[split], labelled[split])
        return found

    return work


def _evaluate(
    options: TaskSettings,
    data: dict[str, list[TaskData]],
    predictor: Predictor,
    folder: pathlib.Path,
    whole: tuple[Any, Notes],
    should_stop: ShouldStop,
    step: int,
) -> tuple[dict[str, Any], dict[str, dict[str, Labelled]]]:
    """Evaluate the best parameters; `whole` are those for all languages, with their notes.

    Returns the results, and labels with their logits by split and language.
    """
    task, kind = options.task, KINDS[options.task.kind]
    chosen_on = [one.language for one in task_data.selected_on(options, data["validation"])]
    by_language = options.selection == EACH_LANGUAGE
    steps: dict[str, int] = {}
    threshold: float | None = None
    labelled: dict[int, Labelled] = {}

    def score(one: TaskData) -> tuple[dict[str, float], list[Line]]:
        nonlocal threshold
        params, notes = read_params(best_of(folder, one.language)) if by_language else whole
        steps[one.language] = notes.step
        outputs = predictor(params, one.features)
        decided = kind.decide(options, one, outputs)
        if kind.logits:
            gold = task_analysis.gold_labels(options, [one])
            labelled[id(one)] = Labelled(gold, kind.logits(one, outputs))
        if threshold is None:  # of the first development data
            threshold = kind.threshold(task, one, decided)
        lines = kind.lines(task, one, outputs, decided, threshold)
        if kind.gold:
            pairs = zip(lines, one.examples, strict=True)
            lines = [{**line, "gold": kind.gold(task, example)} for line, example in pairs]
        return kind.score(task, one, decided, threshold), lines

    results = builders.evaluated(data, folder, score, should_stop, step)
    results["selected"] = {
        "step": whole[1].step,
        "rule": options.selection,
        "on": chosen_on,  # with the language of the threshold, if there is one
        "metric": task.metrics[0],
        "value": whole[1].value,
        **({"steps": steps} if by_language else {}),
    }
    if threshold is not None:
        results["null_threshold"] = threshold
        chosen_on.append(data["validation"][0].language)
    results["selected_on_test"] = list(dict.fromkeys(chosen_on))
    if data["test"]:  # else results report development data
        results["selected_on_test"] = task_data.selected_on_test(options, chosen_on)
    if task_data.holds_out(options):
        results["held_out"] = options.validation_share
    return results, {
        split: {one.language: labelled[id(one)] for one in data[split] if id(one) in labelled}
        for split in ("validation", "test")
    }


def _search(
    config: ConfigDict, pretrained: Pretrained, folder: pathlib.Path, stopping: StopContext
) -> Callable[[], dict[str, Any]]:
    """Read the data; return a function that finds translations with the encoder."""
    del stopping  # it saves nothing on the way, so a signal ends it at once
    options, tokenizer = task_settings(config), Tokenizer(pretrained.tokenizer)
    kind = SEARCHES[options.task.kind]
    encoder = builders.sentence_encoder(config, pretrained, tokenizer)
    has_other_data = options.validation and tuple(options.validation) != tuple(options.test)
    splits = ("validation", "test") if has_other_data else ("test",)
    languages = task_data.languages(options, "test")
    data = {
        split: {language: task_data.read_pairs(options, split, language) for language in languages}
        for split in splits
    }
    chooses_elsewhere = has_other_data and options.threshold is None
    shared = task_data.selected_on_test(options, languages) if chooses_elsewhere else ()

    def work() -> dict[str, Any]:
        thresholds: dict[str, float | None] = dict.fromkeys(languages, options.threshold)
        results: dict[str, Any] = {"examples": {}, "selected_on_test": []}
        for split in splits:
            scores: Scores = {}
            for language, pairs in data[split].items():
                source, target = builders.sentence_vectors(options, tokenizer, encoder, pairs)
                given = thresholds[language]
                scores[language], lines, thresholds[language] = kind.search(
                    options, pairs, source, target, given
                )
                is_chosen_there = given is not None and language in shared
                if split == "test" and (given != thresholds[language] or is_chosen_there):
                    results["selected_on_test"].append(language)
                if hosts.is_first():
                    write_lines(folder / "predictions" / f"{split}.{language}.jsonl", lines)
            results[split] = scores
            results["examples"][split] = {name: len(one.gold) for name, one in data[split].items()}
        has_thresholds = None not in thresholds.values()
        return results | ({"thresholds": thresholds} if has_thresholds else {})

    return work
