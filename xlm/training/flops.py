"""Floating-point operations of a traced function, for the utilisation of a device."""

import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def matmul_flops(traced: ClosedJaxpr | Jaxpr) -> float:
    """Count floating-point operations of all matrix products, 2 M N K each, over all devices.

    Takes `jax.jit(f).trace(...).jaxpr` or the result of `jax.make_jaxpr`. Products count once per
    iteration of a loop of known length, and once for a loop of unknown length. A conditional counts
    its costliest branch. Rematerialised products count twice.
    """
    total = 0.0
    for equation in getattr(traced, "jaxpr", traced).eqns:
        name, params = equation.primitive.name, equation.params
        inner = [matmul_flops(jaxpr) for jaxpr in _inner(params)]
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left, out = _shape(equation.invars[0]), _shape(equation.outvars[0])
            total += 2.0 * math.prod(out) * math.prod(left[axis] for axis in contracted)
        elif name == "cond":
            total += max(inner)
        elif name == "scan":
            total += params["length"] * sum(inner)
        elif name == "shard_map":
            # Each device of the manual axes (named differently by jax releases) runs the body.
            (axes,) = (params[name] for name in params if name.endswith("manual_axes"))
            total += math.prod(params["mesh"].shape[axis] for axis in axes) * sum(inner)
        else:
            total += sum(inner)
    return total


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _inner(params: dict[str, Any]) -> list[ClosedJaxpr | Jaxpr]:
    """Return the functions called by an equation."""
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, (ClosedJaxpr, Jaxpr)))
    return [leaf for leaf in leaves if isinstance(leaf, (ClosedJaxpr, Jaxpr))]
