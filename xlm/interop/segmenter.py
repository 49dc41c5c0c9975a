"""Tokenizers of any origin as functions from texts to ids, for comparison."""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece as spm

from vocap import model_proto
from xlm.common import artifacts, declarations, packages
from xlm.interop import tokenizer_json
from xlm.interop.vocabulary import batches, existing_file


@dataclasses.dataclass(frozen=True)
class Segmenter:
    """Tokenizer without the special tokens that it adds.

    Attributes:
      kind: "unigram", "bpe", "wordpiece", "wordlevel", "word" or "char".
      size: V, number of ids, including those without a piece.
      is_piece: [V] bool, ids in segmentations of text: no special tokens, no unknown.
      unknown: id of unknown text; None if there is none, as with byte fallback.
    """

    kind: str
    size: int
    is_piece: np.ndarray
    unknown: int | None
    encode: Callable[[Sequence[str]], list[list[int]]]

    def each(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Encode any number of texts."""
        return itertools.chain.from_iterable(map(self.encode, batches(texts)))


def check_texts(texts: Sequence[str]) -> None:
    """Raise ValueError for a text with half of a surrogate pair, which libraries cannot encode."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"character {error.start} of the text {text[:20]!a} is half of a surrogate pair, "
                f"U+{ord(text[error.start]):X}, must be a whole character; repair the text, or "
                "replace it by U+FFFD"
            ) from None


def read_segmenter(path: pathlib.Path) -> Segmenter:
    """Read a SentencePiece model or tokenizer.json, perhaps in a folder; ValueError without one."""
    path = existing_file(path, "name the file itself")
    return _of_json(path) if path.suffix == ".json" else _of_sentencepiece(path)


def _of_sentencepiece(path: pathlib.Path) -> Segmenter:
    try:
        processor = spm.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{path}: neither a SentencePiece model nor a *.json of Hugging Face ({error}); give a "
            "tokenizer's file"
        ) from None
    ids = range(processor.get_piece_size())
    is_piece = [
        not (processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i))
        for i in ids
    ]
    model = model_proto.ModelProto.FromString(path.read_bytes())
    kind = model_proto.TrainerSpec.ModelType.Name(model.trainer_spec.model_type)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        check_texts(texts)
        found: list[list[int]] = processor.encode(list(texts))
        return found

    has_bytes = any(processor.is_byte(i) for i in ids)
    return Segmenter(
        kind=kind.lower(),
        size=len(ids),
        is_piece=np.array(is_piece, bool),
        unknown=None if has_bytes else processor.unk_id(),
        encode=encode,
    )


def tokenizer_of(content: bytes, place: str = "reading a tokenizer.json") -> Any:
    """Return a tokenizer of the package `tokenizers` that neither cuts nor pads texts."""
    with packages.needed(place):
        import tokenizers
    tokenizer = tokenizers.Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _of_json(path: pathlib.Path) -> Segmenter:
    with packages.needed(str(path)):
        import tokenizers  # noqa: F401
    remedy = "give a tokenizer.json of Hugging Face, or a SentencePiece model"
    content = artifacts.read_bytes(path)
    found = declarations.parse(content, tokenizer_json.AnyTokenizer, place=str(path), remedy=remedy)
    model = found.model
    try:
        for step in tokenizer_json.steps(found.normalizer):
            if step.type == "Precompiled":  # a damaged one makes `tokenizers` panic
                tokenizer_json.character_map(step)
        tokenizer = tokenizer_of(content)
    except Exception as error:  # tokenizers raises plain Exception
        fault = " ".join(str(error).split())
        raise ValueError(f"{path}: no tokenizer.json of Hugging Face ({fault}); {remedy}") from None
    ids = np.fromiter(tokenizer.get_vocab().values(), np.int64)
    size = int(ids.max(initial=-1)) + 1  # ids may have gaps
    unknown = model.unk_id
    if model.unk_token is not None:
        unknown = tokenizer.token_to_id(model.unk_token)
    added = tokenizer.get_added_tokens_decoder()
    is_piece = np.zeros(size, bool)
    is_piece[ids] = True
    is_piece[[i for i, token in added.items() if token.special]] = False
    if unknown is not None and unknown < size:
        is_piece[unknown] = False
    if model.byte_fallback:
        unknown = None

    def encode(texts: Sequence[str]) -> list[list[int]]:
        check_texts(texts)
        encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    return Segmenter((model.type or "unknown").lower(), size, is_piece, unknown, encode)
