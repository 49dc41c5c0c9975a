"""Sentence vectors: the mean state of the text tokens in a layer of an encoder."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xlm.models.encoder import Encoder
from xlm.models.segments import mean_state


def mean_states(
    encoder: Encoder,
    params: Any,
    tokens: jax.Array,
    segments: jax.Array,
    positions: jax.Array,
    *,
    num_layers: int,
    specials: Sequence[int],
) -> jax.Array:
    """Compute the mean state of each sentence's text tokens, without padding and specials.

    Tokens, segments and positions are [B, L] int32, as for `Encoder.encode`; layer 0 is the
    embeddings. Returns [B, D] float32, with zeros for a sentence without text.
    """
    hidden = encoder.apply(
        {"params": params},
        tokens,
        segments,
        positions,
        deterministic=True,
        num_layers=num_layers,
        method="encode",
    )
    return mean_state(hidden, ~jnp.isin(tokens, jnp.array(specials)))
