"""One vocabulary of all languages, chosen as one problem: merges, pruned by the tokens they save.

Algorithm 1 (`allocation`) trains languages separately and joins their vocabularies. So it counts a
shared piece for one language only. Here one training sees the mixture of all:

1. Each language requires the characters of its own text, so no weights drop a script. With
   `byte_fallback` the frequent characters of the mixture suffice.
2. Byte-pair merges of the mixture are the seeds, `_MERGES` of them for each wanted piece.
3. The trunk of `nested` prunes them: the pieces that save the fewest tokens go first.
4. EM scores the remaining pieces as a unigram model.

Merges as seeds need fewer tokens than all frequent substrings, and give text a higher likelihood
(research/reports/results_union.md). The languages' shares of the mixture are the only
weights. `fairest_shares` moves them towards the languages whose text costs the most tokens.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vocap import bpe, comparison, merge, nested, pretokens, seeds
from vocap.pretokens import PretokenTable, Text, Texts
from vocap.segmentation import gini
from vocap.settings import UNIGRAM, VocabularySettings

_MERGES = 2.0
_ROUNDS = 10
_STEP = 2.0  # exponent of a language's cost in the change of its share
# Most characters of the search for shares; more change them little.
_WEIGHED_CHARACTERS = 10_000_000

Scored = tuple[tuple[str, ...], np.ndarray]  # pieces, and their log probabilities [V]
# (training text, shares, measured text, settings) -> tokens of the measured text by language.
CountTokens = Callable[[Texts, Mapping[str, float], Texts, VocabularySettings], dict[str, float]]


def train(tables: Texts, shares: Mapping[str, float], settings: VocabularySettings) -> Scored:
    """Train the pieces of a vocabulary, `settings.budget` in all; see `train_sizes`."""
    (found,) = train_sizes(tables, shares, settings, [settings.budget])
    return found


def train_sizes(
    tables: Texts, shares: Mapping[str, float], settings: VocabularySettings, budgets: Sequence[int]
) -> list[Scored]:
    """Train vocabularies of several numbers of pieces, ascending, in one training.

    `shares` are the languages' shares of the bytes of the mixture, in any unit. Raise ValueError if
    the languages require more characters, or their text offers fewer pieces.
    """
    mixture = pretokens.mixture(tables, shares)
    text = covered(mixture, tables, settings)
    size = len(text.alphabet)
    if size > budgets[0]:
        raise ValueError(
            f"the languages require {size} characters (vocab.character_coverage is "
            f"{settings.character_coverage}), more than the {budgets[0]} pieces of "
            "vocab.target_size besides specials; raise it, or lower the coverage"
        )
    trained = PretokenTable(
        Text(text.alphabet[text.characters], text.offsets), text.weights, text.follow, 0
    )
    merges = bpe.train(
        trained, round(_MERGES * budgets[-1]), character_coverage=1.0,
        max_piece_length=settings.max_piece_length, may_be_fewer=True,
    )  # fmt: skip
    found = seeds.match_seeds(text, merges[0] if merges else ())
    trunk = nested.Trunk(text, found)
    left, cuts = list(budgets), []
    while left:
        trunk.fit()
        ranking = trunk.rank(by_tokens=True)
        while left and ranking.is_last_for(nested.desired(left[-1])):
            cuts.append(trunk.first_ranked(ranking, left.pop()))
        if left:
            trunk.prune(ranking)
    if len(cuts[0][0]) < budgets[-1]:
        raise ValueError(
            f"the text of {', '.join(sorted(tables))} offers {len(cuts[0][0])} pieces that save "
            f"tokens, fewer than the {budgets[-1]} of vocab.target_size besides specials; lower "
            "it, or add text"
        )
    scored = []
    for ids, log_probs in reversed(cuts):
        pieces = tuple(seeds.piece_strings(text, found.begins[ids], found.lengths[ids]))
        scores = merge.fit_scores(pieces, log_probs, mixture, settings.em_iterations)
        scored.append((pieces, scores))
    return scored


def covered(
    mixture: PretokenTable, tables: Texts, settings: VocabularySettings
) -> seeds.TrainingText:
    """Return the mixture's text in the characters that a vocabulary requires."""
    if settings.byte_fallback:  # bytes spell rare characters
        return seeds.cover(mixture, settings.character_coverage)
    return seeds.cover_each(mixture, tables.values(), settings.character_coverage)


def count_tokens(
    tables: Texts, shares: Mapping[str, float], measured: Texts, settings: VocabularySettings
) -> dict[str, float]:
    """Count the tokens of each language's `measured` text, trained at `shares`.

    An unknown character counts as its bytes: otherwise a language would gain by losing characters.
    """
    pieces, log_probs = train(tables, shares, settings)
    counts_of = comparison.counter(pieces, log_probs, UNIGRAM)
    spelled = pieces if settings.byte_fallback else None
    return {
        language: comparison.num_tokens(counts_of(table), table, spelled)
        for language, table in measured.items()
    }


def fairest_shares(
    tables: Texts,
    shares: Mapping[str, float],
    measured: Texts,
    settings: VocabularySettings,
    *,
    is_parallel: bool,
    count: CountTokens = count_tokens,
) -> dict[str, float]:
    """Move shares until all languages cost the same, as far as their text allows.

    A language's cost is its tokens for the same content: a sentence of parallel text, or else a nat
    of the entropy of its characters. Over 24 languages this entropy of parallel sentences varies by
    15 to 19 %, their characters by 20 to 27 %, their bytes by 42 to 49 %.

    Each round trains a vocabulary and multiplies a share by (cost / mean cost)^2. The result is the
    fairest round, by the Gini coefficient of the costs. `count` trains on a part of long texts and
    counts tokens of `measured`, whose sentences are translations if it `is_parallel`.
    """
    total = sum(len(table.text.characters) for table in tables.values())
    part = min(1.0, _WEIGHED_CHARACTERS / total)
    tables = {
        language: pretokens.most_frequent(table, max(1, int(part * len(table.text.characters))))
        for language, table in tables.items()
    }
    contents = content_of(measured, is_parallel=is_parallel)
    measured = {language: measured[language] for language in shares}
    here, fairest, least = dict(shares), dict(shares), np.inf
    for _ in range(_ROUNDS):
        tokens = count(tables, here, measured, settings)
        costs = np.array([tokens[language] / contents[language] for language in here])
        if (unfairness := gini(costs)) < least:
            fairest, least = here, unfairness
        moved = np.array(list(here.values())) * (costs / costs.mean()) ** _STEP
        here = dict(zip(here, (moved / moved.sum()).tolist(), strict=True))
    return fairest


def content_of(measured: Texts, *, is_parallel: bool) -> dict[str, float]:
    """Return the content of each text: its sentences if they are parallel, else its nats."""
    return {
        language: table.num_sentences if is_parallel else _character_entropy(table)
        for language, table in measured.items()
    }


def between(
    shares: Mapping[str, float], fairest: Mapping[str, float], parity: float
) -> dict[str, float]:
    """Return shares at `parity` of the way to the fairest ones, as geometric means."""
    return {
        language: share ** (1 - parity) * fairest[language] ** parity
        for language, share in shares.items()
    }


def _character_entropy(table: PretokenTable) -> float:
    """Return the nats of a text with independent characters."""
    counts = np.repeat(table.counts, np.diff(table.text.offsets))
    _, inverse = np.unique(table.text.characters, return_inverse=True)
    frequency = np.bincount(inverse, counts)
    return float(-frequency @ np.log(frequency / frequency.sum()))
