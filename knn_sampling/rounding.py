"""Bound on what bfloat16 can do to inner products: the proof behind `bfloat16_exact`."""

import jax
import jax.numpy as jnp


def rounding_bound(queries: jax.Array, lengths: jax.Array) -> jax.Array:
    """[Q] float32, the most by which q . v can exceed its product in bfloat16, for any row v.

    q . v - q' . v' = (q - q') . v + q' . (v - v'), where ' is rounding: by Cauchy and Schwarz at
    most the products of the lengths. Sums of E terms in float32 are off by E 2^-24 of the lengths,
    at most, here four times: both products, the scores that order the answer, and the comparison.
    Infinite where a number is not finite.

    Args:
      queries: [Q, E] float.
      lengths: [2] of the rows, see `greatest_lengths`.
    """
    queries = queries.astype(jnp.float32)
    rounded = _rounded(queries)
    longest, worst = lengths
    terms = _lengths(queries - rounded) * longest + _lengths(rounded) * worst
    sums = 4 * queries.shape[1] * 2.0**-24 * _lengths(queries) * longest
    bound = 1.01 * (terms + sums)  # the bound is computed in float32, too
    return jnp.where(jnp.isnan(bound), jnp.inf, bound)


def greatest_lengths(rows: jax.Array) -> jax.Array:
    """[2] float32, the greatest |v| and the greatest |v - v'| of the rows v [N, E]."""
    rows = rows.astype(jnp.float32)
    return jnp.stack([_lengths(rows).max(), _lengths(rows - _rounded(rows)).max()])


def _lengths(rows: jax.Array) -> jax.Array:
    # A product with ones, since a CPU is slow at sums along the last axis.
    ones = jnp.ones(rows.shape[1])
    return jnp.sqrt(jnp.dot(rows * rows, ones, precision=jax.lax.Precision.HIGHEST))


def _rounded(rows: jax.Array) -> jax.Array:
    # Not astype(bfloat16).astype(float32), which a compiler may leave out.
    return jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
