"""The index equals a sort of all scores: on one device and meshes, in float32 and with proof."""

import functools
import math
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from knn_sampling import neighbours
from knn_sampling.neighbours import SCORES, greatest_lengths, nearest_neighbours, rounding_bound
from tests.knn_sampling.batches import mesh_of


def small_integers(vocab_size: int, width: int, seed: int = 0) -> np.ndarray:
    """Rows with products that are exact in float32, many of them tied."""
    return np.random.default_rng(seed).integers(-2, 3, (vocab_size, width)).astype(np.float32)


def sorted_ids(table: np.ndarray, num_valid: int) -> np.ndarray:
    """All ids below `num_valid` for each row, sorted by (-score, id), NaN last."""
    tokens = table[:num_valid].astype(np.float64)
    scores = tokens @ tokens.T
    scores[np.isnan(scores)] = -np.inf
    ids = np.broadcast_to(np.arange(num_valid), scores.shape)
    return np.lexsort((ids, -scores), axis=1)


def with_rows(table: np.ndarray, rows, value: float) -> np.ndarray:
    table = table.copy()
    table[rows] = value
    return table


def two_stage_table(num_valid: int = 701) -> np.ndarray:
    """720 rows, enough for two stages with few neighbours; the best scores tie."""
    return with_rows(small_integers(720, 4, seed=5), slice(num_valid, None), 100.0)


def close_tokens(seed: int, spread: int = 4, size: int = 30) -> np.ndarray:
    """[720, 16] float32 in clusters: more digits than bfloat16 has, and exact float32 scores."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(-800, 801, (720 // size, 16)).repeat(size, axis=0)
    return (centres + rng.integers(-spread, spread + 1, centres.shape)).astype(np.float32)


def partly_proven() -> np.ndarray:
    """Clusters of 8 with a gap for lists of 5, then clusters without a gap."""
    return np.concatenate([close_tokens(5, spread=100, size=8)[:360], close_tokens(6, 1)[:360]])


def long_and_short_tokens() -> np.ndarray:
    table = close_tokens(4)
    table[3] *= 64
    table[500:] /= 512
    return table


def zeros_of_either_sign(vocab_size: int) -> np.ndarray:
    # The product of -1 with 0 is -0, with -0 it is 0.
    zeros = np.zeros((vocab_size, 1), np.float32)
    return with_rows(with_rows(zeros, slice(0, None, 3), -0.0), 1, -1)


def duplicates() -> np.ndarray:
    return np.random.default_rng(1).permutation(np.repeat(small_integers(8, 16), 3, axis=0))


# Scores are 1e-5 apart, so float32 rounding swaps none of the best.
REAL_NUMBERS = np.random.default_rng(2).normal(size=(200, 32)).astype(np.float32)
PADDED = with_rows(small_integers(24, 3), slice(21, None), 100.0)
# name, table, its tokens, k, queries at a time
TABLES = (
    ("one_token_at_a_time", small_integers(30, 3), 30, 5, 1),
    ("blocks_that_divide", small_integers(30, 3), 30, 30, 6),
    ("blocks_that_do_not_divide", small_integers(30, 3), 30, 1, 7),
    ("a_block_larger_than_the_table", small_integers(30, 3), 30, 5, 64),
    ("two_stages", two_stage_table(), 701, 20, 100),
    ("two_stages_for_the_nearest", two_stage_table(), 701, 1, 720),
    # 50 tokens are in 2 groups; 20 are requested, and the NaN among them come last.
    ("fewer_groups_than_wanted", with_rows(two_stage_table(50), [3, 40], np.nan), 50, 20, 256),
    ("nan_in_every_group", with_rows(two_stage_table(), slice(5, None, 32), np.nan), 701, 20, 100),
    ("fewer_tokens_than_bfloat16_selects", two_stage_table(12), 12, 10, 256),
    ("zeros_of_either_sign", zeros_of_either_sign(40), 40, 10, 256),
    ("zeros_in_two_stages", zeros_of_either_sign(720), 720, 10, 256),
    ("duplicates", duplicates(), 24, 24, 5),
    ("real_numbers", REAL_NUMBERS, 200, 10, 64),
    ("padding_that_would_win", PADDED, 21, 21, 9),
    ("nan_before_padding", with_rows(PADDED, [0, 7], np.nan), 21, 21, 9),
    ("all_equal", np.ones((720, 16), np.float32), 701, 7, 32),
    ("closer_than_bfloat16_tells", close_tokens(0), 720, 7, 32),
    ("closer_than_bfloat16_tells_padded", close_tokens(1), 701, 7, 32),
    ("long_and_short_tokens", long_and_short_tokens(), 720, 7, 32),
)

TWO_STAGES = functools.partial(nearest_neighbours, k=20, num_valid=701, block_size=100)


class NearestNeighboursTest(parameterized.TestCase):
    @parameterized.named_parameters(*TABLES)
    def test_equals_a_sort(self, table: np.ndarray, num_valid: int, k: int, block_size: int):
        options = {"k": k, "num_valid": num_valid, "block_size": block_size}
        for scores in SCORES:
            with self.subTest(scores):
                index = nearest_neighbours(table, scores=scores, **options)
                self.assertEqual((index.shape, index.dtype), ((len(table), k), jnp.int32))
                expected = sorted_ids(table, num_valid)[:, :k]
                np.testing.assert_array_equal(index[:num_valid], expected)
                self.assertLess(index.max(), num_valid)

    @parameterized.parameters(*SCORES)
    def test_values_of_padding_have_no_influence(self, scores: str):
        search = functools.partial(TWO_STAGES, scores=scores)
        expected = search(two_stage_table())[:701]
        for filler in (0.0, np.nan, np.inf):
            table = with_rows(two_stage_table(), slice(701, None), filler)
            np.testing.assert_array_equal(search(table)[:701], expected)

    def test_infinite_tokens_give_the_index_of_float32(self):
        table = with_rows(with_rows(two_stage_table(), [5, 100], np.nan), 650, np.inf)
        exact, by_proof = (TWO_STAGES(table, scores=scores) for scores in SCORES)
        np.testing.assert_array_equal(by_proof[:701], exact[:701])

    @parameterized.parameters((4, "bfloat16_exact"), (64, "float32"))
    def test_some_tokens_get_the_lists_they_have_in_the_whole(self, block_size: int, scores: str):
        table, ids = two_stage_table(), jnp.array([700, 3, 3, 0, 512, 64, 65, 9, 10])
        some = TWO_STAGES(table, scores=scores, query_ids=ids, block_size=block_size)
        np.testing.assert_array_equal(some, TWO_STAGES(table, scores=scores)[ids])

    def test_a_bfloat16_table_is_scored_in_float32(self):
        table = jnp.asarray(np.random.default_rng(3).normal(size=(60, 32)), jnp.bfloat16)
        expected = nearest_neighbours(table.astype(jnp.float32), k=10, num_valid=60)
        for scores in SCORES:
            index = nearest_neighbours(table, k=10, num_valid=60, scores=scores)
            np.testing.assert_array_equal(index, expected)
        rounded = jnp.dot(table, table.T)  # the result of bfloat16 scores
        self.assertTrue((jax.lax.top_k(rounded, 10)[1] != expected).any())

    @parameterized.parameters((40, 21), (720, 701), (720, 50))
    def test_unstable_selection_differs_in_the_last_tie_only(self, vocab_size, num_valid):
        top_k = jax.lax.top_k

        def last_first(scores, k, is_stable):
            self.assertFalse(is_stable)
            best, places = top_k(scores[:, ::-1], k)
            return best, scores.shape[1] - 1 - places

        table = with_rows(two_stage_table()[:vocab_size], 7, np.nan)
        with (
            mock.patch.object(jax, "default_backend", return_value="gpu"),
            mock.patch.object(jax.lax, "top_k", last_first),
            mock.patch.object(neighbours, "_UNSTABLE", {"is_stable": False}),
        ):
            search = functools.partial(nearest_neighbours.__wrapped__, k=10, num_valid=num_valid)
            index = jax.jit(search)(table)
        index, expected = np.asarray(index)[:num_valid], sorted_ids(table, num_valid)[:, :10]
        self.assertTrue((index != expected).any())
        self.assertLess(index.max(), num_valid)
        scores = np.nan_to_num(table[:num_valid] @ table[:num_valid].T, nan=-1e30)
        actual, best = (np.take_along_axis(scores, x, axis=1) for x in (index, expected))
        np.testing.assert_array_equal(actual, best)
        certain = best > best[:, -1:]
        np.testing.assert_array_equal(index[certain], expected[certain])
        falls = (np.diff(best) < 0) | (np.diff(index) > 0)
        self.assertTrue(falls.all())

    def test_only_lists_without_proof_are_made_anew(self):
        table, repaired, original = partly_proven(), [], neighbours._in_float32

        def counted(shard, k):
            answer = original(shard, k)

            def wrapped(local_ids):
                jax.debug.callback(lambda: repaired.append(local_ids.size))
                return answer(local_ids)

            return wrapped

        options = {"k": 5, "num_valid": 720, "block_size": 16, "scores": "bfloat16_exact"}
        with mock.patch.object(neighbours, "_in_float32", counted):
            search = functools.partial(nearest_neighbours.__wrapped__, **options)
            index = jax.jit(search)(table)
            jax.effects_barrier()
        np.testing.assert_array_equal(index, sorted_ids(table, 720)[:, :5])
        self.assertBetween(sum(repaired), 300, 400)

    @parameterized.parameters(("float32", 1), ("bfloat16_exact", 3 + 5))
    def test_products_are_not_cut_short(self, scores: str, products: int):
        # By default accelerators round the inputs of float32 products; CPUs never do.
        search = functools.partial(nearest_neighbours, k=8, num_valid=701, scores=scores)
        text = str(jax.make_jaxpr(search)(two_stage_table()))
        # The proof uses five lengths, as products.
        self.assertEqual(text.count("dot_general["), products)
        self.assertEqual(text.count("HIGHEST"), 2 * text.count("dot_general["))

    @parameterized.parameters((32_767, "float32"), (32_768, "bfloat16_exact"))
    def test_derived_choices_are_those_named(self, vocab_size: int, scores: str):
        table = jax.ShapeDtypeStruct((vocab_size, 2), jnp.float32)
        search = functools.partial(nearest_neighbours, k=2, num_valid=9)
        derived, named, other = (
            str(jax.make_jaxpr(functools.partial(search, **options))(table))
            for options in ({}, {"scores": scores, "block_size": 256}, {"block_size": 255})
        )
        self.assertEqual(derived, named)
        self.assertNotEqual(derived, other)
        self.assertEqual("bf16" in derived, scores == "bfloat16_exact")

    @parameterized.parameters(
        ({"k": 0, "num_valid": 5}, "output_layer.k is 0, must be between 1 and the 5 tokens"),
        ({"k": 6, "num_valid": 5}, "output_layer.k is 6, must be between 1 and the 5 tokens"),
        ({"k": 3, "num_valid": 11}, "the 11 tokens of a table of 10 rows"),
        ({"block_size": 0}, "block_size is 0, must be at least 1"),
        ({"scores": "bfloat16"}, "scores is 'bfloat16', must be one of .*'float32'"),
    )
    def test_errors(self, options: dict, message: str):
        with self.assertRaisesRegex(ValueError, message):
            nearest_neighbours(small_integers(10, 2), **({"k": 2, "num_valid": 10} | options))


# Mesh, vocab_axes, embed_axes.
MESHES = (
    ({"data": 2, "model": 4}, ("model",), ()),
    ({"data": 2, "fsdp": 2, "model": 2}, ("model",), ("fsdp",)),
    ({"data": 2, "fsdp": 2, "model": 2}, ("model", "fsdp"), ()),
    ({"fsdp": 8}, (), ("fsdp",)),
    ({"data": 7}, (), ()),  # 720 rows do not split evenly
)


class ShardedTest(parameterized.TestCase):
    def assert_equals_single(self, table, axes, vocab_axes, embed_axes, **options):
        mesh = mesh_of(**axes)
        layout = NamedSharding(mesh, P(vocab_axes or None, embed_axes or None))
        split = {"mesh": mesh, "vocab_axes": vocab_axes, "embed_axes": embed_axes}
        actual = nearest_neighbours(jax.device_put(table, layout), **split, **options)
        np.testing.assert_array_equal(actual, nearest_neighbours(table, **options))

    @parameterized.parameters(*MESHES)
    def test_equals_a_single_device(self, axes, vocab_axes, embed_axes):
        # 360 or 180 tokens a device: one stage or two. Ties everywhere, NaN, padding.
        tied = np.pad(with_rows(two_stage_table(), [100, 650], np.nan), ((0, 0), (0, 12)))
        for table, options in (
            (tied, {"k": 5, "block_size": 33}),
            (tied, {"k": 30, "block_size": 1024}),
            (tied, {"k": 5, "block_size": 33, "scores": "bfloat16_exact"}),
            (close_tokens(0), {"k": 5, "block_size": 33, "scores": "bfloat16_exact"}),
        ):
            with self.subTest(str(options)):
                self.assert_equals_single(
                    table, axes, vocab_axes, embed_axes, num_valid=701, **options
                )

    @parameterized.parameters({"num_valid": 40}, {"num_valid": 13, "scores": "bfloat16_exact"})
    def test_more_neighbours_than_a_device_has_tokens(self, **options):
        # With 13 tokens some devices have padding only.
        self.assert_equals_single(small_integers(40, 4), *MESHES[1], k=13, **options)

    @parameterized.parameters(8, 40)
    def test_a_table_that_nobody_says_is_split(self, block_size: int):
        table = small_integers(40, 8)
        search = functools.partial(nearest_neighbours, k=6, num_valid=37, block_size=block_size)
        split = jax.device_put(table, NamedSharding(mesh_of(model=4), P("model")))
        self.assertEqual(split.addressable_shards[0].data.shape, (10, 8))
        np.testing.assert_array_equal(search(split), search(table))

    @parameterized.parameters(*SCORES)
    def test_no_device_holds_more_rows_or_scores_than_its_share(self, scores: str):
        mesh = mesh_of(data=2, fsdp=2, model=2)
        split = {"mesh": mesh, "vocab_axes": ("model",), "embed_axes": ("fsdp",)}
        layout = NamedSharding(mesh, P("model", "fsdp"))
        table = jax.ShapeDtypeStruct((720, 24), jnp.float32, sharding=layout)
        lowered = nearest_neighbours.lower(
            table, k=5, num_valid=701, block_size=16, scores=scores, **split
        )
        text = lowered.compile().as_text()
        # Teams of 4: 180 rows each, which make 6 groups of 32, 192 rows; 64 queries, of which each
        # has 2 k rows recomputed.
        shapes = re.findall(r"\[([\d,]+),24\]", text)
        sizes = {math.prod(map(int, shape.split(","))) for shape in shapes}
        self.assertContainsSubset({180, 192, 64}, sizes)
        self.assertEqual(max(sizes), 192 if scores == "float32" else 64 * 10)
        gathered = re.findall(r"= (\S+) all-gather\(", text)
        self.assertContainsSubset({"f32[64,24]{1,0}"}, set(gathered))  # queries of a team
        self.assertLen(set(gathered), 1)
        self.assertRegex(text, r"f32\[180,12\].* all-to-all\(")
        # 90 queries of each device, in 6 blocks of 16, for a team of 4.
        self.assertIn('"known_trip_count":{"n":"6"}', text)
        self.assertRegex(text, r"f32\[64,(32,6|192)\]\S* dot\(")

    @parameterized.parameters(2, 8)
    def test_the_memory_of_a_block_does_not_grow_with_the_team(self, num_devices: int):
        mesh, most = mesh_of(fsdp=num_devices), 2**18
        layout = NamedSharding(mesh, P(None, "fsdp"))
        table = jax.ShapeDtypeStruct((4096, 64), jnp.float32, sharding=layout)
        split = {"mesh": mesh, "embed_axes": ("fsdp",), "scores": "bfloat16_exact"}
        search = functools.partial(nearest_neighbours.__wrapped__, k=20, num_valid=4096, **split)
        with mock.patch.object(neighbours, "_NUMBERS_AT_A_TIME", most):
            compiled = jax.jit(search).lower(table).compile()
        # Rows and groups of 4 and 2 bytes; scores and recomputed rows of a block, each with copies.
        share = table.size // num_devices
        temporary = compiled.memory_analysis().temp_size_in_bytes
        self.assertLess(temporary, 4 * 4 * share + 2 * 4 * most)

    def test_errors(self):
        search = functools.partial(nearest_neighbours, small_integers(10, 2), k=2, num_valid=10)
        with self.assertRaisesRegex(ValueError, "has 10 rows, .* the 4 devices .*vocab_multiple"):
            search(mesh=mesh_of(model=2, fsdp=2), vocab_axes=("model",), embed_axes=("fsdp",))
        with self.assertRaisesRegex(ValueError, "query_ids are given, must be None on a mesh"):
            search(mesh=mesh_of(model=2), query_ids=jnp.arange(2))


def bfloat16(x: np.ndarray) -> np.ndarray:
    return x.astype(jnp.bfloat16).astype(np.float32)


@jax.jit
def bound_of(queries: jax.Array, rows: jax.Array) -> jax.Array:
    return rounding_bound(queries, greatest_lengths(rows))


class RoundingBoundTest(parameterized.TestCase):
    @parameterized.parameters(2, 30)
    def test_covers_rounding_and_not_much_more(self, width: int):
        rng = np.random.default_rng(width)
        # Half of the rows lie along a query's rounding error, the worst direction.
        queries = rng.normal(size=(20, width)).astype(np.float32)
        errors = queries - bfloat16(queries)
        errors /= np.linalg.norm(errors, axis=1, keepdims=True)
        rows = np.concatenate([errors, rng.normal(size=(20, width))]).astype(np.float32)
        exact = queries.astype(np.float64) @ rows.T
        excess = exact - bfloat16(queries).astype(np.float64) @ bfloat16(rows).T
        bound = np.asarray(bound_of(queries, rows))
        self.assertTrue((excess.max(axis=1) < bound).all())
        self.assertLess((bound / np.abs(excess).max(axis=1)).min(), 4)

    @parameterized.parameters(4, 64, 1024)
    def test_covers_the_sums_of_numbers_that_bfloat16_holds(self, width: int):
        # Added one by one, ones and threes are lost beside 2^24, whose cancellation leaves nothing.
        rows = np.ones((2, width), np.float32)
        rows[1] = 3
        rows[:, 0], rows[:, -1] = 2**24, -(2**24)
        query = np.ones((1, width), np.float32)
        np.testing.assert_array_equal(bfloat16(rows), rows)
        one_by_one = np.cumsum(rows * query, axis=1, dtype=np.float32)[:, -1]
        errors = np.abs((rows.astype(np.float64) * query).sum(axis=1) - one_by_one)
        self.assertGreater(errors.min(), 0)
        # Both scores of a comparison can have this error.
        (bound,) = np.asarray(bound_of(query, rows))
        self.assertGreater(bound, 2 * errors.max())

    @parameterized.parameters(np.nan, np.inf)
    def test_is_infinite_where_numbers_are_not_finite(self, value: float):
        finite = np.ones((3, 4), np.float32)  # exact in bfloat16: an error of 0
        broken = finite.copy()
        broken[1, 2] = value
        np.testing.assert_array_equal(bound_of(finite, broken), [np.inf] * 3)
        np.testing.assert_array_equal(np.isinf(bound_of(broken, finite)), [False, True, False])
