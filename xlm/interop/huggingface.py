"""Export of the tokenizer for Hugging Face: a tokenizer.json with the ids of SentencePiece.

The model part is a direct translation. `normalizer_json` translates the normaliser and the words.
These differences from SentencePiece remain, and tests/interop/huggingface_test.py pins them:

- The literal text of a control token, such as "<mask>", is that token, unless
  `split_special_tokens=True`. The text before and after it is separate.
- Text that normalises to such a literal ("＜ｓ＞"), or that spells a byte piece, stays text, but no
  piece and no unknown spans its first character and the next.
- Characters added since Unicode 13 that SentencePiece composes with a mark, or maps to a letter
  that it would compose: Tulu-Tigalari, Kirat Rai, Gurung Khema, Todhri, modifier letters.
- A BPE piece with different parts at two overlapping places: SentencePiece merges the first place,
  `tokenizers` the parts that come first in its list.
- Segmentations of (nearly) equal score, "000" as "00" "0" or "0" "00": SentencePiece sums 32-bit
  scores over the whole line, so rounding decides. `tokenizers` sums exactly in 64 bits, and ties go
  to the longer last piece. Scores with few binary places do not differ.
- Offsets: a letter composed of several characters has the first one's, so a mark at the end of a
  token is outside. SentencePiece adds deleted controls to the token before them, and in "½" only
  the last character has a width. Each byte piece has the offsets of all unknown characters beside
  it. If the model keeps white space, a token behind several blanks has the last one.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sentencepiece as spm
from google.protobuf.message import Message

from vocap import model_proto
from vocap.settings import BOS_ID, BPE, EOS_ID, SPECIALS, UNIGRAM, UNK_ID
from xlm.common import artifacts
from xlm.interop import normalizer_json, segmenter, vocabulary
from xlm.interop.normalizer_json import added_token, of_type, typed

ROLES = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")  # as in SPECIALS
_CLASS = "PreTrainedTokenizerFast"  # reads only tokenizer.json
_SPACE = normalizer_json.SPACE
_KINDS = model_proto.ModelProto.SentencePiece
_MOST_BLANKS = 1 << 16  # at the start of decoded text
_SHOWN = 20  # most differences to show


class Difference(NamedTuple):
    """Text that the exported tokenizer (`found`) segments otherwise than SentencePiece."""

    text: str
    expected: list[str]
    found: list[str]


def export_tokenizer(model: bytes, folder: pathlib.Path, max_length: int | None = None) -> None:
    """Write the files that `transformers.AutoTokenizer.from_pretrained(folder)` reads.

    `max_length` is that of `write_pretrained`. Raises ValueError as `tokenizer_json`.
    """
    write_pretrained(folder, tokenizer_json(model), max_length)


def write_pretrained(
    folder: pathlib.Path, tokenizer: Mapping[str, Any] | bytes, max_length: int | None = None
) -> None:
    """Write a tokenizer.json, a value or its text, and the roles of its `SPECIALS` beside it.

    `max_length` is the model's limit in tokens, including special ones, for `truncation=True`; None
    for a tokenizer without a model.
    """
    names = dict(zip(ROLES, SPECIALS, strict=True))
    names |= {"cls_token": names["bos_token"], "sep_token": names["eos_token"]}
    options = {
        "tokenizer_class": _CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **({} if max_length is None else {"model_max_length": max_length}),
    }
    artifacts.write_json(folder / "special_tokens_map.json", names)
    artifacts.write_json(folder / "tokenizer_config.json", names | options)
    if isinstance(tokenizer, bytes):
        artifacts.write_bytes(folder / "tokenizer.json", tokenizer)
    else:
        artifacts.write_json(folder / "tokenizer.json", tokenizer)


def mark_unreadable(folder: pathlib.Path) -> None:
    """Write a file that makes `AutoTokenizer` refuse a folder, instead of building an empty one."""
    artifacts.write_json(folder / "tokenizer_config.json", {"tokenizer_class": _CLASS})


def tokenizer_json(model: bytes) -> dict[str, Any]:
    """Convert a SentencePiece model of `vocap.merge.write_model` to a tokenizer.json.

    Ids are the model's. As in XLM-R, a text becomes `<s> A </s>`, a pair `<s> A </s> </s> B </s>`.
    Raises ValueError if the bytes are not a model, or for `why_not_exported`.
    """
    if reason := why_not_exported(model):
        raise ValueError(
            f"{reason}; read this one with sentencepiece, or export a vocabulary that "
            "build_vocab.py builds without vocab.tokenizer"
        )
    proto = vocabulary.parse(model)
    steps: tuple[dict[str, Any] | None, dict[str, Any] | None]
    if _is_gemmas(proto):
        # The original does not split words, but no piece crosses them.
        is_crossed = any(_SPACE in one.lstrip(_SPACE) for one in of_type(proto, _KINDS.NORMAL))
        words = normalizer_json.split({"Regex": f"{_SPACE}+"}, "MergedWithNext")
        visible = typed("Replace", pattern={"String": " "}, content=_SPACE)
        steps = visible, None if is_crossed else words
    else:
        steps = normalizer_json.of_model(proto)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": _added_tokens(proto),
        "normalizer": steps[0],
        "pre_tokenizer": steps[1],
        "post_processor": _template(),
        "decoder": _decoder(proto),
        "model": _segmentation(proto),
    }  # fmt: skip


def _is_gemmas(proto: Message) -> bool:
    """Return whether a model is a BPE of unchanged text with visible blanks, like Gemma's.

    User-defined pieces are then added tokens. Those of several visible blanks, which no text has
    before normalisation, are the first merges.
    """
    spec, symbols = proto.normalizer_spec, normalizer_json.symbols(proto)
    is_kept = spec.escape_whitespaces and not normalizer_json.read_rules(spec.precompiled_charsmap)
    is_changed = spec.add_dummy_prefix or spec.remove_extra_whitespaces
    is_spelled = all(_SPACE not in one or not one.strip(_SPACE) for one in symbols)
    return vocabulary.kind(proto) == BPE and is_kept and is_spelled and not is_changed


def _added_tokens(proto: Message) -> list[dict[str, Any]]:
    specials = (_KINDS.CONTROL, _KINDS.UNKNOWN)
    added = (*specials, _KINDS.USER_DEFINED) if _is_gemmas(proto) else specials
    return [
        added_token(i, piece.piece, special=piece.type in specials)
        for i, piece in enumerate(proto.pieces)
        if piece.type in added
    ]


def _decoder(proto: Message) -> dict[str, Any]:
    # Spaces before bytes, since a space spelled by bytes is a character of the text.
    steps = [
        typed("Replace", pattern={"String": _SPACE}, content=" "),
        *([typed("ByteFallback")] if _has_bytes(proto) else []),
        typed("Fuse"),
    ]
    leading = _MOST_BLANKS if proto.normalizer_spec.remove_extra_whitespaces else 1
    if proto.normalizer_spec.add_dummy_prefix:
        steps.append(typed("Strip", content=" ", start=leading, stop=0))
    return typed("Sequence", decoders=steps)


def _has_bytes(proto: Message) -> bool:
    return bool(proto.trainer_spec.byte_fallback)


def _segmentation(proto: Message) -> dict[str, Any]:
    bytes_too = _has_bytes(proto)
    if vocabulary.kind(proto) == UNIGRAM:
        scored = [
            [
                piece.piece,
                normalizer_json.symbol_score(piece.piece)
                if piece.type == _KINDS.USER_DEFINED
                else piece.score + 0.0,  # never -0.0
            ]
            for piece in proto.pieces
        ]
        return typed("Unigram", unk_id=UNK_ID, vocab=scored, byte_fallback=bytes_too)
    ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    # SentencePiece fuses unknowns, too. `ignore_merges` finds user-defined pieces, which no merge
    # makes.
    options = {
        "unk_token": SPECIALS[UNK_ID], "fuse_unk": True, "byte_fallback": bytes_too,
        "ignore_merges": bool(normalizer_json.symbols(proto)) and not _is_gemmas(proto),
    }  # fmt: skip
    return typed("BPE", **options, vocab=ids, merges=_merges(proto))


def _merges(proto: Message) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, in SentencePiece's order of merges."""
    normal = [piece for piece in proto.pieces if piece.type == _KINDS.NORMAL]
    known = {piece.piece for piece in normal}
    blanks = [one for one in normalizer_json.symbols(proto) if not one.strip(_SPACE)]
    # The longest left part comes first, to merge blanks from left to right.
    runs = sorted([_SPACE, *blanks], key=len, reverse=True)
    several = [(left, right) for left in runs for right in runs if left + right in blanks]
    return several * _is_gemmas(proto) + [
        (piece.piece[:i], piece.piece[i:])
        for piece in sorted(normal, key=lambda piece: -piece.score)
        for i in range(1, len(piece.piece))
        if piece.piece[:i] in known and piece.piece[i:] in known
    ]


def compare(
    model: bytes,
    tokenizer: pathlib.Path | Mapping[str, Any],
    texts: Iterable[str],
    ids: Sequence[int] | None = None,
) -> list[Difference]:
    """Return a `Difference` for each text, a line, on which `tokenizer` and SentencePiece disagree.

    `tokenizer` is a folder with a tokenizer.json, or its value. `ids` [V] are its ids of the
    model's pieces, if they differ. Raises ValueError without the package `tokenizers`.
    """
    if isinstance(tokenizer, pathlib.Path):
        content = artifacts.read_bytes(tokenizer / "tokenizer.json")
    else:
        content = json.dumps(tokenizer).encode()
    exported = segmenter.tokenizer_of(content, "comparing with Hugging Face")
    processor = spm.SentencePieceProcessor(model_proto=model)
    theirs = range(len(processor)) if ids is None else ids
    differences = []
    for batch in vocabulary.batches(texts):
        segmenter.check_texts(batch)
        encodings = exported.encode_batch(batch)
        for text, own, encoding in zip(batch, processor.encode(batch), encodings, strict=True):
            if encoding.ids != [theirs[i] for i in (BOS_ID, *own, EOS_ID)]:
                pieces = processor.encode(text, out_type=str)
                differences.append(Difference(text, pieces, encoding.tokens[1:-1]))
    return differences


def describe(differences: Sequence[Difference]) -> str:
    """Format the first differences, each a text and both segmentations; "" for none."""
    lines = []
    for difference in differences[:_SHOWN]:
        lines += [
            f"\n{difference.text}",
            f"  SentencePiece  {' '.join(difference.expected)}",
            f"  tokenizers     {' '.join(difference.found)}",
        ]
    if len(differences) > _SHOWN:
        lines.append(f"\nand {len(differences) - _SHOWN} more")
    return "\n".join(lines)


def why_not_exported(model: bytes) -> str:
    """Return why no tokenizer.json segments text as a model does, or "" if one does.

    The reason is a sentence without its full stop. Raises ValueError if the bytes are no unigram or
    BPE model.
    """
    proto = vocabulary.parse(model)
    is_bpe = vocabulary.kind(proto) == BPE
    specials = tuple(piece.piece for piece in proto.pieces[: len(SPECIALS)])
    symbols, is_gemmas = normalizer_json.symbols(proto), _is_gemmas(proto)
    ends = proto.trainer_spec.treat_whitespace_as_suffix
    faults = {
        f"begins with {' '.join(specials)}, must begin with {' '.join(SPECIALS)}": specials
        != SPECIALS,
        "has unused pieces": bool(of_type(proto, _KINDS.UNUSED)),
        "puts the visible space behind words": ends,
        "has user-defined pieces, and pieces that its merges do not make": is_bpe
        and bool(symbols)
        and not is_gemmas
        and not _merges_make_all(proto),
    }
    found = [fault for fault, is_found in faults.items() if is_found]
    if not (found or is_gemmas) and (
        fault := normalizer_json.fault(proto.normalizer_spec, symbols)
    ):
        found = [fault]
    return f"the tokenizer {', '.join(found)}" if found else ""


def _merges_make_all(proto: Message) -> bool:
    """Return whether each piece without a user-defined part segments, as text, into itself."""
    symbols = normalizer_json.symbols(proto)
    made = [
        piece
        for piece in of_type(proto, _KINDS.NORMAL)
        if not any(symbol in piece for symbol in symbols)
    ]
    return all(len(ids) == 1 for ids in model_proto.plain_processor(proto).encode(made))


def _template() -> dict[str, Any]:
    bos, eos = SPECIALS[BOS_ID], SPECIALS[EOS_ID]

    def part(name: str) -> dict[str, Any]:
        kind = "SpecialToken" if name in SPECIALS else "Sequence"
        return {kind: {"id": name, "type_id": 0}}

    return typed(
        "TemplateProcessing",
        single=[part(name) for name in (bos, "A", eos)],
        pair=[part(name) for name in (bos, "A", eos, eos, "B", eos)],
        special_tokens={
            token: {"id": token, "ids": [i], "tokens": [token]}
            for i, token in ((BOS_ID, bos), (EOS_ID, eos))
        },
    )
