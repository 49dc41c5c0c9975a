"""Records of the inputs of a packed dataset, to tell later whether they have changed.

`inputs.json` has size, modification time and digest of each. Only changed files are read again.
"""

import hashlib
import json
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from input_pipeline import corpus, sources, text_files
from input_pipeline import preparation_plan as plans
from input_pipeline.array_files import sha256
from input_pipeline.exclusion import Exclusion
from input_pipeline.preparation_plan import Piece, SourceTask
from input_pipeline.sources import CorpusSpec, ParallelSource
from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Count, Digest, Name

INPUTS = "inputs.json"

Inputs = Mapping[str, Sequence[Mapping[str, Any]]]


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
    digest: Digest


class _Inputs(Artefact, frozen=True):
    text: list[_Text]
    parallel: list[_Source]
    exclude: list[_File]


def read(path: pathlib.Path) -> Inputs:
    remedy = f"copy it again, or remove {path.parent / 'meta.json'} and run prepare_data.py again"
    return msgspec.structs.asdict(declarations.read(path, _Inputs, remedy=remedy))


def describe(spec: CorpusSpec, found: plans.Found, digest: Callable[[Any, Any], str]) -> Inputs:
    """Describe pieces of text, parallel text and test sets.

    `digest` returns that of an input from its other fields and its piece, task or path.
    """
    fields: dict[str, list[tuple[dict[str, Any], Any]]] = {
        "text": [
            ({"language": one.language, **_file(*one.state), "range": [one.start, one.end]}, one)
            for one in found.pieces
        ],
        "parallel": [
            ({"name": one.name, "languages": list(one.languages),
              "files": list(map(list, one.files))}, one)
            for one in found.tasks
        ],
        "exclude": [
            (_file(str(path), *plans.stat(path)), path) for path in sources.find_excluded(spec)
        ],
    }  # fmt: skip
    return {
        kind: [{**key, "digest": digest(key, one)} for key, one in inputs]
        for kind, inputs in fields.items()
    }


def _file(path: str, size: int, modified: int) -> dict[str, Any]:
    return {"path": path, "size": size, "modified": modified}


def text_digest(inputs: Inputs) -> str:
    """Return the SHA-256 of all text, in hexadecimal; it does not depend on file names."""
    content = [
        [[one["language"], one["digest"]] for one in inputs["text"]],
        [[one["name"], one["languages"], one["digest"]] for one in inputs["parallel"]],
        [one["digest"] for one in inputs["exclude"]],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_again(inputs: Inputs, spec: CorpusSpec, shard_bytes: int) -> Inputs:
    """Describe the inputs as they are now, rereading those that differ from `inputs`."""
    known = {_key(one): one["digest"] for kind in inputs.values() for one in kind}
    parallel = sources.find_parallel(spec)

    def digest(key: Mapping[str, Any], one: Any) -> str:
        if (found := known.get(_key(key))) is not None:
            return found
        logging.info("%s has changed since; reading it", key.get("path", key.get("name")))
        if isinstance(one, Piece):
            return piece_digest(spec, one)
        return source_digest(parallel[one.number]) if isinstance(one, SourceTask) else sha256(one)

    return describe(spec, plans.find_inputs(spec, shard_bytes), digest)


def _key(one: Mapping[str, Any]) -> str:
    return artifacts.fingerprint({key: value for key, value in one.items() if key != "digest"})


def blocks(spec: CorpusSpec, piece: Piece, exclusion: Exclusion) -> Iterator[corpus.Block]:
    """Yield the blocks of a piece, including those that exclusion leaves empty."""
    marked = text_files.read_marked(pathlib.Path(piece.path), piece.start, piece.end)
    return corpus.read_blocks(marked, spec, exclusion, piece.origin)


def piece_digest(spec: CorpusSpec, piece: Piece) -> str:
    """Return the SHA-256 of the digests of a piece's blocks, before exclusion."""
    hasher = hashlib.sha256()
    for block in blocks(spec, piece, Exclusion([])):
        hasher.update(block.digest)
    return hasher.hexdigest()


def source_digest(source: ParallelSource) -> str:
    """Return the SHA-256 of the rows of a source of parallel text."""
    hasher = hashlib.sha256()
    for block in source.blocks():
        for row in block:
            hasher.update("\t".join([*row, "\n"]).encode())
        hasher.update(b"\n")
    return hasher.hexdigest()
