"""Growth of a tokenizer by pieces for further languages; old pieces keep their ids and scores.

A unigram model grows by `unigram`, byte-pair encoding by `merges`. Both choose the pieces that save
the most tokens on the mixture of the new languages, which the old pieces segment too.

New pieces are single characters, or letters and marks. So digits and punctuation keep their
segmentation in all languages.
"""

import collections
import heapq
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import scipy.special

from vocap import bpe, lattice, merge, pretokens, seeds
from vocap.pretokens import SPACE, PretokenTable, Text, Texts
from vocap.settings import LENGTH_BITS, MAX_PIECE_LENGTH

LONGEST = 16  # characters of a new piece, the default of vocab.max_piece_length
_CANDIDATES = 2  # for each wanted piece; with 1, 3 % more tokens in three languages, with 5 as many
_SHRINKING_FACTOR = 0.75  # of the candidates in a prune, as in `nested`
_ITERATIONS = 2  # of EM before a prune
_MIN_EXPECTED_COUNT = 0.5


def is_word(text: str) -> bool:
    """Return whether a piece may be new: letters and marks, or one character beyond ASCII.

    A blank may precede them. U+FFFD stands for bytes of a partial character.
    """
    inner = text.lstrip(f" {SPACE}")
    if len(inner) == 1 and not inner.isascii():
        return True
    return bool(inner) and all(c == "\ufffd" or unicodedata.category(c)[0] in "LM" for c in inner)


def unigram(
    old: Mapping[str, float], tables: Texts, shares: Mapping[str, float], size: int,
    character_coverage: float,
) -> tuple[list[str], np.ndarray]:  # fmt: skip
    """Choose `size` pieces for a unigram model, and their scores in nats [size] float64.

    It chooses characters that a language requires first. Byte-pair merges of the mixture are the
    other candidates. EM with fixed old scores and prunes of the candidates alternate. A prune
    removes the candidates that save the fewest tokens.

    Old scores stay unchanged. A constant added to them would favour long or short pieces, and
    change the segmentation of text without any new piece. New scores are log probabilities in a
    mixture of old and new text, in which new text has the share of the new pieces, size / V. None
    is below the lowest old score, from which SentencePiece computes that of an unknown character.

    `old` scores are -inf for pieces that segmentation does not use. `shares` are the new languages'
    shares of the bytes of the mixture, in any unit. Raise ValueError if the languages require more
    characters, or their text offers fewer pieces.
    """
    mixture = pretokens.mixture(tables, shares)
    text = seeds.cover_each(mixture, tables.values(), character_coverage)
    alphabet = text.alphabet.tobytes().decode("utf-32-le")
    characters = sum(c not in old for c in alphabet)
    check_size(characters, size, tables)
    fixed, candidates = _candidates(old, text, alphabet, size)
    found = seeds.match_seeds(text, [*fixed, *candidates])
    pieces = np.array([*alphabet, *fixed, *candidates], object)
    is_new = np.array([piece not in old for piece in pieces], bool)
    growth = _Growth(
        text, found, is_new, np.array([old.get(piece, 0.0) for piece in pieces]),
        lowest=min(filter(np.isfinite, old.values())), share=size / (size + len(old)),
    )  # fmt: skip
    growth.fit()
    while (left := int(growth.is_candidate.sum())) > size - characters:
        growth.prune(max(size - characters, int(_SHRINKING_FACTOR * left)))
        growth.fit()
    if characters + left < size:
        raise ValueError(too_few(characters + left, tables))
    ids = np.flatnonzero(growth.is_new)
    scores = np.maximum(merge.rounded(growth.scores[ids]), growth.lowest)
    order = np.lexsort((-scores, growth.is_candidate[ids]))
    return pieces[growth.seed_of[ids[order]]].tolist(), scores[order]


def check_size(characters: int, size: int, languages: Iterable[str]) -> None:
    """Raise ValueError if more characters are required than pieces are wanted."""
    if characters > size:
        raise ValueError(
            f"{', '.join(languages)} require {characters} characters that the tokenizer lacks, "
            f"more than the {size} pieces to add; add more, or lower the character coverage"
        )


def too_few(found: int, languages: Iterable[str]) -> str:
    return (
        f"the text of {', '.join(languages)} offers only {found} pieces that the tokenizer lacks "
        "and that save tokens; add no more than these, or give more text"
    )


def _candidates(
    old: Mapping[str, float], text: seeds.TrainingText, alphabet: str, size: int
) -> tuple[list[str], list[str]]:
    """Return old pieces of several characters that occur in a text, and candidates for new ones."""
    covered = Text(text.alphabet[text.characters], text.offsets)
    fixed = [
        piece for piece, score in old.items()
        if 1 < len(piece) <= MAX_PIECE_LENGTH and np.isfinite(score)
    ]  # fmt: skip
    arcs = lattice.build_trie(fixed).match(covered).arcs >> LENGTH_BITS
    occurs = np.bincount(arcs, minlength=len(fixed) + 1).tolist()
    fixed = [piece for piece, count in zip(fixed, occurs, strict=False) if count]
    merged = bpe.train(
        PretokenTable(covered, text.weights, text.follow, 0),
        len(alphabet) + len(fixed) + _CANDIDATES * size,  # at most `fixed` of them are old
        character_coverage=1.0, max_piece_length=LONGEST, may_be_fewer=True,
    )  # fmt: skip
    longer = (piece for piece in (merged[0] if merged else ()) if len(piece) > 1)
    return fixed, [p for p in longer if p not in old and is_word(p)][: _CANDIDATES * size]


class _Growth:
    """A unigram model that is trained while its old pieces keep their scores."""

    def __init__(
        self, text: seeds.TrainingText, found: seeds.Seeds, is_new: np.ndarray,
        old_scores: np.ndarray, *, lowest: float, share: float,
    ):  # fmt: skip
        self.lowest, self._shift, self._nats = lowest, np.log(share), 3.0
        self._text, self._lattice = text, found.lattice
        self._begins, self._lengths = found.begins, found.lengths
        self.seed_of, self.is_new = np.arange(len(is_new)), is_new
        # An old character may have no finite score, such as a user's symbol.
        first = np.log(found.scores / found.scores.sum()) + self._shift
        self.scores = np.maximum(np.where(is_new, first, old_scores), lowest)

    @property
    def is_candidate(self) -> np.ndarray:
        """[P] bool, new pieces except required characters."""
        return self.is_new & (self._lengths > 1)

    def fit(self) -> None:
        for _ in range(_ITERATIONS):
            counts, log_likelihood = self._lattice.expected_counts(
                self.scores, self._lengths, self._text.weights, self._nats
            )
            self._nats = float(-log_likelihood / self._text.frequency.sum())
            logs = scipy.special.digamma(np.maximum(counts, _MIN_EXPECTED_COUNT))
            logs += self._shift - scipy.special.digamma(counts.sum())
            self.scores = np.where(self.is_new, np.maximum(logs, self.lowest), self.scores)

    def prune(self, size: int) -> None:
        """Keep the `size` candidates that save the most tokens."""
        paths = self._lattice.best_paths(self.scores)
        counts = paths.counts(self._text.weights, len(self.scores))
        is_candidate = self.is_candidate
        _, num_pieces, _ = lattice.second_best(
            self._lattice.begins, self._lattice.arcs, self.scores, self._begins,
            np.where(is_candidate, self._lengths, 1),  # characters are skipped, as are old pieces
            counts + 1, np.arange(len(counts)),
        )  # fmt: skip
        saved = np.where(is_candidate, counts * (num_pieces - 1), -1)
        stays = ~is_candidate
        stays[np.argsort(-saved, kind="stable")[:size]] = True
        self._lattice = self._lattice.keep(np.where(stays, np.cumsum(stays) - 1, -1))
        self.seed_of, self.is_new, self.scores = (
            array[stays] for array in (self.seed_of, self.is_new, self.scores)
        )
        self._begins, self._lengths = self._begins[stays], self._lengths[stays]


def merges(
    words: Mapping[tuple[str, ...], float], gains: Mapping[str, float], size: int,
    may_be_new: Callable[[str], bool],
) -> list[str]:  # fmt: skip
    """Choose up to `size` pieces by byte-pair merges that continue those of an old model.

    A piece is a string: all adjacent pairs that spell it are merged, as SentencePiece does.

    Args:
      words: counts of segmented words, which pieces do not cross.
      gains: tokens saved by each new character, infinite if it is required. A pair saves at most as
        many as its characters, so it follows them.
      may_be_new: whether a string of several characters may become a piece.
    """
    text = _Merging(words, may_be_new)
    queue = [(-gain, 0, character) for character, gain in gains.items()]
    queue += [(-gain, 1, piece) for piece, gain in text.gains.items()]
    heapq.heapify(queue)
    chosen: list[str] = []
    while queue and len(chosen) < size:
        gain, is_merge, piece = heapq.heappop(queue)
        if is_merge:
            now = -text.gains.get(piece, 0.0)
            if now > gain:  # an outdated entry
                if now < 0:
                    heapq.heappush(queue, (now, 1, piece))
                continue
            for touched in text.merge(piece):
                heapq.heappush(queue, (-text.gains[touched], 1, touched))
        if gain < 0:
            chosen.append(piece)
    return chosen


class _Merging:
    """Words as linked lists of pieces; `gains` has the occurrences of each pair, by its string."""

    def __init__(self, words: Mapping[tuple[str, ...], float], may_be_new: Callable[[str], bool]):
        self.gains: dict[str, float] = {}
        self._places: dict[str, array] = {}
        self._allowed: dict[str, bool] = {}
        self._may_be_new = may_be_new
        self._pieces: list[str] = []
        self._weights, self._before, self._after = array("d"), array("q"), array("q")
        for word, weight in words.items():
            first = len(self._pieces)
            last = first + len(word) - 1
            self._pieces += word
            self._weights.extend([weight] * len(word))
            self._before.extend([-1, *range(first, last)])
            self._after.extend([*range(first + 1, last + 1), -1])
            for left in range(first, last):
                self._add(left)

    def _add(self, left: int) -> str | None:
        """Count the pair at a place; return its string if it may be merged."""
        pair = self._pieces[left] + self._pieces[self._after[left]]
        if pair not in self.gains:
            if pair not in self._allowed:
                self._allowed[pair] = self._may_be_new(pair)
            if not self._allowed[pair]:
                return None
            self.gains[pair], self._places[pair] = 0.0, array("q")
        self.gains[pair] += self._weights[left]
        self._places[pair].append(left)
        return pair

    def _remove(self, left: int) -> None:
        pair = self._pieces[left] + self._pieces[self._after[left]]
        if pair in self.gains:
            self.gains[pair] -= self._weights[left]

    def merge(self, piece: str) -> set[str]:
        """Merge all pairs that spell a piece; return the strings of the pairs that arise."""
        self._allowed[piece] = False
        places = self._places.pop(piece)
        del self.gains[piece]
        found: collections.Counter[str | None] = collections.Counter()
        for left in places:
            right = self._after[left]
            # Another merge may have taken either.
            if right < 0 or self._pieces[left] + self._pieces[right] != piece:
                continue
            before, after = self._before[left], self._after[right]
            if before >= 0:
                self._remove(before)
            if after >= 0:
                self._remove(right)
            self._pieces[left], self._pieces[right] = piece, ""
            self._after[left], self._after[right] = after, -1
            if after >= 0:
                self._before[after] = left
                found[self._add(left)] += 1
            if before >= 0:
                found[self._add(before)] += 1
        return {pair for pair in found if pair is not None and pair in self.gains}
