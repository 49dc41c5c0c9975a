"""Output layers: six kinds behind one interface, selected by one config key.

`sample` selects the classes of a step's loss from the targets and the neighbour index alone, so
that the caller can gather their table rows before differentiation. `loss` then scores hidden states
against these rows, and `draw` draws classes from their distribution.
"""

import dataclasses
from typing import Any, Protocol, cast

import jax

from knn_sampling.draws import Draws
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from knn_sampling.inclusion import NeighbourIndex
from knn_sampling.sampled_layers import NCE, KNNSampling, NegativeSampling, TargetSampling
from knn_sampling.samples import Sample, TokenStatistics
from knn_sampling.settings import EXACT, OutputLayerSettings, require
from knn_sampling.table_sharding import ONE_DEVICE, TableSharding


class OutputLayer(Protocol):
    """Loss of masked positions over the vocabulary, or over a sample of it."""

    @property
    def num_valid(self) -> int:
        """Number of classes; table rows from here on are padding."""

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> Sample | None:
        """Select the classes in the loss of a batch; None for all.

        `targets` are [B, M] int32 ids, `weights` [B, M] float, 0 for unused positions. Statistics
        are of a table of V rows. Only "knn" reads `index`. Raises ValueError if groups do not
        divide the batch.
        """

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Any,
    ) -> jax.Array:
        """Return weighted losses [B, M] of the positions, float32 nats.

        Args:
          hidden: [B, M, E] hidden states.
          targets, weights: [B, M] as passed to `sample`.
          table: [R, E] table rows, at least those of the sample; the whole table if `sample` is
            None, or if its `candidate_rows` are its ids, as `sample` returns them.
          bias: [V] output bias.
          sample: from `sample`, with the `candidate_rows` of this table.
        """

    def draw(
        self,
        key: jax.Array,
        hidden: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Any,
        temperature: float,
    ) -> Draws:
        """Draw a class at each position from softmax((h . v + b) / temperature).

        Sampled layers draw from V'. If they know the probability Q_j that V' holds a class, its
        probability is proportional to exp((h . v_j + b_j) / temperature) / Q_j, to estimate the
        softmax over the vocabulary. No gradient flows. The temperature is static, at least 0 (else
        ValueError); 0 draws the likeliest class. Other arguments are those of `loss`.
        """


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
        f"output_layer.kind is {settings.kind!r}, which no layer is built for; add it to "
        "make_output_layer"
    )


def without_z_loss(layer: OutputLayer) -> OutputLayer:
    """Return the layer whose loss is the negative log-likelihood alone, for evaluation."""
    if not getattr(layer, "z_loss", 0.0):
        return layer
    found: OutputLayer = dataclasses.replace(cast(Any, layer), z_loss=0.0)
    return found


def make_exact_layer(
    settings: OutputLayerSettings, *, num_valid: int, sharding: TableSharding = ONE_DEVICE
) -> OutputLayer:
    """Build the full-vocabulary softmax for exact steps and evaluation; arguments as above."""
    exact_layer = FullSoftmax if settings.kind == "full" else BlockwiseSoftmax
    return exact_layer(num_valid, sharding, z_loss=settings.z_loss)
