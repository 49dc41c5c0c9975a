"""Choice of a method and its parity by the tokens of held-out text, within a limit of the user.

Every candidate is built from the same text. A language's ratio is its tokens under a candidate over
its tokens under "uniform", where all languages get vocabularies of about the same size. The choice
is the candidate with the smallest mean ratio in which no language exceeds `vocab.max_ratio`. If
there is none, it is the candidate with the smallest ratio of its worst language.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from vocap.building import BuiltVocabulary, Progress, Source, build_vocabulary
from vocap.settings import AUTO, VocabularySettings

_CANDIDATES: tuple[dict[str, Any], ...] = (
    {"method": "union", "parity": 0.0}, {"method": "union", "parity": 0.25},
    {"method": "union", "parity": 0.5}, {"method": "union", "parity": 0.75},
    {"method": "union", "parity": 1.0}, {"method": "vocap", "parity": 0.0},
)  # fmt: skip
_REFERENCE = "uniform"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Cost of a candidate with `settings` on held-out text.

    `tokens` are the mean of a held-out sentence, over languages, `ratios` each language's tokens
    over those under "uniform".
    """

    settings: Mapping[str, Any]
    tokens: float
    ratios: Mapping[str, float]

    @property
    def worst(self) -> str:
        return max(self.ratios, key=lambda language: self.ratios[language])

    @property
    def mean_ratio(self) -> float:
        return float(np.mean(list(self.ratios.values())))


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A vocabulary, its settings, and any candidates, itself first."""

    built: BuiltVocabulary
    settings: VocabularySettings
    candidates: tuple[Candidate, ...]


def build(
    train: Mapping[str, Source],
    heldout: Mapping[str, Source],
    settings: VocabularySettings,
    cache: pathlib.Path,
    progress: Progress = lambda items, *_: items,
    parallel: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Chosen:
    """Build a vocabulary; with the method "auto" build all candidates and return the best.

    Raise ValueError as `build_vocabulary`, or if "auto" lacks held-out text of a language.
    """
    if settings.method != AUTO:
        built = build_vocabulary(train, heldout, settings, cache, progress, parallel)
        return Chosen(built, settings, ())
    if missing := sorted(set(train) - {language for language in heldout if heldout[language]}):
        raise ValueError(
            f"vocab.method is 'auto', but there is no held-out text of {', '.join(missing)} to "
            "choose by; hold text out (corpus.heldout_fraction), or name a method"
        )
    # Only the chosen one gets comparisons and an explorer, for the report.
    wanted = [
        dataclasses.replace(settings, **changed, compare=(_REFERENCE,), explore=False)
        for changed in _CANDIDATES
    ]
    found, fault = [], None
    for one in progress(wanted, "candidates", len(wanted)):
        try:
            built = build_vocabulary(train, heldout, one, cache, parallel=parallel)
        except ValueError as error:  # some shares offer fewer pieces
            fault = error
        else:
            found.append(_candidate({"method": one.method, "parity": one.parity}, built))
    if not found:
        assert fault
        raise fault
    found.sort(key=lambda one: _rank(one, settings.max_ratio))
    compare = tuple(dict.fromkeys((*settings.compare, _REFERENCE)))
    chosen = dataclasses.replace(settings, **found[0].settings, compare=compare)
    # Its pieces are in the cache.
    built = build_vocabulary(train, heldout, chosen, cache, progress, parallel)
    return Chosen(built, chosen, tuple(found))


def _candidate(changed: Mapping[str, Any], built: BuiltVocabulary) -> Candidate:
    own = {lang: one.tokens_per_sentence for lang, one in built.scores[changed["method"]].items()}
    uniform = {lang: one.tokens_per_sentence for lang, one in built.scores[_REFERENCE].items()}
    ratios = {language: own[language] / uniform[language] for language in own}
    return Candidate(changed, float(np.mean(list(own.values()))), ratios)


def _rank(candidate: Candidate, max_ratio: float) -> tuple[bool, float]:
    worst = candidate.ratios[candidate.worst]
    return worst > max_ratio, candidate.mean_ratio if worst <= max_ratio else worst
