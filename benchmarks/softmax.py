"""Output layers against optax: speed and memory of the exact and the k-NN softmax.

    python -m benchmarks.softmax --cores=1     # some minutes on a CPU; a GPU needs no flag

The baseline of all heads is a plain softmax with optax, on the same hidden states, interleaved in
the same run. Times are medians; memory is the temporary memory of the compiled program. The k-NN
heads are given their candidates, gather their rows and return gradients of the whole table. The
last rows find the candidates of a batch, the union of its targets' lists, against `jnp.unique`.
Losses and unions are checked to agree before they are timed.
"""

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks.machine import describe_machine, interleaved_medians, set_up
from knn_sampling.blockwise import DEFAULT_BLOCK_SIZE, blockwise_softmax_loss
from knn_sampling.candidates import union_of_neighbours
from knn_sampling.losses import ABSENT, candidate_softmax_loss

_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 131_072, "V, words of the heads.")
_POSITIONS = flags.DEFINE_integer("positions", 1024, "W, positions of the heads.")
_WIDTH = flags.DEFINE_integer("width", 256, "D, width of the heads.")
_BLOCK_SIZES = flags.DEFINE_list(
    "block_sizes", ["256", "512", str(DEFAULT_BLOCK_SIZE), "4096", "16384"], "Words of a block."
)
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Timings of each.")
_CORES = flags.DEFINE_integer("cores", 0, "CPU cores to use; 0 for all.")

PARTS = (4, 8, 16)  # V/C of the k-NN heads
PEER = "optax full"
# The union: vocabulary, neighbours and targets of a batch, with capacity for V/4 candidates.
UNION_VOCAB, UNION_K, UNION_TARGETS = 500_000, 50, 2458

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


def exact_heads(targets: jax.Array, block_sizes: list[int]) -> dict[str, Head]:
    """Heads over the whole vocabulary, with equal losses for a zero bias."""
    heads: dict[str, Head] = {PEER: functools.partial(optax_head, targets)}
    for size in block_sizes:
        heads[f"blockwise, {size:,} words"] = functools.partial(blockwise_head, targets, size)
    try:
        tokamax = importlib.import_module("tokamax")  # not a requirement of this project
    except ImportError:
        print("tokamax is not installed; its row is left out.")
    else:
        heads["tokamax"] = lambda hidden, table, bias: tokamax.linear_softmax_cross_entropy_loss(
            hidden, targets, table.T
        )
    return heads


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
    """Build each head with gradients, and the exact heads without."""
    rng = np.random.default_rng(0)
    vocab_size, positions, width = _VOCAB_SIZE.value, _POSITIONS.value, _WIDTH.value
    hidden = jnp.asarray(rng.standard_normal((positions, width)), jnp.float32)
    table = jnp.asarray(rng.standard_normal((vocab_size, width)) / width**0.5, jnp.float32)
    inputs = hidden, table, jnp.zeros(vocab_size)
    targets = jnp.asarray(rng.integers(vocab_size, size=positions), jnp.int32)
    exact = exact_heads(targets, [int(size) for size in _BLOCK_SIZES.value])
    forward = {name: compiled(head, *inputs) for name, head in exact.items()}
    for name, (call, _) in forward.items():
        np.testing.assert_allclose(call(), forward[PEER][0](), rtol=1e-4, err_msg=name)
    every = exact | knn_heads(vocab_size, positions, rng)
    both = {
        name: compiled(jax.value_and_grad(head, argnums=(0, 1, 2)), *inputs)
        for name, head in every.items()
    }
    return both, forward


def union_runs() -> Runs:
    """Build the search for a batch's candidates in random lists, by either method."""
    rng = np.random.default_rng(1)
    lists = rng.integers(UNION_VOCAB, size=(UNION_VOCAB, UNION_K), dtype=np.int32)
    zipf = 1 / np.arange(1.0, UNION_VOCAB + 1)
    targets = rng.choice(UNION_VOCAB, UNION_TARGETS, p=zipf / zipf.sum()).astype(np.int32)
    arguments = jnp.asarray(lists), jnp.asarray(targets)
    capacity = UNION_VOCAB // 4

    def ours(lists, targets):
        weights = jnp.ones((1, len(targets)))
        return union_of_neighbours(lists, targets[None, :], weights, capacity)

    def unique(lists, targets):
        words = jnp.concatenate([lists[targets].reshape(-1), targets])
        ids = jnp.unique(words, size=capacity, fill_value=UNION_VOCAB)
        return ids, jnp.searchsorted(ids, targets)  # cheaper than return_inverse

    runs = {"union, jnp.unique": compiled(unique, *arguments), "union": compiled(ours, *arguments)}
    (ids, labels), union = (call() for call, _ in runs.values())
    np.testing.assert_array_equal(union.ids[0], ids)
    np.testing.assert_array_equal(union.labels[0], labels)
    return runs


def print_rows(runs: Runs, what: str, repetitions: int) -> None:
    """Print rows of the table; the baseline is the first run."""
    seconds = interleaved_medians({name: call for name, (call, _) in runs.items()}, repetitions)
    peer = seconds[next(iter(runs))]
    for name, (_, held) in runs.items():
        cells = f"{1e3 * seconds[name]:.0f}", f"{peer / seconds[name]:.2f}", f"{held:.0f}"
        print(f"| {name} | {what} | {' | '.join(cells)} |", flush=True)


def main(_) -> None:
    set_up(_CORES.value)
    both, forward = head_runs()
    print(f"{describe_machine()}, optax {optax.__version__}")
    print(f"V = {_VOCAB_SIZE.value:,}, W = {_POSITIONS.value:,}, D = {_WIDTH.value}; ", end="")
    print(f"the union: V = {UNION_VOCAB:,}, K = {UNION_K}, W = {UNION_TARGETS:,}.")
    print("The peer is the first row that computes the same.\n")
    print("| what | computes | ms | times as fast as its peer | temporary MB |")
    print("|---|---|---:|---:|---:|")
    print_rows(both, "loss and gradients", _REPETITIONS.value)
    print_rows(forward, "loss", _REPETITIONS.value)
    print_rows(union_runs(), "V' and labels", 3 * _REPETITIONS.value)


if __name__ == "__main__":
    app.run(main)
