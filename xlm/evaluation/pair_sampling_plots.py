"""Plots of distributions over language pairs."""

import math
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.colors
import matplotlib.patches
import matplotlib.ticker
import numpy as np

from input_pipeline.pair_sampling import PairSampling
from vocap import figures

TITLES = {
    "alpha": "alpha: n^alpha, by set",
    "proportional": "proportional: Q",
    "uniform": "uniform",
    "pivot": "pivot: pairs of one language",
    "m2m": "m2m: Eq. 1, linear programme",
    "sinkhorn": "sinkhorn: Eq. 2, with entropy",
}
_KINDS = {"no sentence pairs": "0.88", "sentence pairs, but no share": "lightsalmon"}
_MAX_NAMES = 60  # languages whose names are legible beside a panel
_DECADES = 8  # of a logarithmic scale; shares that underflow would leave the others no room


def plot_density(samplings: Sequence[PairSampling], path: pathlib.Path) -> None:
    """A panel a method: P over languages, those with most data first (XY-LENT, Figures 2 and 6)."""
    counts, languages = samplings[0].counts, samplings[0].languages
    order = np.argsort(-counts.sum(axis=1), kind="stable")
    ordered = np.ix_(order, order)
    is_pair = counts[ordered] > 0
    columns = min(3, len(samplings))
    rows = math.ceil(len(samplings) / columns)
    figure, panels = figures.new(
        (5.2 * columns, 5.8 * rows), nrows=rows, ncols=columns, squeeze=False
    )
    lowest, highest = _range([one.sampling.probabilities for one in samplings])
    colours = matplotlib.colors.LogNorm(lowest, highest, clip=True)
    flat = matplotlib.colors.ListedColormap(list(_KINDS.values()))
    for axes, one in zip(panels.flat, samplings, strict=False):
        found = one.sampling.probabilities[ordered]
        axes.imshow(np.where(is_pair, 1.0, 0.0), cmap=flat, vmin=0, vmax=1)
        positive = np.ma.masked_less_equal(found, 0.0)
        image = axes.imshow(positive, cmap="viridis_r", norm=colours)
        without = np.count_nonzero(np.triu(is_pair) & (found == 0))
        axes.set_title(f"{TITLES[one.method]}\n{without} of {is_pair.sum() // 2} pairs get nothing")
        axes.tick_params(length=0, labelsize=300 / max(len(languages), 30))
        if len(languages) <= _MAX_NAMES:
            axes.set_xticks(range(len(order)), [languages[i] for i in order], rotation=90)
            axes.set_yticks(range(len(order)), [languages[i] for i in order])
        else:
            axes.set(xticks=[], yticks=[])
            label = f"{len(languages)} languages, most sentence pairs first"
            axes.set_xlabel(label, fontsize=9)
    for axes in panels.flat[len(samplings) :]:
        axes.set_axis_off()
    figure.colorbar(image, ax=panels, label="P, half the share of a pair", shrink=0.6, extend="min")
    patches = [matplotlib.patches.Patch(color=c, label=label) for label, c in _KINDS.items()]
    figures.legend(figure, handles=patches, labels=list(_KINDS))
    figures.save(figure, path)


def plot_shares(
    samplings: Sequence[PairSampling], epochs: Mapping[str, np.ndarray], path: pathlib.Path
) -> None:
    """Plot shares of the pairs, largest first, and `epochs` [pairs] of each against its size."""
    figure, (left, right) = figures.new((13, 5), ncols=2)
    for one in samplings:
        shares = np.sort(list(one.shares().values()))[::-1]
        shares = shares[shares > 0]
        line = left.plot(np.arange(1, len(shares) + 1), shares, label=TITLES[one.method])[0]
        left.plot(len(shares), shares[-1], "o", ms=5, color=line.get_color())
        sizes, passes = one.counts[np.nonzero(np.triu(one.counts))], epochs[one.method]
        drawn, style = passes > 0, {"ms": 4, "alpha": 0.6, "color": line.get_color()}
        right.plot(sizes[drawn], passes[drawn], ".", **style)
    left.set(xscale="log", yscale="log", xlabel="pairs, largest share first", ylabel="share")
    lowest, highest = _range([np.array(list(one.shares().values())) for one in samplings])
    left.set_ylim(lowest / 2, 2 * highest)
    left.set_title("Shares; a dot ends the pairs that get any")
    right.axhline(1, color="black", lw=0.8, ls="--", label="one epoch")
    lowest, highest = _range(list(epochs.values()))
    right.set_ylim(lowest / 2, 2 * max(highest, 1))
    right.set(xscale="log", yscale="log", xlabel="sentence pairs", ylabel="epochs in the run")
    right.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    right.set_title("Repetition; a dot a language pair that gets any; dashes: one epoch")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figures.legend(figure)
    figures.save(figure, path)


def _range(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """The smallest positive value that is not negligible, and the largest."""
    together = np.concatenate([one.ravel() for one in values])
    highest = float(together.max())
    is_shown = together >= highest / 10**_DECADES
    return float(together[is_shown].min()), highest
