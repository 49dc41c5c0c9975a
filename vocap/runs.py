"""Script runs with counts: all that training, ALP and EM need to know of a text.

A piece of a unigram vocabulary never crosses a space or a change of Unicode script, so the best
segmentation of a sentence is that of its script runs, and a table of distinct runs with counts
stands for the whole corpus, exactly. It is smaller than a table of words: punctuation, digits and
the words they touch are runs of their own.
"""

import collections
import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numba
import numpy as np
import sentencepiece as spm
from fontTools import unicodedata

NORMALIZER = "nmt_nfkc"  # SentencePiece's name of the rules
SPACE = "\u2581"  # SentencePiece's visible space; the run behind a space carries one in front.
MIXED = 256  # `RunTable.follow` of a run that different bytes follow

_SENTENCES_AT_ONCE = 20_000
_MAX_PENDING_WORDS = 2_000_000
_END = "\n"  # of a sentence; the normaliser leaves none inside
_FOLLOW_BITS = 9  # of the packed (count, follow) that tables are counted with
_FOLLOW_MASK = (1 << _FOLLOW_BITS) - 1


@dataclasses.dataclass(frozen=True)
class Text:
    """Strings end to end: code points [C] int32, and where each string begins [N + 1] int64."""

    characters: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def strings(self) -> Iterator[str]:
        """The strings, one by one."""
        joined = self.characters.tobytes().decode("utf-32-le")
        for begin, end in itertools.pairwise(self.offsets.tolist()):
            yield joined[begin:end]


def pack(strings: Sequence[str]) -> Text:
    """Lays strings out end to end, for compiled code."""
    characters = np.frombuffer("".join(strings).encode("utf-32-le"), np.int32)
    lengths = np.fromiter((len(s) for s in strings), np.int64, len(strings))
    return Text(characters, np.concatenate([[0], np.cumsum(lengths)]))


@dataclasses.dataclass(frozen=True)
class RunTable:
    """Distinct normalised script runs with their counts.

    Attributes:
      text: [N] distinct runs in code point order; those behind a space begin with `SPACE`.
      counts: [N] int64, occurrences of each run; float64 in a `mixture`.
      follow: [N] int16, first UTF-8 byte of what follows the run in its sentence, 0 at the end of
        a sentence, `MIXED` if it differs among the occurrences. What SentencePiece takes for a seed
        depends on it (see `seeds`).
      num_sentences: sentences counted, the |D| of Eq. 1; empty ones do not count.
    """

    text: Text
    counts: np.ndarray
    follow: np.ndarray
    num_sentences: int

    @functools.cached_property
    def num_bytes(self) -> float:
        """UTF-8 bytes of the text, one for each space: the n_i of Eq. 3.

        Bytes, since words mean little where nothing separates them, and since the sizes that
        papers publish are bytes.
        """
        characters = self.text.characters
        sizes = 1 + np.searchsorted((0x80, 0x800, 0x10000), characters, side="right")
        sizes[characters == ord(SPACE)] = 1
        lengths = np.diff(np.concatenate([[0], np.cumsum(sizes)])[self.text.offsets])
        return (lengths @ self.counts).item()

    def runs(self) -> list[str]:
        """The runs as strings."""
        return list(self.text.strings())


def mixture(tables: Mapping[str, RunTable], probabilities: Mapping[str, float]) -> RunTable:
    """The text of all languages together, as if language i made up the share q_i of its bytes.

    The total stays that of the languages together, so that the rare stay rare. Counts are float64.
    A run that several languages have stands there for each of them, which changes nothing. Of some
    of the languages only, shares are relative to each other.
    """
    languages = sorted(tables)
    total = sum(tables[language].num_bytes for language in languages)
    norm = sum(probabilities[language] for language in languages)
    scales = [probabilities[lang] / norm * total / tables[lang].num_bytes for lang in languages]
    chosen = [tables[language] for language in languages]
    lengths = np.concatenate([np.diff(table.text.offsets) for table in chosen])
    return RunTable(
        text=Text(
            np.concatenate([table.text.characters for table in chosen]),
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        counts=np.concatenate([s * t.counts for s, t in zip(scales, chosen, strict=True)]),
        follow=np.concatenate([table.follow for table in chosen]),
        num_sentences=sum(table.num_sentences for table in chosen),
    )


def most_frequent(table: RunTable, max_characters: int) -> RunTable:
    """The most frequent runs of a table, as many as `max_characters` hold; 0 for all.

    Where nothing separates words most runs occur once; which of them stay is a matter of a hash.
    The sentences become fewer as the text does, so that averages over them stay what they were.
    """
    lengths = np.diff(table.text.offsets)
    if not max_characters or lengths.sum() <= max_characters:
        return table
    order = np.lexsort((_hashes(table.text.characters, table.text.offsets), -table.counts))
    kept = np.sort(order[np.cumsum(lengths[order]) <= max_characters])
    of_kept = np.zeros(len(lengths), bool)
    of_kept[kept] = True
    part = RunTable(
        text=Text(
            table.text.characters[np.repeat(of_kept, lengths)],
            np.concatenate([[0], np.cumsum(lengths[kept])]),
        ),
        counts=table.counts[kept],
        follow=table.follow[kept],
        num_sentences=0,
    )
    share = part.num_bytes / table.num_bytes
    return dataclasses.replace(part, num_sentences=math.ceil(share * table.num_sentences))


def normalizer() -> spm.SentencePieceNormalizer:
    """The text normaliser of every vocabulary here: nmt_nfkc, leading and visible spaces.

    The very rules SentencePiece's trainer uses by default, so that the merged model, whose
    normaliser is copied from a trained one, sees the text that the curves were measured on.
    """
    return spm.SentencePieceNormalizer(
        rule_name=NORMALIZER,
        add_dummy_prefix=True,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )


def count_runs(sentences: Iterable[str]) -> RunTable:
    """Counts the distinct script runs of `sentences`."""
    counter = RunCounter()
    counter.add(sentences)
    return counter.table()


class RunCounter:
    """Counts script runs of text that arrives in parts."""

    def __init__(self) -> None:
        self._normalize = normalizer().normalize
        self._scripts = _Scripts()
        self._words: collections.Counter[str] = collections.Counter()
        self._runs: dict[str, int] = {}  # run -> count << _FOLLOW_BITS | follow
        self.num_sentences = 0

    def __len__(self) -> int:
        """Strings held: memory grows with it."""
        return len(self._words) + len(self._runs)

    def add(self, sentences: Iterable[str]) -> None:
        """Counts more sentences."""
        remaining = iter(sentences)
        while batch := list(itertools.islice(remaining, _SENTENCES_AT_ONCE)):
            normalized = [sentence for sentence in self._normalize(batch) if sentence]
            self.num_sentences += len(normalized)
            # Each sentence begins with a space, so a sentence's last word keeps its end.
            self._words.update((_END.join(normalized) + _END).split(SPACE))
            if len(self._words) > _MAX_PENDING_WORDS:
                self._split_words()

    def packed(self) -> dict[str, int]:
        """Each run's `pack_count(count, follow)` so far."""
        self._split_words()
        return self._runs

    def table(self) -> RunTable:
        """The table of everything added."""
        return table_of(self.packed(), self.num_sentences)

    def _split_words(self) -> None:
        self._words.pop("", None)
        self._words.pop(_END, None)
        words, counts = list(self._words), np.fromiter(self._words.values(), np.int64)
        self._words.clear()
        if not words:
            return
        joined = SPACE + SPACE.join(words)
        characters = np.frombuffer(joined.encode("utf-32-le"), np.int32)
        begins, ends, follow, word = _split(characters, self._scripts.of(characters), ord(SPACE))
        packed = counts[word] << _FOLLOW_BITS | follow
        runs = self._runs
        for begin, end, value in zip(begins.tolist(), ends.tolist(), packed.tolist(), strict=True):
            run = joined[begin:end]
            old = runs.get(run)
            runs[run] = value if old is None else merge_counts(old, value)


def pack_count(count: int, follow: int) -> int:
    """Count and follow of a run as one integer, which `merge_counts` adds."""
    return count << _FOLLOW_BITS | follow


def unpack_count(packed: int) -> tuple[int, int]:
    """Undoes `pack_count`."""
    return packed >> _FOLLOW_BITS, packed & _FOLLOW_MASK


def merge_counts(a: int, b: int) -> int:
    """The packed count and follow of a run that was counted in two places."""
    follow = a & _FOLLOW_MASK if (a ^ b) & _FOLLOW_MASK == 0 else MIXED
    return ((a >> _FOLLOW_BITS) + (b >> _FOLLOW_BITS)) << _FOLLOW_BITS | follow


def table_of(packed: dict[str, int], num_sentences: int) -> RunTable:
    """The table of runs with packed counts; in code point order, whatever the order of `packed`."""
    runs = sorted(packed)
    values = np.fromiter(map(packed.__getitem__, runs), np.int64, len(runs))
    return RunTable(
        text=pack(runs),
        counts=values >> _FOLLOW_BITS,
        follow=(values & _FOLLOW_MASK).astype(np.int16),
        num_sentences=num_sentences,
    )


@functools.cache
def _script_number(script: str) -> int:
    """A small number for a script; 0 for characters that take the script of what precedes them."""
    if script == "Zinh":
        return 0
    # Japanese words mix the three.
    if script in ("Hira", "Kana"):
        script = "Hani"
    # Unassigned code points count as common, as in SentencePiece.
    if script == "Zzzz":
        script = "Zyyy"
    return 1 + sorted(unicodedata.Scripts.NAMES).index(script)


class _Scripts:
    """Script numbers of code points, looked up once each; see `_script_number`."""

    def __init__(self) -> None:
        self._numbers = np.full(sys.maxunicode + 1, -1, np.int16)

    def of(self, characters: np.ndarray) -> np.ndarray:
        """[C] int16 script numbers."""
        numbers = self._numbers[characters]
        for c in set(characters[numbers < 0].tolist()):
            # The prolonged sound mark belongs to Katakana and Hiragana, formally to neither.
            script = "Kana" if c == 0x30FC else unicodedata.script(chr(c))
            self._numbers[c] = _script_number(script)
        return self._numbers[characters]


@numba.njit(cache=True)
def first_byte(character):
    """The first byte of a code point in UTF-8."""
    if character < 0x80:
        return character
    if character < 0x800:
        return 0xC0 | (character >> 6)
    if character < 0x10000:
        return 0xE0 | (character >> 12)
    return 0xF0 | (character >> 18)


@numba.njit(cache=True)
def _split(characters, scripts, space):
    """Begin, end, following byte and word of each script run of words joined by spaces."""
    begins = np.empty(len(characters), np.int64)
    ends = np.empty(len(characters), np.int64)
    follow = np.empty(len(characters), np.int64)
    word_of_run = np.empty(len(characters), np.int64)
    num_runs, word, script = 0, -1, 0
    for i in range(len(characters)):
        c = characters[i]
        if c == 10:  # the end of a sentence, already booked by the run before it
            continue
        s = scripts[i]
        if c == space:
            word += 1
            s = 0
        elif s == 0:
            s = script
        if i == 0 or c == space or (script != 0 and s != script):
            begins[num_runs] = i
            word_of_run[num_runs] = word
            num_runs += 1
        script = s
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
    """[N] hash of each run, FNV-1a with its bits mixed at the end."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for run in range(len(hashes)):
        value = np.uint64(0xCBF29CE484222325)
        for i in range(offsets[run], offsets[run + 1]):
            value = (value ^ np.uint64(characters[i])) * np.uint64(0x100000001B3)
        # The last characters are in the lower bits only so far; comparing looks at the upper.
        value = (value ^ (value >> np.uint64(32))) * np.uint64(0xFF51AFD7ED558CCD)
        hashes[run] = value ^ (value >> np.uint64(32))
    return hashes
