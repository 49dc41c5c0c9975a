"""Losses of `studies.sampling_quality` by setting, means over languages in nats per token."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.sampling_settings import Setting


@dataclasses.dataclass(frozen=True)
class Row:
    """Results of a setting over its seeds.

    Attributes:
      name: of the setting.
      label: in tables and plots.
      loss: exact held-out loss of each seed.
      above_unigram: the same minus the cross-entropy of the languages' unigram distributions.
      difference: the same minus that of the full softmax with the same initial output bias, for
        each seed of both; empty for a full softmax itself with the whole embedding.
      languages: loss of each language, mean over seeds.
      candidates, overflow: means over seeds.
      staleness: share of the index that a refresh changes, mean over seeds; None without an index.
      vocab_size: V.
    """

    name: str
    label: str
    loss: Mapping[int, float]
    above_unigram: Mapping[int, float]
    difference: Mapping[int, float]
    languages: Mapping[str, float]
    candidates: float
    overflow: float
    staleness: float | None
    vocab_size: int


def summarise(settings: Sequence[Setting], records: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Summarise the settings that have records, in the order of the settings.

    Args:
      settings: all of them.
      records: of finished runs, see `sampling_quality.record`.
    """
    by_setting: dict[str, dict[int, Mapping[str, Any]]] = {}
    for one in records:
        by_setting.setdefault(one["setting"], {})[one["seed"]] = one
    losses = {
        name: {seed: statistics.fmean(one["loss"].values()) for seed, one in own.items()}
        for name, own in by_setting.items()
    }
    rows = {}
    for setting in settings:
        name = setting.name
        if name not in by_setting:
            continue
        own, loss = list(by_setting[name].values()), losses[name]
        unigram = statistics.fmean(own[0]["unigram"].values())
        is_reference = name == setting.reference
        full = {} if is_reference else losses.get(setting.reference, {})
        languages = {
            lang: statistics.fmean(one["loss"][lang] for one in own) for lang in own[0]["loss"]
        }
        stale = [one["staleness"] for one in own if one["staleness"] is not None]
        rows[name] = Row(
            name,
            setting.label,
            loss=loss,
            above_unigram={seed: one - unigram for seed, one in loss.items()},
            difference={seed: loss[seed] - full[seed] for seed in loss if seed in full},
            languages=languages,
            candidates=statistics.fmean(one["candidates"] for one in own),
            overflow=statistics.fmean(one["overflow"] for one in own),
            staleness=statistics.fmean(stale) if stale else None,
            vocab_size=own[0]["vocab_size"],
        )
    return rows
