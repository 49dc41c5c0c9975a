"""Worst distribution over groups of data in a chi-square ball: the supremum of XY-LENT Eq. 3.

    max_p  sum_i p_i l_i   over distributions p with  D(p, q) <= rho,
    D(p, q) = 1/2 sum_i q_i (p_i / q_i - 1)^2

has the solution p_i = q_i max(0, l_i - eta) / sum_j q_j max(0, l_j - eta), with the eta at which
the divergence is rho. The paper does not define its chi-square. We take the factor 1/2 from the
code of Zhou et al. (2021), whose method the paper follows. Without the factor the same ball has
twice the radius. The host solves this a few times in a run, in float64.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Most halvings of the interval of eta; fewer suffice for the limit of float64.
_MAX_HALVINGS = 2000


class BestResponse(NamedTuple):
    """Worst distribution p in the ball, [N] float64, and D(p, q), at most rho.

    Groups whose loss is below `eta` have their least weight. `eta` is -inf if p is q.
    """

    weights: np.ndarray
    divergence: float
    eta: float


def divergence(weights: np.ndarray, base: np.ndarray) -> float:
    """Return D(p, q) of `weights` p from `base` q, both [N]; infinite if p_i > 0 where q_i = 0."""
    inside = base > 0
    if (weights[~inside] > 0).any():
        return np.inf
    p, q = weights[inside], base[inside]
    return float(0.5 * (q * (p / q - 1) ** 2).sum())


def best_response(
    losses: ArrayLike, base: ArrayLike, rho: float, *, min_ratio: float = 0.0
) -> BestResponse:
    """Solve for the worst distribution, max_p sum_i p_i l_i subject to D(p, q) <= rho.

    A group with a loss of NaN was never seen and keeps p_i = q_i. If rho is so large that all
    weight goes to the groups of the largest loss, they share it in proportion to q. The exact
    solution for ratios p_i / q_i of at least c is c q + (1 - c) p', where p' has the radius rho /
    (1 - c)^2. Raises ValueError for an infinite loss, or base weights that are no distribution.

    Args:
      losses: [N] mean loss l_i of each group, NaN if unknown.
      base: [N] q, at least 0, which this scales to sum to one. If q_i is 0, so is p_i.
      rho, min_ratio: finite and at least 0, c below 1, as `RobustSettings` ensures.
    """
    q = _normalised(base)
    losses = np.asarray(losses, np.float64)
    if losses.shape != q.shape or np.isinf(losses[q > 0]).any():
        raise ValueError(
            f"losses of shape {losses.shape} for {q.size} pairs, {np.isinf(losses).sum()} of them "
            "infinite; each pair needs a finite loss or NaN"
        )
    seen = (q > 0) & ~np.isnan(losses)
    mass = q[seen].sum()
    if not (rho > 0 and mass > 0 and np.ptp(losses[seen]) > 0):
        return BestResponse(q, 0.0, -np.inf)
    # Both constraints enlarge the ball of the remaining problem.
    ratios, eta = _ratios(losses[seen], q[seen] / mass, rho / mass / (1 - min_ratio) ** 2)
    weights = q.copy()
    weights[seen] *= min_ratio + (1 - min_ratio) * ratios
    weights /= weights.sum()  # to sum to one up to the last bit
    return BestResponse(weights, divergence(weights, q), eta)


def shrunk(values: ArrayLike, errors: ArrayLike) -> np.ndarray:
    """Shrink values [N] with standard errors [N] towards their mean, by empirical Bayes.

        v_i' = m + (v_i - m) t^2 / (t^2 + e_i^2),   m = sum_i v_i / (t^2 + e_i^2), normalised

    t^2 is the variance of the true values by the method of moments (DerSimonian and Laird 1986), 0
    if errors explain all differences. NaN stays NaN. A value of infinite error becomes the mean.
    """
    values, errors = np.asarray(values, np.float64), np.asarray(errors, np.float64)
    known = np.isfinite(values) & ~np.isnan(errors)
    if not np.isfinite(errors[known]).any():
        return np.where(known, values[known].mean() if known.any() else np.nan, values)
    noise = np.maximum(errors[known] ** 2, 1e-12)
    precision = 1 / noise
    mean = precision @ values[known] / precision.sum()
    spread = precision @ (values[known] - mean) ** 2 - (np.isfinite(noise).sum() - 1)
    scale = precision.sum() - (precision @ precision) / precision.sum()
    between = max(spread / scale, 0.0) if scale > 0 else 0.0
    precision = 1 / (between + noise)
    mean = precision @ values[known] / precision.sum()
    result = values.copy()
    result[known] = mean + (values[known] - mean) * between / (between + noise)
    return result


def _normalised(base: ArrayLike) -> np.ndarray:
    q = np.asarray(base, np.float64)
    total = q.sum()
    if q.ndim != 1 or not (np.isfinite(total) and total > 0 and (q >= 0).all()):
        raise ValueError(
            f"base weights of shape {q.shape} sum to {total}: all must be finite and at least 0, "
            "and one above 0; check data.pair_alpha and the counts of the pairs"
        )
    return q / total


def _ratios(losses: np.ndarray, q: np.ndarray, rho: float) -> tuple[np.ndarray, float]:
    """Return p / q [N] of the best response, and eta, for positive q and losses that differ."""
    # p is proportional to q max(0, x + s), for x = (l - max l) / (max l - min l) in [-1, 0]. Its
    # divergence falls as s grows. Bisection for s does not depend on the scale of the losses.
    top, spread = losses.max(), np.ptp(losses)
    x = (losses - top) / spread
    mean = q @ x

    def at(s: float) -> np.ndarray:
        raised = np.maximum(x + s, 0.0)
        return raised / (q @ raised)

    def gap(s: float) -> float:
        return 0.5 * q @ (at(s) - 1) ** 2 - rho

    largest = x == 0
    if 0.5 * (1 / q[largest].sum() - 1) <= rho:
        return largest / q[largest].sum(), float(top)
    # From s = 1 on all groups have weight, and the divergence is var / (2 (mean + s)^2).
    low, high = 0.0, max(1.0, np.sqrt(0.5 * q @ (x - mean) ** 2 / rho) - mean)
    for _ in range(_MAX_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if gap(middle) > 0 else (low, middle)
    return at(high), float(top - high * spread)
