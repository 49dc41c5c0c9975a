"""Attention of one layer with each position encoding: time and memory of loss and gradients.

    python -m benchmarks.attention --cores=1              # a minute on a CPU
    python -m benchmarks.attention --batch_size=64 --length=512 --heads=12 --head_size=64 \\
        --dtype=bfloat16 --kernels=xla,cudnn              # on a GPU; on a TPU xla,splash

The baseline is `jax.nn.dot_product_attention` without positions, interleaved in the same run: with
jax's automatic gradient, a mask of packed segments, and no bias. "array" rows give that function a
gated bias as an array [B, H, L, L]; all others are the implementations of `xlm.models.attention`,
for given queries, keys and values. Implementations of the same function are checked to agree before
they are timed.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.machine import describe_machine, interleaved_medians, set_up
from xlm.models.masks import segment_mask
from xlm.models.positions import DistanceBias, rotate
from xlm.models.segment_attention import segment_attention
from xlm.models.softmax_attention import attend

_BATCH_SIZE = flags.DEFINE_integer("batch_size", 16, "B, sequences.")
_LENGTH = flags.DEFINE_integer("length", 128, "L, tokens of a sequence.")
_HEADS = flags.DEFINE_integer("heads", 4, "H, heads.")
_HEAD_SIZE = flags.DEFINE_integer("head_size", 32, "Width of a head.")
_SEGMENTS = flags.DEFINE_integer("segments", 6, "Segments of a sequence.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Type of activations.")
_KERNELS = flags.DEFINE_list("kernels", ["xla"], "Of xla, cudnn (GPU), splash (TPU).")
_REPETITIONS = flags.DEFINE_integer("repetitions", 25, "Timings of each.")
_CORES = flags.DEFINE_integer("cores", 0, "CPU cores to use; 0 for all.")

PEER = "none, jax.nn.dot_product_attention"
# Implementations of the gated bias with equal outputs.
ARRAY, FACTORS = "gated, bias as an array", "gated"
# The same of none.
PLAIN = (PEER, "none", "none, cudnn", "none, splash")
Inputs = dict[str, jax.Array]
Peer = Literal["xla", "cudnn"]


def inputs() -> Inputs:
    rng = np.random.default_rng(0)
    sequences = (_BATCH_SIZE.value, _LENGTH.value)
    by_head = (*sequences, _HEADS.value, _HEAD_SIZE.value)

    def normal(*shape: int, dtype: str = "float32") -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    return {
        **{name: normal(*by_head, dtype=_DTYPE.value) for name in ("query", "keys", "values")},
        "by_distance": normal(_HEADS.value, 2 * _LENGTH.value - 1),
        "gate": 1 + jnp.abs(normal(*by_head[:3])),
    }


def forms(segments: jax.Array) -> dict[str, Callable[[Inputs], jax.Array]]:
    """Functions of `inputs()`, [B, L, H, D / H]: the selected implementations and the baseline."""
    mask = segment_mask(segments)
    positions = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)

    def dot_product(x: Inputs, kernel: Peer = "xla", bias: jax.Array | None = None) -> jax.Array:
        whole = jnp.broadcast_to(mask, (*mask.shape[:2], *[segments.shape[1]] * 2))
        return jax.nn.dot_product_attention(
            x["query"], x["keys"], x["values"], bias=bias, mask=whole, implementation=kernel
        )

    def bias_of(x: Inputs) -> jax.Array:
        return DistanceBias(x["by_distance"], segments).matrix()

    def array(x: Inputs) -> jax.Array:
        by_row = jnp.moveaxis(x["gate"], 1, 2)[..., None]
        return dot_product(x, bias=(bias_of(x) * by_row).astype(x["query"].dtype))

    def rotary(x: Inputs) -> jax.Array:
        turned = {name: rotate(x[name], positions, 10_000.0) for name in ("query", "keys")}
        return ours({**x, **turned})

    def ours(x: Inputs, *bias: jax.Array) -> jax.Array:
        return attend(x["query"], x["keys"], x["values"], mask, *bias)

    def by_segments(x: Inputs, kernel: Callable[..., jax.Array], *rest) -> jax.Array:
        return kernel(x["query"], x["keys"], x["values"], *rest, segments)

    found: dict[str, Callable[[Inputs], jax.Array]] = {PEER: dot_product}
    if "xla" in _KERNELS.value:
        found |= {
            "none": ours,
            "rotary": rotary,
            "relative": lambda x: ours(x, bias_of(x)),
            FACTORS: lambda x: ours(x, bias_of(x), x["gate"]),
            ARRAY: array,
        }
    if "cudnn" in _KERNELS.value:
        found["none, cudnn"] = functools.partial(dot_product, kernel="cudnn")
    if "splash" in _KERNELS.value:
        found["none, splash"] = lambda x: by_segments(x, segment_attention)
    return found


def main(_) -> None:
    set_up(_CORES.value)
    given = inputs()
    segments = jnp.sort(
        jax.random.randint(
            jax.random.key(0), (_BATCH_SIZE.value, _LENGTH.value), 0, _SEGMENTS.value
        ),
        axis=1,
    )
    programs = {}
    for name, form in forms(segments).items():

        def loss(x: Inputs, form=form) -> tuple[jax.Array, jax.Array]:
            output = form(x)
            return (output.astype(jnp.float32) ** 2).sum(), output

        step = jax.jit(jax.value_and_grad(loss, has_aux=True))
        programs[name] = step.lower(given).compile()
    tolerance = 1e-4 if _DTYPE.value == "float32" else 0.05
    for names in ((ARRAY, FACTORS), PLAIN):
        same = [programs[name](given)[0][1] for name in names if name in programs]
        for output in same[1:]:
            found, expected = (np.asarray(x, np.float32) for x in (output, same[0]))
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)

    runs = {name: functools.partial(program, given) for name, program in programs.items()}
    seconds = interleaved_medians(runs, _REPETITIONS.value)
    print(describe_machine())
    print(
        f"B = {_BATCH_SIZE.value}, L = {_LENGTH.value}, H = {_HEADS.value}, "
        f"D / H = {_HEAD_SIZE.value}, {_DTYPE.value}.\n"
    )
    print("| positions | ms | times as long as the peer | temporary MB |")
    print("|---|---:|---:|---:|")
    for name, program in programs.items():
        memory = program.memory_analysis()  # None on some backends
        held = memory.temp_size_in_bytes / 1e6 if memory else math.nan
        ratio = seconds[name] / seconds[PEER]
        print(f"| {name} | {1e3 * seconds[name]:.2f} | {ratio:.2f} | {held:.1f} |")


if __name__ == "__main__":
    app.run(main)
