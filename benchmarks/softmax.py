"""Vocabulary cost: output layers against optax, and output layer with table update.

    python -m benchmarks.softmax --cores=1                   # some minutes on a CPU
    python -m benchmarks.softmax --cores=1 --study=update    # or --study=heads, --study=union

Heads: speed and memory of the exact and the k-NN softmax, loss and gradients of the whole table,
against a plain softmax with optax. The k-NN heads get their candidates. Memory is the temporary
memory of the compiled program.

Union: the candidates of a batch, which are the union of its targets' lists, against `jnp.unique`.

Update: output layer and AdamW on the table. Full: optax's cross-entropy and `optax.adamw` on
[V, E]. k-NN: the union, reading the up-to-date rows, the softmax over them, and either `row_adamw`
on these rows or their gradient scattered into [V, E] for `optax.adamw`. Targets follow Zipf's law,
and neighbour lists are clusters of tokens, as after some training.

Before timing, the command checks that losses and unions agree.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks import machine
from knn_sampling.blockwise import DEFAULT_BLOCK_SIZE, blockwise_softmax_loss
from knn_sampling.candidates import union_of_neighbours
from knn_sampling.losses import ABSENT, candidate_softmax_loss
from xlm.training.row_adamw import row_adamw

_STUDY = flags.DEFINE_enum("study", "all", ["all", "heads", "union", "update"], "Study to run.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 131_072, "V, heads study.")
_POSITIONS = flags.DEFINE_integer("positions", 1024, "W, heads study.")
_WIDTH = flags.DEFINE_integer("width", 256, "E, heads study.")
_BLOCK_SIZES = flags.DEFINE_list(
    "block_sizes", ["256", "512", str(DEFAULT_BLOCK_SIZE), "4096", "16384"], "Classes per block."
)
_SIZES = flags.DEFINE_list(
    "sizes", ["524288", "128", "512", "50", "16384"], "V, E, W, k and C, update study."
)
_UNION_VOCAB = flags.DEFINE_integer("union_vocab_size", 500_000, "V, union study.")
machine.define_flags(cores=0, repetitions=5)

PARTS = (4, 8, 16)  # V/C of the k-NN heads
UNION_K, UNION_TARGETS = 50, 2458

Head = Callable[..., jax.Array]  # (hidden, table, bias) -> sum of the losses
Runs = dict[str, tuple[Callable[[], Any], float]]  # a call, and its temporary MB


def optax_head(targets, hidden, table, bias):
    logits = hidden @ table.T + bias[None, :]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).sum()


def blockwise_head(targets, block_size, hidden, table, bias):
    weights = jnp.ones(len(hidden))
    return blockwise_softmax_loss(
        hidden, targets, weights, table, bias, num_valid=len(table), block_size=block_size
    ).sum()


def knn_head(ids, labels, in_blocks, hidden, table, bias):
    rows = table.at[ids].get(mode="fill", fill_value=0)
    row_bias = bias.at[ids].get(mode="fill", fill_value=ABSENT)
    args = hidden, labels, jnp.ones(len(hidden)), rows, row_bias
    if not in_blocks:
        return candidate_softmax_loss(*args).sum()
    return blockwise_softmax_loss(*args, num_valid=len(rows), block_size=DEFAULT_BLOCK_SIZE).sum()


def knn_heads(vocab_size: int, positions: int, rng: np.random.Generator) -> dict[str, Head]:
    heads: dict[str, Head] = {}
    for part in PARTS:
        ids = np.sort(rng.choice(vocab_size, vocab_size // part, replace=False)).astype(np.int32)
        labels = rng.integers(len(ids), size=positions).astype(np.int32)
        for name, in_blocks in (("in blocks", True), ("all logits", False)):
            heads[f"k-NN, C = V/{part}, {name}"] = functools.partial(
                knn_head, jnp.asarray(ids), jnp.asarray(labels), in_blocks
            )
    return heads


def compiled(function: Callable, *arguments) -> tuple[Callable[[], Any], float]:
    """Compile a function; return a call of it, and its temporary memory in MB."""
    program = jax.jit(function).lower(*arguments).compile()
    memory = program.memory_analysis()  # None on some backends
    held = memory.temp_size_in_bytes / 1e6 if memory else math.nan
    return functools.partial(program, *arguments), held


def head_runs() -> tuple[Runs, Runs]:
    """Build each head with gradients, and exact heads also without."""
    rng = np.random.default_rng(0)
    vocab_size, positions, width = _VOCAB_SIZE.value, _POSITIONS.value, _WIDTH.value
    hidden = jnp.asarray(rng.standard_normal((positions, width)), jnp.float32)
    table = jnp.asarray(rng.standard_normal((vocab_size, width)) / width**0.5, jnp.float32)
    inputs = hidden, table, jnp.zeros(vocab_size)
    targets = jnp.asarray(rng.integers(vocab_size, size=positions), jnp.int32)
    exact: dict[str, Head] = {"optax full": functools.partial(optax_head, targets)}
    for size in map(int, _BLOCK_SIZES.value):
        exact[f"blockwise, {size:,} words"] = functools.partial(blockwise_head, targets, size)
    forward = {name: compiled(head, *inputs) for name, head in exact.items()}
    for name, (call, _) in forward.items():
        np.testing.assert_allclose(call(), forward["optax full"][0](), rtol=1e-4, err_msg=name)
    every = exact | knn_heads(vocab_size, positions, rng)
    both = {
        name: compiled(jax.value_and_grad(head, argnums=(0, 1, 2)), *inputs)
        for name, head in every.items()
    }
    return both, forward


def union_runs() -> Runs:
    """Build the search for a batch's candidates in random lists, by both methods."""
    rng, size = np.random.default_rng(1), _UNION_VOCAB.value
    lists = rng.integers(size, size=(size, UNION_K), dtype=np.int32)
    zipf = 1 / np.arange(1.0, size + 1)
    number = min(UNION_TARGETS, size // 200)  # else they overflow
    targets = rng.choice(size, number, p=zipf / zipf.sum()).astype(np.int32)
    arguments = jnp.asarray(lists), jnp.asarray(targets)
    capacity = size // 4

    def ours(lists, targets):
        weights = jnp.ones((1, len(targets)))
        return union_of_neighbours(lists, targets[None, :], weights, capacity)

    def unique(lists, targets):
        words = jnp.concatenate([lists[targets].reshape(-1), targets])
        ids = jnp.unique(words, size=capacity, fill_value=size)
        return ids, jnp.searchsorted(ids, targets)  # cheaper than return_inverse

    runs = {"union, jnp.unique": compiled(unique, *arguments), "union": compiled(ours, *arguments)}
    (ids, labels), union = (call() for call, _ in runs.values())
    np.testing.assert_array_equal(union.ids[0], ids)
    np.testing.assert_array_equal(union.labels[0], labels)
    return runs


def update_runs() -> tuple[dict[str, Callable[[], object]], int]:
    """Build a function for one step of each method; also return |V'|."""
    vocab_size, width, positions, k, capacity = map(int, _SIZES.value)
    rng = np.random.default_rng(0)
    p = 1 / np.arange(1.0, vocab_size + 1)
    targets = jnp.asarray(rng.choice(vocab_size, positions, p=p / p.sum()), jnp.int32)
    near = np.arange(vocab_size)[:, None] // 64 * 64 + rng.integers(0, 96, (vocab_size, k))
    neighbours = jnp.asarray(np.minimum(near, vocab_size - 1), jnp.int32)
    hidden = jnp.asarray(rng.normal(size=(positions, width)), jnp.float32)
    # As arguments, since XLA would constant-fold V' during compilation.
    batch = (hidden, targets, neighbours)
    weights = jnp.ones(positions)
    new_table = jax.jit(lambda: 0.02 * jax.random.normal(jax.random.key(0), (vocab_size, width)))
    dense = optax.adamw(1e-3, b2=0.98, weight_decay=0.01)
    rows = row_adamw(1e-3, b2=0.98, weight_decay=0.01)

    def candidates(targets, neighbours):
        found = union_of_neighbours(neighbours, targets[None], weights[None], capacity)
        return found.ids[0], found.labels[0], found.union_size[0]

    def knn_loss(values, hidden, ids, labels, union_size):
        bias = jnp.where(ids < vocab_size, 0.0, ABSENT)
        return blockwise_softmax_loss(
            hidden, labels, weights, values, bias, num_valid=capacity,
            block_size=DEFAULT_BLOCK_SIZE, num_used=union_size,
        ).mean()  # fmt: skip

    def full(table, state, hidden, targets, neighbours):
        del neighbours
        bias = jnp.zeros(vocab_size)
        grads = jax.grad(lambda table: optax_head(targets, hidden, table, bias) / positions)(table)
        updates, state = dense.update(grads, state, table)
        return optax.apply_updates(table, updates), state

    def knn_dense(table, state, hidden, targets, neighbours):
        ids, labels, union_size = candidates(targets, neighbours)
        values = table.at[ids].get(mode="fill", fill_value=0)
        grads = jax.grad(knn_loss)(values, hidden, ids, labels, union_size)
        grads = jnp.zeros_like(table).at[ids].set(grads, mode="drop")
        updates, state = dense.update(grads, state, table)
        return optax.apply_updates(table, updates), state

    def knn_rows(table, state, hidden, targets, neighbours):
        ids, labels, union_size = candidates(targets, neighbours)
        read = rows.read(table, state, ids)
        grads = jax.grad(knn_loss)(read.values, hidden, ids, labels, union_size)
        return rows.update(grads, read, table, state)

    def stepper(step, init) -> Callable[[], object]:
        compiled = jax.jit(step, donate_argnums=(0, 1))
        table = new_table()
        held = [table, init(table)]

        def run():
            held[:] = compiled(*held, *batch)
            return held

        return run

    steps = {
        "full, dense AdamW": stepper(full, dense.init),
        "k-NN, dense AdamW": stepper(knn_dense, dense.init),
        "k-NN, row AdamW": stepper(knn_rows, rows.init),
    }
    return steps, int(jax.jit(candidates)(targets, neighbours)[2])


def add_rows(report: machine.Report, runs: Runs, what: str) -> None:
    """Add runs to the table; the first is the baseline."""
    calls = {name: call for name, (call, _) in runs.items()}
    seconds = machine.interleaved_medians(calls, flags.FLAGS.repetitions)
    peer = seconds[next(iter(runs))]
    for name, (_, held) in runs.items():
        report.row(name, what, 1e3 * seconds[name], peer / seconds[name], held)


def main(_) -> None:
    report = machine.start()
    columns = {"what": "", "computes": "", "ms": ".1f", "over the first": ".2f", "temp. MB": ".0f"}
    if _STUDY.value in ("all", "heads"):
        sizes = _VOCAB_SIZE.value, _POSITIONS.value, _WIDTH.value
        report.table("V = {:,}, W = {:,}, E = {}".format(*sizes), columns)
        both, forward = head_runs()
        add_rows(report, both, "loss and gradients")
        add_rows(report, forward, "loss")
    if _STUDY.value in ("all", "union"):
        report.table(f"V = {_UNION_VOCAB.value:,}, k = {UNION_K}", columns)
        add_rows(report, union_runs(), "V' and labels")
    if _STUDY.value in ("all", "update"):
        steps, union_size = update_runs()
        said = "V = {}, E = {}, W = {}, k = {}, C = {}".format(*_SIZES.value)
        columns = {"output layer and update": "", "ms": ".1f", "over full": ".1f"}
        report.table(f"{said}, |V'| = {union_size:,}", columns)
        seconds = machine.interleaved_medians(steps, flags.FLAGS.repetitions)
        for name, time in seconds.items():
            report.row(name, 1e3 * time, seconds["full, dense AdamW"] / time)


if __name__ == "__main__":
    app.run(main)
