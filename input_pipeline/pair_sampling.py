"""Sampling of language pairs: distributions over pairs, from their numbers of sentence pairs.

Counts are a symmetric [N, N] matrix over languages with a zero diagonal. Every distribution P here
is such a matrix that sums to one, so an undirected pair {a, b} has share P_ab + P_ba. Q is the
distribution proportional to the counts. Eq. 1 and 2 are those of XY-LENT (Patra et al., 2023).
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.special

from xlm.common import schema

Pair = tuple[str, str]
METHODS = ("alpha", "proportional", "uniform", "pivot", "m2m", "sinkhorn", "soft")

_CONVERGED = 1e-12  # residual at which Sinkhorn's iterations end
_MET = 1e-9  # residual up to which marginals count as met
_MAX_ITERATIONS = 5000
_MAX_NAMED = 20  # languages that a line names
# If marginals cannot be met, the residual stalls: it falls by less than 1 % in 50 iterations.
_WINDOW, _STALLED = 50, 0.99
# The defaults of HiGHS, 1e-7, are as large as the shares of small pairs.
_HIGHS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclasses.dataclass(frozen=True)
class PairSamplingSettings:
    """How language pairs are sampled; part of the `data` section of a config.

    Attributes:
      pair_sampling: "alpha": n^alpha for each set; "proportional": n; "uniform": equal shares;
        "pivot": n^(1/T), only pairs with the language `pair_pivot`; "m2m": Eq. 1; "sinkhorn": Eq.
        2; "soft": Eq. 2 with a price on missed marginals in place of constraints.
      pair_alpha: without shares of language pairs, n sentence pairs of two languages weigh n^alpha.
      pair_temperature: T; under "m2m", "sinkhorn" and "soft" languages have marginals p^(1/T).
      pair_pivot: the language of all pairs under "pivot".
      pair_strength: under "soft", the price of a missed marginal: 0 for Q, infinite for Eq. 2.
      pair_least: least sentence pairs of a language, summed over its pairs, to train on them.
    """

    pair_sampling: str = schema.key("alpha", choices=METHODS)
    pair_alpha: float = schema.key(0.5, at_least=0)
    pair_temperature: float = schema.key(2.0, above=0)
    pair_pivot: str = schema.key("en")
    pair_strength: float = schema.key(3.0, at_least=0)
    pair_least: int = schema.key(0, at_least=0)

    def __post_init__(self):
        if self.pair_least and self.pair_sampling == "alpha":
            raise ValueError(
                f"data.pair_least is {self.pair_least}, but data.pair_sampling 'alpha' draws by "
                "set; set data.pair_sampling to another method, or data.pair_least to 0"
            )


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Distribution over language pairs, and how well it meets its marginals.

    P [N, N] is float64, symmetric, with a zero diagonal, and sums to one. `marginals` are the [N]
    float64 wanted shares. `converged` says whether the solver reached its optimum, `is_feasible`
    whether any distribution over the pairs of Q has these marginals, `are_owed` whether P must.
    """

    probabilities: np.ndarray
    marginals: np.ndarray
    iterations: int = 0
    converged: bool = True
    is_feasible: bool = True
    are_owed: bool = True

    @property
    def residuals(self) -> np.ndarray:
        """Marginals of P minus the wanted ones, [N] float64."""
        return self.probabilities.sum(axis=1) - self.marginals

    @property
    def distance(self) -> float:
        """Share of all draws from other languages than wanted: the total variation."""
        return float(np.abs(self.residuals).sum() / 2)

    @property
    def worst(self) -> int:
        """Index of the language with the largest residual."""
        residuals = self.residuals
        # On ties, a language with too much: the only partner of languages with too little.
        return int(np.where(residuals > 0, residuals * (1 + _MET), -residuals).argmax())

    @property
    def effective_pairs(self) -> float:
        """Exponential of the entropy of the shares: as many equal pairs have this entropy."""
        shares = 2 * self.probabilities[np.triu_indices_from(self.probabilities, 1)]
        return float(np.exp(scipy.special.entr(shares).sum()))


class MissedShare(NamedTuple):
    """Wanted and actual share of a language, and its number of partners."""

    language: str
    partners: int
    wanted: float
    found: float


@dataclasses.dataclass(frozen=True)
class PairSampling:
    """Sampling of the N sorted `languages`; counts are [N, N] float64 sentence pairs.

    Pairs `left_out`, which have a language of too few sentence pairs, have the share 0.
    """

    method: str
    languages: tuple[str, ...]
    counts: np.ndarray
    sampling: Sampling
    left_out: tuple[Pair, ...] = ()

    def shares(self) -> dict[Pair, float]:
        """Return the share of each pair (a, b), a < b, that has sentence pairs; they sum to one."""
        return dict.fromkeys(self.left_out, 0.0) | {
            (self.languages[i], self.languages[j]): 2 * float(self.sampling.probabilities[i, j])
            for i, j in zip(*np.nonzero(np.triu(self.counts)), strict=True)
        }

    @property
    def is_met(self) -> bool:
        """Whether all languages have the marginals that the method owes them."""
        met = not self.sampling.are_owed or np.abs(self.sampling.residuals).max() <= _MET
        return self.sampling.converged and bool(met)

    def missed_shares(self) -> list[MissedShare]:
        """Return the languages that miss their marginals, the largest residual first."""
        partners = np.count_nonzero(self.counts, axis=1)
        found, wanted = self.sampling.probabilities.sum(axis=1), self.sampling.marginals
        residuals = self.sampling.residuals
        return [
            MissedShare(self.languages[i], int(partners[i]), float(wanted[i]), float(found[i]))
            for i in np.argsort(-np.abs(residuals), kind="stable")
            if abs(residuals[i]) > _MET
        ]

    def certificate(self) -> str:
        """Return one line: how well the marginals are met, and languages that miss theirs."""
        found, worst = self.sampling, self.sampling.worst
        line = (
            f"data.pair_sampling {self.method}: {found.effective_pairs:.1f} effective of "
            f"{np.count_nonzero(np.triu(self.counts))} pairs, {found.iterations} iterations, "
            f"largest residual of a marginal {found.residuals[worst]:+.1e} "
            f"({self.languages[worst]}, wanted {found.marginals[worst]:.4f})"
        )
        if not found.are_owed:
            line += f"; {found.distance:.1%} of the draws are from other languages than wanted"
            return line if found.converged else f"{line}; not converged"
        if self.is_met:
            return line
        reason = "not converged" if found.is_feasible else "no distribution has these marginals"
        missed = self.missed_shares()
        single = [one.language for one in missed if one.partners == 1]
        named = ", ".join(single[:_MAX_NAMED]) + (", ..." if len(single) > _MAX_NAMED else "")
        return (
            f"{line}; {reason}: lower data.pair_temperature towards 1, where all can be met; "
            f"{len(missed)} languages miss their shares, {len(single)} of them with a single "
            f"partner{': ' * bool(single)}{named}"
        )


def pair_matrix(sizes: Mapping[Pair, int]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the sorted languages of pairs, and the symmetric [N, N] float64 matrix of sizes."""
    languages = tuple(sorted({language for pair in sizes for language in pair}))
    index = {language: i for i, language in enumerate(languages)}
    counts = np.zeros((len(languages), len(languages)))
    for (one, two), size in sizes.items():
        counts[index[one], index[two]] += size
        counts[index[two], index[one]] += size
    return languages, counts


def sample_pairs(
    sizes: Mapping[Pair, Sequence[int]], settings: PairSamplingSettings
) -> PairSampling:
    """Sample language pairs; `sizes` are their sentence pairs in each set, none empty.

    Raise ValueError if there are no pairs, none with `settings.pair_pivot`, or none of languages
    with `settings.pair_least`.
    """
    of_languages = pair_matrix({pair: sum(of) for pair, of in sizes.items()})
    has = dict(zip(of_languages[0], of_languages[1].sum(1) >= settings.pair_least, strict=True))
    left_out = tuple(pair for pair in sizes if not (has[pair[0]] and has[pair[1]]))
    if len(left_out) == len(sizes):
        raise ValueError(
            f"data.pair_least is {settings.pair_least}, but no pair has two languages of so many "
            f"sentence pairs; the most are {of_languages[1].sum(1).max():.0f}: lower it"
        )
    sizes = {pair: of for pair, of in sizes.items() if pair not in left_out}
    languages, counts = pair_matrix({pair: sum(of_sets) for pair, of_sets in sizes.items()})
    method, pivot = settings.pair_sampling, settings.pair_pivot
    temperature = settings.pair_temperature
    if method == "pivot" and pivot not in languages:
        raise ValueError(f"data.pair_pivot is {pivot!r}, must be one of {', '.join(languages)}")

    # Each set has its own n^alpha: two halves of a set weigh more than the whole.
    by_sets = {pair: sum(n**settings.pair_alpha for n in of) for pair, of in sizes.items()}
    samplers: dict[str, Callable[[], Sampling]] = {
        "alpha": lambda: _with_own_marginals(_joint(pair_matrix(by_sets)[1])),
        "proportional": lambda: _with_own_marginals(_joint(counts)),
        "uniform": lambda: _with_own_marginals((counts > 0).astype(np.float64)),
        "pivot": lambda: pivot_sampling(counts, languages.index(pivot), temperature),
        "m2m": lambda: m2m_sampling(counts, temperature),
        "sinkhorn": lambda: sinkhorn_sampling(counts, temperature),
        "soft": lambda: soft_sampling(counts, temperature, settings.pair_strength),
    }
    return PairSampling(method, languages, counts, samplers[method](), left_out)


def pivot_sampling(counts: np.ndarray, pivot: int, temperature: float) -> Sampling:
    """Return the distribution proportional to n^(1/T) over pairs with language `pivot`.

    English-centric bitext is usually sampled so (Arivazhagan et al., 2019).
    """
    with_pivot = np.zeros_like(counts, np.float64)
    with_pivot[pivot] = with_pivot[:, pivot] = _joint(counts)[pivot] ** (1 / temperature)
    return _with_own_marginals(with_pivot)


def tempered_marginals(counts: np.ndarray, temperature: float) -> np.ndarray:
    """Return p^(1/T), renormalised, [N] float64; p are the languages' shares of counts [N, N]."""
    log_marginals = np.log(_joint(counts).sum(axis=1)) / temperature
    return scipy.special.softmax(log_marginals)


def sinkhorn_sampling(counts: np.ndarray, temperature: float) -> Sampling:
    """Solve Eq. 2 for counts [N, N]: the P nearest to Q, by KL(P || Q), with marginals p^(1/T).

    P = diag(u) Q diag(v), found by scaling rows and columns in turn (Sinkhorn and Knopp), in logs.
    The paper's kernel is Q + epsilon, and it reports no mass on pairs without data. Our kernel is
    the limit Q, so P is positive exactly where Q is, and at T = 1 equals Q. If no distribution over
    the pairs of Q has the marginals, P is the mean of both scalings, and not `is_feasible`.
    """
    log_marginals = np.log(tempered_marginals(counts, temperature))
    with np.errstate(divide="ignore"):
        log_kernel = np.log(_joint(counts))
    log_u, past = np.zeros(len(counts)), np.full(_WINDOW, np.inf)
    for iteration in range(_MAX_ITERATIONS):
        # The kernel is symmetric, so one reduction serves rows and columns.
        log_v = log_marginals - scipy.special.logsumexp(log_kernel + log_u, axis=1)
        next_u = log_marginals - scipy.special.logsumexp(log_kernel + log_v, axis=1)
        # Columns of diag(u) Q diag(v) are exact; rows are off by the factor that is due next.
        residual = np.abs(np.exp(log_marginals) * np.expm1(log_u - next_u)).max()
        if residual <= _CONVERGED or residual > _STALLED * past[iteration % _WINDOW]:
            break
        past[iteration % _WINDOW] = residual
        log_u = next_u
    probabilities = np.exp(log_kernel + log_u[:, None] + log_v)
    probabilities += probabilities.T
    probabilities /= probabilities.sum()
    marginals, converged = np.exp(log_marginals), bool(residual <= _MET)
    is_feasible = converged or _linear_programme(np.zeros_like(counts), counts, marginals)[0]
    return Sampling(probabilities, marginals, iteration + 1, converged, is_feasible)


def soft_sampling(counts: np.ndarray, temperature: float, strength: float) -> Sampling:
    """Minimise KL(P || Q) + 2 s KL(P 1 || p^(1/T)) over P for counts [N, N], s being `strength`.

    Entropy-regularised unbalanced transport (Chizat et al. 2018, arXiv 1607.05816). Its solution is
    diag(u) Q diag(u) with u = (p^(1/T) / (Q u))^(s / (1 + s)). Scaled to sum one, it is also the
    optimum over distributions, since all terms scale alike. P is positive wherever Q is. A finite
    price keeps pairs that an unsolvable Eq. 2 leaves next to nothing.
    """
    log_marginals = np.log(tempered_marginals(counts, temperature))
    with np.errstate(divide="ignore"):
        log_kernel = np.log(_joint(counts))
    log_u, power = np.zeros(len(counts)), strength / (1 + strength)
    residual, iterations = np.inf, 0
    while residual > _CONVERGED * (1 + strength) and iterations < _MAX_ITERATIONS:
        owed = power * (log_marginals - scipy.special.logsumexp(log_kernel + log_u, axis=1))
        residual = np.abs(owed - log_u).max()
        # A whole step overshoots: it takes u to 1 / u up to the power. Half a step is safe.
        log_u = (log_u + owed) / 2
        iterations += 1
    probabilities = np.exp(log_kernel + log_u[:, None] + log_u)
    probabilities /= probabilities.sum()
    converged = bool(residual <= _MET)
    return Sampling(probabilities, np.exp(log_marginals), iterations, converged, are_owed=False)


def m2m_sampling(counts: np.ndarray, temperature: float) -> Sampling:
    """Solve Eq. 1 (M2M-100) for counts [N, N]: the P of largest Tr(P Q) with marginals p^(1/T).

    A linear programme over the undirected pairs; a solution has at most N of them. If no
    distribution over the pairs of Q has the marginals, it takes those of `sinkhorn_sampling`, and
    `is_feasible` is False. Raise ValueError if the solver gives up.
    """
    joint, marginals = _joint(counts), tempered_marginals(counts, temperature)
    is_feasible, found, iterations = _linear_programme(joint, joint, marginals)
    if not is_feasible:
        nearest = sinkhorn_sampling(counts, temperature).probabilities.sum(axis=1)
        is_solved, found, more = _linear_programme(joint, joint, nearest)
        iterations += more
        if not is_solved:
            raise ValueError(
                'data.pair_sampling is "m2m", but its linear programme was not solved; choose '
                '"sinkhorn", or lower data.pair_temperature towards 1'
            )
    probabilities = found / found.sum()
    return Sampling(probabilities, marginals, iterations, is_feasible, is_feasible)


def _linear_programme(
    gain: np.ndarray, counts: np.ndarray, marginals: np.ndarray
) -> tuple[bool, np.ndarray, int]:
    """Maximise Tr(P gain) over P on the pairs of counts [N, N] with marginals [N].

    Return whether there is a solution, P [N, N], and the number of iterations.
    """
    from scipy.optimize import linprog  # slow, and every train.py imports this file

    one, two = np.nonzero(np.triu(counts))
    pairs = np.arange(len(one))
    at = np.concatenate([one, two]), np.concatenate([pairs, pairs])
    incidence = scipy.sparse.csr_array((np.ones(2 * len(one)), at), shape=(len(counts), len(one)))
    # The solver's tolerances are absolute, and a share of the data can be very small.
    objective = -gain[one, two] / max(gain.max(), 1e-300)
    found = linprog(objective, A_eq=incidence, b_eq=marginals, method="highs", options=_HIGHS)
    probabilities = np.zeros(counts.shape)
    if found.status == 0:
        probabilities[one, two] = np.maximum(found.x, 0.0)
        probabilities += probabilities.T
    return found.status == 0, probabilities, int(found.nit)


def _with_own_marginals(weights: np.ndarray) -> Sampling:
    """Return the distribution proportional to weights [N, N], with its own marginals."""
    probabilities = weights / weights.sum()
    return Sampling(probabilities, probabilities.sum(axis=1))


def _joint(counts: np.ndarray) -> np.ndarray:
    """Return Q of counts [N, N]."""
    return counts / counts.sum()
