"""Continued training on one domain: gain inside, loss outside, by language (XY-LENT Section 8).

    python -m studies.continued --config=configs/xy_lent.py:small,DATA \\
        --encoders=runs/xy_lent --workdir=runs/continued

Starts from the runs `small` (generator and discriminator) and `small_mlm` of `studies.xy_lent` in
--encoders, under every seed, and trains on the text of --domain, a folder of DATA, in the languages
of the encoders that it has: for --steps steps, without pairs, once at the peak learning rate of the
pre-training and once at a tenth of it (`RATES`). The vocabulary is that of the encoders.
`tools.forgetting` then scores each before and after, on held-out rows of the pre-training and of
the domain. With --rate, encoders are fine-tuned on English data of --task at that learning rate as
well, before and after, and tested in the other languages: Table 6, which has XNLI.

Tables and a plot as Figure 5 go to WORKDIR/report. If it is run again after a stop, or with a task,
it completes what is missing; --report_only prints the tables of finished runs.

Hardware: 2 CPU cores, an hour; --workers=1 --nopin on an accelerator.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from common import artifacts, entry_point
from configs.xy_lent import SMALL
from evaluation import forgetting
from evaluation.task_results import reported_scores
from studies import continued_report, runs
from studies.continued_report import RATES
from studies.downstream import TASKS, tuning_keys
from studies.runs import Job
from studies.xy_lent_tasks import TaskRun

ARMS = ("small", "small_mlm")
_BEFORE = "before"
_HELDOUT = 0.2  # of the domain, of which there is little
_TUNED = [name for name, task in TASKS.items() if task.epochs]


@dataclasses.dataclass(frozen=True)
class Study(runs.Stages):
    """Settings of the study.

    Attributes:
      config: config of the run `small`.
      encoders: working directory of `studies.xy_lent`.
      workdir: folder of the results.
      domain: folder of the text, below `corpus.root`.
      steps: of the continued training.
      seeds: of the pre-trainings, and of what follows.
      task: of `downstream.TASKS`, to fine-tune on.
      rate: its learning rate; "" for no task.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    config: ConfigDict
    encoders: pathlib.Path
    workdir: pathlib.Path
    domain: str
    steps: int
    seeds: Sequence[int]
    task: str
    rate: str
    workers: int
    pin: bool

    def encoder(self, arm: str, seed: int) -> pathlib.Path:
        """Return the working directory of a pre-training."""
        return (self.encoders / "encoders" / arm / f"seed{seed}").absolute()

    def tuned(self, arm: str, name: str, seed: int) -> pathlib.Path:
        """Return the folder of the task, "before" or after training at a rate.

        Before, it is that of `studies.xy_lent` where this has fine-tuned the encoder.
        """
        there = TaskRun(self.task, arm, self.rate, seed).folder(self.encoders)
        if name == _BEFORE and (there / "results.json").exists():
            return there
        return self.workdir / "tasks" / self.task / self.rate / arm / name / f"seed{seed}"

    def execute(self, name: str, arguments: Sequence[str], folder: pathlib.Path) -> None:
        """Run a command, and log its output to a folder."""
        compiled = self.workdir / "compiled"
        runs.execute(
            arguments, name=name, log=folder / "log.txt", compiled=compiled, one_thread=self.pin
        )


def domain_languages(study: Study) -> tuple[str, ...]:
    """Return the languages of `corpus.languages` that the domain has text in.

    Raises:
      ValueError: there are none.
    """
    folder = pathlib.Path(study.config.corpus.root) / study.domain
    found = tuple(
        language
        for language in study.config.corpus.languages
        if any(folder.glob(f"{language}.txt*"))
    )
    if not found:
        raise ValueError(
            f"--domain: {folder} has no <language>.txt in a language of corpus.languages; name a "
            "folder of text below corpus.root"
        )
    return found


def _data_keys(study: Study) -> dict[str, Any]:
    return {
        "corpus.text": (study.domain,),
        "corpus.parallel": (),
        "corpus.parallel_eval": (),
        "corpus.languages": domain_languages(study),
        "corpus.heldout_fraction": _HELDOUT,
        "data.pair_share": 0.0,
    }


def prepare(study: Study, encoders: Sequence[tuple[str, int]]) -> None:
    """Pack the domain's text with the vocabulary of the encoders, and link their rows.

    Args:
      study: the study.
      encoders: arms and seeds of the encoders to continue from.

    Raises:
      ValueError: an encoder is not there, or there is no text.
    """
    change, folders = _data_keys(study), [study.encoder(*one) for one in encoders]
    if absent := [str(one) for one in folders if not (one / "train" / "DONE").exists()]:
        arms, seeds = (
            ",".join(dict.fromkeys(map(str, some))) for some in zip(*encoders, strict=True)
        )
        raise ValueError(
            f"--encoders: no finished run in {', '.join(absent)}; run studies.xy_lent with "
            f"--arms={arms} --seeds={seeds}, and where results were restored without encoders, "
            "remove record.json of these folders first, by which it takes them for done"
        )
    first = folders[0]
    runs.share_data(first, study.workdir / "general")
    domain = study.workdir / "domain"
    domain.mkdir(parents=True, exist_ok=True)
    if not (domain / "vocab").is_symlink():
        (domain / "vocab").symlink_to(os.path.relpath(first / "vocab", domain))
    study.call("prepare_data.py", domain, change)


def change_of(study: Study, arm: str, name: str, seed: int) -> dict[str, Any]:
    """Return the changed keys of a continued training; both rates of Muon are scaled."""
    config = study.config.copy_and_resolve_references()
    config.update_from_flattened_dict(SMALL[arm])
    scale, optimizer = RATES[name][1], config.optimizer
    return {
        **SMALL[arm],
        **_data_keys(study),
        "optimizer.learning_rate": scale * optimizer.learning_rate,
        "optimizer.muon_learning_rate": scale * optimizer.muon_learning_rate,
        "optimizer.warmup_steps": max(1, study.steps // 10),
        "train.num_steps": study.steps,
        "train.evaluate_every": max(1, study.steps // 4),
        "train.init_from": study.encoder(arm, seed),
        "train.seed": seed,
    }


def train(study: Study, arm: str, name: str, seed: int) -> bool:
    """Continue training, and compare with before; return True."""
    folder = continued_report.run_folder(study.workdir, arm, name, seed)
    runs.share_data(study.workdir / "domain", folder)
    study.call("train.py", folder, change_of(study, arm, name, seed))
    tasks = []
    if study.rate:
        fine_tune(study, arm, name, seed, folder)
        both = [study.tuned(arm, one, seed).absolute() for one in (_BEFORE, name)]
        tasks = [f"--tasks={both[0]},{both[1]}"]
    rows = [(study.workdir / one).absolute() for one in ("general", "domain")]
    study.execute(
        "tools.forgetting",
        [
            *("-m", "tools.forgetting"),
            f"--before={study.encoder(arm, seed)}",
            f"--after={folder.absolute()}",
            f"--rows={rows[0]},{rows[1]}",
            f"--output={folder.absolute() / 'forgetting'}",
            *tasks,
        ],
        folder,
    )
    return True


def _is_compared(study: Study, arm: str, name: str, seed: int) -> bool:
    """Whether a run has been compared, by the task at its rate too if there is one."""
    found = continued_report.run_folder(study.workdir, arm, name, seed) / "forgetting"
    if not (found / forgetting.RESULTS).exists():
        return False
    if not study.rate:
        return True
    tuned = study.tuned(arm, name, seed) / "results.json"
    if not tuned.exists():
        return False
    # A comparison does not name the rate, but has the scores at it.
    scores = reported_scores(artifacts.read_json(tuned))
    return any(
        data == "task"
        and measure.startswith(f"{study.task},")
        and all(scores.get(language) == after for language, (_, after) in change.items())
        for (data, measure), change in forgetting.read_changes(found).items()
    )


def fine_tune(study: Study, arm: str, name: str, seed: int, encoder: pathlib.Path) -> bool:
    """Fine-tune an encoder on the task; return whether there was anything to do."""
    folder = study.tuned(arm, name, seed)
    if (folder / "results.json").exists():
        return False
    task, root = TASKS[study.task], pathlib.Path(study.config.corpus.root).absolute()
    remedy = "add them, or give no --rate"
    change = {
        "init_from": encoder.absolute(),
        "model_name": f"{arm}-{name}",
        "train.seed": seed,
        "task.test_languages": runs.tested_languages(study.config, task.test, remedy),
        **tuning_keys(task, study.rate),
    }
    config = [f"--config=configs/finetune/{study.task}.py:{root}"]
    study.call("finetune.py", folder, change, config)
    return True


def do_study(study: Study) -> None:
    """Execute all runs.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    reads = study.config.copy_and_resolve_references()
    reads.update_from_flattened_dict(_data_keys(study))
    runs.claim(study.workdir, study.config, reads, domain=study.domain, steps=study.steps)
    missing = [
        (arm, name, seed)
        for seed in study.seeds
        for arm in ARMS
        for name in RATES
        if not _is_compared(study, arm, name, seed)
    ]
    # Results may be restored from a record, without the encoders.
    if not missing:
        return
    encoders = list(dict.fromkeys((arm, seed) for arm, _, seed in missing))
    prepare(study, encoders)
    before = [
        Job(
            f"{study.task} of {arm}, seed {seed}",
            functools.partial(fine_tune, study, arm, _BEFORE, seed, study.encoder(arm, seed)),
        )
        for arm, seed in encoders
        if study.rate
    ]
    jobs = [
        Job(f"{arm}, {name}, seed {seed}", functools.partial(train, study, arm, name, seed))
        for arm, name, seed in missing
    ]
    errors = [error for wave in (before, jobs) for error in study.do(wave)]
    if errors:
        raise ValueError(f"{len(errors)} of {len(before + jobs)} runs failed: {errors[0]}")


def main(_) -> None:
    given = flags.FLAGS
    study = Study(
        given.config,
        pathlib.Path(given.encoders),
        pathlib.Path(given.workdir),
        given.domain,
        given.steps,
        [int(seed) for seed in given.seeds],
        given.task,
        given.rate,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        do_study(study)
    print(continued_report.write_report(study.workdir, ARMS, study.seeds, domain_languages(study)))
    print(f"report: {(study.workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags("Of the run `small`.", "Of the pre-trainings and what follows.")
    flags.DEFINE_string("encoders", None, "Working directory of studies.xy_lent.")
    flags.DEFINE_string("domain", "tico19", "Folder of the text, below corpus.root.")
    flags.DEFINE_integer("steps", 400, "Steps of the continued training.", lower_bound=2)
    flags.DEFINE_enum("task", "udpos", _TUNED, "To fine-tune on, with a --rate.")
    flags.DEFINE_string("rate", "", "Learning rate of the task, as 3e-3; no task without one.")
    entry_point.run(main, required=("config", "workdir", "encoders"))
