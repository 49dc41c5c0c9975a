"""Translation from random parameters, from MLM, MLM + TLM and VECO (VECO Tables 3 and 4).

For every seed, the study pre-trains the runs of `research/configs/translation.py` on one vocabulary
and one packed dataset: VECO, XLM on the same data, and MLM on the text alone, as in XLM-R. It then
trains a model from each of `starts` for each of `tasks`: photograph captions (Multi30k) in three
directions, and news. All have equal steps. Learning rates are those of
`configs/finetune/multi30k.py` times one of `scales`. Each start has the scale with the best
development BLEU on the first task under the first seed. Its other tasks and seeds use only that
scale. Test data select nothing. `research.translation_search` decodes runs of the first task again,
greedily and with beams, from one checkpoint and from means of several. Takes many hours on two
cores.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from configs.finetune import multi30k
from research import measures, pivot, plots, stats, tasks
from research.configs.translation import RUNS
from research.pivot import Column, Line
from research.results import BySeed, Result, mean
from research.study import Plan, Run, Step, Study, data_run, encoder
from research.translation_search import SEARCH
from xlm.common import artifacts
from xlm.evaluation import translation_report as run_report
from xlm.training.metrics import read_metrics

# Runs of research/configs/translation.py; the first prepares the data.
_VECO, _XLM, _XLM_TEXT = "translation", "translation_xlm", "translation_xlm_text"


@dataclasses.dataclass(frozen=True)
class Start:
    """Starting point of a model.

    Attributes:
      label: label in tables.
      encoder: pre-training; None for random parameters of the same sizes.
      end: layers from which the decoder starts, "first" or "last".
      layers: number of decoder layers.
    """

    label: str
    encoder: str | None
    end: str = "last"
    layers: int = 2


STARTS = {
    "random": Start("random parameters", None),
    "xlm_text": Start("MLM, random cross-attention", _XLM_TEXT),
    "xlm": Start("MLM + TLM, random cross-attention", _XLM),
    "veco_first": Start("VECO, first two layers", _VECO, "first"),
    "veco_last": Start("VECO, last two layers", _VECO),
    "veco_last_one": Start("VECO, last layer", _VECO, layers=1),
}
_SETS = ("newssyscomb2009", *(f"newstest{year}" for year in range(2008, 2013)))
_NEWS = {
    "task.train": (
        *(f"train/{name}.{{{side}}}.txt.xz" for name in _SETS for side in ("source", "target")),
        *(f"train/newstest{year}.{{source}}-{{target}}.tsv.xz" for year in (2015, 2016, 2017)),
    ),
    "task.validation": tuple(
        f"dev/newstest2013.{{{side}}}.txt.xz" for side in ("source", "target")
    ),
    "task.test": ("train/newstest2018.{source}-{target}.tsv.xz",),
    "task.max_length": 96,
    "task.buckets": (32, 64),
    "decoding.max_length": 96,
}
# Label, direction, folder below DATA, and changed keys of configs/finetune/multi30k.py.
TASKS: dict[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "captions_en_de": ("Multi30k, en-de", "en-de", "multi30k", {}),
    "captions_en_fr": ("Multi30k, en-fr", "en-fr", "multi30k", {}),
    "captions_en_cs": ("Multi30k, en-cs", "en-cs", "multi30k", {}),
    "news_en_de": ("WMT news, en-de", "en-de", "wmt_news", _NEWS),
}

# 1. Runs.


def _names(plan: Plan, task: str, start: str) -> dict[str, str]:
    """Return the runs of a task from a start, by scale of the learning rates."""
    return {scale: f"runs/{task}/{start}/{scale}" for scale in plan.chosen["scales"]}


def _scale(plan: Plan, start: str) -> str | None:
    """Return the scale with the best development BLEU; None while a result is missing."""
    return plan.best(_names(plan, plan.chosen["tasks"][0], start), "validation/bleu")


def runs(plan: Plan) -> Iterator[Run]:
    """Plan pre-training, translation and search, seed by seed."""
    config = plan.config(plan.study.config, RUNS[_VECO])
    rows = data_run(config, plan.study.config, {**RUNS[_VECO], **plan.overrides})
    first = plan.chosen["tasks"][0]
    for seed in plan.seeds or ():
        encoders: dict[str | None, Run] = {None: rows}
        for start in plan.chosen["starts"]:
            name = STARTS[start].encoder
            if name not in encoders:
                encoders[name] = encoder(
                    plan, f"encoders/{name}", seed, RUNS[name or ""], measures.encoder, data=rows
                )
                yield encoders[name]
        for task in plan.chosen["tasks"]:
            for start in plan.chosen["starts"]:
                names, best = _names(plan, task, start), _scale(plan, start)
                selects = (task, seed) == (first, plan.first_seed)
                for scale in names if selects else [best] if best else []:
                    source = encoders[STARTS[start].encoder]
                    own = _translation(plan, task, start, scale, names[scale], seed, source, config)
                    yield own
                    if task == first and scale == best:
                        yield _search(own)


def _translation(
    plan: Plan, task: str, start: str, scale: str, name: str, seed: int, source: Run, config: Any
) -> Run:
    one, (_, direction, folder, change) = STARTS[start], TASKS[task]
    base, (steps,) = multi30k.get_config(f"{direction},DATA"), map(int, plan.chosen["steps"])
    sizes = {f"architecture.{key}": config.model[key] for key in base.architecture}
    overrides = {
        **change,
        **(sizes if one.encoder is None else {}),
        "random_init": one.encoder is None,
        "translation.decoder_from": one.end,
        "translation.decoder_layers": one.layers,
        "translation.needs_cross_attention": one.encoder == _VECO,
        "init_from": source.path,
        "model_name": start,
        "optimizer.learning_rate": float(scale) * base.optimizer.learning_rate,
        "optimizer.muon_learning_rate": float(scale) * base.optimizer.muon_learning_rate,
        "train.num_steps": steps,
        "train.evaluate_every": max(1, steps // 6),
        "train.checkpoint_every": max(1, steps // 12),
        "train.seed": seed,
    }
    argument = f"configs/finetune/multi30k.py:{direction},DATA/{folder}"

    def measure(folder: pathlib.Path) -> dict[str, Any]:
        return _measure(folder, direction, has_examples=seed == plan.first_seed)

    steps_of_run = (Step(("finetune.py",)),)
    return Run(name, seed, steps_of_run, argument, overrides, needs=(source,), measure=measure)


def _measure(folder: pathlib.Path, direction: str, has_examples: bool) -> dict[str, Any]:
    results = artifacts.read_json(folder / "results.json")
    found = {
        "validation": results["validation"][direction],
        "test": results["test"][direction],
        "sentences": results["examples"]["test"][direction],
        "curve": run_report.learning_curves(read_metrics(folder / "metrics.jsonl"))[direction],
    }
    # For readers, so one seed is enough; without the sentences of the data.
    if has_examples:
        found["translations"] = [
            {name: one[name] for name in ("id", "prediction")}
            for one in run_report.some_translations(folder, direction)
        ]
    return found


def _search(own: Run) -> Run:
    words = ("-m", "research.translation_search", f"--workdir={own.path}")
    step = Step((*words, f"--output=WORKDIR/search/{own.folder}"), has_config=False)
    return Run(
        f"search/{own.name}", own.seed, (step,), needs=(own,),
        measure=lambda folder: artifacts.read_json(folder / SEARCH),
    )  # fmt: skip


# 2. Report.

_NOTE = """\
All have equal steps of fine-tuning. *scale* of the learning rates has the best development BLEU on
the first task under the first seed. Every seed has its own pre-training. BLEU is sacreBLEU, with
beam 5 and the mean of the last 3 checkpoints. Cells are means over seeds, with minimum and maximum.
*against the first*: the difference of test BLEU from the first line, seed by seed. Curves: greedy,
on 128 development sentences during training, as in Table 4, right."""
_SEARCH_NOTE = """\
Runs of the first task, decoded again. Test BLEU and sentences per second are means over seeds, with
minimum and maximum. *against the first*: the difference of BLEU from the start's first line, seed
by seed. *speed*: sentences per second relative to the fewest beams with equally many checkpoints,
median."""


def report(plan: Plan) -> list[str]:
    parts = []
    scales = {start: _scale(plan, start) for start in plan.chosen["starts"]}
    for task in plan.chosen["tasks"]:
        found = {
            start: by_seed
            for start, scale in scales.items()
            if scale and (by_seed := plan.results.of(_names(plan, task, start)[scale], plan.seeds))
        }
        if not found:
            continue
        parts += [f"## {TASKS[task][0]}", _score_table(found, scales)]
        if path := plan.plot(task):
            _plot(found, TASKS[task][0], path)
            parts.append(f"![BLEU by step]({task}.png)")
        if task == plan.chosen["tasks"][0]:
            rows = {
                STARTS[start].label: _names(plan, task, start) for start in plan.chosen["starts"]
            }
            title = "development BLEU at scale"
            parts.append(tasks.choice_table(plan, title, "scales", "validation/bleu", rows))
        parts += _examples(found, plan.first_seed)
    if not parts:
        return []
    if searched := _search_rows(plan, scales):
        titles = [
            "", "checkpoints", "beams", "seeds", "BLEU", pivot.RANGE, "against the first",
            pivot.RANGE, "sentences a second", pivot.RANGE, "speed",
        ]  # fmt: skip
        parts += ["## Search and averaging", _SEARCH_NOTE, pivot.markdown(titles, searched)]
    return [_NOTE, *parts]


def _score_table(found: Mapping[str, BySeed], scales: Mapping[str, str | None]) -> str:
    """Return a table in per cent, with a line per start."""
    first = next(iter(found.values()))
    lines = [
        Line(
            (STARTS[start].label, scales[start] or "", str(len(by_seed))),
            by_seed,
            {} if by_seed is first else first,
        )
        for start, by_seed in found.items()
    ]
    columns = [
        Column("BLEU", mean("test/bleu", [""], scale=100), show="range"),
        Column("chrF", mean("test/chrf", [""], scale=100)),
        Column("dev BLEU", mean("validation/bleu", [""], scale=100)),
        Column("against the first", mean("test/bleu", [""], scale=100), show="change"),
    ]
    title = f"{next(iter(first.values())).one('sentences'):,} test sentences"
    return pivot.table([title, "scale", "seeds"], lines, columns, detectable="")


def _examples(found: Mapping[str, BySeed], seed: int) -> list[str]:
    """Return the outputs of all starts for some test sentences; [] without kept outputs."""
    outputs = {
        STARTS[start].label: by_seed[seed]["translations/prediction"]
        for start, by_seed in found.items()
        if "translations/prediction" in by_seed.get(seed, {})
    }
    if not outputs:
        return []
    sentences = next(iter(outputs.values()))
    return [
        "Outputs of one seed for evenly spaced test sentences:",
        *(
            "\n".join(
                [
                    f"- {sentence}",
                    *(f"  - {label}: {one[sentence]}" for label, one in outputs.items()),
                ]
            )
            for sentence in sentences
        ),
    ]


def _plot(found: Mapping[str, BySeed], title: str, path: pathlib.Path) -> None:
    series = {}
    for start, by_seed in found.items():
        curves = [
            {int(step): 100 * value for step, value in one["curve"].items()}
            for one in by_seed.values()
        ]
        steps = sorted(set.intersection(*map(set, curves)))
        series[STARTS[start].label] = {step: [curve[step] for curve in curves] for step in steps}
    y = "BLEU, greedy, 128 development sentences"
    plots.lines([plots.Panel(title, series, x="steps", y=y, is_band=True)], path)


def _search_rows(plan: Plan, scales: Mapping[str, str | None]) -> list[list[str]]:
    """Return a line for each start, number of checkpoints and number of beams."""
    rows = []
    for start, scale in scales.items():
        name = _names(plan, plan.chosen["tasks"][0], start).get(scale or "", "")
        # Records from before 2026-11-29 have the search beside the run.
        found = plan.results.of(f"search/{name}", plan.seeds) or plan.results.of(name, plan.seeds)
        some = {seed: one for seed, one in found.items() if "sentences_per_second" in one}
        if not some:
            continue
        items = next(iter(some.values()))["sentences_per_second"]
        choices = sorted({tuple(map(int, item.split("/")[1:])) for item in items})
        for choice in choices:
            cells = [STARTS[start].label, *map(str, choice), str(len(some))]
            rows.append([*cells, *_compared(some, choice, choices[0])])
    return rows


def _compared(some: BySeed, choice: tuple[int, ...], first: tuple[int, ...]) -> list[str]:
    """Return the cells of a choice of checkpoints and beams, compared with the first choice."""
    checkpoints, beams = choice

    def bleu(of: Sequence[int], one: Result) -> float:
        return 100 * one["bleu"]["/".join(["test", *map(str, of)])]

    def speed(count: int, one: Result) -> float:
        found = one["sentences_per_second"]
        splits = ("validation", "test")
        return statistics.harmonic_mean([found[f"{s}/{checkpoints}/{count}"] for s in splits])

    line = Line((), some)
    base = {seed: bleu(first, one) for seed, one in some.items()}
    changes = [] if choice == first else [bleu(choice, one) - base[s] for s, one in some.items()]
    ratios = [speed(beams, one) / speed(first[1], one) for one in some.values()]
    return [
        *pivot.cells(Column("", lambda one: bleu(choice, one), show="range"), line),
        *stats.spread(changes, "{:+.1f}"),
        *pivot.cells(Column("", lambda one: speed(beams, one), show="range"), line),
        f"{statistics.median(ratios):.2f}",
    ]


STUDY = Study(
    "Translation",
    "research/configs/translation.py:translation,DATA",
    runs,
    report,
    {"tasks": tuple(TASKS), "starts": tuple(STARTS), "scales": ("1",), "steps": ("1200",)},
    {"tasks": tuple(TASKS), "starts": tuple(STARTS)},
)
