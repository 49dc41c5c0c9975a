"""Sequences per second that a host reads from a file system with slow reads.

    python -m benchmarks.reading                    # 20 ms a read, a host of 64, minutes
    python -m benchmarks.reading --nofiles          # only what a step needs

The need is that of the paper's Base on a pod. The command traces a step of --config, by default
`configs/xlm_r.py:base`, and counts its matrix products per sequence. --chips chips do these at
--utilisation of --peak_tflops, and the hosts share the reading. Then it measures rows/s of host 0
on synthetic rows. These have --languages languages, with sizes even on a log scale from --largest
to --smallest sequences of 512 uint32. Languages are drawn by n^0.3. Files are sparse, so a read
takes --delay_ms and the copy of its bytes. Ways to read:

- rows: a random order of sequences, read one by one when needed, or by threads ahead of the step.
- blocks: 16 open blocks of 1 MB, read when needed by one thread, or by threads ahead of the step,
  with as many lanes as hosts. With one lane, every host reads the blocks of all.

The first measurement opens the windows, the second continues. CPU time is that of this process, so
it also predicts an idle machine on a busy one.
"""

import concurrent.futures
import itertools
import pathlib
import tempfile
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import AxisType
from ml_collections import config_flags

from benchmarks import machine
from input_pipeline import dataset
from input_pipeline.order import BlockSettings
from input_pipeline.packed_dataset import PackedDataset, SpecialIds
from input_pipeline.stream import BlockCache, TrainingStream, training_rows
from xlm.experiment import memory, model, objectives
from xlm.objectives.objective import Batch
from xlm.training.flops import matmul_flops
from xlm.training.settings import AXES

_CONFIG = config_flags.DEFINE_config_file("config", "configs/xlm_r.py:base", "Config of the step.")
_CHIPS = flags.DEFINE_integer("chips", 256, "Chips of the pod.")
_CHIPS_PER_HOST = flags.DEFINE_integer("chips_per_host", 4, "Chips per host; TPU v4's.")
_PEAK = flags.DEFINE_float("peak_tflops", 275.0, "Peak of a chip in bf16; TPU v4's.")
_UTILISATION = flags.DEFINE_float("utilisation", 0.5, "Share of the peak that a step reaches.")
_FILES = flags.DEFINE_bool("files", True, "Whether to read files.")
_DELAY = flags.DEFINE_float("delay_ms", 20.0, "Delay of a read, in ms.")
_LANGUAGES = flags.DEFINE_integer("languages", 50, "Number of languages.")
_LARGEST = flags.DEFINE_integer("largest", 20_000_000, "Sequences of the largest language.")
_SMALLEST = flags.DEFINE_integer("smallest", 2_000, "Sequences of the smallest language.")
_THREADS = flags.DEFINE_list("threads", ["4", "16", "64"], "Threads that read ahead.")
_BATCHES = flags.DEFINE_integer("batches", 300, "Batches in each of two measurements.")
_OUT = flags.DEFINE_string("out", None, "JSON file for the table.")

_BLOCK, _WINDOW, _AHEAD = 1 << 20, 16, 16
_TRACED = 32  # sequences of the traced step


def needed(num_hosts: int) -> float:
    """Print and return the sequences per second that a host needs."""
    config = _CONFIG.value.copy_and_resolve_references()
    size, config.train.batch_size = config.train.batch_size, _TRACED
    if config.output_layer.kind == "blockwise":
        config.output_layer.kind = "full"  # products in a loop over blocks count once
    mesh = jax.sharding.AbstractMesh((1, 1, 1), AXES, axis_types=(AxisType.Auto,) * 3)
    objective = objectives.objective(config, memory.absent_rows(config), mesh)
    functions = model.train_functions(config, objective, mesh)
    tokens = jax.ShapeDtypeStruct((_TRACED, config.store.length), jnp.int32)
    batch = Batch(
        {"tokens": tokens, "language": jax.ShapeDtypeStruct((_TRACED,), jnp.int32)}, "packed"
    )
    traced = functions.train_step.trace(objective, functions.abstract_state, batch)
    flops = matmul_flops(traced.jaxpr) / _TRACED
    whole = _CHIPS.value * _PEAK.value * 1e12 * _UTILISATION.value / flops
    print(
        f"{config.store.length} tokens a sequence, V = {config.vocab.target_size:,}: "
        f"{flops / 1e9:,.0f} GFLOP a sequence; {_CHIPS.value} chips of {_PEAK.value:g} TFLOP/s at "
        f"{_UTILISATION.value:.0%}: {whole:,.0f} sequences/s, {1e3 * size / whole:.0f} ms a step "
        f"of {size:,}; each of {num_hosts} hosts needs {whole / num_hosts:,.0f} sequences/s"
    )
    return whole / num_hosts


def made_up_rows(folder: pathlib.Path) -> PackedDataset:
    """Create sparse files of sequences."""
    sizes = np.geomspace(_LARGEST.value, _SMALLEST.value, _LANGUAGES.value).astype(int)
    names = [f"l{i:02d}" for i in range(len(sizes))]
    for name, size in zip(names, sizes.tolist(), strict=True):
        path = folder / f"{name}.train.npy"
        np.lib.format.open_memmap(path, mode="w+", dtype=np.uint32, shape=(size, 512))
    special = SpecialIds(bos=0, pad=1, eos=2, unk=3, mask=4)
    return PackedDataset(folder, 250_000, 512, "", special, {name: {} for name in names}, {})


class _Reading:
    """Way to read the stream, with its reads."""

    def __init__(self, packed: PackedDataset, settings: BlockSettings, threads: int):
        self.num_reads = self.num_rows = 0
        self._rows = training_rows(packed)
        pool = concurrent.futures.ThreadPoolExecutor(threads)
        cache = BlockCache(self._load, pool, settings.window_blocks)
        shares = {
            language: len(rows) ** 0.3
            for language, rows in zip(packed.languages, self._rows, strict=True)
        }
        self.stream = TrainingStream(packed, shares, 8192, 0, settings, cache)

    def _load(self, language: int, first: int, stop: int) -> np.ndarray:
        time.sleep(_DELAY.value / 1e3)
        self.num_reads += 1
        self.num_rows += stop - first
        return self._rows[language][first:stop]


def ways(num_hosts: int) -> Iterator[tuple[str, BlockSettings, int, int, int]]:
    """Yield name, settings, threads, batches read ahead and batches measured of each way."""
    # Blocks of one sequence in one window give a random order of sequences.
    rows, count = BlockSettings(2048, 1 << 40), _BATCHES.value
    yield "rows, when needed", rows, 1, 0, max(count // 100, 1)
    for threads in map(int, _THREADS.value):
        yield f"rows, {threads} threads ahead", rows, threads, _AHEAD, max(count // 10, 1)
    blocks = BlockSettings(_BLOCK, _WINDOW, num_hosts)
    yield "blocks, when needed, one thread", blocks, 1, 0, count
    for threads in map(int, _THREADS.value):
        yield f"blocks, {threads} threads ahead", blocks, threads, _AHEAD, count
    yield (
        f"blocks of one lane, {threads} threads ahead",
        BlockSettings(_BLOCK, _WINDOW, 1),
        threads,
        _AHEAD,
        count,
    )


def reading(report: machine.Report, num_hosts: int, need: float) -> None:
    """Measure sequences per second of each way, from a cold start and afterwards."""
    columns = {"": "", "rows/s at first": ",.0f", "rows/s after": ",.0f", "over the need": ".2f",
               "ms of CPU a 1,000 rows": ".0f", "rows read a row used": ".1f"}  # fmt: skip
    report.table(f"{_DELAY.value:g} ms a read, host 0 of {num_hosts}", columns)
    with tempfile.TemporaryDirectory() as folder:
        packed = made_up_rows(pathlib.Path(folder))
        for name, settings, threads, ahead, count in ways(num_hosts):
            one = _Reading(packed, settings, threads)
            data = dataset.StreamedData(
                one.stream, "threads", num_parts=num_hosts, read_ahead=ahead
            )
            batches = (batch for _, batch in data.batches(range(2 * count)))
            speeds = []
            for _ in range(2):
                start, cpu, read = time.perf_counter(), time.process_time(), one.num_rows
                used = sum(len(b["language"]) for b in itertools.islice(batches, count))
                speeds.append(used / (time.perf_counter() - start))
                cpu, read = time.process_time() - cpu, one.num_rows - read
            report.row(name, *speeds, speeds[1] / need, 1e6 * cpu / used, read / used)


def main(_) -> None:
    num_hosts = _CHIPS.value // _CHIPS_PER_HOST.value
    report = machine.Report(_OUT.value)
    need = needed(num_hosts)
    if _FILES.value:
        reading(report, num_hosts, need)


if __name__ == "__main__":
    app.run(main)
