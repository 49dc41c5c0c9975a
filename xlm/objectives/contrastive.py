"""Cross-lingual contrastive learning of sentence vectors, beside masked LM."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax

from xlm.models.segments import segment_means
from xlm.objectives.masked_lm import MaskedLM, OnMaskedLM, Plan
from xlm.objectives.objective import LossAndMetrics
from xlm.objectives.settings import ContrastSettings

# Score of a pair that is not there.
_ABSENT = -1e9
# Added to squared norms, so that the zero vector of a fully masked sentence has gradient zero.
_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceContrast(OnMaskedLM):
    """Masked LM on sentences as segments, with a contrastive loss between those of a pair.

    The pairs of a row, at most L / 8, have the segments 1 and 2, 3 and 4, and so on. A sentence's
    vector is the mean of the states of its text tokens, without masked ones. Both terms share one
    encoder pass over the same masked batch.
    """

    masked_lm: MaskedLM
    settings: ContrastSettings

    def loss(self, params, rows, plan: Plan, key: jax.Array | None) -> tuple[LossAndMetrics, None]:
        """Add masked-LM and weighted contrastive loss; a pair weighs its masked tokens."""
        states = self.masked_lm.states(params, rows, plan, key)
        losses = self.masked_lm.losses_from(params, rows, plan, states)
        found = self.masked_lm.metrics_of(losses, plan)
        masked_total, weight = found["loss"]
        is_text = ~jnp.isin(plan.masked.inputs, jnp.array(self.masked_lm.special_ids))
        most = 2 * max(is_text.shape[1] // 8, 1)  # 2 P
        of_segments = segment_means(states, is_text, plan.segments, most)  # [B, 2 P, D]
        one, two = (of_segments[:, i::2].reshape(-1, states.shape[2]) for i in (0, 1))
        pairs = jax.nn.one_hot((plan.segments - 1) // 2, most // 2)  # [B, L, P]
        of_masked = jnp.take_along_axis(pairs, plan.masked.positions[:, :, None], axis=1)
        weights = (of_masked * plan.masked.weights[:, :, None]).sum(axis=1).reshape(-1)
        is_there = pairs.any(axis=1).reshape(-1)
        losses, accuracies = contrastive_loss(one, two, self.settings.temperature, is_there)
        contrast = (losses * weights).sum()
        return {
            **found,
            "loss": (masked_total + self.settings.weight * contrast, weight),
            "separate_mlm_loss": (masked_total, weight),
            "contrast_loss": (contrast, weight),
            "contrast_accuracy": ((accuracies * weights).sum(), weight),
        }, None

    @functools.cached_property
    def exact(self) -> "SentenceContrast":
        return dataclasses.replace(self, masked_lm=self.masked_lm.exact)


def contrastive_loss(
    one: jax.Array, two: jax.Array, temperature: float, is_used: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return [N] float32 losses and accuracies of finding translations in the batch.

    For unit vectors a_i and b_i of a pair, the loss is the mean of -log softmax_j(a_i . b_j /
    temperature)[i] and the same from b to a. This is the XLCO loss of InfoXLM (arXiv 2007.07834)
    with in-batch negatives in place of a queue, in both directions. `one` and `two` are [N, D]
    float32 vectors of sentences and translations. Pairs that are not `is_used` [N] are nobody's
    negatives. An accuracy is 0, 1/2 or 1 if none, one or both sentences of a pair retrieve the
    other.
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
    squares = jnp.sum(vectors**2, axis=1, keepdims=True)
    return vectors * jax.lax.rsqrt(squares + _EPSILON)
