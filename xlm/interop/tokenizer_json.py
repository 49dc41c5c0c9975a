"""Unigram tokenizers of Hugging Face's `tokenizers`, read from a tokenizer.json."""

import base64
import binascii
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import Message

from vocap import model_proto
from vocap.settings import SPECIALS
from xlm.common import declarations
from xlm.common.declarations import Count
from xlm.interop import charsmap, normalizer_json

NAME = "tokenizer.json"

# Placeholder pieces of CamemBERT.
NOT_USED = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
_SPACE = normalizer_json.SPACE
_KINDS = model_proto.ModelProto.SentencePiece
# Steps that together are nmt_nfkc.
_NMT_NFKC = {"Nmt", "NFKC"}
_BLANKS = {"Regex": " {2,}"}  # of a step that merges blanks
_REMEDY = "put the model's sentencepiece.bpe.model, with its normaliser, into the folder"


class Step(msgspec.Struct, frozen=True):
    """Step of a normaliser or a pre-tokenizer; of other kinds we read only the type."""

    type: str
    normalizers: list["Step"] = []
    pretokenizers: list["Step"] = []
    precompiled_charsmap: str | None = None
    pattern: Any = None
    content: str = ""
    replacement: str = _SPACE
    add_prefix_space: bool = True
    prepend_scheme: str | None = None
    split: bool = True
    strip_left: bool = True
    behavior: str = ""


class _Model(msgspec.Struct, frozen=True):
    vocab: list[tuple[str, float]]
    byte_fallback: bool = False


class _Added(msgspec.Struct, frozen=True):
    id: Count
    content: str
    special: bool = False


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of any tokenizer.json that we read, except the model."""

    added_tokens: list[_Added] | None = None
    normalizer: Step | None = None
    pre_tokenizer: Step | None = None


class Tokenizer(Parts, frozen=True, kw_only=True):
    """The part of a Unigram tokenizer.json that we read."""

    model: _Model


class _AnyModel(msgspec.Struct, frozen=True):
    type: str | None = None
    unk_id: Count | None = None
    unk_token: str | None = None
    byte_fallback: bool = False


class AnyTokenizer(msgspec.Struct, frozen=True):
    """The part of a tokenizer.json of any kind that we read beside `tokenizers`."""

    model: _AnyModel = _AnyModel()
    normalizer: Step | None = None


GIVEN = {"place": "", "remedy": "copy or download it again, or write it with save_pretrained"}


def kind(text: bytes) -> str | None:
    """Return the type of the model of a tokenizer.json; ValueError if it is malformed."""
    found: AnyTokenizer = declarations.parse(text, AnyTokenizer, **GIVEN)
    return found.model.type


def read(text: bytes) -> Tokenizer:
    """Parse a Unigram tokenizer.json; ValueError if it is malformed or of another kind."""
    if kind(text) != "Unigram":
        raise ValueError(
            f"the model is of type {kind(text)!r}, must be Unigram like XLM-R's, or BPE like "
            "mmBERT's; a WordPiece tokenizer, such as multilingual BERT's, has no SentencePiece "
            "model: give a --vocabulary for the model to continue with"
        )
    found: Tokenizer = declarations.parse(text, Tokenizer, **GIVEN)
    return found


def exported(value: Tokenizer) -> Message | None:
    """Return the SentencePiece model behind a file of `huggingface.tokenizer_json`, or None.

    It writes the steps of each form of the model again and compares them.
    """
    if tuple(piece for piece, _ in value.model.vocab[: len(SPECIALS)]) != SPECIALS:
        return None
    proto = model_proto.ModelProto()
    proto.trainer_spec.model_type = model_proto.TrainerSpec.UNIGRAM
    proto.trainer_spec.byte_fallback = value.model.byte_fallback
    controls = {token.id for token in value.added_tokens or () if token.special}
    for i, (piece, score) in enumerate(value.model.vocab):
        # As texts, which show the signs of zeros.
        is_symbol = str(score) == str(normalizer_json.symbol_score(piece))
        kind = _KINDS.USER_DEFINED if is_symbol else _KINDS.NORMAL
        if value.model.byte_fallback and normalizer_json.BYTE.fullmatch(piece):
            kind = _KINDS.BYTE
        is_matched = kind == _KINDS.NORMAL and i not in controls
        kind = _KINDS.CONTROL if i in controls else kind
        proto.pieces.add(piece=piece, score=score if is_matched else 0.0, type=kind)
    maps = [step for step in steps(value.normalizer) if step.precompiled_charsmap]
    compiled = character_map(maps[0]) if maps else b""
    spec = proto.normalizer_spec
    spec.precompiled_charsmap = compiled
    spec.name = _name(compiled) if compiled else "identity"
    spec.add_dummy_prefix = spec.escape_whitespaces = True
    for spec.remove_extra_whitespaces in (True, False):
        if normalizer_json.fault(spec, normalizer_json.symbols(proto)):
            return None
        written = normalizer_json.of_model(proto)
        if msgspec.convert(written, tuple[Step | None, Step]) == (
            value.normalizer,
            value.pre_tokenizer,
        ):
            return proto
    return None


def _name(compiled: bytes) -> str:
    return charsmap.STANDARD if charsmap.is_standard(compiled) else "user_defined"


def unigram(value: Tokenizer) -> tuple[list[str], list[float]]:
    """Return pieces by id, then added tokens, and scores, -inf for added tokens.

    Raises ValueError if an added id is another's or leaves a gap, or the model falls back to bytes.
    """
    if value.model.byte_fallback:
        raise ValueError(
            "the model falls back to bytes, unlike XLM-R's; give a tokenizer without byte fallback"
        )
    pieces = [piece for piece, _ in value.model.vocab]
    scores = [score for _, score in value.model.vocab]
    scores = [-np.inf if one in NOT_USED else s for one, s in zip(pieces, scores, strict=True)]
    return with_added(value, pieces, scores)


def with_added(
    value: Tokenizer, pieces: list[str], scores: list[float]
) -> tuple[list[str], list[float]]:
    """Append the added tokens to the pieces by id; errors as `unigram`."""
    for token in sorted(value.added_tokens or (), key=lambda token: token.id):
        number, piece = token.id, token.content
        if number == len(pieces):
            pieces.append(piece)
            scores.append(-np.inf)
        if number > len(pieces) or pieces[number] != piece:
            raise ValueError(
                f"the added token {piece!r} has id {number}, which is another piece's or leaves a "
                "gap; write the tokenizer again with save_pretrained"
            )
        scores[number] = -np.inf
    return pieces, scores


def normalizer_spec(value: Tokenizer) -> Message:
    """Return SentencePiece's equivalent of normaliser and pre-tokenizer; ValueError if it has none.

    Segmentations differ in two cases. SentencePiece drops white space at the end of a text with
    other extra white space, while some files that transformers converted from SentencePiece models
    keep a blank there as a piece. The other case is a \u2581 of the text beside a blank.
    """
    content = ""  # replacement of several blanks; "" keeps them
    found: bytes | None = None
    normalizers = list(steps(value.normalizer))
    names = {step.type for step in normalizers}
    for step in normalizers:
        if step.type == "Precompiled" and found is None:
            found = character_map(step)
            content = ""  # like _NMT_NFKC, it turns other white space into blanks
        elif step.type in _NMT_NFKC:
            content = ""
        elif step.type == "Replace" and step.pattern == _BLANKS:
            content = step.content
            if content not in (" ", _SPACE):
                raise ValueError(
                    f"the normaliser replaces several blanks by {content!r}, must be ' ' or "
                    f"{_SPACE!r}; {_REMEDY}"
                )
        elif step.type != "Strip":
            raise ValueError(
                f"the normaliser has a step {step.type!r}, which SentencePiece lacks; {_REMEDY}"
            )
    splits = list(steps(value.pre_tokenizer))
    kinds = [step.type for step in splits]
    if kinds not in (["WhitespaceSplit", "Metaspace"], ["Metaspace"]):
        raise ValueError(
            f"the pre-tokenizer is {' and '.join(kinds) or 'none'}, must be Metaspace, with or "
            f"without WhitespaceSplit before it; {_REMEDY}"
        )
    splits_words = len(splits) > 1
    if splits_words and content == _SPACE:
        raise ValueError(
            f"the normaliser replaces several blanks by {_SPACE!r}, must be ' ', since "
            f"WhitespaceSplit does not split at the former; {_REMEDY}"
        )
    scheme = _prepend_scheme(splits[-1], splits_words=splits_words, collapses=bool(content))
    spec = model_proto.NormalizerSpec()
    spec.add_dummy_prefix = scheme != "never"
    spec.remove_extra_whitespaces = splits_words or bool(content)
    spec.escape_whitespaces = True
    if not spec.remove_extra_whitespaces:
        _check_kept_blanks(value, names, splits[-1])
    # Strip removes all white space, and then "first" finds no beginning.
    is_safe = splits_words or (scheme == "always" and names & {"Precompiled", *_NMT_NFKC})
    if not is_safe and any(step.type == "Strip" and step.strip_left for step in normalizers):
        raise ValueError(
            "the normaliser strips the left of a text, which needs WhitespaceSplit, or "
            f"prepend_scheme 'always' and a character map; {_REMEDY}"
        )
    if found is None and names >= _NMT_NFKC:
        found = charsmap.standard()
    elif found is None and names & _NMT_NFKC:
        raise ValueError(
            f"the normaliser is {' and '.join(sorted(names))}, must have both Nmt and NFKC, that "
            f"is SentencePiece's nmt_nfkc, or neither; {_REMEDY}"
        )
    if found is None:
        # Neither SentencePiece nor Metaspace takes other white space for a blank. Metaspace takes a
        # \u2581 of the text for one.
        blanks = {_SPACE, *normalizer_json.WHITE_SPACE} if splits_words else {_SPACE}
        found = charsmap.compiled(dict.fromkeys(sorted(blanks), " "))
    spec.precompiled_charsmap = found
    spec.name = _name(found)
    return spec


def _prepend_scheme(metaspace: Step, *, splits_words: bool, collapses: bool) -> str:
    """Return Metaspace's scheme of initial blanks; ValueError if SentencePiece has no such scheme.

    WhitespaceSplit precedes it if `splits_words`. The normaliser merges blanks if `collapses`.
    """
    if metaspace.replacement != _SPACE:
        raise ValueError(
            f"Metaspace replaces a blank by {metaspace.replacement!r}, must be {_SPACE!r}; "
            f"{_REMEDY}"
        )
    # Older files have add_prefix_space in place of prepend_scheme.
    default = "always" if metaspace.add_prefix_space else "never"
    scheme = metaspace.prepend_scheme or default
    allowed: tuple[str, ...]
    if splits_words:
        allowed, where = ("always",), "after WhitespaceSplit, since Metaspace sees single words"
    elif collapses:
        # SentencePiece drops the blank at the beginning that "never" keeps.
        allowed, where = ("always", "first"), "if the normaliser merges blanks"
    else:
        # SentencePiece puts a blank before an initial blank, Metaspace does not.
        allowed, where = ("never",), "if nothing merges blanks"
    if scheme not in allowed:
        raise ValueError(
            f"prepend_scheme of Metaspace is {scheme!r}, must be "
            f"{' or '.join(map(repr, allowed))} {where}; {_REMEDY}"
        )
    return scheme


def _check_kept_blanks(value: Tokenizer, names: Collection[str], metaspace: Step) -> None:
    """Raise ValueError if SentencePiece, keeping all blanks, would treat them otherwise."""
    if "Strip" in names:
        raise ValueError(
            "the normaliser has a step 'Strip', but SentencePiece strips only if it merges blanks; "
            f"{_REMEDY}"
        )
    pieces = [piece for piece, _ in value.model.vocab]
    several = [piece for piece in pieces if len(piece) > 1 and not piece.strip(_SPACE)]
    if several and metaspace.split:
        raise ValueError(
            f"the piece {several[0]!r} has several blanks, and unlike SentencePiece the "
            f"pre-tokenizer splits between them; {_REMEDY}"
        )


def steps(value: Step | None) -> Iterator[Step]:
    """Yield the steps of a normaliser or a pre-tokenizer, also of nested sequences."""
    if value is None:
        return
    if value.type != "Sequence":
        yield value
    for part in (*value.normalizers, *value.pretokenizers):
        yield from steps(part)


def character_map(step: Step) -> bytes:
    """Return the character map of a step "Precompiled"; ValueError for other bytes."""
    try:
        found = base64.b64decode(step.precompiled_charsmap or "", validate=True)
    except binascii.Error as error:
        raise ValueError(f"its character map is not in base64 ({error}); {_REMEDY}") from None
    normalizer_json.read_rules(found)
    return found


def check_pieces(pieces: Sequence[str]) -> None:
    """Raise ValueError if a piece crosses words: only SentencePiece would match it."""
    crossing = [piece for piece in pieces if _SPACE in piece[1:] and piece.strip(_SPACE)]
    if crossing:
        raise ValueError(
            f"{len(crossing)} pieces have a blank inside, such as {crossing[0]!r}, which only "
            f"SentencePiece matches, not the pre-tokenizer's words; {_REMEDY}"
        )
