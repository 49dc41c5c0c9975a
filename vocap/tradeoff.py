"""Tokens of each language at other sizes and parities of a union, for `explorer` to show.

Unlike Algorithm 1, the method "union" has no steps. So vocabularies are trained on a grid. Each
parity has one training for the sizes up to the build's, and one each for larger sizes that the text
can fill.
"""

import dataclasses
from collections.abc import Mapping

from vocap import comparison, pretokens, union
from vocap.pretokens import Texts
from vocap.settings import UNIGRAM, VocabularySettings

PARITIES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SMALLER, _LARGER = (0.25, 0.5, 0.75), (1.5, 2.0)  # sizes, by the build's


@dataclasses.dataclass(frozen=True)
class Tradeoff:
    """Tokens a sentence [P, T, L] by parity, size (special tokens included) and language.

    `contents` [L] is the content of a sentence of each: 1 if the text is parallel, else its nats.
    """

    parities: tuple[float, ...]
    sizes: tuple[int, ...]
    languages: tuple[str, ...]
    tokens: tuple[tuple[tuple[float, ...], ...], ...]
    contents: tuple[float, ...]
    is_parallel: bool


def measure(
    tables: Texts,
    shares: Mapping[str, float],
    fairest: Mapping[str, float],
    measured: Texts,
    settings: VocabularySettings,
    *,
    is_parallel: bool,
) -> Tradeoff:
    """Train the grid on `tables`, and count tokens of the `measured` text.

    `shares` are those of parity 0, and `fairest` those of parity 1; see `union.between`.
    """
    parities, budget = sorted({*PARITIES, settings.parity}), settings.budget
    measured = {language: measured[language] for language in tables}
    found = {}
    for parity in parities:
        of = union.between(shares, fairest, parity)
        required = len(union.covered(pretokens.mixture(tables, of), tables, settings).alphabet)
        smaller = [int(part * budget) for part in _SMALLER if int(part * budget) >= required]
        try:
            rows = dict(_tokens(tables, of, measured, settings, [*smaller, budget]))
        except ValueError:  # these shares require too many characters, or offer too few pieces
            continue
        for part in _LARGER:
            try:
                rows |= _tokens(tables, of, measured, settings, [int(part * budget)])
            except ValueError:  # the text offers too few pieces
                break
        found[parity] = rows
    sizes = sorted(set.intersection(*map(set, found.values())))
    fixed = settings.target_size - budget
    contents = union.content_of(measured, is_parallel=is_parallel)
    return Tradeoff(
        tuple(found), tuple(size + fixed for size in sizes), tuple(measured),
        tuple(tuple(rows[size] for size in sizes) for rows in found.values()),
        tuple(contents[name] / table.num_sentences for name, table in measured.items()),
        is_parallel,
    )  # fmt: skip


def _tokens(
    tables: Texts,
    shares: Mapping[str, float],
    measured: Texts,
    settings: VocabularySettings,
    budgets: list[int],
) -> dict[int, tuple[float, ...]]:
    """Return the tokens a sentence of each language at each number of pieces."""
    found = {}
    trained = union.train_sizes(tables, shares, settings, budgets)
    for budget, (pieces, scores) in zip(budgets, trained, strict=True):
        counts_of = comparison.counter(pieces, scores, UNIGRAM)
        spelled = pieces if settings.byte_fallback else None
        found[budget] = tuple(
            comparison.num_tokens(counts_of(table), table, spelled) / table.num_sentences
            for table in measured.values()
        )
    return found
