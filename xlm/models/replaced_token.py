"""Head of a discriminator for replaced-token detection."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from xlm.models.encoder import EncoderSettings
from xlm.models.layers import dense, gelu
from xlm.models.layout import split_batch


class ReplacedTokenHead(nn.Module):
    """Logit of each token to have been replaced: dense, GELU, dense."""

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
