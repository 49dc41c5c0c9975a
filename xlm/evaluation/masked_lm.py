"""Exact masked-LM loss per language: a full softmax predicts every held-out token once."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from input_pipeline.packed_dataset import PackedDataset
from knn_sampling.output_layer import without_z_loss
from xlm.evaluation.batch_layout import BatchLayout, heldout_rows
from xlm.objectives.masked_lm import MaskedLM


@dataclasses.dataclass(frozen=True)
class LanguageLoss:
    """Held-out masked-LM loss of a language.

    Attributes:
      loss: mean negative log-likelihood of a masked token in nats.
      bits_per_character: the same in bits, times tokens per character of held-out text. It compares
        vocabularies. The model predicts a token from all others of its sequence, so this is not the
        compression rate of a left-to-right model.
      unigram: nats per token under the unigram distribution of the language's training text. In the
        smoothing (Witten and Bell 1991) of N tokens of T types, all pieces share T / (N + T)
        equally.
      tokens: number of predicted tokens.
    """

    loss: float
    bits_per_character: float
    unigram: float
    tokens: int


def deal_folds(
    rows: np.ndarray, special_ids: Sequence[int], num_folds: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the fold of every token of rows [N, L], -1 for special ones, which stay unmasked."""
    eligible = ~np.isin(rows, special_ids)
    order = np.argsort(np.where(eligible, rng.random(rows.shape), 2.0), axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(rows.shape[1])[None, :], axis=1)
    return np.where(eligible, rank % num_folds, -1)


def masked_loss(
    objective: MaskedLM, params, tokens: jax.Array, masked: jax.Array, num_folds: int,
    layout: tuple[jax.Array, jax.Array] | None = None,
) -> jax.Array:  # fmt: skip
    """Return the summed exact loss [B] of each sequence's `masked` tokens, one fold [B, L] bool.

    `layout` is that of `MaskedLM.predictions`.
    """
    slots = -(-tokens.shape[1] // num_folds)
    weights, positions = jax.lax.top_k(masked.astype(jnp.float32), slots)  # [B, M]
    targets = jnp.take_along_axis(tokens, positions, axis=1)
    inputs = jnp.where(masked, objective.mask_id, tokens)
    hidden = objective.predictions(params, inputs, positions, layout)
    table, bias = objective.output_table(params)
    layer = without_z_loss(objective.exact_layer)
    return layer.loss(hidden, targets, weights, table, bias, None).sum(axis=1)


class ExactMaskedLM:
    """Evaluator of the masked-LM loss on held-out sequences; ValueError if there are none.

    The seed deals the text tokens of a sequence into `num_folds` random folds. Pass f replaces all
    tokens of fold f by `<mask>` and predicts them, about 15 % at a time with 7 folds. So every
    token counts once.
    """

    def __init__(
        self, objective: MaskedLM, dataset: PackedDataset, *, num_folds: int, batch_size: int,
        max_sequences: int, seed: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        self._objective, self._dataset, self._num_folds = objective, dataset, num_folds
        self._batches = BatchLayout(mesh, batch_size)
        self._rows = heldout_rows(dataset, max_sequences)
        if not self._rows:
            raise ValueError(
                f"{dataset.folder} has no held-out rows to evaluate on; set "
                "corpus.heldout_fraction above 0 and rebuild the dataset"
            )
        self._folds = {
            lang: deal_folds(
                rows, objective.special_ids, num_folds, np.random.default_rng([seed, i])
            )
            for i, (lang, rows) in enumerate(self._rows.items())
        }
        self._unigram: dict[str, float] = {}
        self._batch_loss = self._batches.jit(
            lambda params, tokens, masked: masked_loss(objective, params, tokens, masked, num_folds)
        )

    def __call__(self, state) -> Mapping[str, float]:
        """Return the mean over languages and each language's loss, as metrics of a training run."""
        results = self.run(state.params)
        values = {f"eval/loss/{lang}": result.loss for lang, result in results.items()}
        return {"eval/loss": float(np.mean(list(values.values()))), **values}

    def run(self, params) -> dict[str, LanguageLoss]:
        losses, tokens = self._totals(params)
        results = {}
        for i, lang in enumerate(self._rows):
            loss = losses[i] / tokens[i]
            statistics = self._dataset.statistics[lang]["heldout"]
            tokens_per_character = statistics["tokens"] / statistics["characters"]
            results[lang] = LanguageLoss(
                loss=loss,
                bits_per_character=loss / math.log(2) * tokens_per_character,
                unigram=self._unigram_loss(lang),
                tokens=int(tokens[i]),
            )
        return results

    def _totals(self, params) -> tuple[np.ndarray, np.ndarray]:
        """Return the summed loss, float64, and the number of tokens of each language."""
        rows, folds = (np.concatenate(list(one.values())) for one in (self._rows, self._folds))
        count = len(self._rows)
        language = np.repeat(np.arange(count), [len(r) for r in self._rows.values()])
        per_fold = [
            self._batches.rows(
                self._batch_loss, params, rows, folds == fold, fill=self._objective.pad
            )
            for fold in range(self._num_folds)
        ]
        row_losses = np.sum(per_fold, axis=0, dtype=np.float64)
        row_tokens = (folds >= 0).sum(axis=1)
        return np.bincount(language, row_losses, count), np.bincount(language, row_tokens, count)

    def _unigram_loss(self, language: str) -> float:
        if language not in self._unigram:
            counts = self._dataset.token_counts(language).astype(np.float64)
            counts[np.array(self._objective.special_ids)] = 0
            types = np.count_nonzero(counts)
            log_probs = np.log((counts + types / len(counts)) / (counts.sum() + types))
            held_out = self._rows[language][self._folds[language] >= 0]
            self._unigram[language] = float(-log_probs[held_out].mean())
        return self._unigram[language]
