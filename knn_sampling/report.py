"""Metrics of the neighbour index: staleness, and share of neighbours of the same group."""

import jax
import jax.numpy as jnp

# Tokens sampled: K x K comparisons for each are costly at large vocabularies, and so many tokens
# give the share to within a third of a per cent of their list entries.
_TOKENS = 4096


def staleness(old: jax.Array, fresh: jax.Array, num_valid: int) -> jax.Array:
    """Share of entries in the fresh lists that the old lists lack: scalar float32 in 0..1.

    Args:
      old: [V, K] int32 neighbours before the refresh.
      fresh: [V, K] int32 neighbours of the current table.
      num_valid: number of tokens, without padding.
    """
    tokens = _spread(len(fresh))
    found = (fresh[tokens][:, :, None] == old[tokens][:, None, :]).any(axis=2)  # [N, K]
    return 1 - _mean(found, jnp.broadcast_to((tokens < num_valid)[:, None], found.shape))


def same_group_share(neighbours: jax.Array, groups: jax.Array) -> jax.Array:
    """Share of neighbours, other than the token itself, in its own group: scalar float32.

    Args:
      neighbours: [V, K] int32.
      groups: [V] int32 group (language) of each token; negative for none.
    """
    tokens = _spread(len(neighbours))
    listed = neighbours[tokens]  # [N, K]
    own, theirs = groups[tokens][:, None], groups[listed]
    counts = (listed != tokens[:, None]) & (own >= 0) & (theirs >= 0)
    return _mean(own == theirs, counts)


def _spread(num_tokens: int) -> jax.Array:
    """About `_TOKENS` evenly spaced ids."""
    return jnp.arange(0, num_tokens, max(1, num_tokens // _TOKENS))


def _mean(values: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.sum(values & counts) / jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
