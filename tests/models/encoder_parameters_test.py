"""Shapes, types, number and axis names of the encoder's parameters."""

import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import boxed_shapes, encoder_settings, random_params
from xlm.models import flash_attention, settings
from xlm.models.encoder import Encoder, EncoderSettings, init_params, output_table

HALF = encoder_settings(num_layers=1, dropout_rate=0.1, attention_dropout_rate=0.1)
PRE = dataclasses.replace(HALF, norm_position="pre")
WIDE = dataclasses.replace(HALF, embedding_size=16)
BFLOAT16 = dataclasses.replace(HALF, dtype="bfloat16")
TOKENS = np.array([[0, 10, 11, 2]], np.int32)
SEGMENTS, POSITIONS = np.ones_like(TOKENS), np.arange(4, dtype=np.int32)[None, :]


@functools.cache
def outputs_of(settings: EncoderSettings) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hidden states, predictions from them, and the predictions of a plain call."""

    @jax.jit
    def run(variables):
        model = Encoder(settings)
        inputs = (TOKENS, SEGMENTS, POSITIONS)
        hidden = model.apply(variables, *inputs, deterministic=True, method="encode")
        predicted = model.apply(variables, hidden, method="predict")
        return hidden, predicted, model.apply(variables, *inputs)

    return run({"params": random_params(settings)})


class EncoderParametersTest(parameterized.TestCase):
    @parameterized.parameters(HALF, WIDE, PRE)
    def test_number(self, s: EncoderSettings):
        v, e, d, f = s.vocab_size, s.embedding_size, s.hidden_size, s.mlp_size
        norm = 2 * d
        embeddings = v * e + s.max_length * d + norm + (0 if e == d else e * d + d)
        attention = 4 * (d * d + d)
        mlp = (d * f + f) + (f * d + d)
        last = norm if s.norm_position == "pre" else 0
        head = (d * e + e) + 2 * e + v
        expected = embeddings + s.num_layers * (attention + mlp + 2 * norm) + last + head
        params = nn.unbox(boxed_shapes(s))
        self.assertEqual(sum(x.size for x in jax.tree.leaves(params)), expected)

    @parameterized.parameters(HALF, WIDE, PRE)
    def test_every_axis_has_a_name_that_fits_its_size(self, settings: EncoderSettings):
        sizes = {
            "vocab": {settings.vocab_size},
            "position": {settings.max_length},
            "embed": {settings.embedding_size, settings.hidden_size},
            "embed_out": {settings.embedding_size, settings.hidden_size},
            "heads": {settings.hidden_size},
            "mlp": {settings.mlp_size},
            "layers": {settings.num_layers},
        }
        specs = jax.tree.leaves_with_path(nn.get_partition_spec(boxed_shapes(settings)))
        arrays = jax.tree.leaves(nn.unbox(boxed_shapes(settings)))
        for (path, spec), array in zip(specs, arrays, strict=True):
            name = jax.tree_util.keystr(path)
            self.assertLen(spec, array.ndim, name)
            self.assertLen(set(spec), array.ndim, f"{name}: a mesh axis can be used once")
            for axis, size in zip(spec, array.shape, strict=True):
                self.assertIn(size, sizes[axis], name)

    @parameterized.parameters(HALF, WIDE, PRE, BFLOAT16)
    def test_shapes_and_types_of_outputs(self, settings: EncoderSettings):
        hidden, predicted, called = outputs_of(settings)
        self.assertEqual(hidden.shape, (1, 4, settings.hidden_size))
        self.assertEqual(predicted.shape, (1, 4, settings.embedding_size))
        self.assertEqual({hidden.dtype, predicted.dtype}, {jnp.dtype(settings.dtype)})
        np.testing.assert_array_equal(called, predicted)
        params = random_params(settings)
        table, bias = output_table(params)
        self.assertEqual(bias.shape, (settings.vocab_size,))
        self.assertIs(table, params["embeddings"]["table"])
        shapes = jax.tree.leaves(boxed_shapes(settings))
        self.assertEqual({x.dtype for x in shapes}, {jnp.dtype(jnp.float32)})

    def test_bfloat16_is_near_float32(self):
        # Outputs are LayerNorm's, of size one; a dozen roundings of 2^-8 lie before them, and
        # add up like a random walk.
        exact, rounded = outputs_of(HALF)[1], outputs_of(BFLOAT16)[1]
        error = jnp.sqrt(jnp.mean((exact - rounded.astype(jnp.float32)) ** 2))
        self.assertBetween(error, 2**-12, np.sqrt(12) * 2**-8)

    @parameterized.parameters(
        ({"num_heads": 3}, "model.hidden_size is 16, must be a multiple of model.num_heads, 3"),
        ({"attention": "flash", "hidden_size": 272}, '272 over .* is 136, .* "flash" '
         'takes heads of at most 128; change one of the two, or set .* to "blockwise"'),
        ({"attention": "splash", "position": "gated"}, "has no bias .*position 'gated'"),
        ({"local_window": 5, "global_every": 3}, "local_window is 5 .* a window is even"),
        ({"local_window": 4, "global_every": 3, "position": "gated"}, "4 and .*'gated'; .* no bi"),
        ({"local_window": 4}, "model.global_every 1 makes all layers global; set it to 3"),
        ({"first_norm": False}, 'norm_position "post" the first norm follows the residual'),
    )  # fmt: skip
    def test_settings_that_cannot_work(self, change: dict, message: str):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(HALF, **change)

    def test_initial_values_of_megatron(self):
        settings = dataclasses.replace(
            PRE, initializer="megatron", num_layers=8, hidden_size=64, mlp_size=64, bias=False
        )
        params = nn.unbox(init_params(Encoder(settings), jax.random.key(0)))
        of_layers = params["layers"]
        outputs = (of_layers["mlp"]["output"], of_layers["attention"]["output"])
        for kernel, std in (
            (of_layers["mlp"]["wide"], 0.02), (of_layers["attention"]["query"], 0.02),
            *((one, 0.02 / 4) for one in (*outputs, params["head"]["dense"])),
        ):  # fmt: skip
            values = np.asarray(kernel["kernel"]) / std
            self.assertBetween(np.abs(values).max(), 1.9, 2)  # cut at two
            self.assertAlmostEqual(values.std(), 0.88, delta=0.05)
        self.assertLess(np.abs(params["embeddings"]["table"]).max(), 0.04)

    @parameterized.parameters(
        ("cpu", "bfloat16", "learned", "xla"),
        ("tpu", "bfloat16", "learned", "splash"),
        ("tpu", "float32", "rotary", "splash"),
        ("tpu", "bfloat16", "relative", "xla"),
        ("gpu", "bfloat16", "gated", "flash"),
        ("gpu", "float32", "learned", "flash"),
    )
    def test_kernel_by_backend(self, backend: str, dtype: str, position: str, expected: str):
        auto = dataclasses.replace(HALF, dtype=dtype, position=position, attention="auto")
        with mock.patch.object(jax, "default_backend", return_value=backend):
            self.assertEqual(auto.kernel, expected)
            # It can be set by its name as well.
            self.assertEqual(dataclasses.replace(auto, attention=expected).kernel, expected)

    @parameterized.parameters((16, "", "flash"), (16, "wrong", "blockwise"), (272, "", "blockwise"))
    def test_gpu_that_computes_otherwise(self, hidden_size: int, fault: str, expected: str):
        auto = dataclasses.replace(HALF, hidden_size=hidden_size, attention="auto")
        settings._kernel_of.cache_clear()
        self.addCleanup(settings._kernel_of.cache_clear)
        gpu = mock.Mock(platform="gpu")
        with (
            mock.patch.object(jax, "default_backend", return_value="gpu"),
            mock.patch.object(jax, "devices", return_value=[gpu]),
            mock.patch.object(flash_attention, "fault", return_value=fault) as asked,
            self.assertLogs(level="WARNING" if expected == "blockwise" else "DEBUG") as logs,
        ):
            # Also where it is asked for while a function is traced.
            jax.eval_shape(lambda: self.assertEqual(auto.kernel, expected))
            self.assertEqual(auto.kernel, expected)
        self.assertEqual(asked.call_count, hidden_size == 16)
        self.assertIn(fault, logs.output[0])
