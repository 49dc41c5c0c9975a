"""Masked language modelling on packed rows."""

import dataclasses

import jax
import jax.numpy as jnp

from knn_sampling.neighbours import NeighbourIndex
from knn_sampling.output_layer import OutputLayer
from models.encoder import Encoder, output_table
from models.segments import packed_segments
from objectives.masking import MaskSettings, mask_tokens
from objectives.sums import Sums


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """Predicts masked tokens from their row.

    Attributes:
      encoder: the model.
      output_layer: how the loss over the vocabulary is computed.
      mask: how tokens are masked.
      bos, pad, mask_id: ids of `<s>`, padding and `<mask>`.
      never_masked: ids that are structure, not text.
      across_documents: whether attention crosses the documents of a row.
      target_probabilities: [V] how often each piece is a target, for the index and the bias.
      num_targets: masked positions of a batch, for the index.
    """

    encoder: Encoder
    output_layer: OutputLayer
    mask: MaskSettings
    bos: int
    pad: int
    mask_id: int
    never_masked: tuple[int, ...]
    across_documents: bool
    target_probabilities: jax.Array
    num_targets: int

    def init(self, key: jax.Array, length: int):
        """Parameters of the model, boxed with their logical axis names."""
        row = jnp.zeros((1, length), jnp.int32)
        params = self.encoder.init(key, row, row, row)["params"]
        if self.output_layer.frequency_bias:
            bias = params["head"]["bias"]
            # Padding rows have probability zero, and a logit that nothing reads.
            log_frequency = jnp.log(jnp.maximum(self.target_probabilities, 1e-10))
            params["head"]["bias"] = bias.replace_boxed(log_frequency.astype(jnp.float32))
        return params

    @property
    def refresh_every(self) -> int:
        return self.output_layer.refresh_every if self.output_layer.uses_neighbours else 0

    @property
    def exact_fraction(self) -> float:
        return self.output_layer.exact_fraction if self.output_layer.uses_neighbours else 0.0

    def empty_index(self) -> NeighbourIndex | None:
        """An index to be refreshed before use, or None if the output layer uses none."""
        return self.output_layer.empty_index(self.encoder.settings.vocab_size)

    def index(self, params) -> NeighbourIndex:
        """The neighbour index of the output embeddings."""
        table, _ = output_table(params)
        return self.output_layer.index(table, self.target_probabilities, self.num_targets)

    def sums(
        self,
        params,
        index: NeighbourIndex | None,
        batch: dict[str, jax.Array],
        key: jax.Array,
        *,
        exact: bool = False,
    ) -> Sums:
        """Loss and metrics of a batch; training minimises sum over weight of "loss".

        Args:
          params: as from `init`, unboxed.
          index: neighbour index, if the output layer uses one.
          batch: `tokens` [B, L] int32.
          key: random key of masking and dropout.
          exact: take the softmax over the whole vocabulary.
        """
        mask_key, dropout_key = jax.random.split(key)
        masked = mask_tokens(
            mask_key,
            batch["tokens"],
            self.mask,
            vocab_size=self.output_layer.num_valid,
            mask_id=self.mask_id,
            never_masked=self.never_masked,
        )
        hidden = self.predictions(params, masked.inputs, masked.positions, dropout_key)
        table, bias = output_table(params)
        weights = masked.weights.reshape(-1)
        loss = self.output_layer.loss(
            hidden.reshape(-1, hidden.shape[-1]),  # [W, E], W = B M
            masked.targets.reshape(-1),
            weights,
            table.astype(hidden.dtype),
            bias,
            index,
            exact=exact,
        )
        one = jnp.float32(1)
        return {
            "loss": (loss.losses.sum(), weights.sum()),
            "candidates": (loss.candidates, one),
            "overflow": (loss.overflow, one),
        }

    def predictions(
        self,
        params,
        inputs: jax.Array,
        positions: jax.Array,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Hidden states [B, M, E] that the output layer scores, at `positions` [B, M].

        Args:
          params: parameters.
          inputs: [B, L] int32 tokens, masks applied.
          positions: [B, M] int32.
          dropout_key: None for no dropout.
        """
        segments, token_positions = packed_segments(
            inputs, bos=self.bos, pad=self.pad, across_documents=self.across_documents
        )
        hidden = self.encoder.apply(
            {"params": params},
            inputs,
            segments,
            token_positions,
            deterministic=dropout_key is None,
            method="encode",
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )
        chosen = jnp.take_along_axis(hidden, positions[:, :, None], axis=1)  # [B, M, D]
        return self.encoder.apply({"params": params}, chosen, method="predict")
