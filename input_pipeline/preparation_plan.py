"""Inputs of a preparation: a plan of its tasks, and records that show later changes.

A language's text is cut into parts, each one task and one file of rows. The plan depends on the
names and sizes of files and on `store.shard_bytes`, not on workers. `inputs.json` has size,
modification time and digest of each input, so that a run rereads only changed files.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import msgspec

from input_pipeline import corpus, selection, sources, text_files
from input_pipeline.array_files import sha256, shard_names
from input_pipeline.exclusion import Exclusion
from input_pipeline.sources import CorpusSpec, ParallelSource
from xlm.common import artifacts, declarations, places
from xlm.common.declarations import Artefact, Count, Digest, Name
from xlm.common.executors import Executor, Workers

INPUTS = "inputs.json"
# While a process starts, in a second, another one handles about so much text.
_BYTES_A_PROCESS = 4 << 20

Inputs = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """File of text, or the documents that begin in its bytes `start` to `end` (all if None).

    `size` and `modified` are bytes and time (ns) of the file at planning. `origin` is that of its
    blocks, see `selection`.
    """

    language: str
    path: str
    size: int
    modified: int
    start: int = 0
    end: int | None = None
    origin: int = selection.TEXT

    @property
    def text_bytes(self) -> int:
        """Bytes of text, estimated if the file is compressed."""
        if self.end is not None:
            return self.end - self.start
        return text_files.text_bytes(pathlib.Path(self.path), self.size)

    @property
    def state(self) -> tuple[str, int, int]:
        return self.path, self.size, self.modified


@dataclasses.dataclass(frozen=True)
class Part:
    """Text of one task: consecutive pieces, part `number` of the language's `total` parts."""

    language: str
    number: int
    total: int
    pieces: tuple[Piece, ...]

    @property
    def id(self) -> str:
        return f"{self.language}-{self.number:05d}-of-{self.total:05d}"

    @property
    def fingerprint(self) -> str:
        return artifacts.fingerprint(dataclasses.asdict(self))

    def row_file(self, split: str) -> str:
        return shard_names(self.language, split, self.total)[self.number]

    @property
    def text_bytes(self) -> int:
        return sum(piece.text_bytes for piece in self.pieces)


@dataclasses.dataclass(frozen=True)
class SourceTask:
    """Parallel text: its number among the sources, name in the dataset, and state of its files.

    A source that is a part of a file makes a part of a set.
    """

    number: int
    name: str
    key: str
    languages: tuple[str, ...]
    files: tuple[tuple[str, int, int], ...]
    path: str
    part: int = 0
    num_parts: int = 1

    @property
    def id(self) -> str:
        return f"{self.number:05d}"

    @property
    def fingerprint(self) -> str:
        return artifacts.fingerprint(dataclasses.asdict(self))

    def column(self, language: str, side: int) -> str:
        """Return the name of a column's text file, for one side of `selection`."""
        split = {selection.TRAIN: "train", selection.HELDOUT: "heldout"}[side]
        return f"source-{self.id}.{language}.{split}.jsonl"

    def file(self, kind: str, language: str) -> str:
        """Return the name of a column's file in the dataset."""
        return shard_names(f"{self.name}.{language}", kind, self.num_parts)[self.part]

    @property
    def text_bytes(self) -> int:
        sizes = [text_files.text_bytes(pathlib.Path(path), size) for path, size, _ in self.files]
        return sum(sizes) // self.num_parts

    def source(self, spec: CorpusSpec) -> ParallelSource:
        """Find its source; raise ValueError if a file has changed or appeared since planning."""
        check_unchanged(self.files)
        path = places.path(self.path)
        # All sources teach the languages that `clean_pairs` compares.
        for source in sources.find_parallel(spec, None if spec.clean_pairs else (self.key, path)):
            is_same = (source.key, source.part) == (self.key, self.part)
            if is_same and states(source.files) == self.files:
                return source
        raise _changed(path)


@dataclasses.dataclass(frozen=True)
class LanguageTask:
    """All parts of a language."""

    parts: tuple[Part, ...]

    @property
    def id(self) -> str:
        return self.parts[0].language

    @property
    def fingerprint(self) -> str:
        return artifacts.fingerprint([part.fingerprint for part in self.parts])

    @property
    def text_bytes(self) -> int:
        return sum(part.text_bytes for part in self.parts)


@dataclasses.dataclass(frozen=True)
class Found:
    """Inputs of a preparation: sources of parallel text, and pieces of monolingual text."""

    tasks: tuple[SourceTask, ...]
    pieces: tuple[Piece, ...]

    @property
    def trained(self) -> list[SourceTask]:
        """Sources with pairs to train on."""
        return [task for task in self.tasks if task.key == "parallel"]

    @property
    def text_bytes(self) -> int:
        parallel = sum(task.text_bytes for task in self.tasks)
        return parallel + sum(piece.text_bytes for piece in self.pieces)


def fitting(executor: Executor, text_bytes: int) -> Executor:
    """Return the executor, or this process in place of local workers for little text."""
    is_little = executor.is_local and text_bytes < _BYTES_A_PROCESS
    return Workers(1, "") if is_little else executor


def states(paths: Iterable[pathlib.Path]) -> tuple[tuple[str, int, int], ...]:
    """Return path, size and time of the last change (ns) of files."""
    return tuple((str(path), *places.state(path)) for path in paths)


def check_unchanged(files: Iterable[tuple[str, int, int]]) -> None:
    """Raise ValueError if one of `files`, see `states`, has changed since it was planned."""
    for path, *state in files:
        if state != list(places.state(places.path(path))):
            raise _changed(path)


def _changed(path: str | pathlib.Path) -> ValueError:
    return ValueError(
        f"{path}: has changed while it was read; run the same command again when nothing writes to "
        "it"
    )


def cut_file(
    language: str, path: pathlib.Path, shard_bytes: int, origin: int = selection.TEXT
) -> Iterator[Piece]:
    """Yield a file as one piece, or a large plain one as ranges of at most `shard_bytes`."""
    size, modified = places.state(path)
    whole = Piece(language, str(path), size, modified, origin=origin)
    file_type = text_files.file_format(path)
    count = -(-size // shard_bytes)
    if count < 2 or (file_type and file_type[2]):
        yield whole
        return
    bounds = [i * size // count for i in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield dataclasses.replace(whole, start=start, end=end)


def group(pieces: Iterable[Piece], shard_bytes: int) -> list[Part]:
    """Group consecutive pieces of a language into parts of at most `shard_bytes`, if possible."""
    by_language: dict[str, list[list[Piece]]] = {}
    sizes: dict[str, int] = {}
    for piece in pieces:
        groups = by_language.setdefault(piece.language, [[]])
        size = sizes.get(piece.language, 0) + piece.text_bytes
        if groups[-1] and size > shard_bytes:
            groups.append([])
            size = piece.text_bytes
        groups[-1].append(piece)
        sizes[piece.language] = size
    return [
        Part(language, number, len(groups), tuple(found))
        for language, groups in sorted(by_language.items())
        for number, found in enumerate(groups)
    ]


def find_inputs(spec: CorpusSpec, shard_bytes: int) -> Found:
    """Find sources of parallel text, reading only headers, and pieces of monolingual text."""
    tasks: list[SourceTask] = []
    taken: set[str] = set()
    for number, source in enumerate(sources.find_parallel(spec)):
        names = itertools.chain([source.name], (f"{source.name}-{i}" for i in itertools.count(2)))
        if not source.part:  # others come next, and have the name of the first
            taken.add(name := next(one for one in names if one not in taken))
        one = source.files[0]
        path = one if ".tsv" in one.suffixes else one.parent
        tasks.append(SourceTask(
            number, name, source.key, source.languages, states(source.files), str(path),
            source.part, source.num_parts,
        ))  # fmt: skip
    pieces = [
        piece
        for file in sources.find_text(spec)
        for piece in cut_file(file.language, file.path, shard_bytes)
    ]
    return Found(tuple(tasks), tuple(pieces))


def language_tasks(parts: Sequence[Part]) -> list[LanguageTask]:
    grouped = itertools.groupby(parts, key=lambda part: part.language)
    return [LanguageTask(tuple(found)) for _, found in grouped]


class _File(TypedDict):
    path: str
    size: Count
    modified: int
    digest: Digest


class _Text(_File):
    language: Name
    range: tuple[Count, Count | None]


class _Source(TypedDict):
    name: Name
    languages: list[Name]
    files: list[tuple[str, Count, int]]
    part: NotRequired[tuple[Count, Count]]
    digest: Digest


class _Inputs(Artefact, frozen=True):
    text: list[_Text]
    parallel: list[_Source]
    exclude: list[_File]


def read_inputs(path: pathlib.Path) -> Inputs:
    remedy = f"copy it again, or remove {path.parent / 'meta.json'} and run prepare_data.py again"
    return msgspec.structs.asdict(declarations.read(path, _Inputs, remedy=remedy))


def describe_inputs(spec: CorpusSpec, found: Found, digest: Callable[[Any, Any], str]) -> Inputs:
    """Describe pieces of text, parallel text and test sets.

    `digest` computes an input's digest from its other fields and its piece, task or path.
    """
    fields: dict[str, list[tuple[dict[str, Any], Any]]] = {
        "text": [
            ({"language": one.language, **_file(*one.state), "range": [one.start, one.end]}, one)
            for one in found.pieces
        ],
        "parallel": [
            ({"name": one.name, "languages": list(one.languages),
              "files": list(map(list, one.files)),
              **({"part": [one.part, one.num_parts]} if one.num_parts > 1 else {})}, one)
            for one in found.tasks
        ],
        "exclude": [
            (_file(str(path), *places.state(path)), path) for path in sources.find_excluded(spec)
        ],
    }  # fmt: skip
    return {
        kind: [{**key, "digest": digest(key, one)} for key, one in inputs]
        for kind, inputs in fields.items()
    }


def _file(path: str, size: int, modified: int) -> dict[str, Any]:
    return {"path": path, "size": size, "modified": modified}


def text_digest(inputs: Inputs) -> str:
    """Return the SHA-256 of all text, in hexadecimal, whatever the file names."""
    content = [
        [[one["language"], one["digest"]] for one in inputs["text"]],
        [[one["name"], one["languages"], one["digest"]] for one in inputs["parallel"]],
        [one["digest"] for one in inputs["exclude"]],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_again(inputs: Inputs, spec: CorpusSpec, shard_bytes: int) -> Inputs:
    """Describe the present inputs; reread those that differ from `inputs`."""
    known = {_key(one): one["digest"] for kind in inputs.values() for one in kind}
    parallel = sources.find_parallel(spec)

    def digest(key: Mapping[str, Any], one: Any) -> str:
        if (found := known.get(_key(key))) is not None:
            return found
        logging.info("%s has changed; rereading it", key.get("path", key.get("name")))
        if isinstance(one, Piece):
            hasher = hashlib.sha256()
            for block in blocks_of(spec, one, Exclusion([])):
                hasher.update(block.digest)
            return hasher.hexdigest()
        return source_digest(parallel[one.number]) if isinstance(one, SourceTask) else sha256(one)

    return describe_inputs(spec, find_inputs(spec, shard_bytes), digest)


def _key(one: Mapping[str, Any]) -> str:
    return artifacts.fingerprint({key: value for key, value in one.items() if key != "digest"})


def blocks_of(spec: CorpusSpec, piece: Piece, exclusion: Exclusion) -> Iterator[corpus.Block]:
    """Yield the blocks of a piece, also those that exclusion leaves empty."""
    marked = text_files.read_marked(places.path(piece.path), piece.start, piece.end)
    return corpus.read_blocks(marked, spec, exclusion, piece.origin)


def source_digest(source: ParallelSource) -> str:
    """Return the SHA-256 of the rows of a source of parallel text."""
    hasher = hashlib.sha256()
    for block in source.blocks():
        for row in block:
            hasher.update("\t".join([*row, "\n"]).encode())
        hasher.update(b"\n")
    return hasher.hexdigest()
