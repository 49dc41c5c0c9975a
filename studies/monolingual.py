"""Correlation of vocabulary ALP and size with monolingual task scores (Table 5, Figures 1-3).

    python -m studies.monolingual --data=DATA --workdir=runs/monolingual --cores=1

For each language and vocabulary size: a vocabulary of that size for this language alone, an encoder
pre-trained with it, and part-of-speech tagging and named entities in the same language, by the
ordinary stages. Encoders of a language differ in their vocabulary only: text, sequence length,
steps and seed are the same. Tables, plots and WORKDIR/report/cells.json show how the scores
correlate with the ALP of the vocabulary and with its size.

DATA is a folder as for `configs/real_text.py`, with `udpos/{dev,test}/{language}.tsv.xz` and
`wikiann_ner/dev/{language}.tsv.xz` besides. There is training data in English only, so, of each
file in its own order,

- POS: the first nine tenths of the development data are trained on, the last tenth selects the
  parameters, the test data is tested on;
- NER: the first six tenths of the development data are trained on, the next tenth selects the
  parameters, the last three tenths are tested on.

If it is run again after a stop, it resumes; with more seeds or sizes it adds the missing ones. A
language is finished before the next one starts. An infeasible size for a language's text, such as
fewer pieces than characters, fails without affecting the others. Seeds are those of fine-tuning
(new head, order of the examples, dropout): each size has one encoder.

Hardware: one CPU core, an hour and a half with --seeds=0,1.
"""

import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from benchmarks import machine
from builders import task_runs
from common import artifacts, entry_point
from studies import monolingual_report, runs
from studies.monolingual_report import TASKS, Cell
from studies.splits import SPLITS, split_folder, write_splits
from training.signals import EXIT_STOPPED, Stopped
from vocap.merge import SPECIALS

# Common settings of the encoders of all sizes. Small batches, since learning to use context depends
# on the number of steps more than on the number of tokens.
_PRETRAINING = {
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
    "optimizer.learning_rate": 3e-3,
    "train.batch_size": 8,
    "train.evaluate_every": 500,
    "train.checkpoint_every": 500,
    "train.keep_checkpoints": 1,
    "evaluation.max_sequences": 100,
    "evaluation.max_sequences_in_training": 16,
}
_STAGES = ("build_vocab.py", "prepare_data.py", "train.py", "evaluate.py")

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
    """Job: encoder of one language with one vocabulary size, and its fine-tuning runs."""

    language: str
    size: int

    def folder(self, workdir: pathlib.Path) -> pathlib.Path:
        return workdir / "encoders" / self.language / str(self.size)

    def run_folder(self, workdir: pathlib.Path, task: str, seed: int) -> pathlib.Path:
        return self.folder(workdir) / task / f"seed{seed}"

    def pretraining(self, steps: int) -> dict[str, Any]:
        """Keys of the encoder's config that differ from `configs/real_text.py`."""
        return {
            **_PRETRAINING,
            "corpus.languages": (self.language,),
            "vocab.sizes": (self.size,),
            "vocab.target_size": self.size + len(SPECIALS),
            "optimizer.warmup_steps": min(100, steps // 10),
            "train.num_steps": steps,
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
        config.init_from = str(self.folder(workdir))
        config.model_name = f"{self.language}{self.size}"
        config.train.seed = seed
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


def pretrain(job: Job, data: str, steps: int, workdir: pathlib.Path) -> bool:
    """Run a job's stages, unless finished; return whether there was anything to do."""
    change = job.pretraining(steps)
    stage = artifacts.open_stage(job.folder(workdir), {"data": data, **change})
    if stage.done:
        return False
    stage.claim()
    for script in _STAGES:
        call(script, data, stage.folder, change)
    stage.finish()
    return True


def fine_tune(
    job: Job, configs: Mapping[str, ConfigDict], seeds: Sequence[int], workdir: pathlib.Path
) -> None:
    """Execute all fine-tuning runs of a job in this process, to avoid the startup of many."""
    for task, base in configs.items():
        for seed in seeds:
            folder = job.run_folder(workdir, task, seed)
            try:
                found = task_runs.run(job.fine_tuning(base, task, seed, workdir), folder)
            except Stopped as stopped:
                logging.info("%s", stopped)
                sys.exit(EXIT_STOPPED)
            score = 100 * found["test"][job.language]["f1"]
            logging.info("%s, %d pieces, %s, seed %d: %.1f", *_names(job), task, seed, score)


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
      seeds: of fine-tuning.
      workdir: folder of the results.
      data: folder with the text.
      steps: of pre-training.
      configs: config of each task.

    Returns:
      The errors of failed jobs.
    """
    errors = []
    for job in todo:
        try:
            if pretrain(job, data, steps, workdir):
                logging.info("%s, %d pieces: pre-trained", *_names(job))
            fine_tune(job, configs, seeds, workdir)
        except ValueError as error:
            logging.error("%s, %d pieces: %s", *_names(job), error)
            errors.append(f"{job.language}, {job.size} pieces: {error}")
    return errors


# 3. Results.


def cells(workdir: pathlib.Path) -> Iterator[Cell]:
    """Yield the record of each pre-trained job, with its finished fine-tuning runs."""
    for path in sorted(workdir.glob("encoders/*/*/report/results.json")):
        folder = path.parent.parent
        language, size = folder.parent.name, int(folder.name)
        loss = artifacts.read_json(path)["losses"][language]
        built = artifacts.read_json(folder / "vocab" / "allocation.json")["languages"][language]
        scores: dict[str, dict[int, float]] = {task: {} for task in TASKS}
        for task in TASKS:
            for found in sorted((folder / task).glob("seed*/results.json")):
                one = artifacts.read_json(found)
                scores[task][one["seed"]] = one["test"][language]["f1"]
        yield Cell(
            language,
            size,
            alp=built["alp"][built["sizes"].index(size)],
            loss=loss["loss"],
            unigram=loss["unigram"],
            scores=scores,
        )


def define_flags() -> None:
    """Define the command's flags; not at import, since tests import several commands."""
    flags.DEFINE_string("data", None, "Folder with text and data of the tasks.")
    flags.DEFINE_string("workdir", None, "Where results go.")
    flags.DEFINE_list("languages", ["fi", "ru", "ar", "de"], "In this order.")
    flags.DEFINE_list("sizes", ["500", "1000", "2000", "4000", "8000"], "In pieces.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of fine-tuning.")
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
