"""The mesh, and where every array of the state lives on it."""

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXES = ("data", "fsdp", "model")


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """The mesh and the rules that lay arrays on it; the `mesh` section of a config.

    Attributes:
      data, fsdp, model: devices along each axis; -1, once, for all that are left.
      vocab_multiple: the embedding table is padded to a multiple of so many rows, so that it splits
        evenly; a multiple of the devices it is split over.
      rules: (logical axis, mesh axis or None) pairs; the first that matches counts.
    """

    data: int
    fsdp: int
    model: int
    vocab_multiple: int
    rules: tuple[tuple[str, str | None], ...]

    def axes_of(self, name: str) -> tuple[str, ...]:
        """Mesh axes that a logical axis is split over."""
        for logical, axes in self.rules:
            if logical == name:
                return (axes,) if isinstance(axes, str) else tuple(axes or ())
        return ()


def make_mesh(settings: MeshSettings, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `settings` over `devices`, by default all of them.

    Raises:
      ValueError: the axes do not multiply to the number of devices.
    """
    devices = list(devices or jax.devices())
    shape = _mesh_shape(settings, len(devices))
    # Auto: the compiler propagates shardings, which is what Linen's partitioned modules expect.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def make_abstract_mesh(settings: MeshSettings, num_devices: int) -> AbstractMesh:
    """The mesh of `settings` over devices that need not exist, to lay arrays out by.

    Raises:
      ValueError: as `make_mesh`.
    """
    shape = tuple(_mesh_shape(settings, num_devices))
    return AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _mesh_shape(settings: MeshSettings, num_devices: int) -> list[int]:
    """Devices along each axis, all given."""
    shape = [settings.data, settings.fsdp, settings.model]
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = num_devices // max(math.prod(n for n in shape if n != -1), 1)
    if min(shape) < 1 or math.prod(shape) != num_devices:
        raise ValueError(
            f"mesh of data={settings.data}, fsdp={settings.fsdp}, model={settings.model} does not "
            f"fit {num_devices} devices; the three must multiply to it, one of them may be -1"
        )
    return shape


def batch_sharding(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Batches are split over their first axis, by data and fsdp."""
    return NamedSharding(mesh, P(("data", "fsdp")))


def host_part(mesh: Mesh) -> tuple[int, int]:
    """Which part of each batch this host feeds: (part, number of equal parts).

    Hosts that hold the same rows, as they do where `model` goes across hosts, feed the same part.

    Raises:
      ValueError: two hosts hold some rows in common and others not.
    """
    held: dict[int, set[int]] = {}  # shards of a batch, by host
    for shard, devices in enumerate(mesh.devices.reshape(-1, mesh.shape["model"])):
        for device in devices:
            held.setdefault(device.process_index, set()).add(shard)
    parts = sorted({tuple(sorted(shards)) for shards in held.values()})
    if sum(map(len, parts)) > mesh.size // mesh.shape["model"] or len(set(map(len, parts))) > 1:
        raise ValueError(
            f"mesh.model is {mesh.shape['model']}: hosts would share some rows of a batch and not "
            "others; choose a divisor or a multiple of the devices of a host"
        )
    return parts.index(tuple(sorted(held[jax.process_index()]))), len(parts)


def split(batch: np.ndarray, mesh: Mesh) -> jax.Array:
    """A batch that every host holds, split over the devices like one of training."""
    layout = batch_sharding(mesh)
    return jax.make_array_from_callback(batch.shape, layout, lambda index: batch[index])


def num_batch_shards(mesh: Mesh | AbstractMesh) -> int:
    """Into how many parts the devices split a batch."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def traced_on(mesh: Mesh | AbstractMesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the mesh in context while it is traced; models lay out activations by it."""

    def on_mesh(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args)

    return on_mesh


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, P())


def param_shardings(boxed_params, mesh: Mesh | AbstractMesh, settings: MeshSettings):
    """Shardings of parameters that carry logical axis names, as the rules say.

    Args:
      boxed_params: parameters (or their shapes) boxed by `nn.with_logical_partitioning`.
      mesh: see `make_mesh`.
      settings: the rules.
    """
    specs = nn.get_partition_spec(boxed_params)
    return nn.logical_to_mesh_sharding(specs, mesh, list(settings.rules))


def placed(arrays, abstract):
    """Arrays that every host holds, on the devices that `abstract` lays them on."""
    return jax.tree.map(
        lambda array, like: jax.make_array_from_callback(
            like.shape, like.sharding, lambda index: np.asarray(array, like.dtype)[index]
        ),
        arrays,
        abstract,
    )


def padded_vocab_size(vocab_size: int, multiple: int) -> int:
    """`vocab_size` rounded up, so that the table splits evenly over any mesh axis in use."""
    padded = -(-vocab_size // multiple) * multiple
    if padded != vocab_size:
        logging.info("vocabulary of %d padded to %d rows", vocab_size, padded)
    return padded
