"""Means and spreads over seeds, and the least significant differences."""

import math
import statistics
from collections.abc import Iterable, Sequence

import scipy.stats


def least_detectable(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the least difference of two runs that is significant at 5 %; None without two seeds.

    It is t sqrt(2/n) s. s is the standard deviation of seeds, pooled over the runs. n is the
    harmonic mean of the runs' numbers of seeds, so 2/n is the mean of 1/n_a + 1/n_b over pairs of
    runs a and b. t is the quantile for the degrees of freedom of s.
    """
    found = [group for group in groups if group]
    freedom = sum(len(group) - 1 for group in found)
    if not freedom:
        return None
    squares = sum((len(group) - 1) * statistics.variance(group) for group in found if group[1:])
    inverse = statistics.fmean(1 / len(group) for group in found)
    return scipy.stats.t.ppf(0.975, freedom) * math.sqrt(2 * inverse * squares / freedom)


def least_detectable_change(changes: Sequence[float]) -> float | None:
    """Return the least mean of paired changes that is significant at 5 %; None below two seeds.

    It is t s / sqrt(n). s is the standard deviation of the changes of n seeds, and t the quantile
    for n - 1 degrees of freedom.
    """
    if len(changes) < 2:
        return None
    t = scipy.stats.t.ppf(0.975, len(changes) - 1)
    return t * statistics.stdev(changes) / math.sqrt(len(changes))


def significant_correlation(count: int) -> float:
    """Return the least correlation of `count` >= 3 points that is significant at 5 %."""
    t = scipy.stats.t.ppf(0.975, count - 2)
    return t / math.sqrt(t**2 + count - 2)


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Pearson's correlation; NaN if one side is constant, as for a failed tagger."""
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        return math.nan
    return statistics.correlation(xs, ys)


def pooled_deviation(groups: Iterable[Sequence[float]]) -> float:
    """Return the root mean variance of groups of two or more values; NaN without any."""
    variances = [statistics.variance(group) for group in groups if len(group) > 1]
    return math.sqrt(statistics.fmean(variances)) if variances else math.nan


def detectable(groups: Iterable[Sequence[float]], form: str) -> str:
    """Format the least difference of two runs that is significant at 5 %, or ""."""
    least = least_detectable(groups)
    return "" if least is None else form.format(least)


def spread(values: Iterable[float], form: str) -> list[str]:
    """Format mean and range; empty cells without values."""
    found = list(values)
    if not found:
        return ["", ""]
    mean = form.format(statistics.fmean(found))
    return [mean, f"{form.format(min(found))} to {form.format(max(found))}"]
