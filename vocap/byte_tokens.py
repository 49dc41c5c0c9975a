"""Form of a byte-level BPE: pattern of its pretokens, its tokens as text, and its tokenizer.json.

One of 256 printable characters stands for each byte, as in GPT-2.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from vocap.settings import SPECIALS
from xlm.interop.normalizer_json import added_token, split, typed

# llama.cpp's pattern of the name below. It keeps combining marks with their letters by Unicode's
# classes only, so that other libraries cut alike. GPT-2's and Llama 3's patterns cut words at
# vowel signs of Hindi, Burmese and Thai. Digits are single.
PATTERN = "|".join((
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
))  # fmt: skip
PATTERN_NAME = "qwen35"


def _characters() -> str:
    """Return the character of each byte: itself if Latin-1 shows it, else one from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return "".join(chr(byte if byte in shown else next(others)) for byte in range(256))


CHARACTERS = _characters()
_BYTES = {character: byte for byte, character in enumerate(CHARACTERS)}


def token_bytes(token: str) -> bytes:
    """Return the bytes of a token in `CHARACTERS`."""
    return bytes(map(_BYTES.__getitem__, token))


def merge_pairs(tokens: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the two parts of each token, given tokens in the order of merges.

    BPE merges the bytes of a token in the same order everywhere. So with one pair a token, programs
    that read pairs agree with programs that read ranks. A token that earlier merges do not leave in
    two parts never arises; it is left out.
    """
    found: dict[str, tuple[str, str]] = {}
    ranks: dict[str, int] = {}
    for token in tokens:
        parts = [*token]
        while len(parts) > 2:
            pairs = (ranks.get(a + b, len(ranks)) for a, b in itertools.pairwise(parts))
            rank, i = min((rank, i) for i, rank in enumerate(pairs))
            if rank == len(ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            found[token] = parts[0], parts[1]
            ranks[token] = len(ranks)
    return found


def tokenizer_json(
    tokens: Sequence[str],
    scores: np.ndarray,
    fixed: Sequence[str] = SPECIALS,
    user_defined: Collection[str] = (),
) -> bytes:
    """Serialise a tokenizer.json: the `fixed` tokens, then the others by descending score.

    All fixed tokens are special except `user_defined` ones. Encoding adds no special tokens.
    Offsets of words leave out the blank before them.
    """
    ordered = [tokens[i] for i in np.argsort(-np.asarray(scores), kind="stable")]
    merged = merge_pairs(token for token in ordered if len(token) > 1)
    level = typed("ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
    value = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            added_token(i, token, special=token not in user_defined)
            for i, token in enumerate(fixed)
        ],
        "normalizer": None,
        "pre_tokenizer": typed(
            "Sequence", pretokenizers=[split({"Regex": PATTERN}, "Isolated"), level]
        ),
        "post_processor": level,
        "decoder": level,
        "model": typed(
            "BPE", unk_token=None, byte_fallback=False, ignore_merges=False,
            vocab={token: i for i, token in enumerate((*fixed, *ordered))},
            merges=list(merged.values()),
        ),
    }  # fmt: skip
    return json.dumps(value, ensure_ascii=False, indent=1).encode()
