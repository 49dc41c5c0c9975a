"""Text as people write it: pieces of their own for what a tokenizer changes or does not know.

A normaliser makes "," of a full-width comma, and takes letters of Thai or Bengali apart. A form is
a shortest part of a text that is changed so, or a character that is unknown. Pieces at the end of a
model are user-defined for the former, which so survive the normaliser, and of the lowest score for
the latter, which so leave longer pieces alone. A decoder learns where they belong.
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
    """Return the forms that texts have at least `least` times, the most frequent ones first.

    Blanks of other kinds are no forms: they stay plain blanks, at which words are cut.
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
    """Return the unknown parts of a text as it is written, one for each `<unk>`."""
    one = processor.encode(text, return_type="offset_mapping", return_bytes=False)
    pairs = zip(one["ids"], one["offsets"], strict=True)
    return [text[slice(*place)].strip() for id_, place in pairs if id_ == processor.unk_id()]


def _changed(text: str, normal: str, offsets: Sequence[int]) -> Iterator[str]:
    """Yield the shortest parts of a text that are written otherwise in its normal form."""
    groups = {0: ""}
    for start, one in zip(offsets, normal, strict=False):  # the last offset is the end
        groups[start] = groups.get(start, "") + one.replace(_SPACE, " ")
    groups[0] = groups[0].removeprefix(" ")  # which is put before a text
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
    """Return the processor that reads sources: as before any form was added, ids included.

    Pre-trained embeddings are those of normalised text. Characters that were unknown are known.
    """
    proto = _with_inert_forms(model, _KINDS.UNUSED)
    return spm.SentencePieceProcessor(model_proto=proto.SerializeToString())


def to_export(model: bytes) -> bytes:
    """Return a model that segments text as `for_sources`, without unused pieces.

    Forms are normal pieces, which no normalised text has.
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
