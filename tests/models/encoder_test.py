"""What the encoder's hidden states depend on, and the shapes, types and names of its parameters."""

import dataclasses
import functools

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from models.encoder import Encoder, EncoderSettings, output_table
from models.segments import packed_segments

BOS, PAD, EOS = 0, 1, 2
SETTINGS = EncoderSettings(
    vocab_size=40,
    embedding_size=16,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    mlp_size=24,
    max_length=12,
    dropout_rate=0.0,
    dtype="float32",
)
HALF_EMBEDDING = dataclasses.replace(SETTINGS, embedding_size=8)
BFLOAT16 = dataclasses.replace(SETTINGS, dtype="bfloat16")
LOGICAL_AXES = {"vocab", "embed", "embed_out", "position", "heads", "mlp"}


@functools.cache
def boxed_params(settings: EncoderSettings = SETTINGS):
    row = jnp.zeros((1, settings.max_length), jnp.int32)
    return jax.jit(Encoder(settings).init)(jax.random.key(0), row, row, row)["params"]


@functools.cache
def params_of(settings: EncoderSettings = SETTINGS):
    """Parameters away from their initial values, among which are too many zeros and ones."""
    params = nn.unbox(boxed_params(settings))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.2 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noisy)


@functools.partial(jax.jit, static_argnames=("settings", "num_layers"))
def _encode(params, key, tokens, segments, positions, settings, num_layers):
    return Encoder(settings).apply(
        {"params": params},
        tokens,
        segments,
        positions,
        deterministic=key is None,
        num_layers=num_layers,
        method="encode",
        rngs=None if key is None else {"dropout": key},
    )


def encode(tokens, segments, positions, settings=SETTINGS, params=None, key=None, num_layers=None):
    """Hidden states [B, L, D]; dropout where there is a key."""
    params = params_of(settings) if params is None else params
    rows = (np.atleast_2d(x).astype(np.int32) for x in (tokens, segments, positions))
    return _encode(params, key, *rows, settings, num_layers)


def encode_packed(*documents: list[int], **kwargs) -> jax.Array:
    """Hidden states [L, D] of one row of documents, padded to the full length."""
    row = [token for document in documents for token in document]
    tokens = jnp.array([row + [PAD] * (SETTINGS.max_length - len(row))], jnp.int32)
    inputs = packed_segments(tokens, bos=BOS, pad=PAD, across_documents=False)
    return encode(tokens, *inputs, **kwargs)[0]


FIRST, SECOND = [BOS, 10, 11, 12, EOS], [BOS, 20, 21, EOS]


class DependenceTest(parameterized.TestCase):
    def test_positions_depend_on_all_of_their_segment_and_on_nothing_else(self):
        # Each token once, so that its row of the table stands for its position.
        tokens = np.arange(5, 5 + SETTINGS.max_length)
        segments = np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0])
        direction = jnp.arange(1.0, 1 + SETTINGS.hidden_size) ** 2  # LayerNorm fixes plain sums

        def projected(table):
            params = params_of() | {"embeddings": params_of()["embeddings"] | {"table": table}}
            return encode(tokens, segments, np.arange(12), params=params)[0] @ direction  # [L]

        jacobian = jax.jit(jax.jacrev(projected))(params_of()["embeddings"]["table"])  # [L, V, E]
        depends = np.asarray((jacobian != 0).any(axis=2))[:, tokens]
        np.testing.assert_array_equal(depends, segments[:, None] == segments[None, :])

    def test_document_packed_behind_another_is_encoded_as_if_alone(self):
        packed = encode_packed(FIRST, SECOND)
        for document, place in ((FIRST, slice(0, 5)), (SECOND, slice(5, 9))):
            alone = encode_packed(document)[: len(document)]
            np.testing.assert_allclose(packed[place], alone, rtol=1e-5, atol=1e-5)

    def test_padding_does_not_influence_text(self):
        row = np.array(FIRST + SECOND)
        segments, positions = packed_segments(
            jnp.array([row]), bos=BOS, pad=PAD, across_documents=False
        )
        unpadded = encode(row, segments, positions)[0]
        np.testing.assert_allclose(encode_packed(FIRST, SECOND)[:9], unpadded, 1e-5, 1e-5)

    def test_rows_of_a_batch_do_not_influence_each_other(self):
        tokens = np.random.default_rng(0).integers(3, 40, (3, 12))
        ones, positions = np.ones_like(tokens), np.tile(np.arange(12), (3, 1))
        batch = encode(tokens, ones, positions)
        for row in range(3):
            alone = encode(tokens[row], ones[row], positions[row])[0]
            np.testing.assert_allclose(batch[row], alone, rtol=1e-5, atol=1e-5)

    def test_order_of_positions_is_seen(self):
        # The inputs permuted with their positions: the same hidden states, permuted.
        tokens, ones = np.arange(5, 17), np.ones(12)
        order = np.random.default_rng(0).permutation(12)
        hidden = encode(tokens, ones, np.arange(12))[0]
        permuted = encode(tokens[order], ones, order)[0]
        np.testing.assert_allclose(permuted, hidden[order], rtol=1e-5, atol=1e-5)
        moved = encode(tokens[order], ones, np.arange(12))[0]
        self.assertGreater(jnp.abs(moved - hidden[order]).max(), 0.1)


class LayersTest(parameterized.TestCase):
    def test_all_layers_by_default(self):
        default = encode_packed(FIRST, SECOND)
        np.testing.assert_array_equal(default, encode_packed(FIRST, SECOND, num_layers=2))
        self.assertGreater(jnp.abs(default - encode_packed(FIRST, SECOND, num_layers=1)).max(), 0.1)

    def test_no_layers_give_the_embeddings(self):
        embeddings = params_of()["embeddings"]
        tokens, positions = np.array(FIRST), np.arange(len(FIRST))
        x = np.asarray(embeddings["table"])[tokens] + np.asarray(embeddings["positions"])[positions]
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        scale, bias = (np.asarray(embeddings["norm"][name]) for name in ("scale", "bias"))
        expected = x * scale + bias
        hidden = encode(tokens, np.ones(5), positions, num_layers=0)[0]
        np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-5)

    def test_fewer_layers_equal_a_shallower_model(self):
        shallow = dataclasses.replace(SETTINGS, num_layers=1)
        params = {name: x for name, x in params_of().items() if name != "layer_1"}
        self.assertEqual(params.keys(), params_of(shallow).keys())
        hidden = encode_packed(FIRST, SECOND, settings=shallow, params=params)
        np.testing.assert_allclose(encode_packed(FIRST, SECOND, num_layers=1), hidden, 1e-6, 1e-6)

    @parameterized.parameters(-1, 3)
    def test_layers_that_do_not_exist(self, num_layers: int):
        with self.assertRaisesRegex(
            ValueError, f"num_layers is {num_layers}, must be between 0 and 2"
        ):
            encode_packed(FIRST, num_layers=num_layers)


class DropoutTest(parameterized.TestCase):
    settings = dataclasses.replace(SETTINGS, dropout_rate=0.3)

    def encode(self, key: jax.Array | None, num_layers: int | None = None) -> jax.Array:
        return encode_packed(
            [FIRST, SECOND],
            settings=self.settings,
            params=params_of(),
            key=key,
            num_layers=num_layers,
        )

    def test_needs_a_key(self):
        row = jnp.zeros((1, 4), jnp.int32)
        with self.assertRaisesRegex(flax.errors.InvalidRngError, 'needs PRNG for "dropout"'):
            Encoder(self.settings).apply(
                {"params": params_of()}, row, row, row, deterministic=False, method="encode"
            )

    @parameterized.parameters(0, 2)
    def test_is_a_function_of_the_key(self, num_layers: int):
        first, again, other = (self.encode(jax.random.key(i), num_layers) for i in (0, 0, 1))
        np.testing.assert_array_equal(first, again)
        self.assertGreater(jnp.abs(first - other).max(), 0.1)

    def test_is_off_without_a_key(self):
        np.testing.assert_array_equal(self.encode(None), encode_packed(FIRST, SECOND))

    def test_drops_a_share_and_scales_the_rest(self):
        plain, dropped = self.encode(None, 0), self.encode(jax.random.key(0), 0)
        kept = dropped != 0
        np.testing.assert_allclose(dropped, jnp.where(kept, plain / 0.7, 0), rtol=1e-6)
        # 192 draws: within four standard deviations of the rate.
        self.assertAlmostEqual(1 - kept.mean(), 0.3, delta=4 * np.sqrt(0.3 * 0.7 / 192))


class ParametersTest(parameterized.TestCase):
    @parameterized.parameters(SETTINGS, HALF_EMBEDDING)
    def test_count(self, s: EncoderSettings):
        v, e, d, f = s.vocab_size, s.embedding_size, s.hidden_size, s.mlp_size
        norm = 2 * d
        embeddings = v * e + s.max_length * d + norm + (0 if e == d else e * d + d)
        attention = 4 * (d * d + d)
        mlp = (d * f + f) + (f * d + d)
        head = (d * e + e) + 2 * e + v
        expected = embeddings + s.num_layers * (attention + mlp + 2 * norm) + head
        self.assertEqual(sum(x.size for x in jax.tree.leaves(params_of(s))), expected)

    @parameterized.parameters(SETTINGS, HALF_EMBEDDING)
    def test_every_axis_of_every_parameter_has_a_name(self, settings: EncoderSettings):
        specs = nn.get_partition_spec(boxed_params(settings))
        params = nn.unbox(boxed_params(settings))
        for (path, spec), shape in zip(
            jax.tree.leaves_with_path(specs),
            [x.shape for x in jax.tree.leaves(params)],
            strict=True,
        ):
            self.assertLen(spec, len(shape), jax.tree_util.keystr(path))
            self.assertContainsSubset(spec, LOGICAL_AXES, jax.tree_util.keystr(path))
            self.assertLen(set(spec), len(spec), "an axis name twice cannot be sharded")
            sizes = dict(zip(spec, shape, strict=True))
            self.assertEqual(sizes.get("vocab", settings.vocab_size), settings.vocab_size)
            self.assertEqual(sizes.get("mlp", settings.mlp_size), settings.mlp_size)

    @parameterized.parameters(SETTINGS, HALF_EMBEDDING)
    def test_output_table_is_the_input_table(self, settings: EncoderSettings):
        table, bias = output_table(params_of(settings))
        self.assertEqual(table.shape, (settings.vocab_size, settings.embedding_size))
        self.assertEqual(bias.shape, (settings.vocab_size,))
        self.assertIs(table, params_of(settings)["embeddings"]["table"])

    @parameterized.parameters(SETTINGS, HALF_EMBEDDING, BFLOAT16)
    def test_shapes_and_types(self, settings: EncoderSettings):
        types = {x.dtype for x in jax.tree.leaves(nn.unbox(boxed_params(settings)))}
        self.assertEqual(types, {jnp.dtype("float32")})
        hidden = encode_packed(FIRST, SECOND, settings=settings)
        self.assertEqual(hidden.shape, (settings.max_length, settings.hidden_size))
        predicted = Encoder(settings).apply(
            {"params": params_of(settings)}, hidden, method="predict"
        )
        self.assertEqual(predicted.shape, (settings.max_length, settings.embedding_size))
        self.assertEqual({hidden.dtype, predicted.dtype}, {jnp.dtype(settings.dtype)})

    def test_call_is_encode_then_predict(self):
        tokens, segments = np.array([FIRST], np.int32), np.ones((1, 5), np.int32)
        positions = np.arange(5, dtype=np.int32)[None, :]
        model, variables = Encoder(HALF_EMBEDDING), {"params": params_of(HALF_EMBEDDING)}
        hidden = encode(tokens, segments, positions, settings=HALF_EMBEDDING)
        np.testing.assert_allclose(
            model.apply(variables, tokens, segments, positions),
            model.apply(variables, hidden, method="predict"),
            rtol=1e-5,
            atol=1e-5,
        )


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"num_heads": 3}, "model.hidden_size 16 is no multiple of model.num_heads 3"),
        ({"dtype": "float16"}, "model.dtype is 'float16', must be float32 or bfloat16"),
    )
    def test_settings_that_cannot_work(self, change: dict, message: str):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(SETTINGS, **change)


if __name__ == "__main__":
    absltest.main()
