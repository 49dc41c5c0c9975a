"""The packed dataset: packed sequences of token ids on disk, read on demand.

A folder has `meta.json`, written last, and `manifest.json` with the size and SHA-256 of every file.
The sequences of a language and split, [sequences, L] uint16 or uint32, are one file
`<lang>.<split>.npy` or shards `<lang>.<split>-00000-of-00012.npy`. `<lang>.counts.npy`, [V] int64,
counts the tokens of the training text. Parallel text for evaluation has one
`<set>.<lang>.parallel.npy`, [sentences, L], per column. Parallel text for training is ragged.
`<set>.<lang>.bitext.npy` has the concatenated ids of a column, `<set>.<lang>.ends.npy`, [sentences]
uint32 or uint64, the end of each sentence. `pair_rows` assigns pairs to rows. A large set has
parts, whose files are numbered like shards.

A packed sequence is one or more segments `<s> tokens </s>`, then padding. A segment is a document,
or the part of it that fits. The tokens determine the segments.
"""

import dataclasses
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np

from input_pipeline import manifest
from input_pipeline.array_files import ArrayFile, ShardedRows, shard_names
from input_pipeline.manifest import id_dtype
from input_pipeline.overlap import Overlap
from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Count, Digest, Name

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, Split] = ("train", "heldout")
# Languages a < b, sentence pairs and rows: a language pair in a part of a set.
PairCounts = tuple[Name, Name, Count, Count]
META = "meta.json"
# The end of a sequence with room for fewer tokens of a document is padded.
_MIN_SEGMENT_TOKENS = 8
_NEAR = 64  # most sentences between two that one read covers


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    bos: Count
    pad: Count
    eos: Count
    unk: Count
    mask: Count

    def special_ids(self) -> tuple[int, ...]:
        """Return the ids of `<s>`, padding, `</s>` and the mask. `<unk>` stands for text."""
        return (self.bos, self.pad, self.eos, self.mask)


class Statistics(TypedDict):
    rows: Count
    tokens: Count
    unknown: Count
    characters: Count


class Splits(TypedDict):
    train: Statistics
    heldout: Statistics


class Duplicates(TypedDict):
    blocks: Count
    bytes: Count


class Meta(Artefact, frozen=True):
    """Schema of `meta.json`; the fields are those of `PackedDataset`."""

    vocab_size: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    length: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    tokenizer: Digest
    special: SpecialIds
    statistics: dict[Name, Splits]
    parallel: dict[Name, list[Name]]
    bitexts: dict[Name, list[Name]] = msgspec.field(default_factory=dict)
    pairs: dict[Name, list[list[PairCounts]]] = msgspec.field(default_factory=dict)
    shards: dict[Name, dict[Split, list[Count]]] = msgspec.field(default_factory=dict)
    duplicates: dict[Name, Duplicates] = msgspec.field(default_factory=dict)
    overlap: dict[Name, Overlap] = msgspec.field(default_factory=dict)
    shares: dict[Name, str] = msgspec.field(default_factory=dict)


class RowPacker:
    """Packer of documents of token ids into sequences, without gaps between documents.

    A document that does not fit continues in the next sequence as a new segment. Padding occurs
    only in the last sequence, and at ends too short for a segment.
    """

    def __init__(self, length: int, special: SpecialIds, dtype: np.dtype):
        self._length, self._special, self._dtype = length, special, dtype
        self._rows: list[np.ndarray] = []
        self._used = length  # tokens used in the last sequence

    def add(self, document: np.ndarray) -> None:
        """Pack a document, [n] token ids without specials."""
        start = 0
        while start < len(document):
            wanted = min(len(document) - start, _MIN_SEGMENT_TOKENS)
            if self._length - self._used < wanted + 2:
                self._rows.append(np.full(self._length, self._special.pad, self._dtype))
                self._used = 0
            tokens = document[start : start + self._length - self._used - 2]
            end = self._used + len(tokens) + 1
            row = self._rows[-1]
            row[self._used] = self._special.bos
            row[self._used + 1 : end] = tokens
            row[end] = self._special.eos
            start, self._used = start + len(tokens), end + 1

    def take(self, *, is_last: bool = False) -> np.ndarray:
        """Remove and return the finished sequences, [sequences, L]; with `is_last` all."""
        count = len(self._rows) if is_last else max(len(self._rows) - 1, 0)
        found, self._rows = self._rows[:count], self._rows[count:]
        return np.stack(found) if found else np.zeros((0, self._length), self._dtype)


def pad_sentences(
    sentences: Sequence[np.ndarray], length: int, special: SpecialIds, dtype: np.dtype
) -> np.ndarray:
    """Pad sentences `<s> tokens </s>` to [sentences, length]; an empty one is all padding."""
    rows = np.full((len(sentences), length), special.pad, dtype)
    for row, tokens in zip(rows, sentences, strict=True):
        if len(tokens):
            tokens = tokens[: length - 2]
            row[0], row[len(tokens) + 1] = special.bos, special.eos
            row[1 : len(tokens) + 1] = tokens
    return rows


def tokenizer_hash(model: bytes) -> str:
    """Return the SHA-256 of a tokenizer's serialised model, which identifies it."""
    return hashlib.sha256(model).hexdigest()


@dataclasses.dataclass(frozen=True)
class TokenizedSentences:
    """Ragged array of sentences: files of their ids, [n] without specials, and of their ends."""

    ids: ArrayFile
    ends: ArrayFile

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sentence, [sentences] int64; 0 for a missing one."""
        return np.diff(self.bounds(0, len(self.ends)))

    def bounds(self, first: int, stop: int) -> np.ndarray:
        """Return the beginnings of sentences [first, stop), and the last end, [n + 1] int64."""
        found = self.ends.read(max(first - 1, 0), stop).astype(np.int64)
        return found if first else np.append(0, found)

    def gather(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Read sentences [n]: return ids, and each one's begin in them and length, [n] int64.

        One read covers near sentences. Raise ValueError if the files are damaged.
        """
        order = np.argsort(numbers, kind="stable")
        runs = np.split(order, np.flatnonzero(np.diff(numbers[order]) > _NEAR) + 1)
        begins, lengths, parts, size = np.empty_like(numbers), np.empty_like(numbers), [], 0
        for run in runs:
            first = int(numbers[run[0]])
            bounds = self.bounds(first, int(numbers[run[-1]]) + 1)
            place = numbers[run] - first
            begins[run] = size + bounds[place] - bounds[0]
            lengths[run] = bounds[place + 1] - bounds[place]
            if np.diff(bounds).min() < 0 or bounds[-1] > len(self.ids):
                raise self.ends.contradiction("must ascend to the tokens of its column")
            parts.append(self.ids[int(bounds[0]) : int(bounds[-1])])
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts), begins, lengths


def read_column(
    folder: pathlib.Path, name: str, language: str, part: int = 0, num_parts: int = 1,
    vocab_size: int | None = None,
) -> TokenizedSentences:  # fmt: skip
    """Open a column of a part of a set; raise ValueError if its files are missing or contradict."""
    ids, ends = (
        folder / shard_names(f"{name}.{language}", kind, num_parts)[part]
        for kind in ("bitext", "ends")
    )
    found = TokenizedSentences(ArrayFile(ids, (None,), vocab_size), ArrayFile(ends, (None,)))
    if len(found.ids) != (
        count := int(found.ends.entry(len(found.ends) - 1)) if len(found.ends) else 0
    ):
        raise found.ends.contradiction(
            f"must ascend to {len(found.ids)}, the tokens of the column, and ends at {count}"
        )
    return found


def pair_paths(
    folder: pathlib.Path, name: str, part: int, num_parts: int
) -> tuple[pathlib.Path, pathlib.Path]:
    """Return the files of a part of a set: sentence numbers by rows, and ends of rows."""
    of_pairs, of_rows = (shard_names(name, kind, num_parts)[part] for kind in ("pairs", "rows"))
    return folder / of_pairs, folder / of_rows


@dataclasses.dataclass(frozen=True, eq=False)
class PackedDataset:
    """A packed dataset opened for reading, compared by identity.

    Attributes:
      vocab_size, length: V, number of ids of the tokenizer, and L, tokens per sequence.
      statistics: `rows`, `tokens`, `unknown` tokens and `characters`, by language and split.
      parallel, bitexts: languages of each set of parallel text, for evaluation and for training.
      pairs: counts of the language pairs of each part of a set in `bitexts`, see `pair_rows`.
      shards: sequences of each shard, by language and split; none for one file per split.
      duplicates: `blocks` left out as repetitions, and their `bytes`, by language.
      overlap: held-out n-grams that training rows have, by language.
      shares: languages whose held-out share differs from the wanted one, and why.
    """

    folder: pathlib.Path
    vocab_size: int
    length: int
    tokenizer: str
    special: SpecialIds
    statistics: Mapping[str, Mapping[str, Mapping[str, int]]]
    parallel: Mapping[str, Sequence[str]]
    bitexts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    pairs: Mapping[str, Sequence[Sequence[PairCounts]]] = dataclasses.field(default_factory=dict)
    shards: Mapping[str, Mapping[str, Sequence[int]]] = dataclasses.field(default_factory=dict)
    duplicates: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    overlap: Mapping[str, Overlap] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, folder: pathlib.Path) -> "PackedDataset":
        """Open a packed dataset; raise ValueError unless `folder` holds a finished, valid one."""
        if not (folder / META).exists():
            raise ValueError(
                f"{folder} holds no finished packed dataset; run prepare_data.py with the same "
                "--config and --workdir first"
            )
        meta = declarations.read(folder / META, Meta, remedy=manifest.remedy(folder))
        dataset = cls(folder, **msgspec.structs.asdict(meta))
        for fault in dataset._faults():
            raise ValueError(f"{folder / META}: {fault}; {manifest.remedy(folder)}")
        if (folder / manifest.MANIFEST).exists():  # not in a dataset of an older version
            manifest.check_sample(folder, dataset._file_names(), dataset.vocab_size)
        return dataset

    def _faults(self) -> Iterator[str]:
        for language, splits in self.statistics.items():
            if not splits["train"]["rows"]:
                yield f"statistics.{language}.train.rows is 0, must be at least 1"
            for split, counts in self.shards.get(language, {}).items():
                if sum(counts) != (rows := splits[split]["rows"]):
                    yield f"shards.{language}.{split} have {sum(counts)} rows, must have {rows}"
        if (largest := max(dataclasses.astuple(self.special))) >= self.vocab_size:
            yield f"special has the id {largest}, must be below vocab_size, {self.vocab_size}"

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(sorted(self.statistics))

    def rows(self, language: str, split: str) -> ShardedRows:
        """Return [sequences, L] ids of a language's split, read from disk.

        Raise ValueError if a file is missing or damaged. Shards are checked on their first read.
        """
        counts = self.shards.get(language, {}).get(split, ())
        if len(counts) > 1:
            names = shard_names(language, split, len(counts))
            paths = [self.folder / name for name in names]
            dtype = id_dtype(self.vocab_size)
            return ShardedRows(paths, counts, (self.length,), dtype, self.vocab_size)
        count = self.statistics.get(language, {}).get(split, {}).get("rows")
        path = self.folder / f"{language}.{split}.npy"
        return ArrayFile(path, (count, self.length), self.vocab_size)

    def token_counts(self, language: str) -> np.ndarray:
        """Return [V] int64, the occurrences of each piece in a language's training text."""
        return ArrayFile(self.folder / f"{language}.counts.npy", (self.vocab_size,))[:]

    def parallel_rows(self, name: str, language: str) -> ShardedRows:
        """Return [sentences, L] token ids of one column of a parallel set."""
        names = shard_names(f"{name}.{language}", "parallel", len(self.pairs.get(name, ((),))))
        paths = [self.folder / one for one in names]
        parts = [ArrayFile(path, (None, None), self.vocab_size) for path in paths]
        if len(parts) == 1:
            return parts[0]
        return ShardedRows(
            paths, [*map(len, parts)], parts[0].shape[1:], parts[0].dtype, self.vocab_size
        )

    def bitext(self, name: str, language: str, part: int = 0) -> TokenizedSentences:
        """Return a column of a part of parallel text to train on."""
        if (key := (name, language, part)) not in self._files:
            found = read_column(self.folder, *key, len(self.pairs[name]), self.vocab_size)
            self._files[key] = found
        return self._files[key]

    def pair_files(self, name: str, part: int) -> tuple[ArrayFile, ArrayFile]:
        """Return sentence numbers by rows, and ends of rows, of a part of a set."""
        if (key := (name, part)) not in self._files:
            paths = pair_paths(self.folder, name, part, len(self.pairs[name]))
            self._files[key] = tuple(ArrayFile(path, (None,)) for path in paths)
        return self._files[key]

    @functools.cached_property
    def _files(self) -> dict[tuple[str | int, ...], Any]:
        return {}  # open files of bitext

    def check_tokenizer(self, model: bytes, path: pathlib.Path) -> None:
        """Raise ValueError unless the dataset was made with the tokenizer `model` from `path`."""
        found = tokenizer_hash(model)
        if found != self.tokenizer:
            raise ValueError(
                f"{self.folder} was made with tokenizer {self.tokenizer[:12]}, but {path} is "
                f"tokenizer {found[:12]}; run prepare_data.py into a new folder, or use the first"
            )

    def verify(self) -> int:
        """Compare all files with the manifest, see `manifest.verify`; return their number."""
        return manifest.verify(self.folder, self._file_names())

    def _file_names(self) -> set[str]:
        """Return the names of the files that meta.json implies."""
        names = {f"{language}.counts.npy" for language in self.languages}
        for language, split in itertools.product(self.languages, SPLITS):
            counts = self.shards.get(language, {}).get(split, ())
            names.update(shard_names(language, split, max(len(counts), 1)))
        stems = {"parallel": self.parallel, "bitext": self.bitexts, "ends": self.bitexts}
        for kind, sets in stems.items():
            for name, languages in sets.items():
                count = len(self.pairs.get(name, ((),)))
                for language in languages:
                    names.update(shard_names(f"{name}.{language}", kind, count))
        for (name, parts), kind in itertools.product(self.pairs.items(), ("pairs", "rows")):
            names.update(shard_names(name, kind, len(parts)))
        return names

    def write_meta(self) -> None:
        """Write `meta.json`, last: it marks the dataset as complete."""
        meta = dataclasses.asdict(self)
        del meta["folder"]
        artifacts.write_json(self.folder / META, meta)
