"""Selection of a language's blocks: training, held out, or dropped as a repetition or over a limit.

A block is a document or, in a long one, a run of consecutive sentences. It is the unit of the
held-out split, of deduplication and of training segments. One hash of its text identifies it and
decides whether it is held out. So all readers of the same text make the same choice, wherever it
lies and however it is cut into files. Overlong lines are cut first.

Records of 33 bytes stand for the text of blocks, so that languages of any size need little memory.
The records of a part of a language are sorted by digest. The search for repetitions goes through
one range of digests after another.

By "document", the hash of a document's first block decides for all its blocks. Documents that fit
are held out until they fill the share, so that one longer than the share is trained on. If they do
not fill it, as in a language of one book, longer documents are cut into runs of blocks.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline.sources import BLOCK_SENTENCES, BY_DOCUMENT, BY_POSITION, BY_TEXT, CorpusSpec
from input_pipeline.text_files import Document
from xlm.common.long_lines import cut_line

DROPPED, TRAIN, HELDOUT = 0, 1, 2
# Origins of a block: text to split, or the sides of parallel text, already split.
TEXT, PARALLEL_TRAIN, PARALLEL_HELDOUT = 0, TRAIN, HELDOUT

# Digest in two halves; position in its part; bytes of its text with line ends; origin.
BLOCK = [("high", "<u8"), ("low", "<u8"), ("position", "<u4"), ("size", "<u4"), ("origin", "u1")]
RECORD = np.dtype([*BLOCK, ("document", "<u8")])  # half digest of its document's first block
_DIGEST_BYTES = 16
_HALF = 1 << 64
_DIGESTS_AT_ONCE = 1 << 22
# Blocks of median size by which held-out text may exceed twice its share. With four, none of
# 46,600 draws from ordinary text reached the limit; with one, 3 % did.
_SPARE_BLOCKS = 4
# Least part of its share that held-out text fills, unless `Split.fault` gives a reason.
_LEAST_FILL = 0.9


def cut_blocks(sentences: Iterable[str], block_bytes: int) -> Iterator[Document]:
    """Yield the blocks of `cut_documents`, without ends of documents."""
    return filter(None, cut_documents(sentences, block_bytes))


def cut_documents(sentences: Iterable[str], block_bytes: int) -> Iterator[Document]:
    """Cut documents, sentences with "" at each end, into blocks; hold at most two in memory.

    Yield the blocks, and [] where a document ends. A block has at least `BLOCK_SENTENCES` sentences
    and `block_bytes` bytes of UTF-8. The rest of a document joins its last block, or with 0 bytes
    is a shorter block.
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
            yield []
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
    """Return the limit of the first 64 bits of a digest below which a block is held out."""
    return math.floor(fraction * _HALF)


def is_heldout(digest: bytes, fraction: float) -> bool:
    """Return whether a block of this digest is held out; a larger fraction adds blocks."""
    return _half(digest) < heldout_limit(fraction)


@dataclasses.dataclass(frozen=True)
class Selection:
    """Choice among the blocks of a language.

    `sides` are, per part, [blocks] uint8 `TRAIN`, `HELDOUT` or `DROPPED`. `duplicates` and
    `duplicate_bytes` count repetitions and their UTF-8 bytes.
    """

    sides: list[np.ndarray]
    duplicates: int
    duplicate_bytes: int
    split: "Split"


class Split(NamedTuple):
    """Bytes of a language before a limit: text, held-out text, training text of parallel columns.

    `smallest` is the smallest document, or run of blocks of a longer one, that did not fit.
    """

    text_bytes: int
    heldout_bytes: int
    parallel_bytes: int
    smallest: int

    def fault(self, spec: CorpusSpec) -> str:
        """Return why the held-out share is more than a tenth off the wanted one, or ""."""
        share, wanted = self.heldout_bytes / max(self.text_bytes, 1), spec.heldout_fraction
        if not self.text_bytes or abs(share - wanted) <= (1 - _LEAST_FILL) * wanted + 1e-12:
            return ""
        reason = f"documents stay whole, and the smallest to add has {self.smallest:,} bytes"
        if spec.heldout_by != BY_DOCUMENT:
            reason = "a hash draws blocks, whatever their bytes"
        return f"{share:.2%} is held out for {wanted:.2%} asked: {reason}"


def records(found: Iterable[tuple[bytes, int, int, bytes]]) -> np.ndarray:
    """Return the records [blocks] of a part (`corpus.Block.record`), sorted by digest."""
    rows = (
        (_half(digest), _half(digest[8:]), number, size, origin, _half(document))
        for number, (digest, size, origin, document) in enumerate(found)
    )
    return np.sort(np.fromiter(rows, RECORD), order=["high", "low", "position"])


def _half(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def select(parts: Sequence[np.ndarray], spec: CorpusSpec, language: str) -> Selection:
    """Select among the blocks of a language, from the `records` of its parts in order.

    `spec.heldout_by` splits the text. Both sides get a block if there are two of different text. Of
    blocks with equal text, the first held-out one stays, or else the first, so that no text is on
    both sides. If this holds out more than `heldout_bytes`, documents fill the share instead. The
    rest is cut to `spec.limit_of(language)` bytes.

    Memory: 1 byte a block, and some 70 bytes for each of `_DIGESTS_AT_ONCE` blocks. "document"
    takes one more byte a block, and some 150 for each of as many documents. A limit of a language's
    bytes, or "position", takes up to some 250 bytes a block. Parts, which may be memory-mapped, are
    read one by one.
    """
    sides, smallest = _by_origin(parts), 0
    if spec.heldout_by == BY_TEXT:
        _hold_out_by_text(parts, sides, spec.heldout_fraction)
    elif spec.heldout_by == BY_POSITION:
        _hold_out_by_position(parts, sides, spec.heldout_fraction, f"{spec.seed} {language}")
    repeated = _drop_repetitions(parts, sides, spec.deduplicate)
    if spec.heldout_by == BY_DOCUMENT or _is_too_much(parts, sides, spec.heldout_fraction):
        sides, kept = _by_origin(parts), _by_origin(parts)
        _drop_repetitions(parts, kept, spec.deduplicate)  # they count once
        smallest = _hold_out_by_document(parts, sides, kept, spec.heldout_fraction)
        repeated = _drop_repetitions(parts, sides, spec.deduplicate)
    if not spec.parallel_as_text:
        for part, side in zip(parts, sides, strict=True):
            side[part["position"][part["origin"] != TEXT]] = DROPPED
    split = Split(*_bytes(parts, sides), smallest)
    if limit := spec.limit_of(language):
        _cap(parts, sides, limit, spec.seed)
    return Selection(sides, *repeated, split)


def _by_origin(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    sides = [np.full(len(part), TRAIN, np.uint8) for part in parts]
    for part, side in zip(parts, sides, strict=True):
        side[part["position"][part["origin"] == PARALLEL_HELDOUT]] = HELDOUT
    return sides


def _bytes(parts: Sequence[np.ndarray], sides: Sequence[np.ndarray]) -> tuple[int, int, int]:
    """Return the first fields of `Split`."""
    sums = np.zeros((3, 3), np.int64)  # by origin and side
    for part, side in zip(parts, sides, strict=True):
        np.add.at(sums, (part["origin"], side[part["position"]]), part["size"])
    return int(sums[TEXT, 1:].sum()), int(sums[TEXT, HELDOUT]), int(sums[PARALLEL_TRAIN, TRAIN])


def _hold_out_by_document(
    parts: Sequence[np.ndarray], sides: Sequence[np.ndarray], kept: Sequence[np.ndarray],
    fraction: float,
) -> int:  # fmt: skip
    """Hold out documents, in the order of their hashes, that fit into the share of the kept text.

    Of two documents one is held out and one is not. Return `Split.smallest`.
    """
    wanted = fraction * _bytes(parts, kept)[0]
    if not wanted:
        return 0
    # Of many documents, those of the least hashes suffice.
    is_large = sum(map(len, parts)) > _DIGESTS_AT_ONCE
    limit = min(4 * heldout_limit(fraction), _HALF - 1) if is_large else _HALF - 1
    keys, sizes = _documents(parts, kept, limit, cut := (math.inf, math.inf))
    fits = _fitting(sizes, wanted)
    if (total := int(sizes[fits].sum())) < _LEAST_FILL * wanted:
        chosen, room = keys[fits], wanted - total
        keys, sizes = _documents(parts, kept, limit, cut := (wanted, room))
        order = np.lexsort((keys, sizes < _LEAST_FILL * room, ~np.isin(keys, chosen)))
        keys, sizes = keys[order], sizes[order]
        fits = _fitting(sizes, wanted)
        total = int(sizes[fits].sum())
    left = np.flatnonzero(~fits)
    smallest = left[np.argsort(sizes[left], kind="stable")][:1]
    # Too much may be nearer to the share than too little.
    is_nearer = total * (total + int(sizes[smallest].sum())) < wanted**2
    if len(left) > 1 and total < _LEAST_FILL * wanted and is_nearer:
        fits[smallest] = True
    for part, side, one in zip(parts, sides, kept, strict=True):
        positions, found, _ = _units(part, one, cut)
        side[positions[np.isin(found, keys[fits])]] = HELDOUT
    return int(sizes[smallest].sum())


def _documents(
    parts: Sequence[np.ndarray], kept: Sequence[np.ndarray], limit: int, cut: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending keys up to a limit, and kept bytes, of documents (`_units`)."""
    keys, sizes = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    for part, side in zip(parts, kept, strict=True):
        _, found, size = _units(part, side, cut)
        is_near = (found <= np.uint64(limit)) & (size > 0)
        both = np.append(keys, found[is_near]), np.append(sizes, size[is_near])
        keys, place = np.unique(both[0], return_inverse=True)
        sizes = np.bincount(place, both[1], len(keys)).astype(np.int64)
    return keys, sizes


def _units(
    part: np.ndarray, kept: np.ndarray, cut: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return position, key and kept bytes of the blocks of text of a part, in their order.

    The key is the document's. A document of more bytes than the first of `cut` is cut into runs of
    blocks of at most the second, if blocks are so small. Their keys are those of their first block.
    """
    text = np.sort(_text(part), order="position")
    keys, sizes = text["document"].copy(), np.where(kept[text["position"]], text["size"], 0)
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    totals = np.add.reduceat(sizes, starts, dtype=np.int64) if len(starts) else starts
    for number in np.flatnonzero(totals > cut[0]):
        here = slice(starts[number], [*starts[number + 1 : number + 2], len(keys)][0])
        before = np.cumsum(sizes[here], dtype=np.int64) - sizes[here]
        runs = before // max(cut[1] - int(sizes[here].max()), 1)
        _, first, run = np.unique(runs, return_index=True, return_inverse=True)
        keys[here] = text["high"][here][first][run]
    return text["position"], keys, sizes


def _hold_out_by_text(
    parts: Sequence[np.ndarray], sides: Sequence[np.ndarray], fraction: float
) -> None:
    """Hold out text with a hash below the limit, or of the least hash; never of the greatest."""
    ends = [(int(high[0]), int(high[-1])) for part in parts if len(high := _text(part)["high"])]
    if not ends or not fraction:
        return
    least, greatest = (f(end[i] for end in ends) for f, i in ((min, 0), (max, 1)))
    if least == greatest:
        return
    limit = min(max(heldout_limit(fraction), least + 1), greatest)
    for part, side in zip(parts, sides, strict=True):
        text = _text(part)
        side[text["position"][: np.searchsorted(text["high"], np.uint64(limit))]] = HELDOUT


def _text(part: np.ndarray) -> np.ndarray:
    """Return the records of the text to split, without a copy if there is no other."""
    return part[part["origin"] == TEXT] if part["origin"].any() else part


def _hold_out_by_position(
    parts: Sequence[np.ndarray], sides: Sequence[np.ndarray], fraction: float, salt: str
) -> None:
    numbers = []  # of the blocks of text: (part, position in it)
    for number, part in enumerate(parts):
        numbers += [(number, i) for i in np.sort(part["position"][part["origin"] == TEXT])]
    for i in heldout_numbers(len(numbers), fraction, salt):
        part_number, position = numbers[i]
        sides[part_number][position] = HELDOUT


def heldout_numbers(
    count: int, fraction: float, salt: str, sizes: np.ndarray | None = None,
    most: int | None = None,
) -> set[int]:  # fmt: skip
    """Choose held-out blocks among `count`: at least one, and of several never all.

    With `sizes` [count], their bytes stay within `heldout_bytes`; with `most`, their number.
    """
    wanted = round(fraction * count)
    wanted = wanted if most is None else min(wanted, most)
    if fraction > 0 and count > 1:
        wanted = min(max(wanted, 1), count - 1)
    order = _shuffled(count, salt)
    if sizes is not None and wanted:
        limit = heldout_bytes(sizes, fraction)
        if sizes[order[:wanted]].sum() > limit:
            order = np.array(order)[_fitting(sizes[order], limit)].tolist()
    return set(order[:wanted])


def heldout_bytes(sizes: np.ndarray, fraction: float) -> float:
    """Return the most bytes to hold out of blocks of `sizes` for a wanted `fraction`.

    That is twice the fraction, and some blocks of the median size, the smaller of two medians.
    """
    middle = (len(sizes) - 1) // 2
    return 2 * fraction * float(sizes.sum()) + _SPARE_BLOCKS * np.partition(sizes, middle)[middle]


def _fitting(sizes: np.ndarray, limit: float) -> np.ndarray:
    """Return whether each of `sizes`, in order, fits into the rest of a limit."""
    fits = np.zeros(len(sizes), bool)
    for number, size in enumerate(sizes.tolist()):
        if size <= limit:
            fits[number], limit = True, limit - size
    return fits


def _is_too_much(parts: Sequence[np.ndarray], sides: Sequence[np.ndarray], fraction: float) -> bool:
    """Return whether more than `heldout_bytes` of the text is held out."""
    total, heldout, _ = _bytes(parts, sides)
    if heldout <= 2 * fraction * total:
        return False
    kept = zip(map(_text, parts), sides, strict=True)
    sizes = np.concatenate([one["size"][side[one["position"]] != DROPPED] for one, side in kept])
    return heldout > heldout_bytes(sizes.astype(np.int64), fraction)


def _shuffled(count: int, salt: str) -> list[int]:
    """Return a permutation of range(count) that depends only on `salt`."""

    def rank(i: int) -> bytes:
        return hashlib.sha256(f"{salt} {i}".encode()).digest()

    return sorted(range(count), key=rank)


def _drop_repetitions(
    parts: Sequence[np.ndarray], sides: Sequence[np.ndarray], deduplicate: bool
) -> tuple[int, int]:
    """With `deduplicate`, drop all blocks of a text but one; return their number and bytes."""
    count = size = 0
    for part_of, found in _ranges(parts, _DIGESTS_AT_ONCE) if deduplicate else ():
        positions, side = found["position"], _sides_of(part_of, found, sides)
        # The block to keep comes first: a held-out one, else the first of the language.
        order = np.lexsort((positions, part_of, side != HELDOUT, found["low"], found["high"]))
        in_order = found[order]
        is_repeated = np.zeros(len(order), bool)
        is_repeated[1:] = (in_order["high"][1:] == in_order["high"][:-1]) & (
            in_order["low"][1:] == in_order["low"][:-1]
        )
        dropped = order[is_repeated]
        for number in np.unique(part_of[dropped]):
            sides[number][positions[dropped[part_of[dropped] == number]]] = DROPPED
        count += len(dropped)
        size += int(found["size"][dropped].sum(dtype=np.int64))
    return count, size


def _sides_of(part_of: np.ndarray, found: np.ndarray, sides: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sides [n] of records [n] of the parts `part_of` [n]."""
    result = np.empty(len(found), np.uint8)
    for number in np.unique(part_of):
        here = part_of == number
        result[here] = sides[number][found["position"][here]]
    return result


def _ranges(parts: Sequence[np.ndarray], at_once: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the part of each record [n], and the records [n] of all parts, by ranges of digests."""
    num_ranges = -(-sum(map(len, parts)) // at_once)
    starts = [0] * len(parts)
    for number in range(1, num_ranges + 1):
        is_last = number == num_ranges
        limit = np.uint64(0 if is_last else (number << 64) // num_ranges)
        ends = [len(one) if is_last else int(np.searchsorted(one["high"], limit)) for one in parts]
        sizes = np.subtract(ends, starts)
        part_of = np.repeat(np.arange(len(parts)), sizes)
        # Copied part by part: slices of all parts would keep all of their files open.
        found = np.empty(len(part_of), RECORD)
        into = np.split(found, np.cumsum(sizes)[:-1])
        for part, start, end, copy in zip(parts, starts, ends, into, strict=True):
            copy[:] = part[start:end]
        yield part_of, found
        starts = ends


def _cap(
    parts: Sequence[np.ndarray], sides: Sequence[np.ndarray], max_bytes: int, seed: int
) -> None:
    """Keep randomly chosen training blocks up to `max_bytes` of text."""
    sizes = []
    for part in parts:
        in_order = np.empty(len(part), np.int64)
        in_order[part["position"]] = part["size"]
        sizes.append(in_order)
    training = [(i, int(j)) for i, side in enumerate(sides) for j in np.flatnonzero(side == TRAIN)]
    kept: set[int] = set()
    total = 0
    for i in _shuffled(len(training), f"{seed} cap"):
        part_number, position = training[i]
        total += int(sizes[part_number][position])
        if kept and total > max_bytes:
            break
        kept.add(i)
    for i, (part_number, position) in enumerate(training):
        if i not in kept:
            sides[part_number][position] = DROPPED
