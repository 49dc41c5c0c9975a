"""Which loss the output layer trains with: one config key apart, one signature for all."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.candidates import union_of_neighbours
from knn_sampling.losses import candidate_softmax_loss, full_softmax_loss
from knn_sampling.neighbours import NeighbourIndex, log_inclusion, nearest_neighbours

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
      log_q_correction: correct the softmax over V' by `neighbours.log_inclusion`. The paper does
        not; without it the loss leaves rare words too probable.
      exact_fraction: share of the steps, at the end of the run, that train with the softmax over
        the whole vocabulary; 0 in the paper.
      frequency_bias: start the output bias at the log frequency of each piece instead of zero, so
        that words not yet sampled are as probable as they are frequent.
    """

    kind: str
    num_valid: int
    k: int
    capacity: int
    refresh_every: int
    block_size: int
    log_q_correction: bool
    exact_fraction: float
    frequency_bias: bool

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
        if not 0 <= self.exact_fraction <= 1:
            raise ValueError(
                f"output_layer.exact_fraction is {self.exact_fraction}, must be between 0 and 1"
            )

    @property
    def uses_neighbours(self) -> bool:
        return self.kind == "knn"

    def empty_index(self, vocab_size: int) -> NeighbourIndex | None:
        """An index of the right shapes, to be refreshed before use; None if none is used."""
        if not self.uses_neighbours:
            return None
        return NeighbourIndex(
            jnp.zeros((vocab_size, self.k), jnp.int32), jnp.zeros(vocab_size, jnp.float32)
        )

    def index(
        self, table: jax.Array, target_probabilities: jax.Array, num_targets: int
    ) -> NeighbourIndex:
        """The neighbour index of the embeddings.

        Args:
          table: [V, D] output embeddings.
          target_probabilities: [V] how often each word is a target.
          num_targets: W, targets of a batch.
        """
        neighbours = nearest_neighbours(
            table, k=self.k, num_valid=self.num_valid, block_size=self.block_size
        )
        if not self.log_q_correction:
            return NeighbourIndex(neighbours, jnp.zeros(table.shape[0], jnp.float32))
        inclusion = log_inclusion(neighbours, target_probabilities, num_targets)
        return NeighbourIndex(neighbours, inclusion)

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        index: NeighbourIndex | None,
        *,
        exact: bool = False,
    ) -> OutputLoss:
        """Training loss of the masked positions.

        Args:
          hidden: [W, D]; targets: [W] int32; weights: [W].
          table: [V, D] output embeddings; bias: [V].
          index: for the kinds that use one.
          exact: take the softmax over the whole vocabulary, whatever the kind.

        Raises:
          ValueError: the index is missing, or the capacity is too small for the batch.
        """
        if exact or not self.uses_neighbours:
            losses = full_softmax_loss(
                hidden, targets, weights, table, bias, num_valid=self.num_valid
            )
            return OutputLoss(losses, jnp.float32(self.num_valid), jnp.float32(0))
        if index is None:
            raise ValueError(
                f"output_layer.kind {self.kind!r} needs the neighbour index; see index()"
            )
        capacity = min(self.capacity, table.shape[0])
        candidates = union_of_neighbours(index.neighbours, targets, weights, capacity)
        corrected_bias = bias - index.log_inclusion
        losses = candidate_softmax_loss(hidden, weights, table, corrected_bias, candidates)
        return OutputLoss(
            losses,
            candidates.union_size.astype(jnp.float32),
            candidates.overflow().astype(jnp.float32),
        )
