"""Output layers with the softmax over the whole vocabulary."""

import jax

from knn_sampling.blockwise import blockwise_softmax_loss
from knn_sampling.draws import OutputLayer
from knn_sampling.losses import full_softmax_loss, with_z_loss
from knn_sampling.samples import Sample


class BlockwiseSoftmax(OutputLayer):
    """Softmax over the `num_valid` first rows of a table by blocks, without an array [W, V]."""

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Sample | None,
    ) -> jax.Array:
        flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1), weights.reshape(-1)
        return self._losses(*flat, table, bias).reshape(weights.shape)

    def _losses(self, *arguments: jax.Array) -> jax.Array:
        """Return losses [W] of hidden states [W, E], targets, weights, table and bias."""
        return with_z_loss(blockwise_softmax_loss, self.z_loss)(
            *arguments, num_valid=self.num_valid, block_size=self.block_size, sharding=self.sharding
        )


class FullSoftmax(BlockwiseSoftmax):
    """The same softmax over all classes at once, with logits [W, V] in memory."""

    def _losses(self, *arguments: jax.Array) -> jax.Array:
        loss = with_z_loss(full_softmax_loss, self.z_loss)
        return loss(*arguments, num_valid=self.num_valid)
