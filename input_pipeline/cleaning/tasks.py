"""Cleaning of the text files of a corpus, in tasks that leave a file each.

Rounds of tasks; a killed cleaning resumes with the unfinished tasks:

1. scan: count the lines of a part of a language that the rules for single lines keep.
2. choose: choose among the repeated lines of a language.
3. write: write the remaining lines of a part.

Without a rule that compares lines, only the third runs. Near copies take a second cleaning of the
remaining text, by passages. No result depends on workers or on the cut into parts.
"""

import collections
import contextlib
import dataclasses
import itertools
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline import array_files, corpus, sources, text_files
from input_pipeline import preparation_plan as plans
from input_pipeline.cleaning import rules
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.inspection import files, findings, tallies
from input_pipeline.inspection import language_identification as identification
from input_pipeline.preparation_plan import LanguageTask, Part
from input_pipeline.sources import CorpusSpec
from xlm.common import artifacts, executors, html_report, places, tables
from xlm.common.executors import Executor

MANIFEST = "cleaning.json"
_FORMAT = 1  # of the files that a killed cleaning leaves
_PART_BYTES = 128 << 20
_MOST_ROWS = 1 << 24  # of a language, compared at a time
# Languages that clean text confuses in a larger share of lines are not distinguished.
_MOST_CONFUSED = 0.002
_RULES = [field.name for field in dataclasses.fields(CleaningSettings)]


@dataclasses.dataclass(frozen=True)
class Job:
    """Folder of the tasks' files, rules, and the languages' scripts if a rule needs them."""

    work: pathlib.Path
    settings: CleaningSettings
    scripts: Mapping[str, int]

    @property
    def compares(self) -> bool:
        return any((self.settings.boilerplate, self.settings.repeated_lines, self.near))

    @property
    def near(self) -> bool:
        return self.settings.near_copies

    def path(self, kind: str, task: LanguageTask, number: int, suffix: str = "npy") -> pathlib.Path:
        of = task.parts[number] if kind == "scan" else task
        return self.work / f"{kind}-{task.id}-{of.fingerprint}-{number}.{suffix}"

    def cleaner(self, language: str, table: np.ndarray) -> rules.Cleaner:
        if not self.scripts:
            return rules.Cleaner(self.settings, table)
        model, own = None, 0
        if self.settings.other_language:
            model = identification.load(self.work / "identifier.npz")
            own = model.languages.index(language)
        return rules.Cleaner(self.settings, table, self.scripts[language], own, model)


def clean(
    spec: CorpusSpec, settings: CleaningSettings, work: pathlib.Path, out: pathlib.Path,
    executor: Executor, part_bytes: int = _PART_BYTES,
) -> dict[str, Any]:  # fmt: skip
    """Write the cleaned text, a manifest and a report to `out`; return the manifest's languages.

    `work` keeps files of tasks. Raise ValueError if there is no text, or a file is refused.
    """
    every = (dataclasses.replace(settings, near_copies=False),
             CleaningSettings(near_copies=settings.near_copies))  # fmt: skip
    cleanings, result = [one for one in every if one != CleaningSettings()], dict[str, Any]()
    for one, target in zip(cleanings, [work / "lines", out][-len(cleanings) :], strict=True):
        result = _clean(spec, one, work, target, executor, part_bytes, result)
        spec = CorpusSpec(root=str(target), text=("",))
    for language, one in result.items():
        took = ", ".join(f"{name} {of['bytes']:,}" for name, of in one["rules"].items())
        level = logging.INFO if one["kept_bytes"] else logging.WARNING
        message = "%s: %d bytes of text kept; taken: %s"
        logging.log(level, message, language, one["kept_bytes"], took or "nothing")
    manifest = {"clean": dataclasses.asdict(settings), "languages": result}
    artifacts.write_json(out / MANIFEST, manifest)
    html_report.write(out, _report(result))
    return result


def _clean(
    spec: CorpusSpec, settings: CleaningSettings, work: pathlib.Path, out: pathlib.Path,
    executor: Executor, part_bytes: int, before: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    found = sources.find_text(spec)
    corpus.check_found(spec, {one.language for one in found})
    pieces = [piece for one in found for piece in plans.cut_file(*one, part_bytes)]
    judges = settings.other_script or settings.other_language
    states = [piece.state for piece in pieces] if judges else []
    folder = work / artifacts.fingerprint(_FORMAT, dataclasses.asdict(settings), states)
    job = Job(folder, settings, _learn(found, folder) if judges else {})
    tasks = plans.language_tasks(plans.group(pieces, part_bytes))
    parts = [(task, i) for task in tasks for i in range(len(task.parts))]
    executor = plans.fitting(executor, sum(piece.text_bytes for piece in pieces))

    def run(function: Callable, jobs: Sequence[tuple[LanguageTask, int]], suffix: str) -> None:
        name = function.__name__

        def is_done(_: Job, task: LanguageTask, number: int) -> bool:
            return job.path(name, task, number, suffix).exists()

        left = [(job, *one) for one in jobs if not is_done(job, *one)]
        executors.complete(executor, function, left, is_done, name, job.work)

    if job.compares:
        run(scan, parts, "npy")
        run(choose, [(task, len(task.parts) - 1) for task in tasks], "npy")
    run(write, parts, "json")
    return _finish(job, tasks, before, out)


def _learn(found: Sequence[sources.TextFile], folder: pathlib.Path) -> dict[str, int]:
    """Learn the languages from samples, as xlm inspect does; return their scripts."""
    paths = collections.defaultdict(list)
    for one in found:
        paths[one.language].append(one.path)
    _, scripts, model = files.learn(paths)
    model.cuts[model.expected > _MOST_CONFUSED] = np.inf
    model.save(folder / "identifier.npz")
    return scripts


def _read(job: Job, part: Part, counts: rules.Counts) -> Iterator[str]:
    """Yield the marked lines of a part; refuse a piece of a file with too many bad lines."""
    most = job.settings.bad_lines
    skipping: Callable[[], Any] = text_files.skipping_bad_lines if most else contextlib.nullcontext
    for piece in part.pieces:
        path = places.path(piece.path)
        with skipping() as skipped:
            yield from text_files.read_marked(path, piece.start, piece.end)
        yield ""
        plans.check_unchanged([piece.state])
        for bad in (skipped or {}).values():
            if bad.bytes > most * piece.text_bytes:
                raise ValueError(
                    f"{path}: {bad.lines} lines, {bad.bytes} bytes of {piece.text_bytes}, are not "
                    f"text, more than clean.bad_lines={most:g} allows; first: {bad.examples[0]}"
                )
            counts["bad_lines"].take(bad.lines, bad.bytes, *bad.examples)


def scan(job: Job, task: LanguageTask, number: int) -> None:
    """Count copies and documents of each line of a part, or copies of its passages' bands."""
    cleaner = job.cleaner(task.id, np.zeros(0, rules.FATE))
    tally = tallies.Tally(1 << 62)
    for _, (rows, codes), fates in cleaner.blocks(_read(job, task.parts[number], cleaner.counts)):
        keys, owners, _ = rules.keys_of((rows, codes), fates, job.near)
        documents = np.cumsum(rows["is_first"])[owners]
        tally.add(tallies.line_rows(keys, rows["size"][owners], documents))
    array_files.save(job.path("scan", task, number), tally.rows())


def choose(job: Job, task: LanguageTask, _: int) -> None:
    """Write the fates of the lines that each part drops for their copies."""
    numbers = range(len(task.parts))
    rows = [np.load(job.path("scan", task, i), mmap_mode="r") for i in numbers]
    count = sum(map(len, rows)) // _MOST_ROWS + 1
    edges = np.array([(i << 64) // count - (1 << 63) for i in range(1, count)], np.int64)
    pieces = [np.split(one, np.searchsorted(one["digest"], edges)) for one in rows]
    fates = [_fates(some, job) for some in zip(*pieces, strict=True)]
    for i, of_part in zip(numbers, zip(*fates, strict=True), strict=True):
        array_files.save(job.path("choose", task, i), np.concatenate(of_part))


def _fates(rows: Sequence[np.ndarray], job: Job) -> list[np.ndarray]:
    """Return `rules.FATE` for the rows of each part of a language, in order."""
    part = np.repeat(np.arange(len(rows)), list(map(len, rows)))
    every = np.concatenate(rows)
    order = np.argsort(every["digest"], kind="stable")
    part, every = part[order], every[order]
    begins = np.flatnonzero(np.diff(every["digest"], prepend=every["digest"][:1] ^ 1))
    lengths = np.diff(begins, append=len(every))
    copies, kept = every["copies"].astype(np.int64), np.full(len(every), 1 << 62)
    if most := 1 if job.near else job.settings.repeated_lines:
        before = np.cumsum(copies) - copies
        kept = np.clip(most - before + np.repeat(before[begins], lengths), 0, None)
    if job.settings.boilerplate and len(every):
        documents = np.add.reduceat(every["documents"].astype(np.int64), begins)
        is_found = np.repeat(documents, lengths) >= job.settings.boilerplate
        kept[is_found & (every["size"] >= findings.SHORTEST_BOILERPLATE)] = -1
    result = np.zeros(len(every), rules.FATE)
    result["digest"], result["kept"] = every["digest"], kept
    return [result[(part == i) & (kept < copies)] for i in range(len(rows))]


def write(job: Job, task: LanguageTask, number: int) -> None:
    """Write the remaining lines of a part, then counts of the text that the rules took."""
    table = np.zeros(0, rules.FATE)
    if job.compares:
        table = np.load(job.path("choose", task, number), allow_pickle=False)
    path = job.path("write", task, number, "txt")
    cleaner = job.cleaner(task.id, table)
    blocks = cleaner.blocks(_read(job, task.parts[number], cleaner.counts))
    lines = itertools.chain.from_iterable(itertools.starmap(cleaner.kept, blocks))
    documents = (found for has_text, found in itertools.groupby(lines, bool) if has_text)
    with artifacts.atomic_path(path) as aside, aside.open("wb") as file:
        for i, document in enumerate(documents):
            file.write(b"\n" * (i > 0))
            file.writelines(f"{line}\n".encode() for line in document)
    counts = {name: vars(one) for name, one in cleaner.counts.items()}
    artifacts.write_json(path.with_suffix(".json"), counts)


def _finish(job: Job, tasks: Sequence[LanguageTask], before: Mapping, out: pathlib.Path) -> dict:
    """Name the written files; return counts of the taken text, added to those of `before`."""
    result = dict(before)  # it may have languages without any text left
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob("*.txt"):
        path.unlink()
    for task in tasks:
        written = [job.path("write", task, i, "txt") for i in range(len(task.parts))]
        counts: rules.Counts = collections.defaultdict(text_files.Taken)
        found = [artifacts.read_object(path.with_suffix(".json")) for path in written]
        for one in (before.get(task.id, {}).get("rules", {}), *found):
            for name, taken in one.items():
                counts[name].take(taken["lines"], taken["bytes"], *taken["examples"])
        kept, digests = [path for path in written if path.stat().st_size], {}
        for i, path in enumerate(kept):
            number = f"-{i:05d}-of-{len(kept):05d}" if len(kept) > 1 else ""
            digests[name := f"{task.id}{number}.txt"] = array_files.sha256(path)
            try:
                os.link(path, out / name)
            except OSError:  # on a file system without links
                shutil.copy2(path, out / name)
        size = sum(path.stat().st_size for path in kept)
        taken_of = {name: vars(counts[name]) for name in _RULES if name in counts}
        result[task.id] = {"kept_bytes": size, "rules": taken_of, "files": digests}
    return result


def _report(found: Mapping[str, Any]) -> str:
    rows, parts = [], []
    for language, one in found.items():
        taken = {name: one["rules"][name]["bytes"] for name in one["rules"]}
        rows.append({"language": tables.escaped(language), "bytes kept": one["kept_bytes"]} | taken)
        for name, of_rule in one["rules"].items():
            parts.append(f"## {tables.escaped(language)}: {name}, {of_rule['lines']:,} lines")
            parts.append("\n".join(f"- {tables.text_cell(one)}" for one in of_rule["examples"]))
    about = "Bytes kept, and taken by each rule. A rewritten line counts as a line of a rule."
    return tables.page("# What cleaning took", about, tables.markdown(rows, ","), *parts)
