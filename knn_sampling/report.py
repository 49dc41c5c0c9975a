"""What the neighbour index looks like: how stale it was, and whom it lists."""

import jax
import jax.numpy as jnp

# Words looked at: K x K comparisons for each add up at large vocabularies, and the share of so
# many words is known to a third of a per cent of its list entries.
_WORDS = 4096


def staleness(old: jax.Array, fresh: jax.Array, words: jax.Array, num_valid: int) -> jax.Array:
    """Share of the fresh lists' entries that the old ones lack: scalar float32 in 0..1.

    Args:
      old: [N, K] int32 neighbours of `words` up to now.
      fresh: [N, K] int32 neighbours from the table of now.
      words: [N] int32.
      num_valid: words; padding does not count.
    """
    old, fresh, words = (_spread(x) for x in (old, fresh, words))
    found = (fresh[:, :, None] == old[:, None, :]).any(axis=2)  # [N, K]
    return 1 - _mean(found, jnp.broadcast_to((words < num_valid)[:, None], found.shape))


def same_group_share(neighbours: jax.Array, words: jax.Array, groups: jax.Array) -> jax.Array:
    """Share of neighbours, the word itself aside, of the word's own group: scalar float32.

    Args:
      neighbours: [N, K] int32 neighbours of `words`.
      words: [N] int32.
      groups: [V] int32 group (language) of each word; negative for words of none.
    """
    neighbours, words = _spread(neighbours), _spread(words)
    mine, theirs = groups[words][:, None], groups[neighbours]
    counts = (neighbours != words[:, None]) & (mine >= 0) & (theirs >= 0)
    return _mean(mine == theirs, counts)


def _spread(x: jax.Array) -> jax.Array:
    """Evenly spaced items, some `_WORDS` of them."""
    return x[:: max(1, x.shape[0] // _WORDS)]


def _mean(values: jax.Array, counts: jax.Array) -> jax.Array:
    return jnp.sum(values & counts) / jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
