"""The mean of trees of parameters, sharded or not."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xlm.training.averaging import mean_params


def tree(seed: int):
    rng = np.random.default_rng(seed)
    return {
        "a": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32),
        "b": [jnp.asarray(rng.normal(size=3), jnp.bfloat16)],
    }


class AveragingTest(parameterized.TestCase):
    @parameterized.parameters(1, 5)
    def test_leaf_by_leaf(self, count):
        trees = [tree(seed) for seed in range(count)]
        found = mean_params(iter(trees))
        expected = np.mean([one["a"] for one in trees], axis=0)
        np.testing.assert_allclose(found["a"], expected, atol=1e-6)
        self.assertEqual(found["b"][0].dtype, jnp.bfloat16)
        # What was averaged is still there.
        jax.tree.map(np.testing.assert_array_equal, trees[0], tree(0))

    def test_shardings_stay(self):
        sharding = NamedSharding(
            jax.make_mesh((4,), ("fsdp",), devices=jax.devices()[:4]), P("fsdp")
        )
        trees = [jax.device_put(tree(seed)["a"], sharding) for seed in range(3)]
        found = mean_params(trees)
        self.assertTrue(found.sharding.is_equivalent_to(sharding, 2), found.sharding)
        np.testing.assert_array_equal(found, mean_params(tree(s)["a"] for s in range(3)))
