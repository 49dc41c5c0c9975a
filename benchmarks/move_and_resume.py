"""Kill a training run on some hosts, go on with it on others, and compare it to one left alone.

    python -m benchmarks.move_and_resume --steps=24      # minutes on two quiet cores

The run is moved over the layouts below, each a number of processes with simulated CPU devices and
another mesh; the processes of all but the last are killed by SIGKILL together at a random step,
as a preempted job's are. The run left alone is one process with one device. Its batches, masks and
dropout are those of any layout, so that losses differ by the order of addition alone; an example
more or less in a batch would change them by what two steps of the same run differ by, which is
printed beside. Exit status 1 where a step is missing or a loss differs by more than --tolerance.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from absl import app, flags
from ml_collections import config_flags

from xlm.training.metrics import read_metrics

_CONFIG = config_flags.DEFINE_config_file(
    "config", "configs/quickstart.py:runlocal", "What to run."
)
_STEPS = flags.DEFINE_integer("steps", 24, "Of the run.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")
_PREPARED = flags.DEFINE_string(
    "prepared", None, "A working directory with vocabulary and rows; by default they are made."
)
_SECONDS = flags.DEFINE_float("seconds", 3600.0, "That one layout may take.")
_TOLERANCE = flags.DEFINE_float("tolerance", 1e-4, "Largest relative difference of a loss.")

_ROOT = pathlib.Path(__file__).resolve().parent.parent
# A busy core can leave a process without time for longer than the 100 seconds that jax waits.
_HEARTBEAT = 1800
_FATAL = re.compile(r"F\d{4} ")  # of C++ code, which aborts with a long trace


class Layout(NamedTuple):
    """Processes of a run, CPU devices of each, and the mesh over all: data, fsdp, model."""

    processes: int
    devices: int
    mesh: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.processes} x {self.devices} devices, mesh {'x'.join(map(str, self.mesh))}"


ALONE = Layout(1, 1, (1, 1, 1))
MOVES = (Layout(2, 4, (8, 1, 1)), Layout(1, 8, (1, 4, 2)), Layout(4, 2, (2, 2, 2)))


@dataclasses.dataclass(frozen=True)
class Run:
    """Training run in its own folder.

    Attributes:
      workdir: its working directory.
      overrides: overridden keys of the config, besides the mesh.
    """

    workdir: pathlib.Path
    overrides: dict[str, Any]

    def step(self) -> int:
        """Last recorded step; 0 before the first."""
        path = self.workdir / "train" / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        with contextlib.suppress(ValueError):  # a line may be incomplete
            return int(json.loads(lines[-1])["step"]) if lines else 0
        return 0

    def losses(self) -> dict[int, float]:
        """Training loss by step."""
        records = read_metrics(self.workdir / "train" / "metrics.jsonl")
        return {int(one["step"]): one["train/loss"] for one in records if "train/loss" in one}

    @contextlib.contextmanager
    def started(self, script: str, layout: Layout) -> Iterator[list[subprocess.Popen]]:
        """Start the processes of a layout; those still running at the end are killed."""
        flags_of_run = [f"--config={_config_name()}", f"--workdir={self.workdir}"]
        overrides = dict(self.overrides)
        if script == "train.py":
            overrides |= zip(("mesh.data", "mesh.fsdp", "mesh.model"), layout.mesh, strict=True)
        flags_of_run += [f"--config.{key}={value}" for key, value in overrides.items()]
        count = f"--xla_force_host_platform_device_count={layout.devices}"
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {count}",
        }
        address, running = f"localhost:{_free_port()}", []
        with open(self.workdir / "log.txt", "ab") as log:
            for number in range(layout.processes):
                joins = [
                    "--distributed", f"--coordinator={address}",
                    f"--num_processes={layout.processes}", f"--process_id={number}",
                    f"--heartbeat_seconds={_HEARTBEAT}",
                ]  # fmt: skip
                command = [sys.executable, script, *flags_of_run]
                command += joins if layout.processes > 1 else []
                running.append(
                    subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=log, stderr=log)
                )
        try:
            yield running
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()

    def finish(self, script: str, layout: Layout = ALONE) -> None:
        """Run a script to its end on all processes of a layout."""
        with self.started(script, layout) as running:
            codes = [process.wait(_SECONDS.value) for process in running]
        if any(codes):
            raise RuntimeError(f"{script} ended with {codes}:\n{self._end_of_log()}")

    def _end_of_log(self) -> str:
        """Fatal and last lines of the log, whose folder does not outlast this command."""
        text = (self.workdir / "log.txt").read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        return "\n".join([*filter(_FATAL.match, lines[:-30]), *lines[-30:]])

    def kill_at(self, step: int, layout: Layout) -> int:
        """Train on a layout, and kill all of its processes at a step; return the last one seen."""
        with self.started("train.py", layout) as running:
            deadline = time.monotonic() + _SECONDS.value
            while self.step() < step:
                ended = [process.poll() for process in running]
                if any(code is not None for code in ended) or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{layout}: ended with {ended} before step {step}:\n{self._end_of_log()}"
                    )
                time.sleep(0.01)
            for process in running:
                process.send_signal(signal.SIGKILL)
        return self.step()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def _config_name() -> str:
    return config_flags.get_config_filename(flags.FLAGS["config"])


def move(run: Run, layouts: Sequence[Layout], steps: int, rng: random.Random) -> list[str]:
    """Take a run to its end over some layouts; return a row of the table for each."""
    rows, share = [], steps / len(layouts)
    for number, layout in enumerate(layouts[:-1]):
        seen = run.kill_at(round((number + rng.uniform(0.4, 0.9)) * share), layout)
        rows.append(f"| {layout} | killed at step {seen} |")
        print(rows[-1], file=sys.stderr, flush=True)
    run.finish("train.py", layouts[-1])
    return [*rows, f"| {layouts[-1]} | to step {run.step()} |"]


def report(alone: Run, moved: Run, rows: Sequence[str], steps: int) -> int:
    """Print how the two runs differ; return the exit status."""
    from benchmarks.machine import describe_machine

    expected, found = alone.losses(), moved.losses()
    relative = {
        step: abs(found.get(step, float("inf")) - loss) / abs(loss)
        for step, loss in expected.items()
    }
    between = [abs(expected[n + 1] - expected[n]) / expected[n] for n in range(1, steps)]
    print(f"\n{describe_machine()}; {_config_name()}, {steps} steps\n")
    print("| processes | |\n|---|---|")
    print(f"| {ALONE} | left alone |")
    print(*rows, sep="\n")
    print(f"| losses of steps, of {steps} | {len(found)} |")
    print(f"| largest relative difference of a loss | {max(relative.values()):.1e} |")
    median = statistics.median(between)
    print(f"| median relative difference of two successive steps' losses | {median:.1e} |")
    is_same = set(found) == set(expected) and max(relative.values()) <= _TOLERANCE.value
    return int(not is_same)


def main(_) -> None:
    steps = _STEPS.value
    overrides = {
        "train.num_steps": steps,
        "train.log_every": 1,
        "train.batch_size": 8,  # divides over all layouts
        "train.checkpoint_every": max(steps // 8, 1),
        "train.evaluate_every": steps,
        "optimizer.warmup_steps": max(steps // 10, 1),
        "output_layer.refresh_every": max(steps // 6, 1),
        "evaluation.max_sequences_in_training": 2,  # of no interest here
        "data.loader": "threads",  # TensorFlow takes seconds to start
    }
    with tempfile.TemporaryDirectory() as name:
        alone, moved = (Run(pathlib.Path(name) / one, overrides) for one in ("alone", "moved"))
        alone.workdir.mkdir()
        if _PREPARED.value:
            for stage in ("vocab", "rows"):
                shutil.copytree(pathlib.Path(_PREPARED.value) / stage, alone.workdir / stage)
        else:
            for script in ("build_vocab.py", "prepare_data.py"):
                alone.finish(script)
        shutil.copytree(alone.workdir, moved.workdir)
        alone.finish("train.py")
        rows = move(moved, MOVES, steps, random.Random(_SEED.value))
        sys.exit(report(alone, moved, rows, steps))


if __name__ == "__main__":
    app.run(main)
