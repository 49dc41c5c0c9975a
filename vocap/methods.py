"""Methods that choose the pieces of a joint vocabulary: VoCap and its baselines.

- vocap: Algorithm 1.
- proportional, uniform: languages grow in proportion to q, or equally.
- joint: one training on the mixture of all languages, as for XLM-R.
- clustered: one training per cluster of languages with similar vocabularies, as for XLM-V. A
  cluster has the capacity that VoCap gives its languages.
- bpe: byte-pair encoding of the mixture of all languages, as for the models before XLM-R.
- union: merges of the mixture, pruned by the tokens that they save (`vocap.union`).
- byte_bpe: merges of the bytes of the mixture (`vocap.byte_bpe`).

All meet the same target exactly. The same EM then scores their pieces, for union on a mixture of
its own. The order of their merges scores the pieces of bpe and byte_bpe, and segments text.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vocap import clusters
from vocap.allocation import Allocation, allocate
from vocap.curves import Curve
from vocap.settings import BPE, BYTE_BPE, UNIGRAM, VocabularySettings
from vocap.unigram import Vocabularies

if TYPE_CHECKING:
    from vocap.mixture_trainer import MixtureTrainer

_FINGERPRINT = 30_000  # pieces to compare languages by, if all have so many
_CLUSTER_SIZES = 40  # trained sizes of a cluster's vocabulary


@dataclasses.dataclass(frozen=True)
class Choice:
    """The pieces of a joint vocabulary, exactly as many as the budget, in code point order.

    `scores` [V] float64 are log probabilities, or for merges any numbers, the larger the earlier
    merged. They are final if it `is_scored`, else EM starts from them. `allocation` has sizes per
    language, or per cluster of `groups`; None for pieces of the mixture.
    """

    pieces: tuple[str, ...]
    scores: np.ndarray
    allocation: Allocation | None
    groups: dict[str, tuple[str, ...]]
    kind: str = UNIGRAM
    is_scored: bool = False


def choose(
    method: str,
    vocabularies: Mapping[str, Vocabularies],
    probabilities: Mapping[str, float],
    settings: VocabularySettings,
    trainer: "MixtureTrainer",
) -> Choice:
    """Choose the pieces by one of `METHODS`; raise ValueError if the budget cannot be met.

    `probabilities` are q_i of Eq. 3.
    """
    budget = settings.budget
    if method == "joint":
        joint = trainer.train(tuple(sorted(vocabularies)), (budget,))
        log_probs = joint.log_probs[0].astype(np.float64)
        return _together(vocabularies, joint.curve.vocabulary(0), log_probs)
    if method == "bpe":
        return _together(vocabularies, *trainer.train_merges(budget), BPE, is_scored=True)
    if method == "union":
        return _together(vocabularies, *trainer.train_fairly("union", budget), is_scored=True)
    if method == "byte_bpe":
        return _together(
            vocabularies, *trainer.train_fairly("bytes", budget), BYTE_BPE, is_scored=True
        )
    if method == "clustered":
        return _clustered(vocabularies, probabilities, settings, trainer)
    curves = {language: v.curve for language, v in vocabularies.items()}
    allocation = allocate(
        curves, probabilities, beta=settings.beta, budget=budget, method=method,
        initial_sizes=settings.initial_sizes if method == "vocap" else {},
    )  # fmt: skip
    groups: dict[str, tuple[str, ...]] = {language: (language,) for language in curves}
    return _allocated(allocation, vocabularies, probabilities, groups)


def _together(
    vocabularies: Mapping[str, Vocabularies],
    pieces: Sequence[str],
    scores: np.ndarray,
    kind: str = UNIGRAM,
    *,
    is_scored: bool = False,
) -> Choice:
    """Choose the trained pieces of the mixture of all languages."""
    order = sorted(range(len(pieces)), key=pieces.__getitem__)
    return Choice(
        pieces=tuple(pieces[i] for i in order),
        scores=scores[order],
        allocation=None,
        groups={"all": tuple(sorted(vocabularies))},
        kind=kind,
        is_scored=is_scored,
    )


def _clustered(
    vocabularies: Mapping[str, Vocabularies],
    probabilities: Mapping[str, float],
    settings: VocabularySettings,
    trainer: "MixtureTrainer",
) -> Choice:
    """Choose as in XLM-V (Liang et al. 2023): k-means of languages, one training per cluster.

    A cluster's capacity is the sum of its languages' VoCap allocations. Clusters share pieces, so
    their union falls short of the sum of capacities. They grow in proportion until it meets the
    budget.
    """
    beta, budget = settings.beta, settings.budget
    curves = {language: v.curve for language, v in vocabularies.items()}
    capacity_of = allocate(curves, probabilities, beta=beta, budget=budget).sizes
    groups = _groups(vocabularies, settings.num_clusters)
    capacities = {name: sum(capacity_of[lang] for lang in group) for name, group in groups.items()}
    together = {}
    for name, group in groups.items():
        target = budget * capacities[name] / sum(capacities.values())
        sizes = _sizes_around(target, [curves[language] for language in group])
        alone = len(group) == 1
        together[name] = vocabularies[group[0]] if alone else trainer.train(group, sizes)
    shares = {
        name: sum(probabilities[language] for language in group) for name, group in groups.items()
    }
    of_clusters = {name: v.curve for name, v in together.items()}
    allocation = allocate(of_clusters, capacities, beta=beta, budget=budget, method="proportional")
    return _allocated(allocation, together, shares, groups)


def _groups(
    vocabularies: Mapping[str, Vocabularies], num_clusters: int
) -> dict[str, tuple[str, ...]]:
    """Return languages of similar vocabularies, by the names of their clusters."""
    # Vocabularies of different sizes would always look dissimilar.
    common = min(_FINGERPRINT, *(v.curve.sizes[-1] for v in vocabularies.values()))
    at = {
        language: int(np.abs(np.array(v.curve.sizes) - common).argmin())
        for language, v in vocabularies.items()
    }
    cluster_of = clusters.cluster_languages(
        {language: v.curve.vocabulary(at[language]) for language, v in vocabularies.items()},
        {language: v.log_probs[at[language]] for language, v in vocabularies.items()},
        min(num_clusters, len(vocabularies)),
    )
    return {
        f"cluster {i + 1}": tuple(lang for lang, cluster in cluster_of.items() if cluster == i)
        for i in range(1 + max(cluster_of.values()))
    }


def _sizes_around(target: float, curves: Sequence[Curve]) -> tuple[int, ...]:
    """Return sizes to train a cluster at: up to twice its target, since clusters share pieces.

    The sizes of its languages are included, since little text leaves few feasible sizes.
    """
    grid = {math.ceil(2 * target * i / _CLUSTER_SIZES) for i in range(1, _CLUSTER_SIZES + 1)}
    return tuple(sorted(grid.union(*(curve.sizes for curve in curves))))


def _allocated(
    allocation: Allocation,
    vocabularies: Mapping[str, Vocabularies],
    probabilities: Mapping[str, float],
    groups: dict[str, tuple[str, ...]],
) -> Choice:
    """Choose the pieces of an allocation; EM starts from log of sum_i q_i p_i(piece)."""
    mixed = dict.fromkeys(allocation.pieces, 0.0)
    for name, size in allocation.sizes.items():
        vocabulary = vocabularies[name]
        s = vocabulary.curve.sizes.index(size)
        for piece, log_prob in zip(
            vocabulary.curve.vocabulary(s), vocabulary.log_probs[s].tolist(), strict=True
        ):
            if piece in mixed:
                mixed[piece] += probabilities[name] * float(np.exp(log_prob))
    values = np.fromiter(mixed.values(), np.float64, len(mixed))
    # A piece of the step before a partial last one may be in no chosen vocabulary.
    initial = np.log(np.maximum(values, values[values > 0].min()))
    return Choice(allocation.pieces, initial, allocation, groups)
