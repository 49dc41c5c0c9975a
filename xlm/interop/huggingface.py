"""Export of the tokenizer for Hugging Face: a tokenizer.json with the ids of SentencePiece.

The model part is a direct translation. The normaliser is not: `Precompiled`, which reads
SentencePiece's character map, works grapheme by grapheme up to `tokenizers` 0.23. It thus loses
second accents and does not compose Bengali, Tamil and Hangul where SentencePiece does
(huggingface/tokenizers issues 2116 and 2334). So Unicode's NFKC composes characters here, blocked
by stop characters where SentencePiece would not compose (`_stops`). `Precompiled` does the rest,
one character at a time: spaces and controls.

Remaining differences from SentencePiece, all pinned in tests/interop/huggingface_test.py:

- The literal text of a special token, such as "<mask>", is that token, unless
  `split_special_tokens=True`.
- Text that normalises to such a literal ("＜ｓ＞") stays text, but no piece and no unknown spans
  its "<" or "</" and the following letter.
- Characters added since Unicode 13 that SentencePiece composes with a mark, or maps to a letter
  that it would compose: Tulu-Tigalari, Kirat Rai, Gurung Khema, Todhri, modifier letters.
- A BPE piece that arises from different parts at two overlapping places: SentencePiece merges the
  first place, `tokenizers` the parts that come first in its list.
- Segmentations of (nearly) equal score, "000" as "00" "0" or "0" "00": SentencePiece sums 32-bit
  scores over the whole line, so rounding decides. `tokenizers` sums in 64 bits, exactly, and ties
  go to the longer last piece. Scores of few binary places leave no difference.
"""

import base64
import functools
import itertools
import json
import pathlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sentencepiece as spm
from google.protobuf.message import Message

from vocap import model_proto
from vocap.settings import BOS_ID, EOS_ID, SPECIALS, UNIGRAM, UNK_ID
from xlm.common import artifacts, packages
from xlm.interop import charsmap, vocabulary

_ROLES = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")  # as in SPECIALS
_CLASS = "PreTrainedTokenizerFast"  # which reads tokenizer.json and nothing else
_SPACE = "\u2581"
# Two control characters that SentencePiece deletes; here the character map deletes them at the end.
_STOP, _STAND_IN = "\x01", "\x02"
# The one character that SentencePiece's map preserves although NFKC has a mapping.
_KEPT = "\uff5e"
_SYLLABLES = frozenset(map(chr, range(0xAC00, 0xD7A4)))  # of Hangul
_FINALS = frozenset(map(chr, range(0x11A8, 0x11C3)))  # final consonants of syllables
_BATCH = 1024
_SHOWN = 20  # differences


class Difference(NamedTuple):
    """A text that the exported tokenizer (`found`) cuts into other tokens than SentencePiece."""

    text: str
    expected: list[str]
    found: list[str]


def export_tokenizer(model: bytes, folder: pathlib.Path, max_length: int | None = None) -> None:
    """Write the files that `transformers.AutoTokenizer.from_pretrained(folder)` reads.

    `max_length` is the model's limit in tokens, special tokens included, to which `truncation=True`
    cuts; None for a tokenizer without a model. Raises ValueError as `tokenizer_json`.
    """
    tokenizer = tokenizer_json(model)
    names = dict(zip(_ROLES, SPECIALS, strict=True))
    names |= {"cls_token": names["bos_token"], "sep_token": names["eos_token"]}
    options = {
        "tokenizer_class": _CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **({} if max_length is None else {"model_max_length": max_length}),
    }
    artifacts.write_json(folder / "special_tokens_map.json", names)
    artifacts.write_json(folder / "tokenizer_config.json", names | options)
    artifacts.write_json(folder / "tokenizer.json", tokenizer)


def mark_unreadable(folder: pathlib.Path) -> None:
    """Write a file that makes `AutoTokenizer` refuse a folder, not make an empty tokenizer."""
    artifacts.write_json(folder / "tokenizer_config.json", {"tokenizer_class": _CLASS})


def tokenizer_json(model: bytes) -> dict[str, Any]:
    """Convert a SentencePiece model, as `vocap.merge.write_model` writes it, to a tokenizer.json.

    Ids are the model's. A text is encoded as `<s> A </s>`, a pair as `<s> A </s> </s> B </s>`, as
    in XLM-R. Raises ValueError if the bytes are not a model, or for `why_not_exported`.
    """
    if reason := why_not_exported(model):
        raise ValueError(
            f"{reason}; read this one with sentencepiece, or export a vocabulary that "
            "build_vocab.py builds without vocab.tokenizer"
        )
    proto = vocabulary.parse(model)
    options = dict.fromkeys(("normalized", "single_word", "lstrip", "rstrip"), False)
    added = [
        {"id": i, "content": token, "special": True, **options} for i, token in enumerate(SPECIALS)
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": added,
        "normalizer": _normalizer(proto.normalizer_spec),
        # No merge makes a special token.
        "pre_tokenizer": _literals_apart() if vocabulary.kind(proto) == UNIGRAM else None,
        "post_processor": _template(),
        "decoder": _typed("Metaspace", replacement=_SPACE, prepend_scheme="always", split=False),
        "model": _segmentation(proto),
    }  # fmt: skip


def _segmentation(proto: Message) -> dict[str, Any]:
    if vocabulary.kind(proto) == UNIGRAM:
        scored = [[piece.piece, piece.score] for piece in proto.pieces]
        return _typed("Unigram", unk_id=UNK_ID, byte_fallback=False, vocab=scored)
    ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    # Unknowns are fused as SentencePiece does.
    options = {"unk_token": SPECIALS[UNK_ID], "fuse_unk": True, "byte_fallback": False}
    return _typed("BPE", **options, vocab=ids, merges=_merges(proto))


def _merges(proto: Message) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece, in SentencePiece's order of merges."""
    normal = proto.pieces[len(SPECIALS) :]
    known = {piece.piece for piece in normal}
    return [
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
    model's pieces, if they differ. Raises ValueError if `tokenizers` is not installed.
    """
    with packages.needed("comparing with Hugging Face"):
        import tokenizers
    if isinstance(tokenizer, pathlib.Path):
        exported = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    else:
        exported = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    # A file may store both, and both change the ids of a text.
    exported.no_truncation()
    exported.no_padding()
    processor = spm.SentencePieceProcessor(model_proto=model)
    theirs = range(len(processor)) if ids is None else ids
    differences = []
    for batch in vocabulary.batches(texts, _BATCH):
        encodings = exported.encode_batch(batch)
        for text, own, encoding in zip(batch, processor.encode(batch), encodings, strict=True):
            if encoding.ids != [theirs[i] for i in (BOS_ID, *own, EOS_ID)]:
                pieces = processor.encode(text, out_type=str)
                differences.append(Difference(text, pieces, encoding.tokens[1:-1]))
    return differences


def describe(differences: Sequence[Difference]) -> str:
    """Format the first differences as a text and both segmentations each; "" for none."""
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

    The reason is a sentence without its full stop. Raises ValueError if the bytes are not a model,
    or one that is neither unigram nor BPE.
    """
    proto = vocabulary.parse(model)
    vocabulary.kind(proto)
    kinds = model_proto.ModelProto.SentencePiece
    specials = tuple(piece.piece for piece in proto.pieces[: len(SPECIALS)])
    normal = all(piece.type == kinds.NORMAL for piece in proto.pieces[len(SPECIALS) :])
    spec = proto.normalizer_spec
    wrong = {
        f"begins with {' '.join(specials)}": specials != SPECIALS,
        "has user-defined or byte pieces": not normal,
        f"normalises by {spec.name}": not spec.precompiled_charsmap or not _is_exact(spec),
        "treats white space in a way of its own": proto.trainer_spec.treat_whitespace_as_suffix
        or not spec.add_dummy_prefix
        or not spec.remove_extra_whitespaces
        or not spec.escape_whitespaces,
    }
    faults = [fault for fault, found in wrong.items() if found]
    if not faults:
        return ""
    return (
        f"the tokenizer {', '.join(faults)}; a tokenizer.json that segments alike can be made only "
        f"of {' '.join(SPECIALS)} and then normal pieces, normalised by nmt_nfkc or one character "
        "at a time"
    )


def _is_exact(spec: Message) -> bool:
    """Whether the export can normalise as a model does: NFKC, or characters one by one."""
    if spec.name == charsmap.STANDARD:
        return True
    return all(len(text) == 1 for text in charsmap.read_charsmap(spec.precompiled_charsmap))


def _template() -> dict[str, Any]:
    """Return the post-processor, which adds special tokens to a text and to a pair."""
    bos, eos = SPECIALS[BOS_ID], SPECIALS[EOS_ID]

    def part(name: str) -> dict[str, Any]:
        kind = "SpecialToken" if name in SPECIALS else "Sequence"
        return {kind: {"id": name, "type_id": 0}}

    return _typed(
        "TemplateProcessing",
        single=[part(name) for name in (bos, "A", eos)],
        pair=[part(name) for name in (bos, "A", eos, eos, "B", eos)],
        special_tokens={
            token: {"id": token, "ids": [i], "tokens": [token]}
            for i, token in ((BOS_ID, bos), (EOS_ID, eos))
        },
    )


def _literals_apart() -> dict[str, Any]:
    """Return a pre-tokenizer that splits the text of a special token after its "<" or "</".

    The vocabulary of `tokenizers` must hold the special tokens, so its lattice would match them in
    normalised text; SentencePiece never matches a control piece.
    """
    rest = "|".join(token.lstrip("</") for token in SPECIALS)
    pattern = {"Regex": f"</?(?={rest})"}
    return _typed("Split", pattern=pattern, behavior="MergedWithPrevious", invert=False)


def _normalizer(spec: Message) -> dict[str, Any]:
    """Return SentencePiece's normaliser, with dummy prefix, collapsed and escaped white space."""
    encoded = base64.b64encode(spec.precompiled_charsmap).decode("ascii")
    precompiled = _typed("Precompiled", precompiled_charsmap=encoded)
    steps = [precompiled]
    if spec.name == charsmap.STANDARD:
        steps = [
            _replace({"String": _STAND_IN}, _STOP),  # frees it for the kept character
            _replace({"String": _KEPT}, _STAND_IN),
            _replace({"Regex": _stops(spec.precompiled_charsmap)}, _STOP),
            _typed("NFKC"),
            _replace({"String": _STAND_IN}, _KEPT),
            precompiled,
        ]
    spaces = [
        _replace({"Regex": r"\A +| +\z"}, ""),
        _replace({"Regex": " +"}, _SPACE),
        _typed("Prepend", prepend=_SPACE),
    ]
    return _typed("Sequence", normalizers=[*steps, *spaces])


def _typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return _typed("Replace", pattern=pattern, content=content)


@functools.lru_cache(maxsize=1)  # slow, and a program exports many models with one map
def _stops(compiled: bytes) -> str:
    r"""Return an Oniguruma pattern of positions where NFKC, unlike SentencePiece, might compose.

    SentencePiece scans from left to right and replaces the longest key of its map. NFKC gives the
    same replacement for a key, but also sorts the marks after a letter and composes across them.
    The pattern has an empty match before each mark that does not continue a key. It never matches
    at the beginning of a text, where `tokenizers` would compute wrong offsets.
    """
    rules = charsmap.read_charsmap(compiled)
    single = {key: value for key, value in rules.items() if len(key) == 1}
    before = _beginnings(rules)
    for character, value in single.items():
        if value[:1] in before:  # NFKC would compose its replacement
            before.setdefault(character, {})
    joining = defaultdict(set)  # lookbehinds that exclude a stop -> their characters
    for character, beginnings in before.items():
        lookbehinds = (
            f"(?<!{_any_of(firsts)}{''.join(map(_escape, middle))})"
            for middle, firsts in sorted(beginnings.items())
        )
        joining["".join(lookbehinds)].add(character)
    any_joining = _any_of(before)
    branches = "|".join(
        f"(?={_any_of(characters)}){lookbehinds}" for lookbehinds, characters in joining.items()
    )
    # Other marks do not compose, but NFKC sorts them, and if `Precompiled` replaces a character it
    # treats a following mark as part of it.
    other = rf"(?<=[\p{{M}}{_any_of(single)}])(?=\p{{M}})(?!{any_joining})"
    # In Hangul both compose letters from left to right, but NFKC also a syllable with a final.
    syllables = _SYLLABLES.union(key for key, value in single.items() if value[-1:] in _SYLLABLES)
    finals = _FINALS.union(key for key, value in single.items() if value[:1] in _FINALS)
    hangul = f"(?<={_any_of(syllables)})(?={_any_of(finals)})"
    return rf"(?!\A)(?:(?={any_joining})(?:{branches})|{other}|{hangul})"


def _beginnings(rules: Mapping[str, str]) -> dict[str, dict[str, set[str]]]:
    """Map each key character y and string m to the x of keys that begin with x m y, not Hangul."""
    before: dict[str, dict[str, set[str]]] = {}
    for key, value in rules.items():
        if value not in _SYLLABLES:
            for i in range(1, len(key)):
                before.setdefault(key[i], {}).setdefault(key[1:i], set()).add(key[0])
    return before


def _any_of(characters: Iterable[str]) -> str:
    """Return a regular-expression character class, with ranges of adjacent characters."""
    codes = sorted(map(ord, characters))
    ranges = []
    for _, group in itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0]):
        run = [chr(code) for _, code in group]
        ranges.append(_escape(run[0]) + (f"-{_escape(run[-1])}" if len(run) > 1 else ""))
    return f"[{''.join(ranges)}]"


def _escape(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"
