"""Record the results of runs before and after a redesign, and compare them bit for bit.

    python -m benchmarks.recording record --checkout=BEFORE --out=before.json
    python -m benchmarks.recording record --checkout=. --out=after.json
    python -m benchmarks.recording compare before.json after.json --renamed=renamed.json

`record` runs the commands of a checkout on the embedded corpus, each in its own process: five
training runs of 20 steps (`TRAINING`), and from the first of them a fine-tuning run of each kind of
task (`FINE_TUNING`) on synthetic data. It depends only on the commands, the config keys and the
names of result files. A recording has all metrics, results and predictions, a digest of each array
of the final parameters, and the versions of packages and machine.

`compare` prints a table of differences, and ends with status 1 if there are any. It gives the first
step at which a metric differs. A name missing on one side is a difference. --renamed is a JSON
object of intended renamings of metrics, results and parameters: old name -> new name, or null for a
name in only one recording. `compare` also prints different versions or machines. Then differences
in the last bits may have other causes than the code.

--runs=quickstart,rows selects runs. Fine-tuning also records quickstart, which it needs. XLA has
one thread, since with more, sums depend on the number of cores. --compilation_cache keeps compiled
programs for the next recording.

Hardware: one CPU core, 5 minutes.
"""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags, logging

from benchmarks import recording_data
from benchmarks.recording_comparison import compare, describe, flat
from xlm.common import artifacts, entry_point

QUICKSTART = "configs/quickstart.py"
# Short, but with all events of a run: refreshes, evaluations and full-softmax steps.
OVERRIDES: dict[str, Any] = {
    # Former defaults of these keys, for recordings from that time.
    "corpus.heldout_by": "position",
    "corpus.deduplicate": False,
    "corpus.block_bytes": 0,
    "vocab.compare": (),
    "vocab.num_workers": 1,
    "store.num_workers": 1,
    "output_layer.refresh_every": 5,
    "output_layer.full_softmax_fraction": 0.1,
    "optimizer.warmup_steps": 5,
    "train.num_steps": 20,
    "train.log_every": 1,
    "train.evaluate_every": 10,
    "train.checkpoint_every": 20,
    "evaluation.max_sequences_in_training": 2,
}
# Run -> its further overrides.
TRAINING: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "full": {"output_layer.kind": "full"},
    "pairs": {"data.pair_share": 0.4, "data.contrast_share": 0.4, "data.pair_positions": "restart"},
    "rows": {"optimizer.embedding_update": "rows"},
    "accumulation": {"train.accumulation_steps": 2},
}
# Run -> its config, with DATA for the data folder, and its further overrides.
FINE_TUNING: dict[str, tuple[str, dict[str, Any]]] = {
    "classification": ("configs/finetune/xnli.py:DATA", {}),
    "regression": ("configs/finetune/glue.py:stsb,DATA", {}),
    "tagging": ("configs/finetune/udpos.py:DATA", {}),
    "extractive_qa": ("configs/finetune/xquad.py:DATA", {"task.stride": 16}),
    "retrieval": ("configs/finetune/tatoeba.py:DATA", {}),
    "mining": ("configs/finetune/bucc.py:DATA", {}),
}
FINE_TUNING_OVERRIDES: dict[str, Any] = {
    "task.max_length": 48,
    "task.buckets": (24, 48),
    "task.max_query_length": 16,
    "task.layer": 1,
    "optimizer.learning_rate": 1e-3,
    "train.batch_size": 8,
    "train.epochs": 2.0,
    "train.evaluations": 3,
    "train.log_every": 1,
    "evaluation.batch_size": 8,
}
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "PYTHONHASHSEED": "0",
}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "sentencepiece")
_LOG_TAIL = 3000  # characters


@dataclasses.dataclass(frozen=True)
class _Checkout:
    """Checkout of the code, and the `environment` of its commands."""

    root: pathlib.Path
    environment: Mapping[str, str]

    def run(
        self, script: str, config: str, workdir: pathlib.Path, overrides: Mapping[str, Any]
    ) -> None:
        """Run a command; on failure raise ChildProcessError with the end of its output."""
        print(f"{script} {config} {workdir.name}", file=sys.stderr, flush=True)
        command = [sys.executable, script, f"--config={config}", f"--workdir={workdir}"]
        command += [f"--config.{key}={value}" for key, value in overrides.items()]
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise ChildProcessError(
                f"{' '.join(command)} ended with status {done.returncode}:\n"
                f"{done.stdout[-_LOG_TAIL:]}"
            )


def record(
    checkout: pathlib.Path, runs: Sequence[str], folder: pathlib.Path, cache: pathlib.Path
) -> dict[str, Any]:
    """Run the commands of a checkout, in an empty folder.

    `runs` are names in `TRAINING` and `FINE_TUNING`; the latter require "quickstart". Return the
    recording as JSON: "versions", and by run "metrics", "results" and "parameters". Raise
    ChildProcessError if a command fails.
    """
    commands = _Checkout(checkout.absolute(), environment(cache))
    base = folder / "vocabulary_and_rows"
    for script in ("build_vocab.py", "prepare_data.py"):
        commands.run(script, QUICKSTART, base, OVERRIDES)
    recorded: dict[str, Any] = {}
    for name, overrides in TRAINING.items():
        if name in runs:
            shutil.copytree(base, folder / name)
            commands.run("train.py", QUICKSTART, folder / name, {**OVERRIDES, **overrides})
            recorded[name] = _of_training(folder / name)

    data = folder / "data"
    recording_data.write_tasks(data)
    for name, (config, overrides) in FINE_TUNING.items():
        if name in runs:
            start = {"init_from": folder / "quickstart", **FINE_TUNING_OVERRIDES}
            config = config.replace("DATA", str(data))
            commands.run("finetune.py", config, folder / name, {**start, **overrides})
            recorded[name] = _of_fine_tuning(folder / name)
    return {"versions": versions(), "runs": recorded}


def environment(cache: pathlib.Path) -> dict[str, str]:
    """Return the environment of the commands: the current one without settings of jax and XLA."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_"))}
    return {**kept, **_ENVIRONMENT, "JAX_COMPILATION_CACHE_DIR": str(cache.absolute())}


def versions() -> dict[str, str]:
    """Return versions and machine, on which results may depend."""
    from benchmarks.machine import cpu_model

    return {
        **{package: importlib.metadata.version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "CPU": cpu_model(),
        **_ENVIRONMENT,
    }


def _of_training(workdir: pathlib.Path) -> dict[str, Any]:
    """Record a run of train.py."""
    folder = workdir / "train"
    return {
        "metrics": _json_lines(folder / "metrics.jsonl"),
        "results": {},
        "parameters": digests(saved_params(folder / "checkpoints")),
    }


def _of_fine_tuning(workdir: pathlib.Path) -> dict[str, Any]:
    """Record a run of finetune.py; retrieval has only results and predictions."""
    from safetensors.numpy import load_file

    metrics, best = workdir / "metrics.jsonl", workdir / "best.safetensors"
    predictions = sorted((workdir / "predictions").iterdir())
    return {
        "metrics": _json_lines(metrics) if metrics.exists() else [],
        "results": {
            **artifacts.read_json(workdir / "results.json"),
            "predictions": {path.stem: _json_lines(path) for path in predictions},
        },
        "parameters": digests(load_file(best)) if best.exists() else {},
    }


def _json_lines(path: pathlib.Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def saved_params(checkpoints: pathlib.Path) -> dict[str, Any]:
    """Read the parameters of the latest checkpoint, path -> array, without the project's code.

    The rest of the state is read with its structure on disk, whatever its names.
    """
    import jax
    import numpy as np
    from orbax.checkpoint import v1 as ocp

    steps = [int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal()]
    folder = checkpoints.absolute() / str(max(steps))
    saved = ocp.metadata(folder).metadata
    state = ocp.load(folder, jax.tree.map(lambda array: np.empty(array.shape, array.dtype), saved))
    return dict(flat(state["params"]))


def digests(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of dtype, shape and bytes of each array, in hexadecimal."""
    import numpy as np

    found = {}
    for name, array in arrays.items():
        array = np.asarray(array)
        content = f"{array.dtype} {array.shape} ".encode() + array.tobytes()
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def wanted_runs(names: Sequence[str]) -> list[str]:
    """Return the runs to record for `names` (all if empty), with the encoders of fine-tuning."""
    known = [*TRAINING, *FINE_TUNING]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--runs: there is no {unknown[0]!r}; the runs are {', '.join(known)}")
    chosen = set(names or known)
    if chosen & {*FINE_TUNING}:
        chosen.add("quickstart")
    return [name for name in known if name in chosen]


@contextlib.contextmanager
def _work_folder(name: str | None) -> Iterator[pathlib.Path]:
    """Create the new folder `name`, or a temporary one for None."""
    if name is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield pathlib.Path(temporary)
        return
    folder = pathlib.Path(name).absolute()
    # Commands skip finished folders, even of other code.
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--workdir: {folder} is not empty; a recording needs a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def compare_files(paths: Sequence[str], runs: Sequence[str], renamed: str | None) -> int:
    """Print the differences of two recordings; return the exit status, 0 if they are equal.

    `runs` are those of `wanted_runs`; empty means all recorded runs. `renamed` is the path of a
    JSON object of renamings, see `compare`. Raise ValueError for an unknown name, or as `compare`.
    """
    before, after = map(artifacts.read_json, paths)
    if runs:
        for side in (before, after):
            side["runs"] = {n: run for n, run in side["runs"].items() if n in wanted_runs(runs)}
    differences = compare(before, after, artifacts.read_json(renamed) if renamed else {})
    print(describe(before, after, differences))
    return int(bool(differences))


def define_flags() -> None:
    """Define the flags; not at import, since tests import this module."""
    flags.DEFINE_string("checkout", ".", "record: checkout whose commands run.")
    flags.DEFINE_string("out", None, "record: output file.")
    flags.DEFINE_string("workdir", None, "record: new folder, to keep the runs.")
    flags.DEFINE_string("compilation_cache", None, "record: folder for compiled programs.")
    flags.DEFINE_string("renamed", None, "compare: JSON file, old name -> new name.")
    flags.DEFINE_list("runs", [], "Runs to record or compare; all by default.")


def write(path: pathlib.Path, recording: Mapping[str, Any]) -> None:
    """Write a recording; its numbers may be NaN, and `compare` treats NaN as equal to itself."""
    artifacts.write_text(path, json.dumps(recording, indent=1, sort_keys=True) + "\n")


def main(argv: Sequence[str]) -> None:
    given = flags.FLAGS
    if argv[1:2] == ["compare"] and len(argv) == 4:
        sys.exit(compare_files(argv[2:], given.runs, given.renamed))
    if argv[1:] != ["record"] or given.out is None:
        raise app.UsageError("either: record --out=FILE, or: compare BEFORE AFTER")
    os.environ.update(_ENVIRONMENT)  # for reading checkpoints in this process
    if not logging.level_debug():
        logging.set_verbosity(logging.WARNING)  # Orbax logs about ten lines per checkpoint
    with _work_folder(given.workdir) as folder:
        cache = pathlib.Path(given.compilation_cache or folder / "compiled")
        found = record(pathlib.Path(given.checkout), wanted_runs(given.runs), folder, cache)
    write(pathlib.Path(given.out), found)
    print(f"recording: {pathlib.Path(given.out).absolute()}")


if __name__ == "__main__":
    define_flags()
    entry_point.run(main, required=())
