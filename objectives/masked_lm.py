"""Masked language modelling on packed rows, and on pairs of translations (TLM, contrast)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from knn_sampling.neighbours import NeighbourIndex
from knn_sampling.output_layer import OutputLayer, OutputLoss, Sample, WordStatistics
from knn_sampling.working_rows import working_rows
from models.encoder import Encoder, output_table
from models.pooling import mean_state
from models.segments import packed_segments
from objectives.contrastive import ContrastSettings, contrastive_loss
from objectives.masking import Masked, MaskSettings, mask_tokens
from objectives.sums import Sums

# What a batch may carry that depends on the step.
_SCHEDULED = ("mask_rate", "alpha")


class Prepared(NamedTuple):
    """A batch to be predicted.

    Attributes:
      masked: the masked batch.
      segments: [B, L] int32, see `models.segments`.
      token_positions: [B, L] int32, the same.
      pairs: [B] bool, all True, for a batch of pairs of translations; None for any other.
      apart: the same for pairs whose sentences do not see each other, which are contrasted.
      scheduled: [B] float32 values of the step, to be reported.
      language: [B] int32, number of each row's language; None where it is unknown.
      tokens: [B, L] int32, `masked.inputs` as rows of the table at hand.
      sample: the words of the softmax; None for the whole vocabulary.
      places: [G, C] int32, row of each candidate in the table at hand; None if they come first.
      dropout_key: None for no dropout.
    """

    masked: Masked
    segments: jax.Array
    token_positions: jax.Array
    pairs: jax.Array | None
    apart: jax.Array | None
    scheduled: dict[str, jax.Array]
    language: jax.Array | None
    tokens: jax.Array
    sample: Sample | None
    places: jax.Array | None
    dropout_key: jax.Array | None


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """Predicts masked tokens from their row.

    A batch that brings `segments` and `positions` holds pairs of translations. If a pair is one
    segment, that is translation language modelling. If it is two, which the batch says by `apart`,
    each sentence is predicted alone and the mean states of their text, masks left out, are
    contrasted (`objectives.contrastive`).

    Attributes:
      encoder: the model.
      output_layer: how the loss over the vocabulary is computed.
      mask: how tokens are masked.
      bos, pad, mask_id: ids of `<s>`, padding and `<mask>`.
      never_masked: ids that are structure, not text.
      across_documents: whether attention crosses the documents of a row.
      words: statistics of the words, for the output layer.
      languages: their names, for metrics of each; none of them without.
      contrast: how pairs kept apart are contrasted; None if no batch has them.
    """

    encoder: Encoder
    output_layer: OutputLayer
    mask: MaskSettings
    bos: int
    pad: int
    mask_id: int
    never_masked: tuple[int, ...]
    across_documents: bool
    words: WordStatistics
    languages: tuple[str, ...] = ()
    contrast: ContrastSettings | None = None

    def init(self, key: jax.Array, length: int):
        """Parameters of the model, boxed with their logical axis names."""
        row = jnp.zeros((1, length), jnp.int32)
        params = self.encoder.init(key, row, row, row)["params"]
        if self.output_layer.frequency_bias:
            bias = params["head"]["bias"]
            # Padding rows have probability zero, and a logit that nothing reads.
            log_frequency = jnp.log(jnp.maximum(self.words.probabilities, 1e-10))
            params["head"]["bias"] = bias.replace_boxed(log_frequency.astype(jnp.float32))
        return params

    @property
    def table(self) -> tuple[str, ...]:
        return ("embeddings", "table")

    @property
    def mesh(self) -> Mesh | None:
        """What it runs on, if that was said and is there."""
        mesh = self.output_layer.mesh
        return mesh if isinstance(mesh, Mesh) else None

    @property
    def refresh_every(self) -> int:
        return self.output_layer.refresh_every if self.output_layer.uses_neighbours else 0

    @property
    def rolling_refresh(self) -> bool:
        return self.output_layer.refresh == "rolling"

    @property
    def exact_fraction(self) -> float:
        return self.output_layer.exact_fraction if self.output_layer.is_sampled else 0.0

    def empty_index(self) -> NeighbourIndex | None:
        """An index to be refreshed before use, or None if the output layer uses none."""
        return self.output_layer.empty_index(self.encoder.settings.vocab_size)

    def refresh(
        self, params, index: NeighbourIndex, part: jax.Array | None
    ) -> tuple[NeighbourIndex, Sums]:
        """The neighbour index of the output embeddings, all or a part of it, and a report."""
        table, _ = output_table(params)
        index, report = self.output_layer.refreshed(index, table, self.words, part)
        return index, {name: (value, jnp.float32(1)) for name, value in report.items()}

    def prepare(
        self,
        index: NeighbourIndex | None,
        batch: dict[str, jax.Array],
        key: jax.Array,
        *,
        exact: bool = False,
        dropout: bool = True,
        gather: bool = True,
    ) -> tuple[Prepared, jax.Array | None]:
        """Masks a batch and samples the words of its softmax.

        Args:
          index: neighbour index, if the output layer uses one.
          batch: `tokens` [B, L] int32; of pairs also `segments` and `positions` [B, L] int32, and
            `apart` [B] bool, all True, where their sentences are two segments;
            `mask_rate` [B] float32 where it is not `mask.rate`; `language` [B] int32
            and `alpha` [B] float32 for metrics.
          key: random key of masking, sampling and dropout.
          exact: take the softmax over the whole vocabulary.
          dropout: whether `sums` is to apply it.
          gather: whether `sums` is to be given the rows that the batch touches where they are
            fewer than the table's.

        Returns:
          The prepared batch; the rows of the table that `sums` is to be given, None for all.
        """
        mask_key, dropout_key, sample_key = jax.random.split(key, 3)
        masked = mask_tokens(
            mask_key,
            batch["tokens"],
            self.mask,
            vocab_size=self.output_layer.num_valid,
            mask_id=self.mask_id,
            never_masked=self.never_masked,
            rates=batch.get("mask_rate"),
        )
        if "positions" in batch:
            segments, token_positions = batch["segments"], batch["positions"]
            pairs = None if "apart" in batch else jnp.ones(len(segments), bool)
        else:
            segments, token_positions = self._segments(batch["tokens"])
            pairs = None
        prepared = Prepared(
            masked,
            segments,
            token_positions,
            pairs,
            batch.get("apart"),
            {name: batch[name] for name in _SCHEDULED if name in batch},
            batch.get("language"),
            tokens=masked.inputs,
            sample=None,
            places=None,
            dropout_key=dropout_key if dropout else None,
        )
        if exact or not self.output_layer.is_sampled:
            return prepared, None
        groups = (self.output_layer.num_groups(masked.inputs.shape[0]), -1)
        sample = self.output_layer.sample(
            sample_key,
            masked.targets.reshape(groups),
            masked.weights.reshape(groups),
            index,
            self.words,
        )
        ids, vocab_size = sample.candidates.ids, self.encoder.settings.vocab_size
        if not gather or ids.size + masked.inputs.size >= vocab_size:
            return prepared._replace(sample=sample, places=ids), None
        rows = working_rows(ids, masked.inputs, vocab_size)
        return (
            prepared._replace(tokens=rows.tokens, sample=sample, places=rows.candidates),
            rows.ids,
        )

    def sums(self, params, prepared: Prepared) -> Sums:
        """Loss and metrics of a batch; training minimises sum over weight of "loss".

        Args:
          params: as from `init`, unboxed; in place of the table the rows that `prepare` named.
          prepared: from `prepare`.
        """
        states = self._states(
            params,
            prepared.tokens,
            prepared.segments,
            prepared.token_positions,
            prepared.dropout_key,
        )
        loss = self._loss(params, prepared, states)
        total, weight, one = loss.losses.sum(), prepared.masked.weights.sum(), jnp.float32(1)
        sums = {
            "loss": (total, weight),
            "candidates": (loss.candidates, one),
            "overflow": (loss.overflow, one),
        }
        if prepared.pairs is not None:
            sums["pair_loss"] = (total, weight)
        if prepared.apart is not None:
            sums |= self._contrasted(prepared, states, total)
        for name, values in prepared.scheduled.items():
            sums[name] = (values.mean(), one)
        if prepared.language is not None and self.languages:
            sums |= self._by_language(loss.losses, prepared.masked.weights, prepared.language)
        return sums

    def _by_language(self, losses: jax.Array, weights: jax.Array, language: jax.Array) -> Sums:
        """Loss of each language: sums of its rows [B, M], weight zero if it has none."""
        of_rows = jnp.stack([losses.reshape(weights.shape), weights]).sum(axis=2)  # [2, B]
        sums = jax.ops.segment_sum(of_rows.T, language, len(self.languages))  # [N, 2]
        return {f"loss/{name}": (sums[i, 0], sums[i, 1]) for i, name in enumerate(self.languages)}

    def _contrasted(self, prepared: Prepared, states: jax.Array, total: jax.Array) -> Sums:
        """The loss with the contrast of pairs kept apart, a pair weighing as its masked tokens."""
        assert self.contrast is not None, "pairs kept apart, but no settings of their contrast"
        is_text = ~jnp.isin(prepared.masked.inputs, jnp.array(self.never_masked))
        one, two = (mean_state(states, is_text & (prepared.segments == i)) for i in (1, 2))
        losses, accuracies = contrastive_loss(one, two, self.contrast.temperature)
        weights = prepared.masked.weights.sum(axis=1)  # [B]
        contrast, weight = (losses * weights).sum(), weights.sum()
        return {
            "loss": (total + self.contrast.weight * contrast, weight),
            "apart_loss": (total, weight),
            "contrast_loss": (contrast, weight),
            "contrast_accuracy": ((accuracies * weights).sum(), weight),
        }

    def _loss(self, params, prepared: Prepared, states: jax.Array) -> OutputLoss:
        masked, sample = prepared.masked, prepared.sample
        hidden = self._predicted(params, states, masked.positions)  # [B, M, E]
        table, bias = output_table(params)
        if sample is None:
            flat = (masked.targets.reshape(-1), masked.weights.reshape(-1))
            hidden = hidden.reshape(-1, hidden.shape[-1])  # [W, E], W = B M
            return self.output_layer.exact_loss(hidden, *flat, table, bias)
        groups = sample.candidates.labels.shape
        return self.output_layer.sampled_loss(
            hidden.reshape(*groups, -1),  # [G, Wg, E]
            masked.weights.reshape(groups),
            table,
            bias,
            sample,
            prepared.places,
        )

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
        segments, token_positions = self._segments(inputs)
        states = self._states(params, inputs, segments, token_positions, dropout_key)
        return self._predicted(params, states, positions)

    def _segments(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return packed_segments(
            inputs, bos=self.bos, pad=self.pad, across_documents=self.across_documents
        )

    def _states(
        self,
        params,
        tokens: jax.Array,
        segments: jax.Array,
        token_positions: jax.Array,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """The encoder's states [B, L, D]; `tokens` are rows of the table in `params`."""
        table, _ = output_table(params)
        return self.encoder.apply(
            {"params": params},
            tokens,
            segments,
            token_positions,
            deterministic=dropout_key is None,
            table=table,
            method="encode",
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )

    def _predicted(self, params, states: jax.Array, positions: jax.Array) -> jax.Array:
        """What the output layer scores [B, M, E], of the states at `positions`."""
        chosen = jnp.take_along_axis(states, positions[:, :, None], axis=1)  # [B, M, D]
        return self.encoder.apply({"params": params}, chosen, method="predict")
