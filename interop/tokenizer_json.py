"""Unigram tokenizers of Hugging Face's `tokenizers`, read from a tokenizer.json."""

import base64
import binascii
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from interop import charsmap

NAME = "tokenizer.json"

_SPACE = "\u2581"
# The characters at which `tokenizers` splits words, Unicode's White_Space, but for the blank.
_WHITE_SPACE = "\t\n\v\f\r\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + (
    "\u2028\u2029\u202f\u205f\u3000"
)  # fmt: skip
# Steps that together are nmt_nfkc.
_NMT_NFKC = {"Nmt", "NFKC"}
_HARMLESS = {"Strip"}
_REMEDY = (
    "put the model's sentencepiece.bpe.model into the folder, which tells how text is normalised"
)


class Unigram(NamedTuple):
    """Pieces by id, and their scores: -inf for added tokens, which match before segmentation."""

    pieces: list[str]
    scores: list[float]


@contextlib.contextmanager
def well_formed() -> Iterator[None]:
    """Turn errors of looking for what a tokenizer.json lacks into those of its form.

    Raises:
      ValueError: something is missing, or of another type.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, binascii.Error) as error:
        raise ValueError(
            f"not of the form of a tokenizer.json ({type(error).__name__}: {error}); copy or "
            "download it again, or write it with save_pretrained"
        ) from error


def read(text: bytes) -> dict[str, Any]:
    """Parse a tokenizer.json.

    Raises:
      ValueError: it is no JSON object, or of another model than Unigram.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}); copy or download it again") from None
    model = value.get("model") if isinstance(value, dict) else None
    kind = model.get("type") if isinstance(model, dict) else None
    if kind != "Unigram":
        raise ValueError(
            f"the model is of type {kind!r}, must be Unigram as XLM-R's; a WordPiece or BPE "
            "tokenizer, such as multilingual BERT's, has no SentencePiece model"
        )
    if value["model"].get("byte_fallback"):
        raise ValueError(
            "the model falls back to bytes, which XLM-R's does not; give a tokenizer without"
        )
    return value


def unigram(value: Mapping[str, Any]) -> Unigram:
    """Return the pieces of the Unigram model, then added tokens.

    Raises:
      ValueError: an added token has the id of another piece, or leaves a gap.
    """
    pieces = [piece for piece, _ in value["model"]["vocab"]]
    scores = [score for _, score in value["model"]["vocab"]]
    for token in sorted(value.get("added_tokens") or (), key=lambda token: token["id"]):
        number, piece = token["id"], token["content"]
        if number == len(pieces):
            pieces.append(piece)
            scores.append(-np.inf)
        if number > len(pieces) or pieces[number] != piece:
            raise ValueError(
                f"the added token {piece!r} has id {number}, which is another piece's or leaves a "
                "gap; write the tokenizer again with save_pretrained"
            )
        scores[number] = -np.inf
    return Unigram(pieces, scores)


def normalizer_spec(value: Mapping[str, Any]) -> model_pb2.NormalizerSpec:
    """Return SentencePiece's equivalent of the normaliser and the pre-tokenizer.

    Raises:
      ValueError: SentencePiece has no equivalent.
    """
    collapses = False
    found: bytes | None = None
    steps = list(_steps(value.get("normalizer"), "normalizers"))
    names = {step["type"] for step in steps}
    for step in steps:
        if step["type"] == "Precompiled" and found is None:
            found = base64.b64decode(step["precompiled_charsmap"])
        elif step["type"] == "Replace" and step.get("pattern") == {"Regex": " {2,}"}:
            collapses = True
        elif step["type"] not in _HARMLESS | _NMT_NFKC:
            raise ValueError(
                f"the normaliser has a step {step['type']!r}, for which SentencePiece has none; "
                f"{_REMEDY}"
            )
    splits = list(_steps(value.get("pre_tokenizer"), "pretokenizers"))
    kinds = [step["type"] for step in splits]
    if kinds not in (["WhitespaceSplit", "Metaspace"], ["Metaspace"]):
        raise ValueError(
            f"the pre-tokenizer is {' and '.join(kinds) or 'none'}, must be Metaspace, with or "
            f"without WhitespaceSplit before it; {_REMEDY}"
        )
    spec = model_pb2.NormalizerSpec()
    spec.add_dummy_prefix = splits[-1].get("prepend_scheme", "always") != "never"
    spec.remove_extra_whitespaces = collapses or len(splits) > 1
    spec.escape_whitespaces = True
    if found is None and names >= _NMT_NFKC:
        found = charsmap.standard()
    elif found is None and names & _NMT_NFKC:
        raise ValueError(
            f"the normaliser is {' and '.join(sorted(names))}, must have both of Nmt and NFKC, "
            f"which are SentencePiece's nmt_nfkc, or neither; {_REMEDY}"
        )
    if found is None:
        # SentencePiece itself takes no other white space for a blank.
        found = charsmap.compiled(dict.fromkeys(_WHITE_SPACE, " "))
    spec.precompiled_charsmap = found
    spec.name = charsmap.STANDARD if charsmap.is_standard(found) else "user_defined"
    return spec


def _steps(value: Mapping[str, Any] | None, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normaliser or a pre-tokenizer, also of nested sequences."""
    if value is None:
        return
    if value["type"] != "Sequence":
        yield value
        return
    parts: Sequence[Mapping[str, Any]] = value[key]
    for part in parts:
        yield from _steps(part, key)


def check_pieces(pieces: Sequence[str]) -> None:
    """Raise ValueError if a piece crosses words: SentencePiece would match it, they do not."""
    crossing = [piece for piece in pieces if _SPACE in piece[1:] and piece.strip(_SPACE)]
    if crossing:
        raise ValueError(
            f"{len(crossing)} pieces have a blank inside, such as {crossing[0]!r}, which the "
            f"pre-tokenizer never lets match and SentencePiece would; {_REMEDY}"
        )
