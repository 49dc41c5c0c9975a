"""Digests of a state, and a search for numbers that are not finite, in one pass."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# For up to so many words, numpy inspects a state faster than XLA compiles a program.
_MOST_WORDS_ON_HOST = 2**20
_Spans = tuple[tuple[int, int], ...]


class Inspection(NamedTuple):
    """Digests of a state and of its parameters, and its arrays that are not finite, or ""."""

    digest: int
    params_digest: int
    fault: str


def inspect(state: Any) -> Inspection:
    """Inspect a `TrainState` or a dictionary {"params": ...}, of dtypes of up to 32 bits.

    A digest of 32 bits detects any change of a single word of any array. It is the sum, modulo
    2^32, of a hash of each word and its index. Integer addition is independent of order, so the
    digest does not depend on the sharding.
    """
    names, arrays = zip(*named(state), strict=True)
    params = [number for number, name in enumerate(names) if name.startswith("params.")]
    spans = ((0, len(arrays)), (params[0], params[-1] + 1))
    words = sum(array.size for array in arrays)
    if jax.process_count() == 1 and words <= _MOST_WORDS_ON_HOST:
        digests, is_finite = _found(jax.device_get(arrays), spans, np, _sums_of_numpy)
    else:
        digests, is_finite = jax.device_get(_on_devices(arrays, spans))
    wrong = [name for name, fits in zip(names, is_finite, strict=True) if not fits]
    more = f" and {len(wrong) - 3} more arrays" if len(wrong) > 3 else ""
    fault = f"numbers that are not finite, in {', '.join(wrong[:3])}{more}" if wrong else ""
    return Inspection(int(digests[0]), int(digests[1]), fault)


def named(state: Any) -> list[tuple[str, Any]]:
    """Return the arrays of a state in order, each with its name, such as "params.table"."""
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), array)
        for path, array in jax.tree.leaves_with_path(state)
    ]


@functools.partial(jax.jit, static_argnums=1)
def _on_devices(arrays: Sequence[jax.Array], spans: _Spans) -> Any:
    # As one program: hosts could run several ones with collectives in different orders, and hang.
    return _found(arrays, spans, jnp, _sums)


def _found(
    arrays: Sequence[Any], spans: _Spans, xp: Any, sums: Callable[[list[Any]], Sequence[Any]]
) -> tuple[Any, Any]:
    """Return the digest of each span (first, end) of arrays, and whether each array is finite."""
    totals = [xp.zeros(1, np.uint32) for _ in spans]  # numpy's scalars would warn of overflow
    is_finite = []
    for number, array in enumerate(arrays):
        array = xp.atleast_1d(array)
        within = [place for place, (first, end) in enumerate(spans) if first <= number < end]
        # The first array of a span has index 0 in its digest.
        words = [_hashed(array, number - spans[place][0], xp) for place in within]
        *found, unfit = sums([*words, (~xp.isfinite(array)).astype(np.uint32)])
        for place, hashes in zip(within, found, strict=True):
            totals[place] = totals[place] + hashes
        is_finite.append(unfit == 0)
    return xp.concatenate(totals), xp.stack(is_finite)


def _sums(operands: list[jax.Array]) -> Sequence[jax.Array]:
    """Sum all operands but the last, and OR the bits of the last, in one pass."""

    def add(one: Sequence[jax.Array], two: Sequence[jax.Array]) -> list[jax.Array]:
        return [*(x + y for x, y in zip(one[:-1], two[:-1], strict=True)), one[-1] | two[-1]]

    zeros = [np.uint32(0)] * len(operands)
    return jax.lax.reduce(operands, zeros, add, range(operands[0].ndim))


def _sums_of_numpy(operands: list[np.ndarray]) -> Sequence[Any]:
    return [*(np.sum(one, dtype=np.uint32) for one in operands[:-1]), np.any(operands[-1])]


def _hashed(array: Any, number: int, xp: Any) -> Any:
    """Hash each word and its index of array `number` of a state, to uint32 of its shape."""
    words = _words(array)
    place = xp.full(words.shape, number * 0x9E3779B9 & 0xFFFFFFFF, np.uint32)
    for axis, size in enumerate(words.shape):
        stride = math.prod(words.shape[axis + 1 :]) & 0xFFFFFFFF
        along = xp.arange(size, dtype=np.uint32) * np.uint32(stride)
        place += along.reshape([size if one == axis else 1 for one in range(words.ndim)])
    return _mixed(words ^ _mixed(place))


def _words(array: Any) -> Any:
    """Return the bits of each element, uint32 of the array's shape."""
    if array.dtype == bool:
        return array.astype(np.uint32)
    return array.view(f"uint{8 * array.dtype.itemsize}").astype(np.uint32)


def _mixed(x: Any) -> Any:
    """Hash uint32 by a bijection that decorrelates neighbouring values."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)
