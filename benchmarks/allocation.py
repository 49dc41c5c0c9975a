"""Time and memory of the allocation, on synthetic curves of the size of the paper's.

    python -m benchmarks.allocation

100 languages with 50 sizes each, 1K to 50K, with three tenths of the pieces from a pool shared by
all languages, are allocated a budget of a million pieces by either search. The baseline is a naive
loop that recomputes the union after every step. A few of its steps are timed, evenly spread over
the run because they get slower as the union grows, and checked to give the same union; its seconds
are their mean times the number of steps. An allocation that ends at the first sizes shows the cost
of numbering the pieces, the first phase of either search.
"""

import argparse
import functools
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vocap.allocation import SEARCHES, Allocation, Step, allocate, language_probabilities
from vocap.curves import Curve

SIZES = tuple(range(1000, 50_001, 1000))
BETA = 0.7
SHARED = 0.3  # share of a language's pieces from the pool
POOL_SIZE = 100_000
TURNOVER = 0.03  # noise on a piece's rank from one size to the next


def make_curve(language: str, rng: np.random.Generator) -> Curve:
    """Generate a noisy rising curve; most pieces of one size are in the next one as well."""
    num_pieces = round(1.1 * SIZES[-1])
    num_shared = round(SHARED * num_pieces)
    pieces = [f"shared {i}" for i in rng.choice(POOL_SIZE, num_shared, replace=False)]
    pieces += [f"{language} {i}" for i in range(num_pieces - num_shared)]
    rng.shuffle(pieces)
    members = []
    for size in SIZES:
        near = np.arange(1, min(num_pieces, round(1.2 * size)) + 1)
        ranks = near * np.exp(TURNOVER * rng.standard_normal(len(near)))
        members.append(np.argsort(ranks)[:size].astype(np.int32))
    fall = (np.array(SIZES) / SIZES[0]) ** -rng.uniform(0.05, 0.15)
    alp = -rng.uniform(100, 300) * fall + 0.01 * rng.standard_normal(len(SIZES))
    return Curve(SIZES, tuple(alp.tolist()), tuple(pieces), tuple(members))


def measure(function: Callable[[], object]) -> tuple[float, float]:
    """Measure CPU seconds, the fastest of three calls, and the peak allocation in MB."""
    seconds = math.inf
    for _ in range(3):
        start = time.process_time()
        function()
        seconds = min(seconds, time.process_time() - start)
    tracemalloc.start()  # in a separate call, since tracing is slow
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, peak / 1e6


def measure_naive(
    curves: Mapping[str, Curve], steps: Sequence[Step], num_timed: int
) -> tuple[float, float]:
    """Extrapolate CPU seconds of all `steps` of the naive loop, and the peak of one step in MB."""
    first, grown = len(curves), len(steps) - len(curves) - 1  # the last step may be partial
    wanted = {first + int((i + 0.5) / num_timed * grown) for i in range(num_timed)}
    sizes, seconds, peak = {}, [], 0.0
    for number, step in enumerate(steps):
        sizes[step.language] = step.size
        if number not in wanted:
            continue
        held = [curve.vocabulary(SIZES.index(sizes[lang])) for lang, curve in curves.items()]
        assert len(set().union(*held)) == step.union
        one, peak = measure(functools.partial(set().union, *held))
        seconds.append(one)
    return statistics.mean(seconds) * grown, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--languages", type=int, default=100)
    parser.add_argument("--budget", type=int, default=1_000_000)
    parser.add_argument("--naive_steps", type=int, default=8)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    names = [f"l{i:03}" for i in range(args.languages)]
    curves = {name: make_curve(name, rng) for name in names}
    q = language_probabilities(dict(zip(names, rng.lognormal(0, 2, len(names)), strict=True)), 0.7)

    def run(search: str, budget: int) -> Allocation:
        return allocate(curves, q, beta=BETA, budget=budget, search=search)

    rows, results = [], []
    for search in SEARCHES:
        results.append(run(search, args.budget))
        num_steps = sum(np.isfinite(step.gain) for step in results[-1].steps)
        measured = measure(functools.partial(run, search, args.budget))
        rows.append((search, *measured, f"{num_steps:,}"))
    greedy, threshold = results
    assert (greedy.sizes, greedy.pieces) == (threshold.sizes, threshold.pieces)
    smallest = greedy.steps[len(curves) - 1].union
    rows.append(
        ("no search, first sizes", *measure(functools.partial(run, "greedy", smallest)), "0")
    )
    seconds, peak = measure_naive(curves, greedy.steps, args.naive_steps)
    rows.append(("naive (extrapolated)", seconds, peak, f"{args.naive_steps} of {rows[0][3]}"))

    held = sum(m.nbytes for curve in curves.values() for m in curve.members)
    held += sum(sys.getsizeof(piece) for curve in curves.values() for piece in curve.pieces)
    print(f"{args.languages} languages, {len(SIZES)} sizes, {args.budget:,} pieces")
    print(f"The curves themselves hold {held / 1e6:.0f} MB.\n")
    print("| search | CPU seconds | peak beyond the curves (MB) | steps taken one by one |")
    print("|---|---:|---:|---:|")
    for name, seconds, peak, num_steps in rows:
        print(f"| {name} | {seconds:.1f} | {peak:.0f} | {num_steps} |")


if __name__ == "__main__":
    main()
