"""Record of the phases of robust sampling: first step and distribution over pairs of each.

The stream of such a run is a pure function of (seed, step, recorded phases). The record is a JSON
file that keeps every bit of its float64 numbers.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping

from xlm.common import artifacts, declarations
from xlm.common.declarations import Count

# Weights are normalised in float64; a sum further from one is not a distribution.
_SUM_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True)
class Phase:
    """First step and distribution over pairs of a phase, and losses that it was solved from.

    Attributes:
      losses: mean loss of each pair; None for a pair not seen yet.
      divergence: chi-square divergence from the base distribution.
      eta: loss below which weights are least; None if the weights equal the base.
      errors, examples: standard error of each loss, and examples seen so far.
    """

    step: Count
    weights: Mapping[str, float]
    losses: Mapping[str, float | None]
    divergence: float
    eta: float | None
    errors: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    examples: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PairRecord:
    """Base distribution over pairs, for the steps before the first phase, and ascending phases."""

    base: Mapping[str, float]
    phases: tuple[Phase, ...] = ()

    def __post_init__(self):
        steps = [phase.step for phase in self.phases]
        if steps != sorted(set(steps)):
            raise ValueError(f"the steps of the phases, {steps}, must ascend")
        _check_weights("the base distribution", self.base, self.base)
        for phase in self.phases:
            _check_weights(f"the phase of step {phase.step}", phase.weights, self.base)
            if set(phase.losses) != set(self.base):
                raise ValueError(f"the phase of step {phase.step} has losses of other pairs")

    def extended(self, phase: Phase) -> "PairRecord":
        """Return a copy with another phase; raise ValueError if its step or pairs do not fit."""
        return PairRecord(self.base, (*self.phases, phase))

    def as_of(self, step: int) -> "PairRecord":
        """Return a copy with the phases up to `step`, for a run that resumes after `step` steps.

        Later phases came from lost states; the phase of `step` came from the checkpoint's state.
        """
        return PairRecord(self.base, tuple(one for one in self.phases if one.step <= step))


def _check_weights(name: str, weights: Mapping[str, float], base: Mapping[str, float]) -> None:
    if set(weights) != set(base):
        differing = sorted(set(weights) ^ set(base))
        raise ValueError(f"{name} has other pairs than the base distribution: {differing[:5]}")
    total = math.fsum(weights.values())
    if not (abs(total - 1) <= _SUM_TOLERANCE and all(weight >= 0 for weight in weights.values())):
        raise ValueError(f"{name}: weights sum to {total}, must be at least 0 and sum to 1")


def write_pair_record(path: pathlib.Path, record: PairRecord) -> None:
    """Write a record as JSON, atomically; raise ValueError if a number is not finite."""
    artifacts.write_json(path, dataclasses.asdict(record))


def read_pair_record(path: pathlib.Path, base: Mapping[str, float]) -> PairRecord:
    """Read the record of a run with this base distribution; without a file return a new one.

    Raise ValueError if the file is damaged or belongs to another base distribution.
    """
    if not path.exists():
        return PairRecord(dict(base))
    record = load_pair_record(path)
    names = sorted(
        name
        for name in {*record.base, *base}
        # Eq. 2 is solved at each start, and processors round its exponentials differently.
        if not math.isclose(record.base.get(name, -1.0), base.get(name, -1.0), rel_tol=1e-9)
    )
    if names:
        raise ValueError(
            f"{path} was recorded with another distribution over pairs: {len(names)} differ, such "
            f"as {names[0]!r}; restore the rows and data.* keys of that run, or train in another "
            "--workdir"
        )
    return record


def load_pair_record(path: pathlib.Path) -> PairRecord:
    """Read a record; raise ValueError if the file is missing or damaged."""
    remedy = "restore the record of pair weights, or train from step 0 in another --workdir"
    try:
        return declarations.read(path, PairRecord, remedy=remedy)
    except FileNotFoundError:
        raise ValueError(
            f"{path} does not exist; a run with robust sampling of pairs writes it"
        ) from None
