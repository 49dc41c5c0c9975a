"""The six layers against one another and their parts, and invalid settings."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec

from knn_sampling import inclusion, sampled_layers
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from knn_sampling.inclusion import NeighbourIndex, log_inclusion
from knn_sampling.losses import full_softmax_loss
from knn_sampling.neighbours import nearest_neighbours
from knn_sampling.noise import cumulative_thresholds, nce_loss, neg_loss
from knn_sampling.output_layer import OutputLayer, make_exact_layer
from knn_sampling.sampled_layers import bucket_sizes, loss_in_bucket
from knn_sampling.settings import KINDS
from knn_sampling.table_sharding import TableSharding
from tests.knn_sampling.batches import (
    BLOCKWISE,
    CORRECTED,
    FULL,
    KNN,
    NCE,
    NEG,
    NUM_VALID,
    SETTINGS,
    WG,
    B,
    D,
    G,
    M,
    V,
    assert_close,
    index_of,
    jitted_inclusion,
    layer_of,
    losses_of,
    mesh_of,
    random_batch,
    sample_of,
    sampled,
    statistics_of,
    value_and_gradients,
    with_gradients,
)


@functools.cache
def softmax_losses_and_gradients():
    """Expected result of `value_and_gradients`, by the loss of the softmax over all classes."""
    batch = random_batch()

    def loss(hidden, table, bias):
        targets, weights = (batch[name].reshape(-1) for name in ("targets", "weights"))
        args = (hidden.reshape(-1, D), targets, weights, table, bias)
        return full_softmax_loss(*args, num_valid=NUM_VALID).reshape(B, M)

    return with_gradients(jax.jit(loss), *(batch[name] for name in ("hidden", "table", "bias")))


class ExactTest(parameterized.TestCase):
    @parameterized.parameters(FULL, BLOCKWISE, dataclasses.replace(BLOCKWISE, block_size=1000))
    def test_the_softmax_over_the_classes_without_padding(self, layer: OutputLayer):
        batch = random_batch()
        self.assertIsNone(sample_of(layer, batch))
        found = value_and_gradients(layer, batch, None)
        assert_close(found, softmax_losses_and_gradients())

    @parameterized.product(kind=KINDS, model=(None, 1, 2))
    def test_logits_are_whole_only_where_asked_for(self, kind: str, model: int | None):
        where = {}
        if model is not None:
            mesh = mesh_of(data=2, fsdp=1, model=model)
            where["sharding"] = TableSharding(mesh, ("model",))
        settings = dataclasses.replace(SETTINGS, kind=kind)
        layer = make_exact_layer(settings, num_valid=NUM_VALID, **where)
        self.assertIsInstance(layer, FullSoftmax if kind == "full" else BlockwiseSoftmax)
        if not settings.is_sampled:
            self.assertEqual(layer_of(kind, **where), layer)


class SampledTest(parameterized.TestCase):
    @parameterized.product(
        changes=({"kind": "knn", "k": NUM_VALID, "capacity": 10 * V},
                 {"kind": "target_sampling", "num_negatives": V}),
        corrects=(False, True),
    )  # fmt: skip
    def test_over_all_classes_equals_full(self, changes: dict, corrects: bool):
        layer = layer_of(log_q_correction=corrects, **changes)
        assert_close(sampled(layer), value_and_gradients(FULL, random_batch(), None))

    @parameterized.parameters(False, True)
    def test_target_sampling_is_knn_of_tokens_listing_themselves(self, corrects: bool):
        itself = np.arange(V, dtype=np.int32)[:, None]
        index = NeighbourIndex(itself, jitted_inclusion(itself, statistics_of().probabilities))
        targets, knn = (
            layer_of(kind, k=1, log_q_correction=corrects, num_negatives=0)
            for kind in ("target_sampling", "knn")
        )
        assert_close(sampled(targets), sampled(knn, index=index))
        self.assertLessEqual(sample_of(targets, random_batch()).candidates.ids.shape[1], WG)

    def test_missing_index(self):
        with self.assertRaisesRegex(ValueError, "output_layer.kind 'knn' needs an ind"):
            sample_of(KNN, random_batch())


class CorrectionTest(parameterized.TestCase):
    @parameterized.parameters("knn", "target_sampling")
    def test_log_q_of_so_many_targets_is_taken_from_the_logits(self, kind: str):
        layer = layer_of(kind, log_q_correction=True, num_negatives=0)
        batch, index, p = random_batch(), index_of(layer), statistics_of().probabilities
        batch["weights"][:], batch["weights"][:, 0] = 1, 0
        sample = jax.device_get(sample_of(layer, batch, index))
        # Otherwise all classes of target sampling would be targets.
        q = jitted_inclusion(index.neighbours, p) if index else p
        # The content of unused slots does not matter; two positions of a group have weight zero.
        log_q = np.append(log_inclusion(q, WG - 2), np.float32(0))
        used = sample.candidates.ids < V
        expected = -log_q[sample.candidates.ids[used]]
        np.testing.assert_allclose(sample.logit_bias[used], expected, rtol=1e-5)
        self.assertGreater(np.ptp(sample.logit_bias[used]), 0.5)
        self.assertIsNone(sample.counts)

        plain = sample._replace(logit_bias=np.zeros_like(sample.logit_bias))
        shifted = batch | {"bias": batch["bias"] - log_q[:V]}
        corrected = value_and_gradients(layer, batch, sample)
        assert_close(corrected, value_and_gradients(layer, shifted, plain))
        without = sample_of(layer_of(kind, num_negatives=0), batch, index)
        np.testing.assert_array_equal(without.logit_bias, 0)

    @parameterized.product(kind=("knn", "target_sampling"), group_size=(0, 2))
    def test_unused_positions_do_not_change_the_loss(self, kind: str, group_size: int):
        layer = layer_of(kind, log_q_correction=True, group_size=group_size, num_negatives=0)
        batch, index = random_batch(), index_of(layer)
        losses = losses_of(layer, batch, sample_of(layer, batch, index))
        more = {name: np.repeat(batch[name], 2, axis=1) for name in ("hidden", "targets")}
        more["weights"] = np.stack([batch["weights"], 0 * batch["weights"]], 2).reshape(B, 2 * M)
        found = losses_of(layer, batch | more, sample_of(layer, batch | more, index))
        np.testing.assert_allclose(np.asarray(found)[:, ::2], losses, rtol=1e-6, atol=1e-6)

    def test_a_cut_at_the_capacity_lowers_log_q(self):
        batch, statistics = random_batch(), statistics_of()
        batch["weights"][3, 2] = 0
        layer = dataclasses.replace(CORRECTED, capacity=12)
        index = index_of(layer)
        sample, index = jax.device_get((sample_of(layer, batch, index), index))
        candidates = sample.candidates
        self.assertEqual(candidates.overflow().tolist()[0], 0)  # enough for one of the groups
        self.assertGreater(candidates.overflow()[1], 0)
        targets, weights = (np.asarray(batch[x]).reshape(G, WG) for x in ("targets", "weights"))
        for group in range(G):
            ids = candidates.ids[group]
            ids = ids[ids < V]
            used = targets[group][weights[group] > 0]
            distinct, union = len(set(used.tolist())), int(candidates.union_size[group])
            share = min(1, (12 - distinct) / (union - distinct))
            of_target, of_any = (
                1 - (1 - np.asarray(p, np.float64)[ids]) ** len(used)
                for p in (statistics.probabilities, index.inclusion)
            )
            expected = np.log(of_target + share * (of_any - of_target))
            found = -sample.logit_bias[group][: len(ids)]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    @parameterized.parameters("knn", "target_sampling")
    def test_a_group_without_targets(self, kind: str):
        layer = layer_of(kind, log_q_correction=True)
        batch, index = random_batch(), index_of(layer)
        batch["weights"][: B // G] = 0
        sample = sample_of(layer, batch, index)
        self.assertTrue(np.isfinite(sample.logit_bias).all())
        losses, gradients = jax.device_get(value_and_gradients(layer, batch, sample))
        np.testing.assert_array_equal(losses[: B // G], 0)
        self.assertTrue(all(np.isfinite(x).all() for x in gradients))


class TargetSamplingTest(parameterized.TestCase):
    @parameterized.parameters(1, 5, 1000)
    def test_as_many_further_classes_as_asked_for(self, num_negatives: int):
        layer, batch = layer_of("target_sampling", num_negatives=num_negatives), random_batch()
        p = statistics_of().probabilities
        targets, weights = (np.asarray(batch[x]).reshape(G, WG) for x in ("targets", "weights"))
        further = []
        for seed in (0, 1):
            found = jax.device_get(sample_of(layer, batch, seed=seed)).candidates
            for group in range(G):
                ids = found.ids[group][found.ids[group] < V].tolist()
                own = set(targets[group][weights[group] > 0].tolist())
                further.append(set(ids) - own)
                self.assertLen(ids, found.union_size[group])
                self.assertTrue(own <= set(ids))
                self.assertLen(further[-1], min(num_negatives, np.sum(p > 0) - len(own)))
        if num_negatives == 5:
            self.assertGreater(len(set(map(frozenset, further))), 2)

    def test_log_q_is_of_targets_and_draws(self):
        layer = layer_of("target_sampling", num_negatives=5, log_q_correction=True)
        time = np.array([[3.0], [7.0]], np.float32)
        made_up = jnp.array([[1, 2], [3, 3]]), time
        with mock.patch.object(sampled_layers, "draw_distinct", return_value=made_up):
            batch, p = random_batch(), statistics_of().probabilities
            sample = jax.jit(functools.partial(sample_of.__wrapped__, layer))(batch)
        sample = jax.device_get(sample)
        num_targets = (batch["weights"].reshape(G, WG) > 0).sum(axis=1)
        for group in range(G):
            ids = sample.candidates.ids[group]
            ids = ids[ids < V]
            missing = (1 - p[ids]) ** num_targets[group] * np.exp(-p[ids] * time[group])
            found = -sample.logit_bias[group][: len(ids)]
            np.testing.assert_allclose(found, np.log(1 - missing), rtol=1e-5)


class NegativesTest(parameterized.TestCase):
    @parameterized.product(kind=("nce", "neg"), num_negatives=(1, 10, 1000))
    def test_as_many_negatives_as_asked_for_in_each_group(self, kind: str, num_negatives: int):
        layer = layer_of(kind, num_negatives=num_negatives)
        only = np.isin(np.arange(V), [3, 20]) / 2
        statistics = statistics_of()._replace(thresholds=cumulative_thresholds(only))
        sample = sample_of(layer, random_batch(), statistics=statistics)
        counts, ids = np.asarray(sample.counts), np.asarray(sample.candidates.ids)
        np.testing.assert_array_equal(counts.sum(axis=1), num_negatives)
        self.assertTrue(np.isin(ids[counts > 0], [3, 20]).all())
        if kind == "neg":
            np.testing.assert_array_equal(sample.logit_bias, 0)
        else:
            log_noise = np.log(np.maximum(statistics.probabilities, 1e-12))
            minus_bias = -np.asarray(sample.logit_bias)[ids < V]
            np.testing.assert_allclose(minus_bias, log_noise[ids[ids < V]], rtol=1e-5)

    @parameterized.parameters(NCE, NEG)
    def test_groups_and_keys_draw_their_own(self, layer: OutputLayer):
        counts = []
        for seed in (0, 1):
            sample = jax.device_get(sample_of(layer, random_batch(), seed=seed))
            for group in range(G):
                full = np.zeros(V + 1)
                full[sample.candidates.ids[group]] = sample.counts[group]
                counts.append(tuple(full[:V]))
        self.assertLen(set(counts), 2 * G)

    @parameterized.parameters(NCE, NEG)
    def test_equals_the_loss_of_each_group(self, layer: OutputLayer):
        batch = jax.tree.map(jnp.asarray, random_batch())
        sample = sample_of(layer, batch)

        @functools.partial(jax.jit, static_argnums=0)
        def loss_of(group: int) -> jax.Array:
            ids = sample.candidates.ids[group]
            at = {name: batch[name].at[ids].get(mode="clip") for name in ("table", "bias")}
            at["hidden"] = batch["hidden"].reshape(G, WG, D)[group]
            at["weights"] = batch["weights"].reshape(G, WG)[group]
            at |= {"targets": sample.candidates.labels[group], "counts": sample.counts[group]}
            if layer is NEG:
                return neg_loss(**at)
            at["bias"] -= jnp.log(statistics_of().probabilities).at[ids].get(mode="clip")
            return nce_loss(**at, num_negatives=10)

        expected = np.stack([loss_of(group) for group in range(G)]).reshape(B, M)
        found, _ = value_and_gradients(layer, batch, sample)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


class BlocksAndBucketsTest(parameterized.TestCase):
    @parameterized.parameters((1, 1), (1, 5), (4, 24), (4, 100))
    def test_blocks_of_any_size(self, k: int, block_size: int):
        listing = layer_of(k=k, log_q_correction=True)
        batch = random_batch()
        sample = sample_of(listing, batch, index_of(listing))
        self.assertLess(sample.candidates.union_size.max(), V)
        whole, blocks = (dataclasses.replace(CORRECTED, block_size=n) for n in (0, block_size))
        expected = value_and_gradients(whole, batch, sample)
        assert_close(value_and_gradients(blocks, batch, sample), expected)

    @parameterized.parameters(
        ("knn", 4, 128), ("knn", 100, 384), ("knn", 170, 500), ("target_sampling", 0, 6),
        ("nce", 0, None), ("neg", 0, None),
    )  # fmt: skip
    def test_a_split_table_gives_what_one_device_gives(self, kind: str, k: int, bucket: int | None):
        # Softmaxes over V' go in blocks on one device, in the smallest bucket that fits on many.
        num_valid, num_rows = 602, 608
        changes = {"k": 170, "capacity": 500, "log_q_correction": True, "num_valid": num_valid}
        changes["num_negatives"] = 0 if kind == "target_sampling" else 10
        batch, statistics = random_batch(num_rows, num_valid), statistics_of(num_rows, num_valid)
        # one group has a smaller union
        batch["weights"] *= np.array([[1.0] * M, [1.0] * M, [1.0] + [0.0] * (M - 1), [0.0] * M])
        single = layer_of(kind, **changes)
        index = index_of(single, batch, statistics)
        if index:  # cut to the k nearest, with one program for all
            nearest = np.where(np.arange(170) < k, index.neighbours, num_rows)
            index = NeighbourIndex(nearest, jitted_inclusion(nearest, statistics.probabilities))
        sample = sample_of(single, batch, index, statistics)
        if bucket:
            capacity, needed = sample.candidates.ids.shape[1], sample.candidates.union_size.max()
            fitting = [size for size in bucket_sizes(capacity, 4) if size >= needed]
            self.assertEqual((fitting or [capacity])[0], bucket)  # the cases are nontrivial
        expected = value_and_gradients(single, batch, sample)

        mesh = mesh_of(data=2, fsdp=1, model=4)
        split = layer_of(kind, sharding=TableSharding(mesh, ("model",)), **changes)
        axes = {"table": ("model",), "hidden": ("data",), "targets": ("data",)}
        placed = {
            name: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes.get(name, ()))))
            for name, x in batch.items()
        }
        found_sample = sample_of(split, placed, index, statistics)
        assert_close(found_sample.candidates, sample.candidates, rtol=0, atol=0)
        assert_close(value_and_gradients(split, placed, found_sample), expected)


SIZES = (3, 5, 12)


class BucketSizesTest(parameterized.TestCase):
    @parameterized.parameters(
        (1000, 4, (256, 512, 768, 1000)), (1000, 3, (384, 768, 1000)), (1000, 1, (1000,)),
        (300, 2, (256, 300)), (300, 50, (128, 256, 300)), (128, 4, (128,)), (100, 4, (100,)),
    )  # fmt: skip
    def test_by_hand(self, capacity: int, num_buckets: int, sizes: tuple[int, ...]):
        self.assertEqual(bucket_sizes(capacity, num_buckets), sizes)

    @parameterized.parameters((0, 3), (3, 3), (4, 5), (5, 5), (6, 12), (12, 12), (999, 12))
    def test_the_smallest_that_fits_is_computed_and_no_other(self, needed: int, size: int):
        computed = []

        def loss(x: jax.Array, size: int) -> jax.Array:
            jax.debug.callback(lambda _: computed.append(size), x)
            return x * size

        run = jax.jit(lambda x, needed: loss_in_bucket(loss, SIZES, needed, x))
        self.assertEqual(run(jnp.float32(2), jnp.int32(needed)), 2 * size)
        jax.effects_barrier()
        self.assertEqual(computed, [size])


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"k": 0}, "k is 0, must be at least 1"),
        ({"k": 22}, "k is 22, must be between 1 and the vocabulary's 21 pieces"),
        ({"kind": "nce", "num_negatives": 0}, "num_negatives is 0, must be at least 1"),
        ({"kind": "neg", "num_negatives": 0}, "num_negatives is 0, must be at least 1"),
    )
    def test_settings_that_cannot_work(self, change: dict, message: str):
        with self.assertRaisesRegex(ValueError, f"output_layer.{message}"):
            layer_of(**change)

    @parameterized.parameters("full", "blockwise", "target_sampling", "nce", "neg")
    def test_a_kind_ignores_what_is_not_its_own(self, kind: str):
        more = {} if kind in ("nce", "neg") else {"num_negatives": 0}
        layer_of(kind, k=0, capacity=0, **more)

    def test_groups_divide_the_batch(self):
        for group_size, num_groups in ((0, 1), (1, 12), (4, 3), (12, 1)):
            settings = dataclasses.replace(SETTINGS, group_size=group_size)
            self.assertEqual(settings.num_groups(12), num_groups)
        with self.assertRaisesRegex(ValueError, "group_size is 24, must divide the batch of 12"):
            dataclasses.replace(SETTINGS, group_size=24).num_groups(12)


@functools.partial(jax.jit, static_argnums=0)
def refresh(layer: OutputLayer, neighbours, table, statistics):
    return layer.refresh(neighbours, table, statistics)


class RefreshTest(parameterized.TestCase):
    @parameterized.parameters(KNN, CORRECTED, dataclasses.replace(CORRECTED, k=NUM_VALID))
    def test_equals_its_parts(self, layer: OutputLayer):
        table, statistics, initial = random_batch()["table"], statistics_of(), layer.init_index(V)
        index, found = refresh(layer, initial.neighbours, table, statistics)
        neighbours = nearest_neighbours(table, k=layer.k, num_valid=NUM_VALID)
        np.testing.assert_array_equal(index, neighbours)
        self.assertEqual((index.shape, index.dtype), (initial.neighbours.shape, jnp.int32))
        expected = {
            "staleness": inclusion.staleness(initial.neighbours, neighbours, NUM_VALID),
            "same_language": inclusion.same_group_share(neighbours, statistics.languages),
        }
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertGreater(found["staleness"], found["same_language"])
        if layer.log_q_correction:
            found = jax.jit(layer.inclusion)(neighbours, statistics)
            q = jitted_inclusion(neighbours, statistics.probabilities)
            np.testing.assert_allclose(found, q, rtol=1e-6)
            self.assertEqual((found.shape, found.dtype), (initial.inclusion.shape, jnp.float32))
        else:
            self.assertIsNone(initial.inclusion)
