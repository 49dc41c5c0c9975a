"""The softmax over the neighbours of a batch's targets, for any model."""

import jax
import jax.numpy as jnp

from knn_sampling.candidates import union_of_neighbours
from knn_sampling.losses import ABSENT, candidate_softmax_loss


def knn_softmax_loss(
    hidden: jax.Array,
    targets: jax.Array,
    table: jax.Array,
    bias: jax.Array,
    neighbours: jax.Array,
    *,
    capacity: int,
    weights: jax.Array | None = None,
) -> jax.Array:
    """Return [W] weighted losses over V', the targets and their neighbours (Eq. 4 and 5).

    Losses are float32 nats. The gradient of the table is zero outside of V'. As in the paper, the
    loss has no correction and underestimates the partition function. The layers of
    `output_layer.make_output_layer` have the correction, sharded tables and updates by rows.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from knn_sampling.neighbours import nearest_neighbours
      >>> from knn_sampling.softmax import knn_softmax_loss
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> params = {"table": jax.random.normal(keys[0], (1000, 16)), "bias": jnp.zeros(1000)}
      >>> hidden, targets = jax.random.normal(keys[1], (64, 16)), jnp.arange(64) % 10
      >>> optimizer = optax.adam(0.1)
      >>> state = optimizer.init(params)
      >>> @jax.jit
      ... def step(params, state, index):
      ...     loss = lambda p: knn_softmax_loss(
      ...         hidden, targets, p["table"], p["bias"], index, capacity=256).mean()
      ...     value, grads = jax.value_and_grad(loss)(params)
      ...     updates, state = optimizer.update(grads, state)
      ...     return optax.apply_updates(params, updates), state, value
      >>> losses = []
      >>> for i in range(20):
      ...     if i % 10 == 0:  # Algorithm 2 refreshes the index every n steps
      ...         index = nearest_neighbours(params["table"], k=8, num_valid=1000)
      ...     params, state, value = step(params, state, index)
      ...     losses.append(float(value))
      >>> losses[-1] < losses[0] / 2
      True

    Args:
      hidden: [W, D] hidden states, float32 or bfloat16.
      targets, weights: [W] int32 target ids, and weights of the positions, 1 by default.
      table, bias: output embeddings [V, D] and output bias [V].
      neighbours: [V, K] int32 index, from `neighbours.nearest_neighbours`.
      capacity: C, slots of V', from min(W, V), which fits all targets, to V (else ValueError). A
        larger V' drops the farthest neighbours.
    """
    weights = jnp.ones(targets.shape) if weights is None else weights
    found = union_of_neighbours(neighbours, targets[None], weights[None], capacity)
    ids = found.ids[0]
    rows = table.at[ids].get(mode="fill", fill_value=0)
    own_bias = bias.at[ids].get(mode="fill", fill_value=ABSENT)
    return candidate_softmax_loss(hidden, found.labels[0], weights, rows, own_bias)
