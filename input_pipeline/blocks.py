"""Blocks of text: the unit of the held-out split, of deduplication and of training segments.

A block is a document or, if that is long, a run of its consecutive sentences. One hash of its text
identifies it and decides whether it is held out. So all readers of the same text make the same
choice, wherever it lies and however it is cut into files. Overlong lines are cut before.
"""

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator

from input_pipeline.text_files import Document
from xlm.common.long_lines import cut_line

# Longer documents are cut, so that a file without blank lines can still be split.
BLOCK_SENTENCES = 20
# A row of 512 tokens of a vocabulary of 250K or more holds some 2 to 5 KB of text.
DEFAULT_BLOCK_BYTES = 8192
_DIGEST_BYTES = 16
_HALF = 1 << 64


def cut_blocks(sentences: Iterable[str], block_bytes: int) -> Iterator[Document]:
    """Cut documents, sentences with "" at each end, into blocks; hold at most two in memory.

    A block has at least `BLOCK_SENTENCES` sentences and `block_bytes` bytes of UTF-8; the rest of a
    document joins its last block. With 0 bytes, the rest is a shorter block.
    """
    full: Document = []  # the document's last whole block, which may grow
    block: Document = []
    size = 0
    for sentence in itertools.chain.from_iterable(map(cut_line, sentences)):
        if sentence:
            block.append(sentence)
            size += len(sentence.encode()) + 1
            if len(block) >= BLOCK_SENTENCES and size >= block_bytes:
                if full:
                    yield full
                full, block, size = block, [], 0
        elif full or block:
            yield from _last_blocks(full, block, block_bytes)
            full, block, size = [], [], 0
    yield from _last_blocks(full, block, block_bytes)


def _last_blocks(full: Document, block: Document, block_bytes: int) -> Iterator[Document]:
    parts = [full + block] if block_bytes else [full, block]
    return (part for part in parts if part)


def text_digest(block: Document, seed: int) -> bytes:
    """Return the 128-bit BLAKE2b hash of a block's sentences, keyed by `seed`."""
    text = "\n".join(block).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=str(seed).encode()).digest()


def heldout_limit(fraction: float) -> int:
    """Return the limit below which the first 64 bits of a digest mean that a block is held out."""
    return math.floor(fraction * _HALF)


def is_heldout(digest: bytes, fraction: float) -> bool:
    """Return whether a block of this digest is held out; larger fractions hold out supersets."""
    return int.from_bytes(digest[:8], "big") < heldout_limit(fraction)
