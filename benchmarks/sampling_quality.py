"""What each output layer learns in the same steps: exact held-out loss and speed (Tables 2 and 3).

    python -m benchmarks.sampling_quality --config=configs/sampling_quality.py:DATA \\
        --workdir=runs/sampling_quality

Pre-trains one encoder for every setting and seed, by the ordinary stages, on one vocabulary and one
row store. Runs of a seed share first parameters, masks and the order of the data; settings differ
in the section `output_layer` alone. Each run has one core and one thread, --workers of them at a
time. Then all settings take turns at a few steps each, from the last states of the first seed, on
one core: that is the speed. Tables and two plots go to WORKDIR/report.

Run again after a stop, it does what is missing; --report_only prints the tables of what is there.
On an accelerator: --workers=1 --nopin, and a larger job by keys, such as
--config.vocab.target_size=500000 --config.model.hidden_size=512 --config.train.num_steps=20000.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

import artifacts
import entry_point
from benchmarks import sampling_report
from benchmarks.sampling_report import FULL
from builders import data as builders
from training.metrics import read_metrics

_CONFIG = config_flags.DEFINE_config_file("config", None, "What all runs share.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_SETTINGS = flags.DEFINE_list("settings", [], "Names of settings to run; all by default.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds of parameters, masks and data order.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Runs at a time.", lower_bound=1)
_PIN = flags.DEFINE_bool("pin", True, "Give each run one core and one thread.")
_TURNS = flags.DEFINE_integer("turns", 5, "Turns of each setting when speed is measured.")
_STEPS_A_TURN = flags.DEFINE_integer("steps_a_turn", 4, "Steps in a turn.")
_REPORT_ONLY = flags.DEFINE_bool("report_only", False, "Run nothing, report what is there.")
_SPEED_ONLY = flags.DEFINE_bool("speed_only", False, "Measure the speed of finished runs.")

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One output layer of the study.

    Attributes:
      name: in folders and --settings.
      label: in tables.
      group: the table it is in: "method", "k" or "n".
      change: keys of `output_layer` that differ from the config.
    """

    name: str
    label: str
    group: str
    change: Mapping[str, Any]

    def overrides(self, seed: int) -> dict[str, Any]:
        """The keys of a run's config that differ from the study's."""
        layer = {f"output_layer.{key}": value for key, value in self.change.items()}
        return {**layer, "train.seed": seed}

    def config(self, config: ConfigDict, seed: int = 0) -> ConfigDict:
        """The config of a run."""
        config = config.copy_and_resolve_references()
        config.update_from_flattened_dict(self.overrides(seed))
        return config


def study(config: ConfigDict) -> tuple[Setting, ...]:
    """All settings. "knn" is the config itself, which should be k-NN sampling as published."""
    layer, steps = config.output_layer, config.train.num_steps
    correction, tenth = {"log_q_correction": True}, {"exact_fraction": 0.1}
    methods = (
        Setting(FULL, "full softmax", "method", {"kind": "full"}),
        Setting("knn", f"k-NN (k = {layer.k}, n = {layer.refresh_every})", "method", {}),
        Setting("knn_log_q", "k-NN, log Q correction", "method", correction),
        Setting("knn_tenth", "k-NN, last tenth exact", "method", tenth),
        Setting("knn_both", "k-NN, both", "method", {**correction, **tenth}),
        Setting("target_sampling", "target sampling", "method", {"kind": "target_sampling"}),
        Setting("nce", "NCE", "method", {"kind": "nce"}),
        Setting("neg", "NEG", "method", {"kind": "neg"}),
    )
    ks = [k for k in (5, 10, 25, 50, 100) if k != layer.k]
    ns = dict.fromkeys(n for n in (10, 100, 1000, steps) if n <= steps and n != layer.refresh_every)
    return (
        *methods,
        *(Setting(f"k{k}", f"k = {k}", "k", {"k": k}) for k in ks),
        *(Setting(f"n{n}", _interval(n, steps), "n", {"refresh_every": n}) for n in ns),
    )


def _interval(n: int, steps: int) -> str:
    return f"n = {n}" if n < steps else "before the first step only"


def run_folders(workdir: pathlib.Path, setting: Setting, seed: int) -> builders.Folders:
    """Where a run keeps its results."""
    return builders.Folders(workdir / "runs" / setting.name / f"seed{seed}")


# 1. Runs.


def call(
    script: Sequence[str], workdir: pathlib.Path, change: Mapping[str, Any], log: pathlib.Path
) -> None:
    """Runs an entry point under the config of this command, changed.

    Raises:
      ValueError: it failed.
    """
    config = [flag for flag in sys.argv if flag.startswith(("--config=", "--config."))]
    changed = [f"--config.{key}={value}" for key, value in change.items()]
    command = [sys.executable, *script, *config, *changed, f"--workdir={workdir.absolute()}"]
    environment = dict(os.environ)
    if _PIN.value:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=file, stderr=file)
    if done.returncode:
        last = log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
        raise ValueError(f"{' '.join(script)} failed; {log} ends with: {last}")


def do_run(config: ConfigDict, setting: Setting, seed: int, workdir: pathlib.Path) -> bool:
    """Trains and evaluates a setting under a seed and keeps its record, unless that is done.

    Returns:
      Whether there was anything to do.
    """
    own, folders = setting.config(config, seed), run_folders(workdir, setting, seed)
    sections = ("model", "mask", "output_layer", "optimizer", "train", "evaluation")
    rows = artifacts.read_json(workdir / "rows" / "settings.json")
    stage = artifacts.open_stage(
        folders.workdir, {"rows": rows, **{name: own[name].to_dict() for name in sections}}
    )
    if stage.done:
        return False
    stage.claim()
    for shared in (folders.vocab, folders.rows):
        if not shared.is_symlink():
            shared.symlink_to(os.path.relpath(workdir / shared.name, folders.workdir))
    for script in ("train.py", "evaluate.py"):
        call([script], folders.workdir, setting.overrides(seed), folders.workdir / "log.txt")
    artifacts.write_json(folders.workdir / "record.json", record(own, setting, seed, folders))
    stage.finish()
    return True


def record(config: ConfigDict, setting: Setting, seed: int, folders: builders.Folders) -> dict:
    """What the study keeps of a finished run; means are over the second half of sampled steps."""
    results = artifacts.read_json(folders.report / "results.json")["losses"]
    metrics = read_metrics(folders.train / "metrics.jsonl")
    steps, layer = config.train.num_steps, config.output_layer
    last = steps if setting.name == FULL else steps - round(layer.exact_fraction * steps)

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
    """Median steps a second of the intervals without compilation, refresh or exact steps.

    Args:
      speeds: `step` at the end of each interval, and `steps_per_second`.
      log_every: length of the intervals.
      refresh_every: steps between refreshes; where it leaves no interval without, all count.
      last: last step that is not exact.
    """
    sampled = [one for one in speeds[1:] if one["step"] <= last] or list(speeds)

    def has_refresh(step: float) -> bool:
        # Before one of the steps step - log_every, ..., step - 1, counted from 0.
        return (step - 1) % refresh_every < log_every

    plain = [one for one in sampled if not has_refresh(one["step"])]
    return statistics.median(one["steps_per_second"] for one in plain or sampled)


def do_runs(
    config: ConfigDict, settings: Sequence[Setting], seeds: Sequence[int], workdir: pathlib.Path
) -> None:
    """All runs, seed by seed, so that a stopped study has whole tables of its first seeds.

    Raises:
      ValueError: a run failed; the others have been done.
    """
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    for worker in range(_WORKERS.value):
        cores.put(available[worker % len(available)] if available else 0)

    def pin() -> None:
        if _PIN.value and available:
            # The calling thread alone, and the processes that it starts.
            os.sched_setaffinity(0, {cores.get()})

    def run(setting: Setting, seed: int) -> str:
        begin = time.monotonic()
        try:
            done = do_run(config, setting, seed, workdir)
        except ValueError as error:
            logging.error("%s, seed %d: %s", setting.name, seed, error)
            return str(error)
        took = f"{time.monotonic() - begin:.0f} s" if done else "done before"
        logging.info("%s, seed %d: %s", setting.name, seed, took)
        return ""

    with concurrent.futures.ThreadPoolExecutor(_WORKERS.value, initializer=pin) as pool:
        pairs = [(setting, seed) for seed in seeds for setting in settings]
        errors = [error for error in pool.map(run, *zip(*pairs, strict=True)) if error]
    if errors:
        raise ValueError(f"{len(errors)} of {len(pairs)} runs failed: {errors[0]}")


# 2. Speed.


def measure_speed(
    config: ConfigDict, settings: Sequence[Setting], seed: int, workdir: pathlib.Path
) -> None:
    """Writes the seconds of a step, an exact step and a refresh of each setting to `speed.json`.

    All take turns, medians count. Each goes on from the end of its run: |V'|, and with it the cost,
    is larger at the start.
    """
    from benchmarks import machine  # imports jax, which the rest does without

    machine.pin(int(_PIN.value))
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
    """A function that goes on with a finished run for a few steps and returns what they took."""
    import jax

    from builders import model, objectives, streams
    from objectives.batch import Batch
    from training import sharding
    from training.checkpoint import restore_latest

    config = setting.config(config, seed)
    store = builders.open_row_store(folders)
    mesh = model.mesh(config)
    objective = objectives.objective(config, store, mesh)
    functions = model.train_functions(config, objective, mesh)
    step, state = restore_latest(folders.train / "checkpoints", functions.abstract_state)
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


def seconds_a_step(config: ConfigDict, times: Mapping[str, float]) -> float:
    """Mean over a whole run under `config`, refreshes and exact steps included."""
    layer, steps = config.output_layer, config.train.num_steps
    exact = round(layer.exact_fraction * steps) if "exact" in times else 0
    refreshes = -(-(steps - exact) // layer.refresh_every) if "refresh" in times else 0
    total = (
        (steps - exact) * times["step"]
        + exact * times.get("exact", 0)
        + refreshes * times.get("refresh", 0)
    )
    return total / steps


# 3. Report.


def write_report(config: ConfigDict, workdir: pathlib.Path) -> str:
    """Tables and plots of all records in `workdir`; returns the text.

    Raises:
      ValueError: there are none.
    """
    settings = study(config)
    records = [artifacts.read_json(path) for path in sorted(workdir.glob("runs/*/*/record.json"))]
    if not records:
        raise ValueError(f"{workdir} has no finished runs to report")
    rows = sampling_report.summarise({one.name: one.label for one in settings}, records)
    found = _read_speed(workdir)
    speed = speed_ratios(config, settings, found["times"])
    unigram = records[0]["unigram"]
    train = config.train
    parts = [
        f"# Output layers: {len(unigram)} languages, {records[0]['vocab_size']} pieces",
        f"{train.num_steps} steps of {train.batch_size} rows. Unigram distributions of the "
        f"languages: {statistics.fmean(unigram.values()):.3f} nats a token. "
        f"Speed: full = 1, side by side; {found['machine'] or 'not measured yet'}.",
    ]
    titles = {"method": "Methods", "k": "Neighbours k", "n": "Steps between refreshes n"}
    for group, title in titles.items():
        # The first two methods, full and k-NN as published, are the reference of all tables.
        names = [one.name for one in settings if one.group == group or one in settings[:2]]
        own = [rows[name] for name in names if name in rows]
        parts += [f"## {title}", sampling_report.table(own, speed)]
    methods = [rows[one.name] for one in settings if one.group == "method" and one.name in rows]
    by_k = {
        one.config(config).output_layer.k: rows[one.name]
        for one in settings
        if one.name in rows and (one.group == "k" or not one.change)
    }
    folder = workdir / "report"
    sampling_report.plot_methods(methods, folder / "methods.png")
    sampling_report.plot_k(by_k, rows.get(FULL), folder / "neighbours.png")
    parts += ["## Languages", sampling_report.language_table(methods, unigram)]
    parts += ["![Loss by method](methods.png)", "![Loss by k](neighbours.png)"]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(folder / "report.md", text)
    return text


def speed_ratios(
    config: ConfigDict, settings: Sequence[Setting], times: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """How many times as fast as the full softmax, a step and a whole run; none without times."""
    if FULL not in times:
        return {}
    full = times[FULL]["step"]
    return {
        one.name: {
            "step": full / times[one.name]["step"],
            "run": full / seconds_a_step(one.config(config), times[one.name]),
        }
        for one in settings
        if one.name in times
    }


def _read_speed(workdir: pathlib.Path) -> dict[str, Any]:
    path = workdir / "speed.json"
    return artifacts.read_json(path) if path.exists() else {"times": {}, "machine": ""}


def _run_all(config: ConfigDict, settings: Sequence[Setting], workdir: pathlib.Path) -> None:
    """Vocabulary, rows, runs and speed, as far as they are missing."""
    log, seeds = workdir / "log.txt", [int(seed) for seed in _SEEDS.value]
    for script in ("build_vocab.py", "prepare_data.py"):
        call([script], workdir, {}, log)
    do_runs(config, settings, seeds, workdir)
    if set(_read_speed(workdir)["times"]) >= {one.name for one in settings}:
        return
    # In a process of its own: jax takes its flags when it starts.
    names = ("pin", "turns", "steps_a_turn", "settings", "seeds")
    options = [flags.FLAGS[name].serialize() for name in names]
    call(
        ["-m", "benchmarks.sampling_quality", "--speed_only", *filter(None, options)],
        workdir,
        {},
        log,
    )


def _chosen(settings: Sequence[Setting]) -> list[Setting]:
    names = [one.name for one in settings]
    if unknown := sorted(set(_SETTINGS.value) - set(names)):
        raise ValueError(f"--settings: no {', '.join(unknown)}; there are {', '.join(names)}")
    return [one for one in settings if one.name in (_SETTINGS.value or names)]


def main(_) -> None:
    config, workdir = _CONFIG.value, pathlib.Path(_WORKDIR.value)
    settings = _chosen(study(config))
    if _SPEED_ONLY.value:
        measure_speed(config, settings, int(_SEEDS.value[0]), workdir)
        return
    if not _REPORT_ONLY.value:
        _run_all(config, settings, workdir)
    print(write_report(config, workdir))
    print(f"report: {(workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    entry_point.run(main)
