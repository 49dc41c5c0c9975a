"""Blocks of text: the unit of the held-out split, of deduplication and of training segments.

A block is a document or, where that is long, a run of its consecutive sentences. One hash of a
block's text identifies it and chooses whether it is held out, so that any reader of the same text
makes the same choice, wherever the text lies and however it is cut into files. Lines too long for a
sentence are cut before.
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
    """Cut documents into blocks; no more than two blocks are held in memory.

    Args:
      sentences: of the documents in order, "" where one ends (see `text_files.read_marked`).
      block_bytes: least UTF-8 bytes of a block besides its least number of sentences,
        `BLOCK_SENTENCES`; what a document has left behind its last block joins that one. 0: blocks
        of `BLOCK_SENTENCES` sentences, with a shorter one at the end of a document.
    """
    full: Document = []  # the last whole block of this document, where it may grow still
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
    """Whether a block of this digest belongs to the held-out share of all text.

    A larger fraction holds out a superset of a smaller one.
    """
    return int.from_bytes(digest[:8], "big") < heldout_limit(fraction)
