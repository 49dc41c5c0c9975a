"""Tables and plots of the pre-trainings of `studies.xy_lent`."""

import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from builders import data, streams
from common import artifacts
from evaluation import figures
from input_pipeline.bitext import language_pairs
from input_pipeline.packed_dataset import PackedDataset
from studies.downstream import spread
from studies.xy_lent_settings import LABELS, Study
from training.metrics import read_metrics

# What a run in small should reach: nats below the unigram level, and AUC on unigram samples.
TARGETS = (0.7, 0.70)

NOTE = """\
*loss - unigram*: exact held-out loss of the generator, or of the masked LM of an encoder without
one, less that of the language's unigram distribution, nats a token; mean over languages, and the
language where it is highest. *bits/char* compares vocabularies. *AUC*, in per cent, of the
discriminator on held-out text in which tokens were replaced by unigram samples of the language, by
its own generator, or by one generator for all (*frozen*); *rises*: of the evaluations during
training, those with a higher AUC on unigram samples than the one before; *replaced*: share of
tokens that its own generator replaced; *pairs seen*: sentence pairs in all steps, of which equal
tokens are more where pairs are shorter. *least to largest* is of the seeds. Minutes are of
training, with the evaluations in it."""


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Results of a pre-training.

    Attributes:
      below: loss minus unigram of each language, nats a token.
      bits: bits per character, mean over languages.
      auc: mean over languages by corruption; empty without a discriminator.
      replaced: share of tokens that the own generator replaced; None without one.
      curve: loss minus unigram, mean over languages, by step.
      auc_curve: AUC on unigram samples, mean over languages, by step.
      minutes: of training.
      data: description of what it was trained on.
      pairs: mean number of sentence pairs that it has seen; None where it was not recorded.
    """

    below: Mapping[str, float]
    bits: float
    auc: Mapping[str, float]
    replaced: float | None
    curve: Mapping[int, float]
    auc_curve: Mapping[int, float]
    minutes: float
    data: str = ""
    pairs: float | None = None

    @property
    def loss(self) -> float:
        """Loss minus unigram, mean over languages."""
        return statistics.fmean(self.below.values())

    @property
    def rises(self) -> float | None:
        """Share of the evaluations after the first with a higher AUC than the one before."""
        values = list(self.auc_curve.values())
        changes = [later > before for before, later in itertools.pairwise(values)]
        return statistics.fmean(changes) if changes else None


def read_encoders(study: Study, arm: str) -> dict[int, Encoder]:
    """Read the finished pre-trainings of an arm, by seed."""
    records = {seed: study.record(arm, seed) for seed in study.seeds}
    return {seed: read_record(path) for seed, path in records.items() if path.exists()}


def write_record(study: Study, arm: str, seed: int) -> None:
    """Write the results of a pre-training as JSON."""
    encoder = read_encoder(study.encoder(arm, seed))
    encoder = dataclasses.replace(encoder, pairs=_pairs_seen(study, arm, seed))
    artifacts.write_json(study.record(arm, seed), dataclasses.asdict(encoder))


def _pairs_seen(study: Study, arm: str, seed: int) -> float:
    """Return the mean number of sentence pairs of a run: equal tokens of shorter ones are more."""
    config = study.config_of(arm)
    config.train.seed = seed
    store = PackedDataset.open(study.encoder(arm, seed) / "rows")
    steps = config.train.num_steps * config.data.pair_share
    return steps * streams.pairs_per_step(config, store, data.pair_shares(config, store))


def read_record(record: pathlib.Path) -> Encoder:
    """Read the results of a pre-training."""
    found = artifacts.read_json(record)
    for curve in ("curve", "auc_curve"):
        found[curve] = {int(step): value for step, value in found[curve].items()}
        found[curve] = dict(sorted(found[curve].items()))
    return Encoder(**found)


def read_encoder(folder: pathlib.Path) -> Encoder:
    """Read report and metrics of a working directory.

    The curves are of fewer held-out sequences than the end is, and their unigram level is that of
    all.
    """
    results = artifacts.read_json(folder / "report" / "results.json")
    metrics = read_metrics(folder / "train" / "metrics.jsonl")
    losses, detection = results["losses"], results["detection"]
    unigram = statistics.fmean(one["unigram"] for one in losses.values())

    def curve(name: str) -> dict[int, float]:
        return {int(one["step"]): one[name] for one in metrics if name in one}

    own = detection.get("own", {})
    return Encoder(
        below={language: one["loss"] - one["unigram"] for language, one in losses.items()},
        bits=statistics.fmean(one["bits_per_character"] for one in losses.values()),
        auc={
            # A language without replaced tokens has none.
            corruption: float(np.nanmean([one["auc"] for one in found.values()]))
            for corruption, found in detection.items()
        },
        replaced=statistics.fmean(one["replaced"] for one in own.values()) if own else None,
        curve={step: loss - unigram for step, loss in curve("eval/loss").items()},
        auc_curve=curve("rtd/unigram/auc"),
        minutes=_minutes(read_metrics(folder / "train" / "speed.jsonl")),
        data=_describe(PackedDataset.open(folder / "rows")),
    )


def _describe(data: PackedDataset) -> str:
    return (
        f"{len(data.languages)} languages, {len(language_pairs(data))} language pairs, "
        f"{data.vocab_size:,} pieces, sequences of {data.length} tokens"
    )


def _minutes(speeds: Sequence[Mapping[str, float]]) -> float:
    """Sum the times of the intervals whose ends and speeds are recorded."""
    total, last = 0.0, 0.0
    for one in speeds:
        total += (one["step"] - last) / one["steps_per_second"]
        last = one["step"]
    return total / 60


def data_note(study: Study, encoder: Encoder) -> str:
    """Sentence on what an arm, as most of them, was trained on."""
    return (
        f"{encoder.data}; {study.config.train.num_steps:,} steps of "
        f"{study.config.train.batch_size} sequences, or as many tokens of pairs; seeds "
        f"{', '.join(map(str, study.seeds))}."
    )


def encoder_table(encoders: Mapping[str, Mapping[int, Encoder]]) -> str:
    """Return a Markdown table: a line per arm, means over seeds."""
    columns = [
        "", "seeds", "loss - unigram", "least to largest", "highest language", "bits/char",
        "AUC, unigram", "least to largest", "rises", "own", "frozen", "replaced", "pairs seen",
        "minutes",
    ]  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for arm, by_seed in encoders.items():
        lines.append(f"| {LABELS[arm]} | {' | '.join(_cells(list(by_seed.values())))} |")
    return "\n".join(lines)


def _cells(some: Sequence[Encoder]) -> list[str]:
    by_language = {
        name: statistics.fmean(one.below[name] for one in some) for name in some[0].below
    }
    highest = max(by_language, key=lambda name: by_language[name])
    auc = {
        kind: [100 * one.auc[kind] for one in some if kind in one.auc]
        for kind in ("unigram", "own", "frozen")
    }
    return [
        str(len(some)),
        *spread([one.loss for one in some], "{:+.3f}"),
        f"{highest} {by_language[highest]:+.2f}",
        f"{statistics.fmean(one.bits for one in some):.3f}",
        *spread(auc["unigram"], "{:.1f}"),
        *spread([100 * one.rises for one in some if one.rises is not None], "{:.0f} %")[:1],
        *(spread(auc[kind], "{:.1f}")[0] for kind in ("own", "frozen")),
        spread([100 * one.replaced for one in some if one.replaced is not None], "{:.1f} %")[0],
        spread([one.pairs for one in some if one.pairs is not None], "{:,.0f}")[0],
        f"{statistics.fmean(one.minutes for one in some):.1f}",
    ]


def curve_table(encoders: Mapping[str, Mapping[int, Encoder]]) -> str:
    """Return a Markdown table: AUC on unigram samples in per cent, means over seeds, by step."""
    curves = {
        arm: mean_curve([one.auc_curve for one in by_seed.values()])
        for arm, by_seed in encoders.items()
    }
    steps = sorted({step for curve in curves.values() for step in curve})
    lines = [f"| step | {' | '.join(map(str, steps))} |", "|---|" + "---:|" * len(steps)]
    for arm, curve in curves.items():
        if curve:
            cells = [f"{100 * curve[step]:.1f}" if step in curve else "" for step in steps]
            lines.append(f"| {LABELS[arm]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean over curves at the steps that all have."""
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {step: statistics.fmean(curve[step] for curve in curves) for step in steps}


def targets(encoders: Mapping[int, Encoder]) -> str:
    """Sentence on what the seeds reached of `TARGETS`."""
    nats, area = TARGETS
    worst = max(one.loss for one in encoders.values())
    least = min(one.auc["unigram"] for one in encoders.values())
    return (
        f"Wanted of every seed: a generator {nats} nats or more below the unigram level (the "
        f"highest loss is {worst:+.3f}: {'met' if -worst >= nats else 'not met'}), and an AUC of "
        f"{area:.2f} or more on unigram samples (the least is {least:.3f}: "
        f"{'met' if least >= area else 'not met'})."
    )


def plot_curves(encoders: Mapping[str, Mapping[int, Encoder]], path: pathlib.Path) -> None:
    """Plot loss minus unigram and AUC on unigram samples by step: means, and the range of seeds."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    kinds: tuple[tuple[str, str, float], ...] = (
        ("curve", "held-out loss minus unigram (nats a token)", -TARGETS[0]),
        ("auc_curve", "AUC on unigram samples", TARGETS[1]),
    )
    for axes, (name, title, wanted) in zip(panels, kinds, strict=True):
        for place, (arm, by_seed) in enumerate(encoders.items()):
            _plot_arm(axes, [getattr(one, name) for one in by_seed.values()], arm, place)
        axes.axhline(wanted, color="gray", ls="--", lw=1, label="wanted")
        axes.set_xlabel("step")
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    panels[0].axhline(0, color="black", lw=0.8)
    panels[1].axhline(0.5, color="black", lw=0.8)
    panels[0].legend(fontsize=8)
    figures.save(figure, path)


def _plot_arm(axes: Any, curves: Sequence[Mapping[int, float]], arm: str, place: int) -> None:
    mean = mean_curve(curves)
    if not mean:
        return
    colour = f"C{place}"
    axes.plot(list(mean), list(mean.values()), color=colour, label=LABELS[arm])
    least, largest = ([pick(one[step] for one in curves) for step in mean] for pick in (min, max))
    axes.fill_between(list(mean), least, largest, color=colour, alpha=0.15, lw=0)
