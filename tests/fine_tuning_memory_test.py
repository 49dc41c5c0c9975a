"""Estimates of the memory of fine-tuning, against parameters counted and steps compiled."""

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from configs.finetune import tatoeba, xnli
from tests import commands, tiny_tasks
from xlm.experiment import fine_tuning, memory
from xlm.experiment.memory import estimate_fine_tuning as estimate
from xlm.experiment.pretrained import read_pretrained
from xlm.models.encoder import EncoderSettings
from xlm.objectives.objective import Batch
from xlm.training.memory import state_bytes
from xlm.training.sharding import batch_sharding, make_mesh

LARGE = (24, 1024, 4096, 250_002)  # layers, width, width of the MLP, pieces
NORM = 2  # vectors


def numbers_of(layers: int, width: int, mlp: int, pieces: int) -> int:
    """Parameters of an XLM-R and a head of three classes, counted by hand."""
    attention = 4 * (width * width + width) + NORM * width
    block = attention + width * mlp + mlp + mlp * width + width + NORM * width
    embeddings = (pieces + 512 + NORM) * width
    head = width * width + width + 3 * width + 3
    return embeddings + layers * block + head


def config_of(**changes) -> ConfigDict:
    config = xnli.get_config("")
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return config


class EstimateTest(parameterized.TestCase):
    def test_state_of_large(self):
        found = estimate(config_of(), 1, "xlmr_large").state
        size = 4 * numbers_of(*LARGE)
        self.assertEqual((found["parameters"], found["gradients"]), (size, size))
        self.assertBetween(found["optimizer"], 2 * size, 2 * size + 100)  # and counters

    def test_parts_hold_fewer_examples_and_a_second_gradient(self):
        found = estimate(config_of(train__batch_size=24), 2, "xlmr_base")
        self.assertEqual(found.examples, (3, 6, 12))
        self.assertEqual(found.accumulation_steps, (4, 2, 1))
        self.assertEqual(found.lengths, (32, 64, 128))
        whole, state = found.activations[2][1], sum(found.state.values())
        self.assertEqual(4 * found.activations[0][1], whole)
        self.assertEqual(sum(found.bytes(2, 1).values()), state + whole)
        expected = state + found.state["gradients"] + whole // 4
        self.assertEqual(sum(found.bytes(0, 1).values()), expected)

    def test_bfloat16_and_recomputation_take_less(self):
        half = {"model__dtype": "bfloat16"}
        changes = ({}, half, {**half, "model__remat": "dots"}, {**half, "model__remat": "full"})
        sizes = [estimate(config_of(**one), 1, "xlmr_large").activations[-1][-1] for one in changes]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertLess(sizes[-1], sizes[0] / 10)

    def test_the_encoder_is_that_of_init_from(self):
        config = tiny_tasks.config("xnli")
        pretrained = read_pretrained(config.init_from)
        encoder = fine_tuning.encoder_settings(config, pretrained.settings)
        objective = fine_tuning.with_head(config, encoder)
        make = fine_tuning.initial_params(objective, pretrained, 0, random=False)
        assert make is not None
        size = sum(x.nbytes for x in jax.tree.leaves(make()))
        self.assertEqual(estimate(config, 1).state["parameters"], size)

    def test_what_cannot_be_estimated(self):
        with self.assertRaisesRegex(
            ValueError, "'tatoeba', of kind retrieval; memory is estimated"
        ):
            estimate(tatoeba.get_config(""), 1, "xlmr_base")
        with self.assertRaisesRegex(ValueError, "batch_size is 32, must be a multiple of the 5"):
            estimate(config_of(), 5, "xlmr_base")
        with self.assertRaisesRegex(ValueError, "max_length is 600, but the encoder has 512"):
            estimate(config_of(task__max_length=600), 1, "xlmr_base")

    @parameterized.parameters(1, 4)
    def test_step_takes_what_is_estimated(self, parts: int):
        """By the compiler's own count, which is for this backend and float32."""
        config = config_of(train__batch_size=8, train__accumulation_steps=parts)
        config.model.dropout_rate = config.model.attention_dropout_rate = 0.1
        settings = EncoderSettings(
            vocab_size=20_000, embedding_size=256, hidden_size=256, num_layers=4, num_heads=4,
            mlp_size=1024, max_length=512, norm_position="post", **config.model.to_dict(),
        )  # fmt: skip
        made = fine_tuning.with_head(config, settings)
        mesh = make_mesh(fine_tuning.MESH, jax.devices()[:1])
        functions = fine_tuning.train_functions(config, made, mesh, 1000)
        layout = batch_sharding(mesh)
        tokens = jax.ShapeDtypeStruct((8, 128), jnp.int32, sharding=layout)
        arrays = dict.fromkeys(("tokens", "segments", "positions"), tokens)
        for name, dtype in (("labels", jnp.int32), ("weights", jnp.float32)):
            arrays[name] = jax.ShapeDtypeStruct((8,), dtype, sharding=layout)
        batch = Batch(arrays, "examples")
        step = functions.train_step.lower(made, functions.abstract_state, batch).compile()
        measured = step.memory_analysis().temp_size_in_bytes
        activations = memory.activation_bytes(settings, 8 // parts, 128)
        gradients = state_bytes(functions.abstract_state, functions.stage)["gradients"]
        expected = activations + gradients * (2 if parts > 1 else 1)
        self.assertBetween(measured / expected, 0.8, 1.1)


class CommandTest(absltest.TestCase):
    def run_tool(self, config: str, *flags: str):
        return commands.execute("estimate", f"--config={config}", *flags)

    def test_it_prints_lengths_and_parts(self):
        found = self.run_tool(
            "configs/finetune/xnli.py", "--encoder=xlmr_large", "--config.model.dtype=bfloat16",
            "--config.train.batch_size=4",
        )  # fmt: skip
        self.assertEqual(found.returncode, 0, found.stderr)
        lines = found.stdout.splitlines()
        self.assertEqual(lines[4], "| 2.24 | 4.48 | 2.24 |")
        self.assertEndsWith(lines[6], "| examples at once | 32 tokens | 64 tokens | 128 tokens |")
        self.assertEqual([line.split(" | ")[:2] for line in lines[8:11]],
                         [["| 4", "1"], ["| 2", "2"], ["| 1", "4"]])  # fmt: skip
        found = self.run_tool("configs/finetune/xnli.py")
        self.assertRegex(found.stderr, "no encoder; give --encoder, one of xlmr_base, ")
        found = self.run_tool("configs/quickstart.py", "--encoder=xlmr_base")
        self.assertRegex(found.stderr, "--encoder is for configs of configs/finetune; leave it out")
