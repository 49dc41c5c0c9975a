"""Published results of the papers, for comparison, and sizes of their corpora."""

import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from xlm.common import declarations
from xlm.common.declarations import Artefact
from xlm.evaluation.task_results import averaged_metrics

DEFAULT = pathlib.Path(__file__).with_name("published.json")
# Least gigabytes of CommonCrawl text (VoCap, Section 2.2.2 and Table 7: low below 1 GB, high above
# 10): 24, 25 and 37 of the 86 languages of the table. Others are "unlisted".
GROUPS = {"high": 10.0, "mid": 1.0, "low": 0.0}
UNLISTED = "unlisted"


class Row(Artefact, frozen=True):
    """Published results of one model in one table; `source` is the publication.

    Attributes:
      scores: by task and metric, in per cent; averages over the paper's languages.
      languages: scores by task, metric and language, if published.
      gap: cross-lingual transfer gap by task, in points.
    """

    model: str
    source: str
    setting: str
    scores: Mapping[str, Mapping[str, float]]
    languages: Mapping[str, Mapping[str, Mapping[str, float]]] = {}
    gap: Mapping[str, float] = {}

    def printed(self, task: str) -> float | None:
        """Return the task's score for averages; None unless the paper prints all its metrics."""
        printed = self.scores.get(task, {})
        return _mean(printed.get(metric) for metric in averaged_metrics(task))

    def average(self, task: str, languages: Iterable[str]) -> float | None:
        """Return the task's average over `languages`; None if the paper lacks one of them."""
        printed = self.languages.get(task, {})
        return _mean([
            _mean(printed.get(metric, {}).get(language) for metric in averaged_metrics(task))
            for language in languages
        ])  # fmt: skip


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of values; None without any, or if one is None."""
    found = list(values)
    return None if None in found or not found else float(np.mean(found))  # type: ignore[arg-type]


class Published(Artefact, frozen=True):
    """Rows of the papers' tables, and gigabytes of text by language."""

    rows: tuple[Row, ...]
    corpus_gb: Mapping[str, float]
    about: str = ""

    def group(self, language: str) -> str:
        """Return the resource group of a language: a key of `GROUPS`, or `UNLISTED`."""
        if language not in self.corpus_gb:
            return UNLISTED
        size = self.corpus_gb[language]
        return next(name for name, least in GROUPS.items() if size >= least)


def read(path: pathlib.Path = DEFAULT) -> Published:
    """Read published results in the format of published.json, else ValueError."""
    remedy = f"{DEFAULT.name} in xlm/evaluation/ shows the format"
    return declarations.read(path, Published, remedy=remedy)
