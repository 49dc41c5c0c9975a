"""What a masked LM makes of a translation: loss of the same masked tokens beside it and without.

A model that is trained on pairs (TLM, TRTD's generator) may ignore the second sentence: its loss
falls all the same. The difference says how many nats of a token it reads from the translation.
"""

import dataclasses

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
    """Losses of a language's masked tokens, nats a token, full softmax; `tokens` are predicted.

    `alone` sees the sentence, `translated` its translation into the pivot as well. `error` is the
    standard error of the mean difference over sentences.
    """

    alone: float
    translated: float
    error: float
    tokens: int


class TranslationGain:
    """Evaluator of `Gain` on the held-out parallel sets of a packed dataset, from `pivot`.

    One in `num_folds` of the text tokens of a sentence is masked, by the seed, and none of the
    pivot's. Sets without the pivot use their first language. `positions_restart` is as in training.
    """

    def __init__(
        self, objective: MaskedLM, store: PackedDataset, *, pivot: str, positions_restart: bool,
        num_folds: int, batch_size: int, max_sentences: int, seed: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        self._objective = dataclasses.replace(objective, positions_restart=positions_restart)
        self._store, self._pivot, self._folds = store, pivot, num_folds
        self._max_sentences, self._seed = max_sentences, seed
        self._length = min(store.length, objective.encoder.settings.max_length)
        self._batches = BatchLayout(mesh, batch_size)
        self._losses = self._batches.jit(self._masked_losses)

    def run(self, params) -> dict[str, dict[str, Gain]]:
        """Return results by set and language, without languages that have no pairs."""
        found: dict[str, dict[str, Gain]] = {}
        for name, languages in self._store.parallel.items():
            pivot = pivot_of(languages, self._pivot)
            others = [one for one in languages if one != pivot]
            results = ((one, self._gain(params, name, one, pivot)) for one in others)
            found[name] = {one: gain for one, gain in results if gain is not None}
        return found

    def _gain(self, params, name: str, language: str, pivot: str) -> Gain | None:
        rows, seconds = self._pairs(name, language, pivot)
        if not len(rows):
            return None
        specials = self._objective.special_ids
        text = np.where(np.arange(self._length) < seconds, rows, self._objective.pad)
        folds = deal_folds(text, specials, self._folds, np.random.default_rng(self._seed))
        is_masked = folds == 0  # a token of every sentence at least
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
        # Of a ratio of sums over sentences.
        spread = (alone - translated - gains * tokens).std(ddof=1) if len(rows) > 1 else np.nan
        return Gain(
            alone=float(alone.sum() / tokens.sum()),
            translated=float(translated.sum() / tokens.sum()),
            error=float(spread * np.sqrt(len(rows)) / tokens.sum()),
            tokens=int(tokens.sum()),
        )

    def _pairs(self, name: str, language: str, pivot: str) -> tuple[np.ndarray, np.ndarray]:
        """Return rows `<s> a </s> </s> b </s>` [N, L], and where `</s> b` begins, [N, 1] int32."""
        special = self._store.special
        rows, seconds = [], []
        columns = [self._store.parallel_rows(name, one) for one in (language, pivot)]
        for pair in zip(*(spread_rows(one, self._max_sentences) for one in columns), strict=True):
            one, two = (x[~np.isin(x, special.special_ids())] for x in pair)
            if len(one) and len(two):
                row, second = join_pair(one, two, self._length, special)
                padding = (0, self._length - len(row))
                rows.append(np.pad(row, padding, constant_values=special.pad))
                seconds.append(second)
        joined = np.array(rows, np.int32).reshape(-1, self._length)
        return joined, np.array(seconds, np.int32)[:, None]

    def _masked_losses(
        self, params, tokens: jax.Array, is_masked: jax.Array, seconds: jax.Array,
        is_alone: jax.Array,
    ) -> jax.Array:  # fmt: skip
        """Return the summed loss of each row's masked tokens, [B] float32.

        Tokens are [B, L]. Where `is_alone` [B, 1], the two sentences do not see each other.
        """
        one, places = self._objective, jnp.arange(tokens.shape[1])[None]
        is_second = places >= seconds
        segments = jnp.where(tokens == one.pad, 0, 1 + is_second * is_alone)
        positions = places - is_second * seconds * one.positions_restart
        return masked_loss(one, params, tokens, is_masked, self._folds, (segments, positions))
