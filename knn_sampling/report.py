"""Health of the neighbour index: how stale it had become, and how many neighbours share a group."""

import jax
import jax.numpy as jnp

# Tokens looked at: K x K comparisons for each add up at large vocabularies, and the share of so
# many tokens is known to a third of a per cent of their list entries.
_TOKENS = 4096


def staleness(old: jax.Array, fresh: jax.Array, num_valid: int) -> jax.Array:
    """Share of the fresh lists' entries that the old ones lack: scalar float32 in 0..1.

    Args:
      old: [V, K] int32 neighbours up to now.
      fresh: [V, K] int32 neighbours from the table of now.
      num_valid: tokens; padding does not count.
    """
    tokens = _spread(len(fresh))
    found = (fresh[tokens][:, :, None] == old[tokens][:, None, :]).any(axis=2)  # [N, K]
    return 1 - _mean(found, jnp.broadcast_to((tokens < num_valid)[:, None], found.shape))


def same_group_share(neighbours: jax.Array, groups: jax.Array) -> jax.Array:
    """Share of neighbours, the token itself aside, of the token's own group: scalar float32.

    Args:
      neighbours: [V, K] int32.
      groups: [V] int32 group (language) of each token; negative for tokens of none.
    """
    tokens = _spread(len(neighbours))
    listed = neighbours[tokens]  # [N, K]
    own, theirs = groups[tokens][:, None], groups[listed]
    counts = (listed != tokens[:, None]) & (own >= 0) & (theirs >= 0)
    return _mean(own == theirs, counts)


def _spread(num_tokens: int) -> jax.Array:
    """Evenly spaced ids, some `_TOKENS` of them."""
    return jnp.arange(0, num_tokens, max(1, num_tokens // _TOKENS))


def _mean(values: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.sum(values & counts) / jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
