"""The index equals a sort of all scores, and log Q an enumeration of all batches."""

import functools
import itertools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from knn_sampling import neighbours
from knn_sampling.neighbours import inclusion, log_inclusion, nearest_neighbours


def small_integers(vocab_size: int, width: int, seed: int = 0) -> np.ndarray:
    """Every product of rows is exact in float32, and many tie."""
    return np.random.default_rng(seed).integers(-2, 3, (vocab_size, width)).astype(np.float32)


def sorted_ids(table: np.ndarray, num_valid: int) -> np.ndarray:
    """All ids below `num_valid` for each row, by (-score, id); NaN last."""
    words = table[:num_valid].astype(np.float64)
    scores = words @ words.T
    scores[np.isnan(scores)] = -np.inf
    ids = np.broadcast_to(np.arange(num_valid), scores.shape)
    return np.lexsort((ids, -scores), axis=1)


def two_stage_table(num_valid: int = 701, vocab_size: int = 720) -> np.ndarray:
    """So many words that few neighbours are found in two stages, whose best scores tie."""
    table = small_integers(vocab_size, 4, seed=5)
    table[num_valid:] = 100.0
    return table


class NearestNeighboursTest(parameterized.TestCase):
    @parameterized.product(block_size=(1, 6, 7, 30, 64), k=(1, 5, 30))
    def test_equals_sort_whatever_the_block_size(self, block_size: int, k: int):
        table = small_integers(30, 3)
        distinct_scores = max(len(np.unique(row)) for row in table @ table.T)
        self.assertLess(distinct_scores, 20)  # of 30: there are ties in every row
        index = nearest_neighbours(table, k=k, num_valid=30, block_size=block_size)
        self.assertEqual(index.dtype, jnp.int32)
        np.testing.assert_array_equal(index, sorted_ids(table, 30)[:, :k])

    @parameterized.product(k=(1, 7, 20), block_size=(100, 720))
    def test_two_stages_equal_a_sort(self, k: int, block_size: int):
        table = two_stage_table()
        self.assertLess(k * neighbours._GROUP, len(table))
        expected = sorted_ids(table, 701)
        scores = np.take_along_axis(table[:701] @ table[:701].T, expected, axis=1)
        self.assertGreater((scores[:, k - 1] == scores[:, k]).mean(), 0.4)  # the last place ties
        index = nearest_neighbours(table, k=k, num_valid=701, block_size=block_size)
        np.testing.assert_array_equal(index[:701], expected[:, :k])

    def test_two_stages_with_fewer_words_than_groups_wanted(self):
        # 50 words in 2 groups, of which 20 are asked for; and the NaN among them come last.
        table = two_stage_table(num_valid=50)
        table[[3, 40]] = np.nan
        index = nearest_neighbours(table, k=20, num_valid=50)
        np.testing.assert_array_equal(index[:50], sorted_ids(table, 50)[:, :20])
        healthy = np.delete(np.arange(50), [3, 40])
        self.assertFalse(np.isin(index[healthy], [3, 40]).any())

    def test_nan_hides_no_word_of_its_group(self):
        table = two_stage_table()
        table[5::32] = np.nan  # one in each group
        index = nearest_neighbours(table, k=20, num_valid=701)
        np.testing.assert_array_equal(index[:701], sorted_ids(table, 701)[:, :20])

    @parameterized.parameters(40, 720)
    def test_zeros_of_either_sign_tie(self, vocab_size: int):
        table = np.zeros((vocab_size, 1), np.float32)
        table[::3] = -0.0
        table[1] = -1.0  # its product with 0 is -0, with -0 it is 0
        self.assertLess(np.signbit(table[1] * table[:, 0]).mean(), 1)
        index = nearest_neighbours(table, k=10, num_valid=vocab_size)
        np.testing.assert_array_equal(index, sorted_ids(table, vocab_size)[:, :10])

    @parameterized.product(block_size=(1, 4, 64), scores=neighbours.SCORES)
    def test_some_words_get_the_rows_they_have_in_the_whole(self, block_size: int, scores: str):
        table = two_stage_table()
        whole = nearest_neighbours(table, k=8, num_valid=701, scores=scores)
        ids = jnp.array([700, 3, 3, 0, 512, 64, 65, 9, 10])
        some = nearest_neighbours(
            table, k=8, num_valid=701, query_ids=ids, block_size=block_size, scores=scores
        )
        self.assertEqual(some.dtype, jnp.int32)
        np.testing.assert_array_equal(some, whole[ids])

    def test_no_queries(self):
        ids = jnp.zeros(0, jnp.int32)
        index = nearest_neighbours(two_stage_table(), k=8, num_valid=701, query_ids=ids)
        self.assertEqual(index.shape, (0, 8))

    def test_duplicate_rows_stand_by_falling_score_then_rising_id(self):
        table = np.repeat(small_integers(8, 16), 3, axis=0)[
            np.random.default_rng(1).permutation(24)
        ]
        index = nearest_neighbours(table, k=24, num_valid=24, block_size=5)
        np.testing.assert_array_equal(index, sorted_ids(table, 24))

    def test_equals_sort_for_real_numbers(self):
        table = np.random.default_rng(2).normal(size=(200, 32)).astype(np.float32)
        scores = np.sort(table.astype(np.float64) @ table.T.astype(np.float64), axis=1)
        # Otherwise rounding in float32 may swap two of them.
        self.assertGreater(np.diff(scores[:, -11:]).min(), 1e-5)
        index = nearest_neighbours(table, k=10, num_valid=200, block_size=64)
        np.testing.assert_array_equal(index, sorted_ids(table, 200)[:, :10])

    def test_bfloat16_table_is_scored_in_float32(self):
        table = jnp.asarray(np.random.default_rng(3).normal(size=(60, 32)), jnp.bfloat16)
        index = nearest_neighbours(table, k=10, num_valid=60)
        expected = nearest_neighbours(table.astype(jnp.float32), k=10, num_valid=60)
        np.testing.assert_array_equal(index, expected)
        rounded = jnp.dot(table, table.T)  # what scores in bfloat16 would give
        self.assertTrue((jax.lax.top_k(rounded, 10)[1] != expected).any())

    @parameterized.parameters(4, 9, 32)
    def test_padding_is_nobodys_neighbour(self, block_size: int):
        table = small_integers(24, 3)
        table[21:] = 100.0  # would win or, negated, tie
        index = nearest_neighbours(table, k=21, num_valid=21, block_size=block_size)
        np.testing.assert_array_equal(index[:21], sorted_ids(table, 21))
        self.assertLess(index.max(), 21)

    def test_padding_values_have_no_influence(self):
        table = small_integers(24, 3)
        indices = []
        for filler in (0.0, 100.0, np.nan, np.inf):
            table[20:] = filler
            indices.append(nearest_neighbours(table, k=20, num_valid=20, block_size=8)[:20])
        for index in indices[1:]:
            np.testing.assert_array_equal(index, indices[0])

    def test_nan_rows_come_last_and_before_padding(self):
        table = small_integers(24, 3)
        table[[0, 7]] = np.nan
        index = nearest_neighbours(table, k=22, num_valid=22, block_size=5)
        np.testing.assert_array_equal(index[:22], sorted_ids(table, 22))
        healthy = np.delete(np.arange(22), [0, 7])
        self.assertFalse(np.isin(index[healthy, :20], [0, 7]).any())
        self.assertLess(index.max(), 22)

    @parameterized.parameters(8, 10, 40)
    def test_sharded_table_gives_the_same_index(self, block_size: int):
        mesh = jax.make_mesh(
            (4,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4]
        )
        table = small_integers(40, 8)
        sharded = jax.device_put(table, NamedSharding(mesh, P("model")))
        self.assertLen({shard.device for shard in sharded.addressable_shards}, 4)
        self.assertEqual(sharded.addressable_shards[0].data.shape, (10, 8))
        index = nearest_neighbours(sharded, k=6, num_valid=37, block_size=block_size)
        expected = nearest_neighbours(table, k=6, num_valid=37, block_size=block_size)
        np.testing.assert_array_equal(index, expected)

    @parameterized.parameters((40, 21), (720, 701), (720, 50))
    def test_unstable_selection_differs_in_the_last_tie_only(self, vocab_size, num_valid):
        top_k = jax.lax.top_k

        def last_first(scores, k, is_stable):
            self.assertFalse(is_stable)
            best, places = top_k(scores[:, ::-1], k)
            return best, scores.shape[1] - 1 - places

        table = two_stage_table()[:vocab_size]
        table[7] = np.nan
        table = jnp.asarray(table)
        with (
            mock.patch.object(jax, "default_backend", return_value="gpu"),
            mock.patch.object(jax.lax, "top_k", last_first),
            mock.patch.object(neighbours, "_UNSTABLE", {"is_stable": False}),
        ):
            index = nearest_neighbours.__wrapped__(table, k=10, num_valid=num_valid)[:num_valid]
        index, expected = np.asarray(index), sorted_ids(np.asarray(table), num_valid)[:, :10]
        self.assertTrue((index != expected).any())
        scores = np.asarray(table[:num_valid] @ table[:num_valid].T)
        scores = np.nan_to_num(scores, nan=-1e30)
        actual, best = (np.take_along_axis(scores, x, axis=1) for x in (index, expected))
        np.testing.assert_array_equal(actual, best)
        certain = best > best[:, -1:]
        np.testing.assert_array_equal(index[certain], expected[certain])
        falls = (np.diff(best) < 0) | (np.diff(index) > 0)
        self.assertTrue(falls.all())

    @parameterized.parameters(*neighbours.SCORES)
    def test_float32_products_are_not_cut_short(self, scores: str):
        # Accelerators round the inputs of a float32 product unless told; a CPU never does.
        search = functools.partial(nearest_neighbours, k=8, num_valid=701, scores=scores)
        text = str(jax.make_jaxpr(search)(two_stage_table()))
        # The proof takes five lengths, as products.
        products = {"float32": 1, "bfloat16": 2, "bfloat16_exact": 3 + 5}[scores]
        self.assertEqual(text.count("dot_general["), products)
        self.assertEqual(text.count("HIGHEST"), 2 * text.count("dot_general["))

    def test_within_another_jit(self):
        table = jnp.asarray(two_stage_table())

        @jax.jit
        def twice(table, ids):
            return nearest_neighbours(2 * table, k=8, num_valid=701, query_ids=ids)

        expected = nearest_neighbours(table, k=8, num_valid=701)
        np.testing.assert_array_equal(twice(table, jnp.arange(5, 50)), expected[5:50])

    def test_jit_equals_eager(self):
        table = jnp.asarray(small_integers(13, 4))
        compiled = nearest_neighbours(table, k=4, num_valid=12, block_size=5)
        with jax.disable_jit():
            eager = nearest_neighbours(table, k=4, num_valid=12, block_size=5)
        np.testing.assert_array_equal(compiled, eager)

    @parameterized.parameters((0, 5), (6, 5), (3, 11))
    def test_numbers_that_do_not_fit_the_table_are_named(self, k: int, num_valid: int):
        message = f"k is {k}, num_valid {num_valid}: must be 1 <= k <= num_valid <= 10"
        with self.assertRaisesRegex(ValueError, message):
            nearest_neighbours(small_integers(10, 2), k=k, num_valid=num_valid)

    def test_block_size_below_one(self):
        with self.assertRaisesRegex(ValueError, "block_size is 0, must be at least 1"):
            nearest_neighbours(small_integers(10, 2), k=2, num_valid=10, block_size=0)

    def test_unknown_scores(self):
        with self.assertRaisesRegex(ValueError, "scores is 'int8', must be one of .*'bfloat16'"):
            nearest_neighbours(small_integers(10, 2), k=2, num_valid=10, scores="int8")


class BFloat16ScoresTest(parameterized.TestCase):
    def test_numbers_that_bfloat16_holds_give_the_exact_index(self):
        table = two_stage_table()
        index = nearest_neighbours(table, k=10, num_valid=701, scores="bfloat16")
        np.testing.assert_array_equal(index[:701], sorted_ids(table, 701)[:, :10])

    @parameterized.parameters(60, 720)
    def test_equals_selection_by_bfloat16_and_order_by_float32(self, vocab_size: int):
        # Words in small clusters: many scores lie closer together than bfloat16 tells apart.
        rng = np.random.default_rng(6)
        centres = rng.normal(size=(vocab_size // 30, 16)).repeat(30, axis=0)
        table = (centres + 0.004 * rng.normal(size=centres.shape)).astype(np.float32)
        k = 7
        short = jnp.asarray(table, jnp.bfloat16).astype(jnp.float32)
        selected = sorted_ids(np.asarray(short), vocab_size)[:, : 2 * k]
        exact = np.take_along_axis(table.astype(np.float64) @ table.T, selected, axis=1)
        order = np.lexsort((selected, -exact), axis=1)[:, :k]
        expected = np.take_along_axis(selected, order, axis=1)
        index = np.asarray(
            nearest_neighbours(table, k=k, num_valid=vocab_size, block_size=16, scores="bfloat16")
        )
        self.assertGreater((index == expected).mean(), 0.999)  # sums round in another order
        self.assertTrue((expected != sorted_ids(table, vocab_size)[:, :k]).any())
        self.assertTrue((expected != selected[:, :k]).any())

    def test_the_spare_words_are_no_padding(self):
        table = two_stage_table(num_valid=12)
        index = nearest_neighbours(table, k=10, num_valid=12, scores="bfloat16")
        np.testing.assert_array_equal(index[:12], sorted_ids(table, 12)[:, :10])


def close_words(seed: int, spread: int = 4) -> np.ndarray:
    """[720, 16] float32 in clusters: more digits than bfloat16 has, and exact float32 scores."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(-800, 801, (24, 16)).repeat(30, axis=0)
    return (centres + rng.integers(-spread, spread + 1, centres.shape)).astype(np.float32)


class ProvenBFloat16Test(parameterized.TestCase):
    def assert_exact(self, table: np.ndarray, num_valid: int, k: int = 7) -> None:
        index = nearest_neighbours(
            table, k=k, num_valid=num_valid, block_size=32, scores="bfloat16_exact"
        )[:num_valid]
        np.testing.assert_array_equal(index, sorted_ids(table, num_valid)[:, :k])

    @parameterized.parameters(0, 1, 2)
    def test_exact_where_bfloat16_misses_neighbours(self, seed: int):
        table = close_words(seed)
        short = nearest_neighbours(table, k=7, num_valid=720, scores="bfloat16")
        self.assertTrue((short != sorted_ids(table, 720)[:, :7]).any())
        self.assert_exact(table, 720)
        self.assert_exact(table, 701)

    def test_proofs_are_right_and_not_rare(self):
        # Clusters of 8 and lists of 5: what bfloat16 selects besides them is far behind.
        rng = np.random.default_rng(5)
        table = rng.integers(-800, 801, (90, 16)).repeat(8, axis=0)
        table = (table + rng.integers(-100, 101, table.shape)).astype(np.float32)
        repaired = []
        original = neighbours._Search._in_float32

        def counted(search, words, grouped, ids):
            jax.debug.callback(lambda: repaired.append(len(ids)))
            return original(search, words, grouped, ids)

        with mock.patch.object(neighbours._Search, "_in_float32", counted):
            index = nearest_neighbours.__wrapped__(
                jnp.asarray(table), k=5, num_valid=720, block_size=16, scores="bfloat16_exact"
            )
            jax.effects_barrier()
        np.testing.assert_array_equal(index, sorted_ids(table, 720)[:, :5])
        self.assertLess(sum(repaired), 720 // 2)

    def test_one_long_word_and_small_ones(self):
        table = close_words(4)
        table[3] *= 64
        table[500:] /= 512
        self.assert_exact(table, 720)

    def test_equal_scores_infinite_words_and_nan(self):
        self.assert_exact(np.ones((720, 16), np.float32), 701)
        self.assert_exact(two_stage_table(), 701)
        table = two_stage_table()
        table[[5, 100]] = np.nan
        table[650] = np.inf
        exact = nearest_neighbours(table, k=5, num_valid=701)
        index = nearest_neighbours(table, k=5, num_valid=701, scores="bfloat16_exact")
        np.testing.assert_array_equal(index[:701], exact[:701])

    @parameterized.parameters(2, 30)
    def test_the_bound_holds(self, width: int):
        rng = np.random.default_rng(width)
        # Half of the words lie along a query's rounding error, the worst direction there is.
        queries = rng.normal(size=(20, width)).astype(np.float32)
        errors = queries - np.asarray(jnp.asarray(queries, jnp.bfloat16), np.float32)
        errors /= np.linalg.norm(errors, axis=1, keepdims=True)
        table = np.concatenate([errors, rng.normal(size=(20, width))]).astype(np.float32)
        short = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (queries, table)]
        excess = queries.astype(np.float64) @ table.T - short[0] @ short[1].T
        search = neighbours._Search(1, 40, "bfloat16_exact", (), 1, ())
        words = neighbours._Words(jnp.asarray(table), 0, jnp.int32(40))
        bound = np.asarray(search._rounding(words).bound(jnp.asarray(queries)))
        self.assertTrue((excess.max(axis=1) < bound).all())
        self.assertLess((bound / np.abs(excess).max(axis=1)).min(), 4)


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    sizes = tuple(axes.values())
    return jax.make_mesh(
        sizes, tuple(axes), (AxisType.Auto,) * len(axes), devices=jax.devices()[: np.prod(sizes)]
    )


MESHES = (
    ({"data": 2, "model": 4}, ("model",)),
    ({"data": 2, "fsdp": 2, "model": 2}, ("model", "fsdp")),
    ({"data": 2, "model": 2}, ()),
)


class ShardedTest(parameterized.TestCase):
    def assert_equals_single(self, table, axes, vocab_axes, **options):
        mesh = mesh_of(**axes)
        sharded = jax.device_put(table, NamedSharding(mesh, P(vocab_axes or None)))
        actual = nearest_neighbours(sharded, mesh=mesh, vocab_axes=vocab_axes, **options)
        np.testing.assert_array_equal(actual, nearest_neighbours(table, **options))

    @parameterized.parameters(*MESHES)
    def test_equals_a_single_device(self, axes, vocab_axes):
        # 360 or 180 words a device: one stage or two. Ties everywhere, NaN, padding.
        table = two_stage_table()
        table[[100, 650]] = np.nan
        for options in (
            {"k": 5, "num_valid": 701, "block_size": 33},
            {"k": 30, "num_valid": 701, "block_size": 1024},
            {"k": 5, "num_valid": 701, "scores": "bfloat16"},
            {"k": 5, "num_valid": 701, "block_size": 33, "scores": "bfloat16_exact"},
            {"k": 5, "num_valid": 701, "query_ids": jnp.array([700, 0, 100, 99, 5, 5, 350])},
        ):
            with self.subTest(str(options)):
                self.assert_equals_single(table, axes, vocab_axes, **options)

    @parameterized.parameters(*MESHES[:2])
    def test_more_neighbours_than_a_device_has_words(self, axes, vocab_axes):
        table = small_integers(40, 3)
        for num_valid in (13, 40):  # 13: some devices have padding only
            for scores in neighbours.SCORES:
                self.assert_equals_single(
                    table, axes, vocab_axes, k=13, num_valid=num_valid, scores=scores
                )

    @parameterized.parameters(*MESHES)
    def test_repairs_over_devices(self, axes, vocab_axes):
        self.assert_equals_single(
            close_words(0), axes, vocab_axes, k=7, num_valid=701, scores="bfloat16_exact"
        )

    @parameterized.parameters("float32", "bfloat16")
    def test_real_numbers_in_clusters(self, scores: str):
        rng = np.random.default_rng(7)
        table = rng.normal(size=(24, 16)).repeat(30, axis=0)
        table = (table + 0.05 * rng.normal(size=table.shape)).astype(np.float32)
        axes = {"data": 2, "model": 4}
        self.assert_equals_single(table, axes, ("model",), k=5, num_valid=701, scores=scores)

    def test_no_device_holds_the_table_or_the_scores_of_others(self):
        mesh = mesh_of(data=2, model=4)
        table = jax.ShapeDtypeStruct(
            (720, 24), jnp.float32, sharding=NamedSharding(mesh, P("model"))
        )
        compiled = nearest_neighbours.lower(
            table, k=5, num_valid=701, block_size=16, mesh=mesh, vocab_axes=("model",)
        ).compile()
        text = compiled.as_text()
        self.assertIn("180,24]", text)  # what a device has: 180 rows
        self.assertNotRegex(text, r"\[(72\d|736),24\]|24,(72\d|736)\]")
        # 720 words over 8 devices make 90 queries each, in 6 blocks of 16, for a team of 4.
        self.assertIn('"known_trip_count":{"n":"6"}', text)
        self.assertRegex(text, r"f32\[64,(32,6|192)\]\S* dot\(")

    def test_axes_that_are_none_and_tables_that_do_not_divide(self):
        search = functools.partial(nearest_neighbours, k=2, num_valid=10)
        with self.assertRaisesRegex(ValueError, r"vocab_axes are \('model',\), must be axes"):
            search(small_integers(12, 2), vocab_axes=("model",))
        with self.assertRaisesRegex(
            ValueError, "has 10 rows, .* of the 4 devices .*vocab_multiple"
        ):
            search(small_integers(10, 2), mesh=mesh_of(model=4), vocab_axes=("model",))


class InclusionTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 4)
    def test_equals_enumeration_of_all_batches(self, num_targets: int):
        # Words 0 and 3 do not list themselves, and word 4 is never a target nor a neighbour.
        lists = np.array([[1, 2], [1, 0], [2, 3], [1, 2], [4, 0]])
        p = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
        chance = np.zeros(5)
        for targets in itertools.product(range(5), repeat=num_targets):
            union = set(targets) | set(lists[list(targets)].ravel())
            chance[list(union)] += p[list(targets)].prod()
        q = inclusion(jnp.asarray(lists), jnp.asarray(p))
        self.assertEqual((q.dtype, q[4]), (jnp.float32, 0))
        if num_targets == 1:
            np.testing.assert_allclose(q, chance, rtol=1e-6)
        actual = log_inclusion(q, num_targets)
        self.assertEqual(actual.dtype, jnp.float32)
        np.testing.assert_allclose(actual[:4], np.log(chance[:4]), rtol=1e-5, atol=1e-6)
        self.assertEqual(chance[4], 0)

    def test_rare_words_keep_their_precision(self):
        # Q is W p for rare words, far below what 1 - (1 - p)^W could resolve in float32.
        q = jnp.array([1 - 3e-9, 1e-9, 2e-9])
        actual = log_inclusion(q, 100)
        np.testing.assert_allclose(actual, [0, np.log(1e-7), np.log(2e-7)], rtol=1e-5, atol=1e-6)

    def test_log_is_finite_at_most_zero_and_elementwise(self):
        q = jnp.array([[0.0, 1e-30, 1e-9, 0.5], [0.5, 1.0, 1.0000002, 0.1]])
        actual = log_inclusion(q, 3)
        self.assertEqual(actual.shape, q.shape)
        self.assertTrue(np.isfinite(actual).all())
        self.assertLessEqual(actual.max(), 0)
        np.testing.assert_array_equal(actual[0, 3], actual[1, 0])
        np.testing.assert_allclose(actual[1, 3], np.log(1 - 0.9**3), rtol=1e-6)


if __name__ == "__main__":
    absltest.main()
