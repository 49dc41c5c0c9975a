"""Which vocabulary size each language gets (paper Section 2.2-2.3, Eqs. 2-3, Algorithm 1)."""

import collections
import dataclasses
import heapq
from collections.abc import Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Curve:
    """A language's vocabularies at growing sizes, with the ALP of each.

    Attributes:
      sizes: [S] numbers of pieces, strictly ascending.
      alp: [S] average log probability (Eq. 1) at each size, nats a sentence.
      pieces: [S] the pieces of each vocabulary, highest probability first.
    """

    sizes: tuple[int, ...]
    alp: tuple[float, ...]
    pieces: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of the greedy allocation: `language` grew to `size`.

    `gain` is the weighted ALP gain a piece, q_i^beta * dALP / dsize; `union` the number of
    distinct pieces after the step. First sizes, which every language gets, have gain infinity.
    """

    language: str
    size: int
    gain: float
    union: int


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The outcome of `allocate`.

    Attributes:
      sizes: allocated size of each language, the t_i of Algorithm 1.
      pieces: exactly `budget` distinct pieces, in code point order.
      steps: every step taken, in order.
      not_concave: sizes of each language that lie under the concave envelope and were skipped.
      at_largest: languages that ended at their largest trained size: the curve was too short to
        say how much more they deserve.
    """

    sizes: dict[str, int]
    pieces: tuple[str, ...]
    steps: tuple[Step, ...]
    not_concave: dict[str, tuple[int, ...]]
    at_largest: tuple[str, ...]


def language_probabilities(sizes: Mapping[str, float], alpha: float) -> dict[str, float]:
    """q_i = f_i^alpha / sum_j f_j^alpha with f_i = n_i / sum_k n_k (Eq. 3).

    Args:
      sizes: n_i, amount of text of each language in any one unit; positive.
      alpha: smoothing exponent; 1 keeps the corpus shares, 0 makes all languages equal.

    Raises:
      ValueError: no language, or an amount that is not positive and finite.
    """
    if not sizes:
        raise ValueError("no languages to compute probabilities for")
    for language, size in sizes.items():
        if not 0 < size < float("inf"):
            raise ValueError(f"language {language!r} has corpus size {size}; must be positive")
    counts = np.array(list(sizes.values()), np.float64)
    smoothed = (counts / counts.sum()) ** alpha
    return dict(zip(sizes, (smoothed / smoothed.sum()).tolist(), strict=True))


def concave_envelope(sizes: Sequence[int], alp: Sequence[float]) -> list[int]:
    """Indices of the vertices of the upper concave envelope of the points (size, ALP).

    Measured curves are not everywhere concave, and a greedy step that looks one size ahead stalls
    in front of a small gain that hides a large one. On the envelope the gain a piece only falls,
    which is what makes the greedy choice the best one.
    """
    kept: list[int] = []
    for i in range(len(sizes)):
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            rise_ab = (alp[b] - alp[a]) * (sizes[i] - sizes[b])
            rise_bi = (alp[i] - alp[b]) * (sizes[b] - sizes[a])
            if rise_ab > rise_bi:
                break
            kept.pop()
        kept.append(i)
    return kept


def _replace(union: collections.Counter[str], old: Sequence[str], new: Sequence[str]) -> None:
    """Swaps one language's pieces in `union`, which counts the languages that hold each piece."""
    union.update(new)
    for piece in old:
        union[piece] -= 1
        if not union[piece]:
            del union[piece]


def allocate(
    curves: Mapping[str, Curve],
    probabilities: Mapping[str, float],
    *,
    beta: float,
    budget: int,
) -> Allocation:
    """Greedily maximises sum_i q_i^beta ALP(D_i, V_i^{t_i}) with |union of V_i^{t_i}| = T (Eq. 2).

    Algorithm 1: every language starts at its smallest size; then the language with the largest
    weighted gain a piece grows by one step of its concave envelope, until the union holds T
    pieces. The union shares what languages have in common, so it is counted piece by piece.

    T is met exactly. If the last step overshoots, its language contributes its new pieces in the
    order of their probability until T is reached; nothing that was in the union before is dropped,
    so the required characters, which each smallest vocabulary holds, all stay. Ties go to the
    language that comes first in code point order.

    Args:
      curves: each language's vocabularies and ALP.
      probabilities: q_i of each language (Eq. 3).
      beta: exponent of q_i in the objective (Eq. 2); 0 ignores the amount of text.
      budget: T, the number of pieces wanted, specials not counted.

    Raises:
      ValueError: the smallest vocabularies alone exceed T, or all the largest do not reach it.
    """
    languages = sorted(curves)
    envelopes = {lang: concave_envelope(curves[lang].sizes, curves[lang].alp) for lang in languages}
    weights = {lang: probabilities[lang] ** beta for lang in languages}

    def gain(language: str, vertex: int) -> float:
        """Weighted ALP gain a piece of the step from envelope vertex `vertex` to the next."""
        curve, envelope = curves[language], envelopes[language]
        a, b = envelope[vertex], envelope[vertex + 1]
        slope = (curve.alp[b] - curve.alp[a]) / (curve.sizes[b] - curve.sizes[a])
        return weights[language] * slope

    union: collections.Counter[str] = collections.Counter()
    steps = []
    for language in languages:
        union.update(curves[language].pieces[0])
        steps.append(Step(language, curves[language].sizes[0], float("inf"), len(union)))
    if len(union) > budget:
        raise ValueError(
            f"target of {budget} pieces besides specials is too small: the smallest vocabularies "
            f"of {len(languages)} languages already hold {len(union)} distinct pieces; raise "
            "vocab.target_size, offer smaller vocab.sizes, or drop languages"
        )

    at = dict.fromkeys(languages, 0)
    heap = [(-gain(lang, 0), lang) for lang in languages if len(envelopes[lang]) > 1]
    heapq.heapify(heap)
    partial: tuple[str, ...] = ()  # the part of an overshooting last step that still fits
    while len(union) < budget and heap:
        negative_gain, language = heapq.heappop(heap)
        curve, envelope = curves[language], envelopes[language]
        old, new = curve.pieces[envelope[at[language]]], curve.pieces[envelope[at[language] + 1]]
        added = [piece for piece in new if piece not in union]
        at[language] += 1
        room = budget - len(union)
        _replace(union, old, new)
        if len(union) > budget:
            _replace(union, new, old)
            partial = tuple(added[:room])
        step_size = curve.sizes[envelope[at[language]]]
        steps.append(Step(language, step_size, -negative_gain, len(union) + len(partial)))
        if partial:
            break
        if at[language] + 1 < len(envelope):
            heapq.heappush(heap, (-gain(language, at[language]), language))

    pieces = sorted({*union, *partial})
    if len(pieces) < budget:
        raise ValueError(
            f"target of {budget} pieces besides specials is too large: the largest vocabularies of "
            f"all {len(languages)} languages together hold {len(pieces)} distinct pieces; lower "
            "vocab.target_size, offer larger vocab.sizes, or add text"
        )
    return Allocation(
        sizes={lang: curves[lang].sizes[envelopes[lang][at[lang]]] for lang in languages},
        pieces=tuple(pieces),
        steps=tuple(steps),
        not_concave={
            lang: tuple(s for i, s in enumerate(curves[lang].sizes) if i not in envelopes[lang])
            for lang in languages
            if len(envelopes[lang]) < len(curves[lang].sizes)
        },
        at_largest=tuple(lang for lang in languages if at[lang] == len(envelopes[lang]) - 1),
    )
