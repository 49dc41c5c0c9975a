"""Translation by an encoder and a decoder that share embeddings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from knn_sampling.output_layer import OutputLayer
from xlm.models.encoder import Encoder, init_params, run_encoder
from xlm.models.transformer import Context
from xlm.objectives.label_smoothing import smoothing_penalty
from xlm.objectives.objective import Batch, LossAndMetrics, Objective


@dataclasses.dataclass(frozen=True, eq=False)
class Translation(Objective):
    """Label-smoothed loss of targets given sources, on features of `translation_features`.

    Parameters are {"encoder": an encoder without its masked-LM head, "decoder": layers with
    cross-attention and a masked-LM head}. The encoder's embeddings are also the decoder's and the
    output embeddings. The two share nothing else, like the standard Transformer that VECO's modules
    imitate (Section 2.3). `smoothing` of labels is from 0 to 1. Without `has_head` the decoder's
    states are the output layer's inputs, and E must be D.
    """

    encoder: Encoder
    decoder: Encoder
    output_layer: OutputLayer
    smoothing: float
    has_head: bool = True

    def init(self, key: jax.Array) -> dict[str, Any]:
        models = self.encoder, self.decoder
        encoder, decoder = map(init_params, models, jax.random.split(key))
        del encoder["head"], decoder["embeddings"]
        if not self.has_head:
            decoder["head"] = {"bias": decoder["head"]["bias"]}
        return {"encoder": encoder, "decoder": decoder}

    def example_axes(self, plan: Batch, num_shards: int) -> int | None:
        """Return 0, the axis of the examples in all arrays; None if a model crosses shards."""
        models = self.encoder, self.decoder
        return 0 if all(model.settings.can_map_shards() for model in models) else None

    def loss(self, params, rows, plan: Batch, key: jax.Array) -> tuple[LossAndMetrics, None]:
        """Return the loss of a batch; "nll" is without smoothing, in nats a token."""
        del rows
        labels = plan["target_outputs"]
        weights = plan["weights"][:, None] * (labels >= 0)
        labels = jnp.maximum(labels, 0)
        hidden = self.hidden(params, plan.arrays, key)
        table, bias = self.output_table(params)
        losses = self.output_layer.loss(hidden, labels, weights, table, bias, None)
        nll, weight = losses.sum(), weights.sum()
        penalty = smoothing_penalty(
            hidden, labels, table, bias, self.smoothing, self.output_layer.num_valid
        )
        return {"loss": (nll + (penalty * weights).sum(), weight), "nll": (nll, weight)}, None

    def token_log_probs(self, params, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return log P [B, L] of each target token given the tokens before it, 0 for padding."""
        labels = batch["target_outputs"]
        hidden = self.hidden(params, batch)
        args = hidden, jnp.maximum(labels, 0), jnp.float32(1) * (labels >= 0)
        return -self.output_layer.loss(*args, *self.output_table(params), None)

    def hidden(
        self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array | None = None
    ) -> jax.Array:
        """Return output layer inputs [B, L, E] at `target_inputs`; without a key, no dropout."""
        keys = (None, None) if key is None else jax.random.split(key)
        inputs = batch["target_inputs"]
        positions = jnp.broadcast_to(jnp.arange(inputs.shape[1], dtype=jnp.int32), inputs.shape)
        states = self.states(params, batch, keys[0])
        decoder, context = self.decoder_params(params), Context(states, context_mask(batch))
        # Padding comes last, so no other token sees it.
        hidden = run_encoder(
            self.decoder, decoder, inputs, jnp.ones_like(inputs), positions, context,
            key=keys[1], method="decode",
        )  # fmt: skip
        return self.predict(decoder, hidden)

    def predict(self, decoder_params: Any, hidden: jax.Array) -> jax.Array:
        """Return output layer inputs [..., E] of the decoder's states [..., D]."""
        if not self.has_head:
            return hidden
        return self.decoder.apply({"params": decoder_params}, hidden, method="predict")

    def states(
        self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array | None = None
    ) -> jax.Array:
        """Return states [B, L, D] of the sources; without a key, no dropout."""
        inputs = (batch[name] for name in ("tokens", "segments", "positions"))
        return run_encoder(self.encoder, params["encoder"], *inputs, key=key)

    def decoder_params(self, params: Any) -> dict[str, Any]:
        """Return the parameters of the decoder, with the embeddings."""
        return {**params["decoder"], "embeddings": params["encoder"]["embeddings"]}

    def output_table(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """Return output embeddings [V, E] and output bias [V]."""
        return params["encoder"]["embeddings"]["table"], params["decoder"]["head"]["bias"]


def context_mask(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the mask [B, 1, 1, L] of the tokens of the sources."""
    return (batch["segments"] > 0)[:, None, None]
