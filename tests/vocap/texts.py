"""Text of the embedded corpus and of made-up words, and a comparison of what is made of it."""

import dataclasses
import functools
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from vocap import pretokens

CORPUS = pathlib.Path(__file__).resolve().parents[2] / "corpus"


@functools.cache
def sentences(language: str) -> list[str]:
    text = (CORPUS / f"{language}.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.strip()]


@functools.cache
def table(language: str) -> pretokens.PretokenTable:
    return pretokens.count_pretokens(sentences(language))


def made_up(syllables: Sequence[str], count: int, language: str, seed: str = "") -> list[str]:
    """Sentences of made-up words of a language, whose frequencies fall as Zipf has it."""
    rng = random.Random(language)
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(120)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]
    rng = random.Random(language + seed) if seed else rng
    return [" ".join(rng.choices(lexicon, weights, k=rng.randint(3, 9))) for _ in range(count)]


def assert_same(found: Any, expected: Any) -> None:
    """Dataclasses whose fields, and theirs, have equal values, bit for bit."""
    np.testing.assert_equal(dataclasses.asdict(found), dataclasses.asdict(expected))
