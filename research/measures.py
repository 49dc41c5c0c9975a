"""Measures of a pre-training, read from the folder of its run."""

import pathlib
from typing import Any

from xlm.common import artifacts
from xlm.training.metrics import read_metrics


def encoder(folder: pathlib.Path) -> dict[str, Any]:
    """Return losses and retrieval by language, scores of the vocabulary, and training minutes."""
    report = artifacts.read_json(folder / "report" / "results.json")
    losses = {
        language: {key: one[key] for key in ("loss", "unigram", "bits_per_character")}
        for language, one in report["losses"].items()
    }
    return {
        "losses": losses,
        "retrieval": report["retrieval"],
        "vocab_size": artifacts.read_json(folder / "rows" / "meta.json")["vocab_size"],
        "vocabulary": _vocabulary(folder / "vocab" / "allocation.json"),
        "minutes": minutes(folder),
    }


def minutes(folder: pathlib.Path) -> float:
    """Sum the seconds of training intervals with recorded ends and speeds."""
    total, last = 0.0, 0.0
    for one in read_metrics(folder / "train" / "speed.jsonl"):
        total += (one["step"] - last) / one["steps_per_second"] / 60
        last = one["step"]
    return total


def _vocabulary(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return the scores of a vocabulary's own method, by language; {} for an existing tokenizer."""
    if not path.exists():
        return {}
    allocation = artifacts.read_json(path)
    found = allocation["scores"].get(allocation["settings"]["method"], {})
    return {
        language: {
            "alp": one["alp"],
            "tokens_per_sentence": one["tokens_per_sentence"],
            "resource": allocation["languages"][language]["resource"],
        }
        for language, one in found.items()
    }


def last_scores(folder: pathlib.Path, names: tuple[str, ...]) -> dict[str, float]:
    """Return scores of the last evaluation in training, by metric name."""
    found: dict[str, float] = {}
    for one in read_metrics(folder / "train" / "metrics.jsonl"):
        found |= {name: one[name] for name in names if name in one}
    return found
