"""Muon (Jordan et al. 2024) for the matrices of all layers, with the work split over devices."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from xlm.training.settings import OptimizerSettings


def _is_matrix(path: tuple) -> bool:
    """Return whether a parameter is a matrix of the encoder's layers, by name."""
    return {"layers", "kernel"} <= {getattr(key, "key", None) for key in path}


def _scaled_by_shape(update: jax.Array) -> jax.Array:
    """Scale an update [..., inputs, outputs] by the root of outputs over inputs, at least 1."""
    inputs, outputs = update.shape[-2:]
    return update * max(1, outputs / inputs) ** 0.5


def with_muon(
    settings: OptimizerSettings, schedule: optax.Schedule, adamw: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Build Muon with the rates of `schedule` for all layers' matrices, `adamw` for the rest."""
    muon = optax.chain(
        _orthogonalised_momentum(settings.muon_momentum),
        optax.stateless(lambda updates, _: jax.tree.map(_scaled_by_shape, updates)),
        optax.add_decayed_weights(settings.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )

    def split(tree):
        """Split into matrices and others; each has None for the leaves and boxes of the other."""

        def keep(matrices: bool):
            return jax.tree.map_with_path(
                lambda path, x: x if _is_matrix(path) == matrices else None,
                tree,
                is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned),
            )

        return keep(True), keep(False)

    def init(params):
        matrices, others = split(params)
        return MuonState(muon.init(matrices), adamw.init(others))

    def update(grads, state, params=None):
        of_matrices, of_others = split(grads)
        matrices, others = split(params)
        of_matrices, matrices_state = muon.update(of_matrices, state.matrices, matrices)
        of_others, others_state = adamw.update(of_others, state.others, others)
        updates = jax.tree.map(
            lambda one, two: two if one is None else one,
            of_matrices, of_others, is_leaf=lambda x: x is None,
        )  # fmt: skip
        return updates, MuonState(matrices_state, others_state)

    return optax.GradientTransformation(init, update)


def _orthogonalised_momentum(momentum: float) -> optax.GradientTransformation:
    """Orthogonalise the momentum of matrices [..., inputs, outputs].

    On a mesh, each device orthogonalises some whole matrices and sends them to the others. So
    devices share the arithmetic and send a matrix once (cf. Liu et al. 2025, arXiv 2502.16982).
    """
    # The leading axis of layers is neither inputs nor outputs.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)

    def scaled(beta: float, nesterov: bool) -> optax.GradientTransformation:
        return optax.contrib.scale_by_muon(
            beta=beta, nesterov=nesterov,
            weight_dimension_numbers=lambda tree: jax.tree.map(lambda _: axes, tree),
        )  # fmt: skip

    # Without momentum, `plain` only orthogonalises.
    local, plain = scaled(momentum, True), scaled(0.0, False)

    def update(grads, state, params=None):
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.size <= 1:
            return local.update(grads, state, params)
        count = optax.safe_increment(state.count)
        mean = optax.tree.update_moment(grads, state.mu, momentum, 1)
        ahead = optax.tree.bias_correction(mean, momentum, optax.safe_increment(count))
        now = optax.tree.bias_correction(grads, momentum, count)
        mixed = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, ahead, now)
        packed, unpack = _dealt(mixed, mesh)
        updates, _ = plain.update(packed, plain.init(packed))
        return unpack(updates), state._replace(count=count, mu=mean)

    return optax.GradientTransformation(local.init, update)


def _dealt(tree: Any, mesh: jax.sharding.AbstractMesh) -> tuple[Any, Callable[[Any], Any]]:
    """Stack the matrices of a tree by shape, and deal each stack to the devices of a mesh.

    Returns the stacks [n, rows, columns] by (rows, columns), and the function that undoes it. It
    transposes tall matrices. Zeros pad n to a multiple of the devices.
    """
    constrain = jax.lax.with_sharding_constraint
    leaves, form = jax.tree.flatten(tree)
    # Axis by axis, or the compiler gathers everything. Parameters are whole along `data`: a device
    # picks its part there last. Otherwise the compiler would split and send the momentum as well.
    free = jax.sharding.PartitionSpec.UNCONSTRAINED
    places = [
        jax.sharding.PartitionSpec(("fsdp",), free, free),
        jax.sharding.PartitionSpec(("fsdp", "model")),
        jax.sharding.PartitionSpec(("fsdp", "model", "data")),
    ]
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, leaf in enumerate(leaves):
        groups.setdefault(tuple(sorted(leaf.shape[-2:])), []).append(number)

    def flat(leaf: jax.Array) -> jax.Array:
        found = leaf.reshape(-1, *leaf.shape[-2:])
        return found if found.shape[1] <= found.shape[2] else found.mT

    def stacked(numbers: list[int]) -> jax.Array:
        found = jnp.concatenate([flat(leaves[number]) for number in numbers])
        found = jnp.pad(found, ((0, -len(found) % mesh.size), (0, 0), (0, 0)))
        return functools.reduce(constrain, places, found)

    def unpack(stacks: dict[tuple[int, ...], jax.Array]) -> Any:
        found: dict[int, jax.Array] = {}
        for shape, numbers in groups.items():
            stack, start = functools.reduce(constrain, reversed(places), stacks[shape]), 0
            for number in numbers:
                leaf, size = leaves[number], math.prod(leaves[number].shape[:-2])
                part = stack[start : start + size]
                part = part if leaf.shape[-2] <= leaf.shape[-1] else part.mT
                found[number], start = part.reshape(leaf.shape), start + size
        return jax.tree.unflatten(form, [found[number] for number in range(len(leaves))])

    return {shape: stacked(numbers) for shape, numbers in groups.items()}, unpack


class MuonState(NamedTuple):
    """State of the optimizer "muon", for the layers' matrices and for all other parameters."""

    matrices: Any
    others: Any
