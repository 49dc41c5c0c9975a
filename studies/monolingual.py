"""Correlation of vocabulary ALP and size with monolingual task scores (Table 5, Figures 1-3).

    python -m studies.monolingual --data=DATA --workdir=runs/monolingual --cores=1

For each language and vocabulary size: a vocabulary of that size for this language alone, an encoder
pre-trained with it, and part-of-speech tagging and named entities in the same language, by the
ordinary stages. Encoders of a language and a seed differ in their vocabulary only: text, sequence
length and steps are the same. Seeds are those of pre-training and of fine-tuning. Tables, plots and
WORKDIR/report/cells.json show how the scores correlate with the ALP of the vocabulary and with its
size.

DATA is a folder as for `configs/real_text.py`, with `udpos/{dev,test}/{language}.tsv.xz` and
`wikiann_ner/dev/{language}.tsv.xz` besides. There is training data in English only, so, of each
file in its own order,

- POS: the first nine tenths of the development data are trained on, the last tenth selects the
  parameters, the test data is tested on;
- NER: the first six tenths of the development data are trained on, the next tenth selects the
  parameters, the last three tenths are tested on.

If it is run again after a stop, it resumes; with more seeds or sizes it adds the missing ones, and
it pre-trains only where a result is missing, see `studies.records`. A language is finished before
the next one starts. An infeasible size for a language's text, such as fewer pieces than characters,
fails without affecting the others.

Hardware: one CPU core, four hours.
"""

import dataclasses
import itertools
import os
import pathlib
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from benchmarks import machine
from builders import task_runs
from common import artifacts, entry_point
from configs import real_text
from studies import monolingual_report, runs
from studies.monolingual_report import TASKS, Cell
from studies.splits import SPLITS, split_folder, write_splits
from training.signals import EXIT_STOPPED, Stopped
from vocap.merge import SPECIALS

# Common settings of the encoders of all sizes. Small batches, since learning to use context depends
# on the number of steps more than on the number of tokens.
_PRETRAINING = {
    # Text of one language: translations are read as text, which they are not as pairs.
    "corpus.text": (
        "common_voice_text/train",
        "wikiann_text",
        "books",
        "bible/train",
        "ntrex/train",
    ),
    "corpus.parallel": (),
    "corpus.parallel_eval": (),
    "corpus.max_train_bytes": 5_000_000,
    "vocab.alp_probabilities": "corpus",
    "vocab.compare": (),
    "vocab.num_workers": 1,
    "store.num_workers": 1,
    "store.length": 64,
    "data.loader": "threads",
    "data.contrast_share": 0.0,
    "model.max_length": 64,
    "model.dropout_rate": 0.0,
    "output_layer.kind": "full",
    "output_layer.full_softmax_fraction": 0.0,
    "train.batch_size": 8,
    "train.evaluate_every": 500,
    "train.checkpoint_every": 500,
    "train.keep_checkpoints": 1,
    "evaluation.max_sequences": 100,
    "evaluation.max_sequences_in_training": 16,
}
_RECORD, _RESULTS = "record.json", "results.json"

_FINE_TUNING = {
    "task.max_length": 64,
    "task.buckets": (32,),
    "model.attention_dropout_rate": 0.0,
    "train.batch_size": 16,
    "train.evaluations": 4,
}
# Tuned on Finnish development data with 2,000 pieces.
_OF_TASK = {
    "udpos": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
    "wikiann": {"optimizer.learning_rate": 2e-3, "train.epochs": 10.0},
}


# 1. Jobs.


@dataclasses.dataclass(frozen=True)
class Job:
    """Job: encoders of one language with one vocabulary size, and their fine-tuning runs."""

    language: str
    size: int

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        """Return the folder of the vocabulary and the packed rows."""
        return workdir / "encoders" / self.language / str(self.size)

    def encoder(self, workdir: pathlib.Path, seed: int) -> pathlib.Path:
        """Return the working directory of a pre-training."""
        return self.folder(workdir) / f"seed{seed}"

    def run_folder(self, workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
        """Return the working directory of a fine-tuning."""
        return self.encoder(workdir, seed) / task

    def pretraining(self, steps: int) -> dict[str, Any]:
        """Keys of the encoder's config that differ from `configs/real_text.py`."""
        return {
            **_shared(steps),
            "corpus.languages": (self.language,),
            "vocab.sizes": (self.size,),
            "vocab.target_size": self.size + len(SPECIALS),
        }

    def fine_tuning(
        self, base: ConfigDict, task: str, seed: int, workdir: pathlib.Path
    ) -> ConfigDict:
        """Config of a fine-tuning run, derived from the task's."""
        config = base.copy_and_resolve_references()
        config.task.root = str(split_folder(workdir))
        config.update_from_flattened_dict({**_FINE_TUNING, **_OF_TASK[task]})
        for split in SPLITS[task]:
            config.task[split] = (f"{task}/{split}/{{language}}.tsv",)
            config.task[f"{split}_languages"] = (self.language,)
        config.task.selection = "all_languages"  # of which there is one, not English
        config.init_from = str(self.encoder(workdir, seed))
        config.model_name = f"{self.language}{self.size}"
        config.train.seed = seed
        return config


def _shared(steps: int) -> dict[str, Any]:
    """Keys of all encoders that differ from `configs/real_text.py`."""
    return {
        **_PRETRAINING,
        "optimizer.warmup_steps": min(100, steps // 10),
        "train.num_steps": steps,
    }


def shared_config(data: str, steps: int) -> ConfigDict:
    """Return the config of all encoders, but for language, vocabulary size and seed."""
    config = real_text.get_config(data)
    config.update_from_flattened_dict(_shared(steps))
    return config


def jobs(languages: Sequence[str], sizes: Sequence[int]) -> list[Job]:
    """All jobs, language by language, so that an interrupted study has complete languages."""
    return [Job(language, size) for language in languages for size in sorted(set(sizes))]


# 2. Runs.


def share_compiled(folder: pathlib.Path) -> None:
    """Enable a compilation cache for this process and its subprocesses."""
    options = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    for name, value in options.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def call(script: str, data: str, workdir: pathlib.Path, change: Mapping[str, Any]) -> None:
    """Run a stage, with its output in `log.txt` in the working directory.

    Raises:
      ValueError: it failed.
    """
    runs.call(
        [script],
        [f"--config=configs/real_text.py:{pathlib.Path(data).absolute()}"],
        change,
        workdir,
        log=workdir / "log.txt",
    )


def prepare(job: Job, data: str, steps: int, workdir: pathlib.Path) -> None:
    """Build the vocabulary and the packed rows of a job, unless finished."""
    change = job.pretraining(steps)
    stage = artifacts.open_stage(job.folder(workdir), {"data": data, **change})
    if not stage.done:
        stage.claim()
        for script in ("build_vocab.py", "prepare_data.py"):
            call(script, data, stage.folder, change)
        stage.finish()


def open_encoder(
    job: Job, data: str, steps: int, seed: int, workdir: pathlib.Path
) -> artifacts.Stage:
    """Open the folder of an encoder, which refuses other settings."""
    change = {**job.pretraining(steps), "train.seed": seed}
    return artifacts.open_stage(job.encoder(workdir, seed), {"data": data, **change})


def pretrain(job: Job, data: str, steps: int, seed: int, workdir: pathlib.Path) -> bool:
    """Train and evaluate an encoder, unless finished; return whether there was anything to do."""
    change = {**job.pretraining(steps), "train.seed": seed}
    stage = open_encoder(job, data, steps, seed, workdir)
    if stage.done:
        return False
    prepare(job, data, steps, workdir)
    stage.claim()
    runs.share_data(job.folder(workdir), stage.folder)
    for script in ("train.py", "evaluate.py"):
        call(script, data, stage.folder, change)
    artifacts.write_json(stage.folder / _RECORD, record(job, stage.folder))
    stage.finish()
    return True


def record(job: Job, encoder: pathlib.Path) -> dict[str, float]:
    """Return the ALP of an encoder's vocabulary and its losses, as of `Cell`."""
    built = artifacts.read_json(encoder / "vocab" / "allocation.json")["languages"][job.language]
    losses = artifacts.read_json(encoder / "report" / _RESULTS)["losses"][job.language]
    alp = built["alp"][built["sizes"].index(job.size)]
    return {"alp": alp, "loss": losses["loss"], "unigram": losses["unigram"]}


def fine_tune(
    job: Job, configs: Mapping[str, ConfigDict], seed: int, workdir: pathlib.Path
) -> None:
    """Execute the fine-tuning runs of an encoder in this process, to avoid the startup of many."""
    for task, base in configs.items():
        folder = job.run_folder(workdir, task, seed)
        try:
            found = task_runs.run(job.fine_tuning(base, task, seed, workdir), folder)
        except Stopped as stopped:
            logging.info("%s", stopped)
            sys.exit(EXIT_STOPPED)
        score = 100 * found["test"][job.language]["f1"]
        logging.info("%s, %d pieces, %s, seed %d: %.1f", *_names(job), task, seed, score)


def is_restored(job: Job, tasks: Iterable[str], seed: int, workdir: pathlib.Path) -> bool:
    """Whether there are all results of an encoder, but not the encoder."""
    encoder = job.encoder(workdir, seed)
    results = [job.run_folder(workdir, task, seed) / _RESULTS for task in tasks]
    is_whole = all(path.exists() for path in [encoder / _RECORD, *results])
    return is_whole and not (encoder / "train").exists()


def _names(job: Job) -> tuple[str, int]:
    return job.language, job.size


def run_all(
    todo: Sequence[Job],
    seeds: Sequence[int],
    workdir: pathlib.Path,
    *,
    data: str,
    steps: int,
    configs: Mapping[str, ConfigDict],
) -> list[str]:
    """Run all jobs to completion.

    Args:
      todo: the jobs.
      seeds: of pre-training and fine-tuning.
      workdir: folder of the results.
      data: folder with the text.
      steps: of pre-training.
      configs: config of each task.

    Returns:
      The errors of failed jobs.
    """
    errors = []
    for job, seed in itertools.product(todo, seeds):
        try:
            # Also of results without their encoder, of which a record may be there.
            open_encoder(job, data, steps, seed, workdir)
            if is_restored(job, configs, seed, workdir):
                continue
            if pretrain(job, data, steps, seed, workdir):
                logging.info("%s, %d pieces, seed %d: pre-trained", *_names(job), seed)
            fine_tune(job, configs, seed, workdir)
        except Exception as error:
            message = runs.message_of(error)
            logging.error("%s, %d pieces, seed %d: %s", *_names(job), seed, message)
            errors.append(f"{job.language}, {job.size} pieces, seed {seed}: {message}")
    return errors


# 3. Results.


def cells(workdir: pathlib.Path) -> Iterator[Cell]:
    """Yield the results of each language and size, of the seeds whose encoder is trained."""
    for folder in sorted(workdir.glob("encoders/*/*")):
        job = Job(folder.parent.name, int(folder.name))
        seeds = sorted(
            int(path.parent.name.removeprefix("seed")) for path in folder.glob(f"seed*/{_RECORD}")
        )
        if not seeds:
            continue
        found = [artifacts.read_json(job.encoder(workdir, seed) / _RECORD) for seed in seeds]
        paths = {
            task: {seed: job.run_folder(workdir, task, seed) / _RESULTS for seed in seeds}
            for task in TASKS
        }
        yield Cell(
            job.language,
            job.size,
            alp=found[0]["alp"],
            loss=statistics.fmean(one["loss"] for one in found),
            unigram=found[0]["unigram"],
            scores={
                task: {
                    seed: artifacts.read_json(path)["test"][job.language]["f1"]
                    for seed, path in by_seed.items()
                    if path.exists()
                }
                for task, by_seed in paths.items()
            },
        )


def define_flags() -> None:
    """Define the command's flags; not at import, since tests import several commands."""
    flags.DEFINE_string("data", None, "Folder with text and data of the tasks.")
    flags.DEFINE_string("workdir", None, "Where results go.")
    flags.DEFINE_list("languages", ["fi", "ru", "ar", "de"], "In this order.")
    flags.DEFINE_list("sizes", ["500", "1000", "2000", "4000", "8000"], "In pieces.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of pre-training and fine-tuning.")
    flags.DEFINE_integer("steps", 2500, "Of pre-training.", lower_bound=1)
    flags.DEFINE_integer("cores", 0, "Cores to keep to; 0 for all.", lower_bound=0)
    flags.DEFINE_bool("report_only", False, "Run nothing, report what is there.")
    for name in TASKS:  # a config flag with a default reads the file at once
        config_flags.DEFINE_config_file(
            name, str(runs.ROOT / "configs" / "finetune" / f"{name}.py"), "Of the runs of the task."
        )


def main(_) -> None:
    given = flags.FLAGS
    workdir = pathlib.Path(given.workdir)
    errors = []
    if not given.report_only:
        runs.claim(workdir, shared_config(given.data, given.steps))
        machine.set_up(given.cores)
        share_compiled(workdir.absolute() / "compiled")
        write_splits(pathlib.Path(given.data), workdir, dict.fromkeys(TASKS, given.languages))
        todo = jobs(given.languages, [int(size) for size in given.sizes])
        seeds = [int(seed) for seed in given.seeds]
        errors = run_all(
            todo,
            seeds,
            workdir,
            data=given.data,
            steps=given.steps,
            configs={task: given[task].value for task in TASKS},
        )
    print(monolingual_report.write_report(list(cells(workdir)), workdir / "report"))
    print(f"report: {(workdir / 'report' / 'report.md').absolute()}")
    if errors:
        raise ValueError(f"{len(errors)} encoders are missing: {'; '.join(errors)}")


if __name__ == "__main__":
    define_flags()
    entry_point.run(main, required=("data", "workdir"))
