"""Scores of one tag a word: named entities (WikiANN) and parts of speech (UD-POS), by seqeval.

Both count chunks, as XTREME's evaluation does: a right chunk has the right type, first word and
last word. seqeval's default mode, that of conlleval, reads any sequence of tags: a chunk starts at
B-, and also at I- after O, after another type, or at the start of a sentence.
"""

import itertools
import operator
from collections.abc import Sequence

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support
from sklearn import metrics

Tags = Sequence[Sequence[str]]


def entity_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Return micro-averaged "f1", "precision" and "recall" over entities; 0 if there are none.

    Tags are "O", "B-PER", "I-PER", ..., or those of BIOES, BILOU and BMES, with a type or without.
    Raises ValueError if there are no sentences, or gold and predictions differ in number or length.
    """
    _check(gold, predicted)
    precision, recall, f1, _ = precision_recall_fscore_support(
        _as_iobes(gold), _as_iobes(predicted), average="micro", zero_division=0
    )
    return {"f1": float(f1), "precision": float(precision), "recall": float(recall)}


def part_of_speech_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Return "f1", "precision", "recall" of parts of speech as in XTREME; "accuracy" over words.

    XTREME's evaluate.py gives the bare tags to seqeval, so its F1, which papers print, is over
    chunks: runs of words with the same tag. One wrong word makes the run wrong. Each word of SCONJ
    and SYM is a chunk, since seqeval takes their S for "single".

    The seqeval of 2020, that of XTREME, takes the whole tag for the type. Since version 1 it cuts
    off the first letter, which makes CCONJ and SCONJ one type. We spell tags for the same result in
    both: "S-SCONJ", "I-NOUN".
    """
    chunks = entity_scores(_as_chunks(gold), _as_chunks(predicted))
    return chunks | {"accuracy": _accuracy(gold, predicted)}


def word_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """Return "macro_f1" (over tags in gold or predictions) and "accuracy", word by word."""
    _check(gold, predicted)
    right, found = ([*itertools.chain(*side)] for side in (gold, predicted))
    f1 = metrics.f1_score(right, found, average="macro", zero_division=0) if right else 0.0
    return {"macro_f1": float(f1), "accuracy": _accuracy(gold, predicted)}


def spans(sentences: Tags, scorer: str) -> list[set[tuple[str, int, int]]]:
    """Return each sentence's chunks (type, first word, last word) in a scorer's F1."""
    chunks = _as_chunks(sentences) if scorer == "part_of_speech" else sentences
    return [set(get_entities(tags)) for tags in _as_iobes(chunks)]


def _accuracy(gold: Tags, predicted: Tags) -> float:
    is_right = [*map(operator.eq, itertools.chain(*gold), itertools.chain(*predicted))]
    return float(np.mean(is_right)) if is_right else 0.0


def _as_iobes(sentences: Tags) -> list[list[str]]:
    """Add a type, and use letters of seqeval's default mode: I for M, E for L, S for U."""
    other = {"M-": "I-", "L-": "E-", "U-": "S-"}
    typed = [[tag if "-" in tag or tag == "O" else f"{tag}-_" for tag in one] for one in sentences]
    return [[other.get(tag[:2], tag[:2]) + tag[2:] for tag in tags] for tags in typed]


def _as_chunks(sentences: Tags) -> list[list[str]]:
    return [[f"{'S' if tag[0] == 'S' else 'I'}-{tag}" for tag in tags] for tags in sentences]


def _check(gold: Tags, predicted: Tags) -> None:
    if len(gold) != len(predicted) or not gold:
        raise ValueError(
            f"{len(predicted)} tagged sentences for {len(gold)} gold sentences; give one for each, "
            "and at least one"
        )
    for number, (right, found) in enumerate(zip(gold, predicted, strict=True)):
        if len(right) != len(found):
            raise ValueError(
                f"sentence {number}: {len(found)} predicted tags for {len(right)} words; give one "
                "for each word"
            )


SCORERS = {"entities": entity_scores, "part_of_speech": part_of_speech_scores, "words": word_scores}
