"""Output layers with the softmax over the whole vocabulary."""

import dataclasses

import jax

from knn_sampling.blockwise import blockwise_softmax_loss, vocabulary_block_size
from knn_sampling.draws import Draws, draw_from_table
from knn_sampling.inclusion import NeighbourIndex
from knn_sampling.losses import full_softmax_loss
from knn_sampling.samples import Sample, TokenStatistics
from knn_sampling.table_sharding import ONE_DEVICE, TableSharding


@dataclasses.dataclass(frozen=True)
class FullSoftmax:
    """Softmax over all classes at once, with logits [W, V] in memory.

    Attributes:
      num_valid: number of classes; table rows from here on are padding.
      sharding: sharding of the table.
    """

    num_valid: int
    sharding: TableSharding = ONE_DEVICE

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> None:
        """Return None: the loss is over all classes."""

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample | None,
    ) -> jax.Array:
        """Weighted losses [B, M], see `OutputLayer.loss`."""
        losses = full_softmax_loss(
            hidden.reshape(-1, hidden.shape[-1]),
            targets.reshape(-1),
            weights.reshape(-1),
            table,
            bias,
            num_valid=self.num_valid,
        )
        return losses.reshape(weights.shape)

    def draw(
        self,
        key: jax.Array,
        hidden: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample | None,
        temperature: float,
    ) -> Draws:
        """Draw from the softmax, in blocks all the same, see `OutputLayer.draw`."""
        return draw_from_table(
            key,
            hidden,
            weights,
            table,
            bias,
            temperature=temperature,
            num_valid=self.num_valid,
            block_size=vocabulary_block_size(),
            sharding=self.sharding,
        )


@dataclasses.dataclass(frozen=True)
class BlockwiseSoftmax:
    """Softmax over all classes, block by block, without an array [W, V].

    Attributes:
      num_valid: number of classes; table rows from here on are padding.
      block_size: classes per block.
    """

    num_valid: int
    block_size: int = dataclasses.field(default_factory=vocabulary_block_size)

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> None:
        """Return None: the loss is over all classes."""

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample | None,
    ) -> jax.Array:
        """Weighted losses [B, M], see `OutputLayer.loss`."""
        losses = blockwise_softmax_loss(
            hidden.reshape(-1, hidden.shape[-1]),
            targets.reshape(-1),
            weights.reshape(-1),
            table,
            bias,
            num_valid=self.num_valid,
            block_size=self.block_size,
        )
        return losses.reshape(weights.shape)

    def draw(
        self,
        key: jax.Array,
        hidden: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample | None,
        temperature: float,
    ) -> Draws:
        """Draw from the softmax, see `OutputLayer.draw`."""
        return draw_from_table(
            key,
            hidden,
            weights,
            table,
            bias,
            temperature=temperature,
            num_valid=self.num_valid,
            block_size=self.block_size,
        )
