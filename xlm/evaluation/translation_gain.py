"""Gain of a masked LM from a translation: loss of the same masked tokens with it and without.

A model that trains on pairs (TLM, TRTD's generator) may ignore the second sentence, and its loss
still falls. The difference is the number of nats a token that it reads from the translation.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from input_pipeline.bitext import join_pair
from input_pipeline.packed_dataset import PackedDataset
from xlm.evaluation.batch_layout import BatchLayout, pivot_of, spread_rows
from xlm.evaluation.masked_lm import deal_folds, masked_loss
from xlm.objectives.masked_lm import MaskedLM


@dataclasses.dataclass(frozen=True)
class Gain:
    """Exact losses of a language's `tokens` masked tokens, nats a token.

    `alone` sees only the sentence, `translated` its translation into the pivot as well. `error` is
    the standard error of the mean difference over sentences.
    """

    alone: float
    translated: float
    error: float
    tokens: int


class TranslationGain:
    """Evaluator of `Gain` on the held-out parallel sets of a packed dataset, from `pivot`.

    It masks one in `num_folds` text tokens of a sentence, by the seed, and none of the pivot's.
    Sets without the pivot use their first language. Give the `positions_restart` of training.
    """

    def __init__(
        self, objective: MaskedLM, dataset: PackedDataset, *, pivot: str, positions_restart: bool,
        num_folds: int, batch_size: int, max_sentences: int, seed: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        self._objective = dataclasses.replace(objective, positions_restart=positions_restart)
        self._dataset, self._pivot, self._folds = dataset, pivot, num_folds
        self._max_sentences, self._seed = max_sentences, seed
        self._length = min(dataset.length, objective.encoder.settings.max_length)
        self._batches = BatchLayout(mesh, batch_size)
        self._losses = self._batches.jit(self._masked_losses)

    def run(self, params) -> dict[str, dict[str, Gain]]:
        """Return results by set and language, without languages that have no pairs."""
        found: dict[str, dict[str, Gain]] = {name: {} for name in self._dataset.parallel}
        pairs = heldout_pairs(self._dataset, self._pivot, self._length, self._max_sentences)
        for name, (language, _), rows, seconds in pairs:
            found[name][language] = self._gain(params, rows, seconds)
        return found

    def _gain(self, params, rows: np.ndarray, seconds: np.ndarray) -> Gain:
        specials = self._objective.special_ids
        text = np.where(np.arange(self._length) < seconds, rows, self._objective.pad)
        folds = deal_folds(text, specials, self._folds, np.random.default_rng(self._seed))
        is_masked = folds == 0  # at least one token of every sentence
        of_rows = [
            self._batches.rows(
                self._losses, params, rows, is_masked, seconds, np.full_like(seconds, is_alone),
                fill=0,
            )
            for is_alone in (1, 0)
        ]  # fmt: skip
        alone, translated = (one.astype(np.float64) for one in of_rows)
        tokens = is_masked.sum(axis=1)
        gains = (alone - translated).sum() / tokens.sum()
        # Standard error of a ratio of sums over sentences.
        spread = (alone - translated - gains * tokens).std(ddof=1) if len(rows) > 1 else np.nan
        return Gain(
            alone=float(alone.sum() / tokens.sum()),
            translated=float(translated.sum() / tokens.sum()),
            error=float(spread * np.sqrt(len(rows)) / tokens.sum()),
            tokens=int(tokens.sum()),
        )

    def _masked_losses(
        self, params, tokens: jax.Array, is_masked: jax.Array, seconds: jax.Array,
        is_alone: jax.Array,
    ) -> jax.Array:  # fmt: skip
        """Return the summed loss of each row's masked tokens, [B] float32.

        If `is_alone` [B, 1], the two sentences of `tokens` [B, L] do not see each other.
        """
        layout = layout_of_pairs(self._objective, tokens, seconds, is_alone)
        return masked_loss(self._objective, params, tokens, is_masked, self._folds, layout)


def heldout_pairs(
    dataset: PackedDataset, pivot: str, length: int, max_sentences: int
) -> Iterator[tuple[str, tuple[str, str], np.ndarray, np.ndarray]]:
    """Yield the held-out pairs of each set and language with the set's pivot, if there are any.

    They are the set, the two languages, rows `<s> a </s> </s> b </s>` [N, L] int32, and the place
    of `</s> b`, [N, 1] int32.
    """
    special = dataset.special
    for name, languages in dataset.parallel.items():
        second_language = pivot_of(languages, pivot)
        for language in languages:
            if language == second_language:
                continue
            rows, seconds = [], []
            columns = [dataset.parallel_rows(name, one) for one in (language, second_language)]
            for pair in zip(*(spread_rows(one, max_sentences) for one in columns), strict=True):
                one, two = (x[~np.isin(x, special.special_ids())] for x in pair)
                if len(one) and len(two):
                    row, second = join_pair(one, two, length, special)
                    rows.append(np.pad(row, (0, length - len(row)), constant_values=special.pad))
                    seconds.append(second)
            if rows:
                found = np.array(rows, np.int32), np.array(seconds, np.int32)[:, None]
                yield name, (language, second_language), *found


def layout_of_pairs(
    objective: MaskedLM, tokens: jax.Array, seconds: jax.Array, is_alone: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
    """Return segments and positions [B, L] int32 of `heldout_pairs`, two segments if `is_alone`."""
    places = jnp.arange(tokens.shape[1])[None]
    is_second = places >= seconds
    segments = jnp.where(tokens == objective.pad, 0, 1 + is_second * is_alone)
    return segments, places - is_second * seconds * objective.positions_restart
