"""Distributed counting of script runs with Apache Beam.

    python -m vocap.count_beam --input='gs://BUCKET/en-*.txt.gz' --output=gs://BUCKET/en \\
        --runner=DataflowRunner ...
    xlm count --merge='en/*.runs.gz' --output=en.runs.gz

The first command writes a folder of part tables. The second merges them into the table that `xlm
count` writes for the same text, byte for byte. docs/counting.md has the commands for each runner.

A worker counts each file, or range of a large one, in memory and emits a few blocks: small tables,
one for each part. A part is the sum of its blocks, so Beam shuffles compressed blocks and not
single runs. At the end the tables must have the sentences of the text.
"""

import argparse
import bz2
import contextlib
import dataclasses
import gzip
import io
import json
import lzma
import operator
import re
import sys
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from vocap import run_tables, runs
from xlm.common import packages
from xlm.common.long_lines import cut_line

_KEPT, _HELDOUT = "kept", "heldout"
_RANGE_BYTES = 64 << 20  # of a plain file, counted at a time
_SUFFIX = ".runs.gz"
_KIND = re.compile(r".*\.(txt|jsonl)(\.gz|\.xz|\.bz2)?")
_OPENERS: dict[str | None, Callable[[Any], Any]] = {
    None: contextlib.nullcontext,
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
}

Block = tuple[tuple[str, int], bytes]  # ((_KEPT or _HELDOUT, part), a table)
Task = tuple[int, str, int, int]  # number, path, and a range of bytes, in which its lines begin


@dataclasses.dataclass(frozen=True)
class Job:
    """Input, output and limits of a count.

    `inputs` are patterns of `.txt` and `.jsonl` files on any file system that Beam supports. Part
    tables go to the folders `output` and `heldout_output` (see `run_tables.HeldOut`). One worker
    sums a part in memory. A worker process counts about `max_runs` runs in memory.
    """

    inputs: tuple[str, ...]
    output: str
    num_parts: int = 32
    max_runs: int = 1_000_000
    heldout_fraction: float = 0.0
    heldout_seed: int = 0
    heldout_output: str | None = None

    def __post_init__(self):
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}, must be at least 1")
        if bool(self.heldout_fraction) != bool(self.heldout_output):
            raise ValueError("--heldout_fraction and --heldout_output belong together")

    @property
    def outputs(self) -> dict[str, str]:
        if self.heldout_output is None:
            return {_KEPT: self.output}
        return {_KEPT: self.output, _HELDOUT: self.heldout_output}


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m vocap.count_beam",
        description="Counts script runs with Apache Beam, which gets all flags not listed here.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--input", action="append", required=True, help=".txt or .jsonl files; repeatable")
    add("--output", required=True, help="folder for the part tables")
    add("--num_parts", type=int, default=Job.num_parts, help="how many part tables")
    add("--max_runs", type=int, default=Job.max_runs, help="runs in a worker process's memory")
    add("--heldout_fraction", type=float, default=0.0, help="share of the sentences held out")
    add("--heldout_output", help="folder for the part tables of what is held out")
    add("--heldout_seed", type=int, default=0, help="picks what is held out")
    flags, beam_flags = parser.parse_known_args(argv)
    settings = vars(flags)
    try:
        job = Job(inputs=tuple(settings.pop("input")), **settings)
        count(job, beam_flags)
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    for folder in job.outputs.values():
        print(
            f"wrote {job.num_parts} tables to {folder}; where they can be read as files, merge "
            f"them: xlm count --merge='{folder}/*{_SUFFIX}' --output=LANG{_SUFFIX}"
        )


def count(job: Job, beam_flags: Sequence[str]) -> None:
    """Run a job with the runner and options in `beam_flags`, and wait for its end.

    Raises ValueError if Beam is not installed, an input does not exist, an output does, or the
    runner has lost some of the text.
    """
    with packages.needed("Apache Beam", "beam"):
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    tasks = _tasks(job)
    keys = [(text, part) for text in job.outputs for part in range(job.num_parts)]
    with beam.Pipeline(options=PipelineOptions(list(beam_flags))) as pipeline:
        counted = (
            pipeline
            | "texts" >> beam.Create(tasks)
            # Otherwise one worker would get them all, together with the step that makes them.
            | "to workers" >> beam.Reshuffle()
            | "count" >> beam.FlatMap(_count, job).with_output_types(Block)
        )
        # Every part is written, even one that no run falls into.
        empty = pipeline | "every part" >> beam.Create(
            [(key, _table(0, [])) for key in keys]
        ).with_output_types(Block)
        parts = (counted, empty) | "blocks" >> beam.Flatten() | "by part" >> beam.GroupByKey()
        _ = parts | "write" >> beam.Map(_write_part, job)
    _check_counted(job, tasks)


def _tasks(job: Job) -> list[Task]:
    """Return the texts to count, each file once; create the folders for the output."""
    from apache_beam.io.filesystems import FileSystems

    sizes: dict[str, int] = {}
    for pattern, match in zip(job.inputs, FileSystems.match(list(job.inputs)), strict=True):
        if not match.metadata_list:
            raise ValueError(f"{pattern}: no such file; correct the path or the pattern")
        sizes.update((file.path, file.size_in_bytes) for file in match.metadata_list)
    tasks: list[Task] = []
    for path, size in sorted(sizes.items()):
        if not (kind := _KIND.fullmatch(path)):
            raise ValueError(
                f"{path}: not a text file; expected .txt or .jsonl, or these .gz/.xz/.bz2"
            )
        starts = [0] if kind[2] else range(0, size, _RANGE_BYTES)
        for start in starts:
            tasks.append((len(tasks), path, start, start + _RANGE_BYTES))
    for folder in job.outputs.values():
        # Parts of another job would be merged with those of this one.
        if FileSystems.match([FileSystems.join(folder, "*" + _SUFFIX)], [1])[0].metadata_list:
            raise ValueError(
                f"{folder} holds tables already; delete them, or choose another folder"
            )
        if not FileSystems.exists(folder):
            FileSystems.mkdirs(folder)
    return tasks


def _count(task: Task, job: Job) -> Iterator[Block]:
    """Yield the counted runs of a text as blocks, and write a file with its number of sentences.

    One call does it all, since some runners drop what a bundle emits at its end.
    """
    heldout = run_tables.HeldOut(job.heldout_fraction, job.heldout_seed)
    counters = {text: runs.RunCounter() for text in job.outputs}
    num_sentences = dict.fromkeys(job.outputs, 0)

    def emptied() -> Iterator[Block]:
        for text, counter in counters.items():
            counters[text] = runs.RunCounter()
            num_sentences[text] += counter.num_sentences
            yield from _blocks(text, counter, job.num_parts)

    for batch in run_tables.batches(_sentences_of(task)):
        sides = heldout.split(batch) if job.heldout_output else [batch]
        for counter, sentences in zip(counters.values(), sides, strict=True):
            counter.add(sentences)
        if sum(map(len, counters.values())) > job.max_runs:
            yield from emptied()
    yield from emptied()
    for text, count in num_sentences.items():
        _write(_counted_path(job, text, task), operator.methodcaller("write", b"%d" % count))


def _counted_path(job: Job, text: str, task: Task) -> str:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.join(job.outputs[text], f"counted-{task[0]:08d}")


def _sentences_of(task: Task) -> Iterator[str]:
    """Yield the sentences of the lines that begin in a range of a file."""
    _, path, start, end = task
    kind = _KIND.fullmatch(path)
    assert kind is not None
    with _opened(path) as raw, _OPENERS[kind[2]](raw) as file:
        if start:
            # One byte earlier, so that a line that begins at `start` is read and not skipped.
            file.seek(start - 1)
            start += len(file.readline()) - 1
        while (kind[2] or start < end) and (line := file.readline()):
            start += len(line)
            yield from _sentences(line.decode(), is_json=kind[1] == "jsonl")


def _check_counted(job: Job, tasks: Sequence[Task]) -> None:
    """Compare sentences of tables and text; if they differ, remove the tables, raise ValueError."""
    from apache_beam.io.filesystems import FileSystems

    for text, folder in job.outputs.items():
        notes = [_counted_path(job, text, task) for task in tasks]
        (tables,) = FileSystems.match([FileSystems.join(folder, "*" + _SUFFIX)])
        paths = [file.path for file in tables.metadata_list]
        there = [note for note in notes if FileSystems.exists(note)]
        in_text = in_tables = 0
        for path in there:
            with _opened(path) as file:
                in_text += int(file.read())
        for path in paths:
            with _opened(path) as file:
                in_tables += run_tables.read_entries(file, path)[0].num_sentences
        FileSystems.delete(there)
        if in_tables != in_text or len(there) != len(notes) or len(paths) != job.num_parts:
            FileSystems.delete(paths)
            raise ValueError(
                f"{folder}: {len(paths)} of {job.num_parts} tables with {in_tables} sentences, "
                f"but {in_text} were counted in {len(there)} of {len(notes)} texts; the runner has "
                "lost some, and the tables are removed: choose another --runner"
            )


def _sentences(line: str, is_json: bool) -> list[str]:
    texts = [line]
    if is_json and line.strip():
        record = json.loads(line)
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise ValueError(f"a line must be an object with a text field, found {line[:80]!r}")
        texts = record["text"].split("\n")
    return [piece for text in texts if text.strip() for piece in cut_line(text.strip())]


def _blocks(text: str, counter: runs.RunCounter, num_parts: int) -> Iterator[Block]:
    """Yield the counted runs as blocks, partitioned by a hash of the runs."""
    entries: list[list[run_tables.Entry]] = [[] for _ in range(num_parts)]
    packed = counter.packed()
    for run in sorted(packed):
        encoded = run.encode()
        # Not hash(), which differs between processes.
        entries[zlib.crc32(encoded) % num_parts].append((encoded, packed[run]))
    for part, part_entries in enumerate(entries):
        # The sentences are counted in one part only, so that they add up when parts are merged.
        num_sentences = counter.num_sentences if part == 0 else 0
        if part_entries or num_sentences:
            yield (text, part), _table(num_sentences, part_entries)


def _table(num_sentences: int, entries: Iterable[run_tables.Entry]) -> bytes:
    file = io.BytesIO()
    run_tables.write_entries(file, run_tables.Header(num_sentences), entries, compression=1)
    return file.getvalue()


def _write_part(part: tuple[tuple[str, int], Iterable[bytes]], job: Job) -> None:
    from apache_beam.io.filesystems import FileSystems

    (text, number), blocks = part
    total: dict[bytes, int] = {}
    num_sentences = 0
    for block in blocks:
        header, entries = run_tables.read_entries(io.BytesIO(block), "a block")
        num_sentences += header.num_sentences
        for run, value in entries:
            old = total.get(run)
            total[run] = value if old is None else runs.merge_counts(old, value)
    name = f"part-{number:05d}-of-{job.num_parts:05d}{_SUFFIX}"
    path = FileSystems.join(job.outputs[text], name)
    header = run_tables.Header(num_sentences)
    _write(path, lambda file: run_tables.write_entries(file, header, sorted(total.items())))


def _opened(path: str) -> Any:
    """Open a file as it is, compressed or not."""
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _write(path: str, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file to a temporary name and rename it; workers of one task write the same bytes."""
    from apache_beam.io.filesystems import FileSystems

    # The name does not end in .gz, so Beam does not compress again.
    aside = f"{path}.{uuid.uuid4().hex}"
    with FileSystems.create(aside) as file:
        write(file)
    FileSystems.rename([aside], [path])


if __name__ == "__main__":
    main(sys.argv[1:])
