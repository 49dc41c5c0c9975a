"""XY-LENT at a small size: learning, ablations, Table 2's arms, sampling of pairs, fine-tuning.

An arm is the config with the changes of `CHANGES`. All arms have equal steps and tokens.
`figures=joint` has only the arms of that group. The generator or masked LM is scored by exact loss.
Discriminators are scored by AUC on the samples of their own generator, on unigram samples, and on
samples of one generator for all, that of `small` under seed 0. Encoders with another vocabulary
have no score on the last. The study then fine-tunes the arms of `TUNED` groups on English. The
learning rate of a task and an arm is the one of `rates` with the best English development score
under the first seed. Other seeds use only that rate. Models of XNLI also answer AmericasNLI, whose
languages no encoder has seen. Takes some hours on two cores.
"""

import itertools
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from configs.xy_lent import ENGLISH, MLM
from input_pipeline.bitext import language_pairs
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.tasks import files
from research import measures, pivot, plots, tasks
from research.configs import mmbert
from research.pivot import Column, Line
from research.results import BySeed, Result, mean
from research.study import Plan, Run, Step, Study, encoder
from research.tasks import TASKS
from xlm.common import artifacts
from xlm.experiment import data, streams
from xlm.launch import grids
from xlm.training.metrics import read_metrics

REFERENCE = "small"
# Changes to `configs/xy_lent.py:small`, by arm.
CHANGES: dict[str, dict[str, Any]] = {
    "small": {},
    "small_turns": {"data.kinds": "turns", "train.log_every": 11},  # odd, so both tasks are logged
    "small_mlm": MLM,
    "small_english": ENGLISH,
    "small_2x": {"vocab.target_size": 20_000},
    "small_m2m": {"data.pair_sampling": "m2m"},
    "small_proportional": {"data.pair_sampling": "proportional"},
    "small_shared": {"replaced_token.embeddings": "shared"},
    "small_separate": {"replaced_token.embeddings": "separate"},
    "small_generator2": {"replaced_token.generator_layers": 2},
    "small_lambda10": {"replaced_token.weight": 10.0},
    "small_narrow": {"replaced_token.generator_width": 0.5},
    "small_narrower": {"replaced_token.generator_width": 0.25},
    "small_corrective": {"replaced_token.corrective_weight": 1.0},
    "small_cold": {"replaced_token.temperature": 0.7},
    "small_spans": {"mask.span": 3.0},
    "small_rates": {"mask.rate": 0.3, "mask.final_rate": 0.1},  # a mean of 0.2, as in small
    "small_modern": mmbert.RUNS["modern"],
    "small_adamw": {"optimizer.kind": "adamw", "optimizer.learning_rate": 3e-3},
    "small_knn": {"output_layer.kind": "knn"},
}
# Label of each arm.
LABELS = {
    "small": "RTD, many-to-many pairs by Eq. 2",
    "small_turns": "MRTD and TRTD in turns",
    "small_english": "pairs with English only",
    "small_mlm": "MLM + TLM",
    "small_2x": "twice the vocabulary",
    "small_m2m": "pairs by Eq. 1",
    "small_proportional": "pairs in proportion",
    "small_shared": "shared embeddings",
    "small_separate": "separate embeddings",
    "small_lambda10": "lambda 10",
    "small_adamw": "AdamW",
    "small_generator2": "generator of two layers",
    "small_narrow": "generator of half the width",
    "small_narrower": "generator of a fourth of the width",
    "small_corrective": "with COCO-LM's correction",
    "small_cold": "samples at temperature 0.7",
    "small_spans": "spans of 3 tokens masked",
    "small_rates": "mask rate 0.3 to 0.1",
    "small_modern": "ModernBERT's blocks",
}
# Title and arms of each group, which has a table and a plot.
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "learning": ("Does it learn?", ("small",)),
    "ablation": (
        "Embeddings, lambda, optimizer, depth of the generator",
        (
            "small", "small_shared", "small_separate", "small_lambda10", "small_adamw",
            "small_generator2",
        ),
    ),
    "table2": (
        "The arms of Table 2: pairs, objective, vocabulary",
        ("small", "small_english", "small_mlm", "small_2x"),
    ),
    "sampling": ("Sampling of language pairs", ("small", "small_m2m", "small_proportional")),
    "joint": ("Both tasks in every step, or in turns at equal tokens", ("small", "small_turns")),
    "better": (
        "Beyond the paper: the generator's width, correction, masks, samples, blocks",
        (
            "small", "small_narrow", "small_narrower", "small_corrective", "small_cold",
            "small_spans", "small_rates", "small_modern",
        ),
    ),
}  # fmt: skip
# groups with fine-tuned encoders
TUNED = ("table2", "sampling", "joint", "better")
# Least values of small runs: nats below the unigram level, and AUC on unigram samples.
TARGETS = (0.7, 0.70)

# 1. Runs.


def runs(plan: Plan) -> Iterator[Run]:
    """Plan arms and their tasks, seed by seed."""
    for seed in plan.seeds or ():
        for arm in _arms(plan):
            own = arm_run(plan, arm, seed)
            yield own
            if any(arm in GROUPS[group][1] for group in TUNED):
                for task in plan.chosen["tasks"]:
                    yield from _tasks(plan, task, arm, own)


def _arms(plan: Plan) -> tuple[str, ...]:
    """Return the arms of the chosen groups (`figures`), or else the chosen arms."""
    of_figures = (GROUPS[name][1] for name in plan.chosen["figures"])
    return tuple(dict.fromkeys(itertools.chain(*of_figures))) or plan.chosen["arms"]


def arm_run(plan: Plan, arm: str, seed: int) -> Run:
    """Return the run of an arm, also scored on samples of the reference's generator."""
    config = plan.config(plan.study.config, CHANGES[arm])
    reference = plan.config(plan.study.config, CHANGES[REFERENCE])
    needs: tuple[Run, ...] = ()
    more: dict[str, Any] = {}
    # discriminators with the vocabulary of the reference
    is_scored = config.objective == "replaced_token"
    if is_scored and grids.data_folder(config) == grids.data_folder(reference):
        more["evaluation.frozen_generator"] = f"WORKDIR/encoders/{REFERENCE}/seed0"
        if (arm, seed) != (REFERENCE, 0):
            needs = (arm_run(plan, REFERENCE, 0),)
    steps = (Step(("train.py",)), Step(("evaluate.py",), more))

    def measure(folder: pathlib.Path) -> dict[str, Any]:
        return learned(folder) | _pairs_seen(config, seed, folder)

    name = f"encoders/{arm}"
    return encoder(plan, name, seed, CHANGES[arm], measure, steps=steps, needs=needs)


def learned(folder: pathlib.Path) -> dict[str, Any]:
    """Return the results of a pre-training: final scores, and curves by step.

    Curves have fewer held-out sequences than final scores. Their unigram level is over all.
    """
    results = artifacts.read_json(folder / "report" / "results.json")
    metrics = read_metrics(folder / "train" / "metrics.jsonl")
    losses, detection = results["losses"], results["detection"]
    unigram = statistics.fmean(one["unigram"] for one in losses.values())

    def curve(name: str, level: float = 0.0) -> dict[str, float]:
        return {str(int(one["step"])): one[name] - level for one in metrics if name in one}

    own, rows = detection.get("own", {}), PackedDataset.open(folder / "rows")
    on_pairs = [one for of in results.get("pair_detection", {}).values() for one in of.values()]
    aucs = [one["auc"] for one in on_pairs if one["auc"] is not None]
    return {
        "below": {language: one["loss"] - one["unigram"] for language, one in losses.items()},
        "bits": statistics.fmean(one["bits_per_character"] for one in losses.values()),
        "auc": {
            # no AUC for a language without replaced tokens
            corruption: float(np.nanmean([one["auc"] for one in found.values()]))
            for corruption, found in detection.items()
        },
        "replaced": statistics.fmean(one["replaced"] for one in own.values()) if own else None,
        "pair_auc": statistics.fmean(aucs) if aucs else None,
        "tlm": statistics.fmean(one["generator_loss"] for one in on_pairs) if on_pairs else None,
        "curve": curve("eval/loss", unigram),
        "auc_curve": curve("rtd/unigram/auc"),
        "minutes": measures.minutes(folder),
        "data": (
            f"{len(rows.languages)} languages, {len(language_pairs(rows))} language pairs, "
            f"{rows.vocab_size:,} pieces, sequences of {rows.length} tokens"
        ),
    }


def _pairs_seen(config: Any, seed: int, folder: pathlib.Path) -> dict[str, float]:
    """Return the mean number of sentence pairs of a run; at equal tokens shorter pairs are more."""
    config.train.seed = seed
    dataset = PackedDataset.open(folder / "rows")
    of_step = streams.pairs_per_step(config, dataset, data.pair_shares(config, dataset))
    return {"pairs": config.train.num_steps * of_step}


def _names(plan: Plan, task: str, arm: str) -> dict[str, str]:
    """Return the runs of a task from an arm, by learning rate; "" for retrieval."""
    rates = plan.chosen["rates"] if TASKS[task].epochs else ("",)
    return {rate: "/".join(filter(None, ("tasks", task, arm, rate))) for rate in rates}


def _chosen(plan: Plan, task: str, arm: str) -> str | None:
    names = _names(plan, task, arm)
    return plan.best(names, "selected/value") if TASKS[task].epochs else ""


def _tasks(plan: Plan, task: str, arm: str, own: Run) -> Iterator[Run]:
    names, one = _names(plan, task, arm), TASKS[task]
    for rate in plan.choices(names, "selected/value", own.seed or 0) if one.epochs else names:
        config = plan.config(plan.study.config, CHANGES[arm])
        known = config.corpus.languages
        if one.epochs:
            change = tasks.tuning_keys(one, rate)
        else:
            change = tasks.retrieval_keys(config.model.num_layers)
        if one.unseen and (unseen := _unseen(plan, one.unseen[1], known)):
            tested = plan.tested(one.test, known, f"leave {task} out of tasks=")
            patterns = (one.test, one.unseen[1])
            change["task.test"] = tuple(each.format(files.PLACEHOLDER) for each in patterns)
            change["task.test_languages"] = (*tested, *unseen)
        yield tasks.task_run(plan, names[rate], task, own, change, known)


def _unseen(plan: Plan, pattern: str, known: Sequence[str]) -> list[str]:
    """Return the languages of test files that are not in the corpus."""
    assert plan.data
    found = files.languages_of_names(plan.data, pattern.format(files.PLACEHOLDER))
    return sorted(found - set(known))


# 2. Report.

NOTE = """\
*loss - unigram*: exact held-out loss of the generator or masked LM, minus that of the language's
unigram distribution, in nats per token. It is a mean over languages, with the highest language.
*bits/char* compares vocabularies. *AUC* is that of the discriminator on held-out text, in per cent.
Tokens are replaced by unigram samples of the language, by its own generator, or by one generator
for all (*frozen*). On held-out *pairs* its own generator replaces them, with the loss *TLM loss*.
*rises*: share of evaluations during training with a higher AUC on unigram samples than the one
before. *replaced*: share of tokens that its own generator replaced. *pairs seen*: sentence pairs in
all steps; with equal tokens, shorter pairs are more. *least to largest* is over seeds. Minutes are
of training, with its evaluations."""
_TUNING_NOTE = f"""\
Trained on English with frozen embeddings, selected on English development data, at the best rate of
the first seed. In per cent, means over seeds. *mean but en*: zero-shot mean over languages without
training data. *against the first*: its difference from {LABELS[REFERENCE]}, seed by seed.
*transfer gap*: English minus the mean of the others (Table 4); less is better. WikiANN's English
score is on the selection data, so its gap is overstated. Models of XNLI also answer AmericasNLI
(Table 5), which has no English. Chance is 33.3 in both. Tatoeba: states after two thirds of the
layers, fixed beforehand. *detectable*: the least difference of two arms that is significant at 5 %,
by the deviation of seeds pooled over arms. It ignores the choice of test examples."""


def report(plan: Plan) -> list[str]:
    found = {arm: plan.results.of(f"encoders/{arm}", plan.seeds) for arm in _arms(plan)}
    groups = plan.chosen["figures"] or tuple(GROUPS)
    parts = []
    for group in groups:
        title, arms = GROUPS[group]
        own = {arm: found[arm] for arm in arms if found.get(arm)}
        if not own or (len(own) == 1 and len(arms) > 1):
            continue
        parts += [f"## {title}", encoder_table(own), "AUC on unigram samples by step:"]
        parts.append(curve_table(own))
        if path := plan.plot(group):
            _plot(own, path)
            parts.append(f"![AUC and loss by step]({group}.png)")
        parts += _task_tables(plan, [arm for arm in arms if arm in found])
    if not parts:
        return []
    first = next(one for by_seed in found.values() for one in by_seed.values())
    return [f"{first.one('data')}.", NOTE, *parts, *_rate_table(plan)]


def _rises(result: Result) -> float | None:
    """Return the share of evaluations with a higher AUC than the one before, in per cent."""
    curve = [value for _, value in sorted(_curve(result, "auc_curve").items())]
    changes = [later > before for before, later in itertools.pairwise(curve)]
    return 100 * statistics.fmean(changes) if changes else None


def _curve(result: Result, metric: str) -> dict[int, float]:
    return {int(step): value for step, value in result.get(metric, {}).items()}


def encoder_table(found: Mapping[str, BySeed]) -> str:
    """Return a table with a line per arm."""
    header = ["", "seeds", "highest language"]
    lines = [
        Line(
            (
                LABELS[arm], str(len(by_seed)),
                pivot.highest(lambda one: one["below"], by_seed, "{:+.2f}"),
            ),
            by_seed,
        )
        for arm, by_seed in found.items()
    ]  # fmt: skip
    columns = [
        Column("loss - unigram", mean("below"), "{:+.3f}", show="range"),
        Column("bits/char", mean("bits"), "{:.3f}"),
        Column("AUC, unigram", mean("auc", ["unigram"], scale=100), show="range"),
        Column("rises", _rises, "{:.0f} %"),
        Column("own", mean("auc", ["own"], scale=100)),
        Column("frozen", mean("auc", ["frozen"], scale=100)),
        Column("pairs", mean("pair_auc", scale=100)),
        Column("TLM loss", mean("tlm"), "{:.3f}"),
        Column("replaced", mean("replaced", scale=100), "{:.1f} %"),
        Column("pairs seen", mean("pairs"), "{:,.0f}"),
        Column("minutes", mean("minutes")),
    ]
    return pivot.table(header, lines, columns, detectable="")


def curve_table(found: Mapping[str, BySeed]) -> str:
    """Return a table of the AUC on unigram samples by step, in per cent."""
    curves = [_curve(one, "auc_curve") for by_seed in found.values() for one in by_seed.values()]
    steps = sorted({step for curve in curves for step in curve})
    lines = [Line((LABELS[arm],), by_seed) for arm, by_seed in found.items()]
    drawn = [one for one in lines if any("auc_curve" in each for each in one.by_seed.values())]
    columns = [Column(str(s), mean("auc_curve", [str(s)], scale=100)) for s in steps]
    return pivot.table(["step"], drawn, columns, detectable="")


def _task_tables(plan: Plan, arms: Sequence[str]) -> list[str]:
    """Return the tables of each task that several arms score.

    Languages that no encoder has seen have their own table.
    """
    parts = []
    known = set(plan.config(plan.study.config).corpus.languages)
    for task, one in TASKS.items():
        rates = {arm: _chosen(plan, task, arm) for arm in arms}
        found = {
            arm: by_seed
            for arm, rate in rates.items()
            if rate is not None
            and (by_seed := plan.results.of(_names(plan, task, arm)[rate], plan.seeds))
        }
        if len(found) < 2:
            continue
        names = list(next(iter(next(iter(found.values())).values()))[one.metric])
        titles = {one.title: [name for name in names if name in known]}
        if one.unseen:
            titles[one.unseen[0]] = [name for name in names if name not in known]
        for title, languages in titles.items():
            if languages:
                parts.append(_score_table(title, task, found, rates, languages))
    return parts


def _score_table(
    title: str, task: str, found: Mapping[str, BySeed], rates: Mapping[str, str | None],
    languages: Sequence[str],
) -> str:  # fmt: skip
    first = next(iter(found.values()))

    def gap(result: Result) -> float | None:
        return tasks.transfer_gap(tasks.scores(result, task)) if "en" in languages else None

    columns = tasks.columns(task, languages, "against the first")
    columns.append(Column("transfer gap", gap, show="range"))
    lines = [
        Line(
            (LABELS[arm], rates[arm] or "", str(len(by_seed))),
            by_seed,
            {} if by_seed is first else first,
        )
        for arm, by_seed in found.items()
    ]
    counts = next(iter(first.values()))["examples/test"]
    examples = ["test examples", "", "", *(f"{counts[name]:,}" for name in languages), *[""] * 6]
    return pivot.table([title, "rate", "seeds"], lines, columns, more=[examples])


def _rate_table(plan: Plan) -> list[str]:
    """Return the explanation of the tables, and the scores behind the chosen rates."""
    rows = {
        f"{one.title}: {LABELS[arm]}": _names(plan, task, arm)
        for task, one in TASKS.items()
        for arm in _arms(plan)
        if one.epochs
    }
    title = "English development data"
    table = tasks.choice_table(plan, title, "rates", "selected/value", rows)
    return ["## Fine-tuning", _TUNING_NOTE, table] if table else []


def _plot(found: Mapping[str, BySeed], path: pathlib.Path) -> None:
    """Plot loss minus unigram and AUC on unigram samples by step, with the range of seeds."""
    panels = []
    for metric, title, wanted in (
        ("curve", "held-out loss minus unigram (nats a token)", -TARGETS[0]),
        ("auc_curve", "AUC on unigram samples", TARGETS[1]),
    ):
        series = {}
        for arm, by_seed in found.items():
            curves = [_curve(one, metric) for one in by_seed.values()]
            steps = sorted(set.intersection(*map(set, curves)))
            series[LABELS[arm]] = {step: [curve[step] for curve in curves] for step in steps}
        panels.append(plots.Panel(title, series, {"wanted": [wanted]}, x="step", is_band=True))
    plots.lines(panels, path)


STUDY = Study(
    "XY-LENT in small",
    "configs/xy_lent.py:small,DATA",
    runs,
    report,
    {"arms": tuple(LABELS), "figures": (), "tasks": tuple(TASKS), "rates": ("1e-3", "3e-3")},
    {"arms": tuple(LABELS), "figures": tuple(GROUPS), "tasks": tuple(TASKS)},
)
