"""The paper's runs at the paper's shapes, of which nothing is made."""

import jax
import jax.numpy as jnp
from absl.testing import parameterized

from configs import vocap_paper
from xlm.experiment import memory, objectives
from xlm.experiment.masked_lm import masked_lm_of
from xlm.objectives.masked_lm import TABLE
from xlm.objectives.objective import Batch


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
        extra, key, step = jax.eval_shape(
            lambda: (objective.init_extra(), jax.random.key(0), jnp.int32(0))
        )
        _, touched = jax.eval_shape(objective.plan, extra, batch, key, step)
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
