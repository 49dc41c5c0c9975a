"""A batch over several devices: the same loss and gradients, and little that they send."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import OutputLayer, WordStatistics
from models.encoder import Encoder, EncoderSettings
from objectives.contrastive import ContrastSettings
from objectives.masked_lm import MaskedLM
from objectives.masking import MaskSettings
from training.optimizer import OptimizerSettings
from training.sharding import MeshSettings, batch_sharding, make_mesh
from training.step import Program, make_program

V, E, B, L = 4096, 16, 8, 8
CONTRAST = ContrastSettings(weight=1.0, temperature=0.1)
RULES = (("vocab", "model"), ("mlp", "model"), ("heads", "model"))


@functools.cache
def mesh_of(axes: tuple[int, int, int]) -> tuple[MeshSettings, jax.sharding.Mesh]:
    settings = MeshSettings(*axes, vocab_multiple=8, rules=RULES)
    return settings, make_mesh(settings, jax.devices()[: math.prod(axes)])


def masked_lm_on(axes: tuple[int, int, int], kind: str) -> MaskedLM:
    settings, mesh = mesh_of(axes)
    encoder = EncoderSettings(V, E, E, 1, 2, E, L, "post", 0.1, 0.1, "float32")
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
    masks = MaskSettings(0.2, 0.8, 0.1)
    return MaskedLM(
        Encoder(encoder), layer, masks, 0, 1, 4, (0, 1, 2, 4), True, words, (), CONTRAST
    )


def program_on(axes: tuple[int, int, int], kind: str, update: str) -> Program:
    optimizer = OptimizerSettings(1e-3, 1, 1.0, 0.9, 0.98, 1e-6, 0.01, 1.0, update)
    return make_program(masked_lm_on(axes, kind), optimizer, *mesh_of(axes), num_steps=10, length=L)


def step_text(axes: tuple[int, int, int], kind: str, update: str) -> str:
    """The compiled step, after the compiler has put the collectives in."""
    program = program_on(axes, kind, update)
    tokens = jax.ShapeDtypeStruct((B, L), jnp.int32, sharding=batch_sharding(program.mesh))
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


@functools.cache
def random_params():
    """Parameters away from their initial values, among which are too many zeros and ones."""
    params = program_on((1, 1, 1), "full", "dense").abstract_state.params
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: (0.3 * rng.normal(size=x.shape)).astype(x.dtype), params)


@functools.cache
def loss_and_gradients(axes: tuple[int, int, int], kind: str, apart: bool = False):
    """Of one batch by rows of the table, dropout on, everything laid out over the devices."""
    objective = masked_lm_on(axes, kind)
    _, mesh = mesh_of(axes)
    layout = program_on(axes, kind, "dense").abstract_state
    params = jax.tree.map(
        lambda x, s: jax.device_put(x, s.sharding), random_params(), layout.params
    )
    tokens = np.random.default_rng(1).integers(5, V, (B, L)).astype(np.int32)
    batch = {"tokens": tokens}
    if apart:  # two sentences a row
        tokens[:, [0, L // 2]] = 0
        segments = np.repeat([[1, 2]], L // 2, axis=1).repeat(B, axis=0).astype(np.int32)
        positions = np.tile(np.arange(L // 2, dtype=np.int32), (B, 2))
        batch |= {"segments": segments, "positions": positions, "apart": np.ones(B, bool)}
    batch = jax.device_put(batch, batch_sharding(mesh))

    @jax.jit
    def run(params, batch):
        index = objective.empty_index()
        index = index and objective.refresh(params, index, None)[0]
        prepared, ids = objective.prepare(index, batch, jax.random.key(7), exact=False)

        def loss(params):
            if ids is not None:
                rows = params["embeddings"]["table"].at[ids].get(mode="fill", fill_value=0)
                params = params | {"embeddings": params["embeddings"] | {"table": rows}}
            total, weight = objective.sums(params, prepared)["loss"]
            return total / weight

        return jax.value_and_grad(loss)(params)

    loss, gradients = run(params, batch)
    return float(loss), jax.device_get(gradients)


class SameLossTest(parameterized.TestCase):
    @parameterized.parameters((2, 1, 1), (1, 1, 2), (2, 1, 2), (8, 1, 1), (1, 1, 8), (2, 2, 2))
    def test_knn(self, *axes):
        self.assert_same(axes, "knn")

    @parameterized.parameters("full", "blockwise", "target_sampling", "nce", "neg")
    def test_all_others(self, kind):
        self.assert_same((2, 1, 4), kind)

    @parameterized.parameters((2, 1, 1), (2, 2, 2))
    def test_pairs_kept_apart_are_contrasted_over_all_devices(self, *axes):
        self.assert_same(axes, "full", apart=True)
        alone, _ = loss_and_gradients((1, 1, 1), "full")
        self.assertGreater(loss_and_gradients(axes, "full", apart=True)[0], alone + 1)

    def assert_same(self, axes: tuple[int, int, int], kind: str, **kwargs):
        expected, one_device = loss_and_gradients((1, 1, 1), kind, **kwargs)
        loss, gradients = loss_and_gradients(axes, kind, **kwargs)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(one_device))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * largest)
        jax.tree.map(check, gradients, one_device)


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
