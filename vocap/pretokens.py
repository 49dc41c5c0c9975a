"""Script runs with counts: sufficient statistics of a text for training, ALP and EM.

A piece of a unigram vocabulary never crosses a space or a change of Unicode script. So the best
segmentation of a sentence is that of its script runs, and distinct runs with counts represent the
whole corpus exactly. Such a table is smaller than one of words: punctuation, digits and the words
they touch are separate runs. `text_rules` has other ways to cut. Kept white space has pieces of its
own and is in no run.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from fontTools import unicodedata

from vocap.text_rules import SPACE, TextRules

# Options of all trainings by SentencePiece, whose only special piece is the unknown.
TRAINER: dict[str, Any] = {
    "max_sentence_length": 1 << 20,  # it silently skips longer lines, which the ALP counts
    "unk_id": 0,
    "bos_id": -1,
    "eos_id": -1,
    "num_threads": 1,  # with more, the order of float sums would depend on the machine
    "minloglevel": 2,
}
MIXED = 256  # `PretokenTable.follow` of a run before different bytes

_SENTENCES_AT_ONCE = 20_000
_MAX_PENDING_WORDS = 2_000_000
_END = "\n"  # end of a sentence, and of a run before kept white space or a symbol
_KEPT = str.maketrans(dict.fromkeys("\n\r\t", _END))
_SYMBOL = "\ue000"  # stands for a user-defined symbol during normalisation
_WORDS_AT_ONCE = 100_000  # for a pattern to cut
_FOLLOW_BITS = 9  # low bits of a packed (count, follow)
_FOLLOW_MASK = (1 << _FOLLOW_BITS) - 1
_SCRIPTS = np.full(sys.maxunicode + 1, -1, np.int16)  # of code points met so far


@dataclasses.dataclass(frozen=True)
class Text:
    """Concatenated strings: code points [C] int32, and the start of each string [N + 1] int64."""

    characters: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def strings(self) -> Iterator[str]:
        joined = self.characters.tobytes().decode("utf-32-le")
        for begin, end in itertools.pairwise(self.offsets.tolist()):
            yield joined[begin:end]


def pack(strings: Sequence[str]) -> Text:
    characters = np.frombuffer("".join(strings).encode("utf-32-le"), np.int32)
    lengths = np.fromiter((len(s) for s in strings), np.int64, len(strings))
    return Text(characters, np.concatenate([[0], np.cumsum(lengths)]))


@dataclasses.dataclass(frozen=True)
class PretokenTable:
    """Distinct normalised script runs with their counts.

    Attributes:
      text: [N] distinct runs in code point order; those after a space begin with `SPACE`.
      counts: [N] int64, occurrences of each run; float64 in a `mixture`.
      follow: [N] int16, UTF-8 byte after the run: 0 at the end of a sentence, `MIXED` if it differs
        among occurrences. SentencePiece's choice of seeds depends on it (see `seeds`).
      num_sentences: non-empty sentences, the |D| of Eq. 1.
      rules: name of the rules of text.
      required: characters that a vocabulary must have, even if the text lacks them.
    """

    text: Text
    counts: np.ndarray
    follow: np.ndarray
    num_sentences: int
    rules: str = TextRules().name
    required: frozenset[str] = frozenset()

    @functools.cached_property
    def num_bytes(self) -> float:
        """UTF-8 bytes of the text, one for each space: the n_i of Eq. 3.

        Papers publish sizes in bytes, and words are ill-defined in scripts without spaces.
        """
        characters = self.text.characters
        sizes = 1 + np.searchsorted((0x80, 0x800, 0x10000), characters, side="right")
        sizes[characters == ord(SPACE)] = 1
        lengths = np.diff(np.concatenate([[0], np.cumsum(sizes)])[self.text.offsets])
        return (lengths @ self.counts).item()

    def runs(self) -> list[str]:
        return list(self.text.strings())


Texts = Mapping[str, PretokenTable]  # by language


def mixture(tables: Texts, probabilities: Mapping[str, float]) -> PretokenTable:
    """Mix the text of all languages; language i has the share q_i of the bytes.

    The total number of bytes stays the same, so rare runs stay rare. Counts are float64. A run of
    several languages has one entry per language, which does not affect results. Shares need not sum
    to one.
    """
    languages = sorted(tables)
    total = sum(tables[language].num_bytes for language in languages)
    norm = sum(probabilities[language] for language in languages)
    scales = [probabilities[lang] / norm * total / tables[lang].num_bytes for lang in languages]
    chosen = [tables[language] for language in languages]
    lengths = np.concatenate([np.diff(table.text.offsets) for table in chosen])
    return PretokenTable(
        text=Text(
            np.concatenate([table.text.characters for table in chosen]),
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        counts=np.concatenate([s * t.counts for s, t in zip(scales, chosen, strict=True)]),
        follow=np.concatenate([table.follow for table in chosen]),
        num_sentences=sum(table.num_sentences for table in chosen),
        rules=chosen[0].rules,
        required=frozenset().union(*(table.required for table in chosen)),
    )


def most_frequent(table: PretokenTable, max_characters: int) -> PretokenTable:
    """Return the most frequent runs of a table, up to `max_characters` in all; 0 for all runs.

    A hash breaks ties, since most runs occur once in scripts without spaces. The number of
    sentences shrinks with the text, which preserves averages over sentences.
    """
    lengths = np.diff(table.text.offsets)
    if not max_characters or lengths.sum() <= max_characters:
        return table
    order = np.lexsort((_hashes(table.text.characters, table.text.offsets), -table.counts))
    kept = np.sort(order[np.cumsum(lengths[order]) <= max_characters])
    of_kept = np.zeros(len(lengths), bool)
    of_kept[kept] = True
    part = dataclasses.replace(
        table,
        text=Text(
            table.text.characters[np.repeat(of_kept, lengths)],
            np.concatenate([[0], np.cumsum(lengths[kept])]),
        ),
        counts=table.counts[kept],
        follow=table.follow[kept],
    )
    share = part.num_bytes / table.num_bytes
    return dataclasses.replace(part, num_sentences=math.ceil(share * table.num_sentences))


def count_pretokens(sentences: Iterable[str], rules: TextRules | None = None) -> PretokenTable:
    """Count sentences under `rules`, by default those of SentencePiece's trainer."""
    counter = PretokenCounter(rules)
    counter.add(sentences)
    return counter.table()


class PretokenCounter:
    """Incremental counter of script runs."""

    def __init__(self, rules: TextRules | None = None) -> None:
        self._rules = rules or TextRules()
        self._normalize = self._rules.processor().normalize
        # The longest first, before normalisation, as SentencePiece matches them.
        symbols = sorted(self._rules.user_defined_symbols, key=len, reverse=True)
        self._symbols = re.compile("|".join(map(re.escape, symbols)))
        self._words: collections.Counter[str] = collections.Counter()
        self._runs: dict[str, int] = {}  # run -> count << _FOLLOW_BITS | follow
        self.num_sentences = 0

    def __len__(self) -> int:
        """Return the number of strings held, which determines the memory."""
        return len(self._words) + len(self._runs)

    def add(self, sentences: Iterable[str]) -> None:
        remaining = iter(sentences)
        while batch := list(itertools.islice(remaining, _SENTENCES_AT_ONCE)):
            if self._rules.user_defined_symbols:
                batch = [self._symbols.sub(_SYMBOL, sentence) for sentence in batch]
            normalized = [sentence for sentence in self._normalize(batch) if sentence]
            self.num_sentences += len(normalized)
            # Each sentence begins with a space, so the last word of a sentence keeps its `_END`.
            joined = _END.join(normalized) + _END
            if self._rules.keeps_whitespace:
                joined = joined.translate(_KEPT)
            if self._rules.user_defined_symbols:
                joined = joined.replace(_SYMBOL, _END)
            self._words.update(joined.split(SPACE))
            if len(self._words) > _MAX_PENDING_WORDS:
                self._split_words()

    def packed(self) -> dict[str, int]:
        """Return each run's `pack_count(count, follow)` so far."""
        self._split_words()
        return self._runs

    def table(self) -> PretokenTable:
        return table_of(self.packed(), self.num_sentences, self._rules.name)

    def _split_words(self) -> None:
        for nothing in ("", _END):
            self._words.pop(nothing, None)
        words, counts = list(self._words), np.fromiter(self._words.values(), np.int64)
        self._words.clear()
        if not words:
            return
        joined = SPACE + SPACE.join(words)
        characters = np.frombuffer(joined.encode("utf-32-le"), np.int32)
        if self._rules.pattern:
            breaks = self._matches(words)
        else:
            breaks = _script_changes(characters, _scripts_of(characters), ord(SPACE))
        if self._rules.split_digits:
            is_digit = _is_decimal(characters)
            breaks[1:] |= is_digit[1:] | is_digit[:-1]
        begins, ends, follow, word = _split(characters, breaks, ord(SPACE))
        packed = counts[word] << _FOLLOW_BITS | follow
        runs = self._runs
        for begin, end, value in zip(begins.tolist(), ends.tolist(), packed.tolist(), strict=True):
            run = joined[begin:end]
            old = runs.get(run)
            runs[run] = value if old is None else merge_counts(old, value)

    def _matches(self, words: Sequence[str]) -> np.ndarray:
        """Return [C] bool, beginnings of matches of the pattern in words, each after a space.

        Matches see the blank before a word, and nothing after the end of a sentence.
        """
        cut = splitter(self._rules.pattern)
        ends = np.cumsum([1 + len(word) for word in words])
        breaks = np.zeros(ends[-1], bool)
        inner = [i for i, word in enumerate(words) if _END not in word]
        for first in range(0, len(inner), _WORDS_AT_ONCE):
            some = inner[first : first + _WORDS_AT_ONCE]
            found = cut.pre_tokenize_str(" " + " ".join(words[i] for i in some))
            places = np.concatenate([np.arange(ends[i] - len(words[i]) - 1, ends[i]) for i in some])
            breaks[places[[begin for _, (begin, _) in found]]] = True
        for i in set(range(len(words))).difference(inner):
            begin = ends[i] - len(words[i]) - 1
            for part in f" {words[i]}".split(_END):
                found = cut.pre_tokenize_str(part)
                breaks[[begin + first for _, (first, _) in found]] = True
                begin += len(part) + 1
        return breaks


def splitter(pattern: str) -> Any:
    """Return a splitter of `tokenizers`, so that exported tokenizers match alike."""
    import tokenizers

    try:
        compiled = tokenizers.Regex(pattern)
    except Exception as error:  # of this very class
        raise ValueError(
            f"vocab.pattern is {pattern!r}, not a regular expression of Oniguruma ({error}); "
            "correct it"
        ) from None
    return tokenizers.pre_tokenizers.Split(compiled, "isolated")


def pack_count(count: int, follow: int) -> int:
    """Pack count and follow of a run into one integer."""
    return count << _FOLLOW_BITS | follow


def unpack_count(packed: int) -> tuple[int, int]:
    return packed >> _FOLLOW_BITS, packed & _FOLLOW_MASK


def merge_counts(a: int, b: int) -> int:
    """Merge two packed values of count and follow of the same run."""
    follow = a & _FOLLOW_MASK if (a ^ b) & _FOLLOW_MASK == 0 else MIXED
    return ((a >> _FOLLOW_BITS) + (b >> _FOLLOW_BITS)) << _FOLLOW_BITS | follow


def table_of(
    packed: dict[str, int], num_sentences: int, rules: str = TextRules().name
) -> PretokenTable:
    """Build the table of runs with packed counts, in code point order."""
    runs = sorted(packed)
    values = np.fromiter(map(packed.__getitem__, runs), np.int64, len(runs))
    return PretokenTable(
        text=pack(runs),
        counts=values >> _FOLLOW_BITS,
        follow=(values & _FOLLOW_MASK).astype(np.int16),
        num_sentences=num_sentences,
        rules=rules,
    )


@functools.cache
def _script_number(script: str) -> int:
    """Return the number of a script; 0 for characters that inherit the preceding script."""
    if script == "Zinh":
        return 0
    # Japanese words mix the three scripts.
    if script in ("Hira", "Kana"):
        script = "Hani"
    # Unassigned code points count as common, as in SentencePiece.
    if script == "Zzzz":
        script = "Zyyy"
    return 1 + sorted(unicodedata.Scripts.NAMES).index(script)


def _scripts_of(characters: np.ndarray) -> np.ndarray:
    """Return [C] int16 script numbers; see `_script_number`."""
    for c in set(characters[_SCRIPTS[characters] < 0].tolist()):
        # The prolonged sound mark belongs to Katakana and Hiragana, in Unicode to neither.
        script = "Kana" if c == 0x30FC else unicodedata.script(chr(c))
        _SCRIPTS[c] = _script_number(script)
    return _SCRIPTS[characters]


@numba.njit(cache=True)
def first_byte(character):
    """Return the first byte of a code point in UTF-8."""
    if character < 0x80:
        return character
    if character < 0x800:
        return 0xC0 | (character >> 6)
    if character < 0x10000:
        return 0xE0 | (character >> 12)
    return 0xF0 | (character >> 18)


def _is_decimal(characters: np.ndarray) -> np.ndarray:
    distinct, inverse = np.unique(characters, return_inverse=True)
    return np.array([chr(code).isdecimal() for code in distinct.tolist()], bool)[inverse]


@numba.njit(cache=True)
def _script_changes(characters, scripts, space):
    """Return [C] bool, whether a character's script differs from that of the text before it."""
    breaks = np.zeros(len(characters), np.bool_)
    script = 0
    for i in range(len(characters)):
        c = characters[i]
        if c == 10:
            continue
        s = scripts[i]
        if c == space:
            s = 0
        elif s == 0:
            s = script
        breaks[i] = script != 0 and s != script
        script = s
    return breaks


@numba.njit(cache=True)
def _split(characters, breaks, space):
    """Cut words joined by spaces at line feeds, which are left out, and before spaces and `breaks`.

    Return begin, end, following byte and word of each run.
    """
    begins = np.empty(len(characters), np.int64)
    ends = np.empty(len(characters), np.int64)
    follow = np.empty(len(characters), np.int64)
    word_of_run = np.empty(len(characters), np.int64)
    num_runs, word, at_begin = 0, -1, True
    for i in range(len(characters)):
        c = characters[i]
        if c == 10:  # recorded as `follow` of the preceding run
            at_begin = True
            continue
        if c == space:
            word += 1
        if at_begin or c == space or breaks[i]:
            begins[num_runs] = i
            word_of_run[num_runs] = word
            num_runs += 1
        at_begin = False
        ends[num_runs - 1] = i + 1
        if i + 1 == len(characters):
            follow[num_runs - 1] = first_byte(space)
        elif characters[i + 1] == 10:
            follow[num_runs - 1] = 0
        else:
            follow[num_runs - 1] = first_byte(characters[i + 1])
    return begins[:num_runs], ends[:num_runs], follow[:num_runs], word_of_run[:num_runs]


@numba.njit(cache=True)
def _hashes(characters, offsets):
    """Return [N] uint64, the FNV-1a hash of each run with its bits mixed at the end."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for run in range(len(hashes)):
        value = np.uint64(0xCBF29CE484222325)
        for i in range(offsets[run], offsets[run + 1]):
            value = (value ^ np.uint64(characters[i])) * np.uint64(0x100000001B3)
        # So far the last characters affect only the lower bits; sorting compares the upper ones.
        value = (value ^ (value >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
        hashes[run] = value ^ (value >> np.uint64(32))
    return hashes
