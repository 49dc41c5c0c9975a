"""XLM-R-style Transformer encoder: GELU, post-LN or pre-LN, several position encodings.

Layers with cross-attention make the same parameters a decoder too (VECO, Section 2.1).
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning

from xlm.models.attention import Cache
from xlm.models.layers import dense, gelu, initializer, norm
from xlm.models.layout import embedded, split_batch
from xlm.models.positions import DistanceBias, DistanceTable, LearnedPositions
from xlm.models.segments import SegmentMask
from xlm.models.settings import EncoderSettings
from xlm.models.transformer import Context, LayerCache, PositionInfo, layer_loop, make_layer

# Rows [R, E] of token embeddings, or several such tables to be summed.
Tables = jax.Array | tuple[jax.Array, ...]

# Parameters of a layer that only decoders read.
CROSS_ATTENTION = ("cross_attention", "cross_attention_norm")


class Embeddings(nn.Module):
    """Embeddings of tokens, projected to the model width if it differs, and of positions."""

    settings: EncoderSettings

    def setup(self):
        s = self.settings
        if s.position == "learned":
            self.learned_positions = LearnedPositions(s.max_length, s.hidden_size, s.dtype)
            nn.share_scope(self, self.learned_positions)  # puts their table next to that of tokens

    @nn.compact
    def __call__(
        self, tokens: jax.Array, positions: jax.Array, deterministic: bool,
        table: Tables | None = None,
    ) -> jax.Array:  # fmt: skip
        s = self.settings
        if table is None:
            table = self.param(
                "table",
                with_logical_partitioning(
                    initializer("normal" if s.initializer == "fan_in" else s.initializer),
                    ("vocab", "embed"),
                ),
                (s.vocab_size, s.embedding_size),
            )
        first, *others = table if isinstance(table, tuple) else (table,)
        x = embedded(first, tokens)  # [B, L, E]
        for other in others:
            x = x + embedded(other, tokens)
        x = x.astype(s.dtype)
        if s.embedding_size != s.hidden_size:
            axes = ("embed", "embed_out")
            x = dense(s.hidden_size, axes, s.dtype, s.initializer, "project", use_bias=s.bias)(x)
        if s.position == "learned":
            x = x + self.learned_positions(positions)  # [B, L, D]
        if s.embedding_norm:
            x = norm(s.norm, s.dtype, s.norm_epsilon, "norm")(x)
        return nn.Dropout(s.dropout_rate)(x, deterministic=deterministic)


class MaskedLMHead(nn.Module):
    """Dense, GELU and norm in front of the output layer, and the output layer's bias."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        s = self.settings
        self.param(
            "bias", with_logical_partitioning(nn.initializers.zeros, ("vocab",)), (s.vocab_size,)
        )
        hidden = split_batch(hidden)
        axes = ("embed", "embed_out")
        hidden = dense(
            s.embedding_size, axes, s.dtype, s.initializer, "dense", use_bias=s.bias,
            depth=s.num_layers,
        )(hidden)  # fmt: skip
        return split_batch(norm(s.norm, s.dtype, s.norm_epsilon, "norm")(gelu(hidden)))


class Encoder(nn.Module):
    """Encoder with its masked-LM head; `init` through `__call__` creates all parameters."""

    settings: EncoderSettings

    def setup(self):
        s = self.settings
        self.embeddings = Embeddings(s)
        if s.num_layers:
            self.layers = make_layer(s)
        if s.num_layers and s.has_bias:
            self.distances = DistanceTable(
                s.num_heads, s.distance_buckets, s.max_distance, s.distance_slope, s.max_length
            )
        if s.norm_position == "pre":
            self.final_norm = norm(s.norm, s.dtype, s.norm_epsilon)
        self.head = MaskedLMHead(s)

    def encode(
        self, tokens: jax.Array, segments: jax.Array, positions: jax.Array, *, deterministic: bool,
        num_layers: int | None = None, table: Tables | None = None, positions_restart: bool = False,
    ) -> jax.Array:  # fmt: skip
        """Return hidden states [B, L, D] after `num_layers` layers, all by default.

        Raises ValueError if the encoder has fewer layers.

        Args:
          tokens: [B, L] int32 ids.
          segments: [B, L] int32; tokens attend within their segment only.
          positions: [B, L] int32 position of each token in its segment.
          deterministic: no dropout; otherwise the module needs a "dropout" random stream.
          num_layers: 0 gives the embeddings.
          table: [R, E] rows indexed by `tokens`, in place of the token embeddings. Rows of several
            tables are summed.
          positions_restart: whether positions restart within a segment. If not, distances come
            from indices, which is equivalent and cheaper.
        """
        total = self.settings.num_layers
        num_layers = total if num_layers is None else num_layers
        if not 0 <= num_layers <= total:
            raise ValueError(f"num_layers is {num_layers}, must be between 0 and {total}")
        x = self.embeddings(tokens, positions, deterministic, table)
        if num_layers:
            is_new = self.is_initializing()
            layers = layer_loop(self.settings, num_layers, is_initializing=is_new)
            order = self._order(segments, positions, positions_restart)
            x, _ = layers(self.layers, x, order, deterministic, None, None)
        if num_layers == total and self.settings.norm_position == "pre":
            x = self.final_norm(x)
        return x

    def decode(
        self, tokens: jax.Array, segments: jax.Array, positions: jax.Array, context: Context, *,
        is_causal: bool = True, deterministic: bool, table: Tables | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return hidden states [B, L, D] of all layers with cross-attention (VECO Eq. 6).

        Each layer is self-attention with the encoder's position encoding, cross-attention without
        any, and feed-forward. Other arguments are those of `encode`. Raises ValueError if the
        layers have no cross-attention.

        Args:
          context: states to attend to, with their mask. A token that sees none of them gets their
            mean, so take no loss of it.
          is_causal: whether tokens see only themselves and earlier tokens of their segment.
        """
        s = self.settings
        if not s.cross_attention:
            raise ValueError(
                "model.cross_attention is False, and layers without it cannot decode; set it to "
                "True, and train it or start from a model that has it"
            )
        x = self.embeddings(tokens, positions, deterministic, table)
        if s.num_layers:
            order = self._order(segments, positions, is_causal=is_causal)
            layers = layer_loop(s, s.num_layers, is_initializing=self.is_initializing())
            x, _ = layers(self.layers, x, order, deterministic, context, None)
        return self.final_norm(x) if s.norm_position == "pre" else x

    def decode_next(
        self, tokens: jax.Array, index: jax.Array, context_mask: jax.Array, cache: LayerCache
    ) -> tuple[jax.Array, Cache]:
        """Return the states [B, N, D] of `decode` for the next token of N hypotheses per example.

        Also returns the cache's `own` part with these tokens.

        Args:
          tokens: [B, N] int32 last token of each hypothesis.
          index: scalar int32, their index in the hypotheses.
          context_mask: [B, 1, 1, K] bool, True for states of the context that they see.
          cache: of all layers, with the tokens before `index`. Its capacity is at most the number
            of positions.
        """
        s = self.settings
        positions = jnp.broadcast_to(index, tokens.shape)
        x = self.embeddings(tokens, positions, True)
        order = self._order_of_next(index, tokens.size, cache.own.capacity)
        layers = layer_loop(s, s.num_layers)
        x, own = layers(self.layers, x, order, True, Context(None, context_mask), cache)
        return self.final_norm(x) if s.norm_position == "pre" else x, own

    def _order_of_next(self, index: jax.Array, num_sequences: int, capacity: int) -> PositionInfo:
        """Return position information of one token per sequence, for a cache of `capacity`."""
        s, bias, positions = self.settings, None, None
        if s.has_bias:
            by_distance = self.distances()  # [H, 2 N - 1], distance 0 in the middle
            first = by_distance.shape[1] // 2 - index
            bias = jax.lax.dynamic_slice_in_dim(by_distance, first, capacity, axis=1)[None, :, None]
        if s.position == "rotary":
            positions = jnp.broadcast_to(index, (num_sequences, 1))
        # No mask: the cache has only earlier tokens.
        return PositionInfo(None, bias, positions)

    def _order(
        self, segments: jax.Array, positions: jax.Array, positions_restart: bool = False,
        is_causal: bool = False,
    ) -> PositionInfo:  # fmt: skip
        s, bias = self.settings, None
        if s.has_bias:
            bias = DistanceBias(
                self.distances(), segments, positions if positions_restart else None
            )
        rotated_by = positions if s.position == "rotary" else None
        return PositionInfo(SegmentMask(segments, is_causal=is_causal), bias, rotated_by)

    def predict(self, hidden: jax.Array) -> jax.Array:
        """Apply the masked-LM head, [..., D] -> [..., E], the input of the output layer."""
        return self.head(hidden)

    def __call__(self, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        hidden = self.encode(tokens, segments, positions, deterministic=True)
        if self.is_initializing() and self.settings.cross_attention:
            context = Context(hidden, SegmentMask(segments))
            self.decode(tokens, segments, positions, context, deterministic=True)
        return self.predict(hidden)


# Traced once for all runs and stages of these settings.
@functools.partial(jax.jit, static_argnums=0, static_argnames="has_head", inline=True)
def init_params(
    encoder: Encoder, key: jax.Array, table: jax.Array | None = None, *, has_head: bool = True
) -> dict[str, Any]:
    """Initialise an encoder's parameters, boxed with their logical axis names.

    `has_head` adds the masked-LM head, and a decoder's parameters if the settings have one. Without
    a head, `table` [R, E] gives token embeddings of another model in place of an own table.
    """
    row = jnp.zeros((1, 1), jnp.int32)
    if has_head:
        return encoder.init(key, row, row, row)["params"]
    encode = {"deterministic": True, "table": table, "method": "encode"}
    return encoder.init(key, row, row, row, **encode)["params"]


def run_encoder(
    encoder: Encoder, params: Any, *inputs: Any, key: jax.Array | None, method: str = "encode",
    **options: Any,
) -> jax.Array:  # fmt: skip
    """Return the states [B, L, D] of `Encoder.encode` or `decode`; no dropout without a `key`."""
    rngs = None if key is None else {"dropout": key}
    return encoder.apply(
        {"params": params}, *inputs, **options, deterministic=key is None, method=method, rngs=rngs
    )


def without_cross_attention(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the encoder's parameters only, for settings without cross-attention."""
    all_of = params.get("layers", {})
    layers = {name: value for name, value in all_of.items() if name not in CROSS_ATTENTION}
    return {**params, "layers": layers} if layers else dict(params)


def output_table(params) -> tuple[jax.Array, jax.Array]:
    """Return output embeddings [V, E], tied to the input embeddings, and output bias [V]."""
    return params["embeddings"]["table"], params["head"]["bias"]
