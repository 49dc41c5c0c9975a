"""Sizes by hand; the branch that is taken is the smallest that holds what is needed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.sampled_layers import bucket_sizes, loss_in_bucket

SIZES = (3, 5, 12)


class BucketSizesTest(parameterized.TestCase):
    @parameterized.parameters(
        (1024, 4, (256, 512, 768, 1024)),
        (1000, 4, (256, 512, 768, 1000)),
        (1000, 1, (1000,)),
        (1000, 3, (384, 768, 1000)),
        (300, 2, (256, 300)),
        (300, 50, (128, 256, 300)),
        (128, 4, (128,)),
        (100, 4, (100,)),
    )
    def test_by_hand(self, capacity: int, num_buckets: int, sizes: tuple[int, ...]):
        self.assertEqual(bucket_sizes(capacity, num_buckets), sizes)

    def test_the_largest_is_the_capacity_and_the_others_are_whole_tiles(self):
        for capacity in range(1, 1500, 37):
            for num_buckets in (1, 2, 3, 8):
                *smaller, largest = bucket_sizes(capacity, num_buckets)
                self.assertEqual(largest, capacity)
                self.assertLess(len(smaller), num_buckets)
                self.assertEqual(smaller, sorted(set(smaller)))
                self.assertEqual([size % 128 for size in smaller], [0] * len(smaller))
                self.assertLess(max(smaller, default=0), capacity)
                # Even: what needs a share of the capacity gets at most a tile more than that.
                for share in range(1, num_buckets + 1):
                    needed = capacity * share / num_buckets
                    size = min(size for size in (*smaller, largest) if size >= needed)
                    self.assertLess(size - needed, 128)


class LossInBucketTest(parameterized.TestCase):
    @parameterized.parameters(
        (0, 3), (1, 3), (3, 3), (4, 5), (5, 5), (6, 12), (12, 12), (13, 12), (999, 12)
    )
    def test_the_smallest_that_fits_is_computed_and_no_other(self, needed: int, size: int):
        computed = []

        def loss(x: jax.Array, size: int) -> jax.Array:
            jax.debug.callback(lambda _: computed.append(size), x)
            return x * size

        run = jax.jit(lambda x, needed: loss_in_bucket(loss, SIZES, needed, x))
        self.assertEqual(run(jnp.float32(2), jnp.int32(needed)), 2 * size)
        jax.effects_barrier()
        self.assertEqual(computed, [size])

    @parameterized.parameters(0, 2, 4, 9, 12)
    def test_value_and_gradients_are_those_of_the_largest(self, needed: int):
        rng = np.random.default_rng(needed)
        hidden, rows = (
            jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 3), (12, 3))
        )
        kept = jnp.arange(12) < needed

        def loss(hidden: jax.Array, rows: jax.Array, size: int) -> jax.Array:
            products = jnp.tanh(rows[:size] @ hidden.T)  # [size, 4]
            return jnp.where(kept[:size, None], products, 0).sum(axis=0)

        @functools.partial(jax.jit, static_argnums=0)
        def gradients(sizes: tuple[int, ...], *args: jax.Array):
            def total(*args: jax.Array):
                losses = loss_in_bucket(loss, sizes, jnp.int32(needed), *args)
                return (losses * jnp.arange(4)).sum(), losses

            return jax.grad(total, (0, 1), has_aux=True)(*args)

        # Sums of a dozen terms of order one, in another order: off by 1e-6.
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
        jax.tree.map(check, gradients(SIZES, hidden, rows), gradients((12,), hidden, rows))


if __name__ == "__main__":
    absltest.main()
