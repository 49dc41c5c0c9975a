"""How much probability a trained model gives to frequent and to rare words, against the truth.

    python -m benchmarks.predicted_mass --config=configs/sampling_quality.py:DATA \\
        --workdir=runs/sampling_quality --runs=full/seed0,knn/seed0

Reads finished runs of `benchmarks.sampling_quality`. Words are ranked by their counts in the
training rows; for each class of ranks the table has the share of held-out targets, the share of
probability that the model, taken with the full softmax, gives at the same positions, and the loss
of the targets in it. A model that is calibrated gives each class the share it has.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ml_collections import config_flags

import artifacts
from builders import data, model
from input_pipeline.row_store import RowStore
from models.encoder import output_table
from objectives.masked_lm import MaskedLM
from training.checkpoint import restore_latest

_CONFIG = config_flags.DEFINE_config_file("config", None, "The study's config.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The study's folder.")
_RUNS = flags.DEFINE_list("runs", ["full/seed0", "knn/seed0"], "SETTING/seedN.")
_RANKS = flags.DEFINE_list("ranks", ["100", "1000", "5000", "15000"], "Where classes begin.")
_ROWS = flags.DEFINE_integer("rows", 96, "Held-out rows of each language.")

_BATCH = 32


def classes_of(counts: np.ndarray, ranks: list[int], vocab_size: int) -> np.ndarray:
    """Class [V] of each word by its rank; words from `vocab_size` on have a class of their own."""
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
    """[3, number] sums over positions: targets of each class, probability given to it, and loss.

    Args:
      probabilities: [W, V] float32.
      targets: [W] int32.
      weights: [W] float32.
      classes: [V] int32.
      number: of classes.
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


def measure(objective: MaskedLM, params, store: RowStore, classes: np.ndarray) -> np.ndarray:
    """The `shares` of held-out rows of all languages, [3, classes]."""
    number, of_words = int(classes.max()) + 1, jnp.asarray(classes)

    @jax.jit
    def of_batch(params, tokens: jax.Array, key: jax.Array) -> jax.Array:
        batch = {"tokens": tokens}
        prepared, _ = objective.prepare(None, batch, key, exact=True, dropout=False)
        masked = prepared.masked
        hidden = objective.predictions(params, masked.inputs, masked.positions)
        table, bias = output_table(params)
        logits = hidden.reshape(-1, hidden.shape[-1]) @ table.T + bias[None, :]
        is_word = jnp.arange(logits.shape[1]) < store.vocab_size
        probabilities = jax.nn.softmax(jnp.where(is_word[None, :], logits, -jnp.inf))
        flat = masked.targets.reshape(-1), masked.weights.reshape(-1)
        return shares(probabilities, *flat, of_words, number)

    total = np.zeros((3, number))
    for language in store.languages:
        rows = store.rows(language, "heldout")[: _ROWS.value]
        for start in range(0, len(rows), _BATCH):
            tokens = jnp.asarray(rows[start : start + _BATCH].astype(np.int32))
            total += np.asarray(of_batch(params, tokens, jax.random.key(start)))
    return total


def main(_) -> None:
    workdir, config = pathlib.Path(_WORKDIR.value), _CONFIG.value
    ranks = [int(rank) for rank in _RANKS.value]
    names = [f"from {rank:,}" for rank in (0, *ranks)]
    print("| run | | " + " | ".join(names) + " | all |")
    print("|---|---|" + "---:|" * (len(names) + 1))
    for run in _RUNS.value:
        folders = data.Folders(workdir / "runs" / run)
        store = data.open_row_store(folders)
        trained = artifacts.read_json(folders.train / "settings.json")
        config.output_layer.update(trained["output_layer"])
        mesh = model.mesh(config)
        objective = model.objective(config, store, mesh)
        program = model.program(config, objective, store, mesh)
        _, state = restore_latest(folders.train / "checkpoints", program.abstract_state)
        counts = np.zeros(objective.encoder.settings.vocab_size)
        for language in store.languages:
            counts[: store.vocab_size] += store.token_counts(language)
        counts[list(store.special.never_masked())] = 0
        found = measure(objective, state.params, store, classes_of(counts, ranks, store.vocab_size))
        targets, given, losses = found[:, : len(names)]
        for label, values, whole in (
            ("targets, %", 100 * targets / targets.sum(), ""),
            ("given, %", 100 * given / targets.sum(), ""),
            ("loss", losses / targets, f"{losses.sum() / targets.sum():.3f}"),
        ):
            cells = " | ".join(f"{value:.1f}" for value in values)
            print(f"| {run} | {label} | {cells} | {whole} |", flush=True)


if __name__ == "__main__":
    app.run(main)
