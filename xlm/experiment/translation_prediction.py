"""Translation of a user's file with a finished run of finetune.py, resumed where it stopped."""

import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from input_pipeline.tasks import files, translation
from input_pipeline.tasks.examples import TranslationExample
from xlm.common import artifacts, declarations, outputs
from xlm.evaluation.translating import Throughput
from xlm.experiment import fine_tuning, objectives
from xlm.experiment import translation as builders
from xlm.experiment.prediction import read_tokenizer, run_config
from xlm.experiment.pretrained import SETTINGS
from xlm.experiment.run_folder import BEST
from xlm.experiment.task_settings import task_settings
from xlm.interop.params_file import read_params
from xlm.training import hosts
from xlm.training.sharding import replicated

# Lines of a part of the output: enough for batches of similar lengths, few enough to lose little.
CHUNK = 1024


class TranslationRun:
    """Model of a finished run that translates."""

    def __init__(self, workdir: pathlib.Path):
        """Read the run in `workdir`.

        Raises:
          ValueError: it has not ended, or its files do not belong together.
        """
        config = run_config(workdir)
        self._options = task_settings(config)
        with declarations.of_file(workdir / SETTINGS):
            self._trained = builders.directions(self._options, "train")
        params, notes = read_params(workdir / BEST)
        tokenizer = read_tokenizer(workdir, notes.tokenizer)
        with declarations.of_file(workdir / BEST):
            self._model = builders.model_of_notes(notes, tokenizer)
            objective = builders.objective(config, self._model)
            params = objectives.checked_params(objective, params)
        mesh = fine_tuning.mesh()
        self._translator = builders.translator(config, objective, self._model, mesh)
        self._params: Any = jax.device_put(params, replicated(mesh))
        # What the translations depend on, besides the source.
        self._identity = [config.decoding.to_dict(), self._options.max_length, _digest(workdir)]

    @property
    def throughput(self) -> Throughput:
        return self._translator.throughput

    def direction(self, named: str) -> str:
        """The direction to translate in; by default the one of the run.

        Raises:
          ValueError: the run has several, or its model has no symbol for the target language.
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

    def __call__(self, lines: Sequence[str], direction: str, first: int = 1) -> list[str]:
        """Translate lines, in their order; an empty one is an empty one.

        Args:
          lines: to translate; one of too many tokens is cut, with a warning.
          direction: such as "en-de".
          first: number of the first line, for the warning.
        """
        target = translation.direction(direction)[1]
        texts = [line.strip() for line in lines]
        there = [number for number, text in enumerate(texts) if text]
        examples = [TranslationExample(str(first + n), texts[n], None, target) for n in there]
        if not examples:
            return [""] * len(lines)
        data = builders.featured(self._options, self._model, direction, examples, "line")
        found = builders.detokenized(self._model, self._translator(self._params, data.features))
        by_line = dict(zip(there, found, strict=True))
        return [by_line.get(number, "") for number in range(len(lines))]

    def translate_file(
        self, source: pathlib.Path, aside: pathlib.Path, direction: str
    ) -> Iterator[int]:
        """Translate a file line by line; yield the number of lines done after each part.

        Parts are kept beside the output, of `outputs.file`, until it is published. After a stop the
        same call resumes after the last of them, if source, direction and model are the same.

        Raises:
          ValueError: there is no such file, it is no text, or the direction is unknown.
        """
        direction = self.direction(direction)
        if not source.is_file():
            raise ValueError(f"{source}: no such file; correct --input")
        lines = [line for _, line in files.numbered_lines(source)]
        folder = outputs.parts(aside, artifacts.fingerprint(self._identity, direction, lines))
        starts = range(0, len(lines), CHUNK)
        parts = {folder / f"{start}.txt": lines[start : start + CHUNK] for start in starts}
        # All hosts translate the same parts, which one of them cannot do alone.
        there = hosts.as_on_first([_is_whole(part, len(parts[part])) for part in parts])
        for start, (part, chunk), is_there in zip(starts, parts.items(), there, strict=True):
            if not is_there:
                found = self(chunk, direction, start + 1)
                if hosts.is_first():
                    texts = (one.replace("\n", " ") for one in found)  # of byte pieces
                    artifacts.write_text(part, "".join(f"{text}\n" for text in texts))
            yield start + len(chunk)
        if hosts.is_first():
            aside.write_bytes(b"".join(map(artifacts.read_bytes, parts)))


def _is_whole(part: pathlib.Path, num_lines: int) -> bool:
    return part.exists() and artifacts.read_bytes(part).count(b"\n") == num_lines


def _digest(workdir: pathlib.Path) -> str:
    with open(workdir / BEST, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
