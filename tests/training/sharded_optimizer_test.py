"""The optimizer sharded over `data`: same numbers, smaller shards, fewer bytes sent."""

import dataclasses
import functools
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import parameterized

from tests import factories
from tests.training import devices_test
from tests.training.devices_test import E, V
from xlm.objectives.objective import Batch, means
from xlm.training.accumulation import Accumulation
from xlm.training.checkpoint import Checkpoints, restore_latest, restore_latest_params
from xlm.training.sharding import batch_sharding
from xlm.training.step import TrainFunctions

OPTIMIZER = factories.optimizer_settings(
    epsilon=0.1, weight_decay=0.1, clip_norm=0.05, warmup_steps=0
)


def functions_of(
    axes: tuple[int, int, int], layer: str, update: str, parts: int, *, splits: bool,
    dtype: str = "float32", num_layers: int = 0, **optimizer,
) -> TrainFunctions:  # fmt: skip
    objective = devices_test.masked_lm_on(axes, layer, num_layers=num_layers, group_size=1)
    encoder = dataclasses.replace(objective.encoder.settings, dtype=dtype)
    objective = dataclasses.replace(objective, encoder=objective.encoder.clone(settings=encoder))
    settings, _ = devices_test.mesh_of(axes)
    return factories.train_functions(
        objective, dataclasses.replace(OPTIMIZER, embedding_update=update, **optimizer),
        dataclasses.replace(settings, shard_optimizer_over_data=splits),
        accumulation=Accumulation(parts, 0),
    )  # fmt: skip


def batch_on(functions: TrainFunctions, step: int = 0) -> Batch:
    arrays = {"tokens": devices_test.arrays_of(step)["tokens"]}
    return Batch(jax.device_put(arrays, batch_sharding(functions.mesh)), "packed")


def steps_of(functions: TrainFunctions, count: int = 3):
    """State with all updates, and metrics, after steps from the same parameters."""
    given = jax.device_put(
        devices_test.random_params(functions.objective.encoder.settings.num_layers),
        jax.tree.map(lambda x: x.sharding, functions.abstract_state.params),
    )
    state, found = functions.init(np.int32(0), given), []
    if names := functions.objective.due(0):
        state, _ = functions.refresh(names, state)
    for step in range(count):
        batch = batch_on(functions, step)
        state, metrics = functions.train_step(functions.objective, state, batch)
        found.append(means(jax.device_get(metrics)))
    return functions.apply_pending_updates(state), found


class StepTest(parameterized.TestCase):
    @parameterized.parameters(
        ((2, 1, 1), "knn", "rows", 1, {}),
        ((8, 1, 1), "knn", "rows", 1, {"max_norm_ratio": 5.0}),
        ((4, 1, 1), "knn", "dense", 1, {"kind": "muon", "num_layers": 1}),
        ((2, 2, 2), "knn", "rows", 1, {}),
        ((8, 1, 1), "full", "dense", 1, {"kind": "stable_adamw", "ema_decay": 0.5}),
        ((4, 1, 2), "blockwise", "dense", 2, {}),
        ((4, 2, 1), "full", "rows", 2, {}),
    )
    def test_numbers_are_those_without_it(self, axes, kind, update, parts, optimizer):
        args = axes, kind, update, parts
        split = functions_of(*args, splits=True, **optimizer)
        state, metrics = steps_of(split)
        expected, expected_metrics = steps_of(functions_of(*args, splits=False, **optimizer))
        check = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5)
        jax.tree.map(check, jax.device_get(state), jax.device_get(expected))
        table = state.params["embeddings"]["table"]
        first = devices_test.random_params(optimizer.get("num_layers", 0))
        moved = table - first["embeddings"]["table"]
        self.assertGreater(np.abs(moved).max(), 0.01)
        for one, other in zip(metrics, expected_metrics, strict=True):
            self.assertEqual(one.keys(), other.keys())
            jax.tree.map(check, one, other)
        # Each device along `data` has a share of each large array.
        for path, array in jax.tree.leaves_with_path((state.params, state.opt_state)):
            if array.ndim > 1:
                axes_of_last = array.sharding.spec[-1]
                self.assertIn("data", axes_of_last, jax.tree_util.keystr(path))
        whole = split.gathered(state.params)["embeddings"]["table"]
        self.assertEqual(whole.sharding.shard_shape(whole.shape), (V // axes[2], E // axes[1]))

    def test_what_a_step_casts_is_sent_in_the_short_type_and_changes_no_bit(self):
        split, whole = (
            functions_of((8, 1, 1), "full", "dense", 1, splits=splits, dtype="bfloat16")
            for splits in (True, False)
        )
        (state, found), (expected, expected_metrics) = steps_of(split, 1), steps_of(whole, 1)
        self.assertEqual(found[0]["loss"], expected_metrics[0]["loss"])
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        jax.tree.map(check, jax.device_get(state.params), jax.device_get(expected.params))
        text = split.train_step.lower(split.objective, split.abstract_state, batch_on(split))
        gathers = [line for line in text.as_text().splitlines() if "sharding_constraint" in line]
        tables = [line for line in gathers if f"tensor<{V}x{E}x" in line]
        sent = [sum(dtype in line for line in tables) for dtype in ("xbf16", "xf32")]
        self.assertEqual(sent, [2, 1], tables)  # to the devices and as split; the gradient

    @parameterized.parameters(((2, 1, 1), "knn", "rows", True), ((8, 1, 1), "full", "dense", False))
    def test_checkpoints_restore_with_and_without_it(self, axes, layer, update, splits):
        before, after = (
            functions_of(axes, layer, update, 1, splits=one) for one in (splits, not splits)
        )
        state, _ = steps_of(before, 2)
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "checkpoints"
        with Checkpoints(folder, 1) as checkpoints:
            checkpoints.save(2, state)
        _, found = restore_latest(folder, after.abstract_after)
        _, params = restore_latest_params(folder, before)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(state))
        for path, like in jax.tree.leaves_with_path(after.abstract_state):
            self.assertEqual(dict(jax.tree.leaves_with_path(found))[path].sharding, like.sharding)
        table = params["embeddings"]["table"]
        self.assertTrue(table.is_fully_replicated)
        batch = batch_on(before, 2)
        losses = [
            one.train_step(one.objective, of_one, batch)[1]["loss"][0]
            for one, of_one in ((before, state), (after, found))
        ]
        np.testing.assert_allclose(*losses, rtol=1e-5)

    def test_frozen_parameters_are_whole_and_stages_move_the_rest(self):
        args = (4, 1, 1), "full", "dense", 1
        split, whole = (
            functions_of(*args, splits=splits, stages=(("head", 2),)) for splits in (True, False)
        )
        found = []
        for functions in (split, whole):
            state, _ = steps_of(functions, 2)
            following = functions.following
            state = following.begin(state)
            for array, like in zip(
                jax.tree.leaves(state), jax.tree.leaves(following.abstract_state), strict=True
            ):
                self.assertEqual(
                    array.sharding.shard_shape(array.shape), like.sharding.shard_shape(like.shape)
                )
            state, _ = following.train_step(following.objective, state, batch_on(functions, 2))
            found.append(jax.device_get(state))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-5), *found)
        tables = (
            functions.abstract_state.params["embeddings"]["table"].sharding
            for functions in (split, split.following)
        )
        widths = [sharding.shard_shape((V, E))[1] for sharding in tables]
        self.assertEqual(widths, [E, E // 4])
