"""Downstream tasks of the studies: trained on English, tested in other languages.

Embeddings are frozen, so that tokens of other languages keep their neighbours. English development
data select the parameters; WikiANN's, for want of another set, are its English test as well, so
that means leave English out. Tatoeba needs no training; its layer is fixed, two thirds up as in
XTREME, since there is no development set. Models of XNLI answer AmericasNLI as well, which is in
languages that no encoder has seen.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy import stats

from evaluation.task_results import reported_scores

_NLI_DEV = {"task.validation": ("nli_en/mnli_dev.tsv.xz",)}


@dataclasses.dataclass(frozen=True)
class Task:
    """Downstream task.

    Attributes:
      title: title in tables.
      test: pattern of its test files below the data folder; "" for all languages that there are.
      epochs: of fine-tuning; 0 for retrieval.
      change: changed keys of its config.
      unseen: title and pattern of test files in languages that no encoder has seen; None for none.
    """

    title: str
    test: str
    epochs: float = 0.0
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unseen: tuple[str, str] | None = None


TASKS = {
    "udpos": Task("POS, F1", "udpos/test/{}.tsv.xz", 2.0),
    "wikiann": Task("NER, F1", "wikiann_ner/dev/{}.tsv.xz", 3.0),
    "xnli": Task(
        "XNLI, accuracy", "xnli/dev/{}.tsv.xz", 3.0, _NLI_DEV,
        ("AmericasNLI, accuracy", "americasnli/dev/{}.tsv.xz"),
    ),
    "tatoeba": Task("Tatoeba, accuracy", "tatoeba_retrieval/{}-en.tsv.xz"),
}  # fmt: skip


def tuning_keys(task: Task, rate: str) -> dict[str, Any]:
    """Return the keys of fine-tuning that differ from a task's config, at a learning rate."""
    return {
        **task.change,
        "task.text_pooling": "mean",  # after so few steps <s> holds nothing of its text
        "optimizer.frozen": ("embeddings",),
        "optimizer.learning_rate": float(rate),
        "model.attention_dropout_rate": 0.0,
        "train.epochs": task.epochs,
        "train.evaluations": round(task.epochs),
    }


def retrieval_keys(num_layers: int) -> dict[str, Any]:
    """Return the keys of retrieval that differ from a task's config."""
    return {"task.layer": round(num_layers * 2 / 3)}


def scores(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the reported metric of each test language, in per cent, of the results of a run."""
    return {language: 100 * one for language, one in reported_scores(results).items()}


def zero_shot(found: Mapping[str, float]) -> float:
    """Return the mean over the languages without training data."""
    return statistics.fmean(score for language, score in found.items() if language != "en")


def transfer_gap(found: Mapping[str, float]) -> float | None:
    """Return English minus the mean of the others (XY-LENT Section 6.5); None without English."""
    return found["en"] - zero_shot(found) if "en" in found else None


def least_detectable(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the least difference of two runs that is significant at 5 %.

    That is t sqrt(2/n) s, with s the standard deviation of seeds, pooled over the runs, n the
    harmonic mean of the runs' numbers of seeds, so that 2/n is the mean of 1/n_a + 1/n_b over pairs
    of runs a and b, and t the quantile of as many degrees of freedom as s has.

    Args:
      groups: values of each run, by seed.

    Returns:
      The difference; None where no run has two seeds.
    """
    found = [group for group in groups if group]
    freedom = sum(len(group) - 1 for group in found)
    if not freedom:
        return None
    squares = sum((len(group) - 1) * statistics.variance(group) for group in found if group[1:])
    inverse = statistics.fmean(1 / len(group) for group in found)
    return stats.t.ppf(0.975, freedom) * math.sqrt(2 * inverse * squares / freedom)


def least_detectable_change(changes: Sequence[float]) -> float | None:
    """Return the least mean change that is significant at 5 %, where each seed is its own control.

    That is t s / sqrt(n), with s the standard deviation of the changes of n seeds and t the
    quantile of n - 1 degrees of freedom.

    Args:
      changes: one for each seed.

    Returns:
      The change; None with less than two seeds.
    """
    if len(changes) < 2:
        return None
    t = stats.t.ppf(0.975, len(changes) - 1)
    return t * statistics.stdev(changes) / math.sqrt(len(changes))


def significant_correlation(count: int) -> float:
    """Return the least correlation of `count` points, three or more, that is significant at 5 %."""
    t = stats.t.ppf(0.975, count - 2)
    return t / math.sqrt(t**2 + count - 2)


def detectable(groups: Iterable[Sequence[float]], form: str) -> str:
    """Format the least difference of two runs that is significant at 5 %; "" if there is none."""
    least = least_detectable(groups)
    return "" if least is None else form.format(least)


def spread(values: Iterable[float], form: str) -> list[str]:
    """Format mean, and minimum to maximum; empty cells without values."""
    found = list(values)
    if not found:
        return ["", ""]
    mean = form.format(statistics.fmean(found))
    return [mean, f"{form.format(min(found))} to {form.format(max(found))}"]
