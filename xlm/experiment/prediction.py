"""Inference on other text with a finished run of finetune.py, or with an encoder."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import tokenizer_hash
from input_pipeline.tasks.examples import BadRow, SentencePairs, Sentences
from xlm.common import artifacts, declarations
from xlm.evaluation import task_results
from xlm.evaluation.tasks import Line
from xlm.experiment import fine_tuning as builders
from xlm.experiment import objectives, schema, task_data, task_schema
from xlm.experiment.pretrained import SETTINGS, Pretrained, read_pretrained
from xlm.experiment.run_folder import BEST, RESULTS, TOKENIZER
from xlm.experiment.task_kinds import KINDS, SEARCHES
from xlm.experiment.task_settings import Tokenizer, task_settings
from xlm.interop.params_file import read_params

# Examples per chunk: enough for batches of similar lengths, few enough to show progress.
CHUNK = 1024


class Start(msgspec.Struct, frozen=True):
    """Start of a run among its settings: the digests and the step of `Pretrained`."""

    tokenizer: str = ""
    parameters: str = ""
    start_step: int | None = None


_START = Start.__struct_fields__


def run_config(workdir: pathlib.Path, *, is_finished: bool = True) -> ConfigDict:
    """Read the config of a run of finetune.py.

    Raises ValueError if there is no such run, or it has not ended and must be finished.
    """
    if is_finished and not (workdir / RESULTS).exists():
        raise ValueError(
            f"{workdir}: no {RESULTS}; --workdir must be a finished run of finetune.py"
        )
    path = workdir / SETTINGS
    # The start is no key of the config. A record cannot permit the code of an objective.
    sections = artifacts.read_object(path).items()
    recorded = {name: value for name, value in sections if name not in ("objective", *_START)}
    task = recorded.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    with declarations.of_file(path):
        config = schema.recorded(recorded, task_schema.family_of(name))
        task_settings(config)
    return config


class FineTuned:
    """Model of a finished run: unlabelled examples -> lines of JSON."""

    def __init__(self, workdir: pathlib.Path):
        """Read the run in `workdir`.

        Raises ValueError if it has not ended, or its files do not belong together.
        """
        config = run_config(workdir)
        self._options = task_settings(config)
        params, notes = read_params(workdir / BEST)
        self._tokenizer = read_tokenizer(workdir, notes.tokenizer)
        with declarations.of_file(workdir / BEST):
            objective = builders.with_head(config, builders.encoder_of_notes(notes.encoder))
            self._params = objectives.checked_params(objective, params)
        pad = self._tokenizer.special.pad
        self._predictor = builders.predictor(config, objective, pad, builders.mesh())
        results = task_results.read_results(workdir / RESULTS)
        self._threshold = results.get("null_threshold")
        self._task, self._kind = self._options.task, KINDS[self._options.task.kind]

    def read(self, path: pathlib.Path) -> list[Any]:
        """Read a user's own examples, and bad rows; see `input_pipeline.tasks.unlabelled`."""
        return self._kind.readers.unlabelled(path, self._task)

    def __call__(
        self, examples: Sequence[Any], language: str = "", columns: Sequence[str] = (),
        *, with_text: bool = False,
    ) -> Iterator[list[Line]]:  # fmt: skip
        """Yield the lines of successive chunks of `CHUNK` examples; see `TaskKind.lines`.

        A bad row has a line with its `error` and no prediction. Lines copy `columns` of the input,
        and its text `with_text`. Raises ValueError if no example has one of the columns, or all
        rows are bad.
        """
        if examples and all(isinstance(one, BadRow) for one in examples):
            raise ValueError(f"no row of {len(examples)} can be read: {examples[0].error}")
        there = dict.fromkeys(name for one in examples for name in getattr(one, "cells", ()))
        if absent := [name for name in columns if name not in there]:
            raise ValueError(
                f"--columns names {absent[0]!r}, but the input's columns are "
                f"{', '.join(there) or 'none'}; correct it"
            )
        for start in range(0, len(examples), CHUNK):
            chunk = examples[start : start + CHUNK]
            good = [one for one in chunk if not isinstance(one, BadRow)]
            found = iter(self._lines(good, language, is_first=not start) if good else ())
            lines = []
            for one in chunk:
                if isinstance(one, BadRow):
                    line: Line = {"id": one.id, "prediction": None, "error": one.error}
                else:
                    line = next(found)
                    if with_text:
                        line["text"] = one.content if len(one.content) > 1 else one.content[0]
                if columns:
                    line["columns"] = {name: one.cells.get(name) for name in columns}
                lines.append(line)
            yield lines

    def _lines(self, examples: list[Any], language: str, *, is_first: bool) -> list[Line]:
        data = task_data.featured(self._options, self._tokenizer, language, examples)
        if is_first:
            task_data.warn_of_unknown("the input", data, self._tokenizer)
        outputs = self._predictor(self._params, data.features)
        decided = self._kind.decide(self._options, data, outputs)
        return self._kind.lines(self._task, data, outputs, decided, self._threshold)


def read_tokenizer(workdir: pathlib.Path, expected: str) -> Tokenizer:
    """Read the tokenizer of a run.

    Raises ValueError if it is missing, or lacks the hash of the parameters' notes, `expected`.
    """
    path = workdir / TOKENIZER
    if not path.exists():
        raise ValueError(f"{path} does not exist; copy the whole folder of the run")
    model = path.read_bytes()
    if tokenizer_hash(model) != expected:
        raise ValueError(
            f"{path} is tokenizer {tokenizer_hash(model)}, but {workdir / BEST} was "
            f"trained with tokenizer {expected}; put the run's own tokenizer back"
        )
    return Tokenizer(model)


def search_lines(
    config: ConfigDict,
    sources: Sentences,
    targets: Sentences,
    threshold: float | None,
    workdir: pathlib.Path | None = None,
) -> list[Line]:
    """Search the second text for translations of the first with an encoder.

    A retrieval task finds the nearest sentence of the second text for each of the first. A mining
    task finds pairs that may be translations, best first, with scores from `threshold` on, None for
    all. Config and threshold are those of the run in `workdir`, None for no run. Raises ValueError
    if there is no such encoder, it has no such layer, or is not the one of the run.
    """
    options = task_settings(config)
    pretrained = read_pretrained(config.init_from, objective=config.objective)
    if workdir is not None:
        _check_encoder(workdir, config.init_from, pretrained)
    tokenizer = Tokenizer(pretrained.tokenizer)
    encoder = builders.sentence_encoder(config, pretrained, tokenizer)
    pairs = SentencePairs(sources, targets, ())
    source, target = builders.sentence_vectors(options, tokenizer, encoder, pairs)
    return SEARCHES[options.task.kind].find(options, pairs, source, target, threshold)


def read_start(workdir: pathlib.Path) -> Start:
    """Read the record of a run's start; older runs recorded less."""
    return declarations.read(workdir / SETTINGS, Start, remedy="copy the folder of the run again")


def _check_encoder(workdir: pathlib.Path, init_from: str, pretrained: Pretrained) -> None:
    """Raise ValueError if a run has recorded another encoder."""
    recorded = read_start(workdir)
    for name, now in pretrained.digests().items():
        there = getattr(recorded, name)
        if there not in ("", now):
            raise ValueError(
                f"init_from is {init_from!r}, with {name} {now}, but {workdir} was made "
                f"with {name} {there}: the encoder has changed since; put the run's back, "
                "or run finetune.py in another --workdir, or give --config instead of --workdir"
            )


def mining_threshold(
    config: ConfigDict, workdir: pathlib.Path | None, language: str
) -> float | None:
    """Return the smallest score of a mined pair: the run's for the language, or the config's.

    Raises ValueError if the run has thresholds, and none for the language.
    """
    thresholds: dict[str, Any] = {}
    if workdir is not None:
        thresholds = task_results.read_results(workdir / RESULTS).get("thresholds", {})
    if thresholds and language not in thresholds:
        raise ValueError(
            f"--language is {language!r}; {workdir} has thresholds of {', '.join(thresholds)}: "
            "choose one, or give --config with task.threshold, and init_from, instead"
        )
    return thresholds.get(language, config.task.threshold)
