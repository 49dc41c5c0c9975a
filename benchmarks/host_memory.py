"""Page faults of a training step, with freed memory kept in the process and given back.

    python -m benchmarks.host_memory

Steps of a small encoder (`benchmarks.train_step`) on one core, in processes that keep freed
memory (`xlm.training.host_memory`) and, by an environment variable with glibc's own value, do not;
in turns, and by the time that the processor spends in the program and in the kernel, which other
jobs on the machine hardly change. Hardware: one CPU core, 4 minutes.
"""

import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys

from absl import app, flags

from benchmarks import machine, train_step

_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Processes of each kind.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 40, "Timed steps of a process.", lower_bound=1)
_MEASURE = flags.DEFINE_bool("measure", False, "Measure in this process; the command's own.")

# The batch of `configs.small`.
_PRESET = dataclasses.replace(train_step.PRESETS["small"], batch_size=32, length=128)
_MODE = "k-NN + row AdamW"
_KINDS = {"given back": {"MALLOC_TOP_PAD_": "131072"}, "kept": {}}
_COLUMNS = ("user ms", "kernel ms", "page faults", "peak MB")


def measure(steps: int) -> list[float]:
    """Return milliseconds in the program and in the kernel, page faults a step, peak in MB."""
    case = train_step.Case(_PRESET, _MODE, _PRESET.vocab_sizes[0], _PRESET.embedding_sizes[0])
    case.run()
    turns = -(-steps // _PRESET.steps)
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(turns):
        case.run()
    after, number = resource.getrusage(resource.RUSAGE_SELF), turns * _PRESET.steps
    return [
        1e3 * (after.ru_utime - before.ru_utime) / number,
        1e3 * (after.ru_stime - before.ru_stime) / number,
        (after.ru_minflt - before.ru_minflt) / number,
        after.ru_maxrss / 1024,
    ]


def main(_) -> None:
    machine.set_up(1)
    if _MEASURE.value:
        print(json.dumps(measure(_STEPS.value)))
        return
    print(machine.describe_machine())
    command = [
        sys.executable,
        "-m",
        "benchmarks.host_memory",
        "--measure",
        f"--steps={_STEPS.value}",
    ]
    found: dict[str, list[list[float]]] = {kind: [] for kind in _KINDS}
    for _ in range(_REPETITIONS.value):
        for kind, variables in _KINDS.items():
            done = subprocess.run(
                command, env={**os.environ, **variables}, check=True, capture_output=True, text=True
            )
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"| freed memory | {' | '.join(_COLUMNS)} |\n|---|{'---|' * len(_COLUMNS)}")
    for kind, rows in found.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"| {kind} | {' | '.join(f'{value:,.1f}' for value in medians)} |")


if __name__ == "__main__":
    app.run(main)
