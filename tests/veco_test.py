"""VECO's runs: terms and streams of a config, and models that are started from and exported."""

import dataclasses
import functools

import jax
import numpy as np
from absl.testing import parameterized

from configs import veco
from input_pipeline.bitext import PAIRS, SEPARATE_PAIRS
from input_pipeline.stream import PACKED
from tests import factories
from tests.builders_test import write_dataset
from tests.interop.xlm_roberta_test import SETTINGS, FolderTest, params_of, tokenizer
from xlm.experiment import masked_lm, objectives
from xlm.experiment.initial import _check_same_parameters
from xlm.experiment.objectives import parameter_shapes
from xlm.experiment.pretrained import read_pretrained
from xlm.interop import model_folder
from xlm.models.encoder import without_cross_attention
from xlm.objectives.cross_mlm import CrossMLM
from xlm.objectives.masked_lm import MaskedLM
from xlm.training.sharding import placed
from xlm.training.stages import merged

# Layers, hidden and embedding size, FFN inner size, heads, learning rate, Adam's epsilon and betas
# (Table 7).
PAPER = {
    "large": (24, 1024, 1024, 4096, 16, 2e-4, 1e-6, 0.9, 0.98),
    "base": (6, 768, 768, 3072, 12, 3e-4, 1e-6, 0.9, 0.999),  # "Small"
}
CROSS = dataclasses.replace(SETTINGS, cross_attention=True)


def config(arg: str = "runlocal", **changes):
    found = veco.get_config(arg)
    found.data.loader = "threads"
    found.mesh.data = 1
    found.update_from_flattened_dict(changes)
    return found


def objective_of(found):
    return objectives.objective(found, write_dataset(found.vocab.target_size, found.store.length))


class PaperTest(parameterized.TestCase):
    @parameterized.parameters(*PAPER)
    def test_table_7(self, run):
        found = veco.get_config(run)
        model, optimizer = found.model, found.optimizer
        self.assertEqual(PAPER[run], (
            model.num_layers, model.hidden_size, model.embedding_size, model.mlp_size,
            model.num_heads, optimizer.learning_rate, optimizer.epsilon, optimizer.beta1,
            optimizer.beta2,
        ))  # fmt: skip
        self.assertEqual((model.attention_dropout_rate, model.dropout_rate), (0.1, 0.1))
        self.assertEqual((found.mask.rate, found.mask.pair_rate), (0.15, 0.25))
        # A linear schedule to zero.
        self.assertEqual((optimizer.schedule, optimizer.decay_power), ("polynomial", 1.0))
        self.assertEqual((optimizer.final_rate_ratio, optimizer.weight_decay), (0.0, 0.01))
        self.assertEqual((found.train.num_steps, optimizer.warmup_steps), (240_000, 12_000))
        self.assertEqual((found.store.length, found.train.batch_size), (512, 1024))

    def test_section_3(self):
        found = veco.get_config("large")
        self.assertEqual((found.data.alpha, found.vocab.target_size), (0.5, 250_000))
        # Batches of text and of pairs in turns, three objectives of equal weight.
        self.assertEqual((found.data.pair_share, found.data.kinds), (0.5, "turns"))
        terms = found.veco
        self.assertEqual((terms.is_weight, terms.cs_weight, terms.tlm_weight), (1.0, 1.0, 1.0))
        self.assertEqual((terms.context, terms.flip), ("causal", True))
        ((name, steps),) = found.optimizer.stages
        self.assertEqual(name, "cross_attention")
        self.assertBetween(steps, 1, found.train.num_steps - 1)


class ConfigTest(parameterized.TestCase):
    @parameterized.parameters(*veco.RUNS, *veco.SMALL, "runlocal")
    def test_every_run_has_its_terms(self, arg):
        found = config(arg)
        objective = objective_of(found)
        is_veco = found.objective == "veco"
        kinds = (PACKED, SEPARATE_PAIRS if is_veco else PAIRS)
        terms = getattr(objective, "terms", None)
        self.assertEqual(terms is None, not found.data.pair_share)
        one = masked_lm.masked_lm_of(objective)
        self.assertIs(type(one), MaskedLM)
        self.assertIs(masked_lm.encoder_of(objective), one)
        self.assertEqual((one.mask.rate, one.encoder.settings.cross_attention), (0.15, is_veco))
        layer, num_layers = found.evaluation.retrieval_layer, one.encoder.settings.num_layers
        self.assertLessEqual(layer, num_layers)  # as evaluate.py wants it of parallel text
        if terms is None:
            return
        self.assertEqual(tuple(terms), kinds)
        # Steps of both kinds, which take turns, are recorded.
        self.assertEqual(found.data.kinds, "turns")
        self.assertEqual(found.train.log_every % 2, 1)
        pairs = terms[kinds[1]].objective
        self.assertEqual((pairs.masked_lm if is_veco else pairs).mask.rate, 0.25)

    @parameterized.parameters("continue", "restart")
    def test_positions_of_pairs_are_those_of_tlm(self, positions):
        terms = objective_of(config(**{"data.pair_positions": positions})).terms
        self.assertIsInstance(terms[PACKED].objective, CrossMLM)
        self.assertIsNone(terms[PACKED].objective.translation_lm)
        pairs = terms[SEPARATE_PAIRS].objective
        self.assertFalse(pairs.masked_lm.positions_restart)
        self.assertEqual(pairs.translation_lm.positions_restart, positions == "restart")

    @parameterized.parameters(
        ({"model.cross_attention": False}, "model.cross_attention is False, must be True"),
        ({"objective": "masked_lm"}, "model.cross_attention is True, must be False with .*veco"),
        ({"data.contrast_share": 0.1}, "data.contrast_share is 0.1, .* set it to 0"),
        ({"data.kinds": "joint"}, 'data.kinds is "joint", .* set data.kinds to "turns"'),
        # 128 x 4 tokens of pairs at 0.25, after 20 slots of each of four sequences of text.
        ({"output_layer.capacity": 127}, "output_layer.capacity is 127, .* 128 distinct"),
    )
    def test_keys_that_cannot_be(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            objective_of(config(**changes))


class ModelFolderTest(FolderTest):
    def write(self, settings=CROSS):
        model_folder.write_model(
            self.folder, params_of(settings), dataclasses.asdict(settings), tokenizer()
        )

    def test_our_form_keeps_cross_attention(self):
        self.assertRegex(
            model_folder.why_not_transformers(dataclasses.asdict(CROSS)), "cross_attention is True"
        )
        self.write()
        sizes, found = model_folder.read_model(self.folder)
        self.assertTrue(sizes["cross_attention"])
        jax.tree.map(np.testing.assert_array_equal, found, params_of(CROSS))
        pretrained = read_pretrained(str(self.folder))  # for tasks of understanding
        self.assertFalse(pretrained.settings.cross_attention)
        expected = without_cross_attention(params_of(CROSS))
        jax.tree.map(np.testing.assert_array_equal, pretrained.params, expected)
        self.assertEqual(model_folder.why_not_transformers(dataclasses.asdict(SETTINGS)), "")
        with self.assertRaisesRegex(ValueError, "no parameters .*cross_attention"):
            placed(params_of(CROSS), jax.tree.map(jax.device_put, params_of(SETTINGS)))

    @parameterized.product(there=(False, True), here=(False, True))
    def test_runs_start_with_and_without(self, there, here):
        source, own = ({False: SETTINGS, True: CROSS}[is_in] for is_in in (there, here))
        self.write(source)
        found = model_folder.initial_params(self.folder, dataclasses.asdict(own), tokenizer())
        start = jax.tree.map(lambda x: jax.device_put(x + 1), params_of(own))
        started = merged(start, placed(found, start))
        expected = jax.tree.map(np.copy, start)
        kept = params_of(source) if there and here else without_cross_attention(params_of(source))
        check = np.testing.assert_array_equal
        jax.tree.map(check, without_cross_attention(started), without_cross_attention(kept))
        if here:
            for name in ("cross_attention", "cross_attention_norm"):
                of = kept if there else expected
                jax.tree.map(check, started["layers"][name], of["layers"][name])

    def test_runs_differ_in_cross_attention_alone(self):
        check = functools.partial(_check_same_parameters, self.folder)
        full = factories.output_layer_settings(kind="full")
        plain, cross, other = (
            parameter_shapes(factories.masked_lm(full, factories.encoder_settings(**changes)))
            for changes in ({}, {"cross_attention": True}, {"mlp_size": 24})
        )
        check(plain, cross)
        check(cross, plain)
        with self.assertRaisesRegex(ValueError, "layers.mlp"):
            check(cross, other)
