"""Identification of a line's language among those of a corpus, learned from it in seconds.

A naive Bayes model of hashed character n-grams covers the languages of the corpus, also those that
no library knows. File names are its labels, though files hold foreign lines. So it is cross-fitted:
two models are fitted to half of a sample each, and score lines of the other half. Twice, both are
fitted again without the lines that look foreign.

    score(g, l) = log((n_gl + a p_g) / ((N_l + a) p_g)),  p_g = mean of n_gl / N_l over l

`n_gl` counts n-gram g in language l, and a = `_PRIOR`. A line is foreign if two conditions hold.
The likelihood ratio, tempered since n-grams overlap, exceeds `_EVIDENCE` nats. Per n-gram, it is at
least half that of a median line of the other language. Close languages still look alike:
`Identifier.expected` is the share of a language's lines that look foreign by chance. It comes from
the opposite tail of untypical lines, which has no foreign line.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping

import numpy as np

from input_pipeline.inspection import characters, scanning
from xlm.common import artifacts

LEAST_LETTERS = 20  # shorter lines are not judged
_SCALE = 16  # of a nat, in int8
_PRIOR = 3000.0
_OVERLAP = 3.0
_EVIDENCE = 8.0  # nats, and log(L) more
_LEAST_LINES = 50  # of a language to compare
_LEAST_CUT = 0.03  # languages whose lines differ less are not distinguished: en-US and en-GB
# Cosine of counts of n-grams. Halves of a book reach 0.89 to 0.98. On parallel text only
# hrv-bos-srp, msa-ind and prs-fas reach it; zul-nde has 0.90, nob-dan 0.85.
_ALIKE = 0.92
# A table of 4 MB stays in cache; more languages have larger tables, not fewer slots.
_LEAST_SLOTS, _TABLE_BYTES = 1 << 17, 1 << 22
_LANES = 16  # columns are padded to whole vectors


@dataclasses.dataclass(frozen=True)
class Identifier:
    """Models of L languages.

    Attributes:
      languages: in the order of the columns.
      models: [2, slots, at least L] int8, one for lines of each lowest bit of their digests.
      cuts: [own, other] least margin per n-gram of a foreign line.
      expected: [own, other] share of the lines that is judged foreign by mistake.
      alike: [own, other] whether the n-grams of two languages look like one language.
    """

    languages: tuple[str, ...]
    models: np.ndarray
    cuts: np.ndarray
    expected: np.ndarray
    alike: np.ndarray

    def judge(
        self, codes: np.ndarray, lines: np.ndarray, own: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which lines [n] are judged, and the column of a foreign language or -1 [n]."""
        if len(self.languages) == 1:
            return np.zeros(len(lines), bool), np.full(len(lines), -1)
        scores, counts = score(codes, lines, self.models, len(self.languages))
        margins = scores - scores[:, own : own + 1]
        margins[:, own] = -np.inf
        best = margins.argmax(1)
        margin = margins.max(1) / np.maximum(counts, 1)
        is_foreign = margin > self.cuts[own, best]
        is_foreign &= margin * counts > evidence(len(self.languages))
        return counts > 0, np.where(is_foreign, best, -1)

    def save(self, path: pathlib.Path) -> None:
        with artifacts.atomic_path(path) as aside:
            np.savez(aside, **vars(self))

    @classmethod
    def load(cls, path: pathlib.Path) -> "Identifier":
        with np.load(path) as found:
            arrays = dict(found)
        return cls(tuple(arrays.pop("languages").tolist()), **arrays)


load = functools.lru_cache(maxsize=1)(Identifier.load)  # once in a process


def evidence(num_languages: int) -> float:
    return _EVIDENCE + math.log(num_languages)


def score(
    codes: np.ndarray, lines: np.ndarray, models: np.ndarray, num_languages: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tempered log likelihoods [n, L] and numbers of n-grams [n], 0 for short lines."""
    scores = np.zeros((len(lines), models.shape[2]), np.int32)
    counts = np.zeros(len(lines), np.int32)
    lower = characters.tables().lower
    scanning.score_lines(codes, lower, lines, models, LEAST_LETTERS, scores, counts)
    return scores[:, :num_languages] / np.float32(_SCALE * _OVERLAP), counts


def fit(samples: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Identifier:
    """Fit to samples of text: code points and lines by language."""
    languages, threshold = tuple(samples), evidence(len(samples))
    is_kept = {one: np.ones(len(lines), bool) for one, (_, lines) in samples.items()}
    for _ in range(2):
        models = _fit(samples, is_kept)
        for own, (one, (codes, lines)) in enumerate(samples.items()):
            scores, _ = score(codes, lines, models, len(samples))
            is_kept[one] = scores.max(1) - scores[:, own] < threshold
    models = _fit(samples, is_kept)
    cuts, expected = _calibrate(samples, models)
    every = [_counts(one, slice(None), _LEAST_SLOTS) for one in samples.values()]
    unit = np.stack([one / max(np.linalg.norm(one), 1) for one in every])
    alike = (unit @ unit.T > _ALIKE) & ~np.eye(len(every), dtype=bool)
    return Identifier(languages, models, cuts, expected, alike)


def _fit(samples: Mapping, is_kept: Mapping[str, np.ndarray]) -> np.ndarray:
    width = -(-len(samples) // _LANES) * _LANES
    size = max(_LEAST_SLOTS, _TABLE_BYTES // (1 << (width - 1).bit_length()))
    models = np.zeros((2, size, width), np.int8)
    for half in range(2):
        counted = [
            _counts(samples[one], is_kept[one] & (samples[one][1]["digest"] & 1 == half), size)
            for one in samples
        ]
        mean = sum(one / max(one.sum(), 1.0) / len(samples) for one in counted)
        for column, counts in enumerate(counted):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.log((counts + _PRIOR * mean) / ((counts.sum() + _PRIOR) * mean))
            ratio = np.where(mean > 0, ratio, 0) * _SCALE
            models[half, :, column] = np.clip(np.rint(ratio), -127, 127)
    return models


def _counts(
    sample: tuple[np.ndarray, np.ndarray], chosen: np.ndarray | slice, size: int
) -> np.ndarray:
    codes, lines = sample
    slots = np.empty(len(codes), np.int64)
    count = scanning.all_slots(codes, characters.tables().lower, lines[chosen], size - 1, slots)
    return np.bincount(slots[:count], minlength=size).astype(np.float32)


def _calibrate(samples: Mapping, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cuts and the expected shares, [own, other] each."""
    margins, medians = [], np.zeros((len(samples),) * 2)
    for own, (codes, lines) in enumerate(samples.values()):
        scores, counts = score(codes, lines, models, len(samples))
        judged = counts > 0
        margin = (scores - scores[:, own : own + 1])[judged] / counts[judged, None]
        margins.append((margin, counts[judged]))
        if len(margin):
            medians[own] = np.median(margin, axis=0)
    cuts = -medians.T / 2
    cuts[cuts < _LEAST_CUT] = np.inf
    unknown = [len(margin) < _LEAST_LINES for margin, _ in margins]
    cuts[unknown] = cuts[:, unknown] = np.inf
    expected = np.zeros_like(cuts)
    for own, (margin, counts) in enumerate(margins):
        if len(margin):
            mirrored = 2 * medians[own] - margin
            is_foreign = mirrored > cuts[own]
            is_foreign &= mirrored * counts[:, None] > evidence(len(samples))
            expected[own] = is_foreign.mean(0)
    return cuts, expected
