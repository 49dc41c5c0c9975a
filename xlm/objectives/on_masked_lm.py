"""Base of objectives on a masked LM: contrast, replaced tokens, and masked LM across sequences."""

from typing import Any

import jax

from xlm.objectives.loss_and_metrics import LossAndMetrics
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import Extra, Objective


class OnMaskedLM(Objective):
    """Objective that has the table, the neighbour index and the phases of a masked LM.

    `exact` is the same objective with the softmax over the whole vocabulary, always one object.
    """

    masked_lm: MaskedLM
    exact: Any

    @property
    def tables(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.masked_lm.tables

    def init_extra(self) -> Extra:
        return self.masked_lm.init_extra()

    def due(self, step: int) -> tuple[str, ...]:
        return self.masked_lm.due(step)

    def refresh(
        self, params, extra: Extra, names: tuple[str, ...], step: jax.Array
    ) -> tuple[Extra, LossAndMetrics]:
        return self.masked_lm.refresh(params, extra, names, step)

    def at_step(self, step: int) -> Any:
        return self if self.masked_lm.at_step(step) is self.masked_lm else self.exact
