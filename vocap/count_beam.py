"""Distributed counting of script runs with Apache Beam.

    python -m vocap.count_beam --input='gs://BUCKET/en-*.txt.gz' --output=gs://BUCKET/en \\
        --runner=DataflowRunner ...
    python -m tools.count_text --merge='en/*.runs.gz' --output=en.runs.gz

The first command writes a folder of part tables. The second merges them into one table, which is
byte for byte that of `tools.count_text` on the same text. docs/counting.md has the commands for
each runner.

Each bundle of lines is counted in memory and emitted as a few blocks: small tables, one for each
part. A part is the sum of its blocks. So Beam shuffles compressed blocks and not single runs.
"""

import argparse
import collections
import dataclasses
import io
import json
import re
import sys
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vocap import run_tables, runs

_KEPT, _HELDOUT = "kept", "heldout"
_BATCH_CHARACTERS = 1_000_000
_SUFFIX = ".runs.gz"
_KIND = re.compile(r".*\.(txt|jsonl)(\.gz|\.xz|\.bz2)?")

Block = tuple[tuple[str, int], bytes]  # ((_KEPT or _HELDOUT, part), a table)


@dataclasses.dataclass(frozen=True)
class Job:
    """Input, output and limits of a count.

    Attributes:
      inputs: patterns of `.txt` and `.jsonl` files on any file system that Beam supports.
      output: folder for the part tables.
      num_parts: number of part tables; one worker sums a part in memory.
      max_runs: approximate number of runs that a worker process counts in memory.
      heldout_fraction, heldout_seed: see `run_tables.HeldOut`.
      heldout_output: folder for the part tables of the held-out text.
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
        """Output folders by kind of text, kept or held out."""
        if self.heldout_output is None:
            return {_KEPT: self.output}
        return {_KEPT: self.output, _HELDOUT: self.heldout_output}


def main(argv: Sequence[str]) -> None:
    """Run a job; unknown flags are passed on to Beam."""
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
        sys.exit(f"error: {error}")
    for folder in job.outputs.values():
        print(
            f"wrote {job.num_parts} tables to {folder}; where they can be read as files, merge "
            f"them: python -m tools.count_text --merge='{folder}/*{_SUFFIX}' --output=LANG{_SUFFIX}"
        )


def count(job: Job, beam_flags: Sequence[str]) -> None:
    """Run a job and wait for its end.

    Args:
      job: the input, output and limits.
      beam_flags: the runner and its options, as on Beam's command lines.

    Raises:
      ValueError: Beam is not installed, an input does not exist, or an output does.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise ValueError(
            f"Apache Beam cannot be imported ({error}): pip install -r requirements-beam.txt, "
            "best into an environment of its own"
        ) from error
    files = _check_files(job)
    keys = [(text, part) for text in job.outputs for part in range(job.num_parts)]
    with beam.Pipeline(options=PipelineOptions(list(beam_flags))) as pipeline:
        sentences = [
            pipeline
            | f"{kind} files" >> beam.Create(paths)
            | f"lines of {kind}" >> beam.io.ReadAllFromText()
            | f"sentences of {kind}" >> beam.FlatMap(_sentences, is_json=kind == "jsonl")
            for kind, paths in files.items()
        ]
        batches = (
            sentences
            | beam.Flatten()
            | beam.BatchElements(_BATCH_CHARACTERS, _BATCH_CHARACTERS, element_size_fn=len)
        )
        counted = batches | "count" >> beam.ParDo(_counting(job)).with_output_types(Block)
        # Every part is written, even one that no run falls into.
        empty = pipeline | "every part" >> beam.Create(
            [(key, _table(0, [])) for key in keys]
        ).with_output_types(Block)
        parts = (counted, empty) | "blocks" >> beam.Flatten() | "by part" >> beam.GroupByKey()
        _ = parts | "write" >> beam.Map(_write_part, job)


def _check_files(job: Job) -> dict[str, list[str]]:
    """Return the input files of each kind, each file once; create the folders for the output."""
    from apache_beam.io.filesystems import FileSystems

    paths: set[str] = set()
    for pattern, match in zip(job.inputs, FileSystems.match(list(job.inputs)), strict=True):
        if not match.metadata_list:
            raise ValueError(f"{pattern}: no such file; correct the path or the pattern")
        paths.update(file.path for file in match.metadata_list)
    files = collections.defaultdict(list)
    for path in sorted(paths):
        if not (kind := _KIND.fullmatch(path)):
            raise ValueError(
                f"{path}: not a text file; expected .txt or .jsonl, or these .gz/.xz/.bz2"
            )
        files[kind[1]].append(path)
    for folder in job.outputs.values():
        # Parts of another job would be merged with those of this one.
        if FileSystems.match([FileSystems.join(folder, "*" + _SUFFIX)], [1])[0].metadata_list:
            raise ValueError(
                f"{folder} holds tables already; delete them, or choose another folder"
            )
        if not FileSystems.exists(folder):
            FileSystems.mkdirs(folder)
    return files


def _sentences(line: str, is_json: bool) -> list[str]:
    """Return the sentences of a line of text."""
    texts = [line]
    if is_json and line.strip():
        record = json.loads(line)
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            raise ValueError(f"a line must be an object with a text field, found {line[:80]!r}")
        texts = record["text"].split("\n")
    return [text.strip() for text in texts if text.strip()]


def _counting(job: Job) -> Any:
    """Return the DoFn that maps batches of sentences to blocks."""
    import apache_beam as beam
    from apache_beam.transforms.window import GlobalWindows

    class Counting(beam.DoFn):
        def setup(self):
            self._heldout = run_tables.HeldOut(job.heldout_fraction, job.heldout_seed)

        def start_bundle(self):
            self._counters = {text: runs.RunCounter() for text in job.outputs}

        def process(self, batch):
            sides = self._heldout.split(batch) if job.heldout_output else [batch]
            for counter, sentences in zip(self._counters.values(), sides, strict=True):
                counter.add(sentences)
            if sum(map(len, self._counters.values())) > job.max_runs:
                yield from self._blocks()
                self.start_bundle()

        def finish_bundle(self):
            yield from map(GlobalWindows.windowed_value, self._blocks())

        def _blocks(self):
            for text, counter in self._counters.items():
                yield from _blocks(text, counter, job.num_parts)

    return Counting()


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
    run_tables.write_entries(file, num_sentences, entries, compression=1)
    return file.getvalue()


def _write_part(part: tuple[tuple[str, int], Iterable[bytes]], job: Job) -> None:
    """Sum the blocks of a part and write its table."""
    from apache_beam.io.filesystems import FileSystems

    (text, number), blocks = part
    total: dict[bytes, int] = {}
    num_sentences = 0
    for block in blocks:
        block_sentences, entries = run_tables.read_entries(io.BytesIO(block), "a block")
        num_sentences += block_sentences
        for run, value in entries:
            old = total.get(run)
            total[run] = value if old is None else runs.merge_counts(old, value)
    name = f"part-{number:05d}-of-{job.num_parts:05d}{_SUFFIX}"
    path = FileSystems.join(job.outputs[text], name)
    # Written to a temporary file and renamed when complete; two workers with the same part write
    # the same bytes. The name does not end in .gz, so Beam does not compress again.
    aside = f"{path}.{uuid.uuid4().hex}"
    with FileSystems.create(aside) as file:
        run_tables.write_entries(file, num_sentences, sorted(total.items()))
    FileSystems.rename([aside], [path])


if __name__ == "__main__":
    main(sys.argv[1:])
