"""Optimizer and schedules: AdamW, StableAdamW or Muon; dense or row-wise tables; safeguards."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from xlm.objectives.objective import gathered_rows, get_table, replace_table
from xlm.training.muon import with_muon
from xlm.training.row_adamw import RowAdamW, RowAdamWState, Rows, row_adamw
from xlm.training.settings import OptimizerSettings


def _is_decayed(path: tuple, parameter: jax.Array) -> bool:
    """Return whether weight decay applies, by name, since stacked biases look like matrices."""
    del parameter
    return not {"bias", "scale"} & {getattr(key, "key", None) for key in path}


def _scaled_by_depth(updates: Any, decay: float) -> Any:
    """Scale updates of layers [L, ...] and embeddings; see `OptimizerSettings.layer_decay`."""

    def names(path: tuple) -> set[str | None]:
        return {getattr(key, "key", None) for key in path}

    found = jax.tree.leaves_with_path(updates)
    total = max((len(one) for path, one in found if "layers" in names(path)), default=0)

    def scaled(path: tuple, update: jax.Array) -> jax.Array:
        if "layers" in names(path):
            powers = total - jnp.arange(total)
            return update * (decay**powers).reshape(total, *[1] * (update.ndim - 1))
        return update * decay ** (total + 1) if "embeddings" in names(path) else update

    return jax.tree.map_with_path(scaled, updates)


def _schedule(settings: OptimizerSettings, num_steps: int, first_step: int) -> optax.Schedule:
    """Build the schedule by the optimizer's own count, which starts at step `first_step`."""
    schedule = learning_rate_schedule(settings, num_steps)
    shift = first_step - settings.steps_before
    return (lambda count: schedule(count + shift)) if shift else schedule


class Optimizer(NamedTuple):
    """Optimizer as pure functions: a step reads, differentiates and updates.

    Attributes:
      init: params -> state.
      read: (params, state, touched) -> (parameters to differentiate by, auxiliary data for
        `update`). `touched` maps paths of tables to ids [R], whose rows replace the table. Nested
        dictionaries have no entry for parameters that are not trained.
      update: (gradients, auxiliary data of `read`, params, state, skips=None) -> (params, state),
        unchanged if the bool scalar `skips` is true.
      apply_pending_updates: (params, state) -> (params, state), every table row up to date.
      learning_rate: step -> rate.
      averaged: state -> the parameters for evaluation and export; None for the trained ones.
      metrics: state -> numbers to record, such as `skipped_steps`.
      reduced: gradients -> the same, with each device holding the part that it updates.
    """

    init: Callable[..., Any]
    read: Callable[..., tuple[Any, Any]]
    update: Callable[..., tuple[Any, Any]]
    apply_pending_updates: Callable[..., tuple[Any, Any]]
    learning_rate: optax.Schedule
    averaged: Callable[[Any], Any] | None = None
    metrics: Callable[..., dict[str, jax.Array]] = lambda state: {}
    reduced: Callable[[Any], Any] = lambda grads: grads


def make_optimizer(
    settings: OptimizerSettings, num_steps: int, tables: Sequence[str] = (), first_step: int = 0
) -> Optimizer:
    """Build the optimizer of all parameters for a run of `num_steps`.

    A step may read `tables`, such as "embeddings/table", by rows. The first step has the rate of
    step `first_step`. `stage_optimizer` handles stages and frozen parameters.
    """
    schedule = _schedule(settings, num_steps, first_step)
    of_run = _schedule(dataclasses.replace(settings, steps_before=0), num_steps, first_step)
    numbers = {
        "b1": settings.beta1, "b2": settings.beta2, "eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
    }  # fmt: skip
    make = _stable_adamw if settings.kind == "stable_adamw" else optax.adamw
    adamw = make(
        schedule, mask=lambda params: jax.tree.map_with_path(_is_decayed, params), **numbers
    )
    if settings.kind == "muon":
        rates = dataclasses.replace(settings, learning_rate=settings.muon_learning_rate)
        adamw = with_muon(settings, _schedule(rates, num_steps, first_step), adamw)
    if settings.layer_decay != 1:
        scale = functools.partial(_scaled_by_depth, decay=settings.layer_decay)
        adamw = optax.chain(adamw, optax.stateless(lambda updates, _: scale(updates)))
    norm = settings.clip_norm
    clip = optax.clip_by_global_norm(norm) if norm else optax.identity()
    if not tables or settings.embedding_update == "dense":
        found = _dense(clip, adamw, of_run)
    else:
        found = _by_rows(clip, adamw, row_adamw(schedule, **numbers), tuple(tables), of_run)
    if settings.ema_decay:
        found = _averaging(found, settings.ema_decay)
    return _guarded(found, settings.max_norm_ratio) if settings.max_norm_ratio else found


def _stable_adamw(
    schedule: optax.Schedule, b1: float, b2: float, eps: float, weight_decay: float, mask: Any
) -> optax.GradientTransformation:
    """AdamW with update clipping (Wortsman et al. 2023, arXiv 2304.13013, Algorithm 2).

    It divides the rate of an array by max(1, RMS). RMS^2 is the mean of g^2 / max(v, eps^2) over
    the elements, v the bias-corrected second moment. Each layer of stacked arrays has its own.
    """
    adam = optax.scale_by_adam(b1, b2, eps)
    decay = optax.add_decayed_weights(weight_decay, mask)

    def update(grads, state, params):
        updates, state = adam.update(grads, state)
        updates, _ = decay.update(updates, decay.init(params), params)
        correction = 1 - b2**state.count

        def clipped(path, update, gradient, moment):
            ratio = jnp.square(gradient) / jnp.maximum(moment / correction, eps**2)
            is_stacked = "layers" in {getattr(key, "key", None) for key in path}
            axes = tuple(range(int(is_stacked), ratio.ndim))
            rms = jnp.sqrt(jnp.mean(ratio, axes, keepdims=True))
            return update / jnp.maximum(1, rms)

        return jax.tree.map_with_path(clipped, updates, grads, state.nu), state

    stable = optax.GradientTransformation(adam.init, update)
    return optax.chain(stable, optax.scale_by_learning_rate(schedule))


class AveragedState(NamedTuple):
    """Optimizer state with `mean`, the moving average of the parameters after `count` steps."""

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, as optax's states do
    mean: Any
    inner: Any


def _averaging(inner: Optimizer, decay: float) -> Optimizer:
    def update(grads, held, params, state, skips=None):
        params, of_inner = inner.update(grads, held, params, state.inner, skips)
        share = jnp.minimum(decay, (1 + state.count) / (10 + state.count))
        mean = jax.tree.map(lambda m, p: share * m + (1 - share) * p, state.mean, params)
        new = _unless(skips, (state.count + 1, mean), (state.count, state.mean))
        return params, AveragedState(*new, of_inner)

    return inner._replace(
        init=lambda params: AveragedState(
            jnp.int32(0), jax.tree.map(jnp.copy, params), inner.init(params)
        ),
        read=lambda params, state, touched: inner.read(params, state.inner, touched),
        update=update,
        apply_pending_updates=lambda params, state: (params, state),  # none without rows
        averaged=lambda state: state.mean,
    )


def sharded_over_data(inner: Optimizer, split: Any, whole: Any, dtype: str) -> Optimizer:
    """Update parameters that are `split` over `data`, and gather them `whole` to differentiate.

    Both are shapes and shardings of all parameters. Devices send tables and kernels in `dtype`, to
    which a step casts them anyhow. Parameters and gradients stay float32.
    """

    def constrained(tree: Any, placed: Any) -> Any:
        def constrain(path: tuple, x: jax.Array) -> jax.Array:
            like = get_table(placed, jax.tree_util.keystr(path, simple=True, separator="/"))
            sharding = like.sharding
            if x.shape != like.shape:  # touched rows of a table
                spec = jax.sharding.PartitionSpec(None, *sharding.spec[1:])
                sharding = jax.sharding.NamedSharding(sharding.mesh, spec)
            return jax.lax.with_sharding_constraint(x, sharding)

        return jax.tree.map_with_path(constrain, tree)

    def read(params, state, touched):
        trained, held = inner.read(params, state, touched)
        short = jax.tree.map_with_path(
            lambda path, x: x.astype(dtype) if path[-1].key in ("kernel", "table") else x, trained
        )
        # The first constraint keeps the compiler from gathering before the cast.
        short = constrained(constrained(short, split), whole)
        return jax.tree.map(lambda x, like: x.astype(like.dtype), short, trained), held

    return inner._replace(read=read, reduced=lambda grads: constrained(grads, split))


class GuardedState(NamedTuple):
    """Optimizer state with the running mean of log gradient norms, over `count` taken steps."""

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, as optax's states do
    log_norm: jax.Array
    skipped: jax.Array
    inner: Any


# Steps before the guard acts: the norm falls fast at first. The mean spans some hundred steps.
_UNGUARDED, _SPAN = 20, 100


def _guarded(inner: Optimizer, ratio: float) -> Optimizer:
    """Skip steps whose gradient norm is not finite, or above `ratio` times its running mean."""

    def update(grads, held, params, state):
        norm = optax.tree.norm(grads)
        log_norm = jnp.log(jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
        is_far = (state.count >= _UNGUARDED) & (log_norm > state.log_norm + math.log(ratio))
        skips = is_far | ~jnp.isfinite(norm)
        params, of_inner = inner.update(grads, held, params, state.inner, skips)
        share = 1 / jnp.minimum(state.count + 1, _SPAN)
        mean = state.log_norm + share * (log_norm - state.log_norm)
        new = (state.count + 1, mean, state.skipped)
        steps = _unless(skips, new, (state.count, state.log_norm, state.skipped + 1))
        return params, GuardedState(*steps, of_inner)

    averaged = inner.averaged

    def pending(params, state):
        params, of_inner = inner.apply_pending_updates(params, state.inner)
        return params, state._replace(inner=of_inner)

    return inner._replace(
        init=lambda params: GuardedState(
            jnp.int32(0), jnp.float32(0), jnp.int32(0), inner.init(params)
        ),
        read=lambda params, state, touched: inner.read(params, state.inner, touched),
        update=update,
        apply_pending_updates=pending,
        averaged=None if averaged is None else lambda state: averaged(state.inner),
        metrics=lambda state: {"skipped_steps": state.skipped.astype(jnp.float32)},
    )


def _dense(
    clip: optax.GradientTransformation,
    adamw: optax.GradientTransformation,
    schedule: optax.Schedule,
) -> Optimizer:
    def read(params, state, touched):
        del state
        for path, rows in gathered_rows(params, touched).items():
            params = replace_table(params, path, rows)
        return params, touched

    def update(grads, touched, params, state, skips=None):
        for path, ids in touched.items():
            rows, table = get_table(grads, path), get_table(params, path)
            of_table = jnp.zeros_like(table).at[ids].set(rows, mode="drop")
            grads = replace_table(grads, path, of_table)
        grads, _ = clip.update(grads, clip.init(params))
        updates, new_state = adamw.update(grads, state, params)
        new = optax.apply_updates(params, updates), new_state
        return _unless(skips, new, (params, state))

    return Optimizer(adamw.init, read, update, lambda params, state: (params, state), schedule)


class RowsState(NamedTuple):
    """State of row-wise updates: of each table by its path, and of all other parameters."""

    tables: dict[str, RowAdamWState]
    others: Any


def _by_rows(
    clip: optax.GradientTransformation, adamw: optax.GradientTransformation, rows: RowAdamW,
    paths: tuple[str, ...], schedule: optax.Schedule,
) -> Optimizer:  # fmt: skip
    """Build the optimizer that updates only the touched rows of tables, see `row_adamw`."""

    def without_tables(tree):
        for path in paths:
            tree = replace_table(tree, path, None)
        return tree

    def init(params):
        states = {}
        for path in paths:
            table = get_table(params, path)
            states[path] = rows.init(nn.unbox(table))
            if isinstance(table, nn.LogicallyPartitioned):
                states[path] = _named_like(table, states[path])
        return RowsState(states, adamw.init(without_tables(params)))

    def read(params, state, touched):
        held = {
            path: rows.read(get_table(params, path), state.tables[path], touched.get(path))
            for path in paths
        }
        for path, found in held.items():
            params = replace_table(params, path, found.values)
        return params, held

    def update(grads, held, params, state, skips=None):
        grads, _ = clip.update(grads, clip.init(params))
        others = without_tables(params)
        updates, others_state = adamw.update(without_tables(grads), state.others, others)
        new = optax.apply_updates(others, updates), others_state
        updated, others_state = _unless(skips, new, (others, state.others))
        states = {}
        for path, found in held.items():
            old = get_table(params, path), state.tables[path]
            table, states[path] = _update_rows(rows, get_table(grads, path), found, *old, skips)
            updated = replace_table(updated, path, table)
        return updated, RowsState(states, others_state)

    def apply_pending_updates(params, state):
        states = {}
        for path in paths:
            table, states[path] = rows.apply_pending_updates(
                get_table(params, path), state.tables[path]
            )
            params = replace_table(params, path, table)
        return params, state._replace(tables=states)

    return Optimizer(init, read, update, apply_pending_updates, schedule)


def _update_rows(
    rows: RowAdamW, grads: jax.Array, found: Rows, table: jax.Array, state: RowAdamWState,
    skips: jax.Array | None,
) -> tuple[jax.Array, RowAdamWState]:  # fmt: skip
    """Update the touched rows of a table unless `skips`, without a pass over other rows."""
    if skips is not None and found.ids is not None:
        found = found._replace(ids=jnp.where(skips, len(table), found.ids))  # writes no row
        table, new = rows.update(grads, found, table, state)
        steps = _unless(skips, (new.count, new.log_decay), (state.count, state.log_decay))
        return table, new._replace(count=steps[0], log_decay=steps[1])
    return _unless(skips, rows.update(grads, found, table, state), (table, state))


def _unless(skips: jax.Array | None, new: Any, old: Any) -> Any:
    """Return `old` if `skips`, else `new`. Selects arrays, since branches would copy them."""
    if skips is None:
        return new
    return jax.tree.map(lambda one, other: jnp.where(skips, other, one), new, old)


def _named_like(table: nn.LogicallyPartitioned, state: RowAdamWState) -> RowAdamWState:
    """Box the state's arrays with the logical names of the table's axes."""
    return jax.tree.map(
        lambda x: nn.LogicallyPartitioned(x, table.names[: x.ndim]) if x.ndim else x, state
    )


def learning_rate_schedule(settings: Any, num_steps: int) -> optax.Schedule:
    """Build a schedule, steps taken -> rate: linear warm-up to the peak p, then a decay.

    `settings` are `OptimizerSettings`. The W warm-up steps have p / W, 2 p / W, ..., p. With f = p
    final_rate_ratio, and x from 0 at the start of the decay to 1 at the last step:

      polynomial   f + (p - f) (1 - x)^decay_power, from the last step of the warm-up on
      cosine       f + (p - f) (1 + cos(pi x)) / 2, likewise (SGDR, ICLR 2017, Eq. 5, no restarts)
      wsd          p, then polynomial in the last decay_fraction of all steps
                   (warm-up, stable, decay; Hu et al., "MiniCPM", 2024, section 4)
      either, with decay_shape one_minus_sqrt: f + (p - f) (1 - sqrt(x)) (Haegele et al. 2024)
      inverse_sqrt p (W / n)^(1/2) at the n-th step, at least f; W = 0 counts as 1
                   (Vaswani et al., "Attention is all you need", 2017, Eq. 3)

    Raises ValueError if warm-up and decay do not fit into the run of `num_steps`.
    """
    warmup_steps, peak = settings.warmup_steps, settings.learning_rate
    if not 0 <= warmup_steps < num_steps:
        raise ValueError(
            f"optimizer.warmup_steps is {warmup_steps}, must be below train.num_steps {num_steps}; "
            "change either"
        )
    peak_step = max(warmup_steps - 1, 0)  # first step with the peak rate, counted from 0
    decay_steps = max(num_steps - 1 - peak_step, 1)
    if settings.schedule == "wsd":
        decay_steps = wsd_decay_steps(settings, num_steps)
    if warmup_steps + decay_steps > num_steps:
        raise ValueError(
            f"optimizer.decay_fraction is {settings.decay_fraction}: its {decay_steps} steps and "
            f"optimizer.warmup_steps {warmup_steps} exceed train.num_steps {num_steps}; lower one"
        )
    final = peak * settings.final_rate_ratio
    decay: optax.Schedule
    if settings.schedule == "inverse_sqrt":

        def decay(step):  # since `peak_step`
            return jnp.maximum(peak * jnp.sqrt((peak_step + 1) / (peak_step + 1 + step)), final)

    elif settings.schedule == "cosine":
        decay = optax.cosine_decay_schedule(peak, decay_steps, alpha=settings.final_rate_ratio)
    else:
        power = optax.polynomial_schedule(peak, final, settings.decay_power, decay_steps)
        if settings.decay_shape == "one_minus_sqrt":

            def power(step):
                return peak - (peak - final) * jnp.sqrt(step / decay_steps)

        def decay(step):
            # Compiled code may give a negative 1 - x at the last step, with NaN as its root.
            return jnp.where(step < decay_steps, power(step), final)

    schedules, boundaries = [], []
    if peak_step:
        schedules.append(optax.linear_schedule(peak / warmup_steps, peak, peak_step))
        boundaries.append(peak_step)
    if settings.schedule == "wsd":
        schedules.append(optax.constant_schedule(peak))
        boundaries.append(max(num_steps - 1 - decay_steps, 0))
    return optax.join_schedules([*schedules, decay], boundaries)


def wsd_decay_steps(settings: Any, num_steps: int) -> int:
    """Return the number of decay steps of "wsd": at most all but the first, which has the peak."""
    return max(min(round(settings.decay_fraction * num_steps), num_steps - 1), 1)
