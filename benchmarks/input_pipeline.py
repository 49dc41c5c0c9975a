"""Throughput of the input pipeline: loading against training, late starts, tokenisation.

    for stage in build_vocab prepare_data; do
      python $stage.py --config=configs/quickstart.py --workdir=runs/quickstart
    done
    python -m benchmarks.input_pipeline --config=configs/quickstart.py --workdir=runs/quickstart

Three tables: sequences per second of each loader, over sequences per second of the config's
training step; milliseconds to the first batch of a stream at step zero and at step one million;
text per second tokenised and written, by number of processes. Run it on otherwise idle cores, and
with enough --copies of the text that tokenisation takes half a minute, since processes take seconds
to start. `benchmarks.reading` measures reading from a slow file system.
"""

import dataclasses
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from benchmarks.machine import describe_machine, interleaved_medians
from input_pipeline import dataset, preparation
from input_pipeline.corpus import load_corpus
from input_pipeline.executors import LocalProcesses
from input_pipeline.packed_dataset import PackedDataset, tokenizer_hash
from input_pipeline.preparation import Job
from xlm.common import entry_point
from xlm.experiment import data, model, objectives, streams
from xlm.objectives.batch import Batch
from xlm.training.sharding import batch_sharding

_CONFIG = config_flags.DEFINE_config_file("config", None, "The config of the rows.")
_WORKDIR = flags.DEFINE_string("workdir", None, "A folder with vocab/ and rows/.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Turns of each.")
_BATCHES = flags.DEFINE_integer("batches", 50, "Batches a turn.")
_WORKERS = flags.DEFINE_list("workers", None, "Tokenising processes; by default 1 and all cores.")
_COPIES = flags.DEFINE_integer("copies", 20, "How often the corpus is tokenised in a turn.")


def feeding(config: ConfigDict, store: PackedDataset) -> None:
    """Measure sequences per second of the loaders, and of the step."""
    rows = _BATCHES.value * config.train.batch_size
    mesh = model.mesh(config)
    objective = objectives.objective(config, store, mesh)
    functions = model.train_functions(config, objective, mesh)
    state = functions.init(np.int32(0))
    if names := objective.due(0):
        state, _ = functions.refresh(names, state)
    few = list(streams.training_data(config, store, mesh).batches(range(4)))
    batches = [Batch(jax.device_put(arrays, batch_sharding(mesh)), kind) for kind, arrays in few]

    def steps() -> None:
        nonlocal state
        for number in range(_BATCHES.value):
            state, _ = functions.train_step(objective, state, batches[number % len(batches)])
        jax.block_until_ready(state)

    def feed(loader: str) -> Callable[[], None]:
        def run() -> None:
            chosen = config.copy_and_resolve_references()
            chosen.data.loader = loader
            for _ in streams.training_data(chosen, store, mesh).batches(range(_BATCHES.value)):
                pass

        return run

    runs = {"training step": steps, **{name: feed(name) for name in dataset.LOADERS}}
    seconds = interleaved_medians(runs, _REPETITIONS.value)
    print("| | rows/s | over the step's |")
    print("|---|---:|---:|")
    for name, one in seconds.items():
        print(f"| {name} | {rows / one:,.0f} | {seconds['training step'] / one:.1f} |")


def starting(config: ConfigDict, store: PackedDataset) -> None:
    """Measure milliseconds to the first batch."""
    mesh = model.mesh(config)

    def first(step: int) -> Callable[[], Any]:
        return lambda: next(
            streams.training_data(config, store, mesh).batches(range(step, step + 1))
        )

    runs = {f"{step:,}": first(step) for step in (0, 1_000_000)}
    print("\n| begins at step | ms to the first batch |")
    print("|---:|---:|")
    for name, one in interleaved_medians(runs, _REPETITIONS.value).items():
        print(f"| {name} | {1e3 * one:.1f} |")


def tokenising(config: ConfigDict, folders: data.Folders) -> None:
    """Measure characters per second by number of processes, which write equal datasets."""
    found, tokenizer = load_corpus(data.corpus_spec(config)), folders.read_tokenizer()
    root = pathlib.Path(tempfile.mkdtemp())
    characters = 0
    for language, texts in found.train.items():
        text = "\n\n".join("\n".join(one) for one in texts * _COPIES.value)
        (root / f"{language}.txt").write_text(text, encoding="utf-8")
        characters += len(text)
    spec = dataclasses.replace(
        data.corpus_spec(config), root=str(root), text=(".",), parallel=(), parallel_eval=(),
        heldout_fraction=0.0, max_train_bytes=0, deduplicate=False, exclude=(),
    )  # fmt: skip
    settings = dataclasses.replace(data.packed_dataset_settings(config), shard_bytes=1 << 20)

    def write(workers: int) -> Callable[[], None]:
        def run() -> None:
            with (
                tempfile.TemporaryDirectory() as folder,
                LocalProcesses(workers, bytes_a_process=1) as execute,
            ):
                job = Job(pathlib.Path(folder), spec, settings, tokenizer_hash(tokenizer))
                preparation.run(job, preparation.find(job), tokenizer, execute)

        return run

    workers = _WORKERS.value or sorted({1, len(os.sched_getaffinity(0))})
    runs = {str(count): write(int(count)) for count in workers}
    seconds = interleaved_medians(runs, max(_REPETITIONS.value // 2, 1))
    slowest = next(iter(seconds.values()))
    print("\n| processes | million characters/s | over the first |")
    print("|---:|---:|---:|")
    for name, one in seconds.items():
        print(f"| {name} | {characters / one / 1e6:.2f} | {slowest / one:.2f} |")
    shutil.rmtree(root)


def main(_) -> None:
    config, folders = _CONFIG.value, data.Folders(pathlib.Path(_WORKDIR.value))
    store = data.open_packed_dataset(folders)
    start = time.perf_counter()
    print(describe_machine())
    print(f"{config.train.batch_size} rows of {store.length} a batch\n")
    feeding(config, store)
    starting(config, store)
    tokenising(config, folders)
    print(f"\n{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    entry_point.run(main)
