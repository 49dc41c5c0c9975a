"""Quality of a discriminator: detection of replaced tokens in held-out text.

The generator's own samples get harder as it learns, so scores fall while both improve. Scores on a
fixed corruption, by unigram samples or a frozen generator, are a learning curve.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from input_pipeline.packed_dataset import PackedDataset
from xlm.evaluation.batch_layout import BatchLayout, heldout_rows
from xlm.evaluation.translation_gain import heldout_pairs, layout_of_pairs
from xlm.objectives.replaced_token import ReplacedToken

OWN, UNIGRAM, FROZEN = "own", "unigram", "frozen"


@dataclasses.dataclass(frozen=True)
class Detection:
    """Scores of a discriminator on one corruption of a language's held-out text.

    Attributes:
      auc: area under the ROC curve, the probability that a replaced token has a higher logit than
        an original one; 0.5 is chance.
      precision: share of replaced tokens among those with a positive logit; NaN if there are none.
      recall: share of replaced tokens with a positive logit; NaN if no token is replaced.
      replaced: share of replaced tokens.
      loss: binary cross-entropy, nats a token.
    """

    auc: float
    precision: float
    recall: float
    replaced: float
    loss: float
    tokens: int


class ReplacedTokenDetection:
    """Evaluator of a discriminator on corrupted held-out sequences of each language.

    Unigram samples, by the seed, replace the share `rate` of the text tokens. `frozen` adds the
    samples of another objective's generator, with its parameters. A token replaced by itself counts
    as original.
    """

    def __init__(
        self, objective: ReplacedToken, dataset: PackedDataset, *, rate: float, batch_size: int,
        max_sequences: int, seed: int, frozen: tuple[ReplacedToken, Any] | None = None,
        mesh: Mesh | None = None,
    ):  # fmt: skip
        self._objective, self._seed = objective, seed
        self._batches = BatchLayout(mesh, batch_size)
        self._rows = heldout_rows(dataset, max_sequences)
        self._fixed = {
            UNIGRAM: {
                lang: unigram_corruption(
                    rows, dataset.token_counts(lang), rate, objective.special_ids, [seed, i]
                )
                for i, (lang, rows) in enumerate(self._rows.items())
            }
        }
        if frozen is not None:
            self._fixed[FROZEN] = self._generated(*frozen)
        self._corrupt = self._batches.jit(_corruption(objective))
        self._logits = self._batches.jit(objective.logits)

    def __call__(self, state) -> Mapping[str, float]:
        """Return means over languages and each one's values as metrics, without NaN (no JSON)."""
        values = {}
        for corruption, found in self.run(state.params).items():
            for name in ("auc", "precision", "recall", "replaced", "loss"):
                of_languages = np.array([getattr(one, name) for one in found.values()])
                if not np.isnan(of_languages).all():
                    values[f"rtd/{corruption}/{name}"] = float(np.nanmean(of_languages))
            for language, one in found.items():
                for name in ("auc", "precision", "recall"):
                    if not np.isnan(value := getattr(one, name)):
                        values[f"rtd/{corruption}/{name}/{language}"] = value
        return values

    def run(self, params) -> dict[str, dict[str, Detection]]:
        own = self._generated(self._objective, params, self._corrupt)
        found = {OWN: own, **self._fixed}
        return {
            corruption: {
                lang: self._scores(params, corrupted, self._rows[lang])
                for lang, corrupted in by_language.items()
            }
            for corruption, by_language in found.items()
        }

    def _generated(
        self, objective: ReplacedToken, params, corrupt: Any = None
    ) -> dict[str, np.ndarray]:
        """Return the text of each language with samples of a generator, [N, L] int32."""
        corrupt = corrupt or self._batches.jit(_corruption(objective))
        found, pad = {}, self._objective.pad
        for place, (language, rows) in enumerate(self._rows.items()):
            key = jax.random.fold_in(jax.random.key(self._seed), place)
            batches = [
                corrupt(params, *placed, jax.random.fold_in(key, number))
                for number, placed in enumerate(self._batches.batches(rows, fill=pad))
            ]
            found[language] = np.concatenate(jax.device_get(batches))[: len(rows)]
        return found

    def _scores(self, params, corrupted: np.ndarray, original: np.ndarray) -> Detection:
        pad = self._objective.pad
        logits = self._batches.rows(self._logits, params, corrupted, original, fill=pad)
        is_text = ~np.isin(original, self._objective.special_ids)
        return detection(logits[is_text], (corrupted != original)[is_text])


def _corruption(objective: ReplacedToken):
    return lambda *arguments: objective.corrupt(*arguments)[0]


@dataclasses.dataclass(frozen=True)
class PairDetection(Detection):
    """Scores on pairs, whose two sides the generator fills as in training.

    `generator_loss` is its loss, nats a masked token, by the softmax over the vocabulary.
    """

    generator_loss: float


class PairReplacedTokenDetection:
    """Evaluator of `PairDetection` on the held-out parallel sets, of each language with `pivot`.

    The mask rate is that of pairs. Give the `positions_restart` of training.
    """

    def __init__(
        self, objective: ReplacedToken, dataset: PackedDataset, *, pivot: str,
        positions_restart: bool, batch_size: int, max_sentences: int, seed: int,
        mesh: Mesh | None = None,
    ):  # fmt: skip
        generator = dataclasses.replace(
            objective.generator, mask=objective.generator.mask.of_pairs(),
            positions_restart=positions_restart,
        )  # fmt: skip
        self._objective, self._seed = dataclasses.replace(objective, generator=generator), seed
        length = min(dataset.length, objective.encoder.settings.max_length)
        self._pairs = lambda: heldout_pairs(dataset, pivot, length, max_sentences)
        self._batches = BatchLayout(mesh, batch_size)
        self._step = self._batches.jit(self._scored)

    def run(self, params) -> dict[str, dict[str, PairDetection]]:
        """Return results by set and pair, such as "sw-en"."""
        found: dict[str, dict[str, PairDetection]] = {}
        for place, (name, pair, rows, seconds) in enumerate(self._pairs()):
            key = jax.random.fold_in(jax.random.key(self._seed), place)
            batches = self._batches.batches(rows, seconds, fill=self._objective.pad)
            of_batches = [
                self._step(params, *placed, jax.random.fold_in(key, number))
                for number, placed in enumerate(batches)
            ]
            tokens, logits, losses, counts = (
                np.concatenate(one)[: len(rows)]
                for one in zip(*jax.device_get(of_batches), strict=True)
            )
            is_text = ~np.isin(rows, self._objective.special_ids)
            scores = detection(logits[is_text], (tokens != rows)[is_text])
            loss = losses.sum(dtype=np.float64) / counts.sum()
            found.setdefault(name, {})["-".join(pair)] = PairDetection(
                **dataclasses.asdict(scores), generator_loss=float(loss)
            )
        return found

    def _scored(self, params, tokens: jax.Array, seconds: jax.Array, key: jax.Array):
        layout = layout_of_pairs(self._objective.generator, tokens, seconds)
        corrupted, losses, counts = self._objective.corrupt(params, tokens, key, layout)
        return corrupted, self._objective.logits(params, corrupted, layout=layout), losses, counts


def detection(logits: np.ndarray, is_replaced: np.ndarray) -> Detection:
    """Score logits [N] against replacement, [N] bool; the AUC of a single class is NaN."""
    from sklearn.metrics import roc_auc_score  # slow, and every train.py imports this file

    logits = logits.astype(np.float64)
    is_found = logits > 0
    right = np.sum(is_found & is_replaced)
    has_both = 0 < is_replaced.sum() < len(is_replaced)
    return Detection(
        auc=float(roc_auc_score(is_replaced, logits)) if has_both else float("nan"),
        precision=float(right / is_found.sum()) if is_found.any() else float("nan"),
        recall=float(right / is_replaced.sum()) if is_replaced.any() else float("nan"),
        replaced=float(is_replaced.mean()),
        loss=float(np.mean(np.logaddexp(0, logits) - logits * is_replaced)),
        tokens=len(logits),
    )


def unigram_corruption(
    rows: np.ndarray, counts: np.ndarray, rate: float, special_ids: tuple[int, ...], seed: list[int]
) -> np.ndarray:
    """Replace text tokens [N, L] int32 at `rate` by samples of a language's unigram distribution.

    `counts` [V] are those of the training text. Special tokens stay, and are no samples.
    """
    rng = np.random.default_rng(seed)
    weights = np.asarray(counts, np.float64).copy()
    weights[list(special_ids)] = 0
    # By inversion: `Generator.choice` is slow for a large vocabulary.
    cumulative = np.cumsum(weights / weights.sum())
    drawn = np.searchsorted(cumulative, rng.random(rows.shape) * cumulative[-1], side="right")
    is_chosen = (rng.random(rows.shape) < rate) & ~np.isin(rows, special_ids)
    return np.where(is_chosen, drawn, rows).astype(np.int32)
