"""Training data in English, in one language or in all; a multilingual encoder or one per language.

`SETTINGS` has XLM-R's settings of NER (Section 5.2), on NER, POS and XNLI, and its comparison with
monolingual encoders (Sections 5.3 and 5.4). Training data are parts of the development data
(`research.splits`), some 600 sentences per language and 1,494 pairs of XNLI, since we lack the full
sets. XNLI's sets are translations, so all languages are translate-train-all. Random parameters have
the pieces of either encoder, since pieces are learned from text as well. Training on English alone
freezes embeddings, so tokens of other languages keep their neighbours. Takes two hours on two
cores. The encoders are those of `xlm_r`, which may share the WORKDIR.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from research import pivot, plots, splits, stats, tasks
from research.configs.xlm_r import LANGUAGES as BY_NUMBER
from research.configs.xlm_r import LOW
from research.figure import encoder_run
from research.pivot import Column, Line, values
from research.results import BySeed, mean
from research.study import Plan, Run, Study
from research.tasks import TASKS

LANGUAGES = BY_NUMBER[7]
# Runs of research/configs/xlm_r.py with the same seven languages: text in the proportions of
# CommonCrawl and of Wikipedia.
_ONE, _WIKIPEDIA = "languages_7", "wikipedia_7"
_SHARED = {
    "task.text_pooling": "mean",
    "task.buckets": (32,),
    "model.attention_dropout_rate": 0.0,
    "train.batch_size": 16,
    "train.evaluations": 4,
}
_TUNING: dict[str, dict[str, Any]] = {
    "udpos": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
    "wikiann": {"optimizer.learning_rate": 2e-3, "train.epochs": 10.0},
    "xnli": {"optimizer.learning_rate": 1e-3, "train.epochs": 6.0},
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Training and selection data of an encoder.

    Attributes:
      label: label in tables.
      train, select: languages of the training data, and of the development data for selection:
        "en", "all", or "own" for a run per language.
      rule: value of `task.selection`.
      encoder: name of the pre-training; {} stands for its language.
      is_random: whether its parameters are random instead.
      languages: languages of the encoder.
    """

    label: str
    train: str
    select: str
    rule: str = "all_languages"
    encoder: str = _ONE
    is_random: bool = False
    languages: tuple[str, ...] = LANGUAGES


_OWN, _ALL = ("own", "own"), ("all", "all")
SETTINGS = {
    "en": Setting("one encoder, trained on English", "en", "en"),
    "en_one": Setting("the same, selected on all languages (#M = 1)", "en", "all"),
    "en_each": Setting(
        "the same, selected for each language (#M = N)", "en", "all", "each_language"
    ),
    "each": Setting("one encoder, trained on each language", *_OWN),
    "all": Setting("one encoder, trained on all languages", *_ALL),
    "all_wikipedia": Setting(
        "one encoder of Wikipedia's amounts, trained on all languages", *_ALL, encoder=_WIKIPEDIA
    ),
    "all_random": Setting("random parameters, trained on all languages", *_ALL, is_random=True),
    "alone": Setting(
        "an encoder for each language, trained on it", *_OWN, encoder="only_{}"
    ),
    "random": Setting(
        "random parameters, its pieces", *_OWN, encoder="only_{}", is_random=True, languages=LOW
    ),
    "wikipedia": Setting(
        "an encoder of as much text as Wikipedia has", *_OWN, encoder="only_wikipedia_{}",
        languages=LOW,
    ),
    "wikipedia_random": Setting(
        "random parameters, its pieces of that text", *_OWN, encoder="only_wikipedia_{}",
        is_random=True, languages=LOW,
    ),
}  # fmt: skip
# Encoders in the tables of losses, by label.
_ENCODERS = {
    "one encoder": [_ONE],
    "one encoder, of as much text as Wikipedia has": [_WIKIPEDIA],
    "an encoder for each language": [f"only_{name}" for name in LANGUAGES],
    "the same, of as much text as Wikipedia has": [f"only_wikipedia_{name}" for name in LOW],
}


def _names(task: str, setting: str, languages: Sequence[str]) -> dict[str, str]:
    """Return the runs of a setting by language; "" is a run of all languages."""
    own = [one for one in languages if one in SETTINGS[setting].languages]
    name = f"supervision/{task}/{setting}"
    return {one: f"{name}-{one}" for one in own} if SETTINGS[setting].train == "own" else {"": name}


def runs(plan: Plan) -> Iterator[Run]:
    """Plan encoders and fine-tuning, seed by seed."""
    made = splits.run(plan.chosen["tasks"], LANGUAGES)
    for seed in plan.seeds or ():
        for name in [one for some in _ENCODERS.values() for one in some]:
            yield encoder_run(plan, name, seed)
        for task in plan.chosen["tasks"]:
            pattern = splits.SPLITS[task]["test"].source
            names = plan.tested(pattern, LANGUAGES, f"add them, or leave {task} out of tasks=")
            for setting in SETTINGS:
                for language, name in _names(task, setting, names).items():
                    yield _fine_tuning(plan, task, setting, language, name, seed, names, made)


def _fine_tuning(
    plan: Plan, task: str, setting: str, language: str, name: str, seed: int,
    names: Sequence[str], made: Run,
) -> Run:  # fmt: skip
    own = SETTINGS[setting]
    encoder = encoder_run(plan, own.encoder.format(language), seed)
    languages = {"en": ("en",), "all": tuple(names), "own": (language,)}
    change = {
        **_SHARED,
        **_TUNING[task],
        **splits.keys(task),
        "optimizer.frozen": ("embeddings",) if own.train == "en" else (),
        "task.max_length": plan.config(encoder.config).store.length,
        "task.train_languages": languages[own.train],
        "task.validation_languages": languages[own.select],
        "task.test_languages": (language,) if language else tuple(names),
        "task.selection": own.rule,
        "random_init": own.is_random,
        "model_name": setting,
    }
    return tasks.task_run(plan, name, task, encoder, change, names, (made,))


NOTE = """\
Scores are on parts of the development data (NER, XNLI) or on test data (POS), as means over seeds.
*detectable*: the least significant difference at 5 % of two settings with data in the languages, by
the deviation of seeds pooled over these settings. *detectable, selection*: the least significant
change by another selection from the trainings on English, with paired seeds. Both ignore the choice
of test examples."""


def report(plan: Plan) -> list[str]:
    found = {task: some for task in plan.chosen["tasks"] if (some := _complete(plan, task))}
    if not found:
        return []
    parts = [NOTE, *(score_table(task, some) for task, some in found.items())]
    if path := plan.plot("supervision"):
        _plot(found, path)
        parts.append("![Scores by setting](supervision.png)")
    return [
        *parts,
        "Bits a character of held-out text:",
        loss_table(plan, "losses/bits_per_character", "", "{:.3f}"),
        "Loss less that of the language's unigram distribution, nats a token:",
        loss_table(plan, "losses/loss", "losses/unigram", "{:+.2f}"),
    ]


def _complete(plan: Plan, task: str) -> dict[str, BySeed]:
    """Return the results of each setting, merged over its runs, for seeds with all runs."""
    metric = TASKS[task].metric
    found: dict[str, BySeed] = {}
    for setting in SETTINGS:
        of_runs = _names(task, setting, LANGUAGES).values()
        found[setting] = plan.results.merged(list(of_runs), plan.seeds)
    languages = {
        name for by_seed in found.values() for one in by_seed.values() for name in one[metric]
    }
    made: dict[str, BySeed] = {}
    for setting, by_seed in found.items():
        wanted = languages & set(SETTINGS[setting].languages)
        whole = {seed: one for seed, one in by_seed.items() if set(one[metric]) == wanted}
        if wanted and whole:
            made[setting] = whole
    return made


def _groups(task: str, found: dict[str, BySeed]) -> dict[str, list[str]]:
    """Return the languages of a task, and the low-resource ones among them."""
    metric = TASKS[task].metric
    known = {name for by_seed in found.values() for one in by_seed.values() for name in one[metric]}
    names = [name for name in LANGUAGES if name in known]
    low = [name for name in LOW if name in known]
    return {"mean": names, f"mean of {', '.join(low)}": low} if len(low) > 1 else {"mean": names}


def score_table(task: str, found: dict[str, BySeed]) -> str:
    """Return a table in per cent, a line per setting; settings of some languages have no mean."""
    metric, groups = TASKS[task].metric, _groups(task, found)
    of = {name: [name] for name in groups["mean"]}
    columns = [Column(title, mean(metric, names, scale=100)) for title, names in of.items()]
    columns += [
        Column(title, mean(metric, names, scale=100), show="cell")
        for title, names in groups.items()
    ]
    lines = {
        setting: Line(
            (SETTINGS[setting].label, str(len(by_seed))),
            by_seed,
            # Transfer from English varies several times as much over seeds. Its settings are
            # selections from one training, not independent samples.
            is_settled=SETTINGS[setting].train != "en",
        )
        for setting, by_seed in found.items()
    }
    selection = [_selection(column, found) for column in columns]
    counts = {
        name: count
        for by_seed in found.values()
        for one in by_seed.values()
        for name, count in one["examples/test"].items()
    }
    examples = [
        f"{sum(counts.get(one, 0) for one in names):,}"
        for names in (*of.values(), *groups.values())
    ]
    return pivot.table(
        [TASKS[task].title, "seeds"], list(lines.values()), columns,
        more=[["detectable, selection", "", *selection], ["examples", "", *examples]],
    )  # fmt: skip


def _selection(column: Column, found: dict[str, BySeed]) -> str:
    """Format the least detectable change by another selection from the trainings on English."""
    base = values(column.of, found.get("en", {}))
    least = []
    for setting in ("en_one", "en_each"):
        own = values(column.of, found.get(setting, {}))
        changes = [own[seed] - base[seed] for seed in own if seed in base]
        if (one := stats.least_detectable_change(changes)) is not None:
            least.append(one)
    # of the most variable one: a selection of the same parameters does not vary
    return f"{max(least):.1f}" if least else ""


def loss_table(plan: Plan, metric: str, less: str, form: str) -> str:
    """Return a table of the multilingual and the monolingual encoders."""
    columns = [Column(name, mean(metric, [name], less=less), form) for name in LANGUAGES]
    lines = [
        Line((label,), plan.results.merged([f"runs/{name}" for name in names], plan.seeds))
        for label, names in _ENCODERS.items()
    ]
    return pivot.table([""], lines, columns, detectable="")


def _plot(found: dict[str, dict[str, BySeed]], path) -> None:
    panels = []
    for task, of_task in found.items():
        for names in _groups(task, of_task).values():
            of = mean(TASKS[task].metric, names, scale=100)
            drawn = {
                SETTINGS[setting].label: {0.0: own}
                for setting, by_seed in of_task.items()
                if (own := list(values(of, by_seed).values()))
            }
            panels.append(plots.Panel(f"{TASKS[task].title}: {', '.join(names)}", drawn))
    plots.places(panels, path)


STUDY = Study(
    "Training data in English, in each language, in all",
    "research/configs/xlm_r.py:reference,DATA",
    runs,
    report,
    {"tasks": tuple(_TUNING)},
    {"tasks": tuple(_TUNING)},
)
