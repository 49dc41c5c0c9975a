"""The packed dataset: packed sequences of token ids on disk, read on demand.

A folder with `meta.json`, written last, and `manifest.json`, the size and SHA-256 of every file.
The sequences of a language and split, [sequences, L] uint16 or uint32, are one file
`<lang>.<split>.npy` or shards `<lang>.<split>-00000-of-00012.npy`. `<lang>.counts.npy`, [V] int64,
counts the tokens of the training text. Parallel text for evaluation has one
`<set>.<lang>.parallel.npy`, [sentences, L], per column. Parallel text for training is ragged:
`<set>.<lang>.bitext.npy` has the concatenated ids of a column, `<set>.<lang>.ends.npy`, [sentences]
int64, the end of each sentence.

A packed sequence is one or more segments `<s> tokens </s>`, then padding. A segment is a document,
or the part of it that fits. The tokens alone determine the segments.
"""

import dataclasses
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypedDict

import msgspec
import numpy as np

from input_pipeline import manifest
from input_pipeline.array_files import ArrayFile, ShardedRows, load_array, shard_names
from input_pipeline.manifest import id_dtype
from input_pipeline.overlap import Overlap
from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Count, Digest, Name

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, Split] = ("train", "heldout")
META = "meta.json"
# No document starts at the end of a sequence with room for fewer tokens; the sequence is padded.
_MIN_SEGMENT_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    bos: Count
    pad: Count
    eos: Count
    unk: Count
    mask: Count

    def special_ids(self) -> tuple[int, ...]:
        """Return the ids of `<s>`, padding, `</s>` and the mask; `<unk>` stands for text."""
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
    shards: dict[Name, dict[Split, list[Count]]] = msgspec.field(default_factory=dict)
    duplicates: dict[Name, Duplicates] = msgspec.field(default_factory=dict)
    overlap: dict[Name, Overlap] = msgspec.field(default_factory=dict)
    shares: dict[Name, str] = msgspec.field(default_factory=dict)


class RowPacker:
    """Packer of documents of token ids into sequences, without gaps between documents.

    A document that does not fit continues in the next sequence as a new segment. Padding is only in
    the last sequence, and at ends too short for a segment.
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
        """Remove and return the finished sequences, [sequences, L]; with `is_last` all of them."""
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
    """Ragged array of sentences: [n] ids without specials, and int64 end of each.

    `ids` is a file, or a part of one in memory, from its id `start` on.
    """

    ids: ArrayFile | np.ndarray
    ends: np.ndarray
    start: int = 0

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sentence, [sentences] int64; 0 for a missing one."""
        return np.diff(self.ends, prepend=0)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return where the ids of sentences `first` to `last`, both included, begin and end."""
        return int(self.ends[first - 1]) if first else 0, int(self.ends[last])

    def read(self, first: int, last: int) -> np.ndarray:
        """Return the ids of sentences `first` to `last`, both included, unchecked."""
        start, stop = self.span(first, last)
        if isinstance(self.ids, np.ndarray):
            return self.ids[start - self.start : stop - self.start]
        return self.ids.read(start, stop)

    def sentence(self, number: int) -> np.ndarray:
        return self.read(number, number)

    def part(self, first: int, last: int) -> "TokenizedSentences":
        """Read sentences `first` to `last`, both included, into memory."""
        return TokenizedSentences(self.read(first, last), self.ends, self.span(first, last)[0])


@dataclasses.dataclass(frozen=True, eq=False)
class PackedDataset:
    """A packed dataset opened for reading; two are equal only if they are the same object.

    Attributes:
      vocab_size, length: V, number of ids of the tokenizer, and L, tokens per sequence.
      tokenizer: `tokenizer_hash` of the tokenizer.
      statistics: `rows`, `tokens`, `unknown` tokens and `characters`, by language and split.
      parallel, bitexts: languages of each set of parallel text, for evaluation and for training.
      shards: sequences of each shard, by language and split; none for one file per split.
      duplicates: `blocks` left out as repetitions, and their `bytes`, by language.
      overlap: held-out n-grams that training rows have, by language.
      shares: languages whose held-out share is not the one asked for, and why.
    """

    folder: pathlib.Path
    vocab_size: int
    length: int
    tokenizer: str
    special: SpecialIds
    statistics: Mapping[str, Mapping[str, Mapping[str, int]]]
    parallel: Mapping[str, Sequence[str]]
    bitexts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
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
        store = cls(folder, **msgspec.structs.asdict(meta))
        for fault in store._faults():
            raise ValueError(f"{folder / META}: {fault}; {manifest.remedy(folder)}")
        if (folder / manifest.MANIFEST).exists():  # not in a dataset of an older version
            manifest.check_sample(folder, store._file_names(), store.vocab_size)
        return store

    def _faults(self) -> Iterator[str]:
        """Yield the contradictions in meta.json."""
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
        return load_array(self.folder / f"{language}.counts.npy", (self.vocab_size,))

    def parallel_rows(self, name: str, language: str) -> ShardedRows:
        """Return [sentences, L] token ids of one column of a parallel set."""
        path = self.folder / f"{name}.{language}.parallel.npy"
        return ArrayFile(path, (None, None), self.vocab_size)

    def bitext(self, name: str, language: str) -> TokenizedSentences:
        """Return a column of parallel text to train on; ValueError if a file is damaged."""
        if (name, language) not in self._columns:
            self._columns[name, language] = self._read_column(name, language)
        return self._columns[name, language]

    @functools.cached_property
    def _columns(self) -> dict[tuple[str, str], TokenizedSentences]:
        return {}

    def _read_column(self, name: str, language: str) -> TokenizedSentences:
        ids, ends = (self.folder / f"{name}.{language}.{kind}.npy" for kind in ("bitext", "ends"))
        array = ArrayFile(ids, (None,), self.vocab_size)
        found = TokenizedSentences(array, load_array(ends, (None,)))
        count = int(found.ends[-1]) if len(found.ends) else 0
        if len(found.ids) != count or (len(found.ends) and found.lengths.min() < 0):
            raise ValueError(
                f"{ends}: must ascend to {len(found.ids)}, the tokens of the column, and ends at "
                f"{count}; {manifest.remedy(self.folder)}"
            )
        return found

    def check_tokenizer(self, model: bytes, path: pathlib.Path) -> None:
        """Raise ValueError unless the dataset was made with the tokenizer `model` from `path`."""
        found = tokenizer_hash(model)
        if found != self.tokenizer:
            raise ValueError(
                f"{self.folder} was made with tokenizer {self.tokenizer[:12]}, but {path} is "
                f"tokenizer {found[:12]}; run prepare_data.py into a new folder, or use the other"
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
        for sets, kinds in ((self.parallel, ("parallel",)), (self.bitexts, ("bitext", "ends"))):
            for name, languages in sets.items():
                columns = itertools.product(languages, kinds)
                names.update(f"{name}.{language}.{kind}.npy" for language, kind in columns)
        return names

    def write_meta(self) -> None:
        """Write `meta.json`, last: it marks the dataset as complete."""
        meta = dataclasses.asdict(self)
        del meta["folder"]
        artifacts.write_json(self.folder / META, meta)
