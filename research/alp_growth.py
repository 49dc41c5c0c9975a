"""Growth of ALP with the number of pieces (VoCap, Sections 2.1.2 and 2.2.2, Figure 4).

    for size in 250000 500000; do
      python build_vocab.py --config=configs/vocabulary.py:DATA --workdir=runs/vocab$size \\
          --config.vocab.target_size=$size --config.vocab.compare="('joint',)"
    done
    python -m research.alp_growth --builds=runs/vocab250000,runs/vocab500000 --plot=runs/sizes.png

Prints a Markdown table of the curves of the last build. It counts the steps of --step pieces in
which ALP gains less than in the step before. For several builds, a second table has the gains of
each method on held-out text, from the first size to the others. A sentence below counts the
languages in which the first method is ahead. --plot draws the second table.
"""

import pathlib
import statistics
from collections.abc import Mapping, Sequence

from absl import flags

from research import pivot, plots
from vocap.record import Record, by_amount, methods, score_groups
from xlm.common import artifacts, entry_point


def gains(sizes: Sequence[int], alp: Sequence[float], step: int) -> dict[int, float]:
    """Return the gain of ALP in each step of `step` pieces, by size after it; nats per sentence.

    `sizes` ascend. Only steps between two of them count.
    """
    trained = dict(zip(sizes, alp, strict=True))
    return {
        size: trained[size] - trained[size - step]
        for size in trained
        if size % step == 0 and size - step in trained
    }


def rises(found: Mapping[int, float], step: int) -> tuple[int, dict[int, float]]:
    """Return the number of pairs of adjacent steps, and the increases of gain within pairs."""
    pairs = [
        (size, one - found[size - step]) for size, one in found.items() if size - step in found
    ]
    return len(pairs), {size: more for size, more in pairs if more > 0}


def curve_table(record: Record, step: int) -> str:
    """Return a Markdown table of the steps of each language, those with most text first."""
    rows, total, less = [], 0, 0
    for name, one in by_amount(record):
        found = gains(one["sizes"], one["alp"], step)
        count, risen = rises(found, step)
        if not count:
            continue
        total, less = total + count, less + count - len(risen)
        first, *_, last = found.values()
        largest = max(risen, key=lambda size: risen[size], default=None)
        rise = f"+{risen[largest]:.2f} at {largest:,}" if largest else ""
        counts = (str(count), str(count - len(risen)))
        rows.append([name, *counts, f"{first:.2f}", f"{last:.2f}", rise])
    rows.append(["all", str(total), str(less), "", "", ""])
    titles = ["language", "steps", "that gain less", "first gain", "last gain", "largest rise"]
    return pivot.markdown(titles, rows)


def method_table(records: Sequence[Record]) -> str:
    """Return a Markdown table of held-out ALP by method and amount of text, at several sizes.

    All records must score the same languages.
    """
    sizes, rows = _sizes(records), []
    for group, languages in score_groups(records[0]).items():
        for name in _shared(records):
            means = [_mean(one, name, languages) for one in records]
            cells = [f"{means[0]:.1f}", *(f"{mean - means[0]:+.2f}" for mean in means[1:])]
            rows.append([f"{group} ({len(languages)})", name, *cells])
    titles = [f"{sizes[0]:,} pieces", *(f"to {size:,}" for size in sizes[1:])]
    return pivot.markdown(["languages", "method", *titles], rows, texts=2)


def ahead(records: Sequence[Record]) -> list[str]:
    """Return sentences that count the languages in which the first method leads, and gains more."""
    first, *others = _shared(records)
    sizes, languages = _sizes(records), score_groups(records[0])["all"]
    found = []
    for other in others:
        leads = [
            [_mean(one, first, [name]) - _mean(one, other, [name]) for name in languages]
            for one in records
        ]
        counts = [
            f"{sum(one > 0 for one in lead)} at {n:,}" for lead, n in zip(leads, sizes, strict=True)
        ]
        gained = sum(last > start for start, *_, last in zip(*leads, strict=True))
        found.append(
            f"Of {len(languages)} languages {first} has more ALP than {other} in "
            f"{', '.join(counts)}; from {sizes[0]:,} to {sizes[-1]:,} it gains more in {gained}."
        )
    return found


def plot_methods(records: Sequence[Record], path: pathlib.Path) -> None:
    """Plot held-out ALP of each method by number of pieces, a panel for each third of languages."""
    sizes, panels = _sizes(records), []
    for group, languages in score_groups(records[0]).items():
        series = {
            name: {
                size: [_mean(one, name, languages)]
                for size, one in zip(sizes, records, strict=True)
            }
            for name in _shared(records)
        }
        ticks = {size: f"{size / 1000:g}K" for size in sizes}
        title, y = f"{group}: {len(languages)} languages", "ALP (nats a sentence)"
        panels.append(plots.Panel(title, series, x="pieces", y=y, ticks=ticks, is_log=True))
    plots.lines(panels, path, columns=4)


def _shared(records: Sequence[Record]) -> list[str]:
    """Return the methods that all builds score."""
    return [name for name in methods(records[0]) if all(name in methods(one) for one in records)]


def _sizes(records: Sequence[Record]) -> list[int]:
    return [one["settings"]["target_size"] for one in records]


def _mean(record: Record, method: str, languages: Sequence[str]) -> float:
    return statistics.fmean(record["scores"][method][name]["alp"] for name in languages)


def main(_) -> None:
    given = flags.FLAGS
    folders = [pathlib.Path(build) for build in given.builds]
    records = [artifacts.read_json(folder / "vocab" / "allocation.json") for folder in folders]
    print(curve_table(records[-1], given.step))
    if len(records) > 1:
        print("", method_table(records), "", *ahead(records), sep="\n")
        if given.plot:
            plot_methods(records, pathlib.Path(given.plot))


if __name__ == "__main__":
    flags.DEFINE_list("builds", None, "Working directories of build_vocab.py, by ascending size.")
    flags.DEFINE_string("plot", None, "Plot of the methods' gains over several builds.")
    flags.DEFINE_integer("step", 1000, "Pieces per step.", lower_bound=1)
    entry_point.run(main, required=("builds",))
