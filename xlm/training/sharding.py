"""Device mesh, and the sharding of batches and parameters on it."""

import functools
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from xlm.training.settings import AXES, MeshSettings, as_tuple


def make_mesh(settings: MeshSettings, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Create the mesh over `devices`, by default all; ValueError if `settings` do not fit them."""
    devices = list(devices or jax.devices())
    shape = _mesh_shape(settings, len(devices))
    # Auto: the compiler propagates shardings, as Linen's partitioned modules expect.
    axis_types = (AxisType.Auto,) * len(AXES)
    if settings.slices > 1:
        return Mesh(_across_slices(shape, settings.slices, devices), AXES, axis_types=axis_types)
    return jax.make_mesh(shape, AXES, axis_types=axis_types, devices=devices)


def _across_slices(shape: Sequence[int], slices: int, devices: Sequence[jax.Device]) -> np.ndarray:
    """Order the devices for a data axis that takes one slice after the other."""
    # Devices of a slice share a `slice_index`, or a process if there are as many processes.
    found = {
        name: Counter(getattr(device, name, None) for device in devices)
        for name in ("slice_index", "process_index")
    }
    fitting = [
        name
        for name, sizes in found.items()
        if len(sizes) == slices and len(set(sizes.values())) == 1
    ]
    if not fitting:
        counts = (f"{len(sizes)} by {name}" for name, sizes in found.items())
        raise ValueError(
            f"mesh.slices is {slices}, but the {len(devices)} devices do not form so many groups "
            f"of equal size: {', '.join(counts)}; set mesh.slices to the number of slices or "
            "machines, or to 1 to ignore them"
        )
    within = (shape[0] // slices, *shape[1:])
    across = (slices, *(1 for _ in shape[1:]))
    return mesh_utils.create_hybrid_device_mesh(
        within, across, devices, process_is_granule="slice_index" not in fitting
    )


def make_abstract_mesh(settings: MeshSettings, num_devices: int) -> AbstractMesh:
    """Create the mesh of `settings` without devices, to derive shardings; errors as `make_mesh`."""
    shape = tuple(_mesh_shape(settings, num_devices))
    return AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _mesh_shape(settings: MeshSettings, num_devices: int) -> list[int]:
    """Return the number of devices along each axis, with -1 resolved."""
    shape = [settings.data, settings.fsdp, settings.model]
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = num_devices // max(math.prod(n for n in shape if n != -1), 1)
    if min(shape) < 1 or math.prod(shape) != num_devices:
        raise ValueError(
            f"mesh of data={settings.data}, fsdp={settings.fsdp}, model={settings.model} does not "
            f"fit {num_devices} devices; the three must multiply to it, one of them may be -1"
        )
    if settings.slices < 1 or shape[0] % settings.slices:
        raise ValueError(
            f"mesh.slices is {settings.slices}, must be at least 1 and divide mesh.data, "
            f"{shape[0]}: only the data axis crosses slices"
        )
    return shape


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of batches: first axis over data and fsdp."""
    return NamedSharding(mesh, P(("data", "fsdp")))


def host_parts(mesh: Mesh) -> tuple[tuple[int, ...], int]:
    """Return (indices, n): this host feeds these of n equal parts of each batch, ascending.

    They are the fewest parts with the examples of the host's devices. A mesh in the order of the
    hosts needs one part, a mesh in the order of the links several. Hosts with the same examples, as
    when `model` spans hosts, feed the same parts.

    Raises ValueError if the examples of two hosts overlap only partly.
    """
    held: dict[int, set[int]] = {}  # shards of a batch, by host
    for shard, devices in enumerate(mesh.devices.reshape(-1, mesh.shape["model"])):
        for device in devices:
            held.setdefault(device.process_index, set()).add(shard)
    num_shards = mesh.size // mesh.shape["model"]
    distinct = {frozenset(shards) for shards in held.values()}
    if sum(map(len, distinct)) > num_shards or len(set(map(len, distinct))) > 1:
        sizes = set(Counter(device.process_index for device in mesh.devices.flat).values())
        if len(sizes) > 1:
            raise ValueError(
                f"hosts have {' and '.join(map(str, sorted(sizes)))} devices; use hosts with "
                "equal numbers"
            )
        raise ValueError(
            f"mesh.model is {mesh.shape['model']}: hosts would share only some rows of a batch; "
            "choose a divisor or a multiple of the devices of a host"
        )
    owner = {shard: shards for shards in distinct for shard in shards}
    changes = [shard for shard in range(1, num_shards) if owner[shard] != owner[shard - 1]]
    size = math.gcd(num_shards, *changes)  # shards of a part
    mine = held[jax.process_index()]
    parts = tuple(shard // size for shard in sorted(mine) if shard % size == 0)
    return parts, num_shards // size


def split(batch: np.ndarray, mesh: Mesh) -> jax.Array:
    """Shard a batch, of which every host has a copy, like a training batch."""
    layout = batch_sharding(mesh)
    return jax.make_array_from_callback(batch.shape, layout, lambda index: batch[index])


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Return the number of parts into which the devices split a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def traced_on(mesh: Mesh | AbstractMesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to trace it with the mesh in context; its name stays, for profiles."""

    @functools.wraps(function)
    def on_mesh(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args)

    return on_mesh


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Return the sharding of arrays replicated on every device."""
    return NamedSharding(mesh, P())


def param_shardings(boxed_params, mesh: Mesh | AbstractMesh, settings: MeshSettings):
    """Return shardings of parameters by the rules for their boxes' logical axis names.

    Raises ValueError if the devices of a mesh axis do not divide the parameter's axis.
    """
    specs = nn.get_partition_spec(boxed_params)
    shardings = nn.logical_to_mesh_sharding(specs, mesh, list(settings.rules))
    jax.tree.map_with_path(_check_divides, shardings, nn.unbox(boxed_params))
    return shardings


def split_over_data(arrays: Any) -> Any:
    """Split the last axis of arrays with at least two axes over `data`, too, if it divides them.

    The last axis keeps rows of a table whole: a device updates its columns of the rows that a step
    touches. Arrays of one axis are biases, and counts by row that every device needs. `arrays` are
    shapes, dtypes and shardings.
    """

    def split(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = [*array.sharding.spec, *[None] * array.ndim][: array.ndim]
        used = {axis for entry in spec for axis in as_tuple(entry)}
        axes = (*as_tuple(spec[-1] if spec else None), "data")
        parts = math.prod(array.sharding.mesh.shape[axis] for axis in axes)
        if array.ndim < 2 or "data" in used or array.shape[-1] % parts:
            return array
        sharding = NamedSharding(array.sharding.mesh, P(*spec[:-1], axes))
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    return jax.tree.map(split, arrays)


def _check_divides(path, sharding: NamedSharding, param) -> None:
    for size, entry in zip(param.shape, sharding.spec, strict=False):
        parts = {axis: sharding.mesh.shape[axis] for axis in as_tuple(entry)}
        if size % math.prod(parts.values()):
            factors = " x ".join(f"mesh.{axis}={number}" for axis, number in parts.items())
            raise ValueError(
                f"{jax.tree_util.keystr(path, simple=True, separator='/')} {param.shape} has an "
                f"axis of {size}, but {factors} devices share it and must divide it; change the "
                "size, the mesh or mesh.rules"
            )


def placed(arrays: Any, params: Any) -> Any:
    """Place arrays, of which every host has a copy, on the devices, sharded like parameters.

    `params` are shapes, dtypes and shardings of all parameters. `arrays`, nested like them, are
    values of some. Raises ValueError for an array that is no parameter.
    """
    found = dict(jax.tree.leaves_with_path(params))
    if unknown := [path for path, _ in jax.tree.leaves_with_path(arrays) if path not in found]:
        names = ", ".join(map(jax.tree_util.keystr, unknown))
        raise ValueError(f"the run has no parameters {names}, but its initial ones do")

    def place(path: tuple, array: Any) -> jax.Array:
        like = found[path]
        array = np.asarray(array, like.dtype)
        return jax.make_array_from_callback(like.shape, like.sharding, lambda index: array[index])

    return jax.tree.map_with_path(place, arrays)


def padded_vocab_size(vocab_size: int, multiple: int) -> int:
    """Round `vocab_size` up to a `multiple`, which makes the table shard evenly."""
    padded = -(-vocab_size // multiple) * multiple
    if padded != vocab_size:
        logging.debug("vocabulary of %d padded to %d rows", vocab_size, padded)
    return padded
