"""Contrastive learning of sentence vectors, with masked LM or from pairs of texts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from xlm.models.segments import segment_means
from xlm.objectives.fine_tuning import FineTuning
from xlm.objectives.masked_lm import MaskedLM, OnMaskedLM, Plan
from xlm.objectives.objective import Batch, LossAndMetrics
from xlm.objectives.settings import ContrastSettings

# Score of an absent pair.
_ABSENT = -1e9
# Added to squared norms: the zero vector of a fully masked sentence gets a gradient of zero.
_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceContrast(OnMaskedLM):
    """Masked LM on sentences as segments, with a contrastive loss between those of a pair.

    The pairs of a row, at most L / 8, have the segments 1 and 2, 3 and 4, and so on. A sentence's
    vector is the mean state of its text tokens that are not masked. Both terms share one encoder
    pass over the masked batch.
    """

    masked_lm: MaskedLM
    settings: ContrastSettings

    def loss(self, params, rows, plan: Plan, key: jax.Array | None) -> tuple[LossAndMetrics, None]:
        """Add masked-LM loss and contrast, means over masked tokens and over pairs."""
        states = self.masked_lm.states(params, rows, plan, key)
        losses = self.masked_lm.losses_from(params, rows, plan, states)
        found = self.masked_lm.metrics_of(losses, plan)
        masked_total, weight = found["loss"]
        is_text = ~jnp.isin(plan.masked.inputs, jnp.array(self.masked_lm.special_ids))
        most = 2 * max(is_text.shape[1] // 8, 1)  # 2 P
        of_segments = segment_means(states, is_text, plan.segments, most)  # [B, 2 P, D]
        one, two = (of_segments[:, i::2].reshape(-1, states.shape[2]) for i in (0, 1))
        is_there = jax.nn.one_hot((plan.segments - 1) // 2, most // 2).any(axis=1).reshape(-1)
        losses, accuracies = contrastive_loss(one, two, self.settings.temperature, is_there)
        weights = is_there * weight / jnp.maximum(is_there.sum(), 1)
        contrast = (losses * weights).sum()
        return {
            **found,
            "loss": (masked_total + self.settings.weight * contrast, weight),
            "separate_mlm_loss": (masked_total, weight),
            "contrast_loss": (contrast, weight),
            "contrast_accuracy": ((accuracies * weights).sum(), weight),
        }, None


def contrastive_loss(
    one: jax.Array, two: jax.Array, temperature: float, is_used: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return [N] float32 losses and accuracies of finding translations in the batch.

    For unit vectors a_i and b_i of a pair, the loss is the mean of -log softmax_j(a_i . b_j /
    temperature)[i] and the same from b to a. This is the XLCO loss of InfoXLM (arXiv 2007.07834)
    with in-batch negatives in place of a queue, in both directions. `one` and `two` are [N, D]
    float32 vectors of sentences and translations. Only pairs that are `is_used` [N] are negatives.
    An accuracy is 0, 1/2 or 1 if no, one or both sentences of a pair retrieve the other.
    """
    scores = _unit(one) @ _unit(two).T / temperature  # [N, N]
    if is_used is not None:
        is_other = is_used[:, None] & is_used[None]
        scores = jnp.where(is_other | jnp.eye(len(scores), dtype=bool), scores, _ABSENT)
    both = jnp.stack([scores, scores.T])
    own = jnp.broadcast_to(jnp.arange(len(scores)), both.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(both, own)
    return losses.mean(axis=0), (jnp.argmax(both, axis=2) == own).mean(axis=0)


def _unit(vectors: jax.Array) -> jax.Array:
    squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
    return vectors * jax.lax.rsqrt(squares + _EPSILON)


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceEmbedding(FineTuning):
    """Loss of all vectors of a batch, on features of `input_pipeline.tasks.embeddings`.

    The loss compares all vectors of a batch, but memory holds the states of one of A
    `num_microbatches` (GradCache, arXiv 2101.06983). Gradients encode each microbatch once more.
    Microbatch i has the examples i, i + A and so on, a slice of each device's, and its own dropout
    key.
    """

    num_microbatches: int = 1

    def example_axes(self, plan: Batch, num_shards: int) -> None:
        """Return None: the loss compares all examples."""

    def outputs(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None,
        rows: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return vectors [B, S, D] float32 of the S texts of each example."""
        texts = {name: array for name, array in batch.items() if array.ndim == 3}  # [B, S, L]
        if dropout_key is None or self.num_microbatches == 1:
            return self._vectors(params, texts, dropout_key, rows)
        parts = jax.tree.map(
            lambda x: jnp.moveaxis(x.reshape(-1, self.num_microbatches, *x.shape[1:]), 1, 0), texts
        )
        keys = jax.random.split(dropout_key, self.num_microbatches)
        encoded = jax.checkpoint(lambda part, key: self._vectors(params, part, key, rows))
        found = jax.lax.map(lambda of_part: encoded(*of_part), (parts, keys))  # [A, B / A, S, D]
        return jnp.moveaxis(found, 0, 1).reshape(-1, *found.shape[2:])

    def _vectors(
        self, params: Any, texts: dict[str, jax.Array], key: jax.Array | None,
        rows: jax.Array | None,
    ) -> jax.Array:  # fmt: skip
        first_axes = texts["tokens"].shape[:2]
        flat = {name: array.reshape(-1, array.shape[2]) for name, array in texts.items()}
        return super().outputs(params, flat, key, rows).reshape(*first_axes, -1)


def pair_loss(
    vectors: jax.Array, batch: Mapping[str, jax.Array], *, temperature: float,
    contrast_margin: float = 0.0, dimensions: tuple[int, ...] = (),
) -> LossAndMetrics:  # fmt: skip
    """Return the loss of finding passages by queries, and queries by passages; accuracy of both.

    The loss is InfoNCE over cosines divided by `temperature`. The pair's own cosine is less by
    `contrast_margin`. `vectors` [B, S, D] are a query, its passage, and wrong passages, which are
    negatives of all queries. A text is no negative if it or its partner equals one of the pair, by
    `text_ids` [B, S]. The loss averages those of the first `dimensions` (Matryoshka, arXiv
    2205.13147). The accuracy is that of the last of them.
    """
    ids, weights, count = batch["text_ids"], batch["weights"], len(vectors)
    pairs, others = ids[:, :2], ids[:, 2:].reshape(1, 1, -1)
    shares = (pairs[:, None, :, None] == pairs[None, :, None]).any(axis=(2, 3))
    is_same = jnp.concatenate([shares, (pairs[:, :, None] == others).any(axis=1)], axis=1)
    own = jnp.eye(count, is_same.shape[1], dtype=bool)
    sizes, places = dimensions or vectors.shape[2:], jnp.arange(count)
    losses = jnp.zeros(count)
    for size in sizes:
        first, hits = vectors[:, :, :size], jnp.zeros(count)
        queries, *passages = map(_unit, (first[:, 0], first[:, 1], first[:, 2:].reshape(-1, size)))
        cosines = jnp.matmul(queries, jnp.concatenate(passages).T, precision="highest")
        scores = (cosines - contrast_margin * own) / temperature
        scores = jnp.where(own | ~is_same, scores, _ABSENT)
        for one in (scores, scores[:, :count].T):
            found = optax.softmax_cross_entropy_with_integer_labels(one, places)
            losses += found / (2 * len(sizes))
            hits += (jnp.argmax(one, axis=1) == places) / 2
    total = weights.sum()
    return {"loss": ((losses * weights).sum(), total), "accuracy": ((hits * weights).sum(), total)}


def similarity_loss(
    vectors: jax.Array, batch: Mapping[str, jax.Array], *, temperature: float,
    dimensions: tuple[int, ...] = (), **of_pairs: float,
) -> LossAndMetrics:  # fmt: skip
    """Return log(1 + sum exp((c_j - c_i) / temperature)) over examples i with a label above j's.

    c_i is the cosine of the first two `vectors` [B, S, D] of example i, `labels` are [B] float32.
    Only the order of labels counts (CoSENT, Su 2022). A batch without labels has the loss
    `pair_loss`, which describes `dimensions`.
    """
    if "labels" not in batch:
        return pair_loss(vectors, batch, temperature=temperature, dimensions=dimensions, **of_pairs)
    labels, weights = batch["labels"], batch["weights"]
    is_above = (labels[:, None] > labels[None]) & (weights[:, None] * weights[None] > 0)
    losses, sizes = [], dimensions or vectors.shape[2:]
    for size in sizes:
        one, two = (_unit(vectors[:, place, :size]) for place in (0, 1))
        cosines = (one * two).sum(axis=1) / temperature
        gaps = jnp.where(is_above, cosines[None] - cosines[:, None], _ABSENT)
        losses.append(jax.nn.logsumexp(jnp.append(gaps, 0.0)))
    return {"loss": (jnp.stack(losses).mean() * weights.sum(), weights.sum())}


def distillation_loss(
    vectors: jax.Array, batch: Mapping[str, jax.Array], *, dimensions: tuple[int, ...] = ()
) -> LossAndMetrics:
    """Return the squared distance of query and passage from the teacher's vector of the query.

    So a translation learns the vector of its original (Reimers and Gurevych, arXiv 2004.09813).
    `vectors` [B, S, D] are those of `pair_loss`, and `teacher` [B, D] float32 of the batch is the
    teacher's. All have length 1. The loss averages those of the first `dimensions`.
    """
    weights, losses, sizes = batch["weights"], [], dimensions or vectors.shape[2:]
    for size in sizes:
        of_pair, of_teacher = _unit(vectors[:, :2, :size]), _unit(batch["teacher"][:, :size])
        losses.append(((of_pair - of_teacher[:, None]) ** 2).sum(axis=2).mean(axis=1))
    return {"loss": ((sum(losses) / len(sizes) * weights).sum(), weights.sum())}
