"""Character maps, SentencePiece's compiled rules of normalisation."""

import functools
import pathlib
import tempfile
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import sentencepiece as spm

from vocap import model_proto

STANDARD = "nmt_nfkc"  # SentencePiece's default, and XLM-R's
_LONGEST = 256  # bytes that a rule replaces
_SAME = 0.99  # share of equal rules; versions of Unicode share more, other normalisers less


def standard() -> bytes:
    """Return SentencePiece's own map of NFKC, white space and controls."""
    return of(rule_name=STANDARD)


def compiled(rules: Mapping[str, str]) -> bytes:
    """Compile rules, each a text and its replacement, to a map."""
    lines = (
        "\t".join(" ".join(f"{ord(character):X}" for character in text) for text in rule)
        for rule in rules.items()
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rules.tsv"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        return of(rule_tsv=str(path))


def of(rule_name: str | None = None, rule_tsv: str | None = None) -> bytes:
    """Return the map of SentencePiece's rules of a name, or of a file; ValueError for others."""
    spm.set_min_log_level(2)  # SentencePiece logs each compilation
    try:
        normalizer = spm.SentencePieceNormalizer(rule_name=rule_name, rule_tsv=rule_tsv)
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{rule_name or rule_tsv}: no rules of SentencePiece ({error}); give a file with lines "
            "of code points, a tab, and code points"
        ) from None
    proto = model_proto.ModelProto.FromString(normalizer.serialized_model_proto())
    return proto.normalizer_spec.precompiled_charsmap


@functools.lru_cache(maxsize=8)
def is_standard(charsmap: bytes) -> bool:
    """Return whether a map is that of nmt_nfkc, in any version of Unicode."""
    own, found = read_charsmap(standard()), read_charsmap(charsmap)
    same = sum(found.get(text) == replacement for text, replacement in own.items())
    return same >= _SAME * max(len(own), len(found))


def read_charsmap(charsmap: bytes) -> dict[str, str]:
    """Decode the replacement rules of a map; ValueError for other bytes.

    The format is SentencePiece's (normalizer.cc): the size of a trie, the trie as a darts-clone
    double array of uint32, and the zero-terminated replacements.
    """
    try:
        return _rules(charsmap)
    except (IndexError, ValueError) as error:
        raise ValueError(f"not a character map ({error}); copy or download it again") from None


def _rules(charsmap: bytes) -> dict[str, str]:
    size = int.from_bytes(charsmap[:4], "little")
    units, replacements = np.frombuffer(charsmap[4 : 4 + size], "<u4"), charsmap[4 + size :]
    # A unit: bits 0-7 label, 8 whether a value follows, 9 and 10-30 offset; bit 31 marks a value.
    labels = np.where(units >> 31, 0, units & 0xFF)
    offsets = ((units >> 10) << ((units & 0x200) >> 6)).tolist()
    # The child of a node by label c is at the node's offset xor c, so a cell gives its parent's
    # offset.
    children = defaultdict(list)
    for cell in np.flatnonzero(labels).tolist():
        children[cell ^ int(labels[cell])].append(cell)
    rules = {}
    stack = [(offsets[0], b"")]
    while stack:
        base, prefix = stack.pop()
        if len(prefix) > _LONGEST:
            raise ValueError("its trie has a cycle")
        for cell in children[base]:
            key, below = prefix + bytes([cell ^ base]), cell ^ offsets[cell]
            if units[cell] & 0x100:
                start = int(units[below]) & 0x7FFFFFFF
                end = replacements.index(b"\0", start)
                rules[key.decode("utf-8")] = replacements[start:end].decode("utf-8")
            stack.append((below, key))
    return rules
