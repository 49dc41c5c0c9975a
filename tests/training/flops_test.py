"""Products of matrices counted by hand."""

import jax
import jax.numpy as jnp
from absl.testing import parameterized
from jax.sharding import PartitionSpec as P

from xlm.training.flops import matmul_flops
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh

X, W = jnp.ones((3, 5)), jnp.ones((5, 5))
ONE = 2 * 3 * 5 * 5


def count(function, *args) -> float:
    return matmul_flops(jax.jit(function).trace(*args).jaxpr)


class FlopsTest(parameterized.TestCase):
    def test_products(self):
        self.assertEqual(count(lambda x, w: jnp.tanh(x @ w) + x, X, W), ONE)
        batched = jnp.ones((7, 3, 5)), jnp.ones((7, 5, 2))
        self.assertEqual(count(jnp.matmul, *batched), 2 * 7 * 3 * 5 * 2)
        self.assertEqual(count(lambda x: x + x, X), 0)
        # A gradient is two more: those of w and of x; that of the first x is not asked for.
        loss = lambda w, x: ((x @ w) @ w).sum()  # noqa: E731
        self.assertEqual(count(jax.grad(loss), W, X), (2 + 3) * ONE)

    @parameterized.parameters(True, False)
    def test_loops_of_known_length(self, scan):
        def repeated(x, w):
            if scan:
                return jax.lax.scan(lambda x, _: (x @ w, None), x, length=4)[0]
            return jax.lax.fori_loop(0, 4, lambda _, x: x @ w, x)

        self.assertEqual(count(repeated, X, W), 4 * ONE)

    def test_the_costliest_branch(self):
        def branches(i, x, w):
            return jax.lax.switch(i, [lambda: x, lambda: x @ w @ w, lambda: x @ w])

        self.assertEqual(count(branches, 0, X, W), 2 * ONE)

    def test_functions_in_functions(self):
        @jax.custom_vjp
        def product(x, w):
            return x @ w

        product.defvjp(lambda x, w: (x @ w, w), lambda w, g: (g @ w.T, w))
        self.assertEqual(count(lambda x, w: jax.jit(product)(x, w), X, W), ONE)
        remat = jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w)).sum())
        # Forward, forward again and the gradient of w.
        self.assertEqual(count(jax.value_and_grad(remat), W, X), 3 * ONE)

    def test_devices_do_not_change_it(self):
        mesh = make_mesh(MeshSettings(4, 1, 2, vocab_multiple=1, rules=()))

        def local(x, w):
            return jax.lax.psum(x @ w, "model")

        split = jax.shard_map(
            local, mesh=mesh, in_specs=(P("data", "model"), P("model")), out_specs=P("data")
        )
        x, w = jnp.ones((8, 6)), jnp.ones((6, 3))
        self.assertEqual(count(split, x, w), count(jnp.matmul, x, w))
