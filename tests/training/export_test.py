"""Sharded steps lower for accelerators without the hardware."""

import functools
import math
import re

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from configs import quickstart, vocap_paper, xy_lent
from xlm.experiment import memory, model, objectives
from xlm.objectives.objective import Batch
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh

PLATFORMS = ("tpu", "cuda")


def config_of(kind: str):
    """Settings of a paper's run, at a size that lowers in seconds."""
    config = vocap_paper.get_config("vocap_500k_knn")
    small = quickstart.get_config("runlocal")
    config.vocab.target_size = 4096
    config.store.length = 64
    config.model.update(**{k: small.model[k] for k in ("hidden_size", "mlp_size", "num_heads")})
    config.model.update(embedding_size=16, num_layers=2, max_length=64, remat="dots")
    config.output_layer.update(kind=kind, capacity=512, group_size=4, num_negatives=256)
    config.train.batch_size = 16
    return config


def batch_of(shapes: dict[str, tuple[int, ...]], kind: str, layout) -> Batch:
    struct = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32, sharding=layout)
    return Batch({name: struct(shape) for name, shape in shapes.items()}, kind)


class ExportTest(parameterized.TestCase):
    @parameterized.parameters("knn", "blockwise")
    def test_lowers(self, kind: str):
        config = config_of(kind)
        dataset = memory.absent_rows(config)
        settings = MeshSettings(2, 2, 2, config.mesh.vocab_multiple, config.mesh.rules)
        mesh = make_mesh(settings)
        objective = objectives.objective(config, dataset, mesh)
        functions = model.train_functions(config, objective, mesh)
        layout, state = batch_sharding(mesh), functions.abstract_state
        batch = batch_of({"tokens": (16, 64), "language": (16,)}, "packed", layout)
        # Exports have no static arguments.
        calls = [
            (lambda state, batch: functions.train_step(objective, state, batch), (state, batch)),
            (functions.apply_pending_updates, (state,)),
        ]
        if names := objective.due(0):
            calls.append((lambda state: functions.refresh(names, state), (state,)))
        for function, arguments in calls:
            exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
            self.assertEqual((exported.platforms, exported.nr_devices), (PLATFORMS, 8))

    @parameterized.parameters(
        ("large", "tpu", "packed", "blockwise"),
        ("xl", "cuda", "joint", "blockwise"),
        ("base", "cpu", "packed", "full"),
    )
    def test_xy_lent_at_its_sizes(self, run: str, platform: str, kind: str, layer: str):
        """Replacements are drawn, and the loss computed, without logits of the whole vocabulary."""
        config = xy_lent.get_config(run)
        config.output_layer.kind = layer
        mesh = make_mesh(MeshSettings(4, 2, 1, config.mesh.vocab_multiple, config.mesh.rules))
        objective = objectives.objective(config, memory.absent_rows(config), mesh)
        functions = model.train_functions(config, objective, mesh)
        size, length, layout = config.train.batch_size, config.store.length, batch_sharding(mesh)
        shapes = {"tokens": (size, length), "language": (size,)}
        if kind == "joint":
            shapes |= dict.fromkeys(("segments", "positions"), (size, length))
            shapes["task"] = (size,)
        step = jax.jit(lambda state, batch: functions.train_step(objective, state, batch))
        batch = batch_of(shapes, kind, layout)
        exported = jax.export.export(step, platforms=[platform])(functions.abstract_state, batch)
        self.assertEqual((exported.platforms, exported.nr_devices), ((platform,), 8))
        found = set(re.findall(r"tensor<([\dx]+)x[a-z]", exported.mlir_module()))
        shapes, rows = [tuple(map(int, shape.split("x"))) for shape in found], 500_096
        beside = [math.prod(shape) // rows for shape in shapes if rows in shape]
        # The table and its gradient are [V, E]. Only "full" has logits [W, V].
        if layer == "full":
            self.assertGreater(max(beside), size)
        else:
            self.assertEqual(max(beside), config.model.hidden_size)
