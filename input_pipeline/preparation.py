"""Preparation of a packed dataset from text of any size, as resumable tasks.

There are six rounds of independent tasks. By "document", a round before them hashes the held-out
rows of parallel text:

1. sources: split parallel text and tokenise its held-out part; columns become text of languages.
2. scan: describe the blocks of each part of a language by records (`selection.RECORD`).
3. select: choose a language's blocks from their records.
4. write: tokenise the chosen blocks of a part and pack them into files of sequences.
5. count: add up the token counts of a language's parts; measure the overlap of held-out rows.
6. pairs: tokenise the pairs to train on that do not repeat held-out text.

A task writes its results to the folder `work` of the dataset, then a manifest of its inputs. A run
skips tasks with an up-to-date manifest. `finish` moves the files to the dataset's folder and writes
`meta.json`. No result depends on workers, order or interruptions.
"""

import collections
import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from input_pipeline import (
    array_files,
    corpus,
    manifest,
    overlap,
    pair_rows,
    selection,
    sources,
    text_files,
)  # fmt: skip
from input_pipeline import preparation_plan as plans
from input_pipeline.exclusion import Exclusion, joined, log_tally
from input_pipeline.manifest import id_dtype
from input_pipeline.overlap import Overlap
from input_pipeline.packed_dataset import SPLITS, PackedDataset, pair_paths
from input_pipeline.preparation_columns import BITEXT, PARALLEL, Column
from input_pipeline.preparation_job import HELDOUT_ROWS, HELDOUT_TEXT, Job
from input_pipeline.preparation_plan import LanguageTask, Part, SourceTask
from input_pipeline.tokenization import RowWriter, special_ids
from xlm.common import artifacts, console, executors
from xlm.common.executors import Executor

# With less text an error removes finished tasks, which take seconds.
_KEPT_FROM = 64 << 20


def find(job: Job) -> plans.Found:
    """Find the text of a preparation; reads only headers of parallel text.

    Raise ValueError if there is no text, none of a wanted language, or shards are missing.
    """
    found = plans.find_inputs(job.spec, job.settings.shard_bytes)
    corpus.check_found(job.spec, _languages(job, found))
    return found


def _languages(job: Job, found: plans.Found) -> set[str]:
    """Return the languages of text, with `parallel_as_text` also of parallel text."""
    trained = found.trained if job.spec.parallel_as_text else ()
    return {one.language for one in found.pieces}.union(*(task.languages for task in trained))


def run(job: Job, found: plans.Found, model: bytes, executor: Executor) -> str:
    """Run the unfinished tasks of all rounds; return `plans.text_digest`.

    Raise ValueError if text is malformed, or a language has too little.
    """
    begin(job, model)
    try:
        _run(job, found, executor)
    except (ValueError, OSError):
        if found.text_bytes < _KEPT_FROM:
            shutil.rmtree(job.work, ignore_errors=True)
        raise
    return plans.text_digest(_inputs(job, found))


def _run(job: Job, found: plans.Found, executor: Executor) -> None:
    execute_all = functools.partial(_execute, job, executor)
    if job.spec.heldout_by == sources.BY_DOCUMENT:
        execute_all(hold_out, "held", found.tasks, "held-out pairs")
        _join(job, HELDOUT_ROWS, [f"held-{task.id}.npy" for task in found.tasks])
    execute_all(prepare_source, "source", found.tasks, "parallel text")
    parts = find_parts(job, found)
    execute_all(scan, "scan", parts, "scan")
    _log_tallies(job, found.tasks, parts)
    languages = plans.language_tasks(parts)
    execute_all(select, "select", languages, "select")
    for one in languages:
        chosen = job.read_manifest("select", one.id)
        split = selection.Split(*chosen.split)
        corpus.log_split(job.spec, one.id, chosen.duplicates["blocks"], chosen.blocks, split)
        corpus.check_split(job.spec, one.id, chosen.train, chosen.heldout)
    execute_all(write, "rows", parts, "tokenise")
    execute_all(count, "count", languages, "count")
    _join(job, HELDOUT_TEXT, [f"heldout-{part.id}.npy" for part in parts])
    execute_all(write_pairs, "pairs", found.trained, "pairs")
    for task in found.trained:
        tally = job.read_manifest("pairs", task.id).tally
        log_tally(task.name, *tally, reason="pairs that repeat held-out text")


def _execute(
    job: Job, executor: Executor, function: Callable[[Job, Any], None], kind: str,
    tasks: Sequence[Any], name: str,
) -> None:  # fmt: skip
    """Run the unfinished tasks of a round, in this process if there is little text."""
    if not (left := job.unfinished(kind, tasks)):
        return
    total, start = sum(task.text_bytes for task in left), time.perf_counter()
    times = executors.complete(
        plans.fitting(executor, total), _timed, [(function, job, task) for task in left],
        lambda _, __, task: not job.unfinished(kind, [task]), name, job.work,
    )  # fmt: skip
    took, busy = time.perf_counter() - start, sum(filter(None, times))
    message = "%-15s%d tasks, %.1f MB of text, %.1f s, %.1f s of CPU time"
    level = logging.DEBUG if console.is_drawn() else logging.INFO  # without a bar
    logging.log(level, message, name, len(left), total / 1e6, took, busy)


def _timed(function: Callable[[Job, Any], None], job: Job, task: Any) -> float:
    start = time.process_time()
    function(job, task)
    return time.process_time() - start


def _join(job: Job, name: str, of_tasks: Sequence[str]) -> None:
    hashes = (np.load(job.work / one, allow_pickle=False) for one in of_tasks)
    array_files.save(job.work / name, joined(hashes))


def find_parts(job: Job, found: plans.Found) -> list[Part]:
    """Group pieces and the columns of prepared sources into the parts of each language."""
    languages = _languages(job, found)
    columns = [
        piece
        for task in found.trained
        for origin in corpus.text_sides(job.spec)
        for language in task.languages
        if language in languages
        for path in [job.work / task.column(language, origin)]
        if path.stat().st_size  # a side may have no cell of a language
        for piece in plans.cut_file(language, path, job.settings.shard_bytes, origin)
    ]
    return plans.group([*found.pieces, *columns], job.settings.shard_bytes)


def begin(job: Job, model: bytes) -> None:
    """Make the folder `work`; remove one of other settings or test sets first."""
    path = job.work / "job.json"
    provenance = json.loads(json.dumps(job.provenance))
    is_known = path.exists() and artifacts.read_object(path) == provenance
    if job.work.exists() and not is_known:
        logging.info("%s: removed, as its settings or test sets were different", job.work)
        shutil.rmtree(job.work)
    _ = job.fingerprint  # before the first task
    artifacts.write_bytes(job.work / "spm.model", model)
    artifacts.write_json(path, provenance)


def hold_out(job: Job, task: SourceTask) -> None:
    """Write hashes of a source's held-out rows, which by "document" no source trains on."""
    exclusion = Exclusion(sources.find_excluded(job.spec))
    held = corpus.held_rows(task.source(job.spec), job.spec, exclusion)
    array_files.save(job.work / f"held-{task.id}.npy", held)
    job.write_manifest("held", task)


def prepare_source(job: Job, task: SourceTask) -> None:
    """Split a source of parallel text; write held-out rows, and its columns as text (round 1)."""
    source = task.source(job.spec)
    exclusion = job.exclusion
    exclusion.tally()
    with contextlib.ExitStack() as stack:
        columns = [Column(job, task, one, stack, PARALLEL) for one in source.languages]
        texts = {
            (side, language): stack.enter_context(
                _text_file(job.work / task.column(language, side))
            )
            for side in corpus.text_sides(job.spec)
            for language in source.languages
            if task.key == "parallel"
        }
        for rows, side in corpus.split_parallel(source, job.spec, exclusion):
            for number, language in enumerate(source.languages):
                cells = [row[number] for row in rows]
                sentences = [cell for cell in cells if cell]
                if sentences and (side, language) in texts:
                    texts[side, language].write(text_files.json_line(sentences))
                if side == selection.HELDOUT:
                    columns[number].add(cells)
        files = [name for column in columns for name in column.finish()]
    digest = plans.source_digest(source)
    plans.check_unchanged(task.files)
    tally, taken = exclusion.tally(), source.taken()
    described = job.describe(*files)
    job.write_manifest("source", task, digest=digest, tally=tally, files=described, taken=taken)


def write_pairs(job: Job, task: SourceTask) -> None:
    """Write the pairs of a source to train on that do not repeat held-out text (round 6)."""
    source, held = task.source(job.spec), Exclusion([])
    held.hold_out(np.load(job.work / HELDOUT_TEXT, allow_pickle=False))
    with contextlib.ExitStack() as stack:
        columns = [Column(job, task, one, stack, BITEXT) for one in source.languages]
        for rows, side in corpus.split_parallel(source, job.spec, job.exclusion):
            if side == selection.TRAIN:
                kept = held.of_rows(rows, is_heldout=False)
                for number, column in enumerate(columns):
                    column.add([row[number] for row in kept])
        files = [name for column in columns for name in column.finish()]
    plans.check_unchanged(task.files)
    for language in source.languages:
        array_files.narrow(job.work / task.file("ends", language))
    place = task.name, task.part, task.num_parts
    pairs = pair_rows.write_rows(job.work, task.languages, job.settings.length, *place)
    files += [path.name for path in pair_paths(job.work, *place)]
    described = job.describe(*files)
    job.write_manifest("pairs", task, files=described, tally=held.tally(), pairs=pairs)


@contextlib.contextmanager
def _text_file(path: pathlib.Path) -> Iterator[Any]:
    with artifacts.atomic_path(path) as aside, aside.open("w", encoding="utf-8") as file:
        yield file


def scan(job: Job, part: Part) -> None:
    """Write the records of the blocks of a part (round 2)."""
    exclusion = job.exclusion
    exclusion.tally()
    found: list[str] = []

    def blocks() -> Iterator[tuple[bytes, int, int, bytes]]:
        for piece in part.pieces:
            hasher = hashlib.sha256()
            for block in plans.blocks_of(job.spec, piece, exclusion):
                hasher.update(block.digest)
                if block.sentences:
                    yield block.record
            plans.check_unchanged([piece.state])
            found.append(hasher.hexdigest())

    records = selection.records(blocks())
    array_files.save(job.work / f"scan-{part.id}.npy", records)
    job.write_manifest("scan", part, digests=found, tally=exclusion.tally())


def select(job: Job, task: LanguageTask) -> None:
    """Write the side of each block of a language: training, held out or dropped (round 3)."""
    records = array_files.MappedArrays([job.work / f"scan-{part.id}.npy" for part in task.parts])
    chosen = selection.select(records, job.spec, task.id)
    for part, sides in zip(task.parts, chosen.sides, strict=True):
        array_files.save(job.work / f"sides-{part.id}.npy", sides)
    counts = np.sum([np.bincount(one, minlength=3) for one in chosen.sides], axis=0).tolist()
    job.write_manifest(
        "select", task, blocks=sum(counts), split=chosen.split,
        train=counts[selection.TRAIN], heldout=counts[selection.HELDOUT],
        sides=[hashlib.sha256(one.tobytes()).hexdigest() for one in chosen.sides],
        duplicates={"blocks": chosen.duplicates, "bytes": chosen.duplicate_bytes},
    )  # fmt: skip


def write(job: Job, part: Part) -> None:
    """Write the sequences of a part, and its token counts (round 4)."""
    sides = np.load(job.work / f"sides-{part.id}.npy", allow_pickle=False)
    dtype = id_dtype(job.processor.get_piece_size())
    length = job.settings.length
    with contextlib.ExitStack() as stack:
        writers = {}
        for split, side in zip(SPLITS, (selection.TRAIN, selection.HELDOUT), strict=True):
            path = job.work / part.row_file(split)
            file = stack.enter_context(array_files.array_file(path, (length,), dtype))
            writers[side] = RowWriter(job.processor, file, length, dtype)
        exclusion, number, heldout = job.exclusion, 0, list[np.ndarray]()
        exclusion.tally()
        for piece in part.pieces:
            for block in plans.blocks_of(job.spec, piece, exclusion):
                if block.sentences:
                    if sides[number] != selection.DROPPED:
                        writers[int(sides[number])].add(block.sentences)
                    if sides[number] == selection.HELDOUT:
                        heldout.append(corpus.heldout_hashes(job.spec, block.sentences))
                    number += 1
            plans.check_unchanged([piece.state])
        scanned = job.read_manifest("scan", part.id).tally
        if (written := exclusion.tally()) != scanned or number != len(sides):
            raise ValueError(
                f"{part.id}: the scan read {scanned[1]} sentences in {len(sides)} blocks, the "
                f"tokenisation {written[1]} in {number}; run the same command again"
            )
        statistics = [writer.finish() for writer in writers.values()]
    counts = writers[selection.TRAIN].counts
    used = np.flatnonzero(counts)
    array_files.save(job.work / f"counts-{part.id}.npy", np.stack([used, counts[used]]))
    array_files.save(job.work / f"heldout-{part.id}.npy", joined(heldout))
    by_split = dict(zip(SPLITS, statistics, strict=True))
    files = job.describe(*map(part.row_file, SPLITS))
    job.write_manifest("rows", part, statistics=by_split, files=files)


def count(job: Job, task: LanguageTask) -> None:
    """Add up the token counts of a language's parts, and measure its overlap (round 5)."""
    total = np.zeros(job.processor.get_piece_size(), np.int64)
    for part in task.parts:
        used, counts = np.load(job.work / f"counts-{part.id}.npy", allow_pickle=False)
        total[used] += counts
    name = f"{task.id}.counts.npy"
    array_files.save(job.work / name, total)
    heldout = [job.read_manifest("rows", part.id).statistics["heldout"] for part in task.parts]
    tokens, characters = (sum(one[key] for one in heldout) for key in ("tokens", "characters"))
    train, held = ([job.work / one.row_file(split) for one in task.parts] for split in SPLITS)
    special = special_ids(job.processor)
    left_out = (*special.special_ids(), special.unk)
    found = overlap.measure(held, train, left_out, tokens / max(characters, 1))
    job.write_manifest("count", task, files=job.describe(name), overlap=found)
    if found["share"] > overlap.LEAKED:
        logging.warning(
            "%s: training rows have %.0f%% of the held-out runs of %d tokens, such as %r: the loss "
            "of this language says little (docs/heldout_text.md)",
            task.id, 100 * found["share"], found["length"], job.processor.decode(found["example"]),
        )  # fmt: skip


def _log_tallies(job: Job, tasks: Sequence[SourceTask], parts: Sequence[Part]) -> None:
    for task in tasks:
        source = job.read_manifest("source", task.id)
        log_tally(task.name, *source.tally)
        for language, rules in source.taken.items():
            counts = ", ".join(f"{name} {one['lines']}" for name, one in rules.items())
            message = "%s, %s: pairs taken by corpus.clean_pairs: %s"
            logging.info(message, task.name, language, counts or "none")
    for language, of_parts in itertools.groupby(parts, key=lambda part: part.language):
        tallies = [job.read_manifest("scan", part.id).tally for part in of_parts]
        log_tally(language, *map(sum, zip(*tallies, strict=True)))


def _inputs(job: Job, found: plans.Found) -> plans.Inputs:
    digests: dict[Any, str] = {x: job.read_manifest("source", x.id).digest for x in found.tasks}
    for part in find_parts(job, found):
        of_part = job.read_manifest("scan", part.id).digests
        digests.update(zip(part.pieces, of_part, strict=True))
    return plans.describe_inputs(
        job.spec, found, lambda _, one: digests.get(one) or array_files.sha256(one)
    )


def finish(job: Job, found: plans.Found) -> PackedDataset:
    """Move a finished preparation to the dataset; ValueError if a language yields no sequences."""
    parts, pairs = find_parts(job, found), found.trained
    languages = plans.language_tasks(parts)
    tasks = (("source", found.tasks), ("rows", parts), ("count", languages), ("pairs", pairs))
    manifests = [job.read_manifest(kind, task.id) for kind, some in tasks for task in some]
    files = {name: record for one in manifests for name, record in one.files.items()}
    dataset = _dataset(job, found, languages)
    if job.spec.clean_pairs:
        taken = {task.name: job.read_manifest("source", task.id).taken for task in found.tasks}
        artifacts.write_json(job.folder / "clean_pairs.json", taken)
    for path in job.folder.glob("*.npy"):  # left by an abandoned preparation
        if path.name not in files:
            path.unlink()
    for name in files:
        # A killed run may have moved some already.
        if (job.work / name).exists():
            os.replace(job.work / name, job.folder / name)
    left_out = collections.Counter[str]()
    for task in pairs:
        came, kept, _ = job.read_manifest("pairs", task.id).tally
        left_out += {task.name: came - kept}
    record = {"files": files} | ({"left_out": left_out} if left_out else {})
    artifacts.write_json(job.folder / manifest.MANIFEST, record)
    manifest.read(job.folder, files)  # checks that all its files are there
    artifacts.write_json(job.folder / plans.INPUTS, _inputs(job, found))
    dataset.write_meta()
    return dataset


def _dataset(job: Job, found: plans.Found, languages: Sequence[LanguageTask]) -> PackedDataset:
    statistics: dict[str, dict[str, dict[str, int]]] = {}
    shards: dict[str, dict[str, list[int]]] = {}
    duplicates: dict[str, dict[str, int]] = {}
    overlaps: dict[str, Overlap] = {}
    shares: dict[str, str] = {}
    for task in languages:
        of_parts = [job.read_manifest("rows", part.id).statistics for part in task.parts]
        statistics[task.id] = {
            split: {key: sum(one[split][key] for one in of_parts) for key in of_parts[0][split]}
            for split in SPLITS
        }
        if not statistics[task.id]["train"]["rows"]:
            raise ValueError(f"language {task.id!r} has no training text left to tokenise")
        if len(of_parts) > 1:
            shards[task.id] = {split: [one[split]["rows"] for one in of_parts] for split in SPLITS}
        chosen = job.read_manifest("select", task.id)
        if chosen.duplicates["blocks"]:
            duplicates[task.id] = chosen.duplicates
        if fault := selection.Split(*chosen.split).fault(job.spec):
            shares[task.id] = fault
        overlaps[task.id] = job.read_manifest("count", task.id).overlap
    if shares and job.spec.heldout_by == sources.BY_DOCUMENT:
        logging.warning(
            "%d of %d languages hold out another share than corpus.heldout_fraction, such as %s: "
            "%s. Blank lines between shorter documents help; the report lists all languages",
            len(shares), len(languages), *next(iter(shares.items())),
        )  # fmt: skip
    return PackedDataset(
        folder=job.folder,
        vocab_size=job.processor.get_piece_size(),
        length=job.settings.length,
        tokenizer=job.tokenizer,
        special=special_ids(job.processor),
        statistics=statistics,
        parallel={task.name: task.languages for task in found.tasks},
        bitexts={task.name: task.languages for task in found.trained},
        pairs={
            name: [job.read_manifest("pairs", task.id).pairs for task in parts]
            for name, parts in itertools.groupby(found.trained, key=lambda task: task.name)
        },
        shards=shards,
        duplicates=duplicates,
        overlap=overlaps,
        shares=shares,
    )
