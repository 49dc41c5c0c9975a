"""Checks of code with its own path on accelerators, each in a process of its own.

    python -m benchmarks.accelerator_checks --results=checks.json     # a GPU or TPU; minutes

| check | |
|---|---|
| softmax | blockwise softmax against optax: loss and gradients |
| neighbours | the neighbour index against sorted float64 products |
| row_adamw | row AdamW against dense `optax.adamw`, over steps that touch few rows |
| flash, flash_relative, flash_gated | fused attention against plain: values, gradients |
| export | the training step, exported by `jax.export` and read back, against the step itself |
| deterministic | two runs of equal steps, in two processes, with `--xla_gpu_deterministic_ops` |

The command prints each result at once, and writes it to --results. If a check crashes, hangs or
runs out of memory, the others still run. TensorFlow is not needed. A CPU runs the same checks at
smaller sizes, except those of GPU kernels.
"""

import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks import train_step
from benchmarks.machine import describe_machine
from knn_sampling.blockwise import blockwise_softmax_loss
from knn_sampling.neighbours import nearest_neighbours
from xlm.common import artifacts
from xlm.models import flash_attention
from xlm.training.row_adamw import row_adamw

_CHECKS = flags.DEFINE_list("checks", None, "Checks of the table above; all by default.")
_RESULTS = flags.DEFINE_string("results", None, "JSON file for the results.")
_SECONDS = flags.DEFINE_integer("seconds", 120, "Time limit of a check, in seconds.")
_ONLY = flags.DEFINE_string("only", None, "Internal: run this check in this process.")

_DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
_STEPS = 5
Position = Literal["learned", "relative", "gated"]


class Outcome(NamedTuple):
    """Result of a check: whether it passed (None if it does not apply), and details."""

    passed: bool | None
    detail: str


def check_softmax() -> Outcome:
    """Compare the blockwise softmax with optax on logits of the whole vocabulary."""
    vocab_size, positions, width = (100_000, 1024, 256) if _is_fast() else (3000, 64, 32)
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(positions, width)), jnp.float32)
    table = jnp.asarray(rng.normal(size=(vocab_size, width)) / width**0.5, jnp.float32)
    targets = jnp.asarray(rng.integers(vocab_size, size=positions), jnp.int32)

    def plain(hidden: jax.Array, table: jax.Array) -> jax.Array:
        logits = hidden @ table.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).sum()

    def blocks(hidden: jax.Array, table: jax.Array) -> jax.Array:
        return blockwise_softmax_loss(
            hidden, targets, jnp.ones(positions), table, jnp.zeros(vocab_size),
            num_valid=vocab_size, block_size=4096,
        ).sum()  # fmt: skip

    with jax.default_matmul_precision("highest"):
        found, expected = (
            jax.jit(jax.value_and_grad(function, argnums=(0, 1)))(hidden, table)
            for function in (blocks, plain)
        )
    return _agree(found, expected, 1e-4)


def check_neighbours() -> Outcome:
    """Compare the neighbour lists of some tokens with sorted products."""
    vocab_size, width, k = (100_000, 256, 50) if _is_fast() else (2000, 16, 10)
    rng = np.random.default_rng(0)
    table = rng.normal(size=(vocab_size, width)).astype(np.float32)
    queries = rng.choice(vocab_size, 64, replace=False).astype(np.int32)
    found = nearest_neighbours(
        jnp.asarray(table), k=k, num_valid=vocab_size, query_ids=jnp.asarray(queries)
    )
    scores = table[queries].astype(np.float64) @ table.T.astype(np.float64)
    least = np.sort(scores, axis=1)[:, -k]
    # Rounding in float32 may exchange tokens with nearly equal scores.
    reached = np.take_along_axis(scores, np.asarray(found), axis=1) >= least[:, None] - 1e-4
    distinct = all(len(set(row)) == k for row in np.asarray(found).tolist())
    return Outcome(
        bool(reached.all()) and distinct, f"{reached.mean():.2%} of {reached.size} neighbours"
    )


def check_row_adamw() -> Outcome:
    """Compare row AdamW with dense AdamW over steps on random rows."""
    vocab_size, width, touched = (100_000, 256, 4096) if _is_fast() else (500, 16, 20)
    rng = np.random.default_rng(0)
    start = jnp.asarray(rng.normal(size=(vocab_size, width)), jnp.float32)
    by_rows = row_adamw(optax.constant_schedule(1e-3), weight_decay=0.01)
    dense = optax.adamw(1e-3, weight_decay=0.01)
    read, update = jax.jit(by_rows.read), jax.jit(by_rows.update)

    @jax.jit
    def dense_step(table, state, ids, gradients):
        whole = jnp.zeros_like(table).at[ids].set(gradients)
        updates, state = dense.update(whole, state, table)
        return optax.apply_updates(table, updates), state

    one, two = (start, by_rows.init(start)), (start, dense.init(start))
    for _ in range(20):
        ids = jnp.asarray(rng.choice(vocab_size, touched, replace=False), jnp.int32)
        gradients = jnp.asarray(rng.normal(size=(touched, width)), jnp.float32)
        one = update(gradients, read(*one, ids), *one)
        two = dense_step(*two, ids, gradients)
    found = jax.jit(by_rows.apply_pending_updates)(*one)[0]
    return _agree(found - start, two[0] - start, 0.01)


def check_flash(position: Position) -> Outcome:
    """Compare fused attention with plain attention, with dropout: values and all gradients."""
    if jax.default_backend() != "gpu":
        return Outcome(None, "needs a GPU")
    options = {"has_bias": position != "learned", "is_gated": position == "gated"}
    kinds = itertools.product((32, 64, 128), ("float32", "bfloat16"), (False, True))
    found = {
        f"heads of {size} in {dtype}, causal {is_causal}": flash_attention.fault(
            size, dtype, is_causal=is_causal, **options
        )
        for size, dtype, is_causal in kinds
    }
    faults = [f"{name}: {said}" for name, said in found.items() if said]
    return Outcome(not faults, "; ".join(faults) or f"{len(found)} kinds agree")


def check_export() -> Outcome:
    """Compare a training step with its export, written and read back."""
    case = _case()
    state, batch = case.state, case.batches[0]

    def step(state: Any, batch: Any) -> Any:
        return case.functions.train_step(case.objective, state, batch)[0]

    # Exports hold only arrays.
    leaves, layout = jax.tree.flatten((state, batch))

    def of_leaves(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(step(*jax.tree.unflatten(layout, leaves)))

    exported = jax.export.export(jax.jit(of_leaves))(*leaves)
    written = exported.serialize()
    found = jax.export.deserialize(written).call(*leaves)
    expected = jax.tree.leaves(step(state, batch))
    return _agree(found, expected, 1e-4)._replace(
        detail=f"{len(written):,} bytes for {exported.platforms}"
    )


def check_trained() -> Outcome:
    """Return a digest of the state after a few steps, for `check_deterministic`."""
    case = _case()
    for number in range(_STEPS):
        case.state, _ = case.functions.train_step(
            case.objective, case.state, case.batches[number % len(case.batches)]
        )
    hasher = hashlib.sha256()
    for leaf in jax.tree.leaves(jax.device_get(case.state)):
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return Outcome(True, hasher.hexdigest()[:16])


def check_deterministic() -> Outcome:
    """Compare two runs with the deterministic flags; also two without, which may differ."""
    equal = {}
    for name, more in (("with", _DETERMINISTIC), ("without", "")):
        found = [in_process("trained", more) for _ in range(2)]
        if not all(one.passed for one in found):
            return Outcome(False, f"{name} the flags: {found[0].detail}; {found[1].detail}")
        equal[name] = found[0] == found[1]
    said = ", ".join(
        f"{'equal' if same else 'not equal'} {name} flags" for name, same in equal.items()
    )
    return Outcome(equal["with"], f"two runs of {_STEPS} steps: {said}")


CHECKS: dict[str, Callable[[], Outcome]] = {
    "softmax": check_softmax,
    "neighbours": check_neighbours,
    "row_adamw": check_row_adamw,
    "flash": lambda: check_flash("learned"),
    "flash_relative": lambda: check_flash("relative"),
    "flash_gated": lambda: check_flash("gated"),
    "export": check_export,
    "deterministic": check_deterministic,
}
_WITHIN = {"trained": check_trained, "machine": lambda: Outcome(True, describe_machine())}
# It starts processes, and must leave them the device's memory.
_WITHOUT_DEVICE = ("deterministic",)


def _is_fast() -> bool:
    return jax.default_backend() != "cpu"


def _case() -> train_step.Case:
    """Return a training step of a small model, with k-NN sampling and row AdamW."""
    return train_step.Case(train_step.PRESETS["small"], train_step.KNN, 4096, 128, searches=False)


def _agree(found: Any, expected: Any, tolerance: float) -> Outcome:
    """Return whether arrays agree, within a share of the largest value of each."""
    worst = 0.0
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if not jnp.issubdtype(other.dtype, jnp.floating):
            if not np.array_equal(_numpy(one), _numpy(other)):
                return Outcome(False, "integers differ")
            continue
        a, b = _numpy(one).astype(np.float64), _numpy(other).astype(np.float64)
        if not np.isfinite(a).all():
            return Outcome(False, "values are not finite")
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12)))
    return Outcome(worst <= tolerance, f"differ by {worst:.1e} of the largest value")


def _numpy(array: Any) -> np.ndarray:
    """Return an array on the host; a key as its words."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def in_process(name: str, more_flags: str = "") -> Outcome:
    """Run a check in its own process, with more XLA flags."""
    # XLA takes a blank for a file name.
    xla_flags = f"{os.environ.get('XLA_FLAGS', '')} {more_flags}".strip()
    environment = {**os.environ, "XLA_FLAGS": xla_flags}
    command = [sys.executable, "-m", "benchmarks.accelerator_checks", f"--only={name}"]
    limit = _SECONDS.value * (4 if name in _WITHOUT_DEVICE else 1)
    command.append(f"--seconds={_SECONDS.value}")
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, f"did not end within {limit} s (--seconds)")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode:
        return Outcome(False, f"status {done.returncode}: {lines[-1][:300] if lines else ''}")
    return Outcome(*json.loads(lines[-1]))


def main(_) -> None:
    if _ONLY.value:
        print(json.dumps({**CHECKS, **_WITHIN}[_ONLY.value]()))
        return
    chosen = _CHECKS.value or list(CHECKS)
    if unknown := sorted(set(chosen) - set(CHECKS)):
        raise app.UsageError(f"--checks: there are no {unknown}; choose from {', '.join(CHECKS)}")
    machine = in_process("machine").detail
    print(f"{machine}\n\n| check | | seconds | |\n|---|---|---:|---|", flush=True)
    found: dict[str, Any] = {}
    for name in chosen:
        start = time.monotonic()
        outcome = in_process(name)
        seconds = round(time.monotonic() - start, 1)
        found[name] = {**outcome._asdict(), "seconds": seconds}
        if _RESULTS.value:
            artifacts.write_json(_RESULTS.value, {"machine": machine, "checks": found})
        said = {True: "passed", False: "FAILED", None: "left out"}[outcome.passed]
        print(f"| {name} | {said} | {seconds} | {outcome.detail} |", flush=True)
    sys.exit(int(any(one["passed"] is False for one in found.values())))


if __name__ == "__main__":
    app.run(main)
