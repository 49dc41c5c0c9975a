"""Scaling: held-out bits per character against parameters, tokens and compute, with fitted laws.

Encoders of four sizes start from random parameters, each with its own schedule of 800 to 6,400
steps of 2,048 tokens. We fit three laws to the runs with at least 3 tokens per parameter: E + B /
D^b, E + A / N^a + B / D^b (Hoffmann et al. 2022, Eq. 2), and E + K / C^c on the compute frontier.
Two errors are reported: that of a fit to the smaller sizes at the largest one, and the spread over
resampled residuals. Takes an hour and a half on one core.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.optimize

from research import measures, pivot, plots
from research.configs import scaling
from research.study import Plan, Run, Study, encoder

_CONFIG = "research/configs/scaling.py:{},DATA"
_RESAMPLED = 300
_LEAST = 3  # least tokens per parameter; with fewer, larger encoders are behind


class Point(NamedTuple):
    """Run: parameters N without embeddings, tokens D, FLOPs C, bits a character, nats - unigram."""

    run: str
    parameters: float
    tokens: float
    flops: float
    bits: float
    below: float


def _runs(plan: Plan) -> Iterator[Run]:
    for seed in plan.seeds or ():
        for name in plan.chosen["runs"]:
            config = _CONFIG.format(name)
            yield encoder(plan, f"runs/{name}", seed, {}, measures.encoder, config=config)


def points(plan: Plan) -> list[Point]:
    """Return the runs with results, as means over seeds."""
    found = []
    for name in plan.chosen["runs"]:
        if not (by_seed := plan.results.of(f"runs/{name}", plan.seeds)):
            continue
        config = plan.config(_CONFIG.format(name))
        model, length = config.model, config.store.length
        width, tokens = model.hidden_size, config.train.batch_size * length * config.train.num_steps
        layer = width * (4 * width + 3 * model.mlp_size)
        parameters = model.num_layers * layer
        # A product with a weight takes 2 FLOPs forward and 4 backward, as in attention.
        output = config.mask.rate * config.vocab.target_size * width
        per_token = 6 * (parameters + output + 2 * model.num_layers * length * width)
        means = {
            metric: statistics.fmean(
                statistics.fmean(one[f"losses/{metric}"].values()) for one in by_seed.values()
            )
            for metric in ("loss", "unigram", "bits_per_character")
        }
        below = means["loss"] - means["unigram"]
        bits = means["bits_per_character"]
        found.append(Point(name, parameters, tokens, tokens * per_token, bits, below))
    return found


class Law:
    """E + sum of A_i / x_i^a_i, fitted to bits per character by least squares of log residuals."""

    def __init__(self, x: np.ndarray, y: np.ndarray, near: "Law | None" = None):
        """Fit to x [N, terms] and y [N], starting from the law `near` or from several guesses."""
        self._scale = np.exp(np.log(x).mean(0))  # centres the terms, for a better condition
        starts = (
            [near._values]
            if near
            else [
                np.log([share * y.min(), *(0.2 * y.min() for _ in x.T), *(power for _ in x.T)])
                for share in (0.2, 0.5, 0.8)
                for power in (0.1, 0.3, 0.6)
            ]
        )

        def residuals(values: np.ndarray) -> np.ndarray:
            return np.log(self._at(values, x)) - np.log(y)

        fits = [scipy.optimize.least_squares(residuals, one, loss="soft_l1", f_scale=0.02)
                for one in starts]  # fmt: skip
        self._values: np.ndarray = min(fits, key=lambda one: one.cost).x
        self.residuals = np.log(y) - np.log(self(x))

    def _at(self, values: np.ndarray, x: np.ndarray) -> np.ndarray:
        first, rest = np.exp(values[0]), np.exp(values[1:])
        terms = x.shape[1]
        return first + (rest[:terms] * (x / self._scale) ** -rest[terms:]).sum(1)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._at(self._values, x)

    @property
    def constants(self) -> list[float]:
        """E, then A_i and a_i of each term."""
        first, *rest = np.exp(self._values)
        factors, powers = np.split(np.array(rest), 2)
        pairs = zip(factors * self._scale**powers, powers, strict=True)
        return [first, *(value for pair in pairs for value in pair)]


def bootstrap(x: np.ndarray, y: np.ndarray, seed: int = 0) -> list[Law]:
    """Return laws of resampled values: the law of all, with residuals drawn again."""
    law, rng = Law(x, y), np.random.default_rng(seed)
    # Residuals of a fit with p constants are too small, by the factor sqrt(1 - p / n).
    freedom = max(len(y) - len(law.constants), 1)
    wider = law.residuals * math.sqrt(len(y) / freedom)
    drawn = rng.choice(wider, (_RESAMPLED, len(y)))
    return [Law(x, law(x) * np.exp(one), law) for one in drawn]


def frontier(found: Sequence[Point]) -> list[Point]:
    """Return the runs of the compute frontier, which no run with less compute beats."""
    ordered = sorted(found, key=lambda one: one.flops)
    return [one for i, one in enumerate(ordered) if all(one.bits < x.bits for x in ordered[:i])]


def _sizes(found: Sequence[Point]) -> np.ndarray:
    return np.array([[one.parameters, one.tokens] for one in found])


def _tokens(found: Sequence[Point]) -> np.ndarray:
    return np.array([[one.tokens] for one in found])


def _compute(found: Sequence[Point]) -> np.ndarray:
    return np.array([[one.flops] for one in found])


def _bits(found: Sequence[Point]) -> np.ndarray:
    return np.array([one.bits for one in found])


def _report(plan: Plan) -> list[str]:
    found = points(plan)
    if len({one.parameters for one in found}) < 4:
        return []
    left = [one for one in found if one.tokens > _LEAST * one.parameters]
    law = Law(_tokens(left), _bits(left))
    best = frontier(left)
    rows = [
        [one.run, f"{one.parameters / 1e6:.3f}", f"{one.tokens / 1e6:.2f}",
         f"{one.tokens / one.parameters:.1f}", f"{one.flops / 1e12:.1f}", f"{one.bits:.3f}",
         f"{fit:.3f}", f"{one.below:+.2f}", "yes" if one in best else ""]
        for one, fit in zip(found, law(_tokens(found)), strict=True)
    ]  # fmt: skip
    header = ["run", "N, million", "D, million", "D / N", "C, TFLOP", "bits a character", "law",
              "nats - unigram", "on the frontier"]  # fmt: skip
    parts = [
        "N: parameters without embeddings. D: tokens, with repetitions. C: FLOPs of the model's "
        "matrix products, without Muon. Bits: exact held-out loss, mean of languages.",
        pivot.markdown(header, rows, texts=1),
        "## Laws",
        _law_table(left, best),
        "Of runs with at least 3 tokens per parameter. In brackets: 5 to 95 % of fits to "
        "resampled residuals. The column *law* above is the first law. *Miss*: predicted minus "
        "measured at the largest size, by the law of the smaller sizes.",
        _miss_table(found),
    ]
    if path := plan.plot("scaling"):
        _plot(found, path)
        parts.append(f"![bits a character by compute]({path.name})")
    return parts


def _law_table(found: Sequence[Point], best: Sequence[Point]) -> str:
    rows = []
    laws = {
        "E + B / D^b": (found, _tokens),
        "E + A / N^a + B / D^b": (found, _sizes),
        "E + K / C^c": (best, _compute),
    }
    for name, (some, of) in laws.items():
        x, y = of(some), _bits(some)
        if len(y) <= 1 + 2 * x.shape[1]:
            continue
        constants = Law(x, y).constants
        spread = np.array([one.constants for one in bootstrap(x, y)])
        low, high = np.percentile(spread, (5, 95), axis=0)
        names = name.replace("/ ", "").replace(" +", "").replace("^", " ").split()
        cells = [
            f"{letter} = {value:.4g} ({a:.3g} to {b:.3g})"
            for letter, value, a, b in zip(
                [one for one in names if one not in "NDC"], constants, low, high, strict=True
            )
        ]
        error = np.sqrt(np.mean(Law(x, y).residuals ** 2))
        rows.append([name, str(len(y)), ", ".join(cells), f"{100 * error:.1f} %"])
    return pivot.markdown(["law", "runs", "constants", "error of a run"], rows, texts=3)


def _miss_table(found: Sequence[Point]) -> str:
    largest = max(one.parameters for one in found)
    smaller = [one for one in found if _LEAST * one.parameters < one.tokens]
    law, many = Law(_tokens(smaller), _bits(smaller)), bootstrap(_tokens(smaller), _bits(smaller))
    rows = []
    for one in found:
        if one.parameters == largest:
            value, *drawn = (x(_tokens([one]))[0] for x in (law, *many))
            low, high = np.percentile(drawn, (5, 95))
            rows.append([one.run, f"{one.bits:.3f}", f"{value:.3f}", f"{low:.3f} to {high:.3f}",
                         f"{value - one.bits:+.3f}"])  # fmt: skip
    return pivot.markdown(["run", "measured", "predicted", "5 to 95 %", "miss"], rows, texts=1)


def _plot(found: Sequence[Point], path) -> None:
    series: dict[str, dict[float, list[float]]] = {}
    for one in found:
        of_size = series.setdefault(f"{one.parameters / 1e6:.2f}M", {})
        of_size[one.flops] = [one.bits]
    panel = plots.Panel("Held-out loss by compute", series, x="FLOPs", y="bits a character",
                        is_log=True)  # fmt: skip
    plots.lines([panel], path, columns=1)


STUDY = Study(
    "Scaling of small encoders",
    _CONFIG.format("w128_1600"),
    _runs,
    _report,
    {"runs": tuple(scaling.RUNS)},
    {"runs": tuple(scaling.RUNS)},
    seeds=(0,),
    overrides={},
)
