"""What the training engine asks of an objective."""

from typing import Any, Protocol

import jax

from objectives.sums import Sums


class Objective(Protocol):
    """Something that can be learned; `objectives.masked_lm.MaskedLM` is one.

    A step first asks what to do (`prepare`), which needs no parameters and may name the rows of the
    embedding table that it will touch; then how well it went (`sums`), which is differentiated.

    Attributes:
      table: path of keys to the embedding table in the parameters, of which a step may touch few
        rows; None if there is none.
      refresh_every: steps between refreshes of the neighbour index; 0 if there is none.
      rolling_refresh: whether a part of the index is refreshed before every step instead.
      exact_fraction: share of the steps, at the end, that are taken with `exact`.
    """

    @property
    def table(self) -> tuple[str, ...] | None: ...

    @property
    def refresh_every(self) -> int: ...

    @property
    def rolling_refresh(self) -> bool: ...

    @property
    def exact_fraction(self) -> float: ...

    def init(self, key: jax.Array, length: int) -> Any:
        """First parameters for rows of `length` tokens, boxed with their logical axis names."""

    def empty_index(self) -> Any:
        """An index of the right shape to be refreshed before the first step, or None."""

    def refresh(self, params: Any, index: Any, part: jax.Array | None) -> tuple[Any, Sums]:
        """The index with all of it, or part `part` of `refresh_every`, made anew; a report."""

    def prepare(
        self, index: Any, batch: dict[str, jax.Array], key: jax.Array, *, exact: bool
    ) -> tuple[Any, jax.Array | None]:
        """What a step on `batch` is to do, and the rows of the table that it touches.

        With `exact`, nothing about the output layer is sampled.

        Returns:
          Something for `sums`; distinct ids [R] int32, V or more for unused ones, or None for the
          whole table.
        """

    def sums(self, params: Any, prepared: Any) -> Sums:
        """Loss and metrics; training minimises sum over weight of "loss".

        Args:
          params: the parameters, in place of the table its rows as `prepare` named them.
          prepared: from `prepare`.
        """
