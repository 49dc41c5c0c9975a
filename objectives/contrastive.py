"""Cross-lingual contrast: a sentence is to be nearer its translation than other sentences."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

# Of squared norms; a vector of zeros, of a sentence that is masked whole, has gradient zero.
_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class ContrastSettings:
    """Cross-lingual contrast; the `contrast` section of a config.

    Attributes:
      weight: of the contrastive loss, beside that of masked tokens.
      temperature: what cosines are divided by.
    """

    weight: float
    temperature: float

    def __post_init__(self):
        if self.weight < 0:
            raise ValueError(f"contrast.weight is {self.weight}, must be at least 0")
        if self.temperature <= 0:
            raise ValueError(f"contrast.temperature is {self.temperature}, must be above 0")


def contrastive_loss(
    one: jax.Array, two: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Negative log-probability of each sentence's translation among all of the batch.

    For unit vectors a_i and b_i of a pair, -log softmax_j(a_i . b_j / temperature)[i], and the same
    from b to a; the mean of the two. After the XLCO loss of InfoXLM (arXiv 2007.07834) with
    the other sentences of the batch in place of a queue, and in both directions.

    Args:
      one, two: [B, D] float32 vectors of sentences and their translations.
      temperature: what cosines are divided by.

    Returns:
      [B] float32 losses; [B] float32 accuracies, 0, 1/2 or 1 as none, one or both of a pair find
      the other.
    """
    scores = _unit(one) @ _unit(two).T / temperature  # [B, B]
    both = jnp.stack([scores, scores.T])
    own = jnp.broadcast_to(jnp.arange(len(scores)), both.shape[:2])
    losses = optax.softmax_cross_entropy_with_integer_labels(both, own)
    return losses.mean(axis=0), (jnp.argmax(both, axis=2) == own).mean(axis=0)


def _unit(vectors: jax.Array) -> jax.Array:
    squares = jnp.sum(vectors**2, axis=1, keepdims=True)
    return vectors * jax.lax.rsqrt(squares + _EPSILON)
