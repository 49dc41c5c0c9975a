"""The optimizer: AdamW with a schedule and clipping, all rows of the embedding table or some."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from training.row_adamw import RowAdamW, RowAdamWState, row_adamw
from training.schedules import SCHEDULES, learning_rate_schedule


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its schedule; the `optimizer` section of a config.

    Attributes:
      learning_rate: peak of the schedule.
      warmup_steps: linear from zero to the peak.
      schedule: what follows: "polynomial" decay, "cosine" decay, or "wsd", the peak until
        polynomial decay in the last steps (see `schedules`).
      decay_power: exponent of a polynomial decay; 1 for a linear one.
      decay_fraction: share of all steps in which "wsd" decays.
      final_rate_ratio: rate at the last step, as a share of the peak.
      beta1, beta2, epsilon: Adam's.
      weight_decay: decoupled, on matrices and embeddings, not on biases and layer norms.
      clip_norm: largest global norm of the gradient; 0 leaves it as it is.
      embedding_update: "dense" to update the whole embedding table at every step, "rows" to update
        the rows that a step touches and catch up on the others when they are next read.
      frozen: names of groups of parameters, such as "embeddings", that stay as they are; of the
        table only with a dense update.
    """

    learning_rate: float
    warmup_steps: int
    decay_power: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float
    embedding_update: str
    schedule: str = "polynomial"
    decay_fraction: float = 0.1
    final_rate_ratio: float = 0.0
    frozen: tuple[str, ...] = ()

    def __post_init__(self):
        if self.schedule not in SCHEDULES:
            raise ValueError(f"optimizer.schedule is {self.schedule!r}, must be in {SCHEDULES}")
        for name in ("decay_fraction", "final_rate_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"optimizer.{name} is {getattr(self, name)}, must be a share, 0 to 1"
                )
        if self.embedding_update not in ("dense", "rows"):
            raise ValueError(
                f"optimizer.embedding_update is {self.embedding_update!r}, must be dense or rows"
            )
        if self.frozen and self.embedding_update == "rows":
            raise ValueError(
                f"optimizer.frozen is {self.frozen}, but rows are updated as they are read; set "
                'optimizer.embedding_update to "dense"'
            )


def _is_decayed(path: tuple, parameter: jax.Array) -> bool:
    """By name: biases and scales of all layers together are matrices too."""
    del parameter
    return not {"bias", "scale"} & {getattr(key, "key", None) for key in path}


def _hold(names: tuple[str, ...]) -> optax.GradientTransformation:
    """Zero for the parameters of all groups `names`."""

    def is_held(path: tuple, parameter: jax.Array) -> bool:
        del parameter
        return not set(names).isdisjoint(getattr(key, "key", None) for key in path)

    return optax.masked(optax.set_to_zero(), lambda params: jax.tree.map_with_path(is_held, params))


class Optimizer(NamedTuple):
    """What turns gradients into parameters.

    A step reads, differentiates and updates; the parameters that it reads hold, in place of the
    embedding table, the rows that the step touches.

    Attributes:
      init: params -> state.
      read: (params, state, ids [R] or None) -> (params with the rows of the table, what `update`
        wants of them). None stands for all rows.
      update: (grads of the parameters read, what was read, params, state) -> (params, state).
      flush: (params, state) -> (params, state), every row of the table up to date.
    """

    init: Callable[..., Any]
    read: Callable[..., tuple[Any, Any]]
    update: Callable[..., tuple[Any, Any]]
    flush: Callable[..., tuple[Any, Any]]


def make_optimizer(
    settings: OptimizerSettings, num_steps: int, table: tuple[str, ...] | None
) -> Optimizer:
    """AdamW as `settings` say, for a run of `num_steps`.

    Args:
      settings: rates and kind of update.
      num_steps: length of the schedule.
      table: path of keys to the embedding table, whose rows alone may be read; None if none.
    """
    schedule = learning_rate_schedule(settings, num_steps)
    adamw = optax.adamw(
        schedule,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        mask=lambda params: jax.tree.map_with_path(_is_decayed, params),
    )
    norm = settings.clip_norm
    clip = optax.clip_by_global_norm(norm) if norm else optax.identity()
    if settings.frozen:
        # Before the clipping, so that what is held does not count, and after weight decay.
        hold = _hold(settings.frozen)
        clip, adamw = optax.chain(hold, clip), optax.chain(adamw, hold)
    if table is None or settings.embedding_update == "dense":
        return _dense(clip, adamw, table)
    rows = row_adamw(
        schedule,
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    return _by_rows(clip, adamw, rows, table)


def rows_of(params, path: tuple[str, ...] | None, ids: jax.Array | None):
    """Parameters with the rows `ids` [R] in place of the table at `path`, or as they are if None.

    Slots that hold the number of rows, or more, are zeros.
    """
    if ids is None or path is None:
        return params
    return _replace(params, path, _get(params, path).at[ids].get(mode="fill", fill_value=0))


def _dense(
    clip: optax.GradientTransformation,
    adamw: optax.GradientTransformation,
    path: tuple[str, ...] | None,
) -> Optimizer:
    """Every row of the table is updated at every step, as of any parameter."""

    def read(params, state, ids):
        del state
        return rows_of(params, path, ids), None if path is None else ids

    def update(grads, ids, params, state):
        if ids is not None:
            rows, table = _get(grads, path), _get(params, path)
            grads = _replace(grads, path, jnp.zeros_like(table).at[ids].set(rows, mode="drop"))
        grads, _ = clip.update(grads, clip.init(params))
        updates, state = adamw.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Optimizer(adamw.init, read, update, lambda params, state: (params, state))


class RowsState(NamedTuple):
    """State of the optimizer that updates the table by rows.

    Attributes:
      table: of the embedding table.
      others: of all other parameters.
    """

    table: RowAdamWState
    others: Any


def _by_rows(
    clip: optax.GradientTransformation,
    adamw: optax.GradientTransformation,
    rows: RowAdamW,
    path: tuple[str, ...],
) -> Optimizer:
    """Of the table only the rows that a step touches are updated, see `row_adamw`."""

    def init(params):
        table = _get(params, path)
        state = rows.init(nn.unbox(table))
        if isinstance(table, nn.LogicallyPartitioned):
            state = _named_like(table, state)
        return RowsState(state, adamw.init(_replace(params, path, None)))

    def read(params, state, ids):
        read_rows = rows.read(_get(params, path), state.table, ids)
        return _replace(params, path, read_rows.values), read_rows

    def update(grads, read_rows, params, state):
        grads, _ = clip.update(grads, clip.init(params))
        table, table_state = rows.update(
            _get(grads, path), read_rows, _get(params, path), state.table
        )
        others = _replace(params, path, None)
        updates, others_state = adamw.update(_replace(grads, path, None), state.others, others)
        params = _replace(optax.apply_updates(others, updates), path, table)
        return params, RowsState(table_state, others_state)

    def flush(params, state):
        table, table_state = rows.flush(_get(params, path), state.table)
        return _replace(params, path, table), state._replace(table=table_state)

    return Optimizer(init, read, update, flush)


def _named_like(table: nn.LogicallyPartitioned, state: RowAdamWState) -> RowAdamWState:
    """The state's arrays boxed with the names of the table's axes, as far as they have them."""
    return jax.tree.map(
        lambda x: nn.LogicallyPartitioned(x, table.names[: x.ndim]) if x.ndim else x, state
    )


def _get(tree, path: tuple[str, ...]):
    for key in path:
        tree = tree[key]
    return tree


def _replace(tree, path: tuple[str, ...], value):
    """A copy of nested dictionaries with another value at `path`."""
    if not path:
        return value
    return {**tree, path[0]: _replace(tree[path[0]], path[1:], value)}
