"""The mean of trees of parameters, sharded or not."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xlm.training.averaging import mean_params

SHARDING = NamedSharding(jax.make_mesh((4,), ("fsdp",), devices=jax.devices()[:4]), P("fsdp"))


def tree(seed: int):
    whole = np.random.default_rng(seed).normal(size=(8, 4)).astype(np.float32)
    return {"a": jax.device_put(whole, SHARDING), "b": [jnp.asarray(whole[0], jnp.bfloat16)]}


class AveragingTest(parameterized.TestCase):
    @parameterized.parameters(1, 5)
    def test_leaf_by_leaf(self, count):
        trees = [tree(seed) for seed in range(count)]
        found = mean_params(iter(trees))
        expected = np.mean([one["a"] for one in trees], axis=0)
        np.testing.assert_allclose(found["a"], expected, atol=1e-6)
        self.assertEqual(found["b"][0].dtype, jnp.bfloat16)
        self.assertTrue(found["a"].sharding.is_equivalent_to(SHARDING, 2), found["a"].sharding)
        # What was averaged is still there.
        jax.tree.map(np.testing.assert_array_equal, trees[0], tree(0))
