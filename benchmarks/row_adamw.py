"""Row-sparse AdamW against dense `optax.adamw`: distance, speed, and touched rows per step.

    python -m benchmarks.row_adamw                   # one core, some minutes
    python -m benchmarks.row_adamw --study=distance  # or --study=speed, --study=touched

Distance: both take the same noisy steps towards a target. Gradients are at their own tables, so
errors accumulate. Tokens are drawn by Zipf's law, with warm-up, linear decay, weight decay and
clipping by global norm. Lazy Adam, which omits the missed steps of a row, is compared as well.

Speed: reading and updating R rows against one dense step, with donated tables and states,
interleaved. The cost of the dense gradient [V, E] is not included.

Touched: table rows of a step of k-NN sampling against the bound for any batch, to choose
`output_layer.row_capacity`. The metric `train/table_rows` of a run has the actual number. Tokens
follow Zipf's law. The neighbours of a token are in its cluster, as after some training, or random,
as at the start. The batch is that of `configs/vocap_paper.py`: 256 sequences of 512 tokens in 8
groups, 15 % masked, k = 50, C = 65,536.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks import machine
from xlm.training.row_adamw import RowAdamW, Rows, row_adamw

_STUDY = flags.DEFINE_enum("study", "all", ["all", "distance", "speed", "touched"], "Study to run.")
_STEPS = flags.DEFINE_integer("steps", 2000, "Steps of the distance study.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 524_288, "Rows of the table, speed study.")
_WIDTH = flags.DEFINE_integer("width", 128, "Width of the table, speed study.")
_PARTS = flags.DEFINE_list("parts", ["64", "32", "16", "8", "4", "2", "1"], "V/R, speed study.")
_TOUCHED = flags.DEFINE_list("touched", ["250000", "500000", "1000000"], "V, touched rows.")
machine.define_flags(cores=1, repetitions=7)

# Table of the distance study, and drawn tokens per step.
_ZIPF_VOCAB_SIZE, _ZIPF_WIDTH, _DRAWS = 20_000, 64, 2048
_GROUPS, _GROUP_TOKENS, _K, _CAPACITY, _MASKED = 8, 32 * 512, 50, 65_536, 0.15
_PEAK_RATE, _WEIGHT_DECAY, _CLIP_NORM = 1e-3, 0.01, 0.5


def lazy_adamw(optimizer: RowAdamW) -> RowAdamW:
    """Return the lazy variant of `optimizer`, which reads rows without missed updates."""

    def read(table, state, ids):
        as_left = (table, state.first_moment, state.second_moment)
        return Rows(ids, *(x.at[ids].get(mode="fill", fill_value=0) for x in as_left))

    return optimizer._replace(read=read, apply_pending_updates=lambda table, state: (table, state))


def zipf_ids(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens drawn in each step [T, R], V in unused slots, and their counts [T, R]."""
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
    """Return clipped gradients [R, E] of a noisy pull of rows towards their targets."""
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


def distance_study(report: machine.Report) -> None:
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
    report.table(
        f"{_STEPS.value} Zipf steps, V = {shape[0]}, E = {shape[1]}, {touched:.1%} a step",
        {"b2, eps": "", "optimizer": "", "of the way from the start": ".3%", "of the dense": ".3%"},
    )
    for b2, eps in ((0.98, 1e-6), (0.999, 1e-8)):
        settings = {"b2": b2, "eps": eps, "weight_decay": _WEIGHT_DECAY}
        train = jax.jit(trained_densely, static_argnums=0)
        dense = np.asarray(train(optax.adamw(schedule, **settings), start, target, ids, counts))
        by_rows = row_adamw(schedule, **settings)
        for name, optimizer in (("row AdamW", by_rows), ("lazy Adam", lazy_adamw(by_rows))):
            train = jax.jit(trained_by_rows, static_argnums=0)
            away = np.linalg.norm(train(optimizer, start, target, ids, counts) - dense)
            of_all = away / np.linalg.norm(dense - start), away / np.linalg.norm(dense)
            report.row(f"{b2}, {eps}", name, *map(float, of_all))


def stepper(step: Any, table: jax.Array, state: Any) -> Any:
    """Return functions: a step with its own donated table and state, and its memory."""
    compiled = jax.jit(step, donate_argnums=(0, 1))
    held = [jnp.copy(table), state]

    def run(*arguments: jax.Array) -> Any:
        held[:] = compiled(*held, *arguments)
        return held

    def temporary_megabytes(*arguments: jax.Array) -> float:
        memory = compiled.lower(*held, *arguments).compile().memory_analysis()
        return memory.temp_size_in_bytes / 1e6 if memory else float("nan")

    return run, temporary_megabytes


def speed_study(report: machine.Report) -> None:
    """Report the time of a step over R rows, for several R, after dense AdamW."""
    vocab_size, width = _VOCAB_SIZE.value, _WIDTH.value
    rng = np.random.default_rng(0)
    start = jnp.asarray(rng.normal(size=(vocab_size, width)).astype(np.float32))
    dense = optax.adamw(1e-3, weight_decay=_WEIGHT_DECAY)
    rows = row_adamw(optax.linear_schedule(1e-3, 0, 10_000), weight_decay=_WEIGHT_DECAY)

    def dense_step(table, state, grads):
        updates, state = dense.update(grads, state, table)
        return optax.apply_updates(table, updates), state

    def row_step(table, state, ids, grads):
        read = rows.read(table, state, ids)
        return rows.update(grads + read.values, read, table, state)

    by_rows, megabytes = stepper(row_step, start, rows.init(start))
    densely, _ = stepper(dense_step, start, dense.init(start))
    arguments, runs = {}, {"dense": functools.partial(densely, jnp.full_like(start, 1e-3))}
    for part in map(int, _PARTS.value):
        ids = rng.permutation(vocab_size)[: vocab_size // part].astype(np.int32)
        arguments[f"V/{part}"] = jnp.asarray(ids), jnp.ones((len(ids), width))
        runs[f"V/{part}"] = functools.partial(by_rows, *arguments[f"V/{part}"])
    seconds = machine.interleaved_medians(runs, flags.FLAGS.repetitions)
    report.table(
        f"V = {vocab_size}, E = {width}, table of {4e-6 * vocab_size * width:.0f} MB",
        {"rows touched": "", "ms": ".1f", "dense / rows": ".2f", "temporary MB": ".1f"},
    )
    for name, time in seconds.items():
        held = megabytes(*arguments[name]) if name in arguments else None
        report.row(name, 1e3 * time, seconds["dense"] / time, held)


def needed_rows(vocab_size: int, clustered: bool, rng: np.random.Generator) -> tuple[int, int, int]:
    """Count rows of inputs and targets, rows with all candidates, and the largest |V'|."""
    p = 1 / (rng.permutation(vocab_size) + 10.0)
    tokens = rng.choice(vocab_size, (_GROUPS, _GROUP_TOKENS), p=p / p.sum())
    touched, required, largest = set(), set(np.unique(tokens).tolist()), 0
    for group in tokens[:, : int(_MASKED * _GROUP_TOKENS)]:
        distinct = np.unique(group)
        if clustered:  # clusters mix frequent and rare tokens
            near = distinct[:, None] // _K * _K + np.arange(_K)
        else:
            near = rng.integers(0, vocab_size, (len(distinct), _K))
        union = np.unique(np.concatenate([distinct, np.minimum(near, vocab_size - 1).ravel()]))
        largest = max(largest, len(union))
        touched |= set(union[:_CAPACITY].tolist())
    return len(required), len(required | touched), largest


def touched_study(report: machine.Report) -> None:
    rng, tokens = np.random.default_rng(0), _GROUPS * _GROUP_TOKENS
    report.table(
        f"{tokens:,} tokens in {_GROUPS} groups, {_MASKED:.0%} masked, k = {_K}",
        {"V": ",", "neighbours": "", "inputs and targets": ",", "all rows": ",",
         "largest V'": ",", "any batch": ","},
    )  # fmt: skip
    for vocab_size in map(int, _TOUCHED.value):
        bound = min(_GROUPS * _CAPACITY, vocab_size) + min(tokens, vocab_size)
        for name in ("clustered", "random"):
            report.row(vocab_size, name, *needed_rows(vocab_size, name == "clustered", rng), bound)


def main(_) -> None:
    report = machine.start()
    studies = {"distance": distance_study, "speed": speed_study, "touched": touched_study}
    for name, study in studies.items():
        if _STUDY.value in ("all", name):
            study(report)


if __name__ == "__main__":
    app.run(main)
