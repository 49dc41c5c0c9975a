"""Measure data preparation on synthetic text, kill and resume it, and extrapolate to 2 TB.

    python -m benchmarks.prepare_data --megabytes=300 --workers=1 --folder=DIR

The command writes documents to plain and compressed shards of several languages. Their words are
drawn from the embedded corpus by frequency, and every twentieth document is a repetition. It trains
a tokenizer on a part and runs prepare_data.py. SIGKILL ends that when half of the text is
tokenised, and a second call resumes. The tables have the rates of the rounds, the peak memory of
all processes together, and the files. They also have the time, disk, memory and number of files
that 2 TB (CC-100) would take on 1, 32 and 512 workers.

--whole also prepares the text without a kill. All files must then be equal to the bit.
"""

import collections
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import sentencepiece as spm
import zstandard
from absl import app, flags

from benchmarks import machine
from vocap import merge

_MEGABYTES = flags.DEFINE_integer("megabytes", 300, "Text, in millions of bytes.", lower_bound=1)
_SHARD = flags.DEFINE_integer(
    "shard_megabytes", 32, "Text per shard, in millions of bytes.", lower_bound=1
)
_WORKERS = flags.DEFINE_integer("workers", 1, "Workers of prepare_data.py.", lower_bound=1)
_PIECES = flags.DEFINE_integer("pieces", 250_000, "Vocabulary size of the tokenizer.")
_LENGTH = flags.DEFINE_integer("length", 512, "Tokens per sequence.")
_FOLDER = flags.DEFINE_string("folder", None, "Folder for text and rows; temporary by default.")
_KILL = flags.DEFINE_bool("kill", True, "Kill the first run when half of the text is tokenised.")
_WHOLE = flags.DEFINE_bool("whole", False, "Compare with an uninterrupted run.")
_OUT = flags.DEFINE_string("out", None, "JSON file for the tables.")

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_LANGUAGES = ("en", "ru", "sw", "th")
_CC100_BYTES, _CC100_LANGUAGES = 2_000_000_000_000, 116
_SHARD_BYTES = 1 << 28
_BODIES = 2000
_POLL = 0.1  # seconds
_ROUNDS = ("scan", "tokenise")


def write_text(folder: pathlib.Path, language: str, num_bytes: int, shard_bytes: int) -> None:
    """Write about `num_bytes` of synthetic documents of a language as shards.

    Every third shard is compressed with zstandard. Every twentieth document repeats one of the
    thousand before it.
    """
    words, shares = _words(language)
    rng = np.random.default_rng(sum(language.encode()))
    count = -(-num_bytes // shard_bytes)
    for number in range(count):
        name = f"{language}-{number:05d}-of-{count:05d}.txt"
        documents = _documents(words, shares, rng, num_bytes // count)
        is_compressed = number % 3 == 2
        path = folder / (f"{name}.zst" if is_compressed else name)
        with (zstandard.open if is_compressed else open)(path, "wb") as file:
            for document in documents:
                file.write(document)


def _words(language: str) -> tuple[list[bytes], np.ndarray]:
    """Return words of the embedded corpus and unseen words, with their cumulative shares."""
    text = (_ROOT / "corpus" / f"{language}.txt").read_text(encoding="utf-8")
    counts = collections.Counter(text.split())
    known = [word for word, _ in counts.most_common()]
    joined = [one + other for one, other in itertools.pairwise(known)]
    frequencies = np.array([*counts.values(), *[0.1] * len(joined)], float)
    frequencies[: len(known)] = sorted(counts.values(), reverse=True)
    return [word.encode() for word in (*known, *joined)], np.cumsum(frequencies / frequencies.sum())


def _documents(
    words: list[bytes], shares: np.ndarray, rng: np.random.Generator, num_bytes: int
) -> Iterator[bytes]:
    """Yield documents: a sentence of their own, then one of a few thousand bodies.

    Drawing every word would take longer than tokenising it.
    """
    bodies = [
        b"\n".join(_sentences(words, shares, rng, int(length)))
        for length in rng.integers(1, 60, _BODIES)
    ]
    recent: collections.deque[bytes] = collections.deque(maxlen=1000)
    written = 0
    while written < num_bytes:
        for first in _sentences(words, shares, rng, 1000):
            body = bodies[int(rng.integers(_BODIES))]
            found = b"%b %x\n%b\n\n" % (first, int(rng.integers(1 << 62)), body)
            if recent and rng.random() < 0.05:
                found = recent[int(rng.integers(len(recent)))]
            recent.append(found)
            written += len(found)
            yield found
            if written >= num_bytes:
                return


def _sentences(
    words: list[bytes], shares: np.ndarray, rng: np.random.Generator, count: int
) -> list[bytes]:
    lengths = rng.integers(1, 35, count)
    drawn = np.searchsorted(shares, rng.random(lengths.sum()), side="right")
    found = [words[i] for i in np.minimum(drawn, len(words) - 1).tolist()]
    ends = np.cumsum(lengths).tolist()
    return [b" ".join(found[start:end]) for start, end in itertools.pairwise([0, *ends])]


def write_tokenizer(path: pathlib.Path, text: pathlib.Path, num_pieces: int) -> None:
    """Write a tokenizer with pieces of the text, filled up to `num_pieces` with rare ones."""
    sample = path.with_name("sample.txt")
    with sample.open("wb") as file:
        for shard in sorted(text.glob("*-00000-of-*.txt")):
            with shard.open("rb") as source:
                file.write(source.read(1 << 20))
    spm.SentencePieceTrainer.train(
        input=str(sample),
        model_prefix=str(path.with_suffix("")),
        vocab_size=16_000,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    processor = spm.SentencePieceProcessor(model_file=str(path))
    ids = [i for i in range(processor.get_piece_size()) if processor.is_control(i) is False]
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in ids if i > 2}
    least = min(scores.values())
    for i in range(num_pieces - len(scores) - merge.MASK_ID - 1):
        scores[f"▁{np.base_repr(i + 46_656, 36).lower()}x"] = least - 1 - i / num_pieces
    pieces = sorted(scores, key=lambda piece: -scores[piece])
    log_probs = np.array([scores[piece] for piece in pieces])
    path.write_bytes(merge.write_model(pieces, log_probs))
    sample.unlink()


@dataclasses.dataclass
class Watched:
    """Cost of a run of prepare_data.py.

    Attributes:
      seconds: wall time.
      peak_bytes: peak memory of all processes together; shared pages count once (PSS).
      largest_bytes: peak memory of a single process.
      cpu: CPU seconds of each round of tasks, and its bytes of text.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    largest_bytes: int = 0
    cpu: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


def prepare(text: pathlib.Path, workdir: pathlib.Path, *, kill_at: int = 0) -> Watched:
    """Run prepare_data.py; kill it and its workers when `kill_at` parts are tokenised."""
    command = [
        sys.executable, "prepare_data.py", f"--config=configs/quickstart.py:{text}",
        f"--workdir={workdir}", "--config.corpus.parallel=()", "--config.data.contrast_share=0.0",
        "--config.corpus.heldout_fraction=0.001", "--config.corpus.heldout_by=text",
        "--config.corpus.deduplicate=True", "--config.corpus.block_bytes=8192",
        f"--config.store.length={_LENGTH.value}", f"--config.store.num_workers={_WORKERS.value}",
        f"--config.store.shard_bytes={_SHARD.value * 1_050_000}",
    ]  # fmt: skip
    found, start, log = Watched(), time.perf_counter(), workdir / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=_ROOT, stdout=file, stderr=file, start_new_session=True
        )
    is_killed = False
    while process.poll() is None:
        time.sleep(_POLL)
        sizes = _memory(process.pid)
        found.peak_bytes = max(found.peak_bytes, sum(sizes))
        found.largest_bytes = max(found.largest_bytes, *sizes, 0)
        if kill_at and len(list((workdir / "rows/work").glob("rows-*.json"))) >= kill_at:
            os.killpg(process.pid, signal.SIGKILL)
            is_killed = True
    found.seconds = time.perf_counter() - start
    output = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode and not is_killed:
        raise RuntimeError(f"prepare_data.py failed: {output[-2000:]}")
    pattern = r"(\w[\w ]*): \d+ tasks, ([\d.]+) MB of text, [\d.]+ s, ([\d.]+) s of CPU time"
    for name, size, seconds in re.findall(pattern, output):
        found.cpu[name] = (float(seconds), 1e6 * float(size))
    return found


def _memory(group: int) -> list[int]:
    """Return the proportional set sizes (bytes) of a process group."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == group:
                rollup = (path / "smaps_rollup").read_text()
                found.append(1024 * int(re.findall(r"Pss:\s+(\d+)", rollup)[0]))
        except (OSError, IndexError):
            continue  # it has ended
    return found


def digests(folder: pathlib.Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a dataset, from its manifest."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    return {name: one["sha256"] for name, one in files.items()}


def describe(
    report: machine.Report, text: pathlib.Path, rows: pathlib.Path, runs: Mapping[str, Watched]
) -> None:
    """Report the runs and their files."""
    files = list(text.glob("*.txt*"))
    size = sum(path.stat().st_size for path in files)
    meta = json.loads((rows / "meta.json").read_text())
    tokens = sum(one[split]["tokens"] for one in meta["statistics"].values() for split in one)
    written = [path.stat().st_size for path in rows.iterdir() if path.is_file()]
    blocks = sum(one["blocks"] for one in meta["duplicates"].values())
    report.table(
        f"{size / 1e6:.0f} MB in {len(files)} files; {tokens / 1e6:.1f} million tokens of "
        f"{meta['vocab_size']:,} pieces; {blocks:,} repeated blocks left out; {len(written)} files "
        f"of {sum(written) / 1e6:.0f} MB written; {_WORKERS.value} workers",
        {"run": "", "s": ".0f", "peak MB, all processes": ".0f", "largest process": ".0f",
         "scan MB/s": ".1f", "tokenise MB/s": ".1f"},
    )  # fmt: skip
    for name, run in runs.items():
        rates = [_rate(run, one) / 1e6 or None for one in _ROUNDS]
        report.row(name, run.seconds, run.peak_bytes / 1e6, run.largest_bytes / 1e6, *rates)


def _rate(run: Watched, name: str) -> float:
    """Return bytes of text per CPU second of a round; 0 if it did not end or had no tasks."""
    seconds, size = run.cpu.get(name, (0.0, 0.0))
    return size / seconds if seconds else 0.0


def project(report: machine.Report, run: Watched, meta: Mapping[str, Any], text_bytes: int) -> None:
    """Report the cost of 2 TB at the rates of a run on `text_bytes`."""
    total = collections.Counter[str]()
    for language in meta["statistics"].values():
        for split in language.values():
            total.update(split)
    scale = _CC100_BYTES / text_bytes
    row_bytes = 4 * meta["length"] * total["rows"] * scale
    parts = _CC100_BYTES // _SHARD_BYTES + _CC100_LANGUAGES
    seconds = sum(_CC100_BYTES / _rate(run, one) for one in _ROUNDS)
    report.table(
        f"2 TB in shards of 256 MiB at these rates: {row_bytes / 1e12:.2f} TB of sequences, "
        f"{2 * parts + _CC100_LANGUAGES:,} files; until the end besides {5 * parts:,} files",
        {"workers": "d", "hours": ",.1f", "memory of the workers, GB": ",.1f"},
    )
    for workers in (1, 32, 512):
        report.row(workers, seconds / workers / 3600, workers * run.largest_bytes / 1e9)


def measure(folder: pathlib.Path) -> None:
    """Make text and a tokenizer below `folder`; prepare the text."""
    text, workdir = folder / "text", folder / "work"
    report = machine.Report(_OUT.value)
    if not text.exists():
        text.mkdir(parents=True)
        for language in _LANGUAGES:
            size = 1_000_000 * _MEGABYTES.value // len(_LANGUAGES)
            write_text(text, language, size, 1_000_000 * _SHARD.value)
        (workdir / "vocab").mkdir(parents=True)
        write_tokenizer(workdir / "vocab/spm.model", text, _PIECES.value)
    shutil.rmtree(workdir / "rows", ignore_errors=True)
    runs = {}
    if _KILL.value:
        parts = len(list(text.glob("*.txt*")))
        runs["killed"] = prepare(text, workdir, kill_at=max(parts // 2, 1))
    runs["resumed" if _KILL.value else "whole"] = prepare(text, workdir)
    runs["up to date"] = prepare(text, workdir)
    if _WHOLE.value:
        other = folder / "other"
        shutil.copytree(workdir / "vocab", other / "vocab")
        runs["not killed"] = prepare(text, other)
        if digests(other / "rows") != digests(workdir / "rows"):
            sys.exit("error: the killed and resumed run has written other files")
        print("the killed and resumed run has the files of the uninterrupted run")
    describe(report, text, workdir / "rows", runs)
    meta = json.loads((workdir / "rows/meta.json").read_text())
    complete = {**runs["killed"].cpu, **runs["resumed"].cpu} if _KILL.value else runs["whole"].cpu
    largest = max(run.largest_bytes for run in runs.values())
    project(
        report, Watched(largest_bytes=largest, cpu=complete), meta, _MEGABYTES.value * 1_000_000
    )


def main(_) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        measure(pathlib.Path(_FOLDER.value or temporary).absolute())


if __name__ == "__main__":
    app.run(main)
