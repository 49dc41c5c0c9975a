"""Estimates of memory: exact for the state, and what the papers' runs would take."""

import dataclasses
import functools
import json
import pathlib
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from benchmarks import compile as bench
from configs import one_gpu, quickstart, veco, vocap_paper, xlm_r, xy_lent
from configs.finetune import tatoeba, xnli
from tests import commands, tiny_tasks
from tests.folders import FolderTest
from tests.models import sharded
from tests.models.factories import boxed_shapes, encoder_settings
from xlm.cli import main
from xlm.common.schema import settings as settings_of
from xlm.experiment import fine_tuning, memory
from xlm.experiment.memory import estimate_fine_tuning
from xlm.experiment.pretrained import read_pretrained
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.objectives.objective import Batch
from xlm.training.memory import ActivationSizes, state_bytes
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_abstract_mesh, make_mesh
from xlm.training.step import TrainFunctions

# GB at the peak of a step of the paper's batch, by the compiler for TPU v5p (docs/scaling.md):
# model, pieces, devices; blockwise. The full softmax takes less than its estimate there: the
# gradient of its logits takes their place, and that of the table is made after them.
COMPILED = {
    ("base", 250_000, 64): 7.07, ("large", 1_000_000, 64): 28.30, ("base", 1_000_000, 8): 33.43,
}  # fmt: skip
# The papers' sizes: config, run and keys that differ.
SIZES = {
    "base_250k": (xlm_r, "base", {}),
    "large_500k": (xlm_r, "large", {"vocab.target_size": 500_000}),
    "xl_250k": (xlm_r, "xl", {}),
    "vocap_500k": (vocap_paper, "vocap_500k_knn", {}),
    "vocap_500k_half": (vocap_paper, "vocap_500k_knn_half", {}),
    "vocap_1m": (vocap_paper, "vocap_1m_knn", {}),
}
# Made by this code and checked by hand for the table (500,096 rows of 768 float32 are 1.536 GB) and
# for XL (36 layers of 78.6 million and 250,112 rows of 2,560: 3.5 billion parameters).
# size, devices, fsdp, model -> GB of parameters, optimizer, index, gradients on one device.
STATES = {
    ("large_500k", 256, 16, 2): (0.1, 0.21, 0.0, 0.1),
    ("xl_250k", 256, 32, 1): (0.44, 0.88, 0.0, 0.44),
    ("vocap_500k", 1, 1, 1): (1.88, 3.77, 0.1, 1.88),
    ("vocap_500k", 256, 16, 2): (0.06, 0.12, 0.1, 0.06),
    ("vocap_500k_half", 8, 1, 1): (1.11, 2.23, 0.1, 1.11),
    ("vocap_1m", 256, 16, 2): (0.11, 0.22, 0.2, 0.11),
}
# How the arrays of each size lie on 8 x 16 x 2 devices; layers come first, then as named.
LAYOUT = {
    "embeddings/table": "(model, fsdp)",
    "embeddings/positions": "(-, fsdp)", "head/bias": "(model)", "head/dense/kernel": "(fsdp, -)",
    "layers/attention/query/kernel": "(-, fsdp, model)",
    "layers/attention/output/kernel": "(-, model, fsdp)",
    "layers/mlp/wide/kernel": "(-, fsdp, model)", "layers/mlp/wide/bias": "(-, model)",
    "layers/mlp/output/kernel": "(-, model, fsdp)", "layers/mlp_norm/scale": "(-, fsdp)",
}  # fmt: skip


def tearDownModule():
    sharded.on_mesh.cache_clear()  # or its programs would stay loaded


def config_of(config: ConfigDict | None = None, **keys) -> ConfigDict:
    """A small run, or another config, with some keys, section__key=value."""
    found = config or one_gpu.get_config("runlocal")
    found.update_from_flattened_dict({key.replace("__", "."): one for key, one in keys.items()})
    return found


def tuning_config(**keys) -> ConfigDict:
    return config_of(xnli.get_config(""), **keys)


def sized(size: str, fsdp: int, model: int):
    module, run, changes = SIZES[size]
    config = module.get_config(run)
    config.update_from_flattened_dict(changes)
    config.mesh.update(fsdp=fsdp, model=model, shard_optimizer_over_data=False)
    return config


@functools.cache
def estimate_of(size: str, devices: int, fsdp: int, model: int) -> memory.Estimate:
    return memory.estimate(sized(size, fsdp, model), devices)


def step_bytes(functions: TrainFunctions, **shapes: tuple[int, ...]) -> int:
    """Bytes that a step on a batch takes on a device, by the compiler's own count."""
    layout = batch_sharding(functions.mesh)
    arrays = {
        name: jax.ShapeDtypeStruct(
            shape, jnp.float32 if name == "weights" else jnp.int32, sharding=layout
        )
        for name, shape in shapes.items()
    }
    batch = Batch(arrays, "packed")
    step = functions.train_step.lower(functions.objective, functions.abstract_state, batch)
    return step.compile().memory_analysis().temp_size_in_bytes


def temporary_bytes(config: ConfigDict, num_devices: int) -> int:
    """Those of a step on packed sequences."""
    settings = settings_of(MeshSettings, config.mesh)
    mesh = make_mesh(settings, jax.devices()[:num_devices])
    objective = memory.objectives.objective(config, memory.absent_rows(config), mesh)
    functions = memory.model.train_functions(config, objective, mesh)
    size = config.train.batch_size
    return step_bytes(functions, tokens=(size, config.store.length), language=(size,))


class EstimateTest(parameterized.TestCase):
    @parameterized.parameters(*STATES)
    def test_state_of_the_papers_sizes(self, size, devices, fsdp, model):
        found = estimate_of(size, devices, fsdp, model).bytes()
        gigabytes = tuple(round(found[part] / 1e9, 2) for part in memory.PARTS[:4])
        self.assertEqual(gigabytes, STATES[size, devices, fsdp, model])

    def test_devices_share_the_optimizer_and_not_the_gradients(self):
        config = sized("base_250k", 1, 1)
        whole = memory.estimate(config, 8).bytes()
        config.mesh.shard_optimizer_over_data = True
        shared = memory.estimate(config, 8).bytes()
        self.assertEqual(shared["gradients"], whole["gradients"])
        for part in ("parameters", "optimizer"):
            self.assertBetween(whole[part] / shared[part], 7.5, 8)

    @parameterized.parameters(*SIZES)
    def test_layout_on_256_devices(self, size):
        estimate = estimate_of(size, 256, 16, 2)
        self.assertEqual(estimate.mesh, "8 x 16 x 2")
        lines = [line.split() for line in estimate.layout.splitlines()]
        found = {line[0]: " ".join(line) for line in lines}
        for name, axes in LAYOUT.items():
            self.assertIn(f" float32 {axes} ", found[name])

    def test_parts_of_a_batch_are_held_one_at_a_time(self):
        config = sized("base_250k", 1, 1)
        whole = memory.estimate(config, 8).bytes()
        config.train.accumulation_steps = 16
        found = memory.estimate(config, 8).bytes()
        self.assertAlmostEqual(found["activations"] * 16 / whole["activations"], 1, delta=0.01)
        self.assertEqual(found["optimizer"], whole["optimizer"])
        self.assertEqual(found["gradients"], 2 * whole["gradients"])  # of a part, and their sum
        config.train.accumulation_steps = 3
        with self.assertRaisesRegex(ValueError, "must be a multiple of 24: .* of the 3 parts"):
            memory.estimate(config, 8)

    @parameterized.parameters(1, 4)
    def test_step_of_parts_takes_what_is_estimated(self, parts: int):
        config = quickstart.get_config("runlocal")
        config.vocab.target_size, config.store.length = 20_000, 64
        config.model.update(embedding_size=128, hidden_size=128, num_layers=2, mlp_size=256)
        config.output_layer.kind = "full"
        config.train.update(batch_size=8, accumulation_steps=parts)
        estimated = memory.estimate(config, 1).bytes()
        expected = estimated["activations"] + estimated["gradients"]
        self.assertBetween(temporary_bytes(config, 1) / expected, 0.8, 1.1)

    def test_presets_of_xy_lent_fit_the_papers_cards(self):
        """128 of 40 GB for Base and Large, 512 of 80 GB for XL, with a fifth left (Appendix A)."""
        for run, devices, gigabytes in (("base", 128, 40), ("large", 128, 40), ("xl", 512, 80)):
            found = memory.estimate(xy_lent.get_config(run), devices).bytes()
            self.assertLess(sum(found.values()) / 1e9, 0.8 * gigabytes, run)

    def test_logits_of_a_split_table_are_of_all_candidates(self):
        config = vocap_paper.get_config("short_nce")
        config.mesh.update(model=2)
        config.output_layer.kind = "full"
        full = memory.estimate(config, 8).bytes()["activations"]

        def logits(**changes) -> float:
            config.output_layer.update(changes)
            return (full - memory.estimate(config, 8).bytes()["activations"]) / 4

        # 64 sequences a device with 77 masked positions each; groups of 32.
        masked, targets = 64 * 77 // 2, 32 * 77
        for kind in ("nce", "neg", "target_sampling"):
            left_out = 500_000 - 50_000 - targets
            self.assertEqual(logits(kind=kind, num_negatives=50_000), masked * left_out)
        self.assertEqual(logits(num_negatives=500_000), 0)

    @parameterized.parameters("full", "blockwise")
    def test_what_the_rules_do_not_split_every_device_holds(self, kind):
        """Two devices along `model` take as much for the same sequences as one without them."""
        config = sized("base_250k", 1, 2)
        config.output_layer.kind = kind
        by_rules = memory.estimate(config, 16).bytes()["activations"]
        config.mesh.rules = (("embed", "fsdp"),)
        whole = memory.estimate(config, 16).bytes()["activations"]
        config.mesh.rules = (("vocab", "model"), ("embed", "fsdp"))
        table_alone = memory.estimate(config, 16).bytes()["activations"]
        config.mesh.update(model=1, rules=())
        self.assertEqual(whole, memory.estimate(config, 8).bytes()["activations"])
        self.assertLess(by_rules, 0.75 * whole)
        # The blocks of the exact softmax are as large, and each device has its own.
        self.assertEqual(table_alone < whole, kind == "full")
        self.assertLess(by_rules, table_alone)
        config.mesh.update(model=2, rules=(("heads", "model"),))
        heads_alone = memory.estimate(config, 16).bytes()["activations"]
        self.assertBetween(heads_alone, by_rules + 1, whole - 1)

    def test_weights_of_fused_attention_are_not_kept(self):
        config = vocap_paper.get_config("vocap_250k")
        config.model.unroll = 1
        config.model.attention = "flash"
        fused = memory.estimate(config, 8).bytes()["activations"]
        config.model.attention = "xla"
        xla = memory.estimate(config, 8).bytes()["activations"]
        self.assertLess(fused, 0.7 * xla)
        config.model.attention = "auto"
        for backend, expected in (("gpu", fused), ("cpu", xla)):
            found = memory.estimate(config, 8, backend=backend).bytes()["activations"]
            self.assertEqual(found, expected)

    @parameterized.parameters(("veco_base", 8), ("mmbert_base_8192", 64), ("xlm_r_large", 8))
    def test_what_gpus_take(self, name, num_devices):
        records = json.loads((pathlib.Path(bench.__file__).parent / "compiled.json").read_text())
        of_kinds = [
            one for one in records.values()
            if (one["preset"].split()[0], one["target"]) == (name, f"h100:{num_devices}")
        ]  # fmt: skip
        config = bench.config_of(name, num_devices, of_kinds[0]["preset"].split()[1:])
        found = memory.estimate(config, num_devices, backend="gpu").bytes()
        peak = max(one["peak"] for one in of_kinds)
        self.assertBetween(sum(found.values()) / peak, 0.9, 1.2)

    @parameterized.parameters(*COMPILED)
    def test_what_a_tpu_takes(self, model, vocab_size, devices):
        config = vocap_paper.get_config("vocap_250k")
        if model == "large":
            config.model.update(xlm_r.get_config("large").model)
        config.model.attention = "xla"  # as it was compiled
        config.mesh.shard_optimizer_over_data = False
        config.vocab.target_size, config.output_layer.kind = vocab_size, "blockwise"
        with mock.patch.object(jax, "default_backend", return_value="tpu"):
            found = memory.estimate(config, devices).bytes()
        compiled = COMPILED[model, vocab_size, devices]
        self.assertBetween(sum(found.values()) / 1e9 / compiled, 0.99, 1.07)


class StagesTest(absltest.TestCase):
    def test_cross_attention_alone_takes_less(self):
        """Of VECO's 662M parameters less than a fifth are its (Table 7; Section 2.3)."""
        config = veco.get_config("large")
        config.mesh.shard_optimizer_over_data = False
        first, last = (memory.estimate(config, 64, stage).bytes() for stage in (0, -1))
        self.assertAlmostEqual(last["parameters"] / 4e6, 662, delta=1)
        self.assertEqual(first["parameters"], last["parameters"])
        share = first["gradients"] / last["gradients"]
        self.assertBetween(share, 0.15, 0.2)
        self.assertAlmostEqual(first["optimizer"] / last["optimizer"], share, places=5)
        # One pass in place of three, and of the table no gradient of each.
        self.assertBetween(last["activations"] / first["activations"], 2, 6)


class StateBytesTest(absltest.TestCase):
    def test_equals_what_devices_hold(self):
        config = quickstart.get_config("runlocal")
        config.mesh.update(data=2, fsdp=2, model=2)
        abstract = memory.estimate(config, 8)
        dataset = memory.absent_rows(config)
        settings = MeshSettings(2, 2, 2, config.mesh.vocab_multiple, config.mesh.rules)
        mesh = make_mesh(settings)
        self.assertEqual(make_abstract_mesh(settings, 8).shape, mesh.shape)
        objective = memory.objectives.objective(config, dataset, mesh)
        functions = memory.model.train_functions(config, objective, mesh)
        state = functions.init(np.int32(0))
        found = state_bytes(functions)
        parts = {"parameters": state.params, "optimizer": state.opt_state}
        for name, part in {**parts, "auxiliary state": state.aux_state}.items():
            held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(part))
            self.assertEqual(found[name], held)
            self.assertEqual(abstract.bytes()[name], held)


class ActivationsTest(parameterized.TestCase):
    SIZES = ActivationSizes(
        tokens=3 * 64, length=64, hidden_size=64, mlp_size=192, num_layers=5, num_heads=4,
        bytes_per_value=4, remat="none", has_attention_weights=True, logits=0, head_shards=1,
        mlp_shards=1,
    )  # fmt: skip

    @parameterized.parameters(("dots", 6, True), ("full", 2, True), ("full", 1, False))
    def test_unrolled_layers_are_kept_apart_from_their_recomputation(self, remat, unroll, is_apart):
        # XLA for GPUs keeps the barrier until it has merged equal operations, and for CPUs not.
        settings = dataclasses.replace(
            sharded.SETTINGS, num_layers=6, max_length=64, unroll=unroll, remat=remat
        )
        arguments = nn.unbox(boxed_shapes(settings)), sharded.batch()
        step = jax.jit(jax.grad(functools.partial(sharded.loss, settings)))
        found = "optimization_barrier" in step.lower(*arguments).as_text()
        self.assertEqual(found, is_apart)

    @parameterized.parameters(
        {}, {"norm_position": "pre"}, {"remat": "full"}, {"dtype": "bfloat16", "remat": "dots"},
        {"dtype": "bfloat16", "attention": "blockwise"},
    )  # fmt: skip
    def test_layers_keep_what_is_estimated(self, **changes):
        settings = encoder_settings(
            hidden_size=64, num_layers=5, num_heads=4, mlp_size=192, max_length=64,
            dropout_rate=0.1, attention_dropout_rate=0.1, **changes,
        )  # fmt: skip
        sequences = jnp.zeros((3, 64), jnp.int32)
        params = nn.unbox(boxed_shapes(settings))

        def backward(params):
            def encode(layers):
                return Encoder(settings).apply(
                    {"params": params | {"layers": layers}}, sequences, sequences, sequences,
                    deterministic=False, method="encode", rngs={"dropout": jax.random.key(0)},
                )  # fmt: skip

            return jax.vjp(encode, params["layers"])[1]

        kept = jax.tree.leaves(jax.eval_shape(backward, params))
        of_layers = [x for x in kept if x.shape[:1] == (5,) and 3 in x.shape[1:3]]
        measured = sum(x.size * x.dtype.itemsize for x in of_layers)
        has_weights, size = settings.kernel == "xla", jnp.dtype(settings.dtype).itemsize
        kept_by = {"remat": settings.remat, "has_attention_weights": has_weights}
        sizes = dataclasses.replace(self.SIZES, bytes_per_value=size, **kept_by)
        estimated = sizes.bytes() - dataclasses.replace(sizes, num_layers=0).bytes()
        estimated -= sizes.weight_bytes()
        self.assertBetween(measured / estimated, 1, 1.03)  # and a few values of LayerNorms
        kernels = [x for x in kept if x.shape[:1] == (5,) and x.ndim > 2 and 3 not in x.shape[1:3]]
        copies = sum(2 * x.size for x in kernels if x.dtype == jnp.bfloat16)
        self.assertEqual(copies, sizes.weight_bytes())

    @parameterized.parameters(
        (quickstart, 8, 1, 1), (quickstart, 1, 8, 1), (quickstart, 2, 2, 2), (xy_lent, 8, 1, 1),
        (xy_lent, 2, 2, 2),
    )  # fmt: skip
    def test_step_takes_what_is_estimated(self, module, data: int, fsdp: int, model: int):
        s, is_lent = sharded.SETTINGS, module is xy_lent
        config = module.get_config("runlocal" if is_lent else "")
        config.mesh.update(data=data, fsdp=fsdp, model=model)
        config.model.update({name: getattr(s, name) for name in config.model if hasattr(s, name)})
        config.vocab.target_size = s.vocab_size
        config.store.length = sharded.L
        config.train.batch_size = sharded.B
        config.mask.rate = sharded.M / sharded.L
        if is_lent:
            config.data.pair_share = 0.0
        else:
            config.output_layer.kind = "full"
        estimated = memory.estimate(config, 8).bytes()
        if is_lent:  # most gradients come after the peak
            expected = estimated["activations"] + estimated["gradients"]
            self.assertBetween(temporary_bytes(config, 8) / expected, 0.85, 1.1)
        else:
            measured = sharded.on_mesh(data, fsdp, model, s).temporary_bytes()
            self.assertBetween(measured / estimated["activations"], 0.9, 1.2)


LARGE = (24, 1024, 4096, 250_002)  # layers, width, width of the MLP, pieces
NORM = 2  # vectors


def numbers_of(layers: int, width: int, mlp: int, pieces: int) -> int:
    """Parameters of an XLM-R and a head of three classes, counted by hand."""
    attention = 4 * (width * width + width) + NORM * width
    block = attention + width * mlp + mlp + mlp * width + width + NORM * width
    embeddings = (pieces + 512 + NORM) * width
    head = width * width + width + 3 * width + 3
    return embeddings + layers * block + head


class FineTuningTest(parameterized.TestCase):
    def test_state_of_large(self):
        found = estimate_fine_tuning(tuning_config(), 1, "xlmr_large").state
        size = 4 * numbers_of(*LARGE)
        self.assertEqual((found["parameters"], found["gradients"]), (size, size))
        self.assertBetween(found["optimizer"], 2 * size, 2 * size + 100)  # and counters

    def test_parts_hold_fewer_examples_and_a_second_gradient(self):
        found = estimate_fine_tuning(tuning_config(train__batch_size=24), 2, "xlmr_base")
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
        sizes = [
            estimate_fine_tuning(tuning_config(**one), 1, "xlmr_large").activations[-1][-1]
            for one in changes
        ]
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
        self.assertEqual(estimate_fine_tuning(config, 1).state["parameters"], size)

    def test_what_cannot_be_estimated(self):
        with self.assertRaisesRegex(
            ValueError, "'tatoeba', of kind retrieval; memory is estimated"
        ):
            estimate_fine_tuning(tatoeba.get_config(""), 1, "xlmr_base")
        with self.assertRaisesRegex(ValueError, "batch_size is 32, must be a multiple of 5"):
            estimate_fine_tuning(tuning_config(), 5, "xlmr_base")
        with self.assertRaisesRegex(ValueError, "max_length is 600, but the encoder has 512"):
            estimate_fine_tuning(tuning_config(task__max_length=600), 1, "xlmr_base")

    @parameterized.parameters(1, 4)
    def test_step_takes_what_is_estimated(self, parts: int):
        """By the compiler's own count, which is for this backend and float32."""
        config = tuning_config(train__batch_size=8, train__accumulation_steps=parts)
        config.model.dropout_rate = config.model.attention_dropout_rate = 0.1
        settings = EncoderSettings(
            vocab_size=20_000, embedding_size=256, hidden_size=256, num_layers=4, num_heads=4,
            mlp_size=1024, max_length=512, norm_position="post", **config.model.to_dict(),
        )  # fmt: skip
        made = fine_tuning.with_head(config, settings)
        mesh = make_mesh(fine_tuning.MESH, jax.devices()[:1])
        functions = fine_tuning.train_functions(config, made, mesh, 1000)
        of_tokens = dict.fromkeys(("tokens", "segments", "positions"), (8, 128))
        measured = step_bytes(functions, **of_tokens, labels=(8,), weights=(8,))
        activations = memory.activation_bytes(settings, 8 // parts, 128)
        gradients = state_bytes(functions)["gradients"]
        expected = activations + gradients * (2 if parts > 1 else 1)
        self.assertBetween(measured / expected, 0.8, 1.1)


class CommandTest(FolderTest):
    def run_tool(self, config: str, *flags: str):
        return commands.execute("estimate", f"--config=configs/{config}", *flags)

    def test_of_pre_training(self):
        self.assertEqual(main.VERBS["estimate"], "estimate")
        found = self.run_tool("one_gpu.py:runlocal", "--target=l4", "--price=1")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("all, GB", found.stdout)
        self.assertIn("price, most", found.stdout)
        found = self.run_tool("quickstart.py", "--encoder=xlmr_base")
        self.assertRegex(found.stderr, "--encoder is for configs of configs/finetune; leave it out")

    def test_of_fine_tuning(self):
        found = self.run_tool(
            "finetune/xnli.py", "--encoder=xlmr_large", "--config.model.dtype=bfloat16",
            "--config.train.batch_size=4",
        )  # fmt: skip
        self.assertEqual(found.returncode, 0, found.stderr)
        lines = found.stdout.splitlines()
        self.assertEqual(lines[4], "| 2.24 | 4.48 | 2.24 |")
        self.assertEndsWith(lines[6], "| examples at once | 32 tokens | 64 tokens | 128 tokens |")
        self.assertEqual([line.split(" | ")[:2] for line in lines[8:11]],
                         [["| 4", "1"], ["| 2", "2"], ["| 1", "4"]])  # fmt: skip
        found = self.run_tool("finetune/xnli.py")
        self.assertRegex(found.stderr, "no encoder; give --encoder, one of xlmr_base, ")
        found = self.run_tool("finetune/xnli.py", "--encoder=xlmr_base", "--target=l4")
        self.assertIn("--target and --price are for pre-training", found.stderr)
