"""XLM-R-style Transformer encoder: GELU, post-LN or pre-LN, several position encodings.

With cross-attention in its layers the same parameters are a decoder as well (VECO, Section 2.1).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
from flax.linen.spmd import with_logical_partitioning

from models.attention import KERNELS, Attention, Kernel
from models.layers import INIT_STDDEV, INITIALIZERS, dense, gelu, layer_norm
from models.layout import embedded, only_data_is_split, split_batch
from models.masks import causal_mask, segment_mask
from models.positions import DistanceBias, DistanceTable, LearnedPositions

# Rows [R, E] of token embeddings, or several tables of them whose sum they are.
Tables = jax.Array | tuple[jax.Array, ...]

# Parameters of layers that only a decoder reads.
CROSS_ATTENTION = ("cross_attention", "cross_attention_norm")

POSITIONS = ("learned", "rotary", "relative", "gated")

# Rematerialisation policy of a layer, by model.remat.
_REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
    """Architecture of an encoder; the `model` section of a config plus the vocabulary size.

    Attributes:
      vocab_size: V, number of rows of the embedding table, padding included.
      embedding_size: E, width of token embeddings and of the output layer; half of `hidden_size`
        is the half embedding of paper Section 3.2.
      hidden_size: D.
      num_layers: number of Transformer layers.
      num_heads: number of attention heads; divides `hidden_size`.
      mlp_size: width of the feed-forward layer.
      max_length: longest sequence in tokens, number of positions.
      norm_position: "post" for LayerNorm after each sub-layer's residual sum, as in XLM-R; "pre"
        for LayerNorm before each sub-layer and once at the end, which converges earlier.
      embedding_norm: whether there is a LayerNorm after the embeddings; XLM-R XL has none.
      dropout_rate: after embeddings and after each sub-layer.
      attention_dropout_rate: on attention weights.
      dtype: of activations, "float32" or "bfloat16"; parameters are float32.
      attention: attention kernel: "xla" on any backend; on a GPU "cudnn" for its fused kernel, in
        bfloat16 and without a gated bias, or "pallas" for our own with a bias by distance;
        with dropout on its weights by blocks of queries, see `models.attention`.
      remat: rematerialisation in the backward pass: "none" stores all activations, "dots" stores
        matrix products and recomputes the rest, "full" stores the layer's input alone.
      unroll: layers per iteration of the scan over layers; unrolling all takes longer to compile
        and runs faster where layers are small.
      position: position encoding (`models.positions`): "learned" position embeddings, "rotary"
        queries and keys, a "relative" bias of the scores by distance, or that bias "gated" by the
        query.
      rotary_theta: longest wavelength of rotary embeddings, over 2 pi.
      distance_buckets, max_distance: of a bias, see `positions.distance_buckets`.
      distance_slope: initial slope of the bias by distance in the first head; 0 for a bias of
        zeros.
      initializer: of kernels of dense layers, "normal" or "fan_in", see `layers.dense`.
      cross_attention: whether layers have cross-attention as well, so that they can `decode`.
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
    attention: Kernel = "xla"
    remat: str = "none"
    unroll: int = 1
    position: Literal["learned", "rotary", "relative", "gated"] = "learned"
    rotary_theta: float = 10_000.0
    distance_buckets: int = 32
    max_distance: int = 128
    distance_slope: float = 0.0
    initializer: str = "normal"
    cross_attention: bool = False
    embedding_norm: bool = True

    @property
    def has_bias(self) -> bool:
        """Whether positions are a bias of the attention scores."""
        return self.position in ("relative", "gated")

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
        if self.initializer not in INITIALIZERS:
            raise ValueError(
                f"model.initializer is {self.initializer!r}, must be one of {INITIALIZERS}"
            )
        self._check_positions()
        self._check_attention()

    def _check_attention(self):
        if self.attention not in KERNELS:
            raise ValueError(f"model.attention is {self.attention!r}, must be one of {KERNELS}")
        if self.attention == "cudnn" and self.dtype != "bfloat16":
            raise ValueError(
                f'model.attention "cudnn" needs model.dtype "bfloat16", which is {self.dtype!r}'
            )
        if self.attention == "cudnn" and self.position == "gated":
            raise ValueError(
                'model.attention "cudnn" has no gradient for the bias of model.position "gated"; '
                'set model.attention to "pallas" (GPU) or "xla"'
            )
        if self.attention == "pallas" and not self.has_bias:
            raise ValueError(
                f'model.attention "pallas" is for a bias by distance, model.position is '
                f'{self.position!r}; set model.attention to "cudnn" (GPU) or "xla"'
            )

    def _check_positions(self):
        if self.position not in POSITIONS:
            raise ValueError(f"model.position is {self.position!r}, must be one of {POSITIONS}")
        if self.position == "rotary" and (self.hidden_size // self.num_heads) % 2:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} over model.num_heads {self.num_heads} is "
                'odd; model.position "rotary" turns pairs of elements'
            )
        if self.rotary_theta <= 1:
            raise ValueError(f"model.rotary_theta is {self.rotary_theta}, must be above 1")
        if self.distance_buckets < 4 or self.distance_buckets % 4:
            raise ValueError(
                f"model.distance_buckets is {self.distance_buckets}, must be a multiple of 4"
            )
        if self.max_distance <= self.distance_buckets // 4:
            raise ValueError(
                f"model.max_distance is {self.max_distance}, must be above "
                f"{self.distance_buckets // 4}, a fourth of model.distance_buckets"
            )
        if self.distance_slope < 0:
            raise ValueError(f"model.distance_slope is {self.distance_slope}, must be at least 0")

    def can_map_shards(self) -> bool:
        """Whether shards of a batch can be encoded separately, by `jax.shard_map` over `data`.

        This depends on the mesh in context: inside `jax.shard_map` JAX cannot partition a fused
        kernel over axes that are left to the compiler.
        """
        return self.attention == "xla" or only_data_is_split()


class Embeddings(nn.Module):
    """Embeddings of tokens, projected to the model width where that differs, and of positions."""

    settings: EncoderSettings

    def setup(self):
        s = self.settings
        if s.position == "learned":
            self.learned_positions = LearnedPositions(s.max_length, s.hidden_size, s.dtype)
            nn.share_scope(self, self.learned_positions)  # their table is beside that of tokens

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        deterministic: bool,
        table: Tables | None = None,
    ) -> jax.Array:
        s = self.settings
        if table is None:
            table = self.param(
                "table",
                with_logical_partitioning(nn.initializers.normal(INIT_STDDEV), ("vocab", "embed")),
                (s.vocab_size, s.embedding_size),
            )
        first, *others = table if isinstance(table, tuple) else (table,)
        x = embedded(first, tokens)  # [B, L, E]
        for other in others:
            x = x + embedded(other, tokens)
        x = x.astype(s.dtype)
        if s.embedding_size != s.hidden_size:
            x = dense(s.hidden_size, ("embed", "embed_out"), s.dtype, s.initializer, "project")(x)
        if s.position == "learned":
            x = x + self.learned_positions(positions)  # [B, L, D]
        if s.embedding_norm:
            x = layer_norm(s.dtype, "norm")(x)
        return nn.Dropout(s.dropout_rate)(x, deterministic=deterministic)


class FeedForward(nn.Module):
    """Dense, GELU, dense, position by position."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.settings
        hidden = dense(s.mlp_size, ("embed", "mlp"), s.dtype, s.initializer, "wide")(x)
        return dense(s.hidden_size, ("mlp", "embed"), s.dtype, s.initializer, "output")(
            gelu(hidden)
        )


class Order(NamedTuple):
    """Position information of a batch, as passed to the layers.

    Attributes:
      mask: bool that broadcasts to [B, H, L, L], see `models.masks`.
      bias: of the scores; None if the position encoding has none.
      positions: [B, L] int32 to rotate queries and keys by; None if they are not rotated.
    """

    mask: jax.Array
    bias: DistanceBias | None
    positions: jax.Array | None


class Context(NamedTuple):
    """Sequence that a decoder attends to.

    Attributes:
      states: [B, K, D] states of an encoder.
      mask: bool that broadcasts to [B, H, L, K], see `models.masks`.
    """

    states: jax.Array
    mask: jax.Array


class EncoderLayer(nn.Module):
    """Self-attention, cross-attention to any context, and feed-forward.

    Each has a residual sum and a LayerNorm. The parameters of cross-attention are neither created
    nor read without a context.
    """

    settings: EncoderSettings

    @nn.compact
    def __call__(
        self, x: jax.Array, order: Order, deterministic: bool, context: Context | None = None
    ) -> tuple[jax.Array, None]:
        """Apply the layer, as a step of `nn.scan`; return the hidden states after it.

        Args:
          x: [B, L, D] hidden states before it.
          order: position information.
          deterministic: no dropout.
          context: of a decoder; None for an encoder.
        """
        s = self.settings
        attention = Attention(
            s.hidden_size, s.num_heads, s.attention_dropout_rate, s.dtype,
            # Our kernel masks by segments alone, and a decoder may be causal within them.
            "xla" if context is not None and s.attention == "pallas" else s.attention,
            rotary_theta=s.rotary_theta if s.position == "rotary" else 0.0,
            is_gated=s.position == "gated", initializer=s.initializer, name="attention",
        )  # fmt: skip
        feed_forward = FeedForward(s, name="mlp")
        dropout = nn.Dropout(s.dropout_rate, deterministic=deterministic)

        def attend(x: jax.Array) -> jax.Array:
            return attention(x, **order._asdict(), deterministic=deterministic)[0]

        sublayers: list[tuple[str, Callable[[jax.Array], jax.Array]]]
        sublayers = [("attention_norm", attend), ("mlp_norm", feed_forward)]
        if context is not None:
            cross_attention = Attention(
                s.hidden_size, s.num_heads, s.attention_dropout_rate, s.dtype, s.attention,
                initializer=s.initializer, name="cross_attention",
            )  # fmt: skip

            def attend_to_context(x: jax.Array) -> jax.Array:
                states, mask = context
                return cross_attention(x, context=states, mask=mask, deterministic=deterministic)[0]

            sublayers.insert(1, ("cross_attention_norm", attend_to_context))

        x = split_batch(x)
        for name, sublayer in sublayers:
            norm = layer_norm(s.dtype, name)
            if s.norm_position == "pre":
                x = x + dropout(sublayer(norm(x)))
            else:
                x = norm(x + dropout(sublayer(x)))
        return split_batch(x), None


def _layer(settings: EncoderSettings) -> nn.Module:
    """Encoder layer with its rematerialisation policy."""
    if settings.remat == "none":
        return EncoderLayer(settings)
    # XLA does not merge a loop with its recomputation, so `prevent_cse` is not needed.
    remat = nn.remat(
        EncoderLayer, policy=_REMAT[settings.remat], prevent_cse=False, static_argnums=(3,)
    )
    return remat(settings)


def _loop(settings: EncoderSettings, num_layers: int) -> Any:
    """Scan over the first `num_layers` layers, as a function of the layer and its arguments.

    The layer is compiled once; its parameters have a leading axis of layers.
    """

    def step(layer: nn.Module, *args):
        return layer(*args)

    loop = nn.scan(
        step,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, nn.broadcast, nn.broadcast),
        length=num_layers,
        unroll=min(settings.unroll, num_layers),
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    if num_layers == settings.num_layers:
        return loop
    return nn.map_variables(
        loop, "params", lambda params: jax.tree.map(lambda x: x[:num_layers], params)
    )


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
        hidden = split_batch(hidden)
        hidden = dense(s.embedding_size, ("embed", "embed_out"), s.dtype, s.initializer, "dense")(
            hidden
        )
        return split_batch(layer_norm(s.dtype, "norm")(gelu(hidden)))


class Encoder(nn.Module):
    """Encoder with its masked-LM head; `init` through `__call__` creates all parameters."""

    settings: EncoderSettings

    def setup(self):
        s = self.settings
        self.embeddings = Embeddings(s)
        if s.num_layers:
            self.layers = _layer(s)
        if s.num_layers and s.has_bias:
            self.distances = DistanceTable(
                s.num_heads, s.distance_buckets, s.max_distance, s.distance_slope, s.max_length
            )
        if self.settings.norm_position == "pre":
            self.final_norm = layer_norm(self.settings.dtype)
        self.head = MaskedLMHead(self.settings)

    def encode(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        positions: jax.Array,
        *,
        deterministic: bool,
        num_layers: int | None = None,
        table: Tables | None = None,
        positions_restart: bool = False,
    ) -> jax.Array:
        """Hidden states [B, L, D] after `num_layers` layers, all by default.

        Args:
          tokens: [B, L] int32 ids.
          segments: [B, L] int32; tokens attend within their segment only.
          positions: [B, L] int32 position of each token in its segment.
          deterministic: no dropout; otherwise the "dropout" stream of random keys is needed.
          num_layers: number of layers applied; 0 gives the embeddings.
          table: [R, E] rows indexed by `tokens`, in place of the token embeddings; of several
            tables the sum of the rows.
          positions_restart: whether positions restart within a segment. Distances are then taken
            from positions; otherwise from indices, which is equivalent and cheaper.

        Raises:
          ValueError: the encoder has fewer layers.
        """
        total = self.settings.num_layers
        num_layers = total if num_layers is None else num_layers
        if not 0 <= num_layers <= total:
            raise ValueError(f"num_layers is {num_layers}, must be between 0 and {total}")
        x = self.embeddings(tokens, positions, deterministic, table)
        if num_layers:
            layers = _loop(self.settings, num_layers)
            order = self._order(segments, positions, positions_restart)
            x, _ = layers(self.layers, x, order, deterministic, None)
        if num_layers == total and self.settings.norm_position == "pre":
            x = self.final_norm(x)
        return x

    def decode(
        self,
        tokens: jax.Array,
        segments: jax.Array,
        positions: jax.Array,
        context: Context,
        *,
        is_causal: bool = True,
        deterministic: bool,
        table: Tables | None = None,
        positions_restart: bool = False,
    ) -> jax.Array:
        """Hidden states [B, L, D] of all layers with cross-attention (VECO Eq. 6).

        Each layer is self-attention with the encoder's position encoding, cross-attention without
        any, and feed-forward. Without a fused kernel for the mask, as with `attention` "pallas",
        attention is computed by the plain one.

        Args:
          tokens, segments, positions, deterministic, table, positions_restart: as of `encode`.
          context: states to attend to, and who sees which of them. A token that sees none has a
            uniform mixture of all, of which no loss may be taken.
          is_causal: whether tokens see themselves and earlier tokens of their segment only.

        Raises:
          ValueError: the layers have no cross-attention.
        """
        s = self.settings
        if not s.cross_attention:
            raise ValueError(
                "model.cross_attention is False, and layers without it cannot decode; set it, and "
                "start from a model that has it or train it"
            )
        x = self.embeddings(tokens, positions, deterministic, table)
        if s.num_layers:
            order = self._order(segments, positions, positions_restart)
            if is_causal:
                order = order._replace(mask=order.mask & causal_mask(*[tokens.shape[1]] * 2))
            x, _ = _loop(s, s.num_layers)(self.layers, x, order, deterministic, context)
        return self.final_norm(x) if s.norm_position == "pre" else x

    def _order(self, segments: jax.Array, positions: jax.Array, positions_restart: bool) -> Order:
        s, bias = self.settings, None
        if s.has_bias:
            bias = DistanceBias(
                self.distances(), segments, positions if positions_restart else None
            )
        return Order(segment_mask(segments), bias, positions if s.position == "rotary" else None)

    def predict(self, hidden: jax.Array) -> jax.Array:
        """Apply the masked-LM head, [..., D] -> [..., E], the input of the output layer."""
        return self.head(hidden)

    def __call__(self, tokens: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        hidden = self.encode(tokens, segments, positions, deterministic=True)
        if self.is_initializing() and self.settings.cross_attention:
            context = Context(hidden, segment_mask(segments))
            self.decode(tokens, segments, positions, context, deterministic=True)
        return self.predict(hidden)


def without_cross_attention(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the encoder alone, for settings without cross-attention."""
    layers = {
        name: value
        for name, value in params.get("layers", {}).items()
        if name not in CROSS_ATTENTION
    }
    return {**params, "layers": layers} if layers else dict(params)


def output_table(params) -> tuple[jax.Array, jax.Array]:
    """Output embeddings [V, E], tied to the input embeddings, and output bias [V]."""
    return params["embeddings"]["table"], params["head"]["bias"]
