"""Vocabulary cost of a step, output layer and embedding update: k-NN against full softmax.

    python -m benchmarks.head_and_update

Forward and backward pass of the output layer, then AdamW on the table. Full: optax's cross-entropy
over all V tokens and `optax.adamw` on [V, E]. k-NN: the union of the targets' neighbours, reading
the up-to-date rows, the softmax over them, and either `row_adamw` on these rows or their gradient
scattered into [V, E] for `optax.adamw`. Targets follow Zipf's law, neighbour lists are clusters of
tokens, as after some training. One core by default (--cores).
"""

from collections.abc import Callable

from absl import app, flags

from benchmarks import machine

_CORES = flags.DEFINE_integer("cores", 1, "Cores to use; 0 for all.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 524_288, "V.")
_WIDTH = flags.DEFINE_integer("width", 128, "E.")
_TARGETS = flags.DEFINE_integer("targets", 512, "W.")
_K = flags.DEFINE_integer("k", 50, "Neighbours a target.")
_CAPACITY = flags.DEFINE_integer("capacity", 16_384, "C.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Timings of each.")


def cases() -> tuple[dict[str, Callable[[], object]], int]:
    """Build a function for one step by each method; and |V'|."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from knn_sampling.blockwise import DEFAULT_BLOCK_SIZE, blockwise_softmax_loss
    from knn_sampling.candidates import union_of_neighbours
    from knn_sampling.losses import ABSENT
    from xlm.training.row_adamw import row_adamw

    vocab_size, width = _VOCAB_SIZE.value, _WIDTH.value
    rng = np.random.default_rng(0)
    p = 1 / np.arange(1.0, vocab_size + 1)
    targets = jnp.asarray(rng.choice(vocab_size, _TARGETS.value, p=p / p.sum()), jnp.int32)
    near = np.arange(vocab_size)[:, None] // 64 * 64 + rng.integers(0, 96, (vocab_size, _K.value))
    neighbours = jnp.asarray(np.minimum(near, vocab_size - 1), jnp.int32)
    hidden = jnp.asarray(rng.normal(size=(_TARGETS.value, width)), jnp.float32)
    # Passed as arguments, since XLA would constant-fold V' during compilation.
    batch = (hidden, targets, neighbours)
    weights = jnp.ones(_TARGETS.value)
    new_table = jax.jit(lambda: 0.02 * jax.random.normal(jax.random.key(0), (vocab_size, width)))
    dense = optax.adamw(1e-3, b2=0.98, weight_decay=0.01)
    rows = row_adamw(1e-3, b2=0.98, weight_decay=0.01)

    def candidates(targets, neighbours):
        found = union_of_neighbours(neighbours, targets[None], weights[None], _CAPACITY.value)
        return found.ids[0], found.labels[0], found.union_size[0]

    def knn_loss(values, hidden, ids, labels, union_size):
        return blockwise_softmax_loss(
            hidden,
            labels,
            weights,
            values,
            jnp.where(ids < vocab_size, 0.0, ABSENT),
            num_valid=_CAPACITY.value,
            block_size=DEFAULT_BLOCK_SIZE,
            num_used=union_size,
        ).mean()

    def full(table, state, hidden, targets, neighbours):
        del neighbours

        def loss(table):
            logits = jnp.dot(hidden, table.T)
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        updates, state = dense.update(jax.grad(loss)(table), state, table)
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


def main(_) -> None:
    machine.set_up(_CORES.value)
    steps, union_size = cases()
    times = machine.interleaved_medians(steps, _REPETITIONS.value)
    print(machine.describe_machine())
    print(
        f"V = {_VOCAB_SIZE.value:,}, E = {_WIDTH.value}, W = {_TARGETS.value}, k = {_K.value}, "
        f"C = {_CAPACITY.value:,}, |V'| = {union_size:,}\n"
    )
    print("| output layer and update | ms | over full |\n|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * seconds:.1f} | {times['full, dense AdamW'] / seconds:.1f}x |")


if __name__ == "__main__":
    app.run(main)
