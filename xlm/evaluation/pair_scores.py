"""Scores of sentence pairs by an encoder: margins of vectors, and the use of translations."""

from collections.abc import Callable, Sequence

import numpy as np

from xlm.evaluation.metrics.retrieval import MARGINS, nearest_accuracy, nearest_neighbours

_NEIGHBOURS = 4
_LOSS_PAIRS = 64
_LEAST_PAIRS = 8


def pair_scores(
    pairs: Sequence[tuple[str, str]],
    encode: Callable[[Sequence[str]], np.ndarray],
    loss: Callable[[Sequence[str]], float],
) -> tuple[dict[str, float], np.ndarray]:
    """Return scores of the pairs, and the margin of each [n]; nothing for fewer than 8 pairs.

    `margin` is the mean ratio of Artetxe and Schwenk (2019), `shuffled_margin` that of each
    sentence with the next pair's. `not_nearest` is the share of sentences, in both directions, with
    another nearest sentence. `loss_gain` is the masked-LM loss, in nats a token, of sentences
    followed by the next pair's translation, less that with their own.
    """
    if len(pairs) < _LEAST_PAIRS:
        return {}, np.zeros(0)
    one, two = zip(*pairs, strict=True)
    sides = encode(one), encode(two)
    unit = [side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-12) for side in sides]
    around = [
        nearest_neighbours(side, other, _NEIGHBOURS)[0].mean(1)
        for side, other in (sides, sides[::-1])
    ]
    own, shuffled = (
        MARGINS["ratio"](
            (unit[0] * np.roll(unit[1], by, 0)).sum(1), (around[0] + np.roll(around[1], by)) / 2
        )
        for by in (0, -1)
    )
    right = nearest_accuracy(*sides), nearest_accuracy(*sides[::-1])
    first, second = one[:_LOSS_PAIRS], two[:_LOSS_PAIRS]
    joined, apart = (
        loss([f"{a} {b}" for a, b in zip(first, others, strict=True)])
        for others in (second, (*second[1:], second[0]))
    )
    return {
        "margin": float(own.mean()),
        "shuffled_margin": float(shuffled.mean()),
        "not_nearest": 1 - (right[0] + right[1]) / 2,
        "loss_gain": apart - joined,
    }, own
