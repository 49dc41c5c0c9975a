"""Sizes by hand; the branch that is taken is the smallest that holds what is needed."""

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from knn_sampling.sampled_layers import bucket_sizes, loss_in_bucket

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
