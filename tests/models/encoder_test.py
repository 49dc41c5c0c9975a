"""The encoder's hidden states: against numpy, and what they depend on."""

import dataclasses
import functools
import math

import jax
import numpy as np
from absl.testing import parameterized

from tests.models.factories import encoder_settings, random_params
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.models.segments import packed_segments
from xlm.training.flops import matmul_flops

BOS, PAD, EOS = 0, 1, 2
POST = encoder_settings()
PRE = encoder_settings(norm_position="pre")
ROTARY, RELATIVE, GATED = (
    encoder_settings(norm_position="pre", position=kind, distance_buckets=8, max_distance=6)
    for kind in ("rotary", "relative", "gated")
)
# ModernBERT's blocks: two layers of four are local, and the last one begins a period.
MODERN = encoder_settings(
    norm_position="pre", position="rotary", num_layers=4, mlp="geglu", norm="layer_no_bias",
    bias=False, first_norm=False, local_window=4, global_every=3, rotary_theta=160.0,
    initializer="megatron",
)  # fmt: skip
RMS = encoder_settings(
    norm_position="pre", position="rotary", mlp="swiglu", norm="rms", qk_norm=True, first_norm=False
)
ALL = (POST, PRE, ROTARY, RELATIVE, GATED, MODERN, RMS)
FIRST, SECOND = [BOS, 10, 11, 12, EOS], [BOS, 20, 21, EOS]


@functools.partial(jax.jit, static_argnames=("settings", "num_layers"))
def _encode(params, key, tokens, segments, positions, settings, num_layers):
    return Encoder(settings).apply(
        {"params": params}, tokens, segments, positions, deterministic=key is None,
        num_layers=num_layers, method="encode", rngs=None if key is None else {"dropout": key},
    )  # fmt: skip


def encode(tokens, segments, positions, settings=POST, params=None, key=None, num_layers=None):
    """Hidden states [B, L, D]; dropout where there is a key."""
    params = random_params(settings) if params is None else params
    rows = (np.atleast_2d(x).astype(np.int32) for x in (tokens, segments, positions))
    return _encode(params, key, *rows, settings, num_layers)


packed = jax.jit(packed_segments, static_argnames=("bos", "pad", "across_documents"))


def encode_packed(*documents: list[int], **kwargs) -> np.ndarray:
    """Hidden states [L, D] of one row of documents, padded to the full length."""
    row = [token for document in documents for token in document]
    tokens = np.array([row + [PAD] * (POST.max_length - len(row))], np.int32)
    inputs = packed(tokens, bos=BOS, pad=PAD, across_documents=False)
    return np.asarray(encode(tokens, *inputs, **kwargs))[0]


def slow_norm(x: np.ndarray, p, kind: str = "layer") -> np.ndarray:
    x = x if kind == "rms" else x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * p["scale"]
    return x + p["bias"] if kind == "layer" else x


def slow_dense(x: np.ndarray, p) -> np.ndarray:
    return x @ p["kernel"] + p.get("bias", 0)


def slow_mlp(x: np.ndarray, p, kind: str) -> np.ndarray:
    x, middle = (slow_dense(x, p[name]) if name in p else 1 for name in ("gate", "wide"))
    if kind == "swiglu":
        return slow_dense(middle / (1 + np.exp(-middle)) * x, p["output"])
    return slow_dense(middle * (1 + np.vectorize(math.erf)(middle / 2**0.5)) / 2 * x, p["output"])


def slow_rotate(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """A query or key of a head, its halves the parts of complex numbers."""
    half = len(x) // 2
    turns = np.exp(1j * position * theta ** (-np.arange(half) / half))
    numbers = (x[:half] + 1j * x[half:]) * turns
    return np.concatenate([numbers.real, numbers.imag])


def slow_bucket(distance: int) -> int:
    """Of eight, as T5 has them: 0, 1, 2-3, 4 and more, and the same for keys behind the query."""
    return min(int(np.log2(abs(distance)) + 1) if distance else 0, 3) + 4 * (distance > 0)


def slow_gate(query: np.ndarray, p, h: int) -> float:
    update, reset = (1 / (1 + np.exp(-query @ p[name][h])) for name in ("update", "reset"))
    return 1 + update + (1 - update) * p["scale"][h] * reset


def slow_attention(x: np.ndarray, p, settings: EncoderSettings, bias, number: int) -> np.ndarray:
    """Attention of one document in a layer, head by head, query by query."""
    is_local = settings.local_window > 0 and number % settings.global_every > 0
    theta = settings.local_rotary_theta if is_local else settings.rotary_theta
    query, key, value = (slow_dense(x, p[name]) for name in ("query", "key", "value"))
    heads = np.split(np.arange(x.shape[1]), settings.num_heads)
    if settings.qk_norm:
        for head in heads:
            for one, name in ((query, "query_norm"), (key, "key_norm")):
                one[:, head] = slow_norm(one[:, head], p[name], settings.norm)
    mixed = np.zeros_like(x)
    for h, head in enumerate(heads):
        for i in range(len(x)):
            scores = key[:, head] @ query[i, head]
            if settings.position == "rotary":
                keys = np.stack([slow_rotate(one, j, theta) for j, one in enumerate(key[:, head])])
                scores = keys @ slow_rotate(query[i, head], i, theta)
            scores = scores / math.sqrt(len(head))
            if is_local:
                far = np.abs(np.arange(len(x)) - i) > settings.local_window / 2
                scores = np.where(far, -np.inf, scores)
            if bias is not None:
                of_row = np.array([bias[slow_bucket(j - i), h] for j in range(len(x))])
                is_gated = settings.position == "gated"
                scores += of_row * (slow_gate(query[i, head], p["gate"], h) if is_gated else 1)
            exps = np.exp(scores)
            mixed[i, head] = exps / exps.sum() @ value[:, head]
    return slow_dense(mixed, p["output"])


def slow_cross_attention(x: np.ndarray, states: np.ndarray, p, s: EncoderSettings) -> np.ndarray:
    """Attention of one document to all of `states`, head by head."""
    query = slow_dense(x, p["query"])
    key, value = (slow_dense(states, p[name]) for name in ("key", "value"))
    mixed = np.zeros_like(x)
    for head in np.split(np.arange(x.shape[1]), s.num_heads):
        if s.qk_norm:
            query[:, head] = slow_norm(query[:, head], p["query_norm"], s.norm)
            key[:, head] = slow_norm(key[:, head], p["key_norm"], s.norm)
        exps = np.exp(query[:, head] @ key[:, head].T / np.sqrt(len(head)))
        mixed[:, head] = exps / exps.sum(axis=1, keepdims=True) @ value[:, head]
    return slow_dense(mixed, p["output"])


def slow_encode(document, settings: EncoderSettings, states=None, is_causal=False) -> np.ndarray:
    """Hidden states [L, D] of one document, layer by layer, in float64; decoded with `states`."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), random_params(settings))
    x = slow_dense(p["embeddings"]["table"][document], p["embeddings"]["project"])
    if settings.position == "learned":
        x += p["embeddings"]["positions"][: len(document)]
    x = slow_norm(x, p["embeddings"]["norm"], settings.norm)
    bias = p["distances"]["bias"] if settings.has_bias else None
    for i in range(settings.num_layers):
        layer = jax.tree.map(lambda x, i=i: x[i], p["layers"])

        def attend(x, p=layer["attention"], i=i):
            if not is_causal:
                return slow_attention(x, p, settings, bias, i)
            # The last token of a prefix is one that sees no later ones.
            prefixes = [slow_attention(x[: n + 1], p, settings, bias, i) for n in range(len(x))]
            return np.stack([prefix[-1] for prefix in prefixes])

        def cross(x, layer=layer):
            return slow_cross_attention(x, states, layer["cross_attention"], settings)

        def mlp(x, p=layer["mlp"]):
            return slow_mlp(x, p, settings.mlp)

        for norm, sublayer in (("attention", attend), ("cross_attention", cross), ("mlp", mlp)):
            if norm == "cross_attention" and states is None:
                continue
            scale = layer[f"{norm}_norm"]
            if settings.norm_position == "post":
                x = slow_norm(x + sublayer(x), scale, settings.norm)
            elif norm == "attention" and i == 0 and not settings.first_norm:
                x = x + sublayer(x)
            else:
                x = x + sublayer(slow_norm(x, scale, settings.norm))
    if settings.norm_position == "post":
        return x
    return slow_norm(x, p["final_norm"], settings.norm)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


class EncoderTest(parameterized.TestCase):
    @parameterized.parameters(*ALL)
    def test_equals_numpy(self, settings: EncoderSettings):
        hidden = encode_packed(FIRST, SECOND, settings=settings)
        assert_close(hidden[:5], slow_encode(FIRST, settings))
        assert_close(hidden[5:9], slow_encode(SECOND, settings))


class LayersTest(parameterized.TestCase):
    """Options that change how layers are computed, and not their outputs."""

    def test_remat_keeps_less(self):
        tokens = np.ones((1, 12), np.int32)

        def kept(settings):
            def encode(params):
                return _encode(params, None, tokens, tokens, tokens, settings, None)

            _, backward = jax.eval_shape(lambda p: jax.vjp(encode, p), random_params(POST))
            return sum(x.size for x in jax.tree.leaves(backward))

        sizes = [kept(dataclasses.replace(POST, remat=remat)) for remat in ("none", "dots", "full")]
        self.assertLess(sizes[1], sizes[0])
        self.assertLess(sizes[2], sizes[1])


class NumLayersTest(parameterized.TestCase):
    def test_layers_that_are_not_asked_for_are_not_computed(self):
        settings = encoder_settings(num_layers=4)
        row = jax.ShapeDtypeStruct((1, 12), np.int32)

        def operations(num_layers: int) -> float:
            args = (random_params(settings), None, row, row, row, settings, num_layers)
            return matmul_flops(_encode.trace(*args).jaxpr)

        one, two, four = operations(1), operations(2), operations(4)
        self.assertGreater(two, one)
        self.assertEqual(four - two, 2 * (two - one))

    @parameterized.parameters(-1, 3)
    def test_layers_that_do_not_exist(self, num_layers: int):
        message = f"num_layers is {num_layers}, must be between 0 and 2"
        with self.assertRaisesRegex(ValueError, message):
            encode_packed(FIRST, num_layers=num_layers)


class DropoutTest(parameterized.TestCase):
    settings = dataclasses.replace(POST, dropout_rate=0.3)
    attention = dataclasses.replace(POST, attention_dropout_rate=0.3)

    @parameterized.parameters(settings, attention)
    def test_is_a_function_of_the_key_and_off_without_one(self, settings: EncoderSettings):
        keys = [jax.random.key(seed) for seed in (0, 0, 1)]
        first, again, other = (encode_packed(FIRST, settings=settings, key=key) for key in keys)
        np.testing.assert_array_equal(first, again)
        self.assertGreater(np.abs(first - other).max(), 0.1)
        np.testing.assert_array_equal(encode_packed(FIRST, settings=settings), encode_packed(FIRST))

    @parameterized.parameters({}, {"local_window": 4, "global_every": 2})
    def test_each_layer_has_dropout_of_its_own(self, **change):
        """Layers that add ones, of which shared dropout would keep the same."""
        settings = dataclasses.replace(PRE, dropout_rate=0.3, **change)
        params = jax.tree.map(np.zeros_like, random_params(PRE))
        for ones in (params["layers"]["mlp"]["output"]["bias"], params["final_norm"]["scale"]):
            ones[...] = 1
        options = {"settings": settings, "params": params, "key": jax.random.key(0)}
        one, two = (encode_packed(FIRST, num_layers=n, **options) > 0 for n in (1, 2))
        self.assertTrue((one != two).any())

    def test_drops_a_share_of_the_embeddings_and_scales_the_rest(self):
        plain = encode_packed(FIRST, SECOND, num_layers=0)
        key = jax.random.key(0)
        dropped = encode_packed(FIRST, SECOND, settings=self.settings, key=key, num_layers=0)
        kept = dropped != 0
        np.testing.assert_allclose(dropped, np.where(kept, plain / 0.7, 0), rtol=1e-6)
        # 192 draws: within four standard deviations of the rate.
        self.assertAlmostEqual(1 - kept.mean(), 0.3, delta=4 * np.sqrt(0.3 * 0.7 / 192))
