"""Hot loops over a block of text: characters, lines, n-grams, passages.

A block of 4 MB is decoded once, to code points, and read by one loop for each job. Nothing in
Python runs per line. A character costs at least four reads of 4 bytes in cache, a look-up of its
kind, two multiplications of a hash, and a row of L bytes of the model of L languages. Only this row
misses the cache.
"""

import numba
import numpy as np

from input_pipeline.inspection import characters as ch

# start, end: code points of the line without spaces around it. byte: its first. size: bytes with
# the line end. is_first: it begins a document. prefix: hash of its beginning. votes: letters by
# which its script leads.
LINE = np.dtype(
    [("digest", "i8"), ("prefix", "i8"), ("start", "i4"), ("end", "i4"), ("byte", "i4"),
     ("size", "i4"), ("letters", "i4"), ("digits", "i4"), ("others", "i4"), ("votes", "i4"),
     ("flags", "u1"), ("script", "u1"), ("is_first", "?")]
)  # fmt: skip
ODD = ch.CONTROL | ch.INVISIBLE | ch.BAD
BUCKETS, BANDS = 128, 16
_WINDOW = (1 << 60) - 1  # six characters
_PREFIX = 8  # characters
_JUDGED = 256  # characters of a line, from its beginning, that decide its language
_MANY = 0x5851F42D4C957F2D
_MULTIPLIER = 0x2127599BF4325C37
_NO_HASH = np.iinfo(np.int64).max

jit = numba.njit(cache=True, nogil=True)


def code_points(text: str) -> np.ndarray:
    return np.array([text]).view(np.int32)[: len(text)]


def decode(data: bytes) -> np.ndarray:
    """Return the code points of UTF-8, `BAD_BYTE` for each invalid byte."""
    codes = code_points(data.decode("utf-8", "surrogateescape"))
    codes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = ch.BAD_BYTE
    return codes


@jit
def _width(code: int) -> int:
    return 1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000) - 3 * (code == ch.BAD_BYTE)


@jit
def find_lines(codes, kinds, scripts, lines, tally, odd, is_blank):
    """Fill `lines` with the lines that are not blank.

    Return their number, and whether the block ends with a blank line. `tally` [scripts] counts
    letters, `odd` [bits] the characters of each bit of `ODD`. With `is_blank` a document begins.
    """
    count, i, byte = 0, 0, 0
    while i < len(codes):
        line, begin = lines[count], byte
        start = end = -1
        digest = running = size = letters = digits = others = votes = prefix = 0
        flags, script = np.uint8(0), np.uint8(0)
        while i < len(codes) and codes[i] != 10:
            code = codes[i]
            i += 1
            kind = kinds[code]
            byte += _width(code)
            if start < 0:
                if kind & ch.SPACE:
                    begin = byte
                    continue
                start = i - 1
            flags |= kind
            running = (running ^ code) * _MULTIPLIER
            if kind & ch.SPACE:
                continue
            digest, size, end = running, byte - begin, i
            if i - start <= _PREFIX:
                prefix = running
            if kind & ch.LETTER:
                letters += 1
                one = scripts[code]
                tally[one] += 1
                if one and one == script:
                    votes += 1
                elif one and votes:
                    votes -= 1
                elif one:
                    script, votes = one, 1
            elif kind & ch.DIGIT:
                digits += 1
            else:
                others += 1
            if kind & ODD:
                for bit in range(len(odd)):
                    odd[bit] += kind >> bit & 1
        i, byte = i + 1, byte + 1
        if start < 0:
            is_blank = True
            continue
        digest = (digest ^ digest >> 29) * _MANY
        line["digest"], line["prefix"], line["start"], line["end"] = digest, prefix, start, end
        line["size"], line["letters"], line["digits"] = size + 1, letters, digits
        line["others"], line["votes"], line["flags"] = others, votes, flags
        line["script"], line["is_first"], line["byte"] = script, is_blank, begin
        is_blank = False
        count += 1
    return count, is_blank


@jit
def ngram_slots(codes, lower, start, end, mask, slots):
    """Write the slots of the character n-grams of a line; return their number.

    Pairs of syllables or ideographs, else four letters. Anything between words is one space.
    """
    a = b = c = d = np.int64(32)
    count = 0
    for i in range(start, end):
        code = np.int64(lower[codes[i]])
        if code == 0:
            if d == 32:
                continue
            code = np.int64(32)
        a, b, c, d = b, c, d, abs(code)
        mixed = c * _MANY + d if code < 0 else ((a * _MANY + b) * _MANY + c) * _MANY + d
        mixed = (mixed ^ mixed >> 31) * _MULTIPLIER
        slots[count] = mixed >> 32 & mask
        count += 1
    return count


@jit
def all_slots(codes, lower, lines, mask, slots):
    """Write the slots of the n-grams of all lines; return their number."""
    count = 0
    for n in range(len(lines)):
        line = lines[n]
        count += ngram_slots(codes, lower, line["start"], line["end"], mask, slots[count:])
    return count


@jit
def score_lines(codes, lower, lines, models, least, scores, counts):
    """Score lines [n] under `models` [2, slots, L]: `scores` [n, L] and n-grams, `counts` [n].

    Each line is scored by the model that was fitted without it, by bit 0 of its digest. Lines of
    fewer than `least` letters are left out.
    """
    slots = np.empty(_JUDGED, np.int64)
    for n in range(len(lines)):
        line = lines[n]
        if line["letters"] < least:
            continue
        model = models[1 - (line["digest"] & 1)]
        total = scores[n]
        end = min(line["end"], line["start"] + _JUDGED)
        counts[n] = ngram_slots(codes, lower, line["start"], end, models.shape[1] - 1, slots)
        for k in range(counts[n]):
            row = model[slots[k]]
            for one in range(len(row)):
                total[one] += row[one]


@jit
def find_passages(lines, numbers, least, most):
    """Number the passages of `lines` in `numbers`; return their number.

    A passage is a document or a part of one. A part of more than `least` bytes ends before a line
    whose beginning hashes to a multiple of 8, so that it ends alike wherever earlier text was cut.
    """
    count, size = 0, most
    for n in range(len(lines)):
        line = lines[n]
        is_end = size >= most or (size >= least and line["prefix"] >> 40 & 7 == 0)
        if line["is_first"] or is_end or not n:
            count += 1
            size = 0
        numbers[n] = count - 1
        size += line["size"]
    return count


@jit
def minhash_bands(codes, lower, lines, numbers, bands):
    """Fill `bands` [passages, BANDS] with hashes; near copies share at least one.

    MinHash of shingles of 6 letters by one permutation (Li, Owen, Zhang 2012). A shingle's hash
    chooses a bucket and competes in it. Empty buckets take a value from another (Shrivastava 2017).
    Passages of similarity 0.8 share a band with probability 0.95, those of 0.5 with 0.06.
    """
    lowest = np.empty(BUCKETS, np.int64)
    first = 0
    for number in range(len(bands)):
        lowest[:] = _NO_HASH
        window = np.int64(0)
        while first < len(lines) and numbers[first] == number:
            window = _add_shingles(
                codes[lines[first]["start"] : lines[first]["end"]], lower, window, lowest
            )
            first += 1
        _densify(lowest)
        for band in range(BANDS):
            key = np.int64(band)
            for i in range(band * BUCKETS // BANDS, (band + 1) * BUCKETS // BANDS):
                key = (key ^ lowest[i]) * _MULTIPLIER
                key ^= key >> 31 & 0x1FFFFFFFF
            bands[number, band] = key


@jit
def _add_shingles(codes, lower, window, lowest):
    for one in codes:
        code = np.int64(abs(lower[one]))
        if code:
            # Six characters of 10 hashed bits each: older ones leave at the top.
            window = window << 10 & _WINDOW ^ (code * _MANY >> 53 & 0x3FF)
            mixed = (window ^ window >> 29 & 0x7FFFFFFFF) * _MULTIPLIER
            bucket = mixed >> 50 & BUCKETS - 1
            lowest[bucket] = min(lowest[bucket], mixed & 0xFFFFFFFFFFFF)
    return window


@jit
def _densify(lowest):
    """Give each empty bucket the value of another one, chosen by its number."""
    filled = lowest.copy()
    if filled.min() == _NO_HASH:
        return
    for bucket in range(BUCKETS):
        chosen = np.int64(bucket)
        while filled[chosen & BUCKETS - 1] == _NO_HASH:
            chosen = (chosen + 1) * _MANY >> 20
        lowest[bucket] = filled[chosen & BUCKETS - 1]
