"""The step, sharded, is lowered for accelerators that are not here."""

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized

from builders import memory, model
from configs import quickstart, vocap_paper
from training.sharding import MeshSettings, batch_sharding, make_mesh


def config_of(kind: str):
    """A paper run's settings at a size that lowers in seconds."""
    config = vocap_paper.get_config("vocap_500k_knn")
    small = quickstart.get_config("runlocal")
    config.vocab.target_size = 4096
    config.store.length = 64
    config.model.update(**{k: small.model[k] for k in ("hidden_size", "mlp_size", "num_heads")})
    config.model.update(embedding_size=16, num_layers=2, max_length=64, remat="dots")
    config.output_layer.update(kind=kind, capacity=512, group_size=4, num_negatives=256)
    config.output_layer.index_block = 64
    config.train.batch_size = 16
    return config


class ExportTest(parameterized.TestCase):
    @parameterized.product(platform=("tpu", "cuda"), kind=("knn", "blockwise"))
    def test_lowers(self, platform: str, kind: str):
        config = config_of(kind)
        store = memory.absent_rows(config)
        settings = MeshSettings(2, 2, 2, config.mesh.vocab_multiple, config.mesh.rules)
        mesh = make_mesh(settings)
        program = model.program(config, model.objective(config, store, mesh), store, mesh)
        tokens = jax.ShapeDtypeStruct((16, 64), jnp.int32, sharding=batch_sharding(mesh))
        language = jax.ShapeDtypeStruct((16,), jnp.int32, sharding=batch_sharding(mesh))
        batch = {"tokens": tokens, "language": language}
        functions = [(program.train_step, (batch, False)), (program.flush, ())]
        if kind == "knn":
            functions.append((program.refresh, (True,)))
        for function, arguments in functions:
            export = jax.export.export(function, platforms=[platform])
            exported = export(program.abstract_state, *arguments)
            self.assertEqual(exported.platforms, (platform,))
            self.assertEqual(exported.nr_devices, 8)


if __name__ == "__main__":
    absltest.main()
