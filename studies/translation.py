"""Translation from random parameters, from MLM, MLM + TLM and VECO (VECO Tables 3 and 4).

    python -m studies.translation --config=configs/veco.py:translation,DATA \\
        --workdir=runs/translation

Pre-trains, under every seed and by the ordinary stages, the runs `translation`, `translation_xlm`
and `translation_xlm_text` of `configs/veco.py`, on one vocabulary and one packed dataset: VECO, XLM
on the same data, and MLM on its text alone, as XLM-R. From each of `STARTS` a model is then trained
for each of `TASKS`: captions of photographs (Multi30k) in three directions, and news. All have
equal steps. Their learning rates are those of `configs/finetune/multi30k.py` times one of --scales:
for each start the one with the best development BLEU of the first task under the first seed, which
other tasks and seeds use alone. Test data select nothing.

Runs of the first task are then searched again (`studies.translation_search`): greedy and with
beams, with one checkpoint and with the mean of several.

Tables and plots go to WORKDIR/report. If it is run again after a stop, it completes missing runs,
and pre-trains only where one is missing, see `studies.records`; --tasks, --starts and --seeds
choose, --report_only prints the tables of finished runs.

Hardware: 2 CPU cores, many hours; --workers=1 --nopin on an accelerator.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from common import artifacts, entry_point
from configs.veco import SMALL
from evaluation import translation_report as run_report
from studies import runs, translation_report
from studies.runs import Job
from studies.translation_settings import SEARCH, STARTS, TASKS, VECO, Study
from training.metrics import read_metrics


def prepare(study: Study) -> None:
    """Build the vocabulary and the packed rows."""
    for script in ("build_vocab.py", "prepare_data.py"):
        study.call(script, study.workdir, SMALL[VECO])


def pretrain(study: Study, run: str, seed: int) -> bool:
    """Train and evaluate an encoder that a run needs; return whether there was anything to do."""
    folder = study.encoder(run, seed)
    # Results may be restored from a record, without the encoder.
    is_there = (folder / "train" / "DONE").exists()
    if not is_needed(study, run, seed) or (is_there and _results(folder).exists()):
        return False
    runs.share_data(study.workdir, folder)
    for script in ("train.py", "evaluate.py"):
        study.call(script, folder, {**SMALL[run], "train.seed": seed})
    return True


def _results(encoder: pathlib.Path) -> pathlib.Path:
    return encoder / "report" / "results.json"


def is_needed(study: Study, run: str, seed: int) -> bool:
    """Whether a run that starts from an encoder has no record yet."""
    for start in study.starts:
        if STARTS[start].encoder == run:
            scale = study.chosen_scale(start)
            if scale is None:
                return True
            if not all(study.record(task, start, scale, seed) for task in study.tasks):
                return True
    return False


def change_of(study: Study, task: str, start: str, scale: str, seed: int) -> dict[str, Any]:
    """Return the changed keys of a run of finetune.py."""
    config, encoder = study.config_of(task), STARTS[start].encoder
    if encoder is None:  # with the vocabulary alone
        source = study.workdir
        sizes = {f"architecture.{key}": study.config.model[key] for key in config.architecture}
    else:
        source, sizes = study.encoder(encoder, seed), {}
    return {
        **TASKS[task].change,
        **sizes,
        "random_init": encoder is None,
        "translation.decoder_from": STARTS[start].end,
        "translation.decoder_layers": STARTS[start].layers,
        "translation.needs_cross_attention": encoder == VECO,
        "init_from": source.absolute(),
        "model_name": start,
        "optimizer.learning_rate": float(scale) * config.optimizer.learning_rate,
        "optimizer.muon_learning_rate": float(scale) * config.optimizer.muon_learning_rate,
        "train.num_steps": study.steps,
        "train.evaluate_every": max(1, study.steps // 6),
        "train.checkpoint_every": max(1, study.steps // 12),
        "train.seed": seed,
    }


def translate(study: Study, task: str, start: str, scale: str, seed: int) -> bool:
    """Train and test a model, and record it; return whether there was anything to do."""
    if study.record(task, start, scale, seed):
        return False
    folder, root = study.folder(task, start, scale, seed), study.config_of(task).task.root
    config = [f"--config=configs/finetune/multi30k.py:{TASKS[task].direction},{root}"]
    study.call("finetune.py", folder, change_of(study, task, start, scale, seed), config)
    results, direction = artifacts.read_json(folder / "results.json"), TASKS[task].direction
    curve = run_report.learning_curves(read_metrics(folder / "metrics.jsonl"))
    record = {
        "validation": results["validation"][direction],
        "test": results["test"][direction],
        "sentences": results["examples"]["test"][direction],
        "curve": curve[direction],
    }
    # To be read, for which those of one seed are enough.
    if seed == study.seeds[0]:
        record["translations"] = run_report.some_translations(folder, direction)
    artifacts.write_json(folder / "record.json", record)
    return True


def search(study: Study, start: str, seed: int) -> bool:
    """Search with a model of the first task again; return whether there was anything to do."""
    task = study.tasks[0]
    scale = study.chosen_scale(start)
    if scale is None:
        return False
    folder = study.folder(task, start, scale, seed)
    if (folder / SEARCH).exists() or not (folder / "checkpoints").exists():
        return False
    runs.execute(
        ["-m", "studies.translation_search", f"--workdir={folder.absolute()}"],
        name="studies.translation_search",
        log=folder / "log.txt",
        compiled=study.workdir / "compiled",
        one_thread=study.pin,
    )
    return True


def do_study(study: Study) -> None:
    """Execute all runs, one seed after another.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    prepare(study)
    errors: list[str] = []
    for seed in study.seeds:
        used = filter(None, dict.fromkeys(STARTS[start].encoder for start in study.starts))
        errors += study.do(
            Job(f"pre-train {run}, seed {seed}", functools.partial(pretrain, study, run, seed))
            for run in used
        )
        # Other tasks are run at the scales that the first one selects.
        for tasks in (study.tasks[:1], study.tasks[1:]):
            errors += study.do(
                Job(
                    ", ".join((*one, f"seed {seed}")),
                    functools.partial(translate, study, *one, seed),
                )
                for one in _wanted(study, tasks, seed)
            )
        errors += study.do(
            Job(f"search, {start}, seed {seed}", functools.partial(search, study, start, seed))
            for start in study.starts
        )
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


def _wanted(study: Study, tasks: Sequence[str], seed: int) -> list[tuple[str, str, str]]:
    """Task, start and scale of the runs of a seed: all scales where they are selected by, or one.

    Without those whose encoder is missing.
    """
    selects = study.tasks[0], study.seeds[0]
    chosen = {
        (task, start): study.scales if (task, seed) == selects else [study.chosen_scale(start)]
        for task in tasks
        for start in study.starts
    }
    # An encoder that is missing has failed, and would fail every run that starts from it.
    ready = {
        start: encoder is None or (study.encoder(encoder, seed) / "train" / "DONE").exists()
        for start, encoder in ((one, STARTS[one].encoder) for one in study.starts)
    }
    return [
        (task, start, scale)
        for (task, start), scales in chosen.items()
        for scale in scales
        if scale and (ready[start] or study.record(task, start, scale, seed))
    ]


def main(_) -> None:
    given = flags.FLAGS
    study = Study(
        given.config,
        pathlib.Path(given.workdir),
        runs.chosen("tasks", given.tasks, TASKS),
        runs.chosen("starts", given.starts, STARTS),
        [int(seed) for seed in given.seeds],
        given.scales,
        given.steps,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        runs.claim(study.workdir, given.config, steps=study.steps)
        do_study(study)
    print(translation_report.write_report(study))
    print(f"report: {(study.workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags("Of the run `translation`.", "Of pre-training and fine-tuning.")
    flags.DEFINE_list(
        "tasks", list(TASKS), "Tasks to train for; the first selects rates and is searched again."
    )
    flags.DEFINE_list("starts", list(STARTS), "Starting points.")
    flags.DEFINE_list("scales", ["1", "0.3"], "Factors of the learning rates.")
    flags.DEFINE_integer("steps", 1200, "Steps of each model.", lower_bound=12)
    entry_point.run(main)
