"""Continued training on one domain: gain and forgetting by language (XY-LENT Section 8).

For every seed, the study starts from the runs `small` (generator and discriminator) and `small_mlm`
of `xy_lent`, in the same WORKDIR. It trains on the text of `domain`, a folder of DATA, in those
languages of the encoders that it has. Training has `steps` steps without pairs, once at the peak
learning rate of the pre-training and once at a tenth of it. `research.forgetting` scores all models
before and after, on held-out rows of the pre-training and of the domain. With a `rate` it also
scores them after fine-tuning on English data of `task`, as Table 6 does on XNLI. Takes an hour on
two cores.
"""

import pathlib
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from research import forgetting, pivot, plots, tasks
from research.pivot import Column, Line
from research.results import BySeed, Result, mean
from research.studies.xy_lent import CHANGES, LABELS, arm_run
from research.study import Plan, Run, Step, Study
from research.tasks import TASKS
from xlm.common import artifacts

ARMS = ("small", "small_mlm")
# Label, and factor of the pre-training's learning rate, by name.
RATES = {"peak": ("peak rate", 1.0), "tenth": ("a tenth of it", 0.1)}
_HELDOUT = 0.2  # of the domain, which has little text
# Languages of the encoders with text in the domain `tico19`.
_TICO19 = ("ar", "en", "es", "fa", "fr", "hi", "id", "ru", "ta", "zh")


def runs(plan: Plan) -> Iterator[Run]:
    """Plan training and comparison, seed by seed, from the encoders of `xy_lent`."""
    (steps,) = map(int, plan.chosen["steps"])
    keys = {
        "corpus.text": plan.chosen["domain"],
        "corpus.parallel": (),
        "corpus.parallel_eval": (),
        "corpus.languages": plan.chosen["languages"],
        "corpus.heldout_fraction": _HELDOUT,
        "data.pair_share": 0.0,
    }
    for seed in plan.seeds or ():
        for arm in ARMS:
            first = arm_run(plan, arm, seed)
            links = {one: f"{first.folder}/{one}" for one in ("vocab", "rows")}
            general = Run("general", None, (), links=links, needs=(first,))
            domain = Run(
                "domain", None, (Step(("prepare_data.py",)),), plan.study.config, keys,
                {"vocab": links["vocab"]}, (first,),
            )  # fmt: skip
            before = _fine_tuning(plan, arm, "before", first)
            yield from before
            for name in RATES:
                own = _trained(plan, arm, name, seed, keys, steps, first, domain)
                after = _fine_tuning(plan, arm, name, own)
                yield from after
                yield _compared(arm, name, first, own, (general, domain), (*before, *after))


def _trained(
    plan: Plan, arm: str, name: str, seed: int, keys: Mapping[str, Any], steps: int,
    first: Run, packed: Run,
) -> Run:  # fmt: skip
    """Return the run of continued training, with both learning rates scaled."""
    optimizer, scale = plan.config(plan.study.config, CHANGES[arm]).optimizer, RATES[name][1]
    overrides = {
        **CHANGES[arm],
        **keys,
        **plan.overrides,
        "optimizer.learning_rate": scale * optimizer.learning_rate,
        "optimizer.muon_learning_rate": scale * optimizer.muon_learning_rate,
        "optimizer.warmup_steps": max(1, steps // 10),
        "train.num_steps": steps,
        "train.evaluate_every": max(1, steps // 4),
        "train.init_from": first.path,
        "train.seed": seed,
    }
    links = {one: f"{packed.folder}/{one}" for one in ("vocab", "rows")}
    return Run(
        f"continued/{arm}/{name}", seed, (Step(("train.py",)),), plan.study.config, overrides,
        links, (first, packed),
    )  # fmt: skip


def _fine_tuning(plan: Plan, arm: str, name: str, encoder: Run) -> tuple[Run, ...]:
    """Return the run of the task from an encoder, if there is a rate."""
    (task,), languages = plan.chosen["task"], plan.config(plan.study.config).corpus.languages
    return tuple(
        tasks.task_run(
            plan, f"tasks/{task}/{rate}/{arm}/{name}", task, encoder,
            {**tasks.tuning_keys(TASKS[task], rate), "model_name": f"{arm}-{name}"}, languages,
        )
        for rate in plan.chosen["rate"]
    )  # fmt: skip


def _compared(
    arm: str, name: str, first: Run, own: Run, rows: tuple[Run, ...], tuned: tuple[Run, ...]
) -> Run:
    words = (
        "-m", "research.forgetting", f"--before={first.path}", f"--after={own.path}",
        f"--rows={','.join(one.path for one in rows)}",
        f"--output=WORKDIR/runs/{arm}/{name}/seed{own.seed}",
        *([f"--tasks={','.join(one.path for one in tuned)}"] if tuned else []),
    )  # fmt: skip
    return Run(
        f"runs/{arm}/{name}", own.seed, (Step(words, has_config=False),),
        needs=(own, *rows, *tuned), measure=_changes,
    )  # fmt: skip


def _changes(folder: pathlib.Path) -> Any:
    return artifacts.read_json(folder / forgetting.RESULTS)


NOTE = """\
Trained on text of one domain in {languages}. *relative* is the loss of quality in per cent of the
score before, as in Table 6. Above 0 the model is worse, for losses and scores alike. On the
domain's own held-out rows (*domain*) it should be below 0. *trained*, *others*: means over
languages with and without text of the domain. *change*: after minus before, nats for a loss, per
cent for a score. Cells are means over seeds, with minimum and maximum. *detectable*: the least
difference of two rows that is significant at 5 % with these seeds."""


def report(plan: Plan) -> list[str]:
    """Return a table per measure and data, and the plot of all, as Figure 5."""
    found = {
        f"{LABELS[arm]}, {label}": by_seed
        for arm in ARMS
        for name, (label, _) in RATES.items()
        if (by_seed := plan.results.of(f"runs/{arm}/{name}", plan.seeds))
    }
    parts, panels = [], []
    for key in dict.fromkeys(
        key for one in found.values() for run in one.values() for key in _keys(run)
    ):
        own = {
            label: {seed: _of(key, run) for seed, run in by_seed.items() if key in _keys(run)}
            for label, by_seed in found.items()
        }
        lines = [Line((label, str(len(one))), one) for label, one in own.items() if one]
        parts += [f"## {key.replace('/', ': ', 1)}", *_tables(key, lines, plan.chosen["languages"])]
        panels.append((key, {line.cells[0]: _means(line.by_seed) for line in lines}))
    if (path := plan.plot("forgetting")) and panels:
        plots.bars(panels, "worse by, %", path)
        parts.append("![Relative loss of quality by language](forgetting.png)")
    return [NOTE.format(languages=", ".join(plan.chosen["languages"])), *parts] if parts else []


def _keys(result: Result) -> list[str]:
    """Return the pairs of data and measure among a run's changes."""
    return list(dict.fromkeys(item.rpartition("/")[0] for item in result["changes/before"]))


def _of(key: str, result: Result) -> Result:
    """Return before, after, change and relative loss by language, for data and a measure."""
    measure = key.partition("/")[2]
    _, scale = forgetting.form_of(measure)
    made = Result(before={}, after={}, change={}, relative={})
    for item, before in result["changes/before"].items():
        data, _, language = item.rpartition("/")
        if data == key:
            after = result["changes/after"][item]
            made["before"][language] = scale * before
            made["after"][language] = scale * after
            made["change"][language] = scale * (after - before)
            made["relative"][language] = forgetting.relative(measure, before, after)
    return made


def _means(by_seed: BySeed) -> dict[str, float]:
    return {
        name: statistics.fmean(one["relative"][name] for one in by_seed.values())
        for name in next(iter(by_seed.values()))["relative"]
    }


def _tables(key: str, lines: list[Line], trained: tuple[str, ...]) -> list[str]:
    form, _ = forgetting.form_of(key.partition("/")[2])
    names = sorted({n for line in lines for one in line.by_seed.values() for n in one["before"]})
    groups = {
        "en": [one for one in names if one == "en"],
        "trained": [one for one in names if one in trained],
        "others": [one for one in names if one not in trained],
    }
    summary = [
        Column("before", mean("before"), form, has_least=False),
        Column("after", mean("after"), form, has_least=False),
        Column("relative %", mean("relative"), "{:+.1f}", show="range"),
        *(
            Column(title, mean("relative", some), "{:+.1f}", has_least=False)
            for title, some in groups.items()
        ),
    ]
    signed = form.replace(":", ":+")
    changes = [
        Column(title, mean("change", some), signed, show="range") for title, some in groups.items()
    ]
    languages = [
        Column(name, mean("relative", [name]), "{:+.1f}", has_least=False) for name in names
    ]
    short = [Line(line.cells[:1], line.by_seed) for line in lines]
    return [
        pivot.table(["", "seeds"], lines, summary),
        pivot.table(["change"], short, changes),
        pivot.table(["relative %"], short, languages, detectable=""),
    ]


STUDY = Study(
    "Continued training",
    "configs/xy_lent.py:small,DATA",
    runs,
    report,
    {
        "domain": ("tico19",),
        "languages": _TICO19,
        "steps": ("400",),
        "task": ("udpos",),
        "rate": ("3e-3",),
    },
    {"task": tuple(name for name, one in TASKS.items() if one.epochs)},
)
