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
import unicodedata
from collections.abc import Iterator

import numpy as np
import sentencepiece as spm
import tokenizers

from vocap import merge, model_proto
from vocap.settings import BPE, SPECIALS, UNIGRAM, VocabularySettings
from vocap.text_rules import SPACE, TextRules
from xlm.interop import charsmap, huggingface

ROOT = pathlib.Path(__file__).resolve().parent.parent
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
SYMBOLS = ("<code>", "\n", "~", "``", "the", "\u2460")

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


KEEP, BYTES = {"whitespace": "keep"}, {"byte_fallback": True}
CHAT = {"control_symbols": ("<|user|>", "[INST]"), "reserved": 1}
# Where white space is kept, "\n" is a piece already.
SYMBOLIC = {"user_defined_symbols": tuple(one for one in SYMBOLS if one != "\n")}
# Settings of vocabularies by mode; "bpe_" begins those of another kind than unigram.
MODES = {
    "standard": {},
    "nfkc": {"normalizer": "nfkc"},
    "nfc": {"normalizer": "nfc"},
    "identity": {"normalizer": "identity"},
    "singles": {"normalizer": "identity"},  # replaced by `RULES`
    "several": {"normalizer": "identity"},
    "bytes": BYTES | CHAT,
    "symbols": BYTES | CHAT | {"user_defined_symbols": SYMBOLS},
    "keep": {"normalizer": "nfkc"} | KEEP | BYTES,
    "keep_nfc": {"normalizer": "nfc"} | KEEP | BYTES | SYMBOLIC,
    "unknowns": {"normalizer": "identity"} | KEEP | CHAT,
    "lossless": {"normalizer": "identity"} | KEEP | BYTES,
    "lossless_chat": {"normalizer": "identity"} | KEEP | BYTES | CHAT | SYMBOLIC,
    "bpe_standard": {},
    "bpe_bytes": BYTES | CHAT,
    "bpe_lossless": {"normalizer": "identity"} | KEEP | BYTES | CHAT,
    "bpe_symbols": {"normalizer": "nfc"} | KEEP | BYTES | CHAT | SYMBOLIC,
}
RULES = {"singles": SINGLES, "several": SEVERAL}


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
def model(mode: str) -> bytes:
    settings = VocabularySettings(**MODES[mode])
    kind = BPE if mode.startswith("bpe_") else UNIGRAM
    scored = {one: score for one, score in pieces(kind).items() if one not in settings.fixed}
    made = merge.write_model([*scored], np.array([*scored.values()]), kind, settings)
    if mode not in RULES:
        return made
    proto = model_proto.ModelProto.FromString(made)
    proto.normalizer_spec.precompiled_charsmap = charsmap.compiled(RULES[mode])
    return proto.SerializeToString()


@functools.cache
def alphabets() -> list[list[str]]:
    """What random texts are made of, kind by kind."""
    marks = [c for c in map(chr, range(0x300, 0x1100)) if unicodedata.category(c)[0] == "M"]
    nfc = TextRules(normalizer="nfc").processor().serialized_model_proto()
    nfc = model_proto.ModelProto.FromString(nfc).normalizer_spec.precompiled_charsmap
    rules = sorted(key for key in charsmap.read_charsmap(nfc) if YOUNG.isdisjoint(map(ord, key)))
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


def wrong(mode: str, text: str) -> str:
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
    if "lossless" in mode and back != text.replace(SPACE, " "):
        return f"decoded {back!r}"
    return ""


@functools.cache
def loaded(mode: str) -> tuple[spm.SentencePieceProcessor, tokenizers.Tokenizer]:
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
        failed = 0
        for text in texts(args.count, args.seed):
            if difference := wrong(name, text):
                failed += 1
                if failed <= 5:
                    print(f"  {text[:100]!a}\n    {difference[:1000]!a}")
        print(f"{name}: {args.count} texts, {failed} differ", flush=True)


if __name__ == "__main__":
    main()
