"""Word counts of a corpus: all that ALP and EM need to know of its text.

A unigram segmentation never crosses a space, so a sentence's best segmentation is that of its
words, and a table of distinct words with counts stands for the whole corpus, exactly.
"""

import collections
import dataclasses
from collections.abc import Iterable

import numpy as np
import sentencepiece as spm

SPACE = "\u2581"  # SentencePiece's visible space; each word carries one in front.


@dataclasses.dataclass(frozen=True)
class WordTable:
    """Distinct normalised words with their counts.

    Attributes:
      words: [N] distinct words, each with its leading `SPACE`, in code point order.
      counts: [N] int64, occurrences of each word.
      num_sentences: sentences counted, the |D| of Eq. 1; empty ones do not count.
    """

    words: tuple[str, ...]
    counts: np.ndarray
    num_sentences: int

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the text, one for each space: the n_i of Eq. 3.

        Bytes, since words mean little where nothing separates them, and since the sizes that
        papers publish are bytes.
        """
        lengths = np.array([len(word[1:].encode()) + 1 for word in self.words], np.int64)
        return int(lengths @ self.counts)


def normalizer() -> spm.SentencePieceNormalizer:
    """The text normaliser of every vocabulary here: nmt_nfkc, leading and visible spaces.

    The very rules SentencePiece's trainer uses by default, so that the merged model, whose
    normaliser is copied from a trained one, sees the text that the curves were measured on.
    """
    return spm.SentencePieceNormalizer(
        rule_name="nmt_nfkc",
        add_dummy_prefix=True,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )


def count_words(sentences: Iterable[str]) -> WordTable:
    """Counts the distinct normalised words of `sentences`."""
    normalize = normalizer().normalize
    counts: collections.Counter[str] = collections.Counter()
    num_sentences = 0
    for sentence in sentences:
        normalized = normalize(sentence)
        if not normalized:
            continue
        num_sentences += 1
        counts.update(SPACE + word for word in normalized.split(SPACE) if word)
    words = tuple(sorted(counts))
    return WordTable(words, np.array([counts[w] for w in words], np.int64), num_sentences)
