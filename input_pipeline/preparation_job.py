"""Settings of a preparation, and the manifests of its tasks."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import sentencepiece as spm

from input_pipeline import array_files, corpus, manifest, sources
from input_pipeline import preparation_plan as plans
from input_pipeline.exclusion import Exclusion
from input_pipeline.manifest import FileName, FileRecord
from input_pipeline.overlap import Overlap
from input_pipeline.packed_dataset import Duplicates, PairCounts, Splits
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Count, Digest

WORK = "work"
HELDOUT_TEXT = "heldout-text.npy"  # hashes of its sentences
HELDOUT_ROWS = "heldout-rows.npy"  # hashes of held-out parallel text, by "document"


@dataclasses.dataclass(frozen=True)
class Job:
    """Settings of all tasks, picklable; `tokenizer` is the hash of `work/spm.model`."""

    folder: pathlib.Path
    spec: CorpusSpec
    settings: PackedDatasetSettings
    tokenizer: str

    @property
    def work(self) -> pathlib.Path:
        return self.folder / WORK

    @property
    def processor(self) -> spm.SentencePieceProcessor:
        return _processor(self.work / "spm.model", self.tokenizer)

    @property
    def exclusion(self) -> Exclusion:
        if (key := self.fingerprint) not in _EXCLUSIONS:
            _EXCLUSIONS.clear()
            path = self.work / HELDOUT_ROWS
            held = np.load(path, allow_pickle=False) if path.exists() else None
            _EXCLUSIONS[key] = corpus.exclusion_of(self.spec, held)
        return _EXCLUSIONS[key]

    @functools.cached_property
    def fingerprint(self) -> str:
        """Fingerprint of `provenance`, computed once since that reads all headers."""
        return artifacts.fingerprint(self.provenance)

    @property
    def provenance(self) -> dict[str, Any]:
        """Settings and states of files on which every task's results depend."""
        spec = {**dataclasses.asdict(self.spec), "language_codes": dict(self.spec.language_codes)}
        settings = dataclasses.asdict(self.settings)
        del settings["num_workers"]
        excluded = list(sources.find_excluded(self.spec))
        if self.spec.heldout_by == sources.BY_DOCUMENT:
            excluded += (path for one in sources.find_parallel(self.spec) for path in one.files)
        return {
            "corpus": spec,
            "store": settings,
            "tokenizer": self.tokenizer,
            "exclude": plans.states(excluded),
        }

    def manifest_path(self, kind: str, task_id: str) -> pathlib.Path:
        return self.work / f"{kind}-{task_id}.json"

    def made_from(self, kind: str, task: Any) -> str:
        """Return the fingerprint of all inputs of a task."""
        if kind == "rows":
            sides = self.read_manifest("select", task.language).sides[task.number]
            return artifacts.fingerprint([task.fingerprint, sides])
        if kind == "count":
            return artifacts.fingerprint([self.made_from("rows", part) for part in task.parts])
        if kind == "pairs":
            held = array_files.sha256(self.work / HELDOUT_TEXT)
            return artifacts.fingerprint([task.fingerprint, held])
        return task.fingerprint

    def unfinished(self, kind: str, tasks: Sequence[Any]) -> list[Any]:
        """Return the tasks without a manifest of their present inputs, the largest first."""

        def is_done(task: Any) -> bool:
            if not self.manifest_path(kind, task.id).exists():
                return False
            return self.read_manifest(kind, task.id).made_from == self.made_from(kind, task)

        return sorted(itertools.filterfalse(is_done, tasks), key=lambda task: -task.text_bytes)

    def read_manifest(self, kind: str, task_id: str) -> Any:
        path = self.manifest_path(kind, task_id)
        remedy = f"remove {path} and run the same command again"
        return declarations.read(path, _MANIFESTS[kind], remedy=remedy)

    def write_manifest(self, kind: str, task: Any, **found: Any) -> None:
        made_from = self.made_from(kind, task)
        artifacts.write_json(self.manifest_path(kind, task.id), {"made_from": made_from, **found})

    def describe(self, *names: str) -> dict[str, FileRecord]:
        return {name: manifest.describe(self.work / name) for name in names}


def _task_manifest(**fields: Any) -> type[msgspec.Struct]:
    named = [("made_from", str), *fields.items()]
    return msgspec.defstruct("TaskManifest", named, bases=(Artefact,), frozen=True)


_EXCLUSIONS: dict[str, Exclusion] = {}  # at most one, by `Job.provenance`
_Tally = tuple[Count, Count, Count]
_Files = dict[FileName, FileRecord]
_MANIFESTS = {  # by kind
    "held": _task_manifest(),
    "source": _task_manifest(digest=Digest, tally=_Tally, files=_Files, taken=dict[str, Any]),
    "scan": _task_manifest(digests=list[Digest], tally=_Tally),
    "select": _task_manifest(
        sides=list[Digest],
        blocks=Count,
        train=Count,
        heldout=Count,
        duplicates=Duplicates,
        split=tuple[Count, Count, Count, Count],
    ),
    "rows": _task_manifest(statistics=Splits, files=_Files),
    "count": _task_manifest(files=_Files, overlap=Overlap),
    "pairs": _task_manifest(files=_Files, tally=_Tally, pairs=list[PairCounts]),
}


@functools.lru_cache(maxsize=1)
def _processor(path: pathlib.Path, _: str) -> spm.SentencePieceProcessor:
    return spm.SentencePieceProcessor(model_file=str(path))
