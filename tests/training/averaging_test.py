"""The mean of trees of parameters, sharded or not."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xlm.training.averaging import mean_params, ties

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


class TiesTest(parameterized.TestCase):
    @parameterized.parameters(0.0, 0.2, 0.5, 1.0)
    def test_parameter_by_parameter(self, density):
        rng = np.random.default_rng(0)
        base, *branches = (
            {"a": rng.normal(size=(5, 4)).astype("f"), "b": rng.normal(size=10).astype("f")}
            for _ in range(4)
        )
        flat = [np.concatenate([one["a"].ravel(), one["b"]]) for one in (base, *branches)]
        differences = [one - flat[0] for one in flat[1:]]
        for one in differences:
            kept = round(density * 30)
            one[np.argsort(-np.abs(one))[kept:]] = 0
        expected = flat[0].copy()
        for i in range(30):
            values = [one[i] for one in differences]
            agreeing = [x for x in values if x * sum(values) > 0]
            expected[i] += np.mean(agreeing) if agreeing else 0
        found = ties(base, iter(branches), density)
        found = np.concatenate([found["a"].ravel(), found["b"]])
        np.testing.assert_allclose(found, expected, atol=1e-6)
