"""Row-wise AdamW for a table of which a step touches few rows, equivalent to dense AdamW.

Momentum and weight decay move a row also in steps without gradient. Lazy (row-sparse) Adam skips
that and is a different optimizer. This one applies a row's pending updates in closed form when it
next reads the row. A step takes time proportional to its rows, and the table follows `optax.adamw`
(Loshchilov and Hutter, ICLR 2019, Algorithm 2):

    rows = optimizer.read(table, state, ids)                    # before the forward pass
    grads = jax.grad(loss)(rows.values)
    table, state = optimizer.update(grads, rows, table, state)
    table, state = optimizer.apply_pending_updates(table, state)    # before others read all rows
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

# The sum over missed steps stops at a step with a smaller share of the momentum.
_NEGLIGIBLE = 1e-3


class RowAdamWState(NamedTuple):
    """State of `row_adamw`: `count` int32 steps taken, moments [V, E] float32.

    A row and its moments have the values of step `last_step` [V] int32, when `log_decay` was
    `last_log_decay` [V]. `log_decay` float32 sums log(1 - lr_j weight_decay) over all steps taken.
    """

    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, as optax's states do
    log_decay: jax.Array
    first_moment: jax.Array
    second_moment: jax.Array
    last_step: jax.Array
    last_log_decay: jax.Array


class Rows(NamedTuple):
    """Up-to-date rows of a table: values and moments [R, E] float32, zeros in unused slots.

    `ids` [R] int32 are distinct, in any order, V in unused slots. None stands for all rows in
    order.
    """

    ids: jax.Array | None
    values: jax.Array
    first_moment: jax.Array
    second_moment: jax.Array


class RowAdamW(NamedTuple):
    """Pure functions of `row_adamw`; tables are [V, E] float32.

    Attributes:
      init: table -> initial state.
      read: (table, state, ids or None) -> the rows `ids`, equal to those of dense AdamW.
      update: (gradients [R, E], rows, table, state) -> (table, state) one step later. `rows` must
        come from `read` of this table and state. Other rows get no gradient.
      apply_pending_updates: (table, state) -> (table, state) with every row up to date.
    """

    init: Callable[[jax.Array], RowAdamWState]
    read: Callable[[jax.Array, RowAdamWState, jax.Array | None], Rows]
    update: Callable[[jax.Array, Rows, jax.Array, RowAdamWState], tuple[jax.Array, RowAdamWState]]
    apply_pending_updates: Callable[[jax.Array, RowAdamWState], tuple[jax.Array, RowAdamWState]]


def row_adamw(
    learning_rate: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
    weight_decay: float = 1e-4,
) -> RowAdamW:  # fmt: skip
    """Build `optax.adamw` for a table of which a step touches few rows.

    A row with the values of step s, next read after step s + d, has missed d steps. Step j = s + i
    leaves it with moments m b1^i and v b2^i, and moves it by

      lr_j c_j r^i m / (sqrt(v) + eps_j),   c_j = sqrt(1 - b2^j) / (1 - b1^j),   r = b1 / sqrt(b2),

    with eps_j = eps b2^(-i/2) sqrt(1 - b2^j). With one eps for all steps, the sum of these is a
    function of m and v with two scalars per row (`_missed_sums`). If every step has every row, the
    result is that of `optax.adamw` up to rounding. Otherwise there are two errors. The sum stops at
    r^i < 0.001. The single eps is exact only if eps or sqrt(v) dominates. In between, it is off by
    at most 0.3 % of the movement for b1 = 0.9 and b2 >= 0.98, and by some percent in the first ten
    steps or for a smaller b2.

    `learning_rate` may be a schedule of the steps taken, 0 at the first step. Raises ValueError
    unless b1 is in [0, 1), b2 in (0, 1), b1 / sqrt(b2) < 1 (else the terms of missed steps grow),
    eps > 0 and weight_decay >= 0. Each step multiplies a row by 1 - lr weight_decay, which must be
    positive. For in-place updates, donate `table` and `state` to a jitted `update`.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from xlm.training.row_adamw import row_adamw
      >>> table = jax.random.normal(jax.random.key(0), (1000, 16))
      >>> by_rows, dense = row_adamw(1e-2), optax.adamw(1e-2)
      >>> mine, state = table, by_rows.init(table)
      >>> theirs, dense_state = table, dense.init(table)
      >>> for ids in ([1, 2], [2, 3], [1, 3]):
      ...     ids = jnp.array(ids)
      ...     rows = by_rows.read(mine, state, ids)
      ...     mine, state = by_rows.update(2 * rows.values, rows, mine, state)  # of sum of squares
      ...     grads = jnp.zeros_like(theirs).at[ids].set(2 * theirs[ids])
      ...     updates, dense_state = dense.update(grads, dense_state, theirs)
      ...     theirs = optax.apply_updates(theirs, updates)
      >>> mine, state = by_rows.apply_pending_updates(mine, state)
      >>> bool(jnp.abs(mine - theirs).max() < 1e-3)
      True
    """
    _check(learning_rate, b1, b2, eps, weight_decay)
    ratio = b1 / math.sqrt(b2)
    adam = _Adam(
        learning_rate if callable(learning_rate) else lambda _: learning_rate,
        b1, b2, eps, weight_decay,
        num_terms=math.ceil(math.log(_NEGLIGIBLE) / math.log(ratio)) if ratio > 0 else 1,
    )  # fmt: skip
    return RowAdamW(
        _init, functools.partial(_read, adam), functools.partial(_update, adam),
        functools.partial(_apply_pending_updates, adam),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Adam:
    """Hyperparameters of `row_adamw`, its schedule, and N, terms of the sum over missed steps."""

    schedule: Callable[[jax.Array], Any]
    b1: float
    b2: float
    eps: float
    weight_decay: float
    num_terms: int

    def learning_rates(self, steps: jax.Array) -> jax.Array:
        """Return the learning rates of steps counted from 1, float32 of their shape."""
        # Not all schedules take arrays.
        rates = jax.vmap(self.schedule)(steps.reshape(-1) - 1)
        return jnp.asarray(rates, jnp.float32).reshape(steps.shape)


def _init(table: jax.Array) -> RowAdamWState:
    _check_table(table)
    return RowAdamWState(
        count=jnp.int32(0),
        log_decay=jnp.float32(0),
        first_moment=jnp.zeros_like(table),
        second_moment=jnp.zeros_like(table),
        last_step=jnp.zeros_like(table, jnp.int32, shape=table.shape[:1]),
        last_log_decay=jnp.zeros_like(table, shape=table.shape[:1]),
    )


def _read(adam: _Adam, table: jax.Array, state: RowAdamWState, ids: jax.Array | None) -> Rows:
    _check_table(table)

    def take(array: jax.Array) -> jax.Array:
        return array if ids is None else array.at[ids].get(mode="fill", fill_value=0)

    last_step = take(state.last_step)
    if ids is None:
        # Dense runs have all rows up to date, and nothing to sum.
        speed, speed_if_eps = jax.lax.cond(
            jnp.any(last_step < state.count),
            functools.partial(_missed_sums, adam),
            lambda last_step, _: (jnp.zeros(last_step.shape), jnp.zeros(last_step.shape)),
            last_step, state.count,
        )  # fmt: skip
    else:
        speed, speed_if_eps = _missed_sums(adam, last_step, state.count)
    num_missed = (state.count - last_step).astype(jnp.float32)
    row_eps = adam.eps * jnp.where(speed_if_eps > 0, speed / speed_if_eps, 1.0)
    decay = jnp.exp(state.log_decay - take(state.last_log_decay))
    values, mean, square = take(table), take(state.first_moment), take(state.second_moment)
    # Without missed steps `speed` is 0 and the factors are 1: the row stays exactly unchanged.
    moved = speed[:, None] * mean / (jnp.sqrt(square) + row_eps[:, None])
    return Rows(
        ids,
        values=decay[:, None] * (values - moved),
        first_moment=jnp.power(adam.b1, num_missed)[:, None] * mean,
        second_moment=jnp.power(adam.b2, num_missed)[:, None] * square,
    )


def _missed_sums(
    adam: _Adam, last_step: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return A and H, [R] float32: movement by momentum over the missed steps of `last_step` [R].

    They are per unit of m / sqrt(v) and of m / eps. Over at most the first N missed steps
    j = s + i,

      A = sum of lr_j d_i r^i sqrt(1 - b2^j) / (1 - b1^j)   if eps is negligible beside sqrt(v)
      H = sum of lr_j d_i b1^i / (1 - b1^j)                 if sqrt(v) is negligible beside eps

    and m / (sqrt(v) / A + eps / H) is correct in both cases. The caller multiplies it by the decay
    of all missed steps, although only later decay acts on step j. d_i, the product of 1 / (1 - lr
    weight_decay) over the steps up to j, compensates for that.
    """
    terms = np.arange(1, adam.num_terms + 1)
    b1_powers = jnp.asarray(adam.b1**terms, jnp.float32)  # b1^i
    b2_powers = jnp.asarray(adam.b2**terms, jnp.float32)
    b1_of_rows = jnp.power(adam.b1, last_step.astype(jnp.float32))  # b1^s
    b2_of_rows = jnp.power(adam.b2, last_step.astype(jnp.float32))

    def add(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        speed, speed_if_eps, undecay = sums
        step = last_step + i + 1
        rate = adam.learning_rates(step)
        undecay /= 1 - rate * adam.weight_decay
        b1_power, b2_power = b1_powers[i], b2_powers[i]
        # lr_j d_i b1^i / (1 - b1^j)
        rate = jnp.where(step <= count, rate * undecay, 0.0)
        rate *= b1_power / (1 - b1_of_rows * b1_power)
        root = jnp.sqrt((1 - b2_of_rows * b2_power) / b2_power)
        return speed + rate * root, speed_if_eps + rate, undecay

    # A sum over an array [R, N] would be shorter, but on a CPU XLA materialises that array and
    # takes twice as long. Unrolled, since a GPU launches a kernel for each iteration.
    zeros = jnp.zeros_like(b1_of_rows)
    init = (zeros, zeros, jnp.ones_like(zeros))
    speed, speed_if_eps, _ = jax.lax.fori_loop(0, adam.num_terms, add, init, unroll=4)
    return speed, speed_if_eps


def _update(
    adam: _Adam, grads: jax.Array, rows: Rows, table: jax.Array, state: RowAdamWState
) -> tuple[jax.Array, RowAdamWState]:
    _check_table(table)
    if grads.shape != rows.values.shape:
        raise ValueError(f"gradients are {grads.shape}, must be {rows.values.shape} like the rows")
    grads = grads.astype(jnp.float32)
    count = state.count + 1
    rate = adam.learning_rates(count)
    mean = (1 - adam.b1) * grads + adam.b1 * rows.first_moment
    square = (1 - adam.b2) * grads**2 + adam.b2 * rows.second_moment
    direction = (mean / (1 - adam.b1**count)) / (jnp.sqrt(square / (1 - adam.b2**count)) + adam.eps)
    values = rows.values - rate * (direction + adam.weight_decay * rows.values)
    log_decay = state.log_decay + jnp.log1p(-rate * adam.weight_decay)

    def put(array: jax.Array, new: jax.Array) -> jax.Array:
        """Set the rows of `array` to `new`, [R, ...] or a scalar."""
        if rows.ids is None:
            return jnp.broadcast_to(new, array.shape)
        places = _distinct(rows.ids, table.shape[0])
        return array.at[places].set(new, mode="drop", unique_indices=True)

    return put(table, values), RowAdamWState(
        count=count,
        log_decay=log_decay,
        first_moment=put(state.first_moment, mean),
        second_moment=put(state.second_moment, square),
        last_step=put(state.last_step, count),
        last_log_decay=put(state.last_log_decay, log_decay),
    )


def _apply_pending_updates(
    adam: _Adam, table: jax.Array, state: RowAdamWState
) -> tuple[jax.Array, RowAdamWState]:
    rows = _read(adam, table, state, None)
    return rows.values, state._replace(
        first_moment=rows.first_moment,
        second_moment=rows.second_moment,
        last_step=jnp.full_like(state.last_step, state.count),
        last_log_decay=jnp.full_like(state.last_log_decay, state.log_decay),
    )


def _distinct(ids: jax.Array, vocab_size: int) -> jax.Array:
    """Replace V in unused slots of `ids` [R] by V + slot: the scatter assumes distinct ids."""
    slots = jnp.arange(ids.shape[0], dtype=jnp.int32)
    return jnp.where(ids < vocab_size, ids, vocab_size + slots)


def _check_table(table: jax.Array) -> None:
    if table.ndim != 2 or table.dtype != jnp.float32:
        raise ValueError(
            f"table is {table.dtype}{list(table.shape)}, must be float32 [V, E]; keep the table in "
            "float32 and cast the rows after `read`"
        )


def _check(
    learning_rate: optax.ScalarOrSchedule, b1: float, b2: float, eps: float, weight_decay: float
) -> None:
    """Raise the ValueError of `row_adamw`, whose rate may be a number."""
    if not (0 <= b1 < 1 and 0 < b2 < 1):
        raise ValueError(
            f"b1 is {b1}, b2 {b2}: must be in [0, 1) and (0, 1); change optimizer.beta1, beta2"
        )
    if b1 >= math.sqrt(b2):
        raise ValueError(
            f"b1 is {b1}, b2 {b2}: b1 / sqrt(b2) is {b1 / math.sqrt(b2):.4f}, must be below 1; "
            "lower optimizer.beta1 or raise optimizer.beta2"
        )
    if not eps > 0:
        # Rows before their first gradient would give 0 / 0.
        raise ValueError(f"eps is {eps}, must be above 0; change optimizer.epsilon")
    largest = learning_rate if isinstance(learning_rate, (int, float)) else 0.0
    if weight_decay < 0 or largest * weight_decay >= 1:
        raise ValueError(
            f"weight_decay is {weight_decay}, learning rate {learning_rate}: must be at least 0, "
            "their product below 1; change optimizer.weight_decay"
        )
