"""What the training engine asks of an objective."""

from typing import Any, Protocol

import jax

from knn_sampling.neighbours import NeighbourIndex
from objectives.sums import Sums


class Objective(Protocol):
    """Something that can be learned; `objectives.masked_lm.MaskedLM` is one.

    Attributes:
      refresh_every: steps between refreshes of the neighbour index; 0 if there is none.
      exact_fraction: share of the steps, at the end, that are taken with `exact`.
    """

    @property
    def refresh_every(self) -> int: ...

    @property
    def exact_fraction(self) -> float: ...

    def init(self, key: jax.Array, length: int) -> Any:
        """First parameters for rows of `length` tokens, boxed with their logical axis names."""

    def empty_index(self) -> NeighbourIndex | None:
        """An index of the right shape to be refreshed before the first step, or None."""

    def index(self, params: Any) -> NeighbourIndex:
        """The neighbour index of the parameters' output embeddings."""

    def sums(
        self,
        params: Any,
        index: NeighbourIndex | None,
        batch: dict[str, jax.Array],
        key: jax.Array,
        *,
        exact: bool = False,
    ) -> Sums:
        """Loss and metrics of a batch; training minimises sum over weight of "loss".

        With `exact`, nothing about the output layer is sampled.
        """
