"""Task heads on top of an encoder: classification, regression, tagging and spans."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlm.models.layers import INIT_STDDEV, dense, gelu
from xlm.models.layout import split_batch
from xlm.models.segments import mean_state
from xlm.models.settings import EncoderSettings


def _dense(features: int, name: str, *, has_bias: bool = True) -> nn.Dense:
    # In float32: heads are small, and rounding could change the order of their logits.
    init = nn.initializers.normal(INIT_STDDEV)
    return nn.Dense(features, has_bias, dtype=jnp.float32, kernel_init=init, name=name)


class ClassificationHead(nn.Module):
    """Scores of classes from one state: dropout, dense, tanh, dropout, dense (RoBERTa).

    A regression has one output. `pooling` "first" takes the state of `<s>`, "mean" averages all
    tokens but padding. `norm_epsilon` selects ModernBERT's middle: dense without bias, GELU,
    LayerNorm without bias.
    """

    num_outputs: int
    dropout_rate: float
    pooling: str = "first"
    norm_epsilon: float | None = None

    @nn.compact
    def __call__(
        self, hidden: jax.Array, batch: dict[str, jax.Array], *, deterministic: bool
    ) -> jax.Array:
        """Map hidden [B, L, D], and `segments` [B, L] for the mean, to [B, num_outputs] float32."""
        dropout = nn.Dropout(self.dropout_rate, deterministic=deterministic)
        is_mean = self.pooling == "mean"
        state = mean_state(hidden, batch["segments"] > 0) if is_mean else hidden[:, 0]
        x = dropout(state.astype(jnp.float32))
        has_norm = self.norm_epsilon is not None
        x = _dense(x.shape[-1], "dense", has_bias=not has_norm)(x)
        if has_norm:
            x = nn.LayerNorm(self.norm_epsilon, use_bias=False, name="norm")(gelu(x))
        else:
            x = jnp.tanh(x)
        return _dense(self.num_outputs, "output")(dropout(x))


class PoolingHead(nn.Module):
    """Vector of each text: the mean of its `pooled` states. It has no parameters."""

    @nn.compact
    def __call__(
        self, hidden: jax.Array, batch: dict[str, jax.Array], *, deterministic: bool
    ) -> jax.Array:
        """Map hidden [B, L, D] and `pooled` [B, L] bool to [B, D] float32."""
        return mean_state(hidden, batch["pooled"])


class TaggingHead(nn.Module):
    """Scores of each word's tags: "mean" or "first" `pooling` of its tokens, dropout, dense."""

    num_outputs: int
    dropout_rate: float
    pooling: str

    @nn.compact
    def __call__(
        self, hidden: jax.Array, batch: dict[str, jax.Array], *, deterministic: bool
    ) -> jax.Array:
        """Map hidden [B, L, D] and `words` [B, L] to [B, L, num_outputs] float32, by word."""
        words = pooled_words(hidden.astype(jnp.float32), batch["words"], self.pooling)
        words = nn.Dropout(self.dropout_rate, deterministic=deterministic)(words)
        return _dense(self.num_outputs, "output")(words)


def pooled_words(hidden: jax.Array, words: jax.Array, pooling: str) -> jax.Array:
    """Pool states [B, L, D] of each word's tokens, by "mean" or "first", to [B, L, D] by word.

    `words` [B, L] int32 is the word of each token in its sequence, ascending, -1 for none. Rows
    past the last word are zeros.
    """
    length = words.shape[1]
    is_of = words[:, None, :] == jnp.arange(length)[None, :, None]  # [B, word, token]
    if pooling == "first":
        before = jnp.pad(words, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        is_of &= (words != before)[:, None, :]
    weights = is_of / jnp.maximum(is_of.sum(axis=2, keepdims=True), 1)
    return jnp.einsum("bwl,bld->bwd", weights.astype(hidden.dtype), hidden)


class SpanHead(nn.Module):
    """Scores of each token as the first and the last token of the answer: dense."""

    @nn.compact
    def __call__(
        self, hidden: jax.Array, batch: dict[str, jax.Array], *, deterministic: bool
    ) -> jax.Array:
        """Map hidden [B, L, D] to [B, L, 2] float32; -1e9 for tokens not `answerable` [B, L]."""
        scores = _dense(2, "output")(hidden.astype(jnp.float32))
        return jnp.where(batch["answerable"][:, :, None], scores, -1e9)


class ReplacedTokenHead(nn.Module):
    """Logit that a token was replaced: dense, GELU, dense."""

    # ELECTRA's head (Clark et al. 2020, arXiv 2003.10555); XY-LENT and XLM-E describe none.
    settings: EncoderSettings  # of the discriminator

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Map states [B, L, D] to logits [B, L] float32; positive ones predict a replacement."""
        s = self.settings
        hidden = split_batch(hidden)
        hidden = gelu(
            dense(s.hidden_size, ("embed", "embed_out"), s.dtype, s.initializer, "dense")(hidden)
        )
        # In float32: a weight of 50 on the loss would magnify the rounding of bfloat16.
        output = dense(1, ("embed", "output"), "float32", s.initializer, "output")
        return output(hidden.astype(jnp.float32))[..., 0]
