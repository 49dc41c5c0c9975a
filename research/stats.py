"""Means and spreads over seeds, and the least significant differences."""

import math
import statistics
from collections.abc import Iterable, Sequence

import scipy.stats


def least_detectable(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the least difference of two runs that is significant at 5 %.

    It is t sqrt(2/n) s, or None if no run has two seeds. s is the standard deviation of seeds,
    pooled over the runs. n is the harmonic mean of the runs' numbers of seeds, so that 2/n is the
    mean of 1/n_a + 1/n_b over pairs of runs a and b. t is the quantile for the degrees of freedom
    of s.
    """
    found = [group for group in groups if group]
    freedom = sum(len(group) - 1 for group in found)
    if not freedom:
        return None
    squares = sum((len(group) - 1) * statistics.variance(group) for group in found if group[1:])
    inverse = statistics.fmean(1 / len(group) for group in found)
    return scipy.stats.t.ppf(0.975, freedom) * math.sqrt(2 * inverse * squares / freedom)


def least_detectable_change(changes: Sequence[float]) -> float | None:
    """Return the least mean change that is significant at 5 %, with each seed as its own control.

    That is t s / sqrt(n), with s the standard deviation of the changes of n seeds and t the
    quantile of n - 1 degrees of freedom; None with less than two seeds.
    """
    if len(changes) < 2:
        return None
    t = scipy.stats.t.ppf(0.975, len(changes) - 1)
    return t * statistics.stdev(changes) / math.sqrt(len(changes))


def significant_correlation(count: int) -> float:
    """Return the least correlation of `count` points, three or more, that is significant at 5 %."""
    t = scipy.stats.t.ppf(0.975, count - 2)
    return t / math.sqrt(t**2 + count - 2)


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Pearson's correlation; NaN if one side is constant, as for a tagger that fails."""
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        return math.nan
    return statistics.correlation(xs, ys)


def pooled_deviation(groups: Iterable[Sequence[float]]) -> float:
    """Return the root of the mean variance of the groups of two or more; NaN without one."""
    variances = [statistics.variance(group) for group in groups if len(group) > 1]
    return math.sqrt(statistics.fmean(variances)) if variances else math.nan


def detectable(groups: Iterable[Sequence[float]], form: str) -> str:
    """Format the least difference of two runs that is significant at 5 %; "" if there is none."""
    least = least_detectable(groups)
    return "" if least is None else form.format(least)


def spread(values: Iterable[float], form: str) -> list[str]:
    """Format mean, and minimum to maximum; empty cells without values."""
    found = list(values)
    if not found:
        return ["", ""]
    mean = form.format(statistics.fmean(found))
    return [mean, f"{form.format(min(found))} to {form.format(max(found))}"]
