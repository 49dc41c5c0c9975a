"""Which loss the output layer trains with: one config key apart, one signature for all."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.candidates import union_of_neighbours
from knn_sampling.losses import candidate_softmax_loss, full_softmax_loss
from knn_sampling.neighbours import nearest_neighbours

KINDS = ("full", "knn")


class OutputLoss(NamedTuple):
    """Loss of one batch's masked positions, with what the sampling did.

    Attributes:
      losses: [W] float32 weighted losses, nats.
      candidates: scalar float32, classes in the softmax; |V'| before the cut, or the vocabulary.
      overflow: scalar float32, candidates left out because V' was full.
    """

    losses: jax.Array
    candidates: jax.Array
    overflow: jax.Array


@dataclasses.dataclass(frozen=True)
class OutputLayer:
    """The output layer's strategy; the `output_layer` section of a config plus the vocabulary.

    Attributes:
      kind: "full" for the softmax over the vocabulary, "knn" for k-NN target sampling.
      num_valid: words of the vocabulary, without padding rows.
      k: neighbours per target, K.
      capacity: C, slots of the candidate set.
      refresh_every: training steps from one refresh of the index to the next, n of Algorithm 2.
      block_size: words scored at a time in a refresh; bounds its memory.
    """

    kind: str
    num_valid: int
    k: int
    capacity: int
    refresh_every: int
    block_size: int

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"output_layer.kind is {self.kind!r}, must be one of {KINDS}")
        if self.uses_neighbours and self.refresh_every < 1:
            raise ValueError(
                f"output_layer.refresh_every is {self.refresh_every}, must be at least 1"
            )
        if self.uses_neighbours and self.block_size < 1:
            raise ValueError(f"output_layer.block_size is {self.block_size}, must be at least 1")
        if self.uses_neighbours and not 1 <= self.k <= self.num_valid:
            raise ValueError(
                f"output_layer.k is {self.k}, must be between 1 and the vocabulary's "
                f"{self.num_valid} pieces"
            )

    @property
    def uses_neighbours(self) -> bool:
        return self.kind == "knn"

    def index(self, table: jax.Array) -> jax.Array:
        """The neighbour index [V, K] int32 of the embeddings `table` [V, D]."""
        return nearest_neighbours(
            table, k=self.k, num_valid=self.num_valid, block_size=self.block_size
        )

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        neighbours: jax.Array | None,
    ) -> OutputLoss:
        """Training loss of the masked positions.

        Args:
          hidden: [W, D]; targets: [W] int32; weights: [W].
          table: [V, D] output embeddings; bias: [V].
          neighbours: [V, K] int32, for the kinds that use an index.

        Raises:
          ValueError: the index is missing, or the capacity is too small for the batch.
        """
        if not self.uses_neighbours:
            losses = full_softmax_loss(
                hidden, targets, weights, table, bias, num_valid=self.num_valid
            )
            return OutputLoss(losses, jnp.float32(self.num_valid), jnp.float32(0))
        if neighbours is None:
            raise ValueError(
                f"output_layer.kind {self.kind!r} needs the neighbour index; see index()"
            )
        capacity = min(self.capacity, table.shape[0])
        candidates = union_of_neighbours(neighbours, targets, weights, capacity)
        losses = candidate_softmax_loss(hidden, weights, table, bias, candidates)
        return OutputLoss(
            losses,
            candidates.union_size.astype(jnp.float32),
            candidates.overflow().astype(jnp.float32),
        )
