"""Correlation of vocabulary ALP and size with monolingual task scores (Table 5, Figures 1-3).

Each language and vocabulary size has a monolingual vocabulary and an encoder pre-trained with it.
The encoder is fine-tuned on part-of-speech tagging and named entities in the same language, on
parts of the development data (`research.splits`). Encoders of a language and a seed differ only in
their vocabulary: text, sequence length and steps are equal. An infeasible size for a language's
text, such as fewer pieces than characters, fails without affecting the others. Takes four hours on
one core.
"""

import collections
import functools
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from research import pivot, plots, splits, stats, tasks
from research.pivot import Column, Line
from research.results import BySeed, Result, mean
from research.study import Plan, Run, Study, encoder
from vocap.settings import SPECIALS
from xlm.common import artifacts

TASKS = {"udpos": "POS", "wikiann": "NER"}
# VoCap (arXiv 2109.07306), Table 5: correlation of F1 with ALP, and with vocabulary size.
PUBLISHED = {
    "hi": {"udpos": (0.922, 0.787), "wikiann": (0.879, 0.890)},
    "fa": {"udpos": (0.905, 0.700), "wikiann": (0.912, 0.872)},
    "it": {"udpos": (0.665, 0.422), "wikiann": (0.899, 0.900)},
    "ru": {"udpos": (0.423, 0.327), "wikiann": (0.872, 0.833)},
}
# Settings of the encoders of all sizes. Small batches, since learning from context depends more on
# the number of steps than on the number of tokens.
_PRETRAINING = {
    # Monolingual: reads translations as text, not as pairs.
    "corpus.text": (
        "common_voice_text/train", "wikiann_text", "books", "bible/train", "ntrex/train",
    ),
    "corpus.parallel": (),
    "corpus.parallel_eval": (),
    "corpus.max_train_bytes": 5_000_000,
    "vocab.alp_probabilities": "corpus",
    "vocab.compare": (),
    "vocab.num_workers": 1,
    "store.num_workers": 1,
    "store.length": 64,
    "data.loader": "threads",
    "data.contrast_share": 0.0,
    "model.max_length": 64,
    "model.dropout_rate": 0.0,
    "output_layer.kind": "full",
    "output_layer.full_softmax_fraction": 0.0,
    "train.batch_size": 8,
    "train.evaluate_every": 500,
    "train.checkpoint_every": 500,
    "train.keep_checkpoints": 1,
    "evaluation.max_sequences": 100,
    "evaluation.max_sequences_in_training": 16,
}  # fmt: skip
_FINE_TUNING = {
    "task.max_length": 64,
    "task.buckets": (32,),
    "task.selection": "all_languages",  # one language, not English
    "model.attention_dropout_rate": 0.0,
    "train.batch_size": 16,
    "train.evaluations": 4,
}
# Tuned on Finnish development data with 2,000 pieces.
_OF_TASK = {
    "udpos": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
    "wikiann": {"optimizer.learning_rate": 2e-3, "train.epochs": 10.0},
}


def runs(plan: Plan) -> Iterator[Run]:
    """Plan encoders and their tasks, one language after another."""
    (steps,) = map(int, plan.chosen["steps"])
    made = splits.run(tuple(TASKS), plan.chosen["languages"])
    for language in plan.chosen["languages"]:
        for size in sorted(map(int, plan.chosen["sizes"])):
            for seed in plan.seeds or ():
                name = f"encoders/{language}/{size}"
                change = {
                    **_PRETRAINING,
                    "optimizer.warmup_steps": min(100, steps // 10),
                    "train.num_steps": steps,
                    "corpus.languages": (language,),
                    "vocab.sizes": (size,),
                    "vocab.target_size": size + len(SPECIALS),
                }
                own = encoder(plan, name, seed, change, functools.partial(_measure, language, size))
                yield own
                for task in TASKS:
                    of_task = {**_FINE_TUNING, **_OF_TASK[task], **splits.keys(task, (language,))}
                    yield tasks.task_run(
                        plan, f"{name}/{task}", task, own, of_task, (language,), (made,)
                    )  # fmt: skip


def _measure(language: str, size: int, folder: pathlib.Path) -> dict[str, Any]:
    """Return the ALP of an encoder's vocabulary, and the encoder's losses."""
    built = artifacts.read_json(folder / "vocab" / "allocation.json")["languages"][language]
    losses = artifacts.read_json(folder / "report" / "results.json")["losses"][language]
    alp = built["alp"][built["sizes"].index(size)]
    return {"alp": alp, "loss": losses["loss"], "unigram": losses["unigram"]}


# Report.

Cells = Mapping[tuple[str, int], BySeed]  # results by language and size
_MEASURES = {
    "F1 and ALP": lambda size, one: one.one("alp"),
    "F1 and size": lambda size, one: size,
    "F1 and log size": lambda size, one: math.log(size),
}


def report(plan: Plan) -> list[str]:
    cells = {}
    for name in sorted(plan.results.runs()):
        parts = name.split("/")
        if parts[0] == "encoders" and len(parts) == 3:
            own = {f"{task}:": f"{name}/{task}" for task in TASKS}
            cells[parts[1], int(parts[2])] = plan.results.joined({"": name, **own}, plan.seeds)
    cells = dict(sorted((key, by_seed) for key, by_seed in cells.items() if by_seed))
    if not cells:
        return []
    most = max(collections.Counter(language for language, _ in cells).values())
    significance = (
        f" Of {most} sizes a correlation is significant at 5 % from "
        f"{stats.significant_correlation(most):.2f} on."
        if most > 2
        else ""
    )
    return [
        "F1 in per cent. ALP in nats per sentence of training text. loss - unigram in nats per "
        "token of held-out text; below zero the encoder has learned from context.",
        _score_table(cells),
        "## Pearson's correlation",
        "Of means over seeds. In brackets: the range of single seeds. *detectable*: the least "
        "difference of two sizes that is significant at 5 %, by the deviation of seeds pooled over "
        f"sizes. It ignores the choice of test examples.{significance}",
        _correlation_table(cells),
        pivot.markdown(
            ["VoCap, Table 5", "", "F1 and ALP", "F1 and size"],
            [
                [language, TASKS[task], *(f"{one:.3f}" for one in both)]
                for language, by_task in PUBLISHED.items()
                for task, both in by_task.items()
            ],
            texts=2,
        ),
        *_plots(plan, cells),
    ]


def _f1(task: str):
    return mean(f"{task}:test/f1", scale=100)


def _score_table(cells: Cells) -> str:
    lines = [
        Line((language, f"{size:,}", f"{_first(by_seed).one('alp'):.1f}"), by_seed)
        for (language, size), by_seed in cells.items()
    ]
    learned = Column("loss - unigram", lambda one: one.one("loss") - one.one("unigram"), "{:+z.2f}")
    scores = [
        Column(f"{name} F1 ± SD (seeds)", _f1(task), show="deviation")
        for task, name in TASKS.items()
    ]
    return pivot.table(["", "pieces", "ALP"], lines, [learned, *scores], detectable="")


def _first(by_seed: BySeed) -> Result:
    return next(iter(by_seed.values()))


def _scores(cells: Cells, language: str, task: str) -> dict[int, dict[int, float]]:
    """Return the scores of a language by size and seed, for sizes with scores."""
    found = {
        size: pivot.values(_f1(task), by_seed) for (own, size), by_seed in cells.items()
        if own == language
    }  # fmt: skip
    return {size: one for size, one in found.items() if one}


def _rho(cells: Cells, language: str, task: str, of) -> list[float]:
    """Return the correlation of the means over seeds, and that of each common seed of all sizes.

    Below three sizes there is none.
    """
    scores = _scores(cells, language, task)
    if len(scores) < 3:
        return []
    x = [of(size, _first(cells[language, size])) for size in scores]
    seeds = sorted(set.intersection(*map(set, scores.values())))
    samples = [[statistics.fmean(one.values()) for one in scores.values()]]
    samples += [[one[seed] for one in scores.values()] for seed in seeds]
    return [stats.correlation(x, y) for y in samples]


def _correlation_table(cells: Cells) -> str:
    """Return Table 5 for each language and task, with the range over seeds."""
    rows = []
    for language in dict.fromkeys(language for language, _ in cells):
        for task, name in TASKS.items():
            if not (scores := _scores(cells, language, task)):
                continue
            groups = [list(one.values()) for one in scores.values()]
            means = list(map(statistics.fmean, groups))
            rows.append([
                language,
                name,
                str(len(scores)),
                *(_shown(_rho(cells, language, task, of)) for of in _MEASURES.values()),
                f"{max(means) - min(means):.1f}",
                f"{stats.pooled_deviation(groups):.1f}",
                stats.detectable(groups, "{:.1f}"),
            ])  # fmt: skip
    titles = ["sizes", *_MEASURES, "best - worst F1", "SD of seeds", "detectable"]
    return pivot.markdown(["", "", *titles], rows, texts=2)


def _shown(rhos: list[float]) -> str:
    if not rhos:
        return ""
    whole, *each = rhos
    return f"{whole:.3f}" + (f" ({min(each):.2f} to {max(each):.2f})" if len(each) > 1 else "")


def _plots(plan: Plan, cells: Cells) -> list[str]:
    """Plot ALP against size (Figure 1), and F1 against either (Figures 2 and 3)."""
    if not plan.folder:
        return []
    languages = list(dict.fromkeys(language for language, _ in cells))
    alp = {
        one: {size: [_first(cells[own, size]).one("alp")] for own, size in cells if own == one}
        for one in languages
    }
    ticks = {size: f"{size:,}" for size in sorted({size for _, size in cells})}
    figure = plots.Panel(
        "", alp, x="vocabulary size (pieces)", y="ALP (nats a sentence)", ticks=ticks, is_log=True
    )
    plots.lines([figure], plan.folder / "alp.png")
    made = ["![ALP against size](alp.png)"]
    for name, title in (("alp", "F1 and ALP"), ("size", "F1 and size")):
        of, panels = _MEASURES[title], []
        for task, label in TASKS.items():
            for one in languages:
                scores = _scores(cells, one, task)
                x = {
                    of(size, _first(cells[one, size])): list(scores[size].values())
                    for size in scores
                }
                rhos = _rho(cells, one, task, of)
                end = f": ρ = {rhos[0]:.2f}" if rhos else ""
                panels.append(plots.Panel(f"{one}, {label}{end}", {"": x}, x=name))
        plots.dots(panels, plan.folder / f"scores_{name}.png", len(languages))
        made.append(f"![F1 against {name}](scores_{name}.png)")
    return made


STUDY = Study(
    "Monolingual encoders with vocabularies of several sizes",
    "configs/real_text.py:DATA",
    runs,
    report,
    {
        "languages": ("fi", "ru", "ar", "de"),
        "sizes": ("500", "1000", "2000", "4000", "8000"),
        "steps": ("2500",),
    },
)
