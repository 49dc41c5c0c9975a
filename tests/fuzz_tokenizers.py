"""Texts of many kinds through SentencePiece, the exported tokenizer, and the model read back.

    python -m tests.fuzz_tokenizers --count=20000 --seed=1
    python -m tests.fuzz_tokenizers --mode=lossless --count=20000

For each mode that vocabularies have, all must give the same ids and the same text back, which in a
lossless mode is the text itself, but for U+2581.
"""

import argparse
import functools
import io
import json
import pathlib
import random
import sys
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import sentencepiece as spm
import tokenizers

from vocap import merge, model_proto
from vocap.settings import SPECIALS, UNIGRAM
from xlm.interop import charsmap, huggingface

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPACE = "\u2581"
KINDS = model_proto.ModelProto.SentencePiece
WHITE_SPACE = [
    *(SPACE * n for n in range(2, 17)), *("\n" * n for n in range(1, 5)),
    *("\t" * n for n in range(1, 5)), "\r\n", "\r",
]  # fmt: skip
# Rules as of a user's file: single characters, one into many and none, and several characters.
SINGLES = {
    "A": "a",
    "B": "b",
    "\u0301": "",
    "\u00e9": "e",
    "\u2026": "...",
    "\u3000": " ",
    "x": "y",
}
SEVERAL = SINGLES | {
    "...": "\u22ef",
    "``": '"',
    "ab": "Z",
    "abc": "Y",
    "e\u0301": "E",
    "\r\n": "\n",
}
CONTROLS = ("<|user|>", "[INST]", "<reserved_0>")
SYMBOLS = ("<code>", "\n", "``", "the", "\u2460")


# Blocks that hold what joins or is joined since Unicode 13: later than the tables of `tokenizers`.
YOUNG = frozenset((
    *range(0xA7F1, 0xA7F5),    # modifier letters
    *range(0x105C0, 0x10600),  # Todhri
    *range(0x10780, 0x107C0),  # modifier letters
    *range(0x11380, 0x11400),  # Tulu-Tigalari
    *range(0x11900, 0x11960),  # Dives Akuru
    *range(0x16100, 0x16140),  # Gurung Khema
    *range(0x16D40, 0x16D80),  # Kirat Rai
    *range(0x1CCD6, 0x1CCFA),  # outlined letters
    *range(0x1E030, 0x1E090),  # Cyrillic modifier letters
))  # fmt: skip


class Mode(NamedTuple):
    """A form of the SentencePiece model."""

    normalizer: str = "nmt_nfkc"
    keep: bool = False  # white space
    byte_fallback: bool = False
    controls: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    kind: str = UNIGRAM


MODES = {
    "standard": Mode(),
    "nfkc": Mode("nfkc"),
    "nfc": Mode("nfc"),
    "identity": Mode("identity"),
    "singles": Mode("singles"),
    "several": Mode("several"),
    "bytes": Mode(byte_fallback=True, controls=CONTROLS),
    "symbols": Mode(symbols=SYMBOLS, controls=CONTROLS, byte_fallback=True),
    "keep": Mode("nfkc", keep=True, byte_fallback=True),
    "keep_nfc": Mode("nfc", keep=True, symbols=SYMBOLS, byte_fallback=True),
    "unknowns": Mode("identity", keep=True, controls=CONTROLS),
    "lossless": Mode("identity", keep=True, byte_fallback=True),
    "lossless_chat": Mode("identity", True, True, CONTROLS, SYMBOLS),
    "bpe_bytes": Mode(byte_fallback=True, controls=CONTROLS, kind="bpe"),
    "bpe_lossless": Mode("identity", True, True, CONTROLS, (), "bpe"),
    "bpe_symbols": Mode("nfc", True, True, CONTROLS, SYMBOLS, "bpe"),
}


def corpus() -> list[str]:
    """Sentences of the embedded corpus, of 14 languages."""
    files = [*sorted((ROOT / "corpus").glob("*.txt")), ROOT / "corpus/core.tsv"]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [cell for line in lines for cell in line.split("\t") if cell]


@functools.cache
def pieces(kind: str = UNIGRAM) -> dict[str, float]:
    """Pieces of the corpus, and for unigram scores whose sums 32 bits hold up to 262,144 nats."""
    trained = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=trained, vocab_size=3000, model_type=kind,
        character_coverage=0.999, minloglevel=2,
    )  # fmt: skip
    proto = model_proto.ModelProto.FromString(trained.getvalue())
    return {
        piece.piece: round(piece.score * 2**6) / 2**6
        for piece in proto.pieces
        if piece.type == piece.NORMAL
    }


@functools.cache
def compositions() -> dict[str, str]:
    """Rules of NFC, from left to right: each character's decompositions, whole and in part."""
    rules = {}
    for character in map(chr, range(sys.maxunicode + 1)):
        if "\ud800" <= character <= "\udfff":
            continue
        composed, apart = (unicodedata.normalize(form, character) for form in ("NFC", "NFD"))
        if composed != character:
            rules[character] = composed
            continue
        for cut in range(1, len(apart)):
            rules[unicodedata.normalize("NFC", apart[:cut]) + apart[cut:]] = character
    return rules


@functools.cache
def character_map(name: str) -> bytes:
    rules = {"nfc": compositions, "singles": lambda: SINGLES, "several": lambda: SEVERAL}
    if name in rules:
        return charsmap.compiled(rules[name]())
    normalizer = spm.SentencePieceNormalizer(rule_name=name)
    proto = model_proto.ModelProto.FromString(normalizer.serialized_model_proto())
    return proto.normalizer_spec.precompiled_charsmap


@functools.cache
def model(mode: Mode) -> bytes:
    """A model with that mode's pieces in the order of `vocap.merge.write_model`."""
    scored = dict(pieces(mode.kind))
    best, last = max(0.0, *scored.values()), min(scored.values())
    white = WHITE_SPACE if mode.keep else []
    fixed = dict.fromkeys((*SPECIALS, *mode.controls), KINDS.CONTROL)
    fixed |= {SPECIALS[3]: KINDS.UNKNOWN} | dict.fromkeys(mode.symbols, KINDS.USER_DEFINED)
    if mode.byte_fallback:
        fixed |= {f"<0x{byte:02X}>": KINDS.BYTE for byte in range(256)}
    proto = model_proto.ModelProto()
    for piece, kind in fixed.items():
        proto.pieces.add(piece=piece, score=0.0, type=kind)
    for piece in white:
        if piece not in fixed:
            # At equal scores SentencePiece merges the first pair of a text, `tokenizers` another.
            score = best if mode.kind == UNIGRAM else last - len(piece) - ("\r" not in piece) / 2
            proto.pieces.add(piece=piece, score=score, type=KINDS.NORMAL)
    for piece, score in scored.items():
        if piece not in fixed and piece not in white:
            proto.pieces.add(piece=piece, score=score, type=KINDS.NORMAL)
    plain = model_proto.ModelProto.FromString(merge.write_model(["a"], np.zeros(1), mode.kind))
    proto.trainer_spec.CopyFrom(plain.trainer_spec)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.trainer_spec.control_symbols.extend(mode.controls)
    proto.trainer_spec.byte_fallback = mode.byte_fallback
    spec = proto.normalizer_spec
    spec.name = mode.normalizer if mode.normalizer[0] in "ni" else "user_defined"
    spec.precompiled_charsmap = character_map(mode.normalizer)
    spec.add_dummy_prefix = spec.escape_whitespaces = True
    spec.remove_extra_whitespaces = not mode.keep
    return proto.SerializeToString()


@functools.cache
def alphabets() -> list[list[str]]:
    """What random texts are made of, kind by kind."""
    marks = [c for c in map(chr, range(0x300, 0x1100)) if unicodedata.category(c)[0] == "M"]
    rules = sorted(key for key in compositions() if YOUNG.isdisjoint(map(ord, key)))
    return [
        marks, rules, [*SEVERAL, *SYMBOLS, "aAbBc.eE"],
        [*"\U0001f468\U0001f469\U0001f44d\U0001f3fd\u2764", "\u200d", "\ufe0f", "\U0001f1e9"],
        [*"\0\x01\x02\x03\x07\x7f\ufeff\u200b\u200c\ufdd0\uffff", "\u0378", "\U000e0000"],
        ["\r\n", "\r", "\n", "\n\n", "\t", " ", "  ", " " * 5, "\u3000", "\xa0", "\u2028", "\x85"],
        ["def f(x):\n    return {x: [1, 2]}\n", "</a>", "<p class='x'>", "&nbsp;", "0x0A", "//"],
        [*"中文字符日本語ひらがなカタカナภาษาไทยພາສາລາວမြန်မာ", "\u3002"],
        ["\u202b", "\u202a", "\u202c", "\u2067", "\u2069", "\u200f", *"שלום مرحبا"],
        [f"<0x{byte:02X}>" for byte in (0, 10, 65, 255)],
        [piece.replace(SPACE, " ") for piece in pieces()], [*"aeoklEsß0123456789½ﬁ～＜ｓ＞"],
        ["".join(map(chr, range(0x1100, 0x1106))), *"ᄀ가ᅡᆨᇂ각ㄱㅏ", "\u3131"],
        [chr(code) for code in range(0x20, 0xD800, 7)], [SPACE],
    ]  # fmt: skip


def texts(count: int, seed: int) -> Iterator[str]:
    """Random texts without literals of control tokens; every hundredth has words of 10,000."""
    rng = random.Random(seed)
    for i in range(count):
        weights = [rng.random() ** 3 for _ in alphabets()]
        weights[-1] *= i % 10 == 0
        length = 2000 if i % 100 == 99 else int(2 ** rng.uniform(0, 6))
        parts = (rng.choice(rng.choices(alphabets(), weights)[0]) for _ in range(length))
        yield "".join(parts) if i % 100 < 99 else ("".join(parts) * 5)[:10_000].replace(" ", "")


def wrong(mode: Mode, text: str) -> str:
    """Return what differs on a text, or ""."""
    processor, theirs = loaded(mode)
    ids = processor.encode(text)
    found = theirs.encode(text, add_special_tokens=False)
    if found.ids != ids:
        pairs = zip(ids, found.ids, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
        near = slice(max(first - 2, 0), first + 5)
        return f"{processor.encode(text, out_type=str)[near]} {found.tokens[near]}"
    if SPECIALS.index("<unk>") in ids:
        return ""
    back = theirs.decode(ids, skip_special_tokens=False)
    if back != processor.decode(ids):
        return f"decoded {back!r}, SentencePiece {processor.decode(ids)!r}"
    if mode[:3] == ("identity", True, True) and back != text.replace(SPACE, " "):
        return f"decoded {back!r}"
    return ""


@functools.cache
def loaded(mode: Mode) -> tuple[spm.SentencePieceProcessor, tokenizers.Tokenizer]:
    value = json.dumps(huggingface.tokenizer_json(model(mode)))
    processor = spm.SentencePieceProcessor(model_proto=model(mode))
    return processor, tokenizers.Tokenizer.from_str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    args = parser.parse_args()
    for name in MODES if args.mode == "all" else [args.mode]:
        mode, failed = MODES[name], 0
        for text in texts(args.count, args.seed):
            if difference := wrong(mode, text):
                failed += 1
                if failed <= 5:
                    print(f"  {text[:100]!a}\n    {difference[:1000]!a}")
        print(f"{name}: {args.count} texts, {failed} differ", flush=True)


if __name__ == "__main__":
    main()
