"""Tables of all code points: kind, script and lower case of each."""

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
from fontTools.unicodedata import Scripts

BAD_BYTE = sys.maxunicode + 1  # stands for a byte that is not UTF-8
NUM_CODES = BAD_BYTE + 1

# Bits of `Tables.kinds`, and of a line for all of its characters.
LETTER, DIGIT, SPACE, CONTROL, INVISIBLE, MAYBE_NOT_NFC, BAD = (1 << i for i in range(7))

_PLANES = 0x40000  # planes 0 to 3; plane 14 and beyond hold no letters
# Zero-width spaces, soft hyphens, marks of direction. Joiners are part of Persian and Hindi.
_INVISIBLE = (0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF)


class Tables(NamedTuple):
    """[NUM_CODES] each: bits, number in `scripts()` (0 for shared characters), and lower case.

    `lower` is 0 except for letters and marks, and negative in scripts of syllables or ideographs.
    """

    kinds: np.ndarray
    scripts: np.ndarray
    lower: np.ndarray


@functools.cache
def scripts() -> tuple[str, ...]:
    """ISO 15924 codes of scripts by number; "Hani" stands for Han and kana, which mix."""
    return ("Zyyy", *sorted(set(Scripts.VALUES) - {"Zyyy", "Zinh", "Zzzz", "Hira", "Kana"}))


@functools.cache
def tables() -> Tables:
    number = {code: i for i, code in enumerate(scripts())}
    number |= {"Hira": number["Hani"], "Kana": number["Hani"]}
    lengths = np.diff([*Scripts.RANGES, NUM_CODES])
    script = np.repeat([number.get(one, 0) for one in Scripts.VALUES], lengths).astype(np.uint8)
    kinds, lower = np.zeros(NUM_CODES, np.uint8), np.zeros(NUM_CODES, np.int32)
    letters = []
    for code, char in enumerate(map(chr, range(_PLANES))):
        category = unicodedata.category(char)
        if category[0] in "LM":
            letters.append(code)
            lower[code] = ord(char.lower()[0])
        elif category == "Nd":
            kinds[code] = DIGIT
        elif char.isspace():
            kinds[code] = SPACE
        elif category == "Cc":
            kinds[code] = CONTROL
        parts = unicodedata.decomposition(char)
        if parts and parts[0] != "<":
            *_, last = parts.split()
            if not unicodedata.is_normalized("NFC", char):
                kinds[code] |= MAYBE_NOT_NFC
            elif " " in parts:
                kinds[int(last, 16)] |= MAYBE_NOT_NFC
    kinds[letters] |= LETTER
    for codes, bit in ((_INVISIBLE, INVISIBLE), ([BAD_BYTE], BAD)):
        kinds[list(codes)] |= bit
    is_wide = np.isin(script, [number[one] for one in ("Hani", "Hang", "Yiii", "Bopo")])
    return Tables(kinds, script, np.where(is_wide, -lower, lower))
