"""Tables and plot of `studies.supervision`."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt

from common import artifacts
from configs.xlm_r import LOW
from evaluation import figures
from studies import downstream, grid
from studies.downstream import spread
from studies.supervision_settings import ONE, ONE_WIKIPEDIA, SETTINGS, Run, languages_of, runs_of

Scores = Mapping[str, Sequence[Mapping[str, float]]]  # by setting, seed and language


def write_report(study: grid.Study) -> str:
    """Write the tables and the plot of finished runs; return the text."""
    found = {task: some for task in study.tasks if (some := complete(study, task))}
    parts = [
        "# Training data in English, in each language, in all",
        f"Seeds {', '.join(map(str, study.seeds))} of pre-training and fine-tuning; scores of "
        "parts of the development data (NER, XNLI) and of the test data (POS), means over seeds. "
        "*detectable*: the least difference of two settings with data of the languages that the "
        "spread of seeds, pooled over these settings, tells at 5 %; *detectable, selection*: the "
        "least change by another selection from the trainings on English, whose seeds are paired. "
        "Neither knows of the choice of test examples.",
        *(score_table(study, task, some) for task, some in found.items()),
        *(["![Scores by setting](supervision.png)"] if found else []),
        "Bits a character of held-out text:",
        loss_table(study, lambda one: one["bits_per_character"], "{:.3f}"),
        "Loss less that of the language's unigram distribution, nats a token:",
        loss_table(study, lambda one: one["loss"] - one["unigram"], "{:+.2f}"),
    ]
    if found:
        figure = plot_settings(study, found)
        figures.save(figure, study.workdir / "report" / "supervision.png", dpi=110)
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(study.workdir / "report" / "supervision.md", text)
    return text


def scores(study: grid.Study, task: str, setting: str, seed: int) -> dict[str, float]:
    """Return the scores by language of a setting under a seed, in per cent, as far as there are."""
    found = [downstream.scores(one) for one in _finished(study, task, setting, seed)]
    return {name: value for one in found for name, value in one.items()}


def _finished(study: grid.Study, task: str, setting: str, seed: int) -> list[dict[str, Any]]:
    names = runs_of(setting, languages_of(study, task))
    paths = [Run(task, setting, name, seed).results(study.workdir) for name in names]
    return [artifacts.read_json(path) for path in paths if path.exists()]


def complete(study: grid.Study, task: str) -> dict[str, list[dict[str, float]]]:
    """Return the scores by language of each seed, of the settings that have runs of all."""
    names = languages_of(study, task)
    made = {}
    for setting, one in SETTINGS.items():
        wanted = set(one.of(names))
        by_seed = [scores(study, task, setting, seed) for seed in study.seeds]
        if wanted and (whole := [found for found in by_seed if set(found) == wanted]):
            made[setting] = whole
    return made


def means(found: Scores, names: Sequence[str]) -> dict[str, list[float]]:
    """Return the mean over languages under each seed, of the settings that have all of them."""
    return {
        setting: [statistics.fmean(one[name] for name in names) for one in by_seed]
        for setting, by_seed in found.items()
        if set(names) <= set(by_seed[0])
    }


def score_table(study: grid.Study, task: str, found: Scores) -> str:
    """Return a Markdown table in per cent: means over seeds, a line per setting.

    Settings of some of the languages have no mean over all.
    """
    names = languages_of(study, task)
    low = _low(names)
    groups: list[tuple[tuple[str, ...], str, Callable[[Sequence[float]], str]]]
    groups = [((name,), name, _mean) for name in names]
    groups += [(names, "mean", _mean_and_spread)]
    groups += [(low, f"mean of {', '.join(low)}", _mean_and_spread)] if len(low) > 1 else []
    columns = [downstream.TASKS[task].title, "seeds", *(title for _, title, _ in groups)]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    by_group = [(means(found, group), form) for group, _, form in groups]
    for setting, by_seed in found.items():
        cells = [form(some.get(setting, ())) for some, form in by_group]
        cells = [SETTINGS[setting].label, str(len(by_seed)), *cells]
        lines.append(f"| {' | '.join(cells)} |")
    for title, of_group in (
        ("detectable", _detectable),
        ("detectable, selection", _detectable_selection),
    ):
        cells = [of_group(some) for some, _ in by_group]
        lines.append(f"| {title} | | {' | '.join(cells)} |")
    counts = _examples(study, task)
    cells = [f"{sum(counts.get(name, 0) for name in group):,}" for group, _, _ in groups]
    lines.append(f"| examples | | {' | '.join(cells)} |")
    return "\n".join(lines)


def _detectable(found: Mapping[str, Sequence[float]]) -> str:
    """Format the least detectable difference of settings with data of the languages.

    Transfer from English varies several times as much over seeds, and its three settings are
    selections from one training, not samples of their own.
    """
    some = [values for setting, values in found.items() if SETTINGS[setting].train != "en"]
    return downstream.detectable(some, "{:.1f}")


def _detectable_selection(found: Mapping[str, Sequence[float]]) -> str:
    """Format the least detectable change by another selection from the trainings on English."""
    changes = [
        [new - old for new, old in zip(values, found["en"], strict=False)]
        for setting, values in found.items()
        if "en" in found and setting != "en" and SETTINGS[setting].train == "en"
    ]
    # Of the one that varies most: one that selects the same parameters does not vary at all.
    least = [x for one in changes if (x := downstream.least_detectable_change(one)) is not None]
    return f"{max(least):.1f}" if least else ""


def _mean(values: Sequence[float]) -> str:
    return spread(values, "{:.1f}")[0]


def _mean_and_spread(values: Sequence[float]) -> str:
    return "{} ({})".format(*spread(values, "{:.1f}")) if values else ""


def _low(names: Sequence[str]) -> tuple[str, ...]:
    """Return the low-resource ones of the languages of a task."""
    return tuple(name for name in LOW if name in names)


def _examples(study: grid.Study, task: str) -> dict[str, int]:
    """Return the number of test examples by language, the same in all settings."""
    return {
        name: count
        for setting in SETTINGS
        for seed in study.seeds
        for one in _finished(study, task, setting, seed)
        for name, count in one["examples"]["test"].items()
    }


def loss_table(
    study: grid.Study, measure: Callable[[Mapping[str, float]], float], form: str
) -> str:
    """Return a Markdown table of one encoder, and of each language's own: means over seeds.

    Args:
      study: with the records of the encoders.
      measure: what of a language's losses is shown.
      form: format of a mean.
    """
    names = study.config_of(ONE).corpus.languages
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for label, run_of in (
        ("one encoder", dict.fromkeys(names, ONE)),
        ("one encoder, of as much text as Wikipedia has", dict.fromkeys(names, ONE_WIKIPEDIA)),
        ("an encoder for each language", {name: f"only_{name}" for name in names}),
        ("the same, of as much text as Wikipedia has", {n: f"only_wikipedia_{n}" for n in LOW}),
    ):
        cells = []
        for name in names:
            run = run_of.get(name)
            paths = [study.record(run, seed) for seed in study.seeds] if run else []
            found = [
                measure(artifacts.read_json(path)["losses"][name])
                for path in paths
                if path.exists()
            ]
            cells.append(spread(found, form)[0])
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_settings(study: grid.Study, found: Mapping[str, Scores]) -> plt.Figure:
    """Plot means over languages by setting, seeds and their mean, a row per task.

    Panels: all languages of the task, and those of them with little text.

    Args:
      study: of the runs.
      found: complete scores by task.

    Returns:
      A figure, for the caller to save and close.
    """
    figure, panels = plt.subplots(
        len(found), 2, figsize=(12, 1 + 2.4 * len(found)), layout="constrained", squeeze=False
    )
    for row, (task, of_task) in zip(panels, found.items(), strict=True):
        names = languages_of(study, task)
        for axes, group in zip(row, (names, _low(names)), strict=True):
            drawn = means(of_task, group) if group else {}
            if not drawn:
                axes.axis("off")
                continue
            for place, values in enumerate(drawn.values()):
                figures.show_seeds(axes, values, place, size=14)
            labels = [SETTINGS[setting].label for setting in drawn]
            axes.set_yticks(range(len(drawn)), labels, fontsize=8)
            axes.set_title(f"{downstream.TASKS[task].title}: {', '.join(group)}", fontsize=10)
            axes.grid(alpha=0.3)
            axes.invert_yaxis()
    return figure
