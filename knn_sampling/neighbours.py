"""The neighbour index: the k nearest words of every word, by inner product (Eq. 5)."""

import functools

import jax
import jax.numpy as jnp


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
