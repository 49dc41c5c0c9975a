"""Layers of an encoder and of a decoder, and the scan over them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlm.models.attention import Attention, Cache, KeysValues
from xlm.models.layers import dense, gelu, norm
from xlm.models.layout import split_batch
from xlm.models.positions import DistanceBias
from xlm.models.segments import SegmentMask
from xlm.models.settings import EncoderSettings

# Rematerialisation policy of a layer, by model.remat; "none" has none.
_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class FeedForward(nn.Module):
    """Dense, GELU, dense, position by position. A gate, if any, scales the middle."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        s = self.settings
        build = functools.partial(dense, dtype=s.dtype, kind=s.initializer, use_bias=s.bias)
        hidden = build(s.mlp_size, ("embed", "mlp"), name="wide")(x)
        hidden = nn.silu(hidden) if s.mlp == "swiglu" else gelu(hidden)
        if s.mlp != "gelu":
            hidden = hidden * build(s.mlp_size, ("embed", "mlp"), name="gate")(x)
        return build(s.hidden_size, ("mlp", "embed"), name="output", depth=s.num_layers)(hidden)


class PositionInfo(NamedTuple):
    """Position information of a batch, as passed to the layers.

    Attributes:
      mask: `SegmentMask`, or bool that broadcasts to [B, H, L, L]; None if tokens see all.
      bias: of the scores, if the position encoding has one.
      positions: [B, L] int32 to rotate queries and keys by, if any.
    """

    mask: SegmentMask | jax.Array | None
    bias: DistanceBias | jax.Array | None
    positions: jax.Array | None


class Context(NamedTuple):
    """Sequence that a decoder attends to: states [B, K, D] of an encoder, None if cached.

    `mask` is a `SegmentMask`, or bool and broadcasts to [B, H, L, K].
    """

    states: jax.Array | None
    mask: SegmentMask | jax.Array


class LayerCache(NamedTuple):
    """Memory of a layer, or of all with a leading axis, for decoding token by token.

    `own` has the keys and values of the tokens so far, of N hypotheses of each of B examples.
    `context` has those of the context, of B sequences.
    """

    own: Cache
    context: KeysValues


class EncoderLayer(nn.Module):
    """Self-attention, cross-attention to any context, and feed-forward.

    Each has a residual sum and a norm. Without a context, the layer neither creates nor reads
    parameters of cross-attention.
    """

    settings: EncoderSettings

    @nn.compact
    def __call__(
        self, x: jax.Array, order: PositionInfo, deterministic: bool,
        context: Context | None = None, cache: LayerCache | None = None, is_local: bool = False,
        is_first: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache | None]:  # fmt: skip
        """Apply the layer to hidden states [B, L, D], as a step of `nn.scan`.

        An encoder has no context. With a cache, `x` has one token of each of L hypotheses of an
        example, which see the tokens in the cache. Returns [B, L, D], and the `own` part of any
        cache with the tokens of `x`. `is_first`, bool, skips the norm before attention.
        """
        s = self.settings
        theta = s.local_rotary_theta if is_local else s.rotary_theta
        attention = _attention(
            s, "attention", rotary_theta=theta if s.position == "rotary" else 0.0,
            is_gated=s.position == "gated", half_window=s.local_window // 2 if is_local else 0,
        )  # fmt: skip
        feed_forward = FeedForward(s, name="mlp")
        dropout = nn.Dropout(s.dropout_rate, deterministic=deterministic)

        own = None if cache is None else cache.own

        def attend(x: jax.Array) -> jax.Array:
            nonlocal own
            sequences = x if cache is None else x.reshape(-1, 1, s.hidden_size)
            mixed, own = attention(
                sequences, **order._asdict(), cache=own, deterministic=deterministic
            )
            return mixed.reshape(x.shape)

        sublayers: list[tuple[str, Callable[[jax.Array], jax.Array]]]
        sublayers = [("attention_norm", attend), ("mlp_norm", feed_forward)]
        if context is not None:
            attend_across = _attention(s, "cross_attention")

            def attend_to_context(x: jax.Array) -> jax.Array:
                # Hypotheses of an example share one context.
                states = context.states if cache is None else cache.context
                return attend_across(
                    x, context=states, mask=context.mask, deterministic=deterministic
                )[0]

            sublayers.insert(1, ("cross_attention_norm", attend_to_context))

        x = split_batch(x)
        for name, sublayer in sublayers:
            scaled = norm(s.norm, s.dtype, s.norm_epsilon, name)
            if s.norm_position == "post":
                x = scaled(x + dropout(sublayer(x)))
                continue
            y = scaled(x)
            if is_first is not None and name == "attention_norm":
                y = jnp.where(is_first, x, y)
            x = x + dropout(sublayer(y))
        return split_batch(x), own


def _attention(settings: EncoderSettings, name: str | None = None, **positions: Any) -> Attention:
    """Build the attention of a layer, without position encoding (to a context) by default."""
    s = settings
    return Attention(
        s.hidden_size, s.num_heads, s.attention_dropout_rate, s.dtype, s.kernel,
        initializer=s.initializer, depth=s.num_layers, use_bias=s.bias,
        qk_norm=s.norm if s.qk_norm else "", norm_epsilon=s.norm_epsilon, name=name, **positions,
    )  # fmt: skip


def context_keys_values(
    settings: EncoderSettings, params: Mapping[str, Any], states: jax.Array
) -> KeysValues:
    """Return each layer's keys and values of states [B, K, D], [layers, B, K, H, D / H]."""
    attention = _attention(settings)

    def of_layer(params: Any) -> KeysValues:
        return attention.apply({"params": params}, states, method="keys_values")

    return jax.vmap(of_layer)(params["cross_attention"])


def empty_cache(
    settings: EncoderSettings, params: Mapping[str, Any], states: jax.Array, num_hypotheses: int,
    capacity: int,
) -> LayerCache:  # fmt: skip
    """Build the cache of all layers before the first token of N hypotheses per example.

    `states` are [B, K, D] of an encoder, `params` the "layers" of a decoder. Hypotheses have at
    most `capacity` tokens, the first included.
    """
    one = _attention(settings).empty_cache(len(states) * num_hypotheses, capacity)
    own = jax.tree.map(lambda x: jnp.broadcast_to(x, (settings.num_layers, *x.shape)), one)
    return LayerCache(own, context_keys_values(settings, params, states))


def make_layer(settings: EncoderSettings) -> nn.Module:
    """Build an encoder layer with its rematerialisation policy."""
    if settings.remat == "none":
        return EncoderLayer(settings)
    # XLA does not merge a loop with its recomputation, but it would merge unrolled layers.
    remat = nn.remat(
        EncoderLayer, policy=_POLICIES[settings.remat], static_argnums=(3, 6),
        prevent_cse=settings.layers_at_once > 1,
    )  # fmt: skip
    return remat(settings)


def layer_loop(
    settings: EncoderSettings, num_layers: int, *, is_initializing: bool = False
) -> Callable[..., Any]:
    """Build a scan over the first `num_layers` layers, a function of a layer and its arguments."""
    differ = settings.period > 1 or not settings.first_norm
    if differ and not is_initializing:  # parameters are the same for all kinds of layers
        return functools.partial(_loop_over_periods, settings, num_layers)

    def step(layer: nn.Module, *args):
        return layer(*args, False, None)  # neither local nor without a norm

    # JAX compiles the layer once. Its parameters have a leading axis of layers.
    loop = nn.scan(
        step,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, nn.broadcast, nn.broadcast, 0),  # each layer has its own cache
        length=num_layers,
        unroll=max(min(settings.layers_at_once, num_layers), 1),
        metadata_params={nn.PARTITION_NAME: "layers"},
        # The check would trace each layer twice, and no variable is broadcast out of the loop.
        check_constancy_invariants=False,
    )
    if num_layers == settings.num_layers:
        return loop
    return nn.map_variables(
        loop, "params", lambda params: jax.tree.map(lambda x: x[:num_layers], params)
    )


def _loop_over_periods(
    settings: EncoderSettings, num_layers: int, layer: nn.Module, x: jax.Array, order: PositionInfo,
    deterministic: bool, context: Context | None, cache: LayerCache | None,
) -> tuple[jax.Array, Cache | None]:  # fmt: skip
    """Apply layers of several kinds: a scan over periods of `settings.period` layers, and the rest.

    A period is a global layer and then local ones. Each has a program of its own, so a local layer
    costs no more than it computes. Only layer 0 may skip its norm.
    """
    module, variables = layer.unbind()
    keys = None
    if layer.has_rng("dropout"):
        keys = jax.random.split(layer.make_rng("dropout"), num_layers)
    params = jax.tree.map(lambda x: x[:num_layers], variables["params"])
    of_layers = (jnp.arange(num_layers), keys, params, cache)

    def apply(x: jax.Array, place: int, of_layer: Any) -> tuple[jax.Array, Cache | None]:
        number, key, params, cache = of_layer
        is_first = None if settings.first_norm or place else number == 0
        arguments = (x, order, deterministic, context, cache, settings.is_local(place), is_first)
        rngs = None if key is None else {"dropout": key}
        return module.apply({"params": params}, *arguments, rngs=rngs)

    def apply_all(x: jax.Array, of_layers: Any) -> tuple[jax.Array, Cache | None]:
        own = []
        for place in range(len(of_layers[0])):
            x, one = apply(x, place, jax.tree.map(lambda x, i=place: x[i], of_layers))
            own.append(one)
        return x, jax.tree.map(lambda *caches: jnp.stack(caches), *own)

    n = settings.period
    whole = num_layers - num_layers % n
    periods = jax.tree.map(lambda x: x[:whole].reshape(-1, n, *x.shape[1:]), of_layers)
    x, own = jax.lax.scan(apply_all, x, periods, unroll=max(settings.layers_at_once // n, 1))
    own = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), own)
    if whole < num_layers:
        x, last = apply_all(x, jax.tree.map(lambda x: x[whole:], of_layers))
        own = jax.tree.map(lambda *parts: jnp.concatenate(parts), own, last)
    return x, own
