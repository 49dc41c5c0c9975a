"""Allocation of vocabulary sizes to languages (paper Section 2.2.1, Eqs. 2 and 3, Algorithm 1).

The union of all vocabularies ends with exactly T pieces, without special tokens. A step replaces a
language's vocabulary by its next one, so the union may shrink. Steps stop as soon as the union
holds T. If a step would exceed T, its language keeps its old vocabulary and adds the new pieces in
order of probability up to T. Every vocabulary of a language holds its required characters, so no
script is ever dropped.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from vocap.curves import Curve, concave_envelope


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of an allocation: `language` grew to `size`.

    `gain` is the weighted ALP gain per piece, q_i^beta * dALP / dsize, and infinity for the first
    sizes. `union` is the number of distinct pieces after the step.
    """

    language: str
    size: int
    gain: float
    union: int


@dataclasses.dataclass(frozen=True, eq=False)
class Course:
    """Course of Algorithm 1 from the smallest to the largest sizes, without a budget.

    Step n moves `languages[n]` to its next vertex, after which the union holds `unions[n]` distinct
    pieces; before the first step it holds `first_pieces`. The allocation of T pieces ends with the
    first step whose union holds at least T, so one course holds the allocations of every T.
    """

    beta: float
    first_pieces: int
    languages: tuple[str, ...]
    unions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Change:
    """Effect of moving one language by one step, forward or back.

    `size` is the language's new size, `alp` the change of its ALP in nats per sentence, `gain` the
    weighted ALP gain per piece between the two sizes, and `pieces` the change of the union's size.
    """

    size: int
    alp: float
    gain: float
    pieces: int


@dataclasses.dataclass(frozen=True)
class Margin:
    """Margins of a language: `less` undoes its last step, `more` is the next step.

    None at the smallest or the largest size. Below an initial size the steps follow the concave
    envelope of the sizes up to it.
    """

    less: Change | None
    more: Change | None


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The outcome of `allocate`.

    Attributes:
      sizes: size of each language, the t_i of Algorithm 1.
      pieces: exactly `budget` distinct pieces, in code point order.
      not_concave: skipped sizes of each language, which lie under the concave envelope.
      at_largest: languages that ended at their largest trained size: their curve is too short.
      partial: language whose last step exceeded the budget. It holds the pieces of its size before
        that step and the most probable new ones, up to the budget.
    """

    sizes: dict[str, int]
    pieces: tuple[str, ...]
    steps: tuple[Step, ...]
    not_concave: dict[str, tuple[int, ...]]
    at_largest: tuple[str, ...]
    partial: str | None
    margins: dict[str, Margin]


def language_probabilities(
    amounts: Mapping[str, float], alpha: float, languages: Iterable[str] | None = None
) -> dict[str, float]:
    """Compute q_i = f_i^alpha / sum_j f_j^alpha with f_i = n_i / sum_k n_k (Eq. 3).

    `amounts` holds n_i in any unit, or probabilities, which alpha = 1 only renormalises. alpha = 0
    makes all languages equal. `languages` selects some of them and sets the order. Raise ValueError
    for no language, one missing in `amounts`, an amount that is not positive and finite, or a
    negative or infinite alpha.
    """
    wanted = list(amounts if languages is None else languages)
    if not wanted:
        raise ValueError("no languages to compute probabilities for")
    missing = sorted(set(wanted) - set(amounts))
    if missing:
        raise ValueError(
            f"there is no amount or probability for {', '.join(missing)}; add them to the table of "
            f"{len(amounts)} languages, or leave them out of the corpus"
        )
    for language in wanted:
        if not 0 < amounts[language] < math.inf:
            raise ValueError(
                f"language {language!r} has amount {amounts[language]}; must be positive and finite"
            )
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha is {alpha}; must be zero or more")
    # fsum ignores the order of the languages, so that equal languages stay equal.
    total = math.fsum(amounts[language] for language in wanted)
    smoothed = {language: (amounts[language] / total) ** alpha for language in wanted}
    norm = math.fsum(smoothed.values())
    return {language: value / norm for language, value in smoothed.items()}


def allocate(
    curves: Mapping[str, Curve],
    probabilities: Mapping[str, float],
    *,
    beta: float,
    budget: int,
    method: str = "vocap",
    initial_sizes: Mapping[str, int] = MappingProxyType({}),
) -> Allocation:
    """Greedily maximise sum_i q_i^beta ALP(D_i, V_i^{t_i}) with |union of V_i^{t_i}| = T (Eq. 2).

    Every language starts at its smallest size. Then the language with the largest weighted gain per
    piece grows by one step of its concave envelope, until the union holds T pieces. Ties go to the
    first language in code point order. Raise ValueError if the first vocabularies exceed T, the
    largest do not reach it, or an initial size is not trained.

    Args:
      probabilities: q_i of each language (Eq. 3); for "proportional", any positive weights.
      beta: exponent of q_i; 0 ignores the amount of text.
      method: "vocap" is Algorithm 1; "proportional" grows the smallest size / q_i, "uniform" the
        smallest size. The last two visit every size.
      initial_sizes: trained sizes to begin at instead of the smallest. An allocation that begins at
        the sizes before its last step has the same outcome.
    """
    paths = _make_paths(curves, probabilities, beta, method, _starts(curves, initial_sizes))
    growth = _Growth(curves, paths)
    if growth.union > budget:
        first = "smallest vocabularies"
        remedy = "offer smaller vocab.sizes, or drop languages"
        if initial_sizes:
            first = f"first vocabularies, {len(initial_sizes)} of them of initial sizes,"
            remedy = "or lower the sizes in vocab.allocation"
        raise ValueError(
            f"target of {budget} pieces besides specials is too small: the {first} of "
            f"{len(paths)} languages already hold {growth.union} distinct pieces; raise "
            f"vocab.target_size, {remedy}"
        )
    for _, language in _order(paths):
        if growth.union == budget:
            break
        growth.grow(language, budget)
    if growth.union < budget:
        raise ValueError(
            f"target of {budget} pieces besides specials is too large: the largest vocabularies of "
            f"all {len(paths)} languages together hold {growth.union} distinct pieces; lower "
            "vocab.target_size, offer larger vocab.sizes, or add text"
        )
    return _outcome(growth)


def trace_courses(
    curves: Mapping[str, Curve], probabilities: Mapping[str, float], betas: Sequence[float]
) -> list[Course]:
    """Trace the course of Algorithm 1 to the largest sizes for each beta.

    beta changes only the order of all languages' steps, not the sizes that a language visits. So
    one search finds the pieces that each step exchanges.
    """
    starts = _starts(curves, {})
    growth = _Growth(curves, _make_paths(curves, probabilities, 0.0, "vocap", starts))
    exchanges = {lang: _exchanges(growth, lang) for lang in growth.paths}
    found = []
    for beta in betas:
        order = _order(_make_paths(curves, probabilities, beta, "vocap", starts))
        counts, union, unions = growth.counts.copy(), growth.union, []
        remaining = {lang: iter(steps) for lang, steps in exchanges.items()}
        for _, language in order:
            removed, added = next(remaining[language])
            counts[removed] -= 1
            union -= int(np.count_nonzero(counts[removed] == 0))
            union += int(np.count_nonzero(counts[added] == 0))
            counts[added] += 1
            unions.append(union)
        languages = tuple(language for _, language in order)
        found.append(Course(beta, growth.union, languages, tuple(unions)))
    return found


def _exchanges(growth: "_Growth", language: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices of the pieces that each step of a language removes and adds."""
    found, path = [], growth.paths[language]
    vocabularies = [growth.vocabulary(language, v) for v in range(len(path.vertices))]
    held = np.zeros(len(growth.names), np.bool_)
    for old, new in itertools.pairwise(vocabularies):
        held[old] = True
        added = new[~held[new]]
        held[new] = False
        found.append((old[held[old]], added))
        held[old] = False
    return found


def _starts(curves: Mapping[str, Curve], initial_sizes: Mapping[str, int]) -> dict[str, int]:
    starts = dict.fromkeys(curves, 0)
    for language, size in initial_sizes.items():
        trained = curves[language].sizes
        if size not in trained:
            near = sorted(sorted(trained, key=lambda one: abs(one - size))[:2])
            raise ValueError(
                f"language {language!r} has the initial size {size}, which was not trained; it has "
                f"{len(trained)} sizes from {trained[0]} to {trained[-1]}, the nearest are "
                f"{', '.join(map(str, near))}; choose one of them in vocab.allocation, or add to "
                "vocab.sizes"
            )
        starts[language] = trained.index(size)
    return starts


@dataclasses.dataclass(frozen=True)
class _Path:
    """Sizes that a language visits: `vertices` [N] are indices into the curve's sizes.

    The language begins at vertex `start`; earlier ones serve its margin. `gains` [N - 1] are the
    weighted ALP gains per piece of each step. `keys` [N - 1 - start] ascend: the next step is that
    with the smallest key of all languages' next steps.
    """

    vertices: list[int]
    start: int
    gains: np.ndarray
    keys: np.ndarray


def _make_paths(
    curves: Mapping[str, Curve],
    probabilities: Mapping[str, float],
    beta: float,
    method: str,
    starts: Mapping[str, int],
) -> dict[str, _Path]:
    return {
        lang: _make_path(curves[lang], probabilities[lang], beta, method, starts[lang])
        for lang in sorted(curves)
    }


def _make_path(curve: Curve, probability: float, beta: float, method: str, first: int) -> _Path:
    """Return the path of a curve that begins at the size of index `first`."""
    vertices = list(range(len(curve.sizes)))
    if method == "vocap":
        # A size on the envelope of the whole curve divides it into these two.
        before = concave_envelope(curve.sizes[: first + 1], curve.alp[: first + 1])
        after = concave_envelope(curve.sizes[first:], curve.alp[first:])
        vertices = [*before, *(first + i for i in after[1:])]
    start = vertices.index(first)
    sizes, alp = np.array(curve.sizes)[vertices], np.array(curve.alp)[vertices]
    gains = probability**beta * (np.diff(alp) / np.diff(sizes))
    keys = {
        "vocap": -gains,  # never falls, even rounded: the envelope compared these differences
        "proportional": sizes[:-1] / probability,
        "uniform": sizes[:-1],
    }
    return _Path(vertices, start, gains, keys[method][start:])


def _order(paths: Mapping[str, _Path]) -> list[tuple[float, str]]:
    # Keys ascend along each path, so sorting keeps the order of each language's steps.
    return sorted((float(key), lang) for lang, path in paths.items() for key in path.keys)


class _Growth:
    """Languages growing along their paths, and the union of their pieces.

    `counts` is the number of languages that hold each piece. So the time of a step grows with the
    vocabularies that it exchanges, not with the union.
    """

    def __init__(self, curves: Mapping[str, Curve], paths: Mapping[str, _Path]):
        self.curves, self.paths = curves, paths
        numbers: dict[str, int] = {}
        self.ids = {
            lang: np.fromiter(
                (numbers.setdefault(piece, len(numbers)) for piece in curves[lang].pieces),
                np.int32,
                len(curves[lang].pieces),
            )
            for lang in paths
        }
        self.names = list(numbers)
        self.counts = np.zeros(len(self.names), np.int32)
        self.union = 0
        self.at = {lang: path.start for lang, path in paths.items()}
        self.held = dict.fromkeys(paths, np.zeros(0, np.int32))
        self.partial: str | None = None
        self.steps: list[Step] = []
        for lang, vertex in self.at.items():
            self.hold(lang, self.vocabulary(lang, vertex))
            self.steps.append(Step(lang, self.size(lang, vertex), math.inf, self.union))

    def size(self, language: str, vertex: int) -> int:
        return int(self.curves[language].sizes[self.paths[language].vertices[vertex]])

    def alp(self, language: str, vertex: int) -> float:
        return float(self.curves[language].alp[self.paths[language].vertices[vertex]])

    def vocabulary(self, language: str, vertex: int) -> np.ndarray:
        """Return the indices of the pieces of a vocabulary, highest probability first."""
        members = self.curves[language].members[self.paths[language].vertices[vertex]]
        return self.ids[language][members]

    def hold(self, language: str, pieces: np.ndarray) -> None:
        """Replace the pieces that `language` holds by the distinct `pieces`."""
        old = self.held[language]
        self.counts[old] -= 1
        self.union -= int(np.count_nonzero(self.counts[old] == 0))
        self.union += int(np.count_nonzero(self.counts[pieces] == 0))
        self.counts[pieces] += 1
        self.held[language] = pieces

    def grow(self, language: str, budget: int) -> None:
        """Take the next step of `language`, or the part of it that fits the budget."""
        old, room = self.held[language], budget - self.union
        new = self.vocabulary(language, self.at[language] + 1)
        added = new[self.counts[new] == 0]
        self.hold(language, new)
        if self.union > budget:
            self.hold(language, np.concatenate([old, added[:room]]))
            self.partial = language
        gain = float(self.paths[language].gains[self.at[language]])
        self.at[language] += 1
        self.steps.append(Step(language, self.size(language, self.at[language]), gain, self.union))

    def change(self, language: str, vertex: int) -> Change | None:
        """Return the effect of moving `language` to a neighbouring vertex, or None without one."""
        at, path = self.at[language], self.paths[language]
        if not 0 <= vertex < len(path.vertices):
            return None
        held, union = self.held[language], self.union
        self.hold(language, self.vocabulary(language, vertex))
        pieces = self.union - union
        self.hold(language, held)
        return Change(
            size=self.size(language, vertex),
            alp=self.alp(language, vertex) - self.alp(language, at),
            gain=float(path.gains[min(at, vertex)]),
            pieces=pieces,
        )


def _outcome(growth: _Growth) -> Allocation:
    curves, paths, at = growth.curves, growth.paths, growth.at
    skipped = {
        lang: tuple(int(s) for i, s in enumerate(curves[lang].sizes) if i not in path.vertices)
        for lang, path in paths.items()
    }
    return Allocation(
        sizes={lang: growth.size(lang, at[lang]) for lang in paths},
        pieces=tuple(sorted(growth.names[i] for i in np.flatnonzero(growth.counts))),
        steps=tuple(growth.steps),
        not_concave={lang: sizes for lang, sizes in skipped.items() if sizes},
        at_largest=tuple(lang for lang in paths if at[lang] == len(paths[lang].vertices) - 1),
        partial=growth.partial,
        margins={
            lang: Margin(growth.change(lang, at[lang] - 1), growth.change(lang, at[lang] + 1))
            for lang in paths
        },
    )
