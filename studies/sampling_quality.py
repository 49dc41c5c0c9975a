"""Quality of the output layers after equal steps: exact loss, fine-tuning, speed (Tables 2, 3).

    python -m studies.sampling_quality --config=configs/sampling_quality.py:DATA \\
        --workdir=runs/sampling_quality

Pre-trains one encoder for every setting and seed, by the ordinary stages, on one vocabulary and one
packed dataset. Runs of a seed share initial parameters (except for half embeddings), masks and the
order of the data; settings differ in the section `output_layer`, or in the embedding size. Those of
which the paper's Tables 1 to 3 have scores are fine-tuned on English, see `studies.sampling_tasks`.
Each run has one core and one thread, with --workers runs in parallel: methods, seed by seed, then
their fine-tuning, and so on with k, n and half embeddings. Finally the speed is measured: all
settings take turns at a few steps each, from the final states of the first seed, on one core.
Tables and plots go to WORKDIR/report.

If it is run again after a stop, it completes missing runs; --report_only prints the tables of
finished runs and lists missing ones.
On an accelerator: --workers=1 --nopin, and a larger job by config keys, such as
--config.vocab.target_size=500000 --config.model.hidden_size=512 --config.train.num_steps=20000.
"""

import functools
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from builders import data as builders
from common import artifacts, entry_point
from studies import runs, sampling_report, sampling_tasks
from studies.runs import Job
from studies.sampling_settings import GROUPS, Setting, study
from training.metrics import read_metrics

_CONFIG = config_flags.DEFINE_config_file("config", None, "What all runs share.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_SETTINGS = flags.DEFINE_list("settings", [], "Names of settings to run; all by default.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of parameters, masks and data order.")
_TASKS = flags.DEFINE_list(
    "tasks", list(sampling_tasks.TASKS), "Tasks to fine-tune on, which DATA has; none if empty."
)
_WORKERS = flags.DEFINE_integer("workers", 2, "Runs at a time.", lower_bound=1)
_PIN = flags.DEFINE_bool("pin", True, "Give each run one core and one thread.")
_TURNS = flags.DEFINE_integer("turns", 5, "Turns of each setting when speed is measured.")
_STEPS_A_TURN = flags.DEFINE_integer("steps_a_turn", 4, "Steps in a turn.")
_REPORT_ONLY = flags.DEFINE_bool("report_only", False, "Run nothing, report what is there.")
_SPEED_ONLY = flags.DEFINE_bool("speed_only", False, "Measure the speed of finished runs.")


def run_folders(workdir: pathlib.Path, setting: Setting, seed: int) -> builders.Folders:
    """Result folders of a run."""
    return builders.Folders(workdir / "runs" / setting.name / f"seed{seed}")


# 1. Runs.


def call(
    script: Sequence[str],
    workdir: pathlib.Path,
    change: Mapping[str, Any],
    log: pathlib.Path,
    config: Sequence[str] = (),
) -> None:
    """Run a stage, by default under the config of this command; see `runs.call`."""
    runs.call(
        script,
        config or runs.own_config(),
        change,
        workdir,
        log=log,
        compiled=pathlib.Path(_WORKDIR.value) / "compiled",
        one_thread=_PIN.value,
    )


def open_run(
    config: ConfigDict, folders: builders.Folders, rows: Mapping[str, Any]
) -> artifacts.Stage:
    """Open the folder of a run, which refuses other settings.

    Args:
      config: of the run.
      folders: of the run.
      rows: settings of the packed dataset.
    """
    settings = {
        "rows": rows,
        **builders.training_settings(config),
        # Means of a record are over what was logged, which changes no training.
        "train": config.train.to_dict(),
        "evaluation": config.evaluation.to_dict(),
    }
    # An older folder has fewer sections; those that it lacks the study's folder has claimed.
    return artifacts.open_stage(folders.workdir, settings, defaults=settings)


def pretrain(
    config: ConfigDict, setting: Setting, seed: int, workdir: pathlib.Path, is_awaited: bool
) -> bool:
    """Train and evaluate a setting under a seed and save its record, unless finished.

    A record may be restored (`studies.records`), without the encoder: this is trained again only
    if it `is_awaited` by a fine-tuning.

    Returns:
      Whether there was anything to do.
    """
    own, folders = setting.config(config, seed), run_folders(workdir, setting, seed)
    is_restored = (folders.workdir / "record.json").exists() and not folders.train.exists()
    if is_restored and not is_awaited:
        return False
    stage = open_run(own, folders, artifacts.read_json(workdir / "rows" / "settings.json"))
    if stage.done:
        return False
    stage.claim()
    runs.share_data(workdir, folders.workdir)
    for script in ("train.py", "evaluate.py"):
        call([script], folders.workdir, setting.overrides(seed), folders.workdir / "log.txt")
    artifacts.write_json(folders.workdir / "record.json", record(own, setting, seed, folders))
    stage.finish()
    return True


def record(config: ConfigDict, setting: Setting, seed: int, folders: builders.Folders) -> dict:
    """Record of a finished run; means are over the second half of the sampled steps."""
    results = artifacts.read_json(folders.report / "results.json")["losses"]
    metrics = read_metrics(folders.train / "metrics.jsonl")
    steps, layer = config.train.num_steps, config.output_layer
    last = steps if layer.kind == "full" else steps - round(layer.full_softmax_fraction * steps)

    def late(name: str) -> float | None:
        found = [one[name] for one in metrics if name in one and last / 2 < one["step"] <= last]
        return statistics.fmean(found) if found else None

    return {
        "setting": setting.name,
        "seed": seed,
        "vocab_size": artifacts.read_json(folders.rows / "meta.json")["vocab_size"],
        "loss": {language: one["loss"] for language, one in results.items()},
        "unigram": {language: one["unigram"] for language, one in results.items()},
        "candidates": late("train/candidates"),
        "overflow": late("train/overflow"),
        "staleness": late("index/staleness"),
        "steps_per_second": plain_speed(
            read_metrics(folders.train / "speed.jsonl"),
            log_every=config.train.log_every,
            refresh_every=layer.refresh_every if layer.kind == "knn" else steps,
            last=last,
        ),
    }


def plain_speed(
    speeds: Sequence[Mapping[str, float]], *, log_every: int, refresh_every: int, last: int
) -> float:
    """Median steps per second of the intervals without compilation, refresh or exact steps.

    Args:
      speeds: `step` at the end of each interval, and `steps_per_second`.
      log_every: length of the intervals.
      refresh_every: steps between refreshes; if every interval has one, all are used.
      last: last sampled step.
    """
    sampled = [one for one in speeds[1:] if one["step"] <= last] or list(speeds)

    def has_refresh(step: float) -> bool:
        # Refreshes precede one of the steps step - log_every, ..., step - 1, counted from 0.
        return (step - 1) % refresh_every < log_every

    plain = [one for one in sampled if not has_refresh(one["step"])]
    return statistics.median(one["steps_per_second"] for one in plain or sampled)


def fine_tune(config: ConfigDict, run: sampling_tasks.TaskRun, workdir: pathlib.Path) -> bool:
    """Fine-tune or run retrieval by finetune.py, which skips finished runs.

    Returns:
      Whether there was anything to do; results may be restored, without the encoder.
    """
    folder, encoder = run.folder(workdir), run_folders(workdir, run.encoder, run.seed)
    if run.result(workdir).exists() and not encoder.train.exists():
        return False
    arguments = sampling_tasks.arguments(config, run, encoder.workdir.absolute())
    call(["finetune.py"], folder, arguments.change, folder / "log.txt", [arguments.config])
    return True


def do_runs(
    config: ConfigDict,
    settings: Sequence[Setting],
    seeds: Sequence[int],
    tasks: Sequence[str],
    workdir: pathlib.Path,
) -> None:
    """Execute all runs, group by group: first the encoders of all seeds, then their fine-tuning.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    task_runs = sampling_tasks.task_runs(settings, seeds, tasks)
    awaited = {
        (run.encoder.name, run.seed) for run in task_runs if not run.result(workdir).exists()
    }

    phases = []
    for group in GROUPS:
        pretraining = [
            Job(
                f"{one.name}, seed {seed}",
                functools.partial(
                    pretrain, config, one, seed, workdir, (one.name, seed) in awaited
                ),
            )
            for seed in seeds
            for one in settings
            if one.group == group
        ]
        tuning = [
            Job(run.name, functools.partial(fine_tune, config, run, workdir))
            for run in task_runs
            if run.encoder.group == group
        ]
        phases += [pretraining, tuning]
    errors = [
        error
        for phase in phases
        for error in runs.do_all(phase, workers=_WORKERS.value, pin=_PIN.value)
    ]
    if errors:
        raise ValueError(f"{len(errors)} of {sum(map(len, phases))} runs failed: {errors[0]}")


# 2. Speed.


def measure_speed(
    config: ConfigDict, settings: Sequence[Setting], seed: int, workdir: pathlib.Path
) -> None:
    """Measure the seconds of a step, an exact step and a refresh of each setting in `speed.json`.

    The figures are medians over interleaved turns. Each setting continues from the end of its run,
    since |V'|, and with it the cost, is larger at the start.
    """
    from benchmarks import machine  # imports jax, which the rest does not need

    machine.set_up(int(_PIN.value))
    turns = {
        setting.name: _turn(config, setting, seed, run_folders(workdir, setting, seed))
        for setting in settings
    }
    times: dict[str, dict[str, list[float]]] = {name: {} for name in turns}
    for number in range(1 + _TURNS.value):
        for name, turn in turns.items():
            for what, seconds in turn().items():
                if number:  # the first compiles
                    times[name].setdefault(what, []).append(seconds)
    medians = {
        name: {what: statistics.median(found) for what, found in own.items()}
        for name, own in times.items()
    }
    artifacts.write_json(
        workdir / "speed.json", {"times": medians, "machine": machine.describe_machine()}
    )


def _turn(
    config: ConfigDict, setting: Setting, seed: int, folders: builders.Folders
) -> Callable[[], dict[str, float]]:
    """Build a function that continues a finished run for a few steps and returns their times."""
    import jax

    from builders import model, objectives, streams
    from objectives.batch import Batch
    from training import sharding
    from training.checkpoint import restore_latest

    config = setting.config(config, seed)
    store = builders.open_packed_dataset(folders)
    mesh = model.mesh(config)
    objective = objectives.objective(config, store, mesh)
    functions = model.train_functions(config, objective, mesh)
    step, state = restore_latest(folders.train / "checkpoints", functions.abstract_after)
    layout = sharding.batch_sharding(mesh)
    data = streams.training_data(config, store, mesh)
    batches = [
        Batch(
            jax.tree.map(lambda x: jax.make_array_from_process_local_data(layout, x), arrays), kind
        )
        for kind, arrays in data.batches(range(step, step + _STEPS_A_TURN.value))
    ]
    phases = {"step": objective, "exact": objective.at_step(step - 1)}
    if phases["exact"] is objective:
        del phases["exact"]

    def turn() -> dict[str, float]:
        nonlocal state
        seconds = {}
        for what, phase in phases.items():
            begin = time.monotonic()
            for batch in batches:
                state, _ = functions.train_step(phase, state, batch)
            jax.block_until_ready(state)
            seconds[what] = (time.monotonic() - begin) / len(batches)
        if names := objective.due(0):
            begin = time.monotonic()
            state, _ = jax.block_until_ready(functions.refresh(names, state))
            seconds["refresh"] = time.monotonic() - begin
        return seconds

    return turn


def _run_all(config: ConfigDict, settings: Sequence[Setting], workdir: pathlib.Path) -> None:
    """Execute the missing stages: vocabulary, packed dataset, runs and speed."""
    runs.claim(workdir, config)
    log, seeds = workdir / "log.txt", [int(seed) for seed in _SEEDS.value]
    for script in ("build_vocab.py", "prepare_data.py"):
        call([script], workdir, {}, log)
    do_runs(config, settings, seeds, _TASKS.value, workdir)
    if set(sampling_report.read_speed(workdir)["times"]) >= {one.name for one in settings}:
        return
    absent = [
        one.name for one in settings if not run_folders(workdir, one, seeds[0]).train.exists()
    ]
    if absent:
        logging.info("speed is not measured: no encoders of %s", ", ".join(absent))
        return
    # In a separate process, since jax reads its flags at startup.
    names = ("pin", "turns", "steps_a_turn", "settings", "seeds")
    options = [flags.FLAGS[name].serialize() for name in names]
    call(
        ["-m", "studies.sampling_quality", "--speed_only", *filter(None, options)],
        workdir,
        {},
        log,
    )


def _chosen(settings: Sequence[Setting]) -> list[Setting]:
    names = [one.name for one in settings]
    chosen = runs.chosen("settings", _SETTINGS.value, names) or names
    return [one for one in settings if one.name in chosen]


def main(_) -> None:
    config, workdir = _CONFIG.value, pathlib.Path(_WORKDIR.value)
    settings, seeds = _chosen(study(config)), [int(seed) for seed in _SEEDS.value]
    if _SPEED_ONLY.value:
        measure_speed(config, settings, seeds[0], workdir)
        return
    if not _REPORT_ONLY.value:
        _run_all(config, settings, workdir)
    print(sampling_report.write_report(config, settings, seeds, _TASKS.value, workdir))
    print(f"report: {(workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    entry_point.run(main)
