"""Valid and invalid meshes, settings of the loop, and the table of parameters."""

import dataclasses
import math
import types
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

from xlm.training import sharding
from xlm.training.settings import AXES, MeshSettings, TrainSettings
from xlm.training.sharding import host_parts, make_mesh, padded_vocab_size, param_shardings
from xlm.training.state import parameter_table


def settings(data: int, fsdp: int, model: int) -> MeshSettings:
    return MeshSettings(data=data, fsdp=fsdp, model=model, vocab_multiple=8, rules=())


class MeshTest(parameterized.TestCase):
    @parameterized.parameters(
        ((2, 2, 2), (2, 2, 2)), ((-1, 1, 1), (8, 1, 1)), ((2, -1, 2), (2, 2, 2)),
        ((8, 1, -1), (8, 1, 1)),
    )  # fmt: skip
    def test_axes(self, wanted, expected):
        mesh = make_mesh(settings(*wanted))
        self.assertEqual(mesh.shape, dict(zip(("data", "fsdp", "model"), expected, strict=True)))
        self.assertEqual(set(mesh.devices.flat), set(jax.devices()))

    @parameterized.parameters(
        (1, 1, 1), (4, 4, 1), (-1, 3, 1), (-1, -1, 1), (-1, 0, 1), (-2, -4, 1), (0, 8, 1)
    )
    def test_axes_that_do_not_fit(self, data, fsdp, model):
        error = f"data={data}, fsdp={fsdp}, model={model} does not fit 8 devices"
        with self.assertRaisesRegex(ValueError, error):
            make_mesh(settings(data, fsdp, model))


class TableAxesTest(parameterized.TestCase):
    @parameterized.parameters(
        ((), (), ()),
        ((("vocab", None),), (), ()),
        ((("vocab", "model"), ("mlp", "model"), ("embed", "fsdp")), ("model",), ("fsdp",)),
        ((("vocab", ("fsdp", "model")), ("embed", "fsdp")), ("fsdp", "model"), ()),
        ((("embed", "fsdp"), ("vocab", ("fsdp", "model"))), (), ("fsdp",)),
    )
    def test_they_are_those_of_its_parameter(self, rules, rows, columns):
        of_rules = dataclasses.replace(settings(2, 2, 2), rules=rules)
        self.assertEqual(of_rules.table_axes(), (rows, columns))
        shape = jax.ShapeDtypeStruct((8, 4), np.float32)
        table = nn.LogicallyPartitioned(shape, ("vocab", "embed"))
        found = param_shardings(table, make_mesh(of_rules), of_rules)
        entries = (axes[0] if len(axes) == 1 else axes or None for axes in (rows, columns))
        self.assertEqual(found.spec, PartitionSpec(*entries))

    def test_devices_that_do_not_divide_an_axis(self):
        rules = (("vocab", "model"), ("embed", ("data", "fsdp")))
        of_rules = dataclasses.replace(settings(2, 2, 2), rules=rules)
        shape = jax.ShapeDtypeStruct((8, 6), np.float32)
        boxed = {"embeddings": {"table": nn.LogicallyPartitioned(shape, ("vocab", "embed"))}}
        message = r"embeddings/table \(8, 6\) .* of 6, but mesh.data=2 x mesh.fsdp=2 devices"
        with self.assertRaisesRegex(ValueError, message):
            param_shardings(boxed, make_mesh(of_rules), of_rules)


class SlicesTest(parameterized.TestCase):
    """Meshes over several slices or machines, with devices that name theirs."""

    def devices_of(self, wanted, places: str, *names: str) -> np.ndarray:
        """Devices of a mesh over two slices; `places` has a digit per name and device."""
        devices = []
        for number, place in enumerate(places.split()):
            of_place = dict(zip(names, map(int, place), strict=True))
            devices.append(
                types.SimpleNamespace(id=number, platform="cpu", device_kind="cpu", **of_place)
            )
        wanted = dataclasses.replace(settings(*wanted), slices=2)
        with mock.patch.object(sharding, "Mesh", lambda devices, axes, axis_types: devices):
            return make_mesh(wanted, devices)

    @parameterized.parameters(
        ((-1, 1, 2), "0 1 0 1 0 1 0 1", ("slice_index",), [0, 2, 4, 6, 1, 3, 5, 7]),
        ((2, 4, 1), "0 0 0 0 1 1 1 1", ("slice_index",), [0, 1, 2, 3, 4, 5, 6, 7]),
        # Processes are slices if devices name none. A slice may have several processes.
        ((4, 1, 1), "1 1 0 0", ("process_index",), [2, 3, 0, 1]),
        ((4, 1, 1), "10 11 02 03", ("slice_index", "process_index"), [2, 3, 0, 1]),
    )
    def test_only_data_goes_across_slices(self, wanted, places, names, expected):
        found = self.devices_of(wanted, places, *names)
        self.assertEqual(found.shape, (len(expected) // math.prod(wanted[1:]), *wanted[1:]))
        self.assertEqual([one.id for one in found.flat], expected)

    def test_every_host_feeds_its_slice(self):
        axes = (4, 1, 2)
        devices = self.devices_of(axes, "1 0 0 1 1 0 0 1", "process_index")
        shape = dict(zip(AXES, axes, strict=True))
        mesh = types.SimpleNamespace(devices=devices, shape=shape, size=8)
        with mock.patch.object(jax, "process_index", return_value=1):
            self.assertEqual(host_parts(mesh), ((1,), 2))

    @parameterized.parameters(
        ((8, 1, 1), 3, "must be at least 1 and divide mesh.data, 8"),
        ((1, 8, 1), 2, "must be at least 1 and divide mesh.data, 1"),
        ((8, 1, 1), 0, "mesh.slices is 0"),
        ((8, 1, 1), 2, "mesh.slices is 2, but the 8 devices .* 1 by slice_index, 1 by process"),
    )
    def test_slices_that_do_not_fit(self, wanted, slices: int, message: str):
        with self.assertRaisesRegex(ValueError, message):
            make_mesh(dataclasses.replace(settings(*wanted), slices=slices))

    def test_slices_of_unequal_size(self):
        with self.assertRaisesRegex(ValueError, "of equal size: 2 by slice_index"):
            self.devices_of((8, 1, 1), "0 0 0 1 1 1 1 1", "slice_index")

    @parameterized.parameters((640, 128, 640), (641, 128, 768), (5, 1, 5))
    def test_it_is_the_next_multiple(self, vocab_size, multiple, expected):
        self.assertEqual(padded_vocab_size(vocab_size, multiple), expected)


class HostPartsTest(parameterized.TestCase):
    def parts_of(self, host: int, shape: tuple[int, int, int], hosts: str):
        devices = np.array([types.SimpleNamespace(process_index=int(host)) for host in hosts])
        axes = dict(zip(AXES, shape, strict=True))
        mesh = types.SimpleNamespace(devices=devices.reshape(shape), shape=axes, size=len(hosts))
        with mock.patch.object(jax, "process_index", return_value=host):
            return host_parts(mesh)

    @parameterized.parameters(
        ((4, 2, 1), "00001111", ((1,), 2)),  # each host has its half
        ((2, 1, 4), "00112233", ((0,), 2)),  # hosts 0 and 1 have the same half
        ((1, 1, 8), "00001111", ((0,), 1)),  # both have all rows
        ((8, 1, 1), "00110011", ((1, 3), 4)),  # halves of several pieces
        ((8, 1, 1), "01100110", ((1, 2, 5, 6), 8)),
        ((4, 1, 2), "01011010", ((0,), 1)),  # all rows, whatever the devices
    )
    def test_hosts_feed_the_rows_that_they_hold(self, shape, hosts, expected):
        self.assertEqual(self.parts_of(1, shape, hosts), expected)

    @parameterized.parameters(
        ((2, 1, 3), "001122", "mesh.model is 3"),  # some rows are shared, and others not
        ((6, 1, 1), "000011", "hosts have 2 and 4 devices"),
    )
    def test_hosts_that_do_not_fit(self, shape, hosts, message):
        with self.assertRaisesRegex(ValueError, message):
            self.parts_of(1, shape, hosts)


class TrainSettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"accumulation_steps": 3}, "accumulation_steps is 3, must divide .* 8"),
        ({"batch_warmup_steps": 5}, "batch_warmup_steps is 5, but a batch has one"),
        ({"keep_every": 15}, "keep_every is 15, must be a multiple of .* 10: the run"),
    )
    def test_what_does_not_fit(self, changes, message):
        settings = TrainSettings(batch_size=8, checkpoint_every=10)
        dataclasses.replace(settings, keep_every=30, accumulation_steps=4, batch_warmup_steps=5)
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(settings, **changes)


class ParameterTableTest(absltest.TestCase):
    def test_it_tells_all_and_the_sum(self):
        mesh = make_mesh(MeshSettings(2, 2, 2, vocab_multiple=1, rules=()))

        def array(spec, *shape, dtype=jnp.float32):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

        params = {
            "embeddings": {"table": array(P("model", ("data", "fsdp")), 1000, 32)},
            "head": {"bias": array(P(), 1000, dtype=jnp.bfloat16), "scale": array(P())},
        }
        expected = (
            "parameter         shape       type      split over           count",
            "embeddings/table  [1000, 32]  float32   (model, data+fsdp)  32,000",
            "head/bias         [1000]      bfloat16  ()                   1,000",
            "head/scale        []          float32   ()                       1",
            "all                                                         33,001",
        )
        self.assertEqual(parameter_table(params), "\n".join(expected))
        concrete = parameter_table({"w": jnp.zeros((2, 3))})
        self.assertRegex(concrete, r"w +\[2, 3\] +float32 +\(\) +6\n")
