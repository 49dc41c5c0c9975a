"""Byte-level BPE: merges of the UTF-8 bytes of a text's pretokens, so no text has an unknown token.

`byte_tokens.PATTERN` cuts the text, which is not normalised. SentencePiece's trainer merges the
bytes, written as characters (`bpe`). Every byte is a token. So T pieces are 5 special tokens, 256
bytes and T - 261 merges.
"""

import collections
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vocap import bpe, pretokens
from vocap.byte_tokens import CHARACTERS, PATTERN, merge_pairs
from vocap.pretokens import SPACE, PretokenTable, Text, Texts
from vocap.settings import SPECIALS, VocabularySettings

# A pretoken begins at each blank after another character.
_CUT = re.compile(r"(?<=\S)(?= )")
_MAX_BYTES = 4  # of a character
# The trainer shall merge all characters of a pretoken.
_UNSPLIT = dict.fromkeys(
    ("split_by_unicode_script", "split_by_number", "split_by_whitespace"), False
)
_CODES = np.frombuffer(CHARACTERS.encode("utf-32-le"), np.int32)


def check(settings: VocabularySettings, sources: Iterable[object] = ()) -> None:
    """Raise ValueError if the size has no room for merges, or a source is a table of runs."""
    if settings.budget <= len(CHARACTERS):
        raise ValueError(
            f"vocab.target_size is {settings.target_size}, must be above the "
            f"{len(SPECIALS) + len(CHARACTERS)} special tokens and bytes of the method byte_bpe; "
            "raise it"
        )
    if tables := [source for source in sources if isinstance(source, pathlib.Path)]:
        raise ValueError(
            f"the method byte_bpe reads sentences, but {tables[0]} is a table of normalised runs; "
            "give text, or leave byte_bpe out of vocab.method and vocab.compare"
        )


def count(sentences: Iterable[str]) -> PretokenTable:
    """Count the pretokens of sentences; blanks are `SPACE`, and `follow` is 0."""
    split = pretokens.splitter(PATTERN).pre_tokenize_str
    parts, counts = collections.Counter[str](), collections.Counter[str]()
    num_sentences = 0
    for sentence in sentences:
        parts.update(_CUT.split(sentence))
        num_sentences += bool(sentence.strip())
    for part, number in parts.items():
        for pretoken, _ in split(part):
            counts[pretoken.replace(" ", SPACE)] += number
    packed = {pretoken: pretokens.pack_count(number, 0) for pretoken, number in counts.items()}
    return pretokens.table_of(packed, num_sentences)


def in_bytes(table: PretokenTable) -> PretokenTable:
    """Write each byte of the runs as one of `CHARACTERS`, a blank for `SPACE`."""
    codes = np.where(table.text.characters == ord(SPACE), ord(" "), table.text.characters)
    data = codes.astype(np.int32).tobytes().decode("utf-32-le").encode()
    sizes = 1 + np.searchsorted((0x80, 0x800, 0x10000), codes, side="right")
    offsets = np.concatenate([[0], np.cumsum(sizes)])[table.text.offsets]
    text = Text(_CODES[np.frombuffer(data, np.uint8)], offsets)
    return PretokenTable(text, table.counts, table.follow, table.num_sentences)


def train(
    tables: Texts, shares: Mapping[str, float], settings: VocabularySettings
) -> tuple[tuple[str, ...], np.ndarray]:
    """Train the `settings.budget` tokens of a vocabulary, and their scores 0, -1, ...

    Bytes come first, then merges in their order, written in `CHARACTERS`. `shares` are the
    languages' shares of the bytes of the mixture, in any unit. Raise ValueError as `check`, or if
    the text offers fewer merges.
    """
    check(settings)
    budget = settings.budget
    text = in_bytes(pretokens.mixture(tables, shares))
    merges = budget - len(CHARACTERS)
    merges += merges // 1000  # some never arise
    found = bpe.train(
        text, len(np.unique(text.text.characters)) + merges, character_coverage=1.0,
        max_piece_length=_MAX_BYTES * settings.max_piece_length, may_be_fewer=True, **_UNSPLIT,
    )  # fmt: skip
    merged = merge_pairs([token for token in found[0] if len(token) > 1] if found else [])
    tokens = (*CHARACTERS, *merged)[:budget]
    if len(tokens) < budget:
        raise ValueError(
            f"the text of {', '.join(sorted(tables))} offers {len(merged)} merges, fewer than the "
            f"{budget - len(CHARACTERS)} of vocab.target_size for byte_bpe; lower it, or add text"
        )
    return tokens, -np.arange(budget, dtype=np.float64)


def segmented_counts(tokens: Sequence[str], scores: np.ndarray, table: PretokenTable) -> np.ndarray:
    """Count the [V] tokens, and last the unknown bytes, always 0: [V + 1] float64."""
    return bpe.segmented_counts(bpe.segmenter(tokens, scores), in_bytes(table))


def count_tokens(
    tables: Texts, shares: Mapping[str, float], measured: Texts, settings: VocabularySettings
) -> dict[str, float]:
    """Count the tokens of each language's `measured` pretokens, trained at `shares`."""
    tokens, scores = train(tables, shares, settings)
    return {
        language: float(segmented_counts(tokens, scores, table).sum())
        for language, table in measured.items()
    }
