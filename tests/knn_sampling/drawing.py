"""Layers, batches and measures that tests of draws share."""

import dataclasses
import functools

import jax
import numpy as np
from scipy import stats

from knn_sampling.draws import Draws
from knn_sampling.output_layer import OutputLayer
from tests.knn_sampling.batches import (
    B,
    M,
    index_of,
    layer_of,
    random_batch,
    sample_of,
    statistics_of,
)

# Three tiles, the last of them short, with padding in it.
V, VALID = 300, 290
CHANGES = {"num_valid": VALID, "k": 40, "capacity": V, "num_negatives": 100}
FULL = layer_of("full", **CHANGES)
BLOCKWISE = dataclasses.replace(layer_of("blockwise", **CHANGES), block_size=128)
KNN, TARGETS = (
    dataclasses.replace(layer_of(kind, **CHANGES), block_size=128)
    for kind in ("knn", "target_sampling")
)
CORRECTED, CORRECTED_TARGETS = (
    dataclasses.replace(layer, log_q_correction=True) for layer in (KNN, TARGETS)
)
NCE, NEG = layer_of("nce", **CHANGES), layer_of("neg", **CHANGES)
SAMPLED = (KNN, CORRECTED, TARGETS, CORRECTED_TARGETS, NCE, NEG)


def batch_of(num_rows: int = V, num_valid: int = VALID) -> dict[str, np.ndarray]:
    return random_batch(num_rows, num_valid)


def sampled_from(layer: OutputLayer, batch, seed: int = 0):
    num_rows = len(batch["table"])
    statistics = statistics_of(num_rows, layer.num_valid)
    return sample_of(layer, batch, index_of(layer, batch, statistics), statistics, seed)


@functools.partial(jax.jit, static_argnames=("layer", "temperature"))
def draw(layer: OutputLayer, batch, sample, seed: int = 0, temperature: float = 1.0) -> Draws:
    arguments = (batch[name] for name in ("hidden", "weights", "table", "bias"))
    return layer.draw(jax.random.key(seed), *arguments, sample, temperature)


def draw_many(layer: OutputLayer, batch, temperature: float = 1.0) -> np.ndarray:
    """Ids by an exact layer at so many positions that the program is worth optimising."""
    lowered = draw.lower(layer, batch, None, 0, temperature)
    compiled = lowered.compile({"xla_backend_optimization_level": 1})
    return np.asarray(compiled(batch, None, 0).ids)


def logits_of(batch) -> np.ndarray:
    """Logits [B M, V] in float64, -inf for padding."""
    hidden, table, bias = (np.asarray(batch[x], np.float64) for x in ("hidden", "table", "bias"))
    logits = hidden.reshape(-1, hidden.shape[-1]) @ table.T + bias[None, :]
    logits[:, VALID:] = -np.inf
    return logits


def repeated(batch, states: int, times: int) -> dict[str, np.ndarray]:
    """Batch with the first hidden states, each at as many positions [states, times]."""
    hidden = batch["hidden"].reshape(B * M, -1)[:states]
    hidden = np.repeat(hidden[:, None], times, axis=1)
    return batch | {"hidden": hidden, "weights": np.ones(hidden.shape[:2], np.float32)}


def unlikeliness(ids: np.ndarray, probabilities: np.ndarray) -> float:
    """Probability of a chi-square as large as that of draws; rare classes are pooled."""
    counts = np.bincount(np.asarray(ids).reshape(-1), minlength=len(probabilities))
    expected = probabilities / probabilities.sum() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    is_rare = expected < 10
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    some = expected > 0
    statistic = ((observed - expected)[some] ** 2 / expected[some]).sum()
    return stats.chi2.sf(statistic, some.sum() - 1)


# Each of some hundred tests fails by chance this often, for seeds chosen once.
LEAST = 1e-4
