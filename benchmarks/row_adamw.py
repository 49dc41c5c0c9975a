"""Row-sparse AdamW against dense `optax.adamw`: distance of the results, and speed.

    python -m benchmarks.row_adamw                   # one core, about three minutes
    python -m benchmarks.row_adamw --study=distance  # or --study=speed

Distance: both take the same noisy steps towards a target, with gradients at their own tables, so
that errors accumulate. Tokens are drawn by Zipf's law; with warm-up, linear decay, weight decay and
clipping by global norm. Lazy Adam, which omits the missed steps of a row, is compared as well.

Speed: reading and updating R rows against one dense step, with donated tables and states,
interleaved. The cost of the dense gradient [V, E] is not included.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks.machine import describe_machine, interleaved_medians, set_up
from xlm.training.row_adamw import RowAdamW, Rows, row_adamw

_STUDY = flags.DEFINE_enum("study", "all", ["all", "distance", "speed"], "What to run.")
_CORES = flags.DEFINE_integer("cores", 1, "CPU cores to use; 0 for all.")
_STEPS = flags.DEFINE_integer("steps", 2000, "Steps of the distance study.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 524_288, "Rows of the table, speed study.")
_WIDTH = flags.DEFINE_integer("width", 128, "Width of the table, speed study.")
_PARTS = flags.DEFINE_list("parts", ["64", "32", "16", "8", "4", "2", "1"], "V/R, speed study.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 7, "Timings of each, speed study.")

# Table of the distance study, and tokens drawn per step.
_ZIPF_VOCAB_SIZE, _ZIPF_WIDTH, _DRAWS = 20_000, 64, 2048
_PEAK_RATE, _WEIGHT_DECAY, _CLIP_NORM = 1e-3, 0.01, 0.5


def lazy_adamw(optimizer: RowAdamW) -> RowAdamW:
    """Lazy variant of `optimizer`: rows are read without the updates of missed steps."""

    def read(table, state, ids):
        as_left = (table, state.first_moment, state.second_moment)
        return Rows(ids, *(x.at[ids].get(mode="fill", fill_value=0) for x in as_left))

    return optimizer._replace(read=read, apply_pending_updates=lambda table, state: (table, state))


def zipf_ids(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens drawn in each step [T, R], V in unused slots, and their counts [T, R]."""
    probabilities = 1 / np.arange(1.0, _ZIPF_VOCAB_SIZE + 1)
    probabilities /= probabilities.sum()
    ids = np.full((_STEPS.value, _DRAWS), _ZIPF_VOCAB_SIZE, np.int32)
    counts = np.zeros((_STEPS.value, _DRAWS), np.float32)
    for step in range(_STEPS.value):
        words, often = np.unique(
            rng.choice(_ZIPF_VOCAB_SIZE, _DRAWS, p=probabilities), return_counts=True
        )
        ids[step, : len(words)], counts[step, : len(words)] = words, often
    return ids, counts


def pull(values, ids, counts, target, step) -> jax.Array:
    """Clipped gradients [R, E] of a noisy pull of rows towards their targets."""
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(1), step), values.shape)
    goal = target.at[ids].get(mode="fill", fill_value=0)
    grads = counts[:, None] / _DRAWS * (values - goal + noise)
    clip = optax.clip_by_global_norm(_CLIP_NORM)
    return clip.update(grads, clip.init(grads))[0]


def trained_by_rows(optimizer: RowAdamW, table, target, ids, counts) -> jax.Array:
    """Train by a row-sparse optimizer; return the final table."""

    def step(carry, x):
        number, used, often = x
        rows = optimizer.read(*carry, used)
        grads = pull(rows.values, used, often, target, number)
        return optimizer.update(grads, rows, *carry), None

    steps = (jnp.arange(len(ids)), ids, counts)
    carry, _ = jax.lax.scan(step, (table, optimizer.init(table)), steps)
    return optimizer.apply_pending_updates(*carry)[0]


def trained_densely(optimizer: Any, table, target, ids, counts) -> jax.Array:
    """Train by an optax optimizer; return the final table."""

    def step(carry, x):
        table, state = carry
        number, used, often = x
        values = table.at[used].get(mode="fill", fill_value=0)
        grads = pull(values, used, often, target, number)
        dense = jnp.zeros_like(table).at[used].add(grads, mode="drop")
        updates, state = optimizer.update(dense, state, table)
        return (optax.apply_updates(table, updates), state), None

    steps = (jnp.arange(len(ids)), ids, counts)
    return jax.lax.scan(step, (table, optimizer.init(table)), steps)[0][0]


def distance_study() -> None:
    """Print the distance of row-sparse tables from the dense one."""
    rng = np.random.default_rng(0)
    ids, counts = zipf_ids(rng)
    shape = (_ZIPF_VOCAB_SIZE, _ZIPF_WIDTH)
    start = rng.normal(scale=0.02, size=shape).astype(np.float32)
    target = rng.normal(size=shape).astype(np.float32)
    warmup = _STEPS.value // 10
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(0.0, _PEAK_RATE, warmup),
            optax.polynomial_schedule(_PEAK_RATE, 0.0, 1.0, _STEPS.value - warmup),
        ],
        [warmup],
    )
    touched = np.mean(np.sum(ids < _ZIPF_VOCAB_SIZE, axis=1)) / _ZIPF_VOCAB_SIZE
    print(f"\n{_STEPS.value} Zipf steps, V = {shape[0]}, E = {shape[1]}, {touched:.1%} a step\n")
    print("| b2, eps | optimizer | of the way from the start | of the dense table |")
    print("|---|---|---:|---:|")
    for b2, eps in ((0.98, 1e-6), (0.999, 1e-8)):
        settings = {"b2": b2, "eps": eps, "weight_decay": _WEIGHT_DECAY}
        train = jax.jit(trained_densely, static_argnums=0)
        dense = np.asarray(train(optax.adamw(schedule, **settings), start, target, ids, counts))
        by_rows = row_adamw(schedule, **settings)
        for name, optimizer in (("row AdamW", by_rows), ("lazy Adam", lazy_adamw(by_rows))):
            train = jax.jit(trained_by_rows, static_argnums=0)
            away = np.linalg.norm(train(optimizer, start, target, ids, counts) - dense)
            cells = (away / np.linalg.norm(dense - start), away / np.linalg.norm(dense))
            print(
                f"| {b2}, {eps} | {name} | {cells[0]:.3%} | {cells[1]:.3%} |",
                flush=True,
            )


class DenseTable:
    """Table with dense AdamW and one gradient."""

    def __init__(self, table: jax.Array):
        optimizer = optax.adamw(1e-3, weight_decay=_WEIGHT_DECAY)
        self.table, self.state = jnp.copy(table), optimizer.init(table)
        self.grads = jnp.full_like(table, 1e-3)

        @functools.partial(jax.jit, donate_argnums=(1, 2))
        def step(grads, table, state):
            updates, state = optimizer.update(grads, state, table)
            return optax.apply_updates(table, updates), state

        self._step = step

    def step(self) -> Any:
        self.table, self.state = self._step(self.grads, self.table, self.state)
        return self.table, self.state


class RowTable:
    """Table with row-sparse AdamW, for steps of any number of rows."""

    def __init__(self, table: jax.Array):
        optimizer = row_adamw(optax.linear_schedule(1e-3, 0, 10_000), weight_decay=_WEIGHT_DECAY)
        self.table, self.state = jnp.copy(table), optimizer.init(table)

        @functools.partial(jax.jit, donate_argnums=(2, 3))
        def step(ids, grads, table, state):
            rows = optimizer.read(table, state, ids)
            return optimizer.update(grads + rows.values, rows, table, state)

        self._step = step

    def step(self, ids: jax.Array, grads: jax.Array) -> Any:
        self.table, self.state = self._step(ids, grads, self.table, self.state)
        return self.table, self.state

    def temporary_megabytes(self, ids: jax.Array, grads: jax.Array) -> float:
        memory = self._step.lower(ids, grads, self.table, self.state).compile().memory_analysis()
        return memory.temp_size_in_bytes / 1e6 if memory else float("nan")


def speed_study() -> None:
    """Print the time of a step over R rows, for several R."""
    vocab_size, width = _VOCAB_SIZE.value, _WIDTH.value
    rng = np.random.default_rng(0)
    start = jnp.asarray(rng.normal(size=(vocab_size, width)).astype(np.float32))
    dense, by_rows = DenseTable(start), RowTable(start)
    del start
    parts = [int(part) for part in _PARTS.value]

    def row_step(part: int) -> Any:
        return by_rows.step(*touched[part])

    touched = {
        part: (
            jnp.asarray(rng.permutation(vocab_size)[: vocab_size // part].astype(np.int32)),
            jnp.ones((vocab_size // part, width)),
        )
        for part in parts
    }
    runs = {f"V/{part}": functools.partial(row_step, part) for part in parts}
    times = interleaved_medians({"dense": dense.step, **runs}, _REPETITIONS.value)
    dense_ms = 1e3 * times["dense"]
    table_mb = 4e-6 * vocab_size * width
    print(f"\nV = {vocab_size}, E = {width}, table of {table_mb:.0f} MB; dense {dense_ms:.1f} ms\n")
    print("| rows touched | ms | dense / rows | temporary MB |")
    print("|---|---:|---:|---:|")
    for part in parts:
        row_ms = 1e3 * times[f"V/{part}"]
        temporary = by_rows.temporary_megabytes(*touched[part])
        print(f"| V/{part} | {row_ms:.1f} | {dense_ms / row_ms:.2f} | {temporary:.1f} |")


def main(_) -> None:
    set_up(_CORES.value)
    print(describe_machine())
    if _STUDY.value in ("all", "distance"):
        distance_study()
    if _STUDY.value in ("all", "speed"):
        speed_study()


if __name__ == "__main__":
    app.run(main)
