"""Stages of a run: each trains some of the parameters for some steps, and the last trains all.

VECO first trains only cross-attention (Section 3, "Optimization Settings"). A stage starts from the
parameters of the one before. Its optimizer has moments only of its parameters, and starts them at
zero: Adam corrects all moments by one count of steps, which old and new moments would not share. No
stage trains frozen parameters. They have no gradient, no moments and no part in the gradient's
norm.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax import traverse_util

from xlm.training.optimizer import Optimizer, make_optimizer, wsd_decay_steps
from xlm.training.settings import OptimizerSettings


def selected(params: Any, name: str) -> Any:
    """Return the parameters with `name` in their paths, such as "cross_attention"; "" for all."""
    return _kept(params, lambda path: name in path)


def excluding(params: Any, names: Collection[str]) -> Any:
    """Return the parameters with none of `names` among the keys of their paths."""
    return _kept(params, lambda path: set(names).isdisjoint(path.split("/")))


def without(params: Any, part: Any) -> Any:
    """Return the parameters that `part` does not have."""
    known = _flat(part)
    return _kept(params, lambda path: path not in known)


def merged(params: Any, part: Any) -> Any:
    """Copy nested dictionaries, with values added or replaced by those of `part`."""
    return traverse_util.unflatten_dict({**_flat(params), **_flat(part)}, sep="/")


def has_path(tree: Any, path: str) -> bool:
    """Return whether nested dictionaries have a value at path "a/b/c"."""
    return path in _flat(tree)


def _flat(params: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(params, keep_empty_nodes=True, sep="/")


def _kept(params: Any, keeps: Callable[[str], bool]) -> Any:
    found = {path: value for path, value in _flat(params).items() if keeps(path)}
    return traverse_util.unflatten_dict(found, sep="/")


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps `start` to `end` (exclusive) that train the same parameters.

    `trained` is part of the path of every trained parameter, "" for all parameters. `frozen` names
    groups of parameters that stay untrained.
    """

    trained: str
    start: int
    end: int
    frozen: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = f"{self.trained!r} alone" if self.trained else "all parameters"
        but = f" but {', '.join(map(repr, self.frozen))}" if self.frozen else ""
        return f"{what}{but}, steps {self.start} to {self.end}"

    def trained_part(self, params: Any) -> Any:
        """Return the trained part of nested dictionaries of parameters."""
        return excluding(selected(params, self.trained), self.frozen)


def stages_of(settings: OptimizerSettings, num_steps: int) -> tuple[Stage, ...]:
    """Return the stages of a run, the last for all parameters; ValueError if they do not fit."""
    found, start = [], 0
    for trained, steps in settings.stages:
        found.append(Stage(trained, start, start + steps, settings.frozen))
        start += steps
    if start >= num_steps:
        raise ValueError(
            f"optimizer.stages have {start} steps, must have fewer than train.num_steps "
            f"{num_steps}: the remaining steps train all parameters"
        )
    found.append(Stage("", start, num_steps, settings.frozen))
    for stage in found if settings.stages and settings.restart_schedule else ():
        steps, needed = stage.end - stage.start, ""
        decay_steps = wsd_decay_steps(settings, steps) if settings.schedule == "wsd" else 0
        if steps <= settings.warmup_steps:
            needed = f"more than optimizer.warmup_steps {settings.warmup_steps}"
        elif steps < settings.warmup_steps + decay_steps:
            needed = (
                f"at least optimizer.warmup_steps {settings.warmup_steps} and the {decay_steps} "
                f"steps of optimizer.decay_fraction {settings.decay_fraction}"
            )
        if needed:
            raise ValueError(
                f"optimizer.stages: {stage}, must be {needed}; change either, or set "
                "optimizer.restart_schedule to False for one schedule over all stages"
            )
    return tuple(found)


def stage_optimizer(
    settings: OptimizerSettings, stage: Stage, num_steps: int, tables: Sequence[str] = ()
) -> Optimizer:
    """Build the optimizer of a stage, whose gradients and state have only trained parameters."""
    # Other tables are read and never updated.
    own = tuple(
        path
        for path in tables
        if stage.trained in path and set(stage.frozen).isdisjoint(path.split("/"))
    )
    if settings.restart_schedule:
        inner = make_optimizer(settings, stage.end - stage.start, own)
    else:
        inner = make_optimizer(settings, num_steps, own, first_step=stage.start)

    def of_stage(params):
        if stage.trained and not selected(params, stage.trained):
            raise ValueError(
                f"optimizer.stages trains {stage.trained!r}, which no parameter's name contains; "
                f"there are {', '.join(_groups(params))} (cross-attention with "
                "model.cross_attention)"
            )
        return stage.trained_part(params)

    def read(params, state, touched):
        return inner.read(
            of_stage(params), state, {path: ids for path, ids in touched.items() if path in own}
        )

    def update(grads, held, params, state):
        updated, state = inner.update(grads, held, of_stage(params), state)
        return merged(params, updated), state

    def apply_pending_updates(params, state):
        updated, state = inner.apply_pending_updates(of_stage(params), state)
        return merged(params, updated), state

    return Optimizer(
        lambda params: inner.init(of_stage(params)), read, update, apply_pending_updates,
        lambda step: inner.learning_rate(step - stage.start), inner.averaged, inner.metrics,
    )  # fmt: skip


def _groups(params: Any) -> list[str]:
    paths = (path[:2] for path, _ in jax.tree.leaves_with_path(nn.unbox(params)))
    return sorted({jax.tree_util.keystr(path, simple=True, separator="/") for path in paths})
