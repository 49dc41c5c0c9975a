"""Settings, layers and batches for the tests of this room."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from knn_sampling.inclusion import NeighbourIndex, inclusion
from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import OutputLayer, make_output_layer
from knn_sampling.samples import Sample, TokenStatistics
from knn_sampling.settings import OutputLayerSettings
from knn_sampling.table_sharding import ONE_DEVICE

# B sequences of M masked positions, in G groups of WG positions each.
B, M, G, WG, D, V, NUM_VALID = 4, 3, 2, 6, 4, 24, 21
SETTINGS = OutputLayerSettings("knn", k=4, capacity=V, num_negatives=10, group_size=B // G)


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    sizes, auto = tuple(axes.values()), (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(sizes, tuple(axes), auto, devices=jax.devices()[: math.prod(sizes)])


def layer_of(
    kind: str = "knn", *, num_valid: int = NUM_VALID, sharding=ONE_DEVICE, **changes
) -> OutputLayer:
    settings = dataclasses.replace(SETTINGS, kind=kind, **changes)
    return make_output_layer(settings, num_valid=num_valid, sharding=sharding)


# Block sizes that do not divide their vocabularies.
FULL = layer_of("full")
BLOCKWISE = dataclasses.replace(layer_of("blockwise"), block_size=7)
KNN = dataclasses.replace(layer_of("knn"), block_size=5)
CORRECTED = dataclasses.replace(KNN, log_q_correction=True)
TARGETS = dataclasses.replace(layer_of("target_sampling"), block_size=5)
NCE = layer_of("nce")
NEG = layer_of("neg")


def random_batch(num_rows: int = V, num_valid: int = NUM_VALID) -> dict[str, np.ndarray]:
    """Random batch; weights are some zeros, a fraction, and ones."""
    rng = np.random.default_rng(0)
    weights = np.ones((G, WG), np.float32)
    weights[0, 2], weights[1, 4:] = 0, (0, 0.5)
    return {
        "hidden": rng.normal(size=(B, M, D)).astype(np.float32),
        "targets": rng.integers(0, num_valid, (B, M)).astype(np.int32),
        "weights": weights.reshape(B, M),
        "table": rng.normal(size=(num_rows, D)).astype(np.float32),
        "bias": rng.normal(size=num_rows).astype(np.float32),
    }


def statistics_of(num_rows: int = V, num_valid: int = NUM_VALID) -> TokenStatistics:
    """Statistics in which padding is never a target, and languages alternate."""
    is_class = np.arange(num_rows) < num_valid
    probabilities = np.random.default_rng(1).random(num_rows) * is_class
    probabilities /= probabilities.sum()
    return TokenStatistics(
        probabilities.astype(np.float32),
        cumulative_thresholds(probabilities),
        np.where(is_class, np.arange(num_rows) % 3, -1).astype(np.int32),
    )


def index_of(layer: OutputLayer, batch=None, statistics=None):
    """The neighbour index of a batch's table; None for layers without one."""
    if not hasattr(layer, "refresh"):
        return None
    table = (batch or random_batch())["table"]
    statistics = statistics or statistics_of()
    # like `layer.refresh`, but layers share programs
    neighbours = nearest_neighbours(table, k=layer.k, num_valid=layer.num_valid)
    if not layer.log_q_correction:
        return NeighbourIndex(neighbours, None)
    return NeighbourIndex(neighbours, jitted_inclusion(neighbours, statistics.probabilities))


jitted_inclusion = jax.jit(inclusion)


@functools.partial(jax.jit, static_argnums=0)
def sample_of(layer: OutputLayer, batch, index=None, statistics=None, seed=0) -> Sample:
    key = jax.random.key(seed)
    statistics = jax.tree.map(jnp.asarray, statistics or statistics_of())
    return layer.sample(key, batch["targets"], batch["weights"], statistics, index)


@functools.partial(jax.jit, static_argnums=0)
def losses_of(layer: OutputLayer, batch, sample: Sample | None) -> jax.Array:
    names = ("hidden", "targets", "weights", "table", "bias")
    return layer.loss(*(batch[name] for name in names), sample)


def with_gradients(loss, *inputs):
    """Losses, and gradients of their sum with respect to each input."""

    def with_aux(*inputs):
        losses = loss(*inputs)
        return losses.sum(), losses

    every_one = tuple(range(len(inputs)))
    gradients, losses = jax.grad(with_aux, every_one, has_aux=True)(*inputs)
    return losses, gradients


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(layer: OutputLayer, batch, sample: Sample | None):
    """Losses [B, M], and gradients of their sum for hidden states, table and bias."""

    def loss(hidden, table, bias):
        return layer.loss(hidden, batch["targets"], batch["weights"], table, bias, sample)

    return with_gradients(loss, batch["hidden"], batch["table"], batch["bias"])


def check_unused_positions(compute, inputs, targets, weights, state: float, target: int):
    """Check that positions of weight zero have no loss and no effect, whatever their content.

    `compute(hidden, *parameters, targets, weights)` gives losses, and gradients of `inputs` first.
    """
    used, (hidden, *parameters) = weights > 0, inputs
    of_used = hidden[used], *parameters, targets[used], weights[used]
    losses, expected = jax.device_get(compute(*of_used))
    hidden = np.where(used[:, None], hidden, np.float32(state))
    targets = np.where(used, targets, target).astype(np.int32)
    found, gradients = jax.device_get(compute(hidden, *parameters, targets, weights))
    for values in (found, gradients[0]):
        np.testing.assert_array_equal(values[~used], 0)
    assert_close(found[used], losses)
    assert_close((gradients[0][used], *gradients[1 : len(inputs)]), expected[: len(inputs)])


def sampled(layer: OutputLayer, batch=None, index=None):
    batch = batch or random_batch()
    index = index or index_of(layer)
    return value_and_gradients(layer, batch, sample_of(layer, batch, index))


def assert_close(actual, expected, rtol: float = 1e-5, atol: float = 2e-6):
    """Check equality to float32 precision; sums of a dozen terms of order one are off by 1e-6."""
    check = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(check, actual, expected)
