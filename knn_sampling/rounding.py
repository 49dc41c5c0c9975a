"""Error bound of inner products in bfloat16: the proof behind `bfloat16_exact`."""

import jax
import jax.numpy as jnp


def rounding_bound(queries: jax.Array, lengths: jax.Array) -> jax.Array:
    """Bound q . v less its product in bfloat16, for queries [Q, E] and any row v: [Q] float32.

    q . v - q' . v' = (q - q') . v + q' . (v - v'), where ' is rounding: by Cauchy-Schwarz at most
    the products of the norms, `lengths` [2] by `greatest_lengths`. Sums of E terms in float32 have
    a relative error of at most E 2^-24 of the norms, here four times: both products, the scores
    that order the result, and the comparison. Infinite where a number is not finite.
    """
    queries = queries.astype(jnp.float32)
    rounded = _rounded(queries)
    longest, worst = lengths
    terms = _lengths(queries - rounded) * longest + _lengths(rounded) * worst
    sums = 4 * queries.shape[1] * 2.0**-24 * _lengths(queries) * longest
    bound = 1.01 * (terms + sums)  # margin: the bound itself is computed in float32
    return jnp.where(jnp.isnan(bound), jnp.inf, bound)


def greatest_lengths(rows: jax.Array) -> jax.Array:
    """Return the greatest norms [2] float32, of v and of v - v', over the rows v [N, E]."""
    rows = rows.astype(jnp.float32)
    return jnp.stack([_lengths(rows).max(), _lengths(rows - _rounded(rows)).max()])


def _lengths(rows: jax.Array) -> jax.Array:
    # A product with ones, since sums along the last axis are slow on a CPU.
    ones = jnp.ones(rows.shape[1])
    return jnp.sqrt(jnp.dot(rows * rows, ones, precision=jax.lax.Precision.HIGHEST))


def _rounded(rows: jax.Array) -> jax.Array:
    # Not astype(bfloat16).astype(float32), which a compiler may eliminate.
    return jax.lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
