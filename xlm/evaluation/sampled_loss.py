"""Sampled training loss against the exact loss, on the same held-out positions."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import PACKED
from knn_sampling.exact_layers import BlockwiseSoftmax
from knn_sampling.output_layer import without_z_loss
from xlm.evaluation.batch_layout import BatchLayout, heldout_rows
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import AuxState, Batch, LossAndMetrics, gathered_rows, means


class SampledLoss:
    """Evaluator of the bias of the sampled loss during a training run.

    It masks held-out sequences of all languages once, in mixed batches of the training's size. It
    computes their loss as in training, without dropout, and over the whole vocabulary. The
    difference is the underestimation by the sampled softmax. It drops a last partial batch, and
    repeats sequences, with other masks, that do not fill a single one.
    """

    def __init__(
        self, objective: MaskedLM, dataset: PackedDataset, *, batch_size: int, max_sequences: int,
        seed: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        none = np.zeros((0, dataset.length), np.int32)
        rows = np.concatenate([none, *heldout_rows(dataset, max_sequences).values()])
        rows = np.random.default_rng(seed).permutation(rows)
        self._layout = BatchLayout(mesh, batch_size)
        # Repeats sequences, since fewer targets would change V' and the sampled loss.
        count = max(len(rows) // self._layout.size, 1) if len(rows) else 0
        self._batches = np.resize(rows, (count, self._layout.size, rows.shape[1]))
        self._key = jax.random.key(seed)
        # Without metrics per language.
        self._objective = dataclasses.replace(objective, languages=())
        self._losses = self._layout.jit(self._losses_of)

    def __call__(self, state) -> Mapping[str, float]:
        """Return both losses, |V'| and overflow; nothing if the output layer does not sample."""
        is_exact = isinstance(self._objective.output_layer, BlockwiseSoftmax)
        if is_exact or not len(self._batches):
            return {}
        totals: dict[str, tuple[float, float]] = {}
        for number, batch in enumerate(self._batches):
            key = jax.random.fold_in(self._key, number)
            placed = self._layout.placed(batch)
            losses = self._losses(state.params, state.aux_state, *placed, key, state.step)
            found = jax.device_get(losses)
            for name, (total, weight) in found.items():
                before, weight_before = totals.get(name, (0.0, 0.0))
                totals[name] = before + float(total), weight_before + float(weight)
        return {f"sampling/{name}": value for name, value in means(totals).items()}

    def _losses_of(
        self, params, aux_state: AuxState, tokens: jax.Array, key: jax.Array, step: jax.Array
    ) -> LossAndMetrics:
        """Return both losses of a batch [B, L] at the same positions, masked as in step `step`."""

        def found(objective: MaskedLM) -> LossAndMetrics:
            layer = without_z_loss(objective.output_layer)
            objective = dataclasses.replace(objective, output_layer=layer)
            plan, touched = objective.plan(aux_state, Batch({"tokens": tokens}, PACKED), key, step)
            return objective.loss(params, gathered_rows(params, touched), plan, None)[0]

        sampled = found(self._objective)
        return {
            "sampled_loss": sampled["loss"],
            "exact_loss": found(self._objective.exact)["loss"],
            "candidates": sampled["candidates"],
            "overflow": sampled["overflow"],
        }
