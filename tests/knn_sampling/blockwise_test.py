"""The blockwise loss against the full softmax: values, gradients and ignored positions."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.collectives import collectives_of
from knn_sampling.blockwise import DEFAULT_BLOCK_SIZE, blockwise_softmax_loss
from knn_sampling.losses import full_softmax_loss
from knn_sampling.table_sharding import ONE_DEVICE, TableSharding
from tests.knn_sampling.batches import assert_close, check_unused_positions, mesh_of, with_gradients

W, D, V, VALID = 12, 8, 300, 290
# Two weights are zero. The others differ, so exchanged gradients would show.
WEIGHTS = np.array([1, 0, 0.95, 0.25, 0.9, 0.8, 0, 0.7, 0.6, 0.5, 0.4, 0.3], np.float32)
MESH = mesh_of(data=2, model=4)
BY_DATA, BY_MODEL = (NamedSharding(MESH, PartitionSpec(axis)) for axis in MESH.axis_names)
POSITIONS, LARGE = 64, 16 * DEFAULT_BLOCK_SIZE
# The first, the last, and some next to the borders of blocks of 128.
TARGETS = np.array([0, 1, 127, 128, 129, 255, 256, 257, 172, 171, 289, 128], np.int32)


def random_inputs(dtype=np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    hidden, table, bias = (rng.normal(size=shape) for shape in ((W, D), (V, D), V))
    return hidden.astype(dtype), table.astype(np.float32), bias.astype(dtype)


@functools.partial(jax.jit, static_argnames=("block_size", "num_valid", "sharding"))
def _value_and_gradients(
    hidden, table, bias, targets=TARGETS, weights=WEIGHTS, *, block_size, num_valid=VALID,
    sharding=ONE_DEVICE,
):  # fmt: skip
    """Losses [W], and gradients of their sum for hidden states, table, bias and weights.

    A `block_size` of None is the full softmax.
    """

    def loss(hidden, table, bias, weights):
        args = hidden, targets, weights, table, bias
        if block_size is None:
            return full_softmax_loss(*args, num_valid=num_valid)
        options = {"num_valid": num_valid, "block_size": block_size, "sharding": sharding}
        return blockwise_softmax_loss(*args, **options)

    return with_gradients(loss, hidden, table, bias, weights)


def value_and_gradients(*inputs, **options):
    return jax.device_get(_value_and_gradients(*inputs, **options))


def lowered(shardings=(None,) * 5, **options):
    """The compiled program, with more classes than a block."""
    shapes = (POSITIONS, D), (LARGE, D), (LARGE,), (POSITIONS,), (POSITIONS,)
    dtypes = jnp.float32, jnp.float32, jnp.float32, jnp.int32, jnp.float32
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for shape, dtype, sharding in zip(shapes, dtypes, shardings, strict=True)
    ]
    options = {"block_size": DEFAULT_BLOCK_SIZE, "num_valid": LARGE, **options}
    return _value_and_gradients.lower(*arguments, **options).compile()


class BlockwiseSoftmaxLossTest(parameterized.TestCase):
    # One block, a class per block, sizes that divide V, leave a tail, or exceed V.
    @parameterized.parameters(
        (0, V), (0, VALID), (1, VALID), (50, VALID), (128, V), (128, VALID), (299, V), (1000, VALID)
    )
    def test_equals_the_full_softmax(self, block_size: int, num_valid: int):
        inputs = random_inputs()
        actual = value_and_gradients(*inputs, block_size=block_size, num_valid=num_valid)
        expected = value_and_gradients(*inputs, block_size=None, num_valid=num_valid)
        self.assertEqual(actual[0].dtype, jnp.float32)
        assert_close(actual, expected)

    @parameterized.parameters(0, 64, 128)
    def test_padding_rows_have_no_influence_and_no_gradient(self, block_size: int):
        hidden, table, bias = random_inputs()
        losses, expected = value_and_gradients(hidden, table, bias, block_size=block_size)
        table[VALID:], bias[VALID:] = 50.0, np.inf
        changed, gradients = value_and_gradients(hidden, table, bias, block_size=block_size)
        np.testing.assert_array_equal(changed, losses)
        assert_close(gradients, expected)
        for gradient in gradients[1:3]:
            np.testing.assert_array_equal(gradient[VALID:], 0)

    @parameterized.parameters(
        (np.nan, 0, 0), (np.inf, V + 5, 64), (1e30, -100, 64), (np.nan, V - 1, 64)
    )
    def test_positions_of_weight_zero_count_for_nothing(self, state, target, block_size):
        compute = functools.partial(value_and_gradients, block_size=block_size)
        check_unused_positions(compute, random_inputs(), TARGETS, WEIGHTS, state, target)

    @parameterized.parameters(-1e4, 1e4)
    def test_no_overflow(self, shift: float):
        # Softmax is invariant to shifts of all logits, also if logits rise from block to block.
        hidden, table, bias = random_inputs()
        bias = bias + np.float32(shift) + np.float32(30) * np.arange(V, dtype=np.float32)
        actual = value_and_gradients(hidden, table, bias, block_size=64)
        expected = value_and_gradients(hidden, table, bias, block_size=None)
        self.assertTrue(np.isfinite(actual[0]).all())
        # The tolerance for logits of 2e4 is 1e-3.
        assert_close(actual, expected, atol=2e-3)

    def test_bfloat16_hidden_states_and_a_float32_table(self):
        hidden, table, bias = random_inputs(jnp.bfloat16)
        losses, gradients = value_and_gradients(hidden, table, bias, block_size=64)
        self.assertEqual(losses.dtype, jnp.float32)
        dtypes = [gradient.dtype for gradient in gradients[:3]]
        self.assertEqual(dtypes, [jnp.bfloat16, jnp.float32, jnp.bfloat16])
        # Products of rounded factors are exact in float32, so only the factors are rounded.
        rounded = table.astype(jnp.bfloat16).astype(jnp.float32)
        exact = hidden.astype(jnp.float32), rounded, bias.astype(jnp.float32)
        expected_losses, expected = value_and_gradients(*exact, block_size=None)
        assert_close(losses, expected_losses)
        # dlogits are rounded by 2^-9 each, at most one in size: W terms for the table, about two
        # in sum for a hidden state, which is then rounded itself.
        bound = 2**-8 * np.abs(exact[0]).sum(axis=0)
        np.testing.assert_array_less(np.abs(gradients[1] - expected[1]) - bound[None, :], 0)
        # Sums are not rounded again on their way to the table.
        by_table = gradients[1][:VALID]
        self.assertGreater(np.mean(by_table != by_table.astype(jnp.bfloat16)), 0.9)
        by_hidden = gradients[0].astype(np.float32)
        assert_close(by_hidden, expected[0], rtol=2**-7, atol=2**-7 * np.abs(rounded).max())

    def test_products_of_bfloat16_accumulate_in_float32(self):
        # From the program, since compilers may keep more precision than requested.
        inputs = random_inputs(jnp.bfloat16)
        program = str(jax.make_jaxpr(lambda *x: _value_and_gradients(*x, block_size=64))(*inputs))
        products = re.findall(r":(\w+)\[[\d,]*\] = dot_general\[", program)
        self.assertEqual(products, ["f32"] * 4)

    # The last shard has only or some padding; blocks of 64 leave a tail in each shard.
    @parameterized.parameters((0, 296), (64, 290), (64, 222))
    def test_a_sharded_table_gives_the_same(self, block_size: int, num_valid: int):
        hidden, table, bias = random_inputs()
        table, bias, targets = table[:296], bias[:296], TARGETS % num_valid
        expected = value_and_gradients(
            hidden, table, bias, targets, block_size=None, num_valid=num_valid
        )
        places = BY_DATA, BY_MODEL, BY_MODEL, BY_DATA, BY_DATA
        inputs = jax.device_put((hidden, table, bias, targets, WEIGHTS), places)
        split = {"num_valid": num_valid, "sharding": TableSharding(MESH, ("model",))}
        assert_close(value_and_gradients(*inputs, block_size=block_size, **split), expected)

    def test_shards_exchange_nothing_of_the_table(self):
        """Normalisers, logits of targets and gradients of hidden states only."""
        places = BY_DATA, BY_MODEL, BY_MODEL, BY_DATA, BY_DATA
        compiled = lowered(places, sharding=TableSharding(MESH, ("model",)))
        collectives = collectives_of(compiled.as_text(), 8)
        over_model = [size for one in collectives if one.is_over(1, 4) for size in one.sizes]
        self.assertNotEmpty(over_model)
        self.assertLessEqual(max(over_model), POSITIONS * D)
        held = compiled.memory_analysis().temp_size_in_bytes
        self.assertLess(held, POSITIONS * LARGE * 4 / 8)

    @parameterized.parameters((1, 64), (64, 64), (65, 64), (VALID, 64), (10, 0))
    def test_blocks_past_the_classes_in_use_are_not_visited(self, num_used: int, block_size: int):
        hidden, table, bias = random_inputs()
        targets = TARGETS % num_used
        visited = -(-num_used // block_size) * block_size if block_size else V

        def loss(hidden, table, bias, num_used):
            return blockwise_softmax_loss(
                hidden, targets, WEIGHTS, table, bias,
                num_valid=V, block_size=block_size, num_used=num_used,
            ).sum()  # fmt: skip

        grad = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
        bias[num_used:] = -1e30
        expected = grad(hidden, table, bias, np.int32(V))
        table = np.where(np.arange(V)[:, None] < visited, table, np.float32(np.nan))
        assert_close(grad(hidden, table, bias, np.int32(num_used)), expected)

    def test_the_logits_are_never_held(self):
        held = lowered().memory_analysis().temp_size_in_bytes
        self.assertLess(held, POSITIONS * LARGE * 4 / 2)

    def test_a_negative_block_size_is_refused(self):
        with self.assertRaisesRegex(ValueError, "block_size is -1, must be at least 0"):
            value_and_gradients(*random_inputs(), block_size=-1)
