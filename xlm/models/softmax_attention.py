"""Attention with materialised weights and a hand-written gradient.

The automatic gradient makes more passes over arrays [B, H, Q, K]. It takes twice as long on a CPU,
and even longer with a gated bias.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_MASKED = -1e30


class _Kept(NamedTuple):
    """Residuals for the backward pass: arguments, weights [B, H, Q, K] and output [B, Q, H, D]."""

    query: jax.Array
    keys: jax.Array
    values: jax.Array
    mask: jax.Array | None
    bias: jax.Array | None
    gate: jax.Array | None
    weights: jax.Array
    output: jax.Array


def attention_weights(
    query: jax.Array, keys: jax.Array, mask: jax.Array | None, bias: jax.Array | None,
    gate: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """Return weights [B, H, Q, K] of keys for each query, in the queries' dtype; see `attend`."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    if bias is not None:
        grouped = scores.reshape(len(bias), -1, *scores.shape[1:])
        by_row = bias[:, None] if gate is None else bias[:, None] * _by_row(gate, bias)[..., None]
        scores = (grouped + by_row).reshape(scores.shape)
    if mask is not None:
        scores = jnp.where(mask, scores, _MASKED)
    return jax.nn.softmax(scores).astype(query.dtype)


@jax.custom_vjp
def attend(
    query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None = None,
    bias: jax.Array | None = None, gate: jax.Array | None = None,
) -> jax.Array:  # fmt: skip
    """Return softmax attention [B, Q, H, D], in float32 but for the matrix products.

    Args:
      query: [B, Q, H, D].
      keys, values: [B, K, H, D].
      mask: bool that broadcasts to [B, H, Q, K], True where a query sees a key.
      bias: [S, H, Q, K] float32, S divides B. B / S consecutive examples share one bias.
      gate: [B, Q, H] float32, scales the bias of each query.
    """
    return _forward(query, keys, values, mask, bias, gate)[0]


def _by_row(gate: jax.Array, bias: jax.Array) -> jax.Array:
    """Reshape gates to the groups of examples that share a bias, [S, B / S, H, Q]."""
    return jnp.moveaxis(gate, 1, 2).reshape(len(bias), -1, *bias.shape[1:3])


def _forward(query, keys, values, mask, bias, gate) -> tuple[jax.Array, _Kept]:
    weights = attention_weights(query, keys, mask, bias, gate)
    output = jnp.einsum("bhqk,bkhd->bqhd", weights, values)
    return output, _Kept(query, keys, values, mask, bias, gate, weights, output)


def _backward(kept: _Kept, grad: jax.Array):
    """Return gradients of query, keys, values, mask (none), bias and gate."""
    query, keys, values, mask, bias, gate, weights, output = kept
    scale = query.shape[-1] ** -0.5
    of_values = jnp.einsum("bhqk,bqhd->bkhd", weights, grad)
    of_weights = jnp.einsum("bqhd,bkhd->bhqk", grad, values, preferred_element_type=jnp.float32)
    mean = jnp.einsum("bqhd,bqhd->bhq", grad, output, preferred_element_type=jnp.float32)
    of_scores = weights * (of_weights - mean[..., None])
    if mask is not None:
        # A query that sees no key has uniform weights, independent of its scores.
        of_scores = jnp.where(mask, of_scores, 0)
    of_products = (of_scores * scale).astype(query.dtype)
    of_query = jnp.einsum("bhqk,bkhd->bqhd", of_products, keys)
    of_keys = jnp.einsum("bhqk,bqhd->bkhd", of_products, query)
    if bias is None:
        return of_query, of_keys, of_values, None, None, None
    grouped = of_scores.reshape(len(bias), -1, *of_scores.shape[1:])  # [S, B / S, H, Q, K]
    if gate is None:
        return of_query, of_keys, of_values, None, grouped.sum(axis=1), None
    of_bias = jnp.einsum("sbhqk,sbhq->shqk", grouped, _by_row(gate, bias))
    of_gate = jnp.einsum("sbhqk,shqk->sbhq", grouped, bias)
    of_gate = jnp.moveaxis(of_gate.reshape(mean.shape), 1, 2)
    return of_query, of_keys, of_values, None, of_bias, of_gate


attend.defvjp(_forward, _backward)
