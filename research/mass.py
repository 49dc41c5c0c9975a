"""Predicted probability mass of frequent and rare tokens against their observed frequency."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import PACKED
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import Batch

_BATCH = 32


def classes_of(counts: np.ndarray, ranks: list[int], vocab_size: int) -> np.ndarray:
    """Return the rank class [V] of each token; ids from `vocab_size` on are a separate class."""
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    classes = np.searchsorted(ranks, rank, side="right")
    return np.where(np.arange(len(counts)) < vocab_size, classes, len(ranks) + 1)


def shares(
    probabilities: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    classes: jax.Array,
    number: int,
) -> jax.Array:
    """Sum targets, predicted probability and loss of each class over positions, [3, number].

    `probabilities` are [W, V] float32, `targets` [W] int32, `weights` [W] float32, and `classes`
    [V] int32, below `number`.
    """
    own = jnp.take_along_axis(probabilities, targets[:, None], axis=1)[:, 0]
    add = functools.partial(jax.ops.segment_sum, num_segments=number)
    of_targets = classes[targets]
    return jnp.stack(
        [
            add(weights, of_targets),
            add(weights @ probabilities, classes),
            add(-jnp.log(own) * weights, of_targets),
        ]
    )


def measure(
    objective: MaskedLM, params, dataset: PackedDataset, classes: np.ndarray, max_sequences: int
) -> np.ndarray:
    """Sum `shares` over up to `max_sequences` held-out sequences per language, [3, classes]."""
    number, of_words = int(classes.max()) + 1, jnp.asarray(classes)
    exact = dataclasses.replace(objective, languages=()).exact

    @jax.jit
    def of_batch(params, tokens: jax.Array, key: jax.Array) -> jax.Array:
        batch = Batch({"tokens": tokens}, PACKED)
        masked = exact.plan({}, batch, key, jnp.int32(0))[0].masked
        hidden = objective.predictions(params, masked.inputs, masked.positions)
        table, bias = objective.output_table(params)
        logits = hidden.reshape(-1, hidden.shape[-1]) @ table.T + bias[None, :]
        is_word = jnp.arange(logits.shape[1]) < dataset.vocab_size
        probabilities = jax.nn.softmax(jnp.where(is_word[None, :], logits, -jnp.inf))
        flat = masked.targets.reshape(-1), masked.weights.reshape(-1)
        return shares(probabilities, *flat, of_words, number)

    total = np.zeros((3, number))
    for language in dataset.languages:
        rows = dataset.rows(language, "heldout")[:max_sequences]
        for start in range(0, len(rows), _BATCH):
            tokens = jnp.asarray(rows[start : start + _BATCH].astype(np.int32))
            total += np.asarray(of_batch(params, tokens, jax.random.key(start)))
    return total
