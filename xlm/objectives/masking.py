"""Random masking of tokens, and their replacement."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from xlm.objectives.settings import MaskSettings


class Masked(NamedTuple):
    """Masked batch: `inputs` [B, L] int32, and chosen positions of each sequence, [B, M] int32.

    `targets` [B, M] int32 are their original tokens. `weights` [B, M] float32 are 1 for chosen
    positions and 0 for unused slots.
    """

    inputs: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array


def mask_tokens(
    key: jax.Array, tokens: jax.Array, settings: MaskSettings, *, vocab_size: int, mask_id: int,
    special_ids: tuple[int, ...], rate: jax.Array | None = None,
) -> Masked:  # fmt: skip
    """Mask a share of each sequence of `tokens` [B, L] int32 (BERT's 80/10/10 by default).

    A sequence of n text tokens has round(rate n) masked ones, at least one. Random replacements
    come from the first `vocab_size` pieces. `special_ids` are never masked or replacements, and no
    span crosses them. `rate`, float32, is a scalar or [B], by default `settings.rate`.
    """
    where_key, how_key, what_key = jax.random.split(key, 3)
    eligible = ~jnp.isin(tokens, jnp.array(special_ids))  # [B, L]
    slots = settings.slots(tokens.shape[1])
    priority = jax.random.uniform(where_key, tokens.shape)
    if settings.span > 1:
        priority = _of_spans(where_key, priority, eligible, settings.span)
    priority = jnp.where(eligible, priority, -1.0)
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


def _of_spans(key: jax.Array, priority: jax.Array, eligible: jax.Array, mean: float) -> jax.Array:
    """Give the tokens of a span one priority, [B, L], to choose spans as a whole.

    A coin at each token cuts text into spans. Each special token is a span of its own. Masking cuts
    the last chosen span to the number of masked tokens.
    """
    is_first = jax.random.bernoulli(jax.random.fold_in(key, 1), 1 / mean, priority.shape)
    is_first |= ~eligible | ~jnp.pad(eligible, ((0, 0), (1, 0)))[:, :-1]
    span = jnp.cumsum(is_first, axis=1) - 1
    return jnp.take_along_axis(priority, span, axis=1)
