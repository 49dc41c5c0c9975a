"""The last lines of a command: its main numbers, and the paths of all others."""

import pathlib
import statistics
from collections.abc import Iterable

from absl import flags

from xlm.common import artifacts, html_report, tables
from xlm.training.clock import GOODPUT, PARTS
from xlm.training.metrics import read_metrics


def advice() -> str:
    """Say how much memory the run of --config needs, after it ran out."""
    from xlm.experiment import memory  # imports more than training needs

    return memory.advice(flags.FLAGS.config)


def show(lines: Iterable[tuple[str, str]]) -> None:
    print(*(f"{name + ':':<16}{text}" for name, text in lines), sep="\n")


def of_training(folder: pathlib.Path) -> Iterable[tuple[str, str]]:
    """Yield steps, time, speed and held-out loss of a run, by its records in `folder`."""
    if times := read_metrics(folder / GOODPUT):
        minutes = sum(times[-1][part] for part in PARTS) / 60
        yield "trained", f"{times[-1]['step']:,} steps in {minutes:.1f} minutes"
    records = [read_metrics(folder / name) for name in ("speed.jsonl", "metrics.jsonl")]
    if speeds := [one["tokens_per_second"] for one in records[0] if "tokens_per_second" in one]:
        yield "speed", f"{statistics.median(speeds):,.0f} tokens/s"
    if losses := [one["eval/loss"] for one in records[1] if "eval/loss" in one]:
        yield "held-out loss", f"{losses[-1]:.3f} nats a token"
    yield "run", str(folder.absolute())


def of_report(path: pathlib.Path) -> Iterable[tuple[str, str]]:
    """Yield loss against unigram, the language of least gain, and retrieval against chance."""
    results = artifacts.read_object(path.parent / "results.json")
    rows = [(language, one["loss"], one["unigram"]) for language, one in results["losses"].items()]
    if rows := [one for one in rows if None not in one]:
        _, losses, unigrams = zip(*rows, strict=True)
        yield "held-out loss", _against(tables.mean_of(losses), tables.mean_of(unigrams))
        language, loss, unigram = max(rows, key=lambda one: one[1] - one[2])
        yield "worst language", f"{language}: {_against(loss, unigram)}"
    for name, found in results["retrieval"].items():
        share, chance = (
            tables.mean_of(one[k] for one in found.values()) for k in ("forward", "chance")
        )
        yield "retrieval", f"{name}: {share:.1%} of sentences, chance {chance:.1%}"
    yield "report", str(path.with_name(html_report.PAGE).absolute())


def _against(loss: float, unigram: float) -> str:
    side = "below" if loss < unigram else "ABOVE"
    return f"{loss:.3f} nats a token, {abs(unigram - loss):.3f} {side} unigram's {unigram:.3f}"
