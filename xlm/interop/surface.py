"""Original text: pieces for characters that a tokenizer changes or does not know.

A normaliser turns a full-width comma into ",", and decomposes letters of Thai or Bengali. A form is
a shortest part of a text that it changes, or an unknown character. A model gets pieces for forms at
its end. Changed forms are user-defined pieces, which survive the normaliser. Unknown characters
have the lowest score, so longer pieces win. A decoder learns to use them.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece as spm
from google.protobuf.message import Message

from vocap import model_proto
from xlm.interop import vocabulary

_SPACE = "\u2581"
_KINDS = model_proto.ModelProto.SentencePiece


def missing_forms(model: bytes, texts: Iterable[str], least: int) -> list[str]:
    """Return the forms with at least `least` occurrences in texts, the most frequent ones first.

    Other kinds of blanks are no forms: they stay plain blanks between words.
    """
    processor = spm.SentencePieceProcessor(model_proto=model)
    found: collections.Counter[str] = collections.Counter()
    for batch in vocabulary.batches(text.strip() for text in texts):
        for text, one in zip(batch, processor.normalize(batch), strict=True):
            if one.replace(_SPACE, " ").strip() != text:
                found.update(_changed(text, *processor.normalize(text, with_offsets=True)))
        for text, row in zip(batch, processor.encode(batch), strict=True):
            if processor.unk_id() in row:
                normal = processor.normalize("".join(unknown(processor, text)))
                found.update(normal.replace(_SPACE, ""))
    return [form for form, count in found.most_common() if count >= least and not form.isspace()]


def unknown(processor: spm.SentencePieceProcessor, text: str) -> list[str]:
    """Return the unknown parts of the original text, one for each `<unk>`."""
    one = processor.encode(text, return_type="offset_mapping", return_bytes=False)
    pairs = zip(one["ids"], one["offsets"], strict=True)
    return [text[slice(*place)].strip() for id_, place in pairs if id_ == processor.unk_id()]


def _changed(text: str, normal: str, offsets: Sequence[int]) -> Iterator[str]:
    """Yield the shortest parts of a text that its normal form changes."""
    groups = {0: ""}
    for start, one in zip(offsets, normal, strict=False):  # the last offset is the end
        groups[start] = groups.get(start, "") + one.replace(_SPACE, " ")
    groups[0] = groups[0].removeprefix(" ")  # the normaliser adds it
    for (start, one), end in zip(groups.items(), [*groups, len(text)][1:], strict=True):
        part = text[start:end]
        while part and one and part[0] == one[0]:
            part, one = part[1:], one[1:]
        if part:
            yield part


def with_forms(model: bytes, forms: Sequence[str]) -> tuple[bytes, list[list[int]]]:
    """Add forms to a model; return it, and the old ids of each form's normal parts."""
    proto = vocabulary.parse(model)
    processor = spm.SentencePieceProcessor(model_proto=model)
    plain, unk = model_proto.plain_processor(proto), processor.unk_id()
    known = {piece.piece for piece in proto.pieces}
    added = [form for form in dict.fromkeys(forms) if form not in known]
    normal = [processor.normalize(form).removeprefix(_SPACE) for form in added]
    lowest = min(piece.score for piece in proto.pieces if piece.type == _KINDS.NORMAL)
    for form, text in zip(added, normal, strict=True):
        kind = _KINDS.NORMAL if form == text else _KINDS.USER_DEFINED
        proto.pieces.add(piece=form, type=kind, score=lowest if form == text else 0.0)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    parts = [[i for i in plain.encode(text) if i != unk] for text in normal]
    return proto.SerializeToString(), parts


def for_sources(model: bytes) -> spm.SentencePieceProcessor:
    """Return the processor for sources: the ids of a model without forms.

    Pre-trained embeddings are those of normalised text. Once unknown characters are known.
    """
    proto = _with_inert_forms(model, _KINDS.UNUSED)
    return spm.SentencePieceProcessor(model_proto=proto.SerializeToString())


def to_export(model: bytes) -> bytes:
    """Return a model with the segmentation of `for_sources`, without unused pieces.

    Forms are normal pieces, which normalised text never contains.
    """
    return _with_inert_forms(model, _KINDS.NORMAL).SerializeToString()


def _with_inert_forms(model: bytes, kind: int) -> Message:
    proto = vocabulary.parse(model)
    spec = model_proto.ModelProto(normalizer_spec=proto.normalizer_spec).SerializeToString()
    normalize = spm.SentencePieceNormalizer(model_proto=spec).normalize
    for piece in itertools.takewhile(_is_form, reversed(proto.pieces)):
        if normalize(piece.piece).removeprefix(_SPACE) != piece.piece.removeprefix(_SPACE):
            piece.type = kind
    return proto


def _is_form(piece: Message) -> bool:
    return piece.type == _KINDS.USER_DEFINED or len(piece.piece) == 1
