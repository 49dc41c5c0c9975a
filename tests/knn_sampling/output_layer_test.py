"""The strategies against one another, against their parts, and settings that cannot work."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.buckets import bucket_sizes
from knn_sampling.losses import full_softmax_loss
from knn_sampling.neighbours import (
    NeighbourIndex,
    inclusion,
    log_inclusion,
    nearest_neighbours,
)
from knn_sampling.noise import cumulative_thresholds, nce_loss, neg_loss
from knn_sampling.output_layer import KINDS, OutputLayer, Sample, WordStatistics

G, WG, D, V, NUM_VALID = 2, 6, 4, 24, 21
KNN = OutputLayer(
    kind="knn",
    num_valid=NUM_VALID,
    k=4,
    capacity=V,
    capacity_buckets=1,
    num_negatives=10,
    group_size=0,
    refresh="all",
    refresh_every=5,
    index_block=8,
    index_scores="float32",
    vocab_block=7,
    candidate_block=0,
    log_q_correction=False,
    exact_fraction=0.0,
    frequency_bias=False,
)
LAYERS = {kind: dataclasses.replace(KNN, kind=kind) for kind in KINDS}
FULL, BLOCKWISE, _, TARGETS, NCE, NEG = LAYERS.values()
CORRECTED = dataclasses.replace(KNN, log_q_correction=True)


def random_batch(num_words: int = V, num_valid: int = NUM_VALID) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    weights = np.ones((G, WG), np.float32)
    weights[0, 2], weights[1, 4:] = 0, (0, 0.5)
    return {
        "hidden": jnp.asarray(rng.normal(size=(G, WG, D)), jnp.float32),
        "targets": jnp.asarray(rng.integers(0, num_valid, (G, WG)), jnp.int32),
        "weights": jnp.asarray(weights),
        "table": jnp.asarray(rng.normal(size=(num_words, D)), jnp.float32),
        "bias": jnp.asarray(rng.normal(size=num_words), jnp.float32),
    }


def words(num_words: int = V, num_valid: int = NUM_VALID) -> WordStatistics:
    """How often each word is a target: never, for padding; languages by turns."""
    probabilities = np.random.default_rng(1).random(num_words) * (np.arange(num_words) < num_valid)
    probabilities /= probabilities.sum()
    languages = np.where(np.arange(num_words) < num_valid, np.arange(num_words) % 3, -1)
    return WordStatistics(
        jnp.asarray(probabilities, jnp.float32),
        cumulative_thresholds(probabilities),
        jnp.asarray(languages, jnp.int32),
    )


def refreshed(layer: OutputLayer, index, table, statistics, part=None):
    return layer.refreshed(index, table, statistics, part)


def index_of(layer: OutputLayer, batch=None, statistics=None) -> NeighbourIndex | None:
    table = (batch or random_batch())["table"]
    empty = layer.empty_index(len(table))
    return empty and refreshed(layer, empty, table, statistics or words())[0]


@functools.partial(jax.jit, static_argnums=0)
def sample_of(layer: OutputLayer, batch, index=None, statistics=None, seed=0) -> Sample:
    key = jax.random.key(seed)
    return layer.sample(key, batch["targets"], batch["weights"], index, statistics or words())


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(layer: OutputLayer, batch, sample: Sample):
    """The OutputLoss, and gradients of the sum of losses in hidden states, table and bias."""

    def loss(hidden, table, bias):
        places = sample.candidates.ids
        result = layer.sampled_loss(hidden, batch["weights"], table, bias, sample, places)
        return result.losses.sum(), result

    parameters = (batch["hidden"], batch["table"], batch["bias"])
    gradients, result = jax.grad(loss, (0, 1, 2), has_aux=True)(*parameters)
    return result, gradients


@functools.partial(jax.jit, static_argnums=0)
def exact_value_and_gradients(layer: OutputLayer | None, batch):
    """The same of the softmax over the vocabulary; by `full_softmax_loss` where None."""

    def loss(hidden, table, bias):
        targets, weights = (batch[name].reshape(-1) for name in ("targets", "weights"))
        args = (hidden.reshape(-1, D), targets, weights, table, bias)
        if layer is None:
            losses = full_softmax_loss(*args, num_valid=NUM_VALID)
            return losses.sum(), (losses, jnp.float32(NUM_VALID), jnp.float32(0))
        result = layer.exact_loss(*args)
        return result.losses.sum(), tuple(result)

    parameters = (batch["hidden"], batch["table"], batch["bias"])
    gradients, result = jax.grad(loss, (0, 1, 2), has_aux=True)(*parameters)
    return result, gradients


def sampled(layer: OutputLayer, batch=None, index=None):
    """`value_and_gradients` with the words that the layer samples."""
    batch = batch or random_batch()
    index = index or index_of(layer)
    return value_and_gradients(layer, batch, sample_of(layer, batch, index))


def assert_close(actual, expected, rtol: float = 1e-5, atol: float = 2e-6):
    """Equal to float32 precision; sums of a dozen terms of order one are off by 1e-6."""
    check = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(check, tuple(actual), tuple(expected))


class ExactTest(parameterized.TestCase):
    @parameterized.parameters(
        FULL, BLOCKWISE, dataclasses.replace(BLOCKWISE, vocab_block=1000), KNN, NCE
    )
    def test_every_kind_has_the_softmax_over_the_words_without_padding(self, layer: OutputLayer):
        batch = random_batch()
        result, gradients = exact_value_and_gradients(layer, batch)
        expected, expected_gradients = exact_value_and_gradients(None, batch)
        assert_close(result, expected)
        assert_close(gradients, expected_gradients)


class SampledTest(parameterized.TestCase):
    @parameterized.parameters(
        (KNN, V), (KNN, 10 * V), (dataclasses.replace(CORRECTED, capacity_buckets=3), V)
    )
    def test_knn_over_all_words_equals_full(self, layer: OutputLayer, capacity: int):
        result, gradients = sampled(dataclasses.replace(layer, k=NUM_VALID, capacity=capacity))
        expected, expected_gradients = exact_value_and_gradients(FULL, random_batch())
        assert_close(result, expected)
        assert_close(gradients, expected_gradients)

    @parameterized.parameters(False, True)
    def test_target_sampling_equals_knn_of_words_that_list_only_themselves(self, corrects: bool):
        itself = jnp.arange(V, dtype=jnp.int32)[:, None]
        index = NeighbourIndex(itself, inclusion(itself, words().probabilities))
        layers = (dataclasses.replace(x, k=1, log_q_correction=corrects) for x in (TARGETS, KNN))
        (result, gradients), (expected, expected_gradients) = (
            sampled(layer, index=index if layer.uses_neighbours else None) for layer in layers
        )
        assert_close(result, expected)
        assert_close(gradients, expected_gradients)
        self.assertLessEqual(result.candidates, WG)

    @parameterized.parameters(WG, 12, V)
    def test_knn_reports_its_unions_and_what_did_not_fit(self, capacity: int):
        batch, index = random_batch(), index_of(KNN)
        sizes = []
        for group in range(G):
            used = np.asarray(batch["targets"][group])[np.asarray(batch["weights"][group]) > 0]
            near = np.asarray(index.neighbours)[used].ravel().tolist()
            sizes.append(len({*used.tolist(), *near}))
        self.assertNotEqual(*sizes)
        self.assertBetween(12, min(sizes), max(sizes) - 1)  # 12 is enough for one of them
        result, _ = sampled(dataclasses.replace(KNN, capacity=capacity), index=index)
        self.assertEqual(result.candidates, np.mean(sizes))
        self.assertEqual(result.overflow, np.mean([max(0, size - capacity) for size in sizes]))

    @parameterized.parameters(*LAYERS.values(), CORRECTED)
    def test_results_are_float32_for_bfloat16_inputs(self, layer: OutputLayer):
        batch = random_batch()
        short = {name: batch[name].astype(jnp.bfloat16) for name in ("hidden", "table")}
        run = sampled if layer.is_sampled else exact_value_and_gradients
        result, _ = jax.eval_shape(lambda: run(layer, batch | short))
        self.assertEqual(jax.tree.map(lambda x: x.shape, tuple(result)), ((G * WG,), (), ()))
        self.assertEqual({x.dtype for x in result}, {jnp.dtype(jnp.float32)})

    def test_missing_index(self):
        with self.assertRaisesRegex(
            ValueError, "output_layer.kind 'knn' needs the neighbour index"
        ):
            sample_of(KNN, random_batch())

    def test_capacity_below_the_group(self):
        layer = dataclasses.replace(KNN, capacity=WG - 1)
        with self.assertRaisesRegex(ValueError, "capacity is 5, .* the 6 masked positions"):
            sampled(layer)


class CorrectionTest(parameterized.TestCase):
    @parameterized.parameters("knn", "target_sampling")
    def test_log_q_of_so_many_targets_is_taken_from_the_logits(self, kind: str):
        layer = dataclasses.replace(CORRECTED, kind=kind)
        batch, index, p = random_batch(), index_of(layer), words().probabilities
        sample = sample_of(layer, batch, index)
        # Or else the softmax of target sampling is over words that are all targets.
        q = inclusion(index.neighbours, p) if index else p
        log_q = np.append(log_inclusion(q, WG), 0)  # what unused slots have does not matter
        used = np.asarray(sample.candidates.ids) < V
        np.testing.assert_allclose(
            sample.bias[used], -log_q[np.asarray(sample.candidates.ids)[used]], rtol=1e-5
        )
        self.assertGreater(np.ptp(np.asarray(sample.bias)[used]), 0.5)
        self.assertIsNone(sample.counts)

        plain = sample._replace(bias=jnp.zeros_like(sample.bias))
        shifted = batch | {"bias": batch["bias"] - log_q[:V]}
        corrected, gradients = value_and_gradients(layer, batch, sample)
        expected, expected_gradients = value_and_gradients(layer, shifted, plain)
        assert_close(corrected, expected)
        assert_close(gradients, expected_gradients)
        without = sample_of(dataclasses.replace(layer, log_q_correction=False), batch, index)
        np.testing.assert_array_equal(without.bias, 0)


class NegativesTest(parameterized.TestCase):
    @parameterized.product(kind=("nce", "neg"), num_negatives=(1, 10, 1000))
    def test_as_many_negatives_as_asked_for_in_each_group(self, kind: str, num_negatives: int):
        layer = dataclasses.replace(LAYERS[kind], num_negatives=num_negatives)
        statistics = words()._replace(thresholds=cumulative_thresholds(_only(3, 20)))
        sample = sample_of(layer, random_batch(), statistics=statistics)
        counts, ids = np.asarray(sample.counts), np.asarray(sample.candidates.ids)
        np.testing.assert_array_equal(counts.sum(axis=1), num_negatives)
        self.assertTrue(np.isin(ids[counts > 0], [3, 20]).all())
        log_noise = np.log(np.maximum(words().probabilities, 1e-12))
        np.testing.assert_allclose(sample.bias[ids < V], log_noise[ids[ids < V]], rtol=1e-5)

    @parameterized.parameters("nce", "neg")
    def test_groups_and_keys_draw_apart(self, kind: str):
        counts = []
        for seed in (0, 1):
            sample = sample_of(LAYERS[kind], random_batch(), seed=seed)
            for group in range(G):
                full = np.zeros(V + 1)
                full[sample.candidates.ids[group]] = sample.counts[group]
                counts.append(tuple(full[:V]))
        self.assertLen(set(counts), 2 * G)

    @parameterized.parameters("nce", "neg")
    def test_equals_the_loss_of_each_group(self, kind: str):
        layer, batch = LAYERS[kind], random_batch()
        sample = sample_of(layer, batch)

        @jax.jit
        def loss_of(group: int) -> jax.Array:
            ids = sample.candidates.ids[group]
            at = [batch[name][group] for name in ("hidden", "weights")]
            at += [batch[name].at[ids].get(mode="clip") for name in ("table", "bias")]
            at += [sample.candidates.labels[group], sample.counts[group]]
            if kind == "neg":
                return neg_loss(*at)
            return nce_loss(*at, jnp.log(words().probabilities).at[ids].get(mode="clip"), 10)

        losses = [loss_of(group) for group in range(G)]
        result, _ = value_and_gradients(layer, batch, sample)
        np.testing.assert_allclose(result.losses, jnp.concatenate(losses), rtol=1e-5)
        self.assertEqual(result.candidates, sample.candidates.union_size.mean())


class EverySampledKindTest(parameterized.TestCase):
    @parameterized.parameters(*LAYERS.values(), CORRECTED)
    def test_positions_of_weight_zero_count_for_nothing(self, layer: OutputLayer):
        if not layer.is_sampled:
            return
        batch = random_batch()
        result, gradients = sampled(layer, batch)
        self.assertTrue(all(np.isfinite(x).all() for x in jax.tree.leaves((result, gradients))))
        unused = np.asarray(batch["weights"]) == 0
        np.testing.assert_array_equal(np.asarray(result.losses).reshape(G, WG)[unused], 0)
        np.testing.assert_array_equal(np.asarray(gradients[0])[unused], 0)
        self.assertGreater(np.abs(np.asarray(gradients[0])[~unused]).min(), 0)

        hidden, targets = map(np.array, (batch["hidden"], batch["targets"]))
        hidden[unused], targets[unused] = np.nan, 1
        changed, by = sampled(layer, batch | {"hidden": hidden, "targets": targets})
        assert_close(changed, result)
        assert_close(by, gradients)

    @parameterized.parameters(KNN, CORRECTED, NEG)
    def test_places_say_where_the_rows_are(self, layer: OutputLayer):
        batch = random_batch()
        sample = sample_of(layer, batch, index_of(layer))
        result, _ = value_and_gradients(layer, batch, sample)
        order = np.random.default_rng(0).permutation(V)
        place = np.append(np.argsort(order), V + 3)  # out of the table: any number will do
        places = jnp.asarray(place[sample.candidates.ids])
        args = (batch["hidden"], batch["weights"], batch["table"][order], batch["bias"])
        assert_close(layer.sampled_loss(*args, sample, places), result)

    @parameterized.parameters(KNN, CORRECTED, NEG)
    def test_groups_are_apart(self, layer: OutputLayer):
        batch = random_batch()
        sample = sample_of(layer, batch, index_of(layer))
        result, _ = value_and_gradients(layer, batch, sample)
        sizes = []
        for group in range(G):
            one = slice(group, group + 1)
            alone = jax.tree.map(lambda x, one=one: x[one], sample)
            # The rows of one group come first, and no places are needed.
            rows = batch["table"].at[alone.candidates.ids[0]].get(mode="fill", fill_value=7.0)
            args = (batch["hidden"][one], batch["weights"][one], rows, batch["bias"])
            found = layer.sampled_loss(*args, alone, None)
            expected = result.losses.reshape(G, WG)[group]
            np.testing.assert_allclose(found.losses, expected, rtol=1e-5, atol=1e-6)
            sizes.append(float(found.candidates))
        self.assertEqual(result.candidates, np.mean(sizes))

    @parameterized.parameters(KNN, dataclasses.replace(CORRECTED, capacity=10), NEG)
    def test_order_of_positions_within_a_group_does_not_matter(self, layer: OutputLayer):
        batch = random_batch()
        order = np.random.default_rng(0).permutation(WG)
        names = ("hidden", "targets", "weights")
        permuted = batch | {name: batch[name][:, order] for name in names}
        result, (by_hidden, *by_others) = sampled(layer, batch)
        found, (found_by_hidden, *found_by_others) = sampled(layer, permuted)
        losses = result.losses.reshape(G, WG)[:, order].reshape(-1)
        assert_close(found, result._replace(losses=losses))
        assert_close((found_by_hidden, *found_by_others), (by_hidden[:, order], *by_others))


class BucketsTest(parameterized.TestCase):
    """A vocabulary large enough for buckets."""

    @parameterized.parameters((1, 1), (1, 5), (4, 24), (4, 100))
    def test_blocks_of_candidates_give_what_all_at_once_give(self, k: int, block: int):
        layer = dataclasses.replace(CORRECTED, k=k)
        batch = random_batch()
        sample = sample_of(layer, batch, index_of(layer))
        self.assertLess(sample.candidates.union_size.max(), V)
        whole = value_and_gradients(layer, batch, sample)
        blocks = dataclasses.replace(layer, candidate_block=block)
        assert_close(value_and_gradients(blocks, batch, sample), whole)

    @parameterized.parameters((4, 128), (100, 384), (170, 500))
    def test_any_bucket_gives_what_the_capacity_gives(self, k: int, bucket: int):
        num_words = 610
        layer = dataclasses.replace(CORRECTED, num_valid=600, k=k, capacity=500, index_block=610)
        batch, statistics = random_batch(num_words, 600), words(num_words, 600)
        batch["weights"] *= jnp.array([[1.0] * WG, [1.0] + [0.0] * (WG - 1)])  # a smaller union
        index = index_of(layer, batch, statistics)
        sample = sample_of(layer, batch, index, statistics)
        sizes = bucket_sizes(500, 4)
        fitting = [size for size in sizes if size >= sample.candidates.union_size.max()]
        self.assertEqual((fitting or [500])[0], bucket)  # the cases are worth trying
        expected, expected_gradients = value_and_gradients(layer, batch, sample)
        with_buckets = dataclasses.replace(layer, capacity_buckets=4)
        result, gradients = value_and_gradients(with_buckets, batch, sample)
        assert_close(result, expected)
        assert_close(gradients, expected_gradients)


def one_hot_table(directions: list[int]) -> np.ndarray:
    """Words [V, D] each along one axis, those of an axis longer the smaller their id."""
    table = np.zeros((V, D), np.float32)
    for word, axis in enumerate(directions):
        table[word, axis] = 2 - word / V
    return table


class RefreshTest(parameterized.TestCase):
    @parameterized.parameters(
        KNN, CORRECTED, dataclasses.replace(KNN, index_scores="bfloat16"),
        dataclasses.replace(CORRECTED, k=NUM_VALID, index_block=5),
    )  # fmt: skip
    def test_all_of_it(self, layer: OutputLayer):
        table = random_batch()["table"]
        index = index_of(layer)
        expected = nearest_neighbours(
            table, k=layer.k, num_valid=NUM_VALID, scores=layer.index_scores
        )
        np.testing.assert_array_equal(index.neighbours, expected)
        if layer.log_q_correction:
            q = inclusion(expected, words().probabilities)
            np.testing.assert_allclose(index.inclusion, q, rtol=1e-6)
        else:
            self.assertIsNone(index.inclusion)
        shapes, empty = (jax.eval_shape(lambda x=x: x) for x in (index, layer.empty_index(V)))
        self.assertEqual(shapes, empty)

    def test_only_knn_has_an_index(self):
        for kind, layer in LAYERS.items():
            self.assertEqual(layer.empty_index(V) is not None, kind == "knn")

    @parameterized.parameters(1, 5, 6, 7, 50)
    def test_part_by_part_is_all_of_it(self, refresh_every: int):
        layer = dataclasses.replace(CORRECTED, refresh="rolling", refresh_every=refresh_every)
        table = random_batch()["table"]
        expected = index_of(layer)
        other = random_batch() | {"table": table[::-1]}
        index = old = index_of(layer, other)
        valid = slice(0, NUM_VALID)  # the lists of padding rows are meaningless
        self.assertGreater((old.neighbours != expected.neighbours)[valid].mean(), 0.3)
        size = -(-V // refresh_every)
        for part in range(refresh_every):
            index, _ = refreshed(layer, index, table, words(), jnp.int32(part))
            done = min((part + 1) * size, V)  # and no row beyond, unless the end is reached
            rest = np.arange(V) >= done
            np.testing.assert_array_equal(
                np.asarray(index.neighbours)[:done], np.asarray(expected.neighbours)[:done]
            )
            np.testing.assert_array_equal(
                np.asarray(index.neighbours)[rest], np.asarray(old.neighbours)[rest]
            )
            q = inclusion(index.neighbours, words().probabilities)
            np.testing.assert_allclose(index.inclusion, q, rtol=1e-6)
        self.assertEqual(done, V)
        np.testing.assert_array_equal(index.neighbours, expected.neighbours)
        np.testing.assert_allclose(index.inclusion, expected.inclusion, rtol=1e-6)

    @parameterized.parameters(None, 0, 3)
    def test_the_same_table_makes_nothing_stale(self, part: int | None):
        table = random_batch()["table"]
        _, report = refreshed(KNN, index_of(KNN), table, words(), part)
        self.assertEqual(report["staleness"], 0)

    def test_report_by_hand(self):
        # Words of even and odd ids are two directions; each lists the three longest of its own.
        layer = dataclasses.replace(KNN, k=3, refresh_every=4)
        statistics = words()._replace(languages=jnp.array([0, 0, 0, 1] + [1] * 17 + [-1] * 3))
        old = one_hot_table([word % 2 for word in range(V)])
        index = index_of(layer, {"table": jnp.asarray(old)}, statistics)
        self.assertEqual(index.neighbours[6].tolist(), [0, 2, 4])
        # Word 0 leaves the even words: their lists begin at 2 now, one entry of three is new.
        table = jnp.asarray(one_hot_table([2] + [word % 2 for word in range(1, V)]))
        # Part 2 of 4: words 12 to 17, of which three are even.
        index, report = refreshed(layer, index, table, statistics, jnp.int32(2))
        self.assertEqual(index.neighbours[12].tolist(), [2, 4, 6])
        self.assertEqual(index.neighbours[6].tolist(), [0, 2, 4])
        self.assertAlmostEqual(float(report["staleness"]), 3 / 18, places=6)
        # Of language 1 all; 2, 4, 6 are two thirds so, and 1, 3, 5 as well.
        self.assertAlmostEqual(float(report["same_language"]), 2 / 3, places=6)
        # Padding rows count in neither, in the whole nor in the last part, words 18 to 23.
        _, report = refreshed(layer, index, table, statistics, jnp.int32(3))
        self.assertAlmostEqual(float(report["staleness"]), 2 / 9, places=6)
        _, report = refreshed(layer, index, table, statistics, None)
        self.assertGreater(report["staleness"], 0)
        self.assertLess(report["same_language"], 2 / 3)


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"kind": "softmax"}, r"kind is 'softmax', must be one of \('full', 'blockwise', 'knn', "),
        ({"refresh": "some"}, "refresh is 'some', must be all or rolling"),
        ({"refresh_every": 0}, "refresh_every is 0, must be at least 1"),
        ({"index_block": 0}, "index_block is 0, must be at least 1"),
        ({"index_scores": "int8"}, r"index_scores is 'int8', must be one of \('float32', 'bfloat1"),
        ({"vocab_block": 0}, "vocab_block is 0, must be at least 1"),
        ({"capacity_buckets": 0}, "capacity_buckets is 0, must be at least 1"),
        ({"group_size": -1}, "group_size is -1, must be 0 or more sequences"),
        ({"k": 0}, "k is 0, must be between 1 and the vocabulary's 21 pieces"),
        ({"k": 22}, "k is 22, must be between 1 and the vocabulary's 21 pieces"),
        ({"exact_fraction": 1.5}, "exact_fraction is 1.5, must be between 0 and 1"),
        ({"exact_fraction": -0.1}, "exact_fraction is -0.1, must be between 0 and 1"),
        ({"kind": "nce", "num_negatives": 0}, "num_negatives is 0, must be at least 1"),
        ({"kind": "neg", "num_negatives": 0}, "num_negatives is 0, must be at least 1"),
    )
    def test_settings_that_cannot_work(self, change: dict, message: str):
        with self.assertRaisesRegex(ValueError, f"output_layer.{message}"):
            dataclasses.replace(KNN, **change)

    @parameterized.parameters("full", "blockwise", "target_sampling", "nce", "neg")
    def test_a_kind_ignores_what_is_not_its_own(self, kind: str):
        dataclasses.replace(LAYERS[kind], k=0, capacity=0)
        if kind not in ("nce", "neg"):
            dataclasses.replace(LAYERS[kind], num_negatives=0)

    def test_groups_divide_the_batch(self):
        for group_size, num_groups in ((0, 1), (1, 12), (4, 3), (12, 1)):
            layer = dataclasses.replace(KNN, group_size=group_size)
            self.assertEqual(layer.num_groups(12), num_groups)
        for group_size in (5, 24):
            layer = dataclasses.replace(KNN, group_size=group_size)
            with self.assertRaisesRegex(
                ValueError,
                f"output_layer.group_size is {group_size}, must divide the batch of 12 sequences",
            ):
                layer.num_groups(12)


def _only(*ids: int) -> np.ndarray:
    """Probabilities of words of which these alone occur."""
    return np.isin(np.arange(V), ids) / len(ids)


if __name__ == "__main__":
    absltest.main()
