"""Ablations of an encoder, one config key at a time, by exact loss and retrieval."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from research import measures, pivot
from research.pivot import Column, Line
from research.results import Result, mean
from research.study import Plan, Run, Study, encoder

NOTE = """\
*loss - unigram*: exact held-out loss minus the cross-entropy of each language's unigram
distribution, in nats per token. Below zero an encoder has learned from context. Runs of a seed have
equal masks and data order. *found*: share of translations found in sets of several languages, mean
of both directions."""
_LEARNED = {"model.position": "learned"}
_ADAMW = {"optimizer.kind": "adamw"}
# Label and changed keys of each row, by name.
CHANGES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "unchanged": ("as configured: gated bias with slopes, Muon", {}),
    "learned": ("learned positions", _LEARNED),
    "rotary": ("rotary positions", {"model.position": "rotary"}),
    "relative": ("relative bias with slopes, no gate", {"model.position": "relative"}),
    "no_slope": ("gated bias without slopes", {"model.distance_slope": 0.0}),
    "adamw": ("AdamW", _ADAMW),
    "learned_adamw": ("learned positions, AdamW", {**_LEARNED, **_ADAMW}),
    "fan_in": ("initialisation by fan-in", {"model.initializer": "fan_in"}),
    "dropout": (
        "dropout 0.1", {"model.dropout_rate": 0.1, "model.attention_dropout_rate": 0.1},
    ),
    "mask_15": ("mask rate 0.15", {"mask.rate": 0.15}),
    "mask_30": ("mask rate 0.3", {"mask.rate": 0.3}),
    "full": (
        "full softmax", {"output_layer.kind": "full", "output_layer.full_softmax_fraction": 0.0},
    ),
}  # fmt: skip


def study(title: str, config: str) -> Study:
    """Return the ablation of a config."""
    options = {"changes": tuple(CHANGES)}
    return Study(title, config, _runs, _report, options, options)


def _runs(plan: Plan) -> Iterator[Run]:
    for seed in plan.seeds or ():
        for name in plan.chosen["changes"]:
            yield encoder(plan, f"runs/{name}", seed, CHANGES[name][1], measures.encoder)


def _report(plan: Plan) -> list[str]:
    below = pivot.difference("losses/loss", "losses/unigram")
    lines, sets = [], set()
    for name in plan.chosen["changes"]:
        if by_seed := plan.results.of(f"runs/{name}", plan.seeds):
            cells = (CHANGES[name][0], str(len(by_seed)), pivot.highest(below, by_seed, "{:+.2f}"))
            lines.append(Line(cells, by_seed))
            items = [item for one in by_seed.values() for item in one.get("retrieval/forward", ())]
            of_items = [item.partition("/")[0] for item in items]
            # A corpus may have hundreds of sets of a single language pair, too many for columns.
            sets |= {one for one in of_items if of_items.count(one) > len(by_seed)}
    loss = mean("losses/loss", less="losses/unigram")
    columns = [Column("loss - unigram", loss, "{:+.3f}", show="range")]
    columns += [Column(f"{name}, found %", _found(name)) for name in sorted(sets)]
    header = ["", "seeds", "nearest language"]
    return [NOTE, pivot.table(header, lines, columns, detectable="")] if lines else []


def _found(name: str) -> Callable[[Result], float | None]:
    """Return the share of translations found in a set, mean of both directions, in per cent."""

    def of(result: Result) -> float | None:
        own = [item for item in result.get("retrieval/forward", ()) if item.startswith(f"{name}/")]
        if not own:
            return None
        both = (mean(f"retrieval/{way}", own, scale=50)(result) for way in ("forward", "backward"))
        return sum(one or 0 for one in both)

    return of
