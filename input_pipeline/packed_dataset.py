"""The packed dataset: packed sequences of token ids on disk, memory-mapped when read.

A folder with `meta.json`, one `<lang>.<split>.npy` per language and split, [sequences, L] uint16 or
uint32, one `<lang>.counts.npy`, [V] int64 occurrences in the training text, and one
`<set>.<lang>.parallel.npy` per column of parallel text for evaluation, [sentences, L]. Parallel
text for training is ragged: `<set>.<lang>.bitext.npy` holds the concatenated ids of all sentences
of a column, `<set>.<lang>.ends.npy`, [sentences] int64, the end of each sentence.

A packed sequence is one or more segments `<s> tokens </s>` followed by padding. A segment is one
document, or the part of it that fits. Segments can be recovered from the tokens alone.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from common import artifacts

SPLITS = ("train", "heldout")
META = "meta.json"
# No document starts at the end of a sequence with room for fewer tokens; the sequence is padded.
_MIN_SEGMENT_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens of a tokenizer."""

    bos: int
    pad: int
    eos: int
    unk: int
    mask: int

    def special_ids(self) -> tuple[int, ...]:
        """Return the ids of structure, as opposed to text."""
        return (self.bos, self.pad, self.eos, self.mask)


def pack_rows(
    documents: Iterable[np.ndarray], length: int, special: SpecialIds, dtype: np.dtype
) -> np.ndarray:
    """Pack documents of token ids into full sequences.

    Documents follow one another without gaps; a document that does not fit continues in the next
    sequence as a new segment. Only the last sequence, and ends of sequences too short for a
    segment, hold padding.

    Args:
      documents: [n] token ids of each document, without specials.
      length: L, tokens per sequence.
      special: ids of `<s>`, `</s>` and padding.
      dtype: integer type of the sequences.

    Returns:
      [sequences, L] token ids.
    """
    rows: list[np.ndarray] = []
    used = length  # tokens used of the last sequence
    for document in documents:
        start = 0
        while start < len(document):
            wanted = min(len(document) - start, _MIN_SEGMENT_TOKENS)
            if length - used < wanted + 2:
                rows.append(np.full(length, special.pad, dtype))
                used = 0
            tokens = document[start : start + length - used - 2]
            end = used + len(tokens) + 1
            rows[-1][used] = special.bos
            rows[-1][used + 1 : end] = tokens
            rows[-1][end] = special.eos
            start, used = start + len(tokens), end + 1
    return np.stack(rows) if rows else np.zeros((0, length), dtype)


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


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest dtype that holds all ids: uint16 up to 65,536 pieces, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def _load(
    path: pathlib.Path, shape: tuple[int | None, ...], *, is_mapped: bool = False
) -> np.ndarray:
    """Load an array of integers.

    Args:
      path: of the file.
      shape: that it must have, None for any length.
      is_mapped: whether to map it into memory.

    Raises:
      ValueError: the file is missing or damaged, or the array has another shape or type.
    """
    remedy = f"remove {path.parent} and run prepare_data.py again"
    try:
        found = np.load(path, mmap_mode="r" if is_mapped else None, allow_pickle=False)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist, but meta.json lists it; {remedy}") from None
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); the file may be cut off or damaged: {remedy}"
        ) from error
    is_alike = len(found.shape) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, found.shape, strict=True)
    )
    if not is_alike or not np.issubdtype(found.dtype, np.integer):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{path}: an array of shape {found.shape} and type {found.dtype}, must be integers of "
            f"shape ({expected}) by meta.json; {remedy}"
        )
    return found


def tokenizer_hash(model: bytes) -> str:
    """Return the SHA-256 of a tokenizer's serialised model, which identifies it."""
    return hashlib.sha256(model).hexdigest()


@dataclasses.dataclass(frozen=True)
class TokenizedSentences:
    """Ragged array of sentences, token ids without specials.

    Attributes:
      ids: [n] concatenated ids of all sentences, memory-mapped.
      ends: [sentences] int64 end of each sentence.
    """

    ids: np.ndarray
    ends: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sentence, [sentences] int64; 0 for a missing one."""
        return np.diff(self.ends, prepend=0)

    def sentence(self, number: int) -> np.ndarray:
        """Return the token ids of a sentence."""
        start = self.ends[number - 1] if number else 0
        return self.ids[start : self.ends[number]]


@dataclasses.dataclass(frozen=True)
class PackedDataset:
    """A packed dataset opened for reading.

    Attributes:
      folder: its folder.
      vocab_size: V, number of ids of the tokenizer.
      length: L, tokens per sequence.
      tokenizer: `tokenizer_hash` of the tokenizer of the sequences.
      special: ids of the special tokens.
      statistics: per language and split the number of sequences (`rows`), and of `tokens`,
        `unknown` tokens and `characters` of text in them.
      parallel: languages of each set of parallel text for evaluation.
      bitexts: languages of each set of parallel text for training.
    """

    folder: pathlib.Path
    vocab_size: int
    length: int
    tokenizer: str
    special: SpecialIds
    statistics: Mapping[str, Mapping[str, Mapping[str, int]]]
    parallel: Mapping[str, Sequence[str]]
    bitexts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, folder: pathlib.Path) -> "PackedDataset":
        """Open a finished packed dataset.

        Raises:
          ValueError: `folder` holds no packed dataset, or its preparation was not finished.
        """
        if not (folder / META).exists():
            raise ValueError(
                f"{folder} holds no finished packed dataset; run prepare_data.py with the same "
                "--config and --workdir first"
            )
        meta = artifacts.read_object(folder / META)
        try:
            return cls(folder, special=SpecialIds(**meta.pop("special")), **meta)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{folder / 'meta.json'}: not as prepare_data.py writes it ({error}); remove "
                f"{folder} and run prepare_data.py again"
            ) from error

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(sorted(self.statistics))

    def rows(self, language: str, split: str) -> np.ndarray:
        """Return [sequences, L] memory-mapped token ids of a language's split, of `SPLITS`."""
        count = self.statistics.get(language, {}).get(split, {}).get("rows")
        path = self.folder / f"{language}.{split}.npy"
        return _load(path, (count, self.length), is_mapped=True)

    def token_counts(self, language: str) -> np.ndarray:
        """Return [V] int64, the occurrences of each piece in a language's training text."""
        return _load(self.folder / f"{language}.counts.npy", (self.vocab_size,))

    def parallel_rows(self, name: str, language: str) -> np.ndarray:
        """Return [sentences, L] token ids of one column of a parallel set."""
        path = self.folder / f"{name}.{language}.parallel.npy"
        return _load(path, (None, None), is_mapped=True)

    def bitext(self, name: str, language: str) -> TokenizedSentences:
        """Return one column of a set of parallel text for training."""
        ids, ends = (self.folder / f"{name}.{language}.{kind}.npy" for kind in ("bitext", "ends"))
        found = TokenizedSentences(_load(ids, (None,), is_mapped=True), _load(ends, (None,)))
        count = int(found.ends[-1]) if len(found.ends) else 0
        if len(found.ids) != count:
            raise ValueError(
                f"{ids} holds {len(found.ids)} tokens, but {ends} ends at {count}; remove "
                f"{self.folder} and run prepare_data.py again"
            )
        return found

    def check_tokenizer(self, model: bytes, path: pathlib.Path) -> None:
        """Raise ValueError unless the dataset was made with the tokenizer `model` from `path`."""
        found = tokenizer_hash(model)
        if found != self.tokenizer:
            raise ValueError(
                f"the packed dataset {self.folder} was made with tokenizer {self.tokenizer[:12]}, "
                f"but {path} is tokenizer {found[:12]}; run prepare_data.py again into a new "
                "folder, or point to the tokenizer it was made with"
            )

    def write_meta(self) -> None:
        """Write `meta.json`, the last file of a preparation: it marks the dataset as complete."""
        meta = dataclasses.asdict(self)
        del meta["folder"]
        artifacts.write_json(self.folder / META, meta)
