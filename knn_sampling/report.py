"""Metrics of the neighbour index: staleness, and share of neighbours of the same group."""

import jax
import jax.numpy as jnp

# Tokens sampled. Comparing K x K ids for all would be costly at large vocabularies, and so many
# give the share to within a third of a per cent of their list entries.
_TOKENS = 4096


def staleness(old: jax.Array, fresh: jax.Array, num_valid: int) -> jax.Array:
    """Return the share of entries in fresh lists [V, K] that old ones lack: float32 in 0..1."""
    tokens = _spread(len(fresh))
    found = (fresh[tokens][:, :, None] == old[tokens][:, None, :]).any(axis=2)  # [N, K]
    return 1 - _mean(found, jnp.broadcast_to((tokens < num_valid)[:, None], found.shape))


def same_group_share(neighbours: jax.Array, groups: jax.Array) -> jax.Array:
    """Return the share of neighbours [V, K], the token itself excluded, of its group: float32."""
    # `groups` [V] int32 are languages, negative for none.
    tokens = _spread(len(neighbours))
    listed = neighbours[tokens]  # [N, K]
    own, theirs = groups[tokens][:, None], groups[listed]
    counts = (listed != tokens[:, None]) & (own >= 0) & (theirs >= 0)
    return _mean(own == theirs, counts)


def _spread(num_tokens: int) -> jax.Array:
    """Return about `_TOKENS` evenly spaced ids."""
    return jnp.arange(0, num_tokens, max(1, num_tokens // _TOKENS))


def _mean(values: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.sum(values & counts) / jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
