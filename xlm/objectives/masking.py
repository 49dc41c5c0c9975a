"""Random masking of tokens, and their replacement."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Masked(NamedTuple):
    """Masked batch.

    Attributes:
      inputs: [B, L] int32 tokens with masks applied.
      positions: [B, M] int32 chosen positions of each sequence.
      targets: [B, M] int32 original tokens at these positions.
      weights: [B, M] float32, 1 for chosen positions and 0 for unused slots.
    """

    inputs: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array


@dataclasses.dataclass(frozen=True)
class MaskSettings:
    """Rates of masking; the `mask` section of a config.

    Attributes:
      rate: share of a sequence's text tokens that is predicted.
      mask_share: share of these that is replaced by `<mask>`.
      random_share: share of these that is replaced by a random piece; the rest is kept.
      final_rate: rate at the last step, linear from `rate` at the first; 0 for a constant rate.
      pair_rate: constant rate on pairs of translations; 0 for the same rates as on text.
    """

    rate: float
    mask_share: float
    random_share: float
    final_rate: float = 0.0
    pair_rate: float = 0.0

    def __post_init__(self):
        if not 0 < self.rate < 1:
            raise ValueError(f"mask.rate is {self.rate}, must be between 0 and 1")
        if not 0 <= self.final_rate < 1:
            raise ValueError(
                f"mask.final_rate is {self.final_rate}, must be between 0 and 1, or 0 for no change"
            )
        if not 0 <= self.pair_rate < 1:
            raise ValueError(
                f"mask.pair_rate is {self.pair_rate}, must be between 0 and 1, or 0 for mask.rate"
            )
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask.mask_share {self.mask_share} and mask.random_share {self.random_share} must "
                "be shares that sum to at most 1"
            )

    def of_pairs(self) -> "MaskSettings":
        """Settings for pairs of translations."""
        if not self.pair_rate:
            return self
        return dataclasses.replace(self, rate=self.pair_rate, final_rate=0.0)

    def slots(self, length: int) -> int:
        """M, number of masked positions in a sequence of `length` text tokens."""
        return math.ceil(max(self.rate, self.final_rate) * length)

    def rate_at(self, step: jax.Array, num_steps: int) -> jax.Array | None:
        """Rate at a step of `num_steps`, scalar float32; None if it is always `rate`."""
        if not self.final_rate:
            return None
        share = step.astype(jnp.float32) / max(num_steps - 1, 1)
        return self.rate + (self.final_rate - self.rate) * jnp.minimum(share, 1)


def mask_tokens(
    key: jax.Array,
    tokens: jax.Array,
    settings: MaskSettings,
    *,
    vocab_size: int,
    mask_id: int,
    special_ids: tuple[int, ...],
    rate: jax.Array | None = None,
) -> Masked:
    """Mask a share of every sequence at random (BERT's 80/10/10 with the usual settings).

    In a sequence of n text tokens round(rate n) are masked, at least one; the number of slots is
    static, so unused ones have weight zero.

    Args:
      key: random key; the result is a pure function of it and of `tokens`.
      tokens: [B, L] int32.
      vocab_size: number of pieces that random ones are drawn from.
      mask_id: id of `<mask>`.
      special_ids: ids that are never masked and never used as random replacements.
      rate: scalar float32; None for `settings.rate`.
    """
    where_key, how_key, what_key = jax.random.split(key, 3)
    eligible = ~jnp.isin(tokens, jnp.array(special_ids))  # [B, L]
    slots = settings.slots(tokens.shape[1])
    priority = jnp.where(eligible, jax.random.uniform(where_key, tokens.shape), -1.0)
    positions = jax.lax.top_k(priority, slots)[1].astype(jnp.int32)  # [B, M]
    targets = jnp.take_along_axis(tokens, positions, axis=1)

    num_text = eligible.sum(axis=1)
    count = jnp.round((settings.rate if rate is None else rate) * num_text)
    count = jnp.clip(count, 1, slots)
    count = jnp.where(num_text > 0, count, 0)
    weights = (jnp.arange(slots)[None, :] < count[:, None]).astype(jnp.float32)

    how = jax.random.uniform(how_key, positions.shape)
    random_pieces = jax.random.randint(what_key, positions.shape, 0, vocab_size, jnp.int32)
    is_special = jnp.isin(random_pieces, jnp.array(special_ids))
    random_pieces = jnp.where(is_special, targets, random_pieces)
    replacement = jnp.where(
        how < settings.mask_share,
        mask_id,
        jnp.where(how < settings.mask_share + settings.random_share, random_pieces, targets),
    )
    replacement = jnp.where(weights > 0, replacement, targets)
    rows = jnp.arange(tokens.shape[0])[:, None]
    inputs = tokens.at[rows, positions].set(replacement, unique_indices=True)
    return Masked(inputs, positions, targets, weights)
