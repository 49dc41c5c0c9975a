"""The neighbour index: the k nearest words of every word, by inner product (Eq. 5)."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp


class NeighbourIndex(NamedTuple):
    """What k-NN target sampling needs to know between two refreshes.

    Attributes:
      neighbours: [V, K] int32, see `nearest_neighbours`.
      log_inclusion: [V] float32, see `log_inclusion`; zeros where no correction is wanted.
    """

    neighbours: jax.Array
    log_inclusion: jax.Array


@functools.partial(jax.jit, static_argnames=("k", "num_valid", "block_size"))
def nearest_neighbours(
    table: jax.Array, *, k: int, num_valid: int, block_size: int = 1024
) -> jax.Array:
    """I_k(w_i) = top-k over j of e_i . e_j, for all words w_i (Eq. 5, Algorithm 2).

    Exact, computed for `block_size` words at a time so that [V, V] is never held. Products are in
    float32 at the highest matmul precision. Ties are broken towards the smaller id. NaN counts as
    the smallest score, where a plain top-k would rank it first.

    Args:
      table: [V, D] output embeddings; may be sharded over V.
      k: neighbours per word.
      num_valid: words; rows from here on pad the table and are nobody's neighbours.
      block_size: words scored at a time, the memory is block_size * V floats.

    Returns:
      [V, K] int32 ids by falling score. A word is usually, not always, its own neighbour. Rows of
      padding hold meaningless valid ids.

    Raises:
      ValueError: `k` is not in 1..num_valid, or `block_size` is below 1.
    """
    vocab_size = table.shape[0]
    if not 1 <= k <= num_valid <= vocab_size:
        raise ValueError(
            f"k is {k}, num_valid {num_valid}: must be 1 <= k <= num_valid <= {vocab_size}"
        )
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}, must be at least 1")
    table = table.astype(jnp.float32)
    is_padding = jnp.arange(vocab_size)[None, :] >= num_valid  # [1, V]

    def top_k_of_block(ids: jax.Array) -> jax.Array:
        queries = table.at[ids].get(mode="clip")  # [block, D]
        scores = jnp.dot(queries, table.T, precision=jax.lax.Precision.HIGHEST)  # [block, V]
        scores = jnp.where(jnp.isnan(scores) | is_padding, -jnp.inf, scores)
        return jax.lax.top_k(scores, k)[1].astype(jnp.int32)

    block_size = min(block_size, vocab_size)
    num_blocks = -(-vocab_size // block_size)
    blocks = jnp.arange(num_blocks * block_size).reshape(num_blocks, block_size)
    return jax.lax.map(top_k_of_block, blocks).reshape(-1, k)[:vocab_size]


def log_inclusion(
    neighbours: jax.Array, target_probabilities: jax.Array, num_targets: int
) -> jax.Array:
    """log Q_j, the log probability that word j is in the candidate set V' of a batch.

    A target w brings in w and I_k(w). With q_j the chance that one target brings in j,
    q_j = sum of p(w) over the w with j = w or j in I_k(w), and W independent targets,
    Q_j = 1 - (1 - q_j)^W. Subtracted from the logits, it corrects the softmax over V' for what V'
    holds more often than a sample of all words would: above all, rare words only when they are
    targets (the correction of sampled softmax, Jean et al. 2015, with this proposal).

    Args:
      neighbours: [V, K] int32.
      target_probabilities: [V] float, p(w), how often each word is a target; sums to one.
      num_targets: W, targets of a batch.

    Returns:
      [V] float32, at most 0.
    """
    vocab_size = neighbours.shape[0]
    p = target_probabilities.astype(jnp.float32)
    lists_itself = (neighbours == jnp.arange(vocab_size)[:, None]).any(axis=1)
    q = jnp.where(lists_itself, 0.0, p).at[neighbours].add(p[:, None])
    # A word that is never a target and nobody's neighbour is never a candidate either; any finite
    # value will do.
    q = jnp.clip(q, 1e-12, 1.0)
    return jnp.log(-jnp.expm1(num_targets * jnp.log1p(-q)))
