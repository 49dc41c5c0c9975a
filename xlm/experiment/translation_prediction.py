"""Translation of a user's file with a run of finetune.py, resumed where it stopped."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from input_pipeline.tasks import files, pair_columns, translation
from input_pipeline.tasks.examples import TranslationExample
from input_pipeline.tasks.features import TranslationFeature
from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts, console, declarations, outputs
from xlm.experiment import fine_tuning, objectives, schema, task_schema, translated_text
from xlm.experiment import translation as builders
from xlm.experiment.prediction import read_tokenizer, run_config
from xlm.experiment.pretrained import SETTINGS, Pretrained
from xlm.experiment.run_folder import BEST, MODEL
from xlm.experiment.task_settings import task_settings
from xlm.interop.params_file import Notes, read_params
from xlm.training import hosts
from xlm.training.checkpoint import restore_latest_params
from xlm.training.sharding import replicated

# Lines of a part of the output: enough for batches of similar lengths, few enough to lose little.
CHUNK = 1024


class TranslationRun:
    """Model of a translation run: its best parameters, or else its newest checkpoint."""

    def __init__(self, workdir: pathlib.Path, decoding: Mapping[str, Any] | None = None):
        """Read the run in `workdir`; `decoding` overrides settings of its search.

        Raises ValueError if it has no parameters yet, or its files do not belong together.
        """
        config = run_config(workdir, is_finished=False)
        if not TASKS[config.task.name].is_translation:
            raise ValueError(
                f"{workdir} is a run of {config.task.name}, which does not translate; give a run "
                "of configs/finetune/translation.py, or predict with xlm predict"
            )
        config.decoding.update(decoding or {})
        self._options, mesh = task_settings(config), fine_tuning.mesh()
        with declarations.of_file(workdir / SETTINGS):
            self._trained = builders.directions(self._options, "train")
        path, params = workdir / BEST, None
        if path.exists():
            params, notes = read_params(path)
        else:
            path = workdir / MODEL
            notes = declarations.read(path, Notes, remedy="run xlm finetune with this --workdir")
        tokenizer = read_tokenizer(workdir, notes.tokenizer)
        with declarations.of_file(path):
            self._model = builders.model_of_notes(notes, tokenizer)
            objective = builders.objective(config, self._model)
            if params is not None:
                params = objectives.checked_params(objective, params)
        builders.check_search(config, self._model.decoder)
        if params is None:
            params = _newest(workdir, config, objective, mesh)
        self._translator = builders.translator(config, objective, self._model, mesh)
        self._params: Any = jax.device_put(params, replicated(mesh))
        digests = Pretrained(self._model.encoder, jax.device_get(params), b"").digests()
        # What the translations depend on, besides the source.
        self._identity = [config.decoding.to_dict(), self._options.max_length, digests]

    def write(self, source: pathlib.Path, aside: pathlib.Path, *args: Any, **wanted: Any) -> int:
        """Translate a file, see `translate_file`; log the speed, and return the lines."""
        count = 0
        with console.bar(None, "translate", None, "lines") as bar:
            for count in self.translate_file(source, aside, *args, **wanted):
                bar.update(count - bar.n)
        rates = self._translator.throughput.rates()
        speeds = (f"{rate:.0f} {name.replace('_', ' ')}" for name, rate in rates.items())
        logging.info("translated %s", ", ".join(speeds) or "too little to time")
        return count

    def direction(self, named: str) -> str:
        """The direction to translate in; by default the one of the run.

        Raises ValueError if the run has several, or its model has no symbol for the target
        language.
        """
        if not named and len(self._trained) > 1:
            raise ValueError(
                f"the run was trained on {', '.join(self._trained)}; choose by --language, such as "
                f"--language={self._trained[0]}"
            )
        direction = named or self._trained[0]
        target = translation.direction(direction)[1]
        if target not in self._model.symbols:
            raise ValueError(
                f"--language is {direction!r}, but the model has no symbol for {target!r}, only "
                f"for {', '.join(self._model.symbols)}; choose one of these, or train on a "
                "direction into it"
            )
        return direction

    def __call__(
        self, lines: Sequence[str], direction: str, first: int = 1,
        targets: Sequence[str] | None = None, *, num_best: int = 0, scores: bool = False,
    ) -> list[str]:  # fmt: skip
        """Translate lines in order. Empty lines stay empty, and long lines are cut with a warning.

        Args:
          first: number of the first line, for warnings and samples.
          targets: for each line the beginning of its translation, or with `scores` all of it.
          num_best: hypotheses of each line, as JSON; 0 for the text of the best one.
          scores: whether to score the targets, as JSON, instead of translating.
        """
        target = translation.direction(direction)[1]
        texts = [line.strip() for line in lines]
        there = [number for number, text in enumerate(texts) if text]
        examples = [
            TranslationExample(
                str(first + n), texts[n], None if targets is None else targets[n].strip(), target
            )
            for n in there
        ]
        if not examples:
            return [""] * len(lines)
        data = builders.featured(self._options, self._model, direction, examples, "line")
        features = [
            dataclasses.replace(one, example=first + n)
            for one, n in zip(data.features, there, strict=True)
        ]
        sources = [one.source for one in examples]
        found = self._scored(features) if scores else self._translated(
            features, sources, num_best, targets is not None
        )  # fmt: skip
        by_line = dict(zip(there, found, strict=True))
        return [by_line.get(number, "") for number in range(len(lines))]

    def _translated(
        self, features: Sequence[TranslationFeature], sources: Sequence[str], num_best: int,
        has_prefixes: bool,
    ) -> list[str]:  # fmt: skip
        args = self._model, self._translator, self._params, features, sources, has_prefixes
        found = translated_text.n_best(*args)
        best = [some[0].text for some in found]
        lost = translated_text.lost_characters(self._model, sources, best)
        if lost["lost"]:
            logging.warning("unknown characters are lost: %s", lost)
        if not num_best:
            return best
        lines = ([{"text": x.text, "score": x.score} for x in some[:num_best]] for some in found)
        return [json.dumps(line, ensure_ascii=False) for line in lines]

    def _scored(self, features: Sequence[TranslationFeature]) -> Iterator[str]:
        pieces = self._model.tokenizer.processor.id_to_piece
        rows = self._translator.token_scores(self._params, features)
        for one, row in zip(features, rows, strict=True):
            assert one.target is not None
            tokens = list(zip(pieces(one.target.tolist()), row.tolist(), strict=True))
            line = {"log_prob": float(row.sum()), "tokens": tokens}
            yield json.dumps(line, ensure_ascii=False)

    def translate_file(
        self, source: pathlib.Path, aside: pathlib.Path, direction: str,
        targets: pathlib.Path | None = None, limits: Sequence[float] = (), **wanted: Any,
    ) -> Iterator[int]:  # fmt: skip
        """Translate a file line by line; yield the number of lines done after each part.

        Parts stay beside the output (`outputs.file`) until it is published. The same call resumes
        after the last one, if source, direction and model are the same. `targets` has a line for
        each line; `wanted` are further arguments of a call. With `limits` the output has training
        pairs of the opposite direction, see `_synthetic`. Raises ValueError if there is no such
        file, it is no text, or the direction is unknown.
        """
        direction = self.direction(direction)
        wanted |= {"num_best": 1} if limits else {}
        if not source.is_file():
            raise ValueError(f"{source}: no such file; correct --input")
        lines, given = _lines(source), None if targets is None else _lines(targets)
        if given is not None and len(given) != len(lines):
            raise ValueError(
                f"{targets} has {len(given)} lines, but {source} {len(lines)}; give one for each"
            )
        asked = artifacts.fingerprint(self._identity, direction, lines, given, wanted)
        folder = outputs.parts(aside, asked)
        starts = range(0, len(lines), CHUNK)
        parts = {folder / f"{start}.txt": lines[start : start + CHUNK] for start in starts}
        # All hosts translate a part together, so they must agree on the missing ones.
        there = hosts.as_on_first([_is_whole(part, len(parts[part])) for part in parts])
        for start, (part, chunk), is_there in zip(starts, parts.items(), there, strict=True):
            if not is_there:
                some = None if given is None else given[start : start + CHUNK]
                found = self(chunk, direction, start + 1, some, **wanted)
                if hosts.is_first():
                    texts = (one.replace("\n", " ") for one in found)  # of byte pieces
                    artifacts.write_text(part, "".join(f"{text}\n" for text in texts))
            yield start + len(chunk)
        if hosts.is_first():
            whole = b"".join(map(artifacts.read_bytes, parts))
            if limits:
                each = whole.decode().split("\n")[:-1]
                whole = _synthetic(lines, each, direction, *limits).encode()
            aside.write_bytes(whole)


def _synthetic(
    lines: Sequence[str], found: Sequence[str], direction: str, least: float, ratio: float
) -> str:
    """Return a TSV of marked translations and sources; its first line names the languages."""
    source, target = translation.direction(direction)
    rows = [f"{target}\t{source}\n"]
    for line, best in zip(lines, found, strict=True):
        if not best:  # of an empty line
            continue
        (one,) = json.loads(best)
        text, line = (" ".join(side.split()) for side in (one["text"], line))
        short, long = sorted((len(text), len(line)))
        if short and long <= ratio * short and one["score"] >= least:
            rows.append(f"{pair_columns.TAG}{text}\t{line}\n")
    logging.info("%d of %d pairs are kept", len(rows) - 1, sum(map(bool, found)))
    return "".join(rows)


def _is_whole(part: pathlib.Path, num_lines: int) -> bool:
    return part.exists() and artifacts.read_bytes(part).count(b"\n") == num_lines


def _lines(path: pathlib.Path) -> list[str]:
    return [line for _, line in files.numbered_lines(artifacts.existing(path))]


def _newest(workdir: pathlib.Path, config: ConfigDict, *built: Any) -> Any:
    """Parameters of the newest checkpoint of a run that has not ended."""
    # A run records only the keys that its results depend on.
    defaults = schema.default_config(task_schema.TRANSLATION).train
    config.train = {**defaults.to_dict(), **config.train.to_dict()}
    functions = builders.train_functions(config, *built)
    step, params = restore_latest_params(workdir / "checkpoints", functions)
    logging.info("the run has not ended; its parameters are those of step %d", step)
    return params
