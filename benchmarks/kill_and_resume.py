"""Kill a training run repeatedly, and compare its results to an uninterrupted run.

    python -m benchmarks.kill_and_resume --kills=20

Two runs of the same config on the embedded corpus: one is never interrupted, the other is ended by
SIGKILL at random moments, every second time while a checkpoint is being written, and a few times by
SIGTERM, after which it must exit with the status of a graceful stop. Each time it is restarted with
the same command. In the end all arrays of the two states and the bytes of metrics.jsonl must be
equal; otherwise the exit status is 1.

The embedding table is updated by rows, the mode with the most state, unless --config.KEY=VALUE says
otherwise; keys that are given so are those of every process. Each restart takes about ten
seconds for the start of a process, so twenty take minutes.
"""

import dataclasses
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from absl import app, flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file(
    "config", "configs/quickstart.py:runlocal", "What to run."
)
_KILLS = flags.DEFINE_integer("kills", 20, "By SIGKILL.")
_STOPS = flags.DEFINE_integer("stops", 2, "By SIGTERM, besides.")
_STEPS = flags.DEFINE_integer("steps", 0, "Of the run; 0 for 50 an interruption.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_POLL = 0.001  # seconds; a save takes some tens of milliseconds


@dataclasses.dataclass(frozen=True)
class Run:
    """Training run in its own folder.

    Attributes:
      workdir: its working directory.
      overrides: overridden keys of the config.
      environment: environment of its processes.
    """

    workdir: pathlib.Path
    overrides: Mapping[str, Any]
    environment: dict[str, str]

    @property
    def _checkpoints(self) -> pathlib.Path:
        return self.workdir / "train" / "checkpoints"

    def start(self, script: str) -> subprocess.Popen:
        """Start a process of `script`, with its output appended to a log."""
        arguments = [f"--config={_config_name()}", f"--workdir={self.workdir}"]
        arguments += [f"--config.{key}={value}" for key, value in self.overrides.items()]
        with open(self.workdir / "log.txt", "ab") as log:
            return subprocess.Popen(
                [sys.executable, script, *arguments],
                cwd=_ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def finish(self, script: str) -> None:
        """Run `script` to completion."""
        if self.start(script).wait():
            raise RuntimeError(f"{script} failed, see {self.workdir / 'log.txt'}")

    def step(self) -> int:
        """Number of recorded steps, some of which a killed run repeats."""
        path = self.workdir / "train" / "speed.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def is_saving(self, since: float) -> bool:
        """Whether a process started at `since` is writing a checkpoint."""
        return any(path.stat().st_mtime > since for path in self._checkpoints.glob("*tmp*"))

    def saved(self) -> int:
        """Steps taken at the latest complete checkpoint; 0 without checkpoints."""
        folder = self._checkpoints
        names = os.listdir(folder) if folder.is_dir() else []
        return max((int(name) for name in names if name.isdecimal()), default=0)


def interrupt(run: Run, number: signal.Signals, when: Callable[[], bool]) -> int | None:
    """Start `train.py` and send it a signal; return its status, or None if it ended before."""
    speed = run.workdir / "train" / "speed.jsonl"
    before = speed.stat().st_mtime_ns if speed.exists() else 0
    process = run.start("train.py")
    try:
        # Before the first recorded step of this process there is nothing to interrupt.
        while not speed.exists() or speed.stat().st_mtime_ns == before or not when():
            if process.poll() is not None:
                if process.returncode:
                    raise RuntimeError(f"train.py failed, see {run.workdir / 'log.txt'}")
                return None
            time.sleep(_POLL)
        process.send_signal(number)
        return process.wait()
    finally:
        process.kill()
        process.wait()


def torment(run: Run, kills: int, stops: int, rng: random.Random) -> dict[str, int]:
    """Interrupt `run` at random moments.

    Returns:
      The numbers of kills, of kills during a save, of graceful stops, and of repeated steps.
    """
    from training.signals import EXIT_STOPPED

    counts = {"killed": 0, "killed while saving": 0, "stopped": 0, "steps taken again": 0}
    kinds = ["save" if kill % 2 else "step" for kill in range(kills)] + ["stop"] * stops
    rng.shuffle(kinds)
    for kind in kinds:
        start, target = time.time(), run.saved() + rng.randint(1, 40)

        def when(kind: str = kind, start: float = start, target: int = target) -> bool:
            if kind != "save":
                return run.step() >= target
            if not run.is_saving(start):
                return False
            time.sleep(rng.uniform(0, 0.03))
            return True

        status = interrupt(run, signal.SIGTERM if kind == "stop" else signal.SIGKILL, when)
        if kind == "stop":
            if status != EXIT_STOPPED or run.saved() < run.step():
                raise RuntimeError(f"asked to stop, it ended with {status} and {run.saved()} saved")
            counts["stopped"] += 1
            continue
        if status != -signal.SIGKILL:
            raise RuntimeError(f"it ended ({status}) before it was killed; give it more --steps")
        counts["killed"] += 1
        counts["killed while saving"] += run.is_saving(start)  # its partial files remain
        counts["steps taken again"] += max(run.step() - run.saved(), 0)
        print(f"{kind}: {run.step()} steps recorded, {run.saved()} saved", file=sys.stderr)
    return counts


def final_state(run: Run) -> list:
    """Restore the last state of a run, as NumPy arrays."""
    import jax

    from builders import data, model, objectives
    from training.checkpoint import restore_latest

    config = _CONFIG.value
    config.update_from_flattened_dict(run.overrides)
    store = data.open_packed_dataset(data.Folders(run.workdir))
    mesh = model.mesh(config)
    objective = objectives.objective(config, store, mesh)
    functions = model.train_functions(config, objective, mesh)
    _, state = restore_latest(run.workdir / "train" / "checkpoints", functions.abstract_after)
    return jax.tree.leaves(jax.device_get(state))


def overrides_of(steps: int) -> dict[str, Any]:
    """Overridden keys of both runs: this command's own, over which the flags --config.KEY prevail.

    Raises:
      app.UsageError: a flag sets the number of steps.
    """
    given = config_flags.get_override_values(flags.FLAGS["config"])
    if "train.num_steps" in given:
        number = given["train.num_steps"]
        raise app.UsageError(f"--config.train.num_steps is {number}; give --steps={number} instead")
    return {
        "train.num_steps": steps,
        "train.checkpoint_every": 20,
        "train.evaluate_every": 30,
        "optimizer.embedding_update": "rows",
        **given,
    }


def _config_name() -> str:
    return config_flags.get_config_filename(flags.FLAGS["config"])


def main(_) -> None:
    steps = _STEPS.value or 50 * (_KILLS.value + _STOPS.value)
    overrides = overrides_of(steps)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # The compilation cache is shared by all processes.
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        whole, tormented = (Run(folder / name, overrides, environment) for name in ("a", "b"))
        whole.workdir.mkdir()
        for script in ("build_vocab.py", "prepare_data.py"):
            whole.finish(script)
        shutil.copytree(whole.workdir, tormented.workdir)
        whole.finish("train.py")
        counts = torment(tormented, _KILLS.value, _STOPS.value, random.Random(_SEED.value))
        tormented.finish("train.py")
        sys.exit(report(whole, tormented, steps, counts))


def report(whole: Run, tormented: Run, steps: int, counts: dict[str, int]) -> int:
    """Print the counts and whether the two runs are equal; return the exit status."""
    import numpy as np

    from benchmarks.machine import describe_machine

    expected, found = final_state(whole), final_state(tormented)
    equal = sum(
        a.dtype == b.dtype and a.tobytes() == b.tobytes()
        for a, b in zip(map(np.asarray, expected), map(np.asarray, found), strict=True)
    )
    metrics = [(run.workdir / "train" / "metrics.jsonl").read_bytes() for run in (whole, tormented)]
    print(f"\n{describe_machine()}; {_config_name()}, {steps} steps\n")
    print("| | |\n|---|---|")
    for what, count in counts.items():
        print(f"| {what} | {count} |")
    print(
        f"| arrays of the final state equal to the uninterrupted run's | {equal} of {len(found)} |"
    )
    print(f"| metrics.jsonl equal | {'yes' if metrics[0] == metrics[1] else 'no'} |")
    return int(equal != len(found) or metrics[0] != metrics[1])


if __name__ == "__main__":
    app.run(main)
