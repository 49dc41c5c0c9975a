"""BPE and WordPiece tokenizers of Hugging Face's `tokenizers`, read from a tokenizer.json.

Tokenizers made from SentencePiece models, such as that of Gemma and mmBERT, become such models
again. Byte-level BPE (RoBERTa) and WordPiece have none: we read their pieces only for embeddings.
"""

import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from google.protobuf.message import Message

from vocap import model_proto
from vocap.byte_tokens import CHARACTERS, token_bytes
from vocap.settings import SPECIALS
from xlm.common import declarations
from xlm.common.declarations import Count
from xlm.interop.normalizer_json import BYTE, SPACE
from xlm.interop.tokenizer_json import GIVEN, Parts, steps

_KINDS = model_proto.ModelProto.SentencePiece
# Other names of `SPECIALS`, in their order.
_NAMES = (("<bos>", "[CLS]"), ("[PAD]",), ("<eos>", "[SEP]"), ("[UNK]",), ("[MASK]",))
_BLANK = {"String": " "}
_REMEDY = "give a --vocabulary for the model to continue with"


class _Model(msgspec.Struct, frozen=True):
    vocab: dict[str, Count]
    merges: list[str | tuple[str, str]] = []
    byte_fallback: bool = False


class Tokenizer(Parts, frozen=True, kw_only=True):
    """The part of a BPE's tokenizer.json that we read."""

    model: _Model

    @property
    def is_of_bytes(self) -> bool:
        found = (*steps(self.normalizer), *steps(self.pre_tokenizer))
        return any(step.type == "ByteLevel" for step in found)

    def merges(self) -> dict[tuple[str, str], int]:
        """Return the ranks of merged pairs."""
        pairs = (one.split(" ", 1) if isinstance(one, str) else one for one in self.model.merges)
        return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


class _Piece(NamedTuple):
    name: str
    score: float  # negated rank of its first merge
    kind: int


def read(text: bytes) -> Tokenizer:
    """Parse the tokenizer.json of a BPE or WordPiece; ValueError if it is malformed."""
    found: Tokenizer = declarations.parse(text, Tokenizer, **GIVEN)
    return found


def pieces(value: Tokenizer) -> tuple[list[str], list[float]]:
    """Return pieces by id, as SentencePiece spells them, and scores, -inf for added tokens."""
    found = _pieces(value)
    scores = [one.score if one.kind == _KINDS.NORMAL else -np.inf for one in found]
    return [one.name for one in found], scores


def sentencepiece_model(value: Tokenizer) -> Message:
    """Build a SentencePiece model with the same segmentation, without special tokens.

    Raises ValueError if there is none.
    """
    if value.is_of_bytes:
        raise ValueError(f"a byte-level BPE, like RoBERTa's, has no SentencePiece model; {_REMEDY}")
    kinds = [step.type for step in (*steps(value.normalizer), *steps(value.pre_tokenizer))]
    normalizers = list(steps(value.normalizer))
    prepends = bool(normalizers) and normalizers[0].type == "Prepend"
    replaced = [(step.type, step.pattern, step.content) for step in normalizers[prepends:]]
    splits = [step for step in steps(value.pre_tokenizer) if step.pattern != _BLANK]
    if replaced != [("Replace", _BLANK, SPACE)] or splits:
        raise ValueError(
            f"the tokenizer's steps are {' and '.join(kinds) or 'none'}, must be a Replace of the "
            f"blank by {SPACE!r}, as in Gemma and mmBERT, with or without a Prepend; {_REMEDY}"
        )
    _check_merges(value)
    proto = model_proto.ModelProto()
    proto.trainer_spec.model_type = model_proto.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = value.model.byte_fallback
    spec = proto.normalizer_spec
    spec.name, spec.add_dummy_prefix, spec.remove_extra_whitespaces = "identity", prepends, False
    for name, score, kind in _pieces(value):
        if name not in SPECIALS and kind != _KINDS.UNUSED:
            proto.pieces.add(piece=name, score=score, type=kind)
    return proto


def _pieces(value: Tokenizer) -> list[_Piece]:
    """Return the pieces by id, with our names of special tokens, and unused pieces in gaps."""
    names = {number: piece for piece, number in value.model.vocab.items()}
    added = {one.id: one for one in value.added_tokens or ()}
    names |= {number: one.content.replace(" ", SPACE) for number, one in added.items()}
    ours = _our_names(names.values())
    ranks: dict[str, int] = {}
    for (left, right), rank in value.merges().items():
        ranks.setdefault(left + right, rank)

    def piece(number: int) -> _Piece:
        name = names.get(number, "")
        if number in added or name in ours:
            is_special = name in ours or added[number].special
            kind = _KINDS.CONTROL if is_special else _KINDS.USER_DEFINED
            return _Piece(ours.get(name, name), 0.0, kind)
        if value.model.byte_fallback and BYTE.fullmatch(name):
            return _Piece(name, 0.0, _KINDS.BYTE)
        spelled = _spelled(name) if value.is_of_bytes else name
        if not spelled:
            return _Piece(f"<unused_{number}>", 0.0, _KINDS.UNUSED)
        return _Piece(spelled, -float(ranks.get(name, len(ranks))), _KINDS.NORMAL)

    return [piece(number) for number in range(max(names, default=-1) + 1)]


def _our_names(present: Iterable[str]) -> dict[str, str]:
    """Return `SPECIALS` by their names among the pieces."""
    names, found = set(present), {}
    for special, others in zip(SPECIALS, _NAMES, strict=True):
        found[next((name for name in (special, *others) if name in names), special)] = special
    return found


def word_pieces(text: bytes) -> tuple[list[str], list[float]]:
    """Return the pieces of a WordPiece tokenizer.json as SentencePiece spells them, and scores.

    A piece at the start of a word has a visible space, unless BERT splits it off: punctuation,
    ideographs. The fewest pieces have the best score. Pieces with another's spelling are unused.
    """
    names = read(text).model.vocab
    ours, size = _our_names(names), max(names.values(), default=-1) + 1
    pieces, scores = [f"<unused_{i}>" for i in range(size)], [-np.inf] * size
    seen: set[str] = set()
    for name, number in sorted(names.items(), key=lambda one: one[0].startswith("##")):
        is_split_off = not name[:1].isalnum() or unicodedata.name(name[0], "").startswith("CJK")
        spelled = name.removeprefix("##") if is_split_off else SPACE + name
        if name in ours:
            pieces[number] = ours[name]
        elif spelled and spelled not in seen and spelled not in SPECIALS:
            seen.add(spelled)
            pieces[number], scores[number] = spelled, -1.0
    return pieces, scores


def _spelled(piece: str) -> str:
    """Return the text of a byte-level piece with visible spaces; "" if no piece can have it."""
    try:
        text = token_bytes(piece).decode() if set(piece) <= _SHOWN else ""
    except UnicodeDecodeError:
        return ""
    return "" if {SPACE, "\0"} & {*text} else text.replace(" ", SPACE)


_SHOWN = set(CHARACTERS)


def _check_merges(value: Tokenizer) -> None:
    """Raise ValueError unless all pairs of pieces that make a piece are merges."""
    merges, own = value.merges(), value.model.vocab.keys()
    for piece in {left + right for left, right in merges}:
        for pair in ((piece[:i], piece[i:]) for i in range(1, len(piece))):
            if pair not in merges and own >= {*pair}:
                raise ValueError(
                    f"no merge makes the piece {piece!r} from {pair[0]!r} and {pair[1]!r}, so the "
                    f"BPE does not come from a SentencePiece model; {_REMEDY}"
                )
