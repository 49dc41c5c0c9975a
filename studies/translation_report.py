"""Tables and plots of `studies.translation`."""

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from common import artifacts
from evaluation import figures
from evaluation import translation_report as run_report
from studies.downstream import spread
from studies.translation_settings import SEARCH, STARTS, TASKS, Study
from studies.xy_lent_report import mean_curve

_NOTE = """\
{steps:,} steps of fine-tuning for each, at the scale of the learning rates with the best
development BLEU of the first task under seed {first} (*scale*); every seed has its own
pre-training. BLEU is sacreBLEU, beam 5, mean of the last 3 checkpoints; means over seeds, and least
to largest. *against the first*: the difference of test BLEU from the first line, seed by seed.
Curves: greedy, 128 development sentences, during training, as Table 4, right."""
_SEARCH_NOTE = """\
Runs of the first task, searched again. Test BLEU and sentences a second: means over seeds, and
least to largest. *against the first*: the difference of BLEU from the start's first line, seed by
seed; *speed*: sentences a second over those of the fewest beams with as many checkpoints,
median."""

Records = Mapping[int, Mapping[str, Any]]  # by seed


def write_report(study: Study) -> str:
    """Write the tables and plots of finished runs; return the text.

    Raises:
      ValueError: no run has finished.
    """
    parts = []
    for task in study.tasks:
        found = {start: read_records(study, task, start) for start in study.starts}
        finished = {start: records for start, records in found.items() if records}
        if finished:
            plot_curves(finished, TASKS[task].label, study.workdir / "report" / f"{task}.png")
            parts += [
                f"## {TASKS[task].label}",
                score_table(study, finished),
                f"![BLEU by step]({task}.png)",
                *([scale_table(study)] if task == study.tasks[0] else []),
                *examples(finished, study.seeds[0]),
            ]
    if not parts:
        raise ValueError(f"{study.workdir} has no finished runs to report")
    note = _NOTE.format(steps=study.steps, first=study.seeds[0])
    if searches := read_searches(study):
        parts += ["## Search and averaging", _SEARCH_NOTE, search_table(searches)]
    text = "\n\n".join(["# Translation", note, *parts]) + "\n"
    artifacts.write_text(study.workdir / "report" / "report.md", text)
    return text


def read_records(study: Study, task: str, start: str) -> dict[int, dict[str, Any]]:
    """Read the records of the finished runs at the chosen scale, by seed."""
    scale = study.chosen_scale(start)
    found = {seed: scale and study.record(task, start, scale, seed) for seed in study.seeds}
    return {seed: one for seed, one in found.items() if isinstance(one, dict)}


def score_table(study: Study, found: Mapping[str, Records]) -> str:
    """Return a Markdown table in per cent: a line per start."""
    first = next(iter(found))
    sentences = next(iter(found[first].values()))["sentences"]
    columns = [
        f"{sentences:,} test sentences", "scale", "seeds", "BLEU", "least to largest", "chrF",
        "dev BLEU", "against the first", "least to largest",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for start, records in found.items():
        bleu = {seed: 100 * one["test"]["bleu"] for seed, one in records.items()}
        base = {seed: 100 * one["test"]["bleu"] for seed, one in found[first].items()}
        less = [] if start == first else [bleu[seed] - base[seed] for seed in bleu if seed in base]
        cells = [
            STARTS[start].label,
            study.chosen_scale(start) or "",
            str(len(records)),
            *spread(bleu.values(), "{:.1f}"),
            spread((100 * one["test"]["chrf"] for one in records.values()), "{:.1f}")[0],
            spread((100 * one["validation"]["bleu"] for one in records.values()), "{:.1f}")[0],
            *spread(less, "{:+.1f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def scale_table(study: Study) -> str:
    """Return a Markdown table: development BLEU at every scale, where the rates are selected."""
    task, seed = study.tasks[0], study.seeds[0]
    lines = [
        f"| development BLEU at scale | {' | '.join(study.scales)} |",
        "|---|" + "---:|" * len(study.scales),
    ]
    for start in study.starts:
        found = [study.record(task, start, one, seed) for one in study.scales]
        cells = [f"{100 * one['validation']['bleu']:.1f}" if one else "" for one in found]
        lines.append(f"| {STARTS[start].label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def examples(records: Mapping[str, Records], seed: int) -> list[str]:
    """Return test sentences with the outputs of all starts under a seed; [] if none are kept."""
    found = {
        start: by_seed[seed]["translations"]
        for start, by_seed in records.items()
        if "translations" in by_seed.get(seed, {})
    }
    if not found:
        return []
    parts = ["Test sentences, evenly spaced, with outputs under one seed:"]
    for some in zip(*found.values(), strict=True):
        outputs = {
            STARTS[start].label: one["prediction"] for start, one in zip(found, some, strict=True)
        }
        parts.append("\n".join(run_report.example_lines(some[0], outputs)))
    return parts


def plot_curves(found: Mapping[str, Records], title: str, path: pathlib.Path) -> None:
    """Plot BLEU by step: means over seeds, and their range."""
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for place, (start, records) in enumerate(found.items()):
        curves = [dict(map(tuple, one["curve"])) for one in records.values()]
        mean = mean_curve(curves)
        values = [[100 * curve[step] for curve in curves] for step in mean]
        label, colour = STARTS[start].label, f"C{place}"
        axes.plot(
            list(mean), [statistics.fmean(one) for one in values], "o-", ms=3, color=colour,
            label=label,
        )  # fmt: skip
        least, largest = [min(one) for one in values], [max(one) for one in values]
        axes.fill_between(list(mean), least, largest, color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("steps")
    axes.set_ylabel("BLEU, greedy, 128 development sentences")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figures.save(figure, path)


def read_searches(study: Study) -> dict[str, list[list[dict[str, Any]]]]:
    """Read the searches of the first task by start, one list for each seed."""
    task, found = study.tasks[0], {}
    for start in study.starts:
        scale = study.chosen_scale(start)
        paths = [study.folder(task, start, scale or "", seed) / SEARCH for seed in study.seeds]
        if some := [artifacts.read_json(path) for path in paths if scale and path.exists()]:
            found[start] = some
    return found


def search_table(found: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    """Return a Markdown table: a line for each start, number of checkpoints and of beams.

    Args:
      found: results of `studies.translation_search` by start, one list for each seed.
    """
    columns = [
        "", "checkpoints", "beams", "seeds", "BLEU", "least to largest", "against the first",
        "least to largest", "sentences a second", "least to largest", "speed",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for start, some in found.items():
        choices = sorted({(one["averaged"], one["beams"]) for run in some for one in run})
        for choice in choices:
            cells = [STARTS[start].label, *map(str, choice), str(len(some))]
            cells += _compared(some, choice, choices[0])
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _compared(
    some: Sequence[Sequence[Mapping[str, Any]]], choice: tuple[int, int], first: tuple[int, int]
) -> list[str]:
    """Return the cells of a choice of checkpoints and beams, compared to the first of them."""
    bleu, base = ([100 * _of(run, *one, "test")["bleu"] for run in some] for one in (choice, first))
    less = [] if choice == first else [x - y for x, y in zip(bleu, base, strict=True)]
    speeds = [_speed(run, *choice) for run in some]
    greedy = [_speed(run, choice[0], first[1]) for run in some]
    ratios = [x / y for x, y in zip(speeds, greedy, strict=True)]
    return [
        *spread(bleu, "{:.1f}"),
        *spread(less, "{:+.1f}"),
        *spread(speeds, "{:.1f}"),
        f"{statistics.median(ratios):.2f}",
    ]


def _of(
    run: Sequence[Mapping[str, Any]], averaged: int, beams: int, split: str
) -> Mapping[str, Any]:
    return next(
        one
        for one in run
        if (one["averaged"], one["beams"], one["split"]) == (averaged, beams, split)
    )


def _speed(run: Sequence[Mapping[str, Any]], averaged: int, beams: int) -> float:
    """Return sentences a second, the harmonic mean over the splits."""
    return statistics.harmonic_mean(
        [
            _of(run, averaged, beams, split)["sentences_per_second"]
            for split in ("validation", "test")
        ]
    )
