"""A small job of all stages, from text to translations, for checks that break its commands.

A folder has its inputs, `text`, `data` and `lines.txt`, and all outputs.
"""

import contextlib
import dataclasses
import hashlib
import lzma
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = "configs/quickstart.py:runlocal"
LANGUAGES = ("en", "ka", "sw")  # of the config
TIMEOUT = 600  # time limit of a command, in seconds
_CLASSES = ("praise", "complaint")
_TIMES = ("speed.jsonl", "goodput.jsonl")
# in JSON and Markdown results of a translation
_SPEED = re.compile(rb'(sentences|tokens)_per_second"?:? [0-9.e+]+')


@dataclasses.dataclass(frozen=True)
class Stage:
    """Command of the job.

    Attributes:
      arguments: after `python`; JOB stands for the folder.
      results: file or folder that it writes, relative to JOB.
    """

    arguments: tuple[str, ...]
    results: str

    def command(self, job: pathlib.Path | str, *more: str) -> list[str]:
        """Return the arguments for a folder; the last of repeated flags counts."""
        return [one.replace("JOB", str(job)) for one in (*self.arguments, *more)]


def stages(config: str = CONFIG, overrides: Mapping[str, Any] | None = None) -> dict[str, Stage]:
    """Return the stages of pre-training by name, in order; `overrides` are config keys."""
    keys = {
        **({"corpus.root": "JOB/text"} if config == CONFIG else {}),
        "vocab.num_workers": 2,
        "store.num_workers": 2,
        **(overrides or {}),
    }
    work = (f"--config={config}", "--workdir=JOB/work", *_flags(keys))
    start = {"init_from": "JOB/work", "task.max_length": 16, "task.buckets": ()}
    tuned = {
        "train.batch_size": 8, "train.epochs": 2.0, "train.evaluations": 4, "train.log_every": 1,
        "evaluation.batch_size": 8, "task.text_pooling": "mean", "optimizer.learning_rate": 2e-5,
    }  # fmt: skip
    translation = {
        "random_init": True, "architecture.embedding_size": 16, "architecture.hidden_size": 16,
        "architecture.num_layers": 1, "architecture.num_heads": 2, "architecture.mlp_size": 16,
        "architecture.max_length": 16, "translation.decoder_layers": 1,
        "translation.output_layer": "full", "decoding.beams": 1, "decoding.max_length": 8,
        "train.num_steps": 8, "train.batch_tokens": 512, "train.averaged_checkpoints": 2,
        "train.log_every": 1, "train.evaluate_every": 4, "train.checkpoint_every": 2,
        "evaluation.batch_tokens": 512, "evaluation.examples_in_training": 4,
    }  # fmt: skip
    return {
        "build_vocab": Stage(("build_vocab.py", *work), "work/vocab"),
        "prepare_data": Stage(("prepare_data.py", *work), "work/rows"),
        "train": Stage(("train.py", *work), "work/train"),
        "evaluate": Stage(("evaluate.py", *work), "work/report"),
        "finetune": Stage(
            ("finetune.py", "--config=configs/finetune/text.py:JOB/data", "--workdir=JOB/tuned",
             *_flags({**start, **tuned})), "tuned"
        ),
        "translation": Stage(
            ("finetune.py", "--config=configs/finetune/translation.py:en-sw,JOB/data",
             "--workdir=JOB/translation", *_flags({**start, **translation})), "translation"
        ),
        "translate": Stage(
            ("predict.py", "--workdir=JOB/translation", "--input=JOB/lines.txt", "--overwrite",
             "--output=JOB/out/translated.txt"), "out"
        ),
    }  # fmt: skip


def _flags(keys: Mapping[str, Any]) -> list[str]:
    return [f"--config.{key}={value}" for key, value in keys.items()]


def write_inputs(job: pathlib.Path, megabytes: float = 0.0, lines: int = 3000) -> None:
    """Write text, data of a task and of translation, and lines to translate, to an empty folder.

    `megabytes` of text are added to the embedded corpus. From 4 on, several processes run.
    """
    rng = random.Random(0)
    (job / "text").mkdir(parents=True)
    for path in (ROOT / "corpus").glob("*.tsv"):
        shutil.copy(path, job / "text")
    for language in LANGUAGES:
        text = (ROOT / "corpus" / f"{language}.txt").read_text(encoding="utf-8")
        words, made = text.split(), [text.rstrip("\n") + "\n"]
        left = megabytes * 1e6 / len(LANGUAGES)
        while left > 0:
            made.append("\n" + "".join(" ".join(rng.choices(words, k=12)) + "\n" for _ in range(4)))
            left -= len(made[-1].encode())
        (job / "text" / f"{language}.txt").write_text("".join(made), encoding="utf-8")
    _write_task(job / "data", rng)
    asked = (" ".join(rng.choices(_WORDS["en"], k=3)) for _ in range(lines))
    (job / "lines.txt").write_text("".join(f"{line}\n" for line in asked), encoding="utf-8")
    (job / "out").mkdir()


_WORDS = {
    "en": ["the", "cat", "dog", "sees", "runs", "house", "river", "old", "near", "."],
    "sw": ["paka", "mbwa", "anaona", "nyumba", "mto", "karibu", "zee", "ya", "na", "."],
}


def _write_task(folder: pathlib.Path, rng: random.Random) -> None:
    """Write aligned files in two languages, and texts whose first word is the class."""
    folder.mkdir()
    for split, count in (("train", 48), ("dev", 8), ("test", 8)):
        rows = [rng.choices(range(10), k=rng.randint(2, 5)) for _ in range(count)]
        texts = {
            language: [" ".join(words[number] for number in row) for row in rows]
            for language, words in _WORDS.items()
        }
        for language, found in texts.items():
            (folder / f"{split}.{language}").write_text("".join(f"{x}\n" for x in found), "utf-8")
        labelled = zip(texts["en"], (_CLASSES[row[0] % 2] for row in rows), strict=True)
        if split == "test":
            pairs = zip(texts["sw"], texts["en"], strict=True)
            (folder / "tatoeba_retrieval").mkdir()
            (folder / "tatoeba_retrieval" / "sw-en.tsv.xz").write_bytes(
                lzma.compress("".join(f"{one}\t{other}\n" for one, other in pairs).encode())
            )
        table = "text,label\n" + "".join(f"{text},{label}\n" for text, label in labelled)
        (folder / f"{split}.en.csv").write_text(table, "utf-8")


def environment(cache: pathlib.Path, **more: str) -> dict[str, str]:
    """Return the environment of the commands, which share compiled programs."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache.absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **more,
    }


def digests(job: pathlib.Path, name: str, *, reads_states: bool = True) -> dict[str, str]:
    """Return the SHA-256 of each result file at `job / name`, and of the last state's arrays.

    Timings, locks and temporary files (names that begin with a dot) are left out.
    """
    top = job / name
    found: dict[str, str] = {}
    names = re.escape(os.fsencode(job.parent)) + rb"/\w+"  # the job is a copy of one beside it
    for path in sorted([top, *top.rglob("*")]):
        inner = path.relative_to(job)
        below = path.relative_to(top).parts  # the results themselves may have such a name
        if path.name in ("LOCK", *_TIMES) or any(x.startswith(".") for x in below):
            continue
        if path.name == "checkpoints" and reads_states:
            found |= {f"{inner}: {key}": one for key, one in _last_state(path).items()}
        elif "checkpoints" not in inner.parts and path.is_file():
            content = _SPEED.sub(b"", re.sub(names, b"JOB", path.read_bytes()))
            found[str(inner)] = hashlib.sha256(content).hexdigest()
    return found


def _last_state(checkpoints: pathlib.Path) -> dict[str, str]:
    """Return digests of the arrays of the latest checkpoint; their names have its step."""
    import jax
    import numpy as np
    from orbax.checkpoint import v1 as ocp

    from benchmarks import recording
    from benchmarks.recording_comparison import flat

    step = max((int(one.name) for one in checkpoints.iterdir() if one.name.isdecimal()), default=0)
    if not step:
        return {}
    folder = checkpoints.absolute() / str(step)
    saved = ocp.metadata(folder).metadata
    state = ocp.load(folder, jax.tree.map(lambda array: np.empty(array.shape, array.dtype), saved))
    return {f"{step}: {k}": one for k, one in recording.digests(dict(flat(state))).items()}


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names of results that differ or are on one side only."""
    names: Sequence[str] = sorted({*expected, *found})
    return [name for name in names if expected.get(name) != found.get(name)]


@dataclasses.dataclass(frozen=True)
class Run:
    """Stage in its own copy of the job.

    Attributes:
      stage: command and results.
      job: folder of the job, after all earlier stages.
      environment: environment of its processes.
    """

    stage: Stage
    job: pathlib.Path
    environment: dict[str, str]

    @property
    def _log(self) -> pathlib.Path:
        return self.job.with_suffix(".log")

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen]:
        """Start the command; kill its remaining processes at the end."""
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, *self.stage.command(self.job)],
                cwd=ROOT, env=self.environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self) -> None:
        """Run the command to completion.

        Raises:
          RuntimeError: it fails.
        """
        with self.started() as process:
            if status := process.wait(TIMEOUT):
                raise RuntimeError(f"ended with {status}: {self.last_line()}")

    def last_line(self) -> str:
        """Return the last line of the command's output, with JOB for the folder."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1].replace(str(self.job), "JOB")[:300] if lines else ""

    def has_traceback(self) -> bool:
        return b"Traceback (most recent call last)" in self._log.read_bytes()

    def signature(self) -> dict[str, tuple[int, int]]:
        """Return size and modification time of every file of the job."""
        return {path: (found.st_size, found.st_mtime_ns) for path, found in _files(str(self.job))}

    def digests(self) -> dict[str, str]:
        return digests(self.job, self.stage.results)


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(entry.path)
                yield entry.path, entry.stat(follow_symlinks=False)
