"""Exact softmax cross-entropy over the whole vocabulary, without materialising the logits.

The forward pass visits blocks of the vocabulary one after another, with a running maximum and sum
of exponentials per position. The backward pass recomputes each block's logits.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from knn_sampling.losses import ABSENT
from knn_sampling.table_sharding import ONE_DEVICE, TableSharding

# Classes per block on a CPU: a block should fit its caches; see benchmarks/softmax.py.
DEFAULT_BLOCK_SIZE = 1024
# On accelerators large products hide the cost of the loop.
_ACCELERATOR_BLOCK_SIZE = 16_384

# Block sizes are a multiple of this if possible: matrix units are fastest on whole tiles.
_TILE = 128


def vocabulary_block_size() -> int:
    """Return classes per block of the whole vocabulary's softmax, on the default backend."""
    return DEFAULT_BLOCK_SIZE if jax.default_backend() == "cpu" else _ACCELERATOR_BLOCK_SIZE


def blockwise_softmax_loss(
    hidden: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    *,
    num_valid: int,
    block_size: int,
    num_used: jax.Array | None = None,
    sharding: TableSharding = ONE_DEVICE,
) -> jax.Array:
    """Return [W] weighted losses log sum_j exp(h . v_j + b_j) - (h . v_w + b_w), float32 nats.

    Value and gradient are those of `losses.full_softmax_loss` over all rows of a table. With the
    rows of V' they are those of `losses.candidate_softmax_loss` (Eq. 4). Memory beyond the
    gradients is a few times W * block_size floats instead of W * V. Only a gradient costs one more
    matrix product. Blocks take the dtype of `hidden`, and products accumulate in float32. Devices
    with different rows visit their own blocks, and exchange [W] normalisers and target logits. The
    running normaliser is by Milakov and Gimelshein 2018 (arXiv:1805.02867), the recomputation of
    blocks by Wijmans et al. 2024 (arXiv:2411.09009).

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from knn_sampling.blockwise import blockwise_softmax_loss
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> table = jax.random.normal(keys[0], (1000, 16))
      >>> hidden = jax.random.normal(keys[1], (4, 16))
      >>> targets, bias = jnp.array([1, 10, 100, 999]), jnp.zeros(1000)
      >>> losses = blockwise_softmax_loss(
      ...     hidden, targets, jnp.ones(4), table, bias, num_valid=1000, block_size=128)
      >>> expected = optax.softmax_cross_entropy_with_integer_labels(hidden @ table.T, targets)
      >>> bool(jnp.allclose(losses, expected, rtol=1e-5))
      True

    Args:
      hidden: [W, D] hidden states, float32 or bfloat16.
      targets: [W] int32 target ids below `num_valid`.
      weights: [W]; positions of weight zero may have any hidden state and target.
      table: [V, D] output embeddings of any float dtype, which is also that of their gradient.
      bias: [V] output bias.
      num_valid: number of classes; table rows from here on are padding without probability.
      block_size: most classes per block; need not divide V. 0 puts all into one block, a negative
        one is a ValueError.
      num_used: scalar int32; the loop skips blocks of classes from here on, which must all have the
        bias `losses.ABSENT`. None for V.
      sharding: of the table. If it splits the rows, then evenly and without `num_used`.
    """
    if block_size < 0:
        raise ValueError(f"block_size is {block_size}, must be at least 0 (one block)")
    counts = weights > 0
    # A hidden state of weight zero may be NaN, and zero times NaN would put NaN into the gradient.
    hidden = jnp.where(counts[:, None], hidden, 0)
    if sharding.splits_rows:
        losses = _sharded_losses(hidden, targets, table, bias, num_valid, block_size, sharding)
    else:
        num_used = jnp.int32(table.shape[0]) if num_used is None else num_used
        found = _parts(hidden, targets, table, bias, num_used, jnp.int32(num_valid), block_size)
        losses = found[0] - found[1]
    return jnp.where(counts, losses * weights, 0.0)


def _sharded_losses(hidden, targets, table, bias, num_valid, block_size, sharding):
    """Return unweighted losses [W] on devices that each have some of the rows."""
    axes = sharding.row_axes

    def on_device(hidden, targets, rows, bias):
        size = rows.shape[0]
        start = jax.lax.axis_index(axes) * size
        own = jnp.clip(num_valid - start, 0, size)
        found = _parts(hidden, targets - start, rows, bias, jnp.int32(size), own, block_size)
        return tuple(part[None, :] for part in found)

    by_row = P(axes)
    mapped = sharding.shard_map(
        on_device, in_specs=(P(), P(), by_row, by_row), out_specs=(by_row, by_row)
    )
    log_normalisers, target_logits = mapped(hidden, targets, table, bias)
    # One device has the row of a target, and all others have zero for its logit.
    return jax.nn.logsumexp(log_normalisers, axis=0) - target_logits.sum(axis=0)


class _Block(NamedTuple):
    """Consecutive table rows [B, D], from id `start` on, in the dtype of the hidden states.

    `bias` [B] float32 is `ABSENT` for padding; `is_new` [B] bool marks rows in no earlier block.
    """

    start: jax.Array
    rows: jax.Array
    bias: jax.Array
    is_new: jax.Array

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Return logits [B, W] float32."""
        products = jnp.dot(self.rows, hidden.T, preferred_element_type=jnp.float32)
        return products + self.bias[:, None]

    def is_target(self, targets: jax.Array) -> jax.Array:
        """Return the target mask [B, W], a comparison that XLA fuses into its consumer."""
        ids = self.start + jnp.arange(len(self.bias), dtype=jnp.int32)
        return ids[:, None] == targets[None, :]


def _split(vocab_size: int, block_size: int) -> tuple[int, int]:
    """Return number and equal size of blocks, with the least overlap of the last one."""
    block_size = min(block_size or vocab_size, vocab_size)
    num_blocks = -(-vocab_size // block_size)
    even = -(-vocab_size // num_blocks)
    return num_blocks, min(-(-even // _TILE) * _TILE, block_size)


def _block(table, bias, dtype, number: jax.Array, size: int, num_valid: int) -> _Block:
    """Return the block at index `number`; the last one ends with the table and may overlap."""
    first_new = number * size
    start = jnp.minimum(first_new, table.shape[0] - size)
    ids = start + jnp.arange(size, dtype=jnp.int32)
    rows = jax.lax.dynamic_slice_in_dim(table, start, size).astype(dtype)
    block_bias = jax.lax.dynamic_slice_in_dim(bias, start, size).astype(jnp.float32)
    return _Block(start, rows, jnp.where(ids < num_valid, block_bias, ABSENT), ids >= first_new)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def _parts(hidden, targets, table, bias, num_used, num_valid, block_size):
    """Return log normalisers [W], and logits [W] of the targets, 0 for targets out of range."""
    return _forward(hidden, targets, table, bias, num_used, num_valid, block_size)[0]


def _visited(num_blocks: int, size: int, num_used: jax.Array) -> jax.Array:
    """Return the number of blocks that hold used classes, at least one."""
    return jnp.clip((num_used + size - 1) // size, 1, num_blocks)


def _forward(hidden, targets, table, bias, num_used, num_valid, block_size):
    num_blocks, size = _split(table.shape[0], block_size)

    def visit(number, carry):
        maximum, total, target_logits = carry
        block = _block(table, bias, hidden.dtype, number, size, num_valid)
        block = block._replace(bias=jnp.where(block.is_new, block.bias, ABSENT))
        logits = block.logits(hidden)
        new_maximum = jnp.maximum(maximum, logits.max(axis=0))
        exps = jnp.exp(logits - new_maximum[None, :])
        total = total * jnp.exp(maximum - new_maximum) + exps.sum(axis=0)
        is_target = block.is_target(targets) & block.is_new[:, None]
        target_logits += jnp.where(is_target, logits, 0.0).sum(axis=0)
        return new_maximum, total, target_logits

    zeros = jnp.zeros(hidden.shape[0], jnp.float32)
    start = jnp.full_like(zeros, ABSENT), zeros, zeros
    visited = _visited(num_blocks, size, num_used)
    maximum, total, target_logits = jax.lax.fori_loop(0, visited, visit, start)
    log_normaliser = maximum + jnp.log(total)
    saved = hidden, targets, table, bias, num_used, num_valid, log_normaliser
    return (log_normaliser, target_logits), saved


def _backward(block_size, saved, by_parts):
    hidden, targets, table, bias, num_used, num_valid, log_normaliser = saved
    by_normaliser, by_target = by_parts
    # Zero for a loss, which is the difference of both parts.
    rest = by_normaliser + by_target
    num_blocks, size = _split(table.shape[0], block_size)

    def visit(number, carry):
        by_hidden, by_table, by_bias = carry
        block = _block(table, bias, hidden.dtype, number, size, num_valid)
        probabilities = jnp.exp(block.logits(hidden) - log_normaliser[None, :])
        is_target = block.is_target(targets)
        by_logit = by_normaliser[None, :] * (probabilities - is_target)  # [B, W]
        by_logit += jnp.where(is_target, rest[None, :], 0.0)
        short = by_logit.astype(hidden.dtype)
        # Overlapping blocks write the same gradient of a shared class to the table, but only the
        # first may add it to the gradient of the hidden states.
        new_rows = jnp.where(block.is_new[:, None], block.rows, 0)
        by_hidden += jnp.dot(new_rows.T, short, preferred_element_type=jnp.float32)  # [D, W]
        by_rows = jnp.dot(short, hidden, preferred_element_type=jnp.float32)
        by_table = jax.lax.dynamic_update_slice_in_dim(
            by_table, by_rows.astype(table.dtype), block.start, axis=0
        )
        by_bias = jax.lax.dynamic_update_slice_in_dim(
            by_bias, by_logit.sum(axis=1).astype(bias.dtype), block.start, axis=0
        )
        return by_hidden, by_table, by_bias

    start = jnp.zeros(hidden.shape[::-1], jnp.float32), jnp.zeros_like(table), jnp.zeros_like(bias)
    visited = _visited(num_blocks, size, num_used)
    by_hidden, by_table, by_bias = jax.lax.fori_loop(0, visited, visit, start)
    return by_hidden.T.astype(hidden.dtype), None, by_table, by_bias, None, None


_parts.defvjp(_forward, _backward)
