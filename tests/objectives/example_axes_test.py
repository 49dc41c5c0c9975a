"""Plans cut into shards of examples: equal losses, gradients and metrics in total."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.bitext import PAIRS
from input_pipeline.stream import JOINT, PACKED
from tests import factories
from tests.objectives import cross_mlm_test, fine_tuning_test
from xlm.models.encoder import Encoder
from xlm.models.heads import ClassificationHead
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.fine_tuning import FineTuning, classification_loss
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Batch, Objective, gathered_rows
from xlm.objectives.settings import ContrastSettings, MaskSettings
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_abstract_mesh

B = 4
# One or two groups gather touched rows, four read the table.
SETTINGS = factories.encoder_settings(vocab_size=136, num_layers=0)
KEY = jax.random.key(3)


def masked_lm(kind: str = "knn", group_size: int = 0) -> MaskedLM:
    layer = factories.output_layer_settings(
        kind=kind, group_size=group_size, k=2, capacity=32, log_q_correction=True
    )
    mask = MaskSettings(0.3, 0.8, 0.1, final_rate=0.5)
    return factories.masked_lm(layer, SETTINGS, mask=mask, languages=("de", "fr"))


def arrays() -> dict[str, jax.Array]:
    """Sequences with different numbers of targets, in two languages."""
    tokens = factories.packed_tokens()
    tokens[1, 3:] = factories.PAD
    segments = np.ones_like(tokens)
    positions = np.tile(np.arange(tokens.shape[1], dtype=np.int32), (B, 1))
    language = np.array([0, 1, 1, 1], np.int32)
    arrays = {"tokens": tokens, "segments": segments, "positions": positions, "language": language}
    return jax.tree.map(jnp.asarray, arrays)


def shard(plan, axes, number, num_shards: int):
    """The arrays of a shard of a plan; its number may be traced if arrays are."""

    def cut(axis, arrays):
        if axis is None:
            return arrays

        def part(x):
            parts = x.reshape(*x.shape[:axis], num_shards, -1, *x.shape[axis + 1 :])
            return parts[(*[slice(None)] * axis, number)]

        return jax.tree.map(part, arrays)

    return jax.tree.map(cut, axes, plan, is_leaf=lambda x: x is None)


def of_plan(objective: Objective, params, plan, touched):
    def loss(params):
        found, observed = objective.loss(params, gathered_rows(params, touched), plan, None)
        return found["loss"][0], (found, observed)

    return jax.grad(loss, has_aux=True)(params)


@functools.partial(jax.jit, static_argnums=(0, 3))
def whole_and_shards(objective: Objective, batch: Batch, params, num_shards: int):
    """Results of `of_plan` for a batch, and their sums over its shards."""
    aux_state = factories.first_aux_state(objective, params)
    plan, touched = objective.plan(aux_state, batch, KEY, jnp.int32(3))
    axes = objective.example_axes(plan, num_shards)

    def of_shard(number: jax.Array):
        return of_plan(objective, params, shard(plan, axes, number, num_shards), touched)

    of_shards = jax.lax.map(of_shard, jnp.arange(num_shards))
    return of_plan(objective, params, plan, touched), jax.tree.map(lambda x: x.sum(0), of_shards)


class ShardsTest(parameterized.TestCase):
    def shapes(self, objective: Objective, kind: str):
        arguments = Batch(arrays(), kind), KEY, jnp.int32(3)
        return jax.eval_shape(lambda: objective.plan(objective.init_aux_state(), *arguments))[0]

    def check(self, objective: Objective, batch: Batch, params, num_shards: int = 2):
        (expected_grads, (expected, expected_observed)), (grads, (metrics, observed)) = (
            jax.device_get(whole_and_shards(objective, batch, params, num_shards))
        )
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        jax.tree.map(check, (grads, observed), (expected_grads, expected_observed))
        for name, (total, weight) in expected.items():
            factor = metrics[name][1] / weight
            self.assertIn(factor, (1, num_shards), name)
            check(metrics[name][0], factor * total, err_msg=name)
        self.assertEqual(metrics["loss"][1], expected["loss"][1])
        return observed

    @parameterized.parameters(
        ("full", 0), ("knn", 0), ("knn", 1), ("knn", 2), ("nce", 2), ("knn", 2, JOINT)
    )
    def test_masked_lm(self, kind, group_size, of_batch=PACKED):
        objective, batch = masked_lm(kind, group_size), arrays()
        if of_batch == JOINT:  # shards have different tasks
            batch["task"] = jnp.array([0, 1, 1, 1])
        self.check(objective, Batch(batch, of_batch), factories.random_params(objective))

    def test_a_mixture(self):
        tlm = masked_lm("full")
        mixture = Mixture({"one": Term(masked_lm(), "mlm"), "two": Term(tlm, "tlm", 0.5)})
        for kind in mixture.terms:
            self.check(mixture, Batch(arrays(), kind), factories.random_params(mixture), 4)

    @parameterized.parameters(
        (PACKED, "full", "disentangled"), (PAIRS, "knn", "separate"), (JOINT, "knn", "separate")
    )
    def test_replaced_tokens(self, kind, layer, embeddings):
        # The likeliest replacements, since samples depend on the places of a shard.
        objective = factories.replaced_token(
            factories.output_layer_settings(kind=layer, k=2, capacity=32), SETTINGS,
            temperature=0.0, embeddings=embeddings, num_pairs=0 if kind == PACKED else 3,
        )  # fmt: skip
        batch = Batch({**arrays(), "pair": jnp.array([2, 0, 2, 2], jnp.int32)}, kind)
        if kind == JOINT:
            pair = jnp.array([-1, 0, 2, -1], jnp.int32)
            batch = Batch({**batch.arrays, "pair": pair, "task": (pair >= 0).astype(int)}, kind)
        observed = self.check(objective, batch, factories.random_params(objective))
        if kind == JOINT:
            np.testing.assert_array_equal(observed.weight, [1, 0, 1])
        if kind == PAIRS:
            np.testing.assert_array_equal(observed.weight, [1, 0, 3])
            self.assertGreater(observed.loss[2], observed.loss[0])

    @parameterized.parameters(*cross_mlm_test.KINDS)
    def test_cross_mlm(self, kind):
        """Both plans are alike; only those of pairs have layers, which use segments."""
        encoder = cross_mlm_test.NO_LAYERS if kind == PACKED else cross_mlm_test.ENCODER
        objective = cross_mlm_test.cross_mlm(kind, "knn", encoder=encoder)
        self.check(objective, cross_mlm_test.batch(kind), cross_mlm_test.params(encoder))

    @parameterized.parameters(*fine_tuning_test.KINDS)
    def test_fine_tuning(self, kind):
        objective, batch = fine_tuning_test.objective(kind), fine_tuning_test.of_kind(kind)
        self.check(objective, Batch(batch, kind), fine_tuning_test.params(kind))

    def test_losses_that_do_not_add_up(self):
        contrast = SentenceContrast(masked_lm("full"), ContrastSettings(1.0, 0.1))
        mixture = Mixture({"pairs": Term(contrast, "contrast")})
        across_shards = masked_lm("knn", group_size=2)
        for objective, num_shards in ((contrast, 2), (mixture, 2), (across_shards, 4)):
            plan = self.shapes(objective, "pairs")
            self.assertIsNone(objective.example_axes(plan, num_shards))

    @parameterized.parameters(
        ("flash", (4, 1, 1), True), ("flash", (4, 1, 2), False), ("xla", (4, 1, 2), True)
    )
    def test_a_fused_kernel_is_mapped_over_all_axes_or_none(self, attention, axes, expected):
        settings = factories.encoder_settings(dtype="bfloat16", attention=attention)
        fine_tuning = FineTuning(Encoder(settings), ClassificationHead(2, 0.0), classification_loss)
        full = factories.masked_lm(factories.output_layer_settings(kind="full"), settings)
        mesh = make_abstract_mesh(MeshSettings(*axes, vocab_multiple=1, rules=()), math.prod(axes))
        with jax.sharding.use_abstract_mesh(mesh):
            plan = self.shapes(full, PACKED)
            for one in (full, fine_tuning):
                self.assertEqual(one.example_axes(plan, 4) is not None, expected)
