"""Scores of a tag a word: named entities (WikiANN) and parts of speech (UD-POS), by seqeval.

Both count chunks, as XTREME's evaluation does for both: a chunk is right if its type, first word
and last word are. seqeval's default mode, that of conlleval, reads any sequence of tags: a chunk
starts at B-, and also at I- after O, after another type, or at the start of a sentence.
"""

from collections.abc import Sequence

import numpy as np
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from sklearn import metrics

Tags = Sequence[Sequence[str]]


def entity_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Precision, recall and F1 over all entities of all sentences (micro-averaged).

    Args:
      gold, predicted: the tags of each sentence: "O", "B-PER", "I-PER", ...; of BIOES, BILOU and
        BMES too.

    Returns:
      "f1", "precision", "recall"; 0 where nothing can be counted.

    Raises:
      ValueError: there are none, or they differ in number or in length; the message names the
        first.
    """
    _check(gold, predicted)
    precision, recall, f1, _ = precision_recall_fscore_support(
        _as_iobes(gold), _as_iobes(predicted), average="micro", zero_division=0
    )
    return {"f1": float(f1), "precision": float(precision), "recall": float(recall)}


def part_of_speech_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """F1 of universal parts of speech as XTREME reports it, and accuracy over words.

    XTREME's evaluate.py gives the bare tags to seqeval, so its F1 is over chunks here too: a run of
    words with the same tag is one chunk, with the exception of SCONJ and SYM, of which each word is
    one, since seqeval takes their S for "single". It is stricter than accuracy: one wrong word
    makes the run wrong. The papers' numbers are this F1.

    seqeval of 2020, which XTREME was published with, takes the whole tag for the type; since
    version 1 its first letter is cut off, which makes CCONJ and SCONJ one type. The tags are
    therefore spelled so that both read the same: "S-SCONJ", "I-NOUN".

    Returns:
      "f1", "precision", "recall", "accuracy".

    Raises:
      ValueError: as `entity_scores`.
    """
    chunks = entity_scores(_as_chunks(gold), _as_chunks(predicted))
    return chunks | {"accuracy": _accuracy(gold, predicted)}


def word_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Scores of tags that are no chunks, over words: each word counts, whatever stands beside it.

    Returns:
      "macro_f1", the mean over the tags that occur, in either, of the tag's F1; "accuracy".

    Raises:
      ValueError: as `entity_scores`.
    """
    _check(gold, predicted)
    right, found = ([tag for tags in side for tag in tags] for side in (gold, predicted))
    f1 = metrics.f1_score(right, found, average="macro", zero_division=0) if right else 0.0
    return {"macro_f1": float(f1), "accuracy": _accuracy(gold, predicted)}


def _accuracy(gold: Tags, predicted: Tags) -> float:
    right = np.concatenate([np.asarray(tags, object) for tags in gold])
    found = np.concatenate([np.asarray(tags, object) for tags in predicted])
    return float(np.mean(right == found)) if len(right) else 0.0


def _as_iobes(sentences: Tags) -> list[list[str]]:
    """Tags with the letters that seqeval's default mode knows: I for M, E for L, S for U."""
    other = {"M-": "I-", "L-": "E-", "U-": "S-"}
    return [[other.get(tag[:2], tag[:2]) + tag[2:] for tag in tags] for tags in sentences]


def _as_chunks(sentences: Tags) -> list[list[str]]:
    return [[f"{'S' if tag[0] == 'S' else 'I'}-{tag}" for tag in tags] for tags in sentences]


def _check(gold: Tags, predicted: Tags) -> None:
    if len(gold) != len(predicted) or not gold:
        raise ValueError(
            f"{len(predicted)} tagged sentences for {len(gold)} gold sentences; scores need one "
            "for each of at least one sentence"
        )
    for number, (right, found) in enumerate(zip(gold, predicted, strict=True)):
        if len(right) != len(found):
            raise ValueError(
                f"sentence {number}: {len(found)} predicted tags for {len(right)} words"
            )


SCORERS = {"entities": entity_scores, "part_of_speech": part_of_speech_scores, "words": word_scores}
