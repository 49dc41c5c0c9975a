"""Recipes of papers have the papers' numbers."""

import math
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl.testing import parameterized

from configs import mmbert, vocap_paper, xlm_r, xy_lent
from configs.finetune import wmt14
from research.studies.xy_lent import CHANGES
from xlm.evaluation.settings import sentence_layer
from xlm.experiment import memory, objectives, translation
from xlm.experiment.data import rows_of_tasks
from xlm.experiment.masked_lm import encoder_of, masked_lm_of
from xlm.experiment.task_settings import task_settings
from xlm.interop import model_folder
from xlm.objectives.masked_lm import TABLE
from xlm.objectives.objective import Batch
from xlm.objectives.replaced_token import DISCRIMINATOR, GENERATOR


def masked_lm_of_run(config):
    return masked_lm_of(objectives.objective(config, memory.absent_rows(config)))


class TableReadsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("vocap_500k_knn", 327_680, 500_096),
        ("vocap_500k_knn_half", 327_680, 500_096),
        ("vocap_1m_knn", 458_752, 1_000_064),
        ("short_k100", 327_680, 500_096),
        ("short_nce", 327_680, 500_096),
        ("vocap_500k", None, 500_096),
    )
    def test_a_run_reads_what_its_keys_say(self, run, num_rows, vocab_size):
        config = vocap_paper.get_config(run)
        self.assertEqual(config.optimizer.embedding_update == "rows", num_rows is not None)
        objective = masked_lm_of_run(config)
        size, length = config.train.batch_size, config.store.length
        batch = Batch(
            {"tokens": jax.ShapeDtypeStruct((size, length), jnp.int32),
             "language": jax.ShapeDtypeStruct((size,), jnp.int32)},
            "packed",
        )  # fmt: skip
        aux_state, key, step = jax.eval_shape(
            lambda: (objective.init_aux_state(), jax.random.key(0), jnp.int32(0))
        )
        _, touched = jax.eval_shape(objective.plan, aux_state, batch, key, step)
        self.assertEqual(objective.encoder.settings.vocab_size, vocab_size)
        said = objective.describe_table_reads(size, length)
        if num_rows is None:
            self.assertEmpty(touched)
            self.assertIn("all 500,096 table rows", said)
        else:
            self.assertEqual(touched[TABLE].shape, (num_rows,))
            self.assertIn(f"at most {num_rows:,} of {vocab_size:,} table rows", said)

    @parameterized.parameters(
        (256, 0, "all 500,096 .* 8 x 65,536 candidates and 131,072 tokens are not.*row_capacity"),
        (32, 327_680, "at most 81,920 of .*: 1 x 65,536 candidates and 16,384 tokens$"),
        (32, 500_096, "all 500,096 .*: output_layer.row_capacity is 500,096, not fewer$"),
    )
    def test_the_smaller_bound_is_the_one_named(self, size, capacity, expected):
        config = vocap_paper.get_config("vocap_500k_knn")
        config.output_layer.row_capacity = capacity
        said = masked_lm_of_run(config).describe_table_reads(size, config.store.length)
        self.assertRegex(said, expected)


# Layers, hidden size, FFN inner size, heads (Table 8); steps, tokens of a batch in millions, Adam's
# epsilon and betas, learning rate, warm-up, gradient clipping, weight decay (Table 9).
PAPER = {
    "base": (12, 768, 3072, 12, 125_000, 4, 1e-6, 0.9, 0.98, 8e-4, 10_000, 2.0, 0.01),
    "large": (24, 1024, 4096, 16, 500_000, 1, 1e-6, 0.9, 0.98, 2e-4, 10_000, 1.0, 0.01),
    "xl": (48, 1536, 6144, 24, 150_000, 4, 1e-6, 0.9, 0.98, 1e-4, 10_000, 1.0, 0.01),
}
# Millions of parameters (Table 11), share of the embeddings in percent (Section 3.3), and how far
# ours may differ. Of Base the paper has 8 million more than twelve layers of these sizes.
SIZES = {"base": (477, 80.5, 0.02), "large": (814, 62.9, 0.001), "xl": (2100, None, 0.02)}


def config_of(run: str):
    """Return the config of a run, or of an arm of the study in small."""
    config = xy_lent.get_config(f"{run if run in xy_lent.RUNS else 'small'},text")
    config.update_from_flattened_dict(CHANGES.get(run, {}))
    return config


def objective_of(run: str):
    config = config_of(run)
    return objectives.objective(config, memory.absent_rows(config))


class PaperTest(parameterized.TestCase):
    @parameterized.parameters(*PAPER)
    def test_tables_8_and_9(self, run):
        config = xy_lent.get_config(run)
        model, train, optimizer = config.model, config.train, config.optimizer
        found = (
            model.num_layers, model.hidden_size, model.mlp_size, model.num_heads, train.num_steps,
            round(rows_of_tasks(config)[0] * config.store.length / 2**20), optimizer.epsilon,
            optimizer.beta1, optimizer.beta2, optimizer.learning_rate, optimizer.warmup_steps,
            optimizer.clip_norm, optimizer.weight_decay,
        )  # fmt: skip
        self.assertEqual(found, PAPER[run])
        self.assertEqual(*rows_of_tasks(config))  # as many tokens of each task
        # A linear schedule to zero.
        self.assertEqual((optimizer.schedule, optimizer.decay_power), ("polynomial", 1.0))
        self.assertEqual((optimizer.kind, optimizer.final_rate_ratio), ("adamw", 0.0))
        self.assertEqual((model.position, model.embedding_size), ("gated", model.hidden_size))
        self.assertEqual((config.replaced_token.weight, config.store.length), (50.0, 512))
        self.assertFalse(config.corpus.parallel_as_text)  # CC-100 alone, Section 5

    @parameterized.parameters(("base", 4), ("large", 6), ("xl", 8))
    def test_tasks_masks_and_depth_of_the_generator(self, run, layers):
        """Base's depth is XLM-E's; every step has both tasks."""
        config = xy_lent.get_config(run)
        data, mask, replaced = config.data, config.mask, config.replaced_token
        self.assertEqual(replaced.generator_layers, layers)
        self.assertEqual((replaced.weight, replaced.temperature), (50.0, 1.0))
        self.assertEqual((mask.rate, mask.mask_share, mask.random_share), (0.15, 1.0, 0.0))
        self.assertEqual((data.kinds, data.pair_share, data.contrast_share), ("joint", 0.5, 0.0))
        self.assertEqual((data.pair_sampling, data.pair_temperature), ("sinkhorn", 2.0))

    @parameterized.parameters(*SIZES)
    def test_parameters_of_the_discriminator(self, run):
        """All of the encoder that is fine-tuned: embeddings and layers, no head."""
        objective = encoder_of(objective_of(run))
        shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
        own = jax.eval_shape(objective.encoder_params, shapes)
        total = sum(math.prod(x.shape) for x in jax.tree.leaves(own))
        # The table is padded for the mesh; pieces are counted.
        table, pieces = own["embeddings"]["table"], objective.generator.output_layer.num_valid
        self.assertEqual(pieces, 500_000)
        total -= (table.shape[0] - pieces) * table.shape[1]
        millions, share, difference = SIZES[run]
        self.assertBetween(total / 1e6 / millions, 1 - difference, 1 + difference)
        if share is not None:
            # As printed: the table's part of the printed number of parameters.
            self.assertAlmostEqual(pieces * table.shape[1] / millions / 1e4, share, delta=0.05)


class RunsTest(parameterized.TestCase):
    @parameterized.parameters(*xy_lent.RUNS, *CHANGES)
    def test_every_arm_is_an_objective_and_fits_its_batches(self, run):
        config = config_of(run)
        self.assertEqual(config.corpus.root, "text")
        objective = objective_of(run)
        self.assertEqual(hasattr(objective, "terms"), config.data.kinds == "turns")
        settings = encoder_of(objective).encoder.settings
        self.assertEqual(settings.num_layers, config.model.num_layers)
        masked_lm = masked_lm_of(objective)
        self.assertEqual(masked_lm.output_layer.num_valid, config.vocab.target_size)
        if not run.endswith("mlm"):
            layers = masked_lm.encoder.settings.num_layers
            self.assertEqual(layers, config.replaced_token.generator_layers)
            self.assertLessEqual(layers, settings.num_layers)

    def test_the_modern_run_is_base_in_the_blocks_of_mmbert(self):
        """Generator and discriminator, of as many parameters in the layers as Base's."""
        sizes = []
        for run in ("base", "modern"):
            objective = objective_of(run)
            shapes = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
            sizes.append([
                sum(math.prod(x.shape) for x in jax.tree.leaves(shapes[part]["layers"]))
                for part in (GENERATOR, DISCRIMINATOR)
            ])  # fmt: skip
        for base, modern in zip(*sizes, strict=True):
            self.assertBetween(modern / base, 0.99, 1.01)
        for one in (objective.encoder, objective.generator.encoder):
            for key, value in mmbert.BLOCKS.items():
                self.assertEqual(getattr(one.settings, key), value)

    def test_retrieval_takes_the_layer_of_two_thirds_of_the_depth(self):
        for run, layer in (("base", 8), ("large", 16), ("xl", 32)):
            config = xy_lent.get_config(run)
            given = config.evaluation.retrieval_layer
            self.assertEqual(sentence_layer(given, config.model.num_layers), layer)
        self.assertEqual(sentence_layer(0, 48), 0)

    def test_runs_that_draw_from_candidates_correct_by_their_probability(self):
        """Else a position's own target is drawn too often (docs/output_layer.md)."""
        for run in (*xy_lent.RUNS, *CHANGES):
            layer = config_of(run).output_layer
            self.assertTrue(layer.kind in ("full", "blockwise") or layer.log_q_correction, run)


class TranslationTest(parameterized.TestCase):
    @parameterized.parameters(("en-de", 1e-4, 64), ("en-fr", 2e-4, 256))
    def test_veco_section_5(self, direction, rate, thousands):
        config = wmt14.get_config(f"{direction},tfds")
        train, optimizer, chosen = config.train, config.optimizer, config.translation
        found = (
            train.num_steps, train.batch_tokens, optimizer.learning_rate,
            optimizer.warmup_share * train.num_steps, optimizer.schedule, optimizer.decay_power,
            train.averaged_checkpoints, config.decoding.beams,
        )  # fmt: skip
        paper = (100_000, thousands * 1024, rate, 16_000, "polynomial", 1.0, 10, 5)
        self.assertEqual(found, paper)
        # The best of Table 4.
        self.assertEqual((chosen.decoder_layers, chosen.decoder_from), (6, "last"))
        source, target = direction.split("-")
        with (
            mock.patch("tensorflow_datasets.load", side_effect=ValueError("none")) as load,
            self.assertRaisesRegex(ValueError, f"wmt14 has no data for .*'{direction}'"),
        ):
            translation.read_examples(task_settings(config), "validation")
        self.assertEqual(load.call_args.args[0], f"wmt14_translate/{target}-{source}")
        self.assertEqual(load.call_args.kwargs["split"], "validation")


class ModelsTest(parameterized.TestCase):
    @parameterized.parameters(*xlm_r.MODELS)
    def test_a_published_model_has_a_class_in_transformers(self, name):
        sizes = xlm_r.get_config(name).model.to_dict()
        self.assertEqual(model_folder.why_not_transformers(sizes), "")
