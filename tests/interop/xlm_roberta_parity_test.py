"""XLM-R's folders against PyTorch and `transformers`, where these are installed."""

import dataclasses
import functools
import importlib.util
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized

from tests.interop.xlm_roberta_test import (
    CONFIG,
    LAYERS,
    LENGTH,
    PADDED,
    SETTINGS,
    SIZES,
    VOCAB,
    FolderTest,
    params_of,
    tokenizer,
)
from vocap import merge
from xlm.common import artifacts
from xlm.interop import model_folder
from xlm.models.encoder import Encoder, EncoderSettings, output_table

HAS_TORCH = all(map(importlib.util.find_spec, ("torch", "transformers")))


@functools.cache
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, about each other
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        return transformers


# Settings of XLM-R XL.
XL = {"norm_position": "pre", "embedding_norm": False}


def their_model(pad_id: int = 1, name: str = "XLMRoberta", **sizes: int):
    """A masked LM of the class with random weights, of size one for every part to count."""
    import torch

    config = getattr(transformers(), f"{name}Config")(
        **{key: value for key, value in CONFIG.items() if key != "model_type"}
        | {"pad_token_id": pad_id, "max_position_embeddings": LENGTH + pad_id + 1}
        | {"attn_implementation": "eager"}
        | sizes
    )
    model = getattr(transformers(), f"{name}ForMaskedLM")(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def texts(pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [B, L] of different lengths, and which are no padding."""
    rng = np.random.default_rng(2)
    is_text = np.arange(LENGTH) < np.array([[LENGTH], [5], [1], [11]])
    tokens = rng.integers(pad_id + 1, VOCAB, is_text.shape)
    return np.where(is_text, tokens, pad_id).astype(np.int32), is_text


@functools.partial(jax.jit, static_argnums=1)
def ours(params, settings: EncoderSettings, tokens, is_text) -> tuple[list[jax.Array], jax.Array]:
    """Hidden states after each number of layers [B, L, D], and logits [B, L, V]."""
    model, variables = Encoder(settings), {"params": params}
    segments, positions = (
        is_text.astype(jnp.int32),
        jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape),
    )
    hidden = [
        model.apply(
            variables, tokens, segments, positions,
            deterministic=True, num_layers=num_layers, method="encode",
        )
        for num_layers in range(settings.num_layers + 1)
    ]  # fmt: skip
    table, bias = model_folder.table_of(params)
    return hidden, model.apply(variables, hidden[-1], method="predict") @ table.T + bias[None, None]


@functools.partial(jax.jit, static_argnums=0)
def states_of(settings: EncoderSettings, params, tokens, is_text) -> jax.Array:
    """Last hidden states [B, L, D]."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return Encoder(settings).apply(
        {"params": params}, tokens, is_text.astype(jnp.int32), positions, deterministic=True,
        method="encode",
    )  # fmt: skip


def logits_of(settings: EncoderSettings, params, states: jax.Array) -> np.ndarray:
    table, bias = map(np.asarray, output_table(params))
    predict = functools.partial(Encoder(settings).apply, {"params": params}, method="predict")
    return np.asarray(predict(states)) @ table.T + bias


def theirs(model, tokens, is_text) -> tuple[list[np.ndarray], np.ndarray]:
    import torch

    with torch.no_grad():
        out = model(
            torch.tensor(tokens.astype(np.int64)),
            attention_mask=torch.tensor(is_text.astype(np.int64)),
            output_hidden_states=True,
        )
    return [x.numpy() for x in out.hidden_states], getattr(out, "logits", out[0]).numpy()


@absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class ParityTest(FolderTest):
    def assert_agree(self, model, params, settings: EncoderSettings, pad_id: int = 1):
        tokens, is_text = texts(pad_id)
        hidden, logits = ours(params, settings, tokens, is_text)
        their_hidden, their_logits = theirs(model, tokens, is_text)
        self.assertLen(their_hidden, settings.num_layers + 1)
        for mine, other in zip([*hidden, logits], [*their_hidden, their_logits], strict=True):
            self.assertGreater(other[is_text].std(), 0.3)
            np.testing.assert_allclose(np.asarray(mine)[is_text], other[is_text], rtol=0, atol=1e-4)

    @parameterized.parameters(
        {}, {"num_hidden_layers": 1}, {"pad_id": 3}, {"num_attention_heads": 8},
        {"name": "XLMRobertaXL"},
        # Of configs that nobody set: a random model's, where the published ones have 1e-5 and 1.
        {"layer_norm_eps": 0.1, "type_vocab_size": 2},
    )  # fmt: skip
    def test_theirs_here(self, **sizes):
        model = their_model(**sizes)
        model.save_pretrained(self.folder)
        found, params = model_folder.read_model(self.folder)
        settings = EncoderSettings(**found, dtype="float32")
        self.assertEqual(settings.max_length, LENGTH)
        self.assert_agree(model, params, settings, sizes.get("pad_id", 1))

    def load(self, **options):
        model, report = transformers().AutoModelForMaskedLM.from_pretrained(
            self.folder, output_loading_info=True, attn_implementation="eager", **options
        )
        self.assertEmpty({key: value for key, value in report.items() if value})
        return model.eval()

    @parameterized.parameters(
        (1, {}, "XLMRobertaForMaskedLM"),
        (LAYERS, {}, "XLMRobertaForMaskedLM"),
        (LAYERS, XL, "XLMRobertaXLForMaskedLM"),
        (LAYERS, {"norm_epsilon": 0.1}, "XLMRobertaForMaskedLM"),
    )
    def test_ours_there(self, num_layers, changes, name):
        settings = dataclasses.replace(PADDED, num_layers=num_layers, **changes)
        params = params_of(settings)
        model_folder.write_model(self.folder, params, dataclasses.asdict(settings), tokenizer())
        table, bias = model_folder.table_of(params)
        model = self.load()
        self.assertEqual(type(model).__name__, name)
        self.assert_agree(
            model,
            model_folder.with_table(params, table[:VOCAB], bias[:VOCAB]),
            dataclasses.replace(settings, vocab_size=VOCAB),
        )

    @parameterized.parameters("Model", "ForSequenceClassification", "ForQuestionAnswering")
    def test_an_encoder_without_a_masked_lm_head(self, name):
        import torch

        masked_lm = their_model()
        model = getattr(transformers(), f"XLMRoberta{name}")(masked_lm.config).eval()
        encoder = getattr(model, "roberta", model)
        encoder.load_state_dict(masked_lm.roberta.state_dict(), strict=False)  # but the pooler
        model.save_pretrained(self.folder)
        sizes, params = model_folder.read_model(self.folder)
        self.assertNotIn("head", params)
        output = self.folder.parent / "out"
        pieces = model_folder.with_table(
            params, *(x[:VOCAB] for x in model_folder.table_of(params))
        )
        model_folder.write_model(output, pieces, sizes, tokenizer())
        written, report = transformers().AutoModel.from_pretrained(output, output_loading_info=True)
        self.assertEmpty({key: value for key, value in report.items() if value})
        self.assertEqual(type(written).__name__, "XLMRobertaModel")
        tokens, is_text = texts(1)
        inputs = torch.tensor(tokens.astype(np.int64)), torch.tensor(is_text.astype(np.int64))
        with torch.no_grad():
            expected, again = (
                one(inputs[0], attention_mask=inputs[1]).last_hidden_state.numpy()
                for one in (encoder, written.eval())
            )
        np.testing.assert_allclose(again[is_text], expected[is_text], atol=1e-4)
        found = states_of(SETTINGS, params, tokens, is_text)
        np.testing.assert_allclose(np.asarray(found)[is_text], expected[is_text], atol=1e-4)

    def test_the_tokenizer_is_exported_with_it(self):
        model_folder.write_model(self.folder, params_of(SETTINGS), SIZES, tokenizer())
        loaded = transformers().AutoTokenizer.from_pretrained(self.folder)
        processor = spm.SentencePieceProcessor(model_proto=tokenizer())
        lines = ["the thing", "a \u00e9 b", "", "zz  THING"]
        for line in lines:
            expected = [merge.BOS_ID, *processor.encode(line), merge.EOS_ID]
            self.assertEqual(loaded(line)["input_ids"], expected)
        batch = loaded(lines, padding=True)
        self.assertEqual(batch["input_ids"][2][2:], [merge.PAD_ID] * (len(batch[0]) - 2))
        self.assertEqual(loaded.mask_token_id, merge.MASK_ID)
        ids = artifacts.read_json(self.folder / "config.json")
        for name in ("bos", "pad", "eos"):
            self.assertEqual(ids[f"{name}_token_id"], getattr(loaded, f"{name}_token_id"))
        # Truncation cuts to the positions of the model.
        rows = loaded(["the thing " * LENGTH], truncation=True, return_tensors="np")
        self.assertEqual(rows["input_ids"].shape, (1, LENGTH))
