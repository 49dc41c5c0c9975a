"""Mixture of objectives of one model, each with its kind of batch and its weight."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from xlm.objectives.objective import AuxState, Batch, LossAndMetrics, Objective, Touched


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """One objective of a mixture, its name in metrics (`<name>_loss`), and its loss's weight."""

    objective: Objective
    name: str
    weight: float = 1.0


# Plan or observations of a batch's term, under the batch's kind: dictionary keys are static.
_OfTerm = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(Objective):
    """Weighted sum of objectives over the batches of a run, `terms` by kind of batch.

    The kind of a step's batch selects its term. Terms share the parameters, which the first term
    initialises, and parts of the auxiliary state by name. The first term with a part refreshes it.
    """

    terms: Mapping[str, Term]
    _phases: dict = dataclasses.field(default_factory=dict, repr=False)

    @property
    def tables(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(path for one in self._objectives for path in one.tables))

    @property
    def used_dtype(self) -> str:  # type: ignore[override]
        found = {one.used_dtype for one in self._objectives}
        return found.pop() if len(found) == 1 else "float32"

    @property
    def _objectives(self) -> list[Objective]:
        return [term.objective for term in self.terms.values()]

    def init(self, key: jax.Array) -> Any:
        return self._objectives[0].init(key)

    def loss_name(self, kind: str) -> str:
        # `plan` refuses other kinds with a reason.
        return f"{self.terms[kind].name}_loss" if kind in self.terms else "loss"

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[_OfTerm, Touched]:
        if batch.kind not in self.terms:
            raise ValueError(
                f"a batch is of kind {batch.kind!r}, but the objective has terms for "
                f"{', '.join(self.terms)} only; set the shares of the data section to match"
            )
        plan, touched = self.terms[batch.kind].objective.plan(aux_state, batch, key, step)
        return {batch.kind: plan}, touched

    def loss(
        self, params: Any, rows: Mapping[str, jax.Array], plan: _OfTerm, key: jax.Array
    ) -> tuple[LossAndMetrics, _OfTerm]:
        ((kind, of_term),) = plan.items()
        term = self.terms[kind]
        found, observed = term.objective.loss(params, rows, of_term, key)
        total, weight = found["loss"]
        found = {**found, f"{term.name}_loss": (total, weight)}
        return {**found, "loss": (term.weight * total, weight)}, {kind: observed}

    def example_axes(self, plan: _OfTerm, num_shards: int) -> _OfTerm | None:
        ((kind, of_term),) = plan.items()
        axes = self.terms[kind].objective.example_axes(of_term, num_shards)
        return None if axes is None else {kind: axes}

    def learn(self, aux_state: AuxState, observed: _OfTerm) -> AuxState:
        ((kind, of_term),) = observed.items()
        return self.terms[kind].objective.learn(aux_state, of_term)

    def init_aux_state(self) -> AuxState:
        parts: AuxState = {}
        for one in reversed(self._objectives):
            parts |= one.init_aux_state()
        return parts

    def due(self, step: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in self._objectives for name in one.due(step)))

    def refresh(
        self, params: Any, aux_state: AuxState, names: tuple[str, ...], step: jax.Array
    ) -> tuple[AuxState, LossAndMetrics]:
        report: LossAndMetrics = {}
        for one in dict.fromkeys(self._owners.values()):
            own = tuple(name for name in names if self._owners[name] is one)
            if own:
                aux_state, found = one.refresh(params, aux_state, own, step)
                report |= found
        return aux_state, report

    @functools.cached_property
    def _owners(self) -> dict[str, Objective]:
        """Term that refreshes each part of the auxiliary state."""
        owners: dict[str, Objective] = {}
        for one in self._objectives:
            for name in jax.eval_shape(one.init_aux_state):
                owners.setdefault(name, one)
        return owners

    def at_step(self, step: int) -> "Mixture":
        phases = {kind: term.objective.at_step(step) for kind, term in self.terms.items()}
        if all(phases[kind] is term.objective for kind, term in self.terms.items()):
            return self
        # One object for each phase, since JAX compiles each object.
        key = tuple(map(id, phases.values()))
        if key not in self._phases:
            terms = {
                kind: dataclasses.replace(term, objective=phases[kind])
                for kind, term in self.terms.items()
            }
            self._phases[key] = Mixture(terms)
        return self._phases[key]
