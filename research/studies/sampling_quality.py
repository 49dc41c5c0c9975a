"""Quality of the output layers after equal steps: exact loss and fine-tuning (Tables 2 and 3).

The study pre-trains an encoder per setting and seed, on one vocabulary and one packed dataset. Runs
of a seed share initial parameters (except for half embeddings), masks and data order. Settings
differ in the section `output_layer` or in the embedding size. The settings that the paper scores in
Tables 1 to 3 are fine-tuned on English, and so is a full softmax with random parameters. Takes five
hours on two cores. Keys such as config.vocab.target_size=500000 make a larger job of it.
`benchmarks/` measures speed.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from research import pivot, plots, tasks
from research.pivot import Column, Line, values
from research.results import BySeed, mean
from research.study import Plan, Run, Study, encoder
from research.tasks import TASKS
from xlm.common import artifacts
from xlm.training.metrics import read_metrics

FULL, FULL_BIAS = "full", "full_bias"
PUBLISHED, CORRECTED = "knn", "knn_corrected"
# Random instead of trained parameters, also fine-tuned.
RANDOM, RANDOM_LABEL = "random", "random parameters"
GROUPS = {
    "method": "Methods (paper Table 2)",
    "k": "Neighbours k (paper Table 3)",
    "n": "Steps between refreshes n",
    "half": "Half embedding (paper Section 3.2)",
}
# Settings with a fine-tuned score in the paper's Tables 1 to 3, and their corrections.
_TUNED_GROUPS = ("k", "half")
_TUNED_METHODS = (FULL, PUBLISHED, CORRECTED, "target_sampling", "nce", "nce_bias", "neg")
_RATES = {"udpos": "3e-4", "wikiann": "1e-3", "tatoeba": ""}
_NEAR = 0.5  # nats around the full softmax, for an enlarged panel


@dataclasses.dataclass(frozen=True)
class Setting:
    """Output layer of the study.

    Attributes:
      label: label in tables, with every deviation from the paper's method.
      group: its table, of `GROUPS`.
      change: changed config keys.
      is_fine_tuned: whether its encoders are fine-tuned.
    """

    label: str
    group: str
    change: Mapping[str, Any]
    is_fine_tuned: bool

    @property
    def reference(self) -> str:
        """Name of the full softmax with the same initial output bias, the reference."""
        return FULL_BIAS if self.change["output_layer.frequency_bias"] else FULL

    @property
    def tuned_reference(self) -> str:
        """Name of the reference for fine-tuned scores.

        It is the full softmax for methods, else the same method with the study's k and embeddings.
        """
        if self.group == "method" or self.change["output_layer.kind"] == "full":
            return FULL
        return CORRECTED if self.change["output_layer.log_q_correction"] else PUBLISHED


def _change(
    kind: str, *, log_q: bool = False, bias: bool = False, tenth: bool = False, **more: Any
) -> dict[str, Any]:
    """Keys that define a method completely, whatever the config."""
    return {
        "output_layer.kind": kind,
        "output_layer.log_q_correction": log_q,
        "output_layer.frequency_bias": bias,
        "output_layer.full_softmax_fraction": 0.1 if tenth else 0.0,
        **more,
    }


_corrected = functools.partial(_change, "knn", log_q=True, bias=True, tenth=True)
_published = functools.partial(_change, "knn")


def settings(config: ConfigDict) -> dict[str, Setting]:
    """Return all settings by name, with k, n, S and encoder sizes from `config`."""
    layer, steps = config.output_layer, config.train.num_steps
    named: dict[str, tuple[str, str, dict[str, Any]]] = {
        name: (label, "method", keys) for name, (label, keys) in _methods(layer).items()
    }
    for k in (one for one in (5, 10, 25, 50, 100) if one != layer.k):
        more: dict[str, Any] = {"output_layer.k": k}
        if k > layer.k:
            # Neighbours of untrained embeddings are random, so their union is most of V.
            more["output_layer.capacity"] = config.vocab.target_size
        named |= _both(f"k{k}", f"k = {k}", "k", more)
    n = layer.refresh_every
    # One value violates |V| << n |W|, two satisfy it.
    for one in (max(n // 20, 1), 2 * n, steps):
        if one <= steps and one != n:
            label = "index of the first embeddings kept" if one == steps else f"n = {one}"
            label += " (breaks V << n W)" if one < n else ""
            named |= _both(f"n{one}", label, "n", {"output_layer.refresh_every": one})
    half = config.model.hidden_size // 2
    halved = {"model.embedding_size": half}
    named["half_full"] = (f"full softmax, E = {half}", "half", _change("full", **halved))
    named["half_knn"] = (f"k-NN as published, E = {half}", "half", _published(**halved))
    named["half_corrected"] = (f"k-NN corrected, E = {half}", "half", _corrected(**halved))
    return {
        name: Setting(*own, own[1] in _TUNED_GROUPS or name in _TUNED_METHODS)
        for name, own in named.items()
    }


def _both(name: str, label: str, group: str, more: dict[str, Any]) -> dict[str, tuple]:
    return {
        name: (f"k-NN as published, {label}", group, _published(**more)),
        f"{name}_corrected": (f"k-NN corrected, {label}", group, _corrected(**more)),
    }


def _methods(layer: ConfigDict) -> dict[str, tuple[str, dict[str, Any]]]:
    drawn, published = f"S = {layer.num_negatives}", f"k = {layer.k}, n = {layer.refresh_every}"
    return {
        FULL: ("full softmax", _change("full")),
        FULL_BIAS: ("full softmax, frequency bias", _change("full", bias=True)),
        PUBLISHED: (f"k-NN as published ({published})", _published()),
        "knn_bias": ("k-NN, frequency bias", _published(bias=True)),
        "knn_log_q": ("k-NN, log Q", _published(log_q=True)),
        "knn_tenth": ("k-NN, exact last tenth", _published(tenth=True)),
        CORRECTED: ("k-NN corrected: log Q, frequency bias, exact last tenth", _corrected()),
        "target_sampling": (f"target sampling ({drawn})", _change("target_sampling")),
        "target_sampling_log_q": (
            f"target sampling ({drawn}), log Q", _change("target_sampling", log_q=True),
        ),
        "nce": (f"NCE ({drawn})", _change("nce")),
        "nce_bias": (f"NCE ({drawn}), frequency bias", _change("nce", bias=True)),
        "neg": (f"NEG ({drawn})", _change("neg")),
    }  # fmt: skip


# 1. Runs.


def _settings(plan: Plan) -> dict[str, Setting]:
    """Return the chosen settings, all by default; ValueError for an unknown name."""
    known = settings(plan.config(plan.study.config))
    if unknown := sorted(set(plan.chosen["settings"]) - set(known)):
        raise ValueError(f"settings: no {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: known[name] for name in known if name in (plan.chosen["settings"] or known)}


def runs(plan: Plan) -> Iterator[Run]:
    """Plan encoders and their tasks, group by group."""
    chosen = _settings(plan)
    for group in GROUPS:
        tuned: list[Run] = []
        for seed in plan.seeds or ():
            for name, one in chosen.items():
                if one.group == group:
                    measure = functools.partial(
                        _measure, plan.config(plan.study.config, one.change)
                    )
                    own = encoder(plan, f"runs/{name}", seed, one.change, measure)
                    tuned += _tasks(plan, name, own) if one.is_fine_tuned else []
                    tuned += _tasks(plan, RANDOM, own) if name == FULL else []
                    yield own
        yield from tuned


def _tasks(plan: Plan, column: str, own: Run) -> list[Run]:
    config = plan.config(plan.study.config)
    made = []
    for task in plan.chosen["tasks"]:
        one = TASKS[task]
        keys = tasks.tuning_keys(one, _RATES[task]) if one.epochs else tasks.retrieval_keys(2)
        more = {"random_init": column == RANDOM, "model_name": column}
        change = {**keys, **more, "task.max_length": config.store.length}
        name, languages = f"fine_tuning/{column}/{task}", config.corpus.languages
        made.append(tasks.task_run(plan, name, task, own, change, languages))
    return made


def _measure(config: ConfigDict, folder: pathlib.Path) -> dict[str, Any]:
    """Return the results of an encoder; means are over the second half of the sampled steps."""
    results = artifacts.read_json(folder / "report" / "results.json")["losses"]
    metrics = read_metrics(folder / "train" / "metrics.jsonl")
    steps, layer = config.train.num_steps, config.output_layer
    last = steps if layer.kind == "full" else steps - round(layer.full_softmax_fraction * steps)

    def late(name: str) -> float | None:
        found = [one[name] for one in metrics if name in one and last / 2 < one["step"] <= last]
        return statistics.fmean(found) if found else None

    return {
        "vocab_size": artifacts.read_json(folder / "rows" / "meta.json")["vocab_size"],
        "loss": {language: one["loss"] for language, one in results.items()},
        "unigram": {language: one["unigram"] for language, one in results.items()},
        "candidates": late("train/candidates"),
        "overflow": late("train/overflow"),
        "staleness": late("index/staleness"),
    }


# 2. Report.


def report(plan: Plan) -> list[str]:
    chosen = _settings(plan)
    found = {name: plan.results.of(f"runs/{name}", plan.seeds) for name in chosen}
    found = {name: by_seed for name, by_seed in found.items() if by_seed}
    if not found:
        return []
    first = next(iter(next(iter(found.values())).values()))
    layer = plan.config(plan.study.config).output_layer
    parts = [
        f"{len(first['unigram'])} languages, {first.one('vocab_size'):,} pieces; S = "
        f"{layer.num_negatives}. Unigram distributions of the languages: "
        f"{statistics.fmean(first['unigram'].values()):.3f} nats per token. Differences are taken "
        "seed by seed, then averaged. Those from the full softmax are from the one with the same "
        "initial output bias."
    ]
    # All tables have the references.
    common = [name for name in (FULL, FULL_BIAS, PUBLISHED, CORRECTED) if name in found]
    for group, title in GROUPS.items():
        if names := [name for name in found if chosen[name].group == group]:
            shown = names if group == "method" else [*common, *names]
            parts += [f"## {title}", _loss_table(chosen, found, shown)]
    methods = [name for name in found if chosen[name].group == "method"]
    parts += ["## Languages", _language_table(chosen, found, methods)]
    for group, title in GROUPS.items():
        for task in plan.chosen["tasks"]:
            if table := _task_table(plan, chosen, group, task):
                parts += [f"### {title}: {TASKS[task].title}", table]
    return [*parts, *_plots(plan, chosen, found, methods)]


def _loss_table(
    chosen: Mapping[str, Setting], found: Mapping[str, BySeed], names: Sequence[str]
) -> str:
    columns = [
        Column("exact loss", mean("loss"), "{:.3f}"),
        Column("minus unigram", mean("loss", less="unigram"), "{:+.3f}", show="range"),
        Column("minus full", mean("loss"), "{:.3f}", show="change"),
        Column("V'", mean("candidates"), "{:.0f}"),
        Column("of V", lambda one: one.one("candidates") / one.one("vocab_size"), "{:.3f}"),
        Column("overflow", mean("overflow"), "{:.0f}"),
        Column("stale %", mean("staleness", scale=100), "{:.0f}"),
    ]
    lines = [
        Line(
            (chosen[name].label, str(len(found[name]))),
            found[name],
            {} if chosen[name].reference == name else found.get(chosen[name].reference, {}),
        )
        for name in names
    ]
    return pivot.table(["", "seeds"], lines, columns, detectable="")


def _language_table(
    chosen: Mapping[str, Setting], found: Mapping[str, BySeed], names: Sequence[str]
) -> str:
    """Return a table of the losses by language, with those of the unigram distribution."""
    first = next(iter(next(iter(found.values())).values()))
    unigram = [*first["unigram"].values(), statistics.fmean(first["unigram"].values())]
    columns = [Column(name, mean("loss", [name]), "{:.3f}") for name in first["unigram"]]
    columns.append(Column("mean", mean("loss"), "{:.3f}"))
    lines = [Line((chosen[name].label,), found[name]) for name in names]
    more = [["unigram of the language", *(f"{one:.3f}" for one in unigram)]]
    return pivot.table([""], lines, columns, detectable="", more=more)


def _tuned(plan: Plan, name: str, task: str) -> BySeed:
    return plan.results.of(f"fine_tuning/{name}/{task}", plan.seeds)


def _task_table(plan: Plan, chosen: Mapping[str, Setting], group: str, task: str) -> str:
    """Return the table of a task: languages, mean without English, difference from a reference."""
    members = [name for name, one in chosen.items() if one.group == group and one.is_fine_tuned]
    references = {FULL, *(chosen[name].tuned_reference for name in members)}
    shown = [RANDOM, *(name for name in chosen if name in members or name in references)]
    found = {name: by_seed for name in shown if (by_seed := _tuned(plan, name, task))}
    if not set(members) & set(found):
        return ""
    languages = list(next(iter(next(iter(found.values())).values()))[TASKS[task].metric])
    lines = []
    for name, by_seed in found.items():
        one = None if name == RANDOM else chosen[name]
        base = one.tuned_reference if one and one.tuned_reference != name else ""
        cells = (one.label if one else RANDOM_LABEL, str(len(by_seed)))
        lines.append(Line(cells, by_seed, found.get(base, {}), is_settled=bool(one)))
    return pivot.table(["", "seeds"], lines, tasks.columns(task, languages, "difference"))


def _plots(
    plan: Plan, chosen: Mapping[str, Setting], found: Mapping[str, BySeed], methods: Sequence[str]
) -> list[str]:
    """Plot losses and scores by method and by k, with seeds and means."""
    if not plan.folder:
        return []
    above = mean("loss", less="unigram")
    full = list(values(above, found.get(FULL, {})).values())
    marks = {"full softmax": full} if full else {}
    series = {chosen[one].label: {0.0: list(values(above, found[one]).values())} for one in methods}
    title, x = "exact held-out loss minus unigram", "nats a token"
    panels = [plots.Panel(title, series, marks, x=x)]
    near = [
        one for some in series.values() for one in some[0.0]
        if full and abs(one - statistics.fmean(full)) < _NEAR
    ]  # fmt: skip
    if near:
        margin = 0.1 * (max(near) - min(near)) + 0.03
        ends = (min(near) - margin, max(near) + margin)
        title = f"within {_NEAR} nats of the full softmax"
        panels.append(plots.Panel(title, series, marks, x=x, xlim=ends))
    plots.places(panels, plan.folder / "methods.png")
    made = ["methods"]
    tuned = []
    for task in plan.chosen["tasks"]:
        of = _zero_shot(plan, task, methods)
        labels = {name: RANDOM_LABEL if name == RANDOM else chosen[name].label for name in of}
        own = {labels[name]: {0.0: some} for name, some in of.items()}
        if set(of) - {FULL, RANDOM}:
            one = {"full softmax": of[FULL]} if FULL in of else {}
            tuned.append(plots.Panel(f"{TASKS[task].title}, mean without English", own, one))
    if tuned:
        plots.places(tuned, plan.folder / "methods_tuned.png", columns=3)
        made.append("methods_tuned")
    by_k = _by_k(plan, chosen)
    losses = {name: list(values(above, by_seed).values()) for name, by_seed in found.items()}
    panels = [_k_panel(title, by_k, losses, y=x)]
    for task in plan.chosen["tasks"]:
        names = [name for of_k in by_k.values() for name in of_k.values()]
        panels.append(_k_panel(TASKS[task].title, by_k, _zero_shot(plan, task, names)))
    plots.lines([one for one in panels if any(one.series.values())], plan.folder / "neighbours.png")
    return [f"![{name}]({name}.png)" for name in (*made, "neighbours")]


def _zero_shot(plan: Plan, task: str, names: Sequence[str]) -> dict[str, list[float]]:
    """Return the mean without English for each seed, of the settings scored on a task."""
    metric, found = TASKS[task].metric, {}
    for name in dict.fromkeys((FULL, *names, RANDOM)):
        scores = [
            tasks.zero_shot(tasks.scores(one, task)) for one in _tuned(plan, name, task).values()
        ]
        if scores and metric:
            found[name] = [one for one in scores if one is not None]
    return found


def _by_k(plan: Plan, chosen: Mapping[str, Setting]) -> dict[str, dict[int, str]]:
    """Return the settings of k-NN sampling, published and corrected, by k."""
    default = plan.config(plan.study.config).output_layer.k
    forms: dict[str, dict[int, str]] = {}
    for name, one in chosen.items():
        if one.group == "k" or name in (PUBLISHED, CORRECTED):
            form = "as published" if one.reference == FULL else "corrected"
            forms.setdefault(form, {})[one.change.get("output_layer.k", default)] = name
    return forms


def _k_panel(
    title: str, by_k: Mapping[str, Mapping[int, str]], found: Mapping[str, list[float]], y: str = ""
) -> plots.Panel:
    ticks = {k: str(k) for k in sorted({k for of_k in by_k.values() for k in of_k})}
    series = {
        f"k-NN {form}": {k: found[name] for k, name in of_k.items() if name in found}
        for form, of_k in by_k.items()
    }
    marks = {"full softmax": found[FULL]} if FULL in found else {}
    return plots.Panel(title, series, marks, x="neighbours k", y=y, ticks=ticks, is_log=True)


STUDY = Study(
    "Output layers",
    "research/configs/sampling_quality.py:DATA",
    runs,
    report,
    {"settings": (), "tasks": tuple(_RATES)},
    {"tasks": tuple(_RATES)},
)
