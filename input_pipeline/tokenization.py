"""Tokenisation of text into packed sequences."""

import collections
import dataclasses
import itertools
import pathlib
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import sentencepiece as spm

from input_pipeline.array_files import ArrayWriter
from input_pipeline.packed_dataset import RowPacker, SpecialIds
from input_pipeline.text_files import Document
from xlm.common import schema

_CHARACTERS_AT_ONCE = 1_000_000
_MAX_LENGTH = 1 << 20  # tokens
_MOST_UNKNOWN = 0.01  # of the tokens of a text, without a warning
_LEAST_SHARD_BYTES = 1 << 10


@dataclasses.dataclass(frozen=True)
class PackedDatasetSettings:
    """Settings of the packed dataset; the `store` section of a config.

    Attributes:
      length: L, tokens per sequence.
      parallel_length: most tokens of a sentence of parallel text; longer sentences are cut.
      num_workers: processes; the dataset does not depend on it.
      shard_bytes: text of one task and one file of sequences. Larger plain files are cut, smaller
        files of a language joined. Compressed files are not cut and count for four times their
        size.
    """

    length: int = schema.key(512, at_least=16, at_most=_MAX_LENGTH)
    parallel_length: int = schema.key(64, at_least=16, at_most=_MAX_LENGTH)
    num_workers: int = schema.key(1, at_least=1, effect="records")
    shard_bytes: int = schema.key(1 << 28, at_least=_LEAST_SHARD_BYTES)

    def __post_init__(self):
        schema.check(self, "store")


def special_ids(processor: spm.SentencePieceProcessor) -> SpecialIds:
    """Return the special ids of a tokenizer; raise ValueError if it lacks one."""
    mask = processor.piece_to_id("<mask>")
    ids = SpecialIds(
        bos=processor.bos_id(),
        pad=processor.pad_id(),
        eos=processor.eos_id(),
        unk=processor.unk_id(),
        mask=mask if processor.is_control(mask) else -1,
    )
    for name, value in dataclasses.asdict(ids).items():
        if value < 0:
            raise ValueError(
                f"the tokenizer has no <{name}> token; pre-training needs <s> <pad> </s> <unk> "
                "and <mask> as special pieces, as build_vocab.py makes them"
            )
    return ids


def check_tokenizer(model: bytes, path: pathlib.Path) -> None:
    """Raise ValueError unless `model`, read from `path`, is a tokenizer to pre-train with."""
    remedy = "copy it again, or remove its folder and run build_vocab.py again"
    if not model:
        raise ValueError(f"{path}: the file is empty; {remedy}")
    try:
        special_ids(spm.SentencePieceProcessor(model_proto=model))
    except RuntimeError as error:
        raise ValueError(f"{path}: not a SentencePiece model ({error}); {remedy}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def unknown_characters(
    encode: Callable[[list[str]], Sequence[Any]], unknown: int | None, texts: Iterable[str]
) -> dict[str, int]:
    """Count unknown characters of texts, the commonest first: "ქ U+10E5 GEORGIAN LETTER KHAR"."""
    characters = collections.Counter("".join("".join(texts).split())).most_common()
    alone = encode([one for one, _ in characters])
    return {
        f"{one} U+{ord(one):04X} {unicodedata.name(one, 'without a name')}": count
        for (one, count), ids in zip(characters, alone, strict=True)
        if unknown in ids
    }


def unknown_warning(
    where: str, unknown: int, tokens: int, processor: spm.SentencePieceProcessor,
    texts: Iterable[str],
) -> str:  # fmt: skip
    """Return a line about a text with more than 1 % of unknown tokens, else ""."""
    if unknown <= _MOST_UNKNOWN * tokens:
        return ""
    found = [*unknown_characters(processor.encode, processor.unk_id(), texts)][:10]
    return (
        f"{where}: {unknown / tokens:.1%} of {tokens:,} tokens are unknown to the tokenizer, such "
        f"as {', '.join(found)}; build a vocabulary with this text, or choose another tokenizer"
    )


class RowWriter:
    """Writer of packed sequences; it tokenises a batch of documents at a time to save memory."""

    def __init__(
        self, processor: spm.SentencePieceProcessor, file: ArrayWriter, length: int, dtype: np.dtype
    ):
        self._special = special_ids(processor)
        self._processor, self._file = processor, file
        self._packer = RowPacker(length, self._special, dtype)
        self._documents: list[Document] = []
        self._characters = 0
        self._tokens = self._unknown = self._all_characters = 0
        self.counts = np.zeros(processor.get_piece_size(), np.int64)  # [V] of each piece

    def add(self, document: Document) -> None:
        self._documents.append(document)
        self._characters += sum(map(len, document)) + len(document)
        if self._characters >= _CHARACTERS_AT_ONCE:
            self._write()

    def finish(self) -> dict[str, int]:
        """Write the remaining text; return the statistics of all text."""
        self._write()
        self._file.append(self._packer.take(is_last=True))
        return {
            "rows": self._file.length,
            "tokens": self._tokens,
            "unknown": self._unknown,
            "characters": self._all_characters,
        }

    def _write(self) -> None:
        ids, ends = encode(self._processor, itertools.chain.from_iterable(self._documents))
        self.counts += np.bincount(ids, minlength=len(self.counts))
        self._tokens += len(ids)
        self._unknown += int((ids == self._special.unk).sum())
        last = np.cumsum([len(document) for document in self._documents]) - 1
        for document in np.split(ids, ends[last][:-1]) if self._documents else ():
            self._packer.add(document)
        self._file.append(self._packer.take())
        self._all_characters += self._characters
        self._documents, self._characters = [], 0


def encode(
    processor: spm.SentencePieceProcessor, sentences: Iterable[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenise sentences: return their ids, [n] uint32, and the end of each, [sentences] int64."""
    found = processor.encode(list(sentences), out_type=int, num_threads=1)
    ends = np.cumsum([*map(len, found)], dtype=np.int64)
    return np.fromiter(itertools.chain.from_iterable(found), np.uint32), ends
