"""What the training engine asks of an objective."""

from typing import Any, Protocol

import jax

from objectives.sums import Sums


class Objective(Protocol):
    """Something that can be learned; `objectives.masked_lm.MaskedLM` is one.

    Attributes:
      refresh_every: steps between refreshes of the neighbour index; 0 if there is none.
    """

    @property
    def refresh_every(self) -> int: ...

    def init(self, key: jax.Array, length: int) -> Any:
        """First parameters for rows of `length` tokens, boxed with their logical axis names."""

    def empty_index(self) -> jax.Array | None:
        """An index of the right shape to be refreshed before the first step, or None."""

    def index(self, params: Any) -> jax.Array:
        """The neighbour index of the parameters' output embeddings."""

    def sums(
        self, params: Any, neighbours: jax.Array | None, batch: dict[str, jax.Array], key: jax.Array
    ) -> Sums:
        """Loss and metrics of a batch; training minimises sum over weight of "loss"."""
