"""What the devices send each other in a step over a table that is split over them."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import OutputLayer, WordStatistics
from models.encoder import Encoder, EncoderSettings
from objectives.masked_lm import MaskedLM
from objectives.masking import MaskSettings
from training.optimizer import OptimizerSettings
from training.sharding import MeshSettings, batch_sharding, make_mesh
from training.step import make_program

V, E, B, L = 4096, 16, 8, 8
RULES = (("vocab", "model"), ("mlp", "model"), ("heads", "model"))


def step_text(axes: tuple[int, int, int], kind: str, update: str) -> str:
    """The compiled step, after the compiler has put the collectives in."""
    settings = MeshSettings(*axes, vocab_multiple=8, rules=RULES)
    mesh = make_mesh(settings)
    encoder = EncoderSettings(V, E, E, 1, 2, E, L, "post", 0.0, 0.0, "float32")
    layer = OutputLayer(
        kind=kind,
        num_valid=V,
        k=4,
        capacity=64,
        capacity_buckets=1,
        num_negatives=16,
        group_size=2,
        refresh="all",
        refresh_every=1,
        index_block=64,
        index_scores="float32",
        vocab_block=1024,
        candidate_block=0,
        log_q_correction=True,
        exact_fraction=0.0,
        frequency_bias=False,
        mesh=mesh,
        vocab_axes=settings.axes_of("vocab"),
    )
    uniform = np.full(V, 1 / V)
    words = WordStatistics(
        jnp.asarray(uniform, jnp.float32),
        cumulative_thresholds(uniform),
        jnp.zeros(V, jnp.int32),
    )
    masked_lm = MaskedLM(
        Encoder(encoder), layer, MaskSettings(0.2, 0.8, 0.1), 0, 1, 4, (0, 1, 2, 4), True, words
    )
    optimizer = OptimizerSettings(1e-3, 1, 1.0, 0.9, 0.98, 1e-6, 0.01, 1.0, update)
    program = make_program(masked_lm, optimizer, settings, mesh, num_steps=10, length=L)
    tokens = jax.ShapeDtypeStruct((B, L), jnp.int32, sharding=batch_sharding(mesh))
    step = program.train_step.lower(program.abstract_state, {"tokens": tokens}, False)
    return step.compile().as_text()


def collective_sizes(text: str) -> list[int]:
    """Elements of every array that a collective makes."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    sizes = []
    for line in re.finditer(rf"= (.*?) (?:{kinds})(?:-start)?\(", text):
        for shape in re.findall(r"\w+\[([\d,]*)\]", line.group(1)):
            sizes.append(math.prod(int(size) for size in shape.split(",") if size))
    return sizes


class CollectivesTest(parameterized.TestCase):
    @parameterized.parameters(((4, 1, 2), "knn"), ((1, 1, 8), "knn"), ((2, 1, 4), "nce"))
    def test_a_sampled_step_sends_nothing_of_the_table_size(self, axes, kind):
        sizes = collective_sizes(step_text(axes, kind, "rows"))
        self.assertNotEmpty(sizes)
        self.assertLess(max(sizes), V * E / 2)

    def test_the_dense_update_and_the_exact_softmax_do(self):
        # Or else the test above would not know such a collective if it saw one.
        sizes = collective_sizes(step_text((4, 1, 2), "full", "dense"))
        self.assertGreaterEqual(max(sizes), V * E / 2)


if __name__ == "__main__":
    absltest.main()
