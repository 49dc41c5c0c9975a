"""XLM-R's folders, tensor by tensor; xlm_roberta_parity_test.py compares with PyTorch."""

import dataclasses
import functools
import pathlib
import tempfile
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from absl.testing import parameterized
from safetensors.numpy import load_file, save_file

from vocap import merge
from xlm.common import artifacts
from xlm.interop import model_folder, parameters, xlm_roberta
from xlm.models.encoder import Encoder, EncoderSettings

WIDTH, LAYERS, HEADS, MLP, LENGTH = 16, 3, 2, 24, 18
PIECES = [*"abcdefghijklmnopqrstuvwxyz", "\u2581", "\u2581th", "ing", "\u2581a"]
VOCAB = len(merge.SPECIALS) + len(PIECES)
SETTINGS = EncoderSettings(
    vocab_size=VOCAB, embedding_size=WIDTH, hidden_size=WIDTH, num_layers=LAYERS, num_heads=HEADS,
    mlp_size=MLP, max_length=LENGTH, norm_position="post", dropout_rate=0.1,
    attention_dropout_rate=0.2, dtype="float32",
)  # fmt: skip
SIZES = dataclasses.asdict(SETTINGS)
PADDED = dataclasses.replace(SETTINGS, vocab_size=-(-VOCAB // 32) * 32)
CONFIG = {
    "model_type": "xlm-roberta", "vocab_size": VOCAB, "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": MLP,
    "max_position_embeddings": LENGTH + 2, "pad_token_id": 1, "type_vocab_size": 1,
    "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2,
}  # fmt: skip


@functools.cache
def tokenizer() -> bytes:
    return merge.write_model(PIECES, -np.arange(1.0, len(PIECES) + 1))


@functools.cache
def params_of(settings: EncoderSettings) -> dict[str, Any]:
    """Parameters of ours away from zeros and ones."""
    row = jnp.zeros((1, settings.max_length), jnp.int32)
    shapes = jax.eval_shape(Encoder(settings).init, jax.random.key(0), row, row, row)["params"]
    rng = np.random.default_rng(0)

    def random_value(path, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        centre = float(path[-1].key == "scale")
        return (centre + 0.3 * rng.normal(size=shape.shape)).astype(np.float32)

    return jax.tree.map_with_path(random_value, nn.unbox(shapes))


def their_tensors() -> dict[str, np.ndarray]:
    """Tensors by the names and in the shapes of XLMRobertaForMaskedLM."""
    return xlm_roberta.XLM_R.tensors(parameters.flat(params_of(SETTINGS), SIZES), SIZES)


def flat(params: dict[str, Any]) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(params)
    return {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in leaves}


class FolderTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.parent = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.folder = self.parent / "model"

    def write_theirs(
        self, tensors: dict[str, np.ndarray], config: dict[str, Any] | None = None
    ) -> pathlib.Path:
        self.folder.mkdir()
        artifacts.write_json(self.folder / "config.json", CONFIG if config is None else config)
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        return self.folder

    def write_ours(self, settings: EncoderSettings = SETTINGS, **options: Any) -> None:
        """Write parameters of ours, those on devices, to the folder."""
        params, sizes = jax.tree.map(jnp.asarray, params_of(settings)), dataclasses.asdict(settings)
        model_folder.write_model(self.folder, params, sizes, tokenizer(), **options)

    def assert_same_bits(self, found: dict[str, Any], expected: dict[str, Any]):
        found, expected = flat(found), flat(expected)
        self.assertEqual(set(found), set(expected))
        for name, array in expected.items():
            self.assertEqual(found[name].dtype, np.float32, name)
            self.assertEqual(found[name].shape, array.shape, name)
            np.testing.assert_array_equal(
                found[name].view(np.uint32), np.ascontiguousarray(array).view(np.uint32), name
            )


class ReadTest(FolderTest):
    @parameterized.parameters(np.float16, ml_dtypes.bfloat16)
    def test_half_precision_is_read_as_float32(self, dtype):
        halves = {name: array.astype(dtype) for name, array in their_tensors().items()}
        _, params = model_folder.read_model(self.write_theirs(halves))
        wide = {name: array.astype(np.float32) for name, array in halves.items()}
        self.folder = self.parent / "wide"
        self.assert_same_bits(params, model_folder.read_model(self.write_theirs(wide))[1])

    def write_shards(self, theirs: dict[str, np.ndarray]) -> None:
        whole = self.write_theirs(theirs) / "model.safetensors"
        whole.unlink()
        weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(theirs))}
        for part in set(weight_map.values()):
            own = {name: theirs[name] for name in theirs if weight_map[name] == part}
            save_file(own, self.folder / part)
        artifacts.write_json(
            self.folder / "model.safetensors.index.json", {"weight_map": weight_map}
        )

    def test_shards(self):
        theirs = their_tensors()
        self.write_shards(theirs)
        found = model_folder.read_model(self.folder)
        self.folder = self.parent / "whole"
        expected = model_folder.read_model(self.write_theirs(theirs))
        self.assertEqual(found[0], expected[0])
        self.assert_same_bits(found[1], expected[1])

    def test_tied_tensors_by_either_name_and_unused_ones(self):
        theirs = their_tensors()
        expected = model_folder.read_model(self.write_theirs(theirs))[1]
        table, bias = theirs["roberta.embeddings.word_embeddings.weight"], theirs["lm_head.bias"]
        tied = {"lm_head.decoder.weight": table, "lm_head.decoder.bias": bias}
        pooler = {
            "roberta.pooler.dense.weight": np.ones((WIDTH, WIDTH), np.float32),
            "roberta.pooler.dense.bias": np.ones(WIDTH, np.float32),
            "roberta.embeddings.position_ids": np.arange(LENGTH + 2)[None],
        }
        self.folder = self.parent / "both"
        both = self.write_theirs(theirs | tied | pooler)
        self.assert_same_bits(model_folder.read_model(both)[1], expected)
        only = theirs | tied
        del only["roberta.embeddings.word_embeddings.weight"], only["lm_head.bias"]
        self.folder = self.parent / "only"
        self.assert_same_bits(model_folder.read_model(self.write_theirs(only))[1], expected)

    @parameterized.parameters(
        ({"lm_head.bias": None}, "lacks tensors, 1: lm_head.bias. .* XLMRobertaForMaskedLM"),
        ({"roberta.encoder.layer.2.output.dense.bias": None}, "lacks .*layer.2.output.dense.bias"),
        ({"roberta.encoder.layer.3.output.dense.bias": (WIDTH,)}, "has unknown .*3.output"),
        ({"classifier.dense.weight": (2, WIDTH)}, "unknown .*, 1: classifier.dense"),
        ({"lm_head.dense.bias": (WIDTH + 1,)}, r"lm_head.dense.bias has shape \(17,\), must be"),
        ({"roberta.embeddings.position_embeddings.weight": (LENGTH, WIDTH)},
         r"model.safetensors: .*position_embeddings.weight has shape \(18, 16\), must be \(20, 16"),
        ({"lm_head.decoder.bias": (VOCAB,)}, "lm_head.bias and lm_head.decoder.bias differ"),
        ({"lm_head.bias": np.ones(VOCAB, np.int32)}, "lm_head.bias is of type int32, must be floa"),
    )  # fmt: skip
    def test_tensors_that_do_not_fit_are_named(self, changes, message):
        theirs = their_tensors()
        for name, shape in changes.items():
            if shape is None:
                del theirs[name]
            else:
                is_array = isinstance(shape, np.ndarray)
                theirs[name] = shape if is_array else np.ones(shape, np.float32)
        with self.assertRaisesRegex(ValueError, message):
            model_folder.read_model(self.write_theirs(theirs))

    @parameterized.parameters(
        ("model_type", "gpt2", "model_type is 'gpt2', must be 'xlm-roberta'"),
        ("hidden_act", "gelu_new", "hidden_act is 'gelu_new', must be 'gelu'"),
        ("position_embedding_type", "relative_key", "must be 'absolute'"),
        ("is_decoder", True, "is_decoder is True"),
        ("num_attention_heads", 3, "hidden_size 16 is no multiple of num_attention_heads 3"),
        ("hidden_size", None, "lacks the field hidden_size; write"),
        ("hidden_size", 10**9, "hidden_size is 1000000000, must be .* <= 16777216"),
        ("max_position_embeddings", 2, "max_position_embeddings is 2, .* which leaves none"),
    )
    def test_settings_that_are_not_of_xlm_r_are_named(self, key, value, message):
        config = CONFIG | {key: value}
        if value is None:
            del config[key]
        with self.assertRaisesRegex(ValueError, f"config.json: .*{message}"):
            model_folder.read_model(self.write_theirs(their_tensors(), config))

    def test_files_that_are_missing_or_damaged_are_named(self):
        with self.assertRaisesRegex(ValueError, "config.json does not exist; give a folder"):
            model_folder.read_model(self.folder)
        weights = self.write_theirs(their_tensors()) / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        with self.assertRaisesRegex(ValueError, "model.safetensors: cannot be read"):
            model_folder.read_model(self.folder)
        weights.rename(self.folder / "pytorch_model.bin")
        with self.assertRaisesRegex(ValueError, "model.bin: is damaged, or .* save_pr"):
            model_folder.read_model(self.folder)

    def test_an_index_that_does_not_fit_is_named(self):
        self.write_shards(their_tensors())
        index = self.folder / "model.safetensors.index.json"
        (self.folder / "part-1.safetensors").rename(self.parent / "part-1.safetensors")
        with self.assertRaisesRegex(ValueError, "part-1.safetensors does not exist, but .* lists"):
            model_folder.read_model(self.folder)
        index.write_text(index.read_text().replace("part-1", "../part-1"))
        with self.assertRaisesRegex(ValueError, "../part-1.safetensors., must be .* slashes"):
            model_folder.read_model(self.folder)
        index.write_text("[]")
        with self.assertRaisesRegex(ValueError, r"its content is \[\], must be an object"):
            model_folder.read_model(self.folder)


class WriteTest(FolderTest):
    @parameterized.parameters(0, 1, LAYERS)
    def test_what_was_written_is_read_bit_by_bit(self, num_layers):
        settings = dataclasses.replace(SETTINGS, num_layers=num_layers)
        self.write_ours(settings)
        sizes, found = model_folder.read_model(self.folder)
        self.assertEqual(sizes, {key: getattr(settings, key) for key in sizes})
        self.assert_same_bits(found, params_of(settings))

    def test_zeros_keep_their_signs(self):
        signed = lambda x: np.where(x > 0, 0.0, -0.0).astype(x.dtype)  # noqa: E731
        params = jax.tree.map(signed, params_of(SETTINGS))
        model_folder.write_model(self.folder, params, SIZES, tokenizer())
        self.assert_same_bits(model_folder.read_model(self.folder)[1], params)

    def test_the_files(self):
        self.write_ours()
        names = {path.name for path in self.folder.iterdir()}
        tokenizers = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
        self.assertEqual(names, {"config.json", "model.safetensors", "spm.model", *tokenizers})
        self.assertEqual(model_folder.read_tokenizer(self.folder), tokenizer())
        tensors = load_file(self.folder / "model.safetensors")
        self.assertFalse(tensors["roberta.embeddings.token_type_embeddings.weight"].any())
        config = artifacts.read_json(self.folder / "config.json")
        self.assertEqual(config, config | CONFIG | {"architectures": ["XLMRobertaForMaskedLM"]})

    def test_nothing_is_left_of_a_folder_that_could_not_be_written(self):
        wrong = {**SIZES, "mlp_size": 20}
        with self.assertRaisesRegex(
            ValueError, r"layers.mlp.wide.kernel has shape \(3, 16, 24\), must be \(3, 16, 20\)"
        ):
            model_folder.write_model(self.folder, params_of(SETTINGS), wrong, tokenizer())
        more = merge.write_model([*PIECES, "more"], np.zeros(len(PIECES) + 1))
        with self.assertRaisesRegex(ValueError, "embeddings.table has shape"):
            model_folder.write_model(self.folder, params_of(SETTINGS), SIZES, more)
        self.assertEmpty(list(self.parent.iterdir()))

    def test_a_folder_with_files_is_left_alone(self):
        self.folder.mkdir()
        self.write_ours()  # empty, so it may be filled
        before = {path: path.stat().st_mtime_ns for path in self.folder.iterdir()}
        with self.assertRaisesRegex(ValueError, "is not empty; choose another folder"):
            self.write_ours()
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in self.folder.iterdir()})


class InitialParamsTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.write_ours()

    def initial_params(self, settings: EncoderSettings, model: bytes | None = None):
        return model_folder.initial_params(
            self.folder, dataclasses.asdict(settings), tokenizer() if model is None else model
        )

    @parameterized.parameters(
        {"hidden_size": 32}, {"num_layers": 2}, {"num_heads": 4}, {"mlp_size": 32},
        {"max_length": 12}, {"norm_position": "pre"}, {"embedding_size": 8}, {"position": "gated"},
    )  # fmt: skip
    def test_a_size_that_differs_is_named(self, **change):
        ((key, value),) = change.items()
        message = f"\n  model.{key}: there {SIZES[key]!r}, now {value!r}\nSet these"
        settings = dataclasses.replace(PADDED, **change)
        with self.assertRaisesRegex(ValueError, message):
            self.initial_params(settings)
        (self.folder / "model.safetensors").unlink()  # which is not needed to tell
        with self.assertRaisesRegex(ValueError, message):
            model_folder.check_initial(self.folder, dataclasses.asdict(settings), tokenizer())

    def test_another_vocabulary_is_refused(self):
        other = merge.write_model(PIECES, -np.arange(2.0, len(PIECES) + 2))
        with self.assertRaisesRegex(ValueError, "is not the tokenizer .* xlm import"):
            self.initial_params(PADDED, other)
        (self.folder / "spm.model").unlink()
        with self.assertRaisesRegex(ValueError, "spm.model does not exist; .* xlm import"):
            self.initial_params(PADDED)
