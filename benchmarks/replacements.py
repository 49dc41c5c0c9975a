"""Classes drawn from the softmax in blocks: time and memory against materialised logits.

    python -m benchmarks.replacements --cores=1     # some minutes on a CPU; a GPU needs no flag

The peer materialises the logits [W, V] and calls `jax.random.categorical`, interleaved in the same
run. Two more rows set the scale: the blockwise loss with its gradients, which a training step
computes at the same size, and the floor, the products of the logits and one pass over them. Times
are medians; memory is the temporary memory of the compiled program, compiled only for the largest
vocabularies. That both draw from the same distribution is a matter of tests/knn_sampling.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.machine import describe_machine, interleaved_medians, set_up
from knn_sampling.blockwise import blockwise_softmax_loss, vocabulary_block_size
from knn_sampling.draws import draw_from_table

_VOCAB_SIZES = flags.DEFINE_list("vocab_sizes", ["30000", "250000", "500000"], "V.")
_TIMED_UP_TO = flags.DEFINE_integer("timed_up_to", 250_000, "Largest V to time, not only compile.")
_WIDTHS = flags.DEFINE_list("widths", ["128", "768"], "E, widths of the table.")
_POSITIONS = flags.DEFINE_integer("positions", 512, "W, masked positions.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Timings of each.")
_CORES = flags.DEFINE_integer("cores", 0, "CPU cores to use; 0 for all.")

PEER = "materialised logits"


def materialised(key, hidden, table, bias):
    logits = hidden @ table.T + bias[None, :]
    return jax.random.categorical(key, logits), logits.argmax(axis=1)


def in_blocks(key, hidden, table, bias):
    return draw_from_table(
        key,
        hidden,
        jnp.ones(len(hidden)),
        table,
        bias,
        temperature=1.0,
        num_valid=len(table),
        block_size=vocabulary_block_size(),
    )


def loss_with_gradients(_, hidden, table, bias):
    def loss(hidden, table, bias):
        return blockwise_softmax_loss(
            hidden,
            jnp.zeros(len(hidden), jnp.int32),
            jnp.ones(len(hidden)),
            table,
            bias,
            num_valid=len(table),
            block_size=vocabulary_block_size(),
        ).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(hidden, table, bias)


def floor(_, hidden, table, bias):
    """Sum of exp(logits) over whole blocks, without the running maximum that makes it safe."""
    size = vocabulary_block_size()

    def visit(i, total):
        rows = jax.lax.dynamic_slice_in_dim(table, i * size, size)
        logits = jnp.dot(rows, hidden.T, preferred_element_type=jnp.float32)
        logits += jax.lax.dynamic_slice_in_dim(bias, i * size, size)[:, None]
        return total + jnp.exp(logits).sum(axis=0)

    return jax.lax.fori_loop(0, -(-len(table) // size), visit, jnp.zeros(len(hidden)))


ROWS: dict[str, Callable[..., Any]] = {
    PEER: materialised,
    "in blocks": in_blocks,
    "blockwise loss and gradients": loss_with_gradients,
    "floor": floor,
}


def print_rows(vocab_size: int, width: int, timed: bool) -> None:
    """Print the rows of the table for one size."""
    positions = _POSITIONS.value
    shapes = (positions, width), (vocab_size, width), (vocab_size,)
    abstract = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    key = jax.random.key(0)
    programs = {name: jax.jit(f).lower(key, *abstract).compile() for name, f in ROWS.items()}
    seconds = dict.fromkeys(ROWS, math.nan)
    if timed:
        rng = np.random.default_rng(0)
        hidden, table, bias = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in shapes)
        arguments = key, hidden, table / width**0.5, bias
        calls = {name: functools.partial(f, *arguments) for name, f in programs.items()}
        seconds = interleaved_medians(calls, _REPETITIONS.value)
    for name, program in programs.items():
        memory = program.memory_analysis()  # None on some backends
        held = memory.temp_size_in_bytes / 1e6 if memory else math.nan
        times = f"{1e3 * seconds[name]:.0f} | {seconds[name] / seconds[PEER]:.2f}" if timed else "|"
        print(f"| {vocab_size:,} | {width} | {name} | {times} | {held:.0f} |", flush=True)


def main(_) -> None:
    set_up(_CORES.value)
    print(f"{describe_machine()}; W = {_POSITIONS.value}\n")
    print("| V | E | what | ms | times its peer's | temporary MB |")
    print("|---:|---:|---|---:|---:|---:|")
    for vocab_size in map(int, _VOCAB_SIZES.value):
        for width in map(int, _WIDTHS.value):
            print_rows(vocab_size, width, timed=vocab_size <= _TIMED_UP_TO.value)


if __name__ == "__main__":
    app.run(main)
