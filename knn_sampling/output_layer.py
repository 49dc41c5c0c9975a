"""Output layers: six kinds behind one interface, which one config key selects.

`sample` selects the classes of a step's loss from the targets and the neighbour index, so the
caller can gather their table rows before differentiation. `loss` then scores hidden states against
these rows, and `draw` draws classes from their distribution.
"""

import dataclasses
from typing import Any

from knn_sampling.draws import OutputLayer
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from knn_sampling.sampled_layers import NCE, KNNSampling, NegativeSampling, TargetSampling
from knn_sampling.settings import EXACT, OutputLayerSettings, require
from knn_sampling.table_sharding import ONE_DEVICE, TableSharding


def make_output_layer(
    settings: OutputLayerSettings, *, num_valid: int, sharding: TableSharding = ONE_DEVICE
) -> OutputLayer:
    """Build the output layer of the settings' kind.

    `num_valid` is the size of the vocabulary, without padding rows. Raises ValueError for more
    neighbours than pieces, or a kind without a layer.
    """
    if settings.kind in EXACT:
        return make_exact_layer(settings, num_valid=num_valid, sharding=sharding)
    common: dict[str, Any] = {
        "num_valid": num_valid, "group_size": settings.group_size, "sharding": sharding,
    }  # fmt: skip
    if settings.kind == "nce":
        return NCE(num_negatives=settings.num_negatives, **common)
    if settings.kind == "neg":
        return NegativeSampling(num_negatives=settings.num_negatives, **common)
    common |= {"log_q_correction": settings.log_q_correction, "z_loss": settings.z_loss}
    if settings.kind == "target_sampling":
        return TargetSampling(num_negatives=settings.num_negatives, **common)
    if settings.kind == "knn":
        limit = f"between 1 and the vocabulary's {num_valid} pieces"
        require(settings.k <= num_valid, "k", settings.k, limit)
        return KNNSampling(
            k=settings.k, capacity=settings.capacity, refresh_every=settings.refresh_every, **common
        )
    raise ValueError(
        f"output_layer.kind is {settings.kind!r}, but make_output_layer has no layer for it; add "
        "one there"
    )


def without_z_loss(layer: OutputLayer) -> OutputLayer:
    """Return the layer with only the negative log-likelihood as its loss, for evaluation."""
    return dataclasses.replace(layer, z_loss=0.0) if layer.z_loss else layer


def make_exact_layer(
    settings: OutputLayerSettings, *, num_valid: int, sharding: TableSharding = ONE_DEVICE
) -> OutputLayer:
    """Build the softmax over the whole vocabulary, for exact steps and evaluation."""
    exact_layer = FullSoftmax if settings.kind == "full" else BlockwiseSoftmax
    return exact_layer(num_valid, sharding, z_loss=settings.z_loss)
