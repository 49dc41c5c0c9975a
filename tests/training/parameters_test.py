"""The table of parameters."""

import jax
import jax.numpy as jnp
from absl.testing import absltest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh
from xlm.training.state import parameter_table


class ParameterTableTest(absltest.TestCase):
    def test_it_tells_all_and_the_sum(self):
        mesh = make_mesh(MeshSettings(2, 2, 2, vocab_multiple=1, rules=()))

        def array(spec, *shape, dtype=jnp.float32):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

        params = {
            "embeddings": {"table": array(P("model", ("data", "fsdp")), 1000, 32)},
            "head": {"bias": array(P(), 1000, dtype=jnp.bfloat16), "scale": array(P())},
        }
        expected = (
            "parameter         shape       type      split over           count",
            "embeddings/table  [1000, 32]  float32   (model, data+fsdp)  32,000",
            "head/bias         [1000]      bfloat16  ()                   1,000",
            "head/scale        []          float32   ()                       1",
            "all                                                         33,001",
        )
        self.assertEqual(parameter_table(params), "\n".join(expected))
        concrete = parameter_table({"w": jnp.zeros((2, 3))})
        self.assertRegex(concrete, r"w +\[2, 3\] +float32 +\(\) +6\n")
