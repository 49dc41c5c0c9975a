"""Start-up, memory and speed of a process that reads rows of pairs, by the number of pairs.

    python -m benchmarks.pairs                                  # 1 and 10 million pairs, minutes
    python -m benchmarks.pairs --pairs=100000000 --folder=DIR   # 1.3 GB of files

The data are synthetic: 100 languages, 1,000 language pairs with sizes even on a log scale, and 8
sentence pairs per row of 512 tokens. Ids are uint32 in sparse files, so a read is a copy without a
disk. Each number of pairs has its own process. It opens the dataset, solves for Eq. 2's shares, and
reads as one of 128 processes, by `configs/xy_lent.py`. `memory` is resident and unshared (RssAnon),
minus that after the imports; also at the end.
"""

import concurrent.futures
import multiprocessing
import pathlib
import resource
import tempfile
import time

import numpy as np
from absl import app, flags

from benchmarks import machine
from configs import xy_lent
from input_pipeline import array_files, bitext, manifest
from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import SPLITS, PackedDataset, SpecialIds
from input_pipeline.pair_rows import mixed, pack
from xlm.common import artifacts
from xlm.experiment import data, streams

_PAIRS = flags.DEFINE_list("pairs", ["1000000", "10000000"], "Total sentence pairs.")
_FOLDER = flags.DEFINE_string("folder", None, "Folder for the files; temporary by default.")
_BATCHES = flags.DEFINE_integer("batches", 100, "Batches in each of two measurements.")
_OUT = flags.DEFINE_string("out", None, "JSON file for the table.")

_LANGUAGES, _SETS, _A_ROW, _LONGEST, _HOSTS = 100, 1000, 8, 29, 128
_SPECIAL = SpecialIds(bos=1, pad=2, eos=3, unk=4, mask=5)  # sparse files have token 0 as text


def write(folder: pathlib.Path, num_pairs: int) -> PackedDataset:
    """Write the files of a dataset; a row has pairs from 1,024 neighbours."""
    draw = np.random.default_rng(0)
    sizes = np.geomspace(1, 1e-4, _SETS)
    rows = np.maximum(sizes / sizes.sum() * num_pairs / _A_ROW, 1).astype(int)
    names = [f"l{i:02d}" for i in range(_LANGUAGES)]
    steps = np.arange(_SETS) // _LANGUAGES + 1
    pairs = {}
    for number, (count, step) in enumerate(zip(rows.tolist(), steps.tolist(), strict=True)):
        one, two = sorted((number % _LANGUAGES, (number + step) % _LANGUAGES))
        name, total = f"{names[one]}-{names[two]}", count * _A_ROW
        for language in (names[one], names[two]):
            ends = np.cumsum(draw.integers(1, _LONGEST + 1, total), dtype=np.uint32)
            np.save(folder / f"{name}.{language}.ends.npy", ends)
            np.lib.format.open_memmap(
                folder / f"{name}.{language}.bitext.npy", "w+", np.uint32, (int(ends[-1]),)
            )
        np.save(folder / f"{name}.pairs.npy", mixed(np.arange(total)).astype(np.uint32))
        ends = _A_ROW * np.arange(1, count + 1, dtype=np.uint32)
        np.save(folder / f"{name}.rows.npy", ends)
        pairs[name] = [[(names[one], names[two], total, count)]]
    counted = {"rows": 1, "tokens": 1, "unknown": 0, "characters": 1}
    for split in SPLITS:
        np.save(folder / f"l00.{split}.npy", np.zeros((1, 512), np.uint32))
    array_files.save(folder / "l00.counts.npy", np.zeros(500_000, np.int64))
    dataset = PackedDataset(
        folder, 500_000, 512, "0" * 64, _SPECIAL, {"l00": dict.fromkeys(SPLITS, counted)}, {},
        {name: name.split("-") for name in pairs}, pairs,
    )  # fmt: skip
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": "0" * 64}
        for path in folder.glob("*.npy")
    }
    artifacts.write_json(folder / manifest.MANIFEST, {"files": files})
    dataset.write_meta()
    return dataset


def private() -> float:
    """Return the resident bytes that no other process shares."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(one for one in lines if one.startswith("RssAnon")).split()[1])


def measure(folder: str, batches: int) -> tuple[float, ...]:
    """Return seconds and CPU seconds to start, bytes then, rows/s twice, bytes, pairs per row."""
    before, start, cpu = private(), time.perf_counter(), time.process_time()
    config = xy_lent.get_config("base")
    dataset = PackedDataset.open(pathlib.Path(folder))
    shares = data.pair_shares(config, dataset)
    pool = concurrent.futures.ThreadPoolExecutor(config.data.read_threads)
    settings = streams.bitext_settings(config, is_separate=False)
    stream = bitext.pair_stream(dataset, settings, 0, shares, pool)
    loaded = StreamedData(stream, "threads", num_parts=_HOSTS, read_ahead=config.data.read_ahead)
    steps = loaded.batches(range(1 + 2 * batches))
    next(steps)
    found = [time.perf_counter() - start, time.process_time() - cpu, private() - before]
    for _ in range(2):
        start, size = time.process_time(), 0
        for _, (_, batch) in zip(range(batches), steps, strict=False):
            size += len(batch["tokens"])
        found.append(size / (time.process_time() - start))
    return *found, private() - before, stream.pairs_per_step() / stream.batch_size


def main(_) -> None:
    columns = {"pairs": ",", "files, GB": ".2f", "start, s": ".1f", "of CPU": ".1f",
               "memory, GB": ".2f", "rows/s of CPU": ",.0f", "after": ",.0f",
               "memory, GB at the end": ".2f", "pairs a row": ".1f"}  # fmt: skip
    report = machine.Report(_OUT.value)
    report.table(f"{_SETS} sets of {_LANGUAGES} languages, process 0 of {_HOSTS}", columns)
    for number in map(int, _PAIRS.value):
        with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
            write(pathlib.Path(folder), number)
            used = sum(512 * one.stat().st_blocks for one in pathlib.Path(folder).iterdir())
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found = pool.apply(measure, (folder, _BATCHES.value))
        *start, first, one, two, last, mean = found
        report.row(number, used / 1e9, *start, first / 1e9, one, two, last / 1e9, mean)
    lengths = np.random.default_rng(0).lognormal(4, 0.5, 100_000).astype(int).clip(6, 512)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    rows = len(list(pack(enumerate(lengths.tolist()), 512)))
    took = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
    padding = 1 - lengths.sum() / (512 * rows)
    print(f"packing: {len(lengths) / took:,.0f} pairs/s of CPU, {padding:.2%} padding")


if __name__ == "__main__":
    app.run(main)
