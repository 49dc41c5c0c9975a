"""Does robust sampling find planted defects? (XY-LENT Section 6.6, Figure 4)

`research.planted_defects` damages three pairs of `folder`, by shuffled sentences, near copies and a
wrong language. For every seed, the study trains three runs on DATA and three on the damaged corpus,
with one vocabulary:

- `baseline`: the base distribution (`robust.rho` 0), which records the losses of the pairs.
- `robust`: re-weighted in ten phases, with rho 0.05 and no pair below 0.2 of its base weight.
- `excess`: the same, by the losses minus those of the `baseline` with the same corpus and seed.
  This may hide a pair that is hard for both runs.

`xlm pair-weights` reports each run. The tables have the ranks of the planted pairs among all pairs,
by weight and by loss beyond their languages (`xlm.evaluation.pair_report`), with those of the same
pairs undamaged. They also have the extreme pairs of the undamaged corpus, and the held-out scores
with and without re-weighting. Takes two hours on two cores.
"""

import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from research import measures, pivot
from research.pivot import Column, Line
from research.planted_defects import Defect, parse
from research.results import BySeed, Result, mean
from research.study import TEXT_OF_RECORDS, Plan, Run, Step, Study, encoder
from xlm.common import artifacts
from xlm.evaluation.pair_report import ranked_by_excess
from xlm.objectives.best_response import best_response, shrunk

# Pairs of one folder, so a damaged file is all text of its language pair. There are few of them, so
# the model learns to use translations.
_CORPUS = {
    "corpus.parallel": ("tatoeba_bitext/*-*.tsv.xz",),
    "corpus.languages": ("de", "en", "es", "fr", "it", "nl"),
    "data.pair_share": 0.875,
}
CORPORA = {"planted": "damaged", "clean": "as it is"}
_ROBUST = {
    "robust.num_phases": 10,
    "robust.rho": 0.05,
    "robust.min_ratio": 0.2,
    # Means of a pair's last hundred batches, since single sentences would add too much noise.
    "robust.rate": 0.01,
}
# Label and changed keys of each run.
KINDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "baseline": ("by loss, not re-weighted", {**_ROBUST, "robust.rho": 0.0}),
    "robust": ("robust, without a baseline", _ROBUST),
    "excess": ("robust, losses less the baseline's", _ROBUST),
}
# Titles and number formats of the held-out scores, by metric.
SCORES = {
    "eval/loss": ("generator's loss, nats a token", "{:.3f}"),
    "rtd/unigram/auc": ("AUC on unigram samples", "{:.3f}"),
}
NUM_ENDS = 10


def _defects(plan: Plan) -> list[Defect]:
    return [parse(one) for one in plan.chosen["defects"]]


def runs(plan: Plan) -> Iterator[Run]:
    """Plan both corpora, and their runs, seed by seed."""
    words = (
        "-m", "research.planted_defects", "--data=DATA", "--output=WORKDIR/corpus",
        f"--folder={plan.chosen['folder'][0]}", f"--defects={','.join(plan.chosen['defects'])}",
    )  # fmt: skip
    corpus = Run("corpus", None, (Step(words, has_config=False),))
    build, pack = Step(("build_vocab.py",)), Step(("prepare_data.py",))
    clean = Run("data/clean", None, (build, pack), plan.study.config, plan.overrides)
    # with the vocabulary of the undamaged text
    own = {**plan.overrides, "corpus.root": corpus.path}
    links = {"vocab": f"{clean.folder}/vocab"}
    planted = Run("data/planted", None, (pack,), plan.study.config, own, links, (corpus, clean))
    for seed in plan.seeds or ():
        for name, rows in (("planted", planted), ("clean", clean)):
            root = {"corpus.root": corpus.path} if name == "planted" else {}
            made: dict[str, Run] = {}
            for kind, (_, keys) in KINDS.items():
                change = {**keys, **root}
                needs = (made["baseline"],) if kind == "excess" else ()
                for one in needs:
                    change["robust.baseline"] = f"{one.path}/train/pair_weights.json"
                made[kind] = encoder(
                    plan, f"runs/{name}/{kind}", seed, change, _measure, data=rows, needs=needs,
                    steps=(Step(("train.py",)), Step(("-m", "xlm", "pair-weights"))),
                )  # fmt: skip
                yield made[kind]


def _measure(folder: pathlib.Path) -> dict[str, Any]:
    found = artifacts.read_json(folder / "report" / "pairs" / "pair_weights.json")
    kept = {name: found[name] for name in ("pairs", "excess", "divergences")}
    return {**measures.last_scores(folder, tuple(SCORES)), **kept}


_NOTE = """\
Ranks of the damaged pairs among all {count} pairs, for each seed: 1 is the most up-weighted pair,
{count} the most down-weighted. Then the mean loss and the mean p / q in the last phase. A defect is
found if its pair is at an end and the same undamaged pair, in the line below, is not. Without
re-weighting, pairs are ranked by loss."""
_EXCESS_NOTE = """\
Ranks by the loss beyond the prediction from other pairs of both languages, 1 for the highest, and
the mean of that loss. Easy sentences, such as copies, are at the other end."""


_SHRUNK_NOTE = """\
The last phase solved again, from losses as they are and from shrunk losses (`robust.shrink`): rank
and p / q of each seed. The standard error of a loss is e_i, with e_i^2 = s^2 mean(q) / q_i. s is
the deviation between seeds, pooled over pairs. Base weights q replace counts of examples."""


def report(plan: Plan) -> list[str]:
    found = {
        (corpus, kind): by_seed
        for kind in KINDS
        for corpus in CORPORA
        if (by_seed := plan.results.of(f"runs/{corpus}/{kind}", plan.seeds))
    }
    if not found:
        return []
    first = next(iter(next(iter(found.values())).values()))
    parts = [
        _NOTE.format(count=len(first["pairs/ratio"])),
        _rank_table(plan, found, _weight),
        _EXCESS_NOTE,
        _rank_table(plan, found, _excess),
        *_shrunk_table(plan, found),
    ]
    for kind, (title, _) in KINDS.items():
        if clean := found.get(("clean", kind)):
            parts.append(f"## Ends of the corpus as it is: {title}")
            if kind != "baseline":
                parts.append(_ends({seed: one["pairs/ratio"] for seed, one in clean.items()}))
            of_seeds = {seed: ranked_by_excess(one["excess"]) for seed, one in clean.items()}
            parts += ["Beyond their languages:", _ends(of_seeds)]
    columns = [
        Column(title, mean(name), form, show="cell") for name, (title, form) in SCORES.items()
    ]
    lines = [
        Line((KINDS[kind][0], CORPORA[corpus]), by_seed)
        for (corpus, kind), by_seed in found.items()
    ]
    return [*parts, "## Cost", pivot.table(["run", "corpus"], lines, columns)]


def _rank_table(
    plan: Plan,
    found: Mapping[tuple[str, str], BySeed],
    cell: Callable[[str, Sequence[Result]], str],
) -> str:
    """Return a table with a cell per damaged pair and a line per run."""
    defects = {_name(one): one for one in _defects(plan)}
    titles = [
        f"{name}: {one.kind.replace('_', ' ')} {one.language}".rstrip()
        for name, one in defects.items()
    ]
    rows = [
        [
            KINDS[kind][0], CORPORA[corpus], str(len(by_seed)),
            *(cell(name, list(by_seed.values())) for name in defects),
        ]
        for (corpus, kind), by_seed in found.items()
    ]  # fmt: skip
    return pivot.markdown(["run", "corpus", "seeds", *titles], rows, texts=2)


def _shrunk_table(plan: Plan, found: Mapping[tuple[str, str], BySeed]) -> list[str]:
    """Return a table of the last phase with and without shrinkage, explained; [] for one seed."""
    robust = {corpus: list(found.get((corpus, "robust"), {}).values()) for corpus in CORPORA}
    rows = []
    for corpus, some in robust.items():
        pairs = sorted(some[0]["pairs/ratio"]) if len(some) > 1 else []
        if not pairs or not all(_name(one) in pairs for one in _defects(plan)):
            continue
        losses = np.array([[one["pairs/loss"][pair] for pair in pairs] for one in some], float)
        base = np.array([some[0]["pairs/base"][pair] for pair in pairs])
        errors = between_seeds(losses) * np.sqrt(base.mean() / base)
        for title in ("as they are", "shrunk"):
            cells: dict[str, list[str]] = {_name(one): [] for one in _defects(plan)}
            for values in losses:
                used = shrunk(values, errors) if title == "shrunk" else values
                rho, least = _ROBUST["robust.rho"], _ROBUST["robust.min_ratio"]
                ratios = best_response(used, base, rho, min_ratio=least).weights / base
                order = [pairs[i] for i in np.lexsort((pairs, -values, -np.round(ratios, 9)))]
                for pair, cell in cells.items():
                    cell.append(f"{order.index(pair) + 1} ({ratios[pairs.index(pair)]:.2f})")
            rows.append([CORPORA[corpus], title, *map(", ".join, cells.values())])
    heads = ["corpus", "losses", *map(_name, _defects(plan))]
    return [_SHRUNK_NOTE, pivot.markdown(heads, rows, texts=2)] if rows else []


def between_seeds(losses: np.ndarray) -> float:
    """Return the deviation of a loss between seeds, from losses [seeds, pairs], pooled over pairs.

    The mean of each seed is subtracted first, since all pairs share it.
    """
    centred = losses - losses.mean(1, keepdims=True)
    left = centred - centred.mean(0)
    return float(np.sqrt((left**2).sum() / ((len(losses) - 1) * (losses.shape[1] - 1))))


def _name(defect: Defect) -> str:
    """Return the name of a pair in the packed dataset, which sorts languages."""
    return "-".join(sorted(defect.pair.split("-")))


def _weight(pair: str, some: Sequence[Result]) -> str:
    if not all(pair in one["pairs/ratio"] for one in some):
        raise ValueError(f"the runs have no pair {pair}; plant defects in pairs of the config")
    places = ", ".join(str(list(one["pairs/ratio"]).index(pair) + 1) for one in some)
    losses = [loss for one in some if (loss := one["pairs/loss"][pair]) is not None]
    loss = f"{statistics.fmean(losses):.3f}" if losses else "not seen"
    return f"{places}; {loss}; {statistics.fmean(one['pairs/ratio'][pair] for one in some):.2f}"


def _excess(pair: str, some: Sequence[Result]) -> str:
    ranked = [ranked_by_excess(one["excess"]) for one in some]
    if not all(pair in one for one in ranked):
        return "no other pairs"
    places = ", ".join(str(list(one).index(pair) + 1) for one in ranked)
    return f"{places}; {statistics.fmean(one[pair] for one in ranked):+.2f}"


def _ends(by_seed: Mapping[int, Mapping[str, float]]) -> str:
    """Return a table of the pairs at both ends for each seed, the most extreme first."""
    rows = []
    for seed, values in by_seed.items():
        pairs = list(values)
        ends = [pairs[:NUM_ENDS], pairs[::-1][:NUM_ENDS]]
        rows.append(
            [str(seed), *(", ".join(f"{p} {values[p]:.2f}" for p in some) for some in ends)]
        )
    return pivot.markdown(["seed", "highest", "lowest"], rows, texts=3)


STUDY = Study(
    "Planted defects",
    "configs/xy_lent.py:small,DATA",
    runs,
    report,
    {
        "folder": ("tatoeba_bitext",),
        "defects": ("shuffled:de-fr", "near_copies:en-nl", "wrong_language:es-it:fi"),
    },
    overrides={**TEXT_OF_RECORDS, **_CORPUS},
)
