"""A Transformer encoder in the manner of XLM-R: GELU, learned positions, post-LN or pre-LN."""

import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning

_INIT_STDDEV = 0.02
_LAYER_NORM_EPSILON = 1e-5
# What a layer may keep for the backward pass, by model.remat.
_REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
    """Sizes of an encoder; the `model` section of a config plus the vocabulary.

    Attributes:
      vocab_size: V, rows of the embedding table, padding included.
      embedding_size: E, width of token embeddings and of the output layer; half of `hidden_size`
        is the half embedding of paper Section 3.2.
      hidden_size: D.
      num_layers: Transformer layers.
      num_heads: attention heads; divides `hidden_size`.
      mlp_size: width of the feed-forward layer.
      max_length: positions.
      norm_position: "post" for LayerNorm after each sub-layer's sum, as XLM-R has it; "pre" for
        LayerNorm before each sub-layer and once at the end, which learns sooner.
      dropout_rate: after embeddings and after each sub-layer.
      attention_dropout_rate: on attention weights.
      dtype: type of activations, "float32" or "bfloat16"; parameters are float32.
      attention: how attention is computed, "xla" anywhere, "cudnn" on a GPU in bfloat16 (fused, and
        without dropout on its weights).
      remat: what a layer keeps for the backward pass: "none" for everything to be kept, "dots" to
        keep products of matrices and compute the rest again, "full" to keep the layer's input
        alone.
      unroll: layers of a turn of the loop over layers; all of them take longer to compile and run
        faster where layers are small.
    """

    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_size: int
    max_length: int
    norm_position: str
    dropout_rate: float
    attention_dropout_rate: float
    dtype: str
    attention: Literal["xla", "cudnn"] = "xla"
    remat: str = "none"
    unroll: int = 1

    def __post_init__(self):
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} is no multiple of model.num_heads "
                f"{self.num_heads}"
            )
        if self.norm_position not in ("post", "pre"):
            raise ValueError(f"model.norm_position is {self.norm_position!r}, must be post or pre")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"model.dtype is {self.dtype!r}, must be float32 or bfloat16")
        if self.remat not in _REMAT:
            raise ValueError(f"model.remat is {self.remat!r}, must be one of {tuple(_REMAT)}")
        if self.unroll < 1:
            raise ValueError(f"model.unroll is {self.unroll}, must be at least 1")
        if self.attention not in ("xla", "cudnn"):
            raise ValueError(f"model.attention is {self.attention!r}, must be xla or cudnn")
        if self.attention == "cudnn" and (self.attention_dropout_rate or self.dtype == "float32"):
            raise ValueError(
                'model.attention "cudnn" needs model.dtype "bfloat16" and '
                f"model.attention_dropout_rate 0; they are {self.dtype!r} and "
                f"{self.attention_dropout_rate}"
            )


def _dense(features: int, axes: tuple[str, str], name: str, dtype: str) -> nn.Dense:
    kernel_init = with_logical_partitioning(nn.initializers.normal(_INIT_STDDEV), axes)
    bias_init = with_logical_partitioning(nn.initializers.zeros, axes[1:])
    return nn.Dense(features, dtype=dtype, kernel_init=kernel_init, bias_init=bias_init, name=name)


def _gelu(x: jax.Array) -> jax.Array:
    """The exact GELU; the tanh approximation would part from the released models."""
    return nn.gelu(x, approximate=False)


def _layer_norm(name: str, dtype: str) -> nn.LayerNorm:
    return nn.LayerNorm(
        epsilon=_LAYER_NORM_EPSILON,
        dtype=dtype,
        scale_init=with_logical_partitioning(nn.initializers.ones, ("embed",)),
        bias_init=with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        name=name,
    )


class Embeddings(nn.Module):
    """Token and position embeddings, projected to the model width where that differs."""

    settings: EncoderSettings

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        deterministic: bool,
        table: jax.Array | None = None,
    ) -> jax.Array:
        s = self.settings
        init = nn.initializers.normal(_INIT_STDDEV)
        if table is None:
            table = self.param(
                "table",
                with_logical_partitioning(init, ("vocab", "embed")),
                (s.vocab_size, s.embedding_size),
            )
        position_table = self.param(
            "positions",
            with_logical_partitioning(init, ("position", "embed")),
            (s.max_length, s.hidden_size),
        )
        x = jnp.take(table, tokens, axis=0).astype(s.dtype)  # [B, L, E]
        if s.embedding_size != s.hidden_size:
            x = _dense(s.hidden_size, ("embed", "embed_out"), "project", s.dtype)(x)
        x = x + jnp.take(position_table, positions, axis=0).astype(s.dtype)  # [B, L, D]
        x = _layer_norm("norm", s.dtype)(x)
        return nn.Dropout(s.dropout_rate)(x, deterministic=deterministic)


class SelfAttention(nn.Module):
    """Multi-head self-attention between the positions of one segment."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, x: jax.Array, segments: jax.Array, deterministic: bool) -> jax.Array:
        s = self.settings
        head_size = s.hidden_size // s.num_heads

        def heads(name: str) -> jax.Array:
            projected = _dense(s.hidden_size, ("embed", "heads"), name, s.dtype)(x)
            return projected.reshape(*x.shape[:2], s.num_heads, head_size)  # [B, L, H, D / H]

        query, key, value = heads("query"), heads("key"), heads("value")
        same_segment = segments[:, None, :, None] == segments[:, None, None, :]  # [B, 1, L, L]
        if deterministic or not s.attention_dropout_rate:
            # The shapes of parameters can be had where there is no GPU.
            kernel: Literal["xla", "cudnn"] = "xla" if self.is_initializing() else s.attention
            mixed = jax.nn.dot_product_attention(
                query, key, value, mask=same_segment, implementation=kernel
            )
        else:
            weights = _attention_weights(query, key, same_segment)
            weights = nn.Dropout(s.attention_dropout_rate)(weights, deterministic=False)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return _dense(s.hidden_size, ("heads", "embed"), "output", s.dtype)(mixed.reshape(x.shape))


def _attention_weights(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention weights [B, H, L, L] of queries and keys [B, L, H, D / H], for dropout on them."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask, scores / jnp.sqrt(query.shape[-1]), -1e30)
    return jax.nn.softmax(scores).astype(query.dtype)


class FeedForward(nn.Module):
    """Dense, GELU, dense, position by position."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.settings
        hidden = _dense(s.mlp_size, ("embed", "mlp"), "wide", s.dtype)(x)
        return _dense(s.hidden_size, ("mlp", "embed"), "output", s.dtype)(_gelu(hidden))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual sum and a LayerNorm."""

    settings: EncoderSettings

    @nn.compact
    def __call__(
        self, x: jax.Array, is_used: jax.Array, segments: jax.Array, deterministic: bool
    ) -> tuple[jax.Array, None]:
        """The hidden states, or `x` where `is_used` is False, as a step of `nn.scan`."""
        s = self.settings
        attention = SelfAttention(s, name="attention")
        feed_forward = FeedForward(s, name="mlp")
        attention_norm = _layer_norm("attention_norm", s.dtype)
        mlp_norm = _layer_norm("mlp_norm", s.dtype)
        dropout = nn.Dropout(s.dropout_rate, deterministic=deterministic)
        if s.norm_position == "pre":
            y = x + dropout(attention(attention_norm(x), segments, deterministic))
            y = y + dropout(feed_forward(mlp_norm(y)))
        else:
            y = attention_norm(x + dropout(attention(x, segments, deterministic)))
            y = mlp_norm(y + dropout(feed_forward(y)))
        return jnp.where(is_used, y, x), None


def _stack(settings: EncoderSettings) -> nn.Module:
    """All layers as one: a loop, compiled once, over parameters with an axis of layers in front."""
    layer = EncoderLayer
    if settings.remat != "none":
        # A loop is never merged with its repetition, so nothing has to prevent that.
        layer = nn.remat(
            layer, policy=_REMAT[settings.remat], prevent_cse=False, static_argnums=(4,)
        )
    return nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast, nn.broadcast),
        length=settings.num_layers,
        unroll=settings.unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )(settings, name="layers")


class MaskedLMHead(nn.Module):
    """Dense, GELU and LayerNorm in front of the output layer, and the output layer's bias."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        s = self.settings
        self.param(
            "bias",
            with_logical_partitioning(nn.initializers.zeros, ("vocab",)),
            (s.vocab_size,),
        )
        hidden = _dense(s.embedding_size, ("embed", "embed_out"), "dense", s.dtype)(hidden)
        return _layer_norm("norm", s.dtype)(_gelu(hidden))


class Encoder(nn.Module):
    """The encoder with its masked-LM head; `init` through `__call__` makes all parameters."""

    settings: EncoderSettings

    def setup(self):
        self.embeddings = Embeddings(self.settings)
        if self.settings.num_layers:
            self.layers = _stack(self.settings)
        if self.settings.norm_position == "pre":
            self.final_norm = _layer_norm("final_norm", self.settings.dtype)
        self.head = MaskedLMHead(self.settings)

    def encode(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        positions: jax.Array,
        *,
        deterministic: bool,
        num_layers: int | None = None,
        table: jax.Array | None = None,
    ) -> jax.Array:
        """Hidden states [B, L, D] after `num_layers` layers, all by default.

        Args:
          tokens: [B, L] int32 ids.
          segments: [B, L] int32; positions attend within their segment only.
          positions: [B, L] int32 position of each token in its segment.
          deterministic: no dropout; otherwise the "dropout" stream of random keys is needed.
          num_layers: hidden states after so many layers; 0 gives the embeddings.
          table: [R, E] rows that `tokens` are numbers of, in place of the token embeddings.

        Raises:
          ValueError: the encoder has fewer layers.
        """
        total = self.settings.num_layers
        num_layers = total if num_layers is None else num_layers
        if not 0 <= num_layers <= total:
            raise ValueError(f"num_layers is {num_layers}, must be between 0 and {total}")
        x = self.embeddings(tokens, positions, deterministic, table)
        if num_layers:
            x, _ = self.layers(x, jnp.arange(total) < num_layers, segments, deterministic)
        if num_layers == total and self.settings.norm_position == "pre":
            x = self.final_norm(x)
        return x

    def predict(self, hidden: jax.Array) -> jax.Array:
        """What the output layer compares with its embeddings: [..., D] -> [..., E]."""
        return self.head(hidden)

    def __call__(self, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        return self.predict(self.encode(tokens, segments, positions, deterministic=True))


def output_table(params) -> tuple[jax.Array, jax.Array]:
    """The output layer's embeddings [V, E], tied to the input's, and its bias [V]."""
    return params["embeddings"]["table"], params["head"]["bias"]
