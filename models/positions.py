"""What tells an encoder the order of its tokens.

Positions can enter in three places: in what the first layer reads, which is what this module makes;
in queries and keys, which `models.attention.Attention` makes of a layer's input; and in the scores,
as the `bias` that attention takes, of a layer or of all of them.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning

from models.layers import INIT_STDDEV
from models.layout import gathered


class LearnedPositions(nn.Module):
    """A learned vector for each position, as BERT has them, to be added to token embeddings.

    Attributes:
      max_length: positions.
      hidden_size: D.
      dtype: of what comes out.
    """

    max_length: int
    hidden_size: int
    dtype: str

    @nn.compact
    def __call__(self, positions: jax.Array) -> jax.Array:
        """Positions [B, L] int32 -> [B, L, D]."""
        init = nn.initializers.normal(INIT_STDDEV)
        table = self.param(
            "positions",
            with_logical_partitioning(init, ("position", "embed")),
            (self.max_length, self.hidden_size),
        )
        return jnp.take(gathered(table), positions, axis=0).astype(self.dtype)
