"""ModernBERT's folders and tokenizers against PyTorch, `transformers` and `tokenizers`."""

import dataclasses
import functools
import io
import json
from typing import Any

import jax
import numpy as np
import sentencepiece as spm
import tokenizers
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors

from tests.interop import xlm_roberta_parity_test as parity
from tests.interop.xlm_roberta_test import VOCAB, FolderTest, params_of, tokenizer
from vocap.settings import SPECIALS
from xlm.common import artifacts
from xlm.interop import huggingface, model_folder, vocabulary
from xlm.models.encoder import EncoderSettings

LENGTH = 200  # beyond the window on both sides
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 7,
    "num_attention_heads": 2, "max_position_embeddings": 256, "local_attention": 16,
    "pad_token_id": 1, "bos_token_id": 0, "cls_token_id": 0, "eos_token_id": 2, "sep_token_id": 2,
}  # fmt: skip
SETTINGS = EncoderSettings(
    vocab_size=VOCAB, embedding_size=32, hidden_size=32, num_layers=5, num_heads=2, mlp_size=24,
    max_length=256, norm_position="pre", position="rotary", rotary_theta=160_000.0, mlp="geglu",
    norm="layer_no_bias", bias=False, first_norm=False, local_window=16, global_every=3,
)  # fmt: skip


def texts() -> tuple[np.ndarray, np.ndarray]:
    is_text = np.arange(LENGTH) < np.array([[LENGTH], [70], [5]])
    tokens = np.random.default_rng(2).integers(5, VOCAB, is_text.shape)
    return np.where(is_text, tokens, 1).astype(np.int32), is_text


def their_model(name: str = "ForMaskedLM", **changes: Any):
    import torch

    library = parity.transformers()
    config = library.ModernBertConfig(**CONFIG | {"attn_implementation": "eager"} | changes)
    torch.manual_seed(0)
    model = getattr(library, f"ModernBert{name}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@absltest.skipUnless(parity.HAS_TORCH, "torch and transformers are not installed")
class ParityTest(FolderTest):
    def assert_agree(self, model, params, settings: EncoderSettings, atol: float):
        tokens, is_text = texts()
        states = parity.states_of(settings, params, tokens, is_text)
        logits = parity.logits_of(settings, params, states) if "head" in params else states
        hidden, their_logits = parity.theirs(model, tokens, is_text)
        for mine, other in ((states, hidden[-1]), (logits, their_logits)):
            self.assertGreater(other[is_text].std(), 0.3)
            np.testing.assert_allclose(np.asarray(mine)[is_text], other[is_text], atol, atol)

    @parameterized.parameters(
        {}, {"num_hidden_layers": 1}, {"num_hidden_layers": 2}, {"global_attn_every_n_layers": 1},
        {"name": "Model"}, {"hidden_activation": "silu"},
    )  # fmt: skip
    def test_theirs_here(self, **changes):
        model = their_model(**changes)
        model.save_pretrained(self.folder)
        sizes, params = model_folder.read_model(self.folder)
        self.assert_agree(model, params, EncoderSettings(**sizes, dtype="float32"), 1e-5)

    @parameterized.parameters(
        {}, {"local_window": 0}, {"mlp": "swiglu", "local_rotary_theta": 500.0}, {"num_layers": 1}
    )
    def test_ours_there(self, **changes):
        settings = dataclasses.replace(SETTINGS, **changes)
        for has_head in (True, False):
            params = dict(params_of(settings))
            if not has_head:
                del params["head"]
            folder = self.parent / str(has_head)
            folder.mkdir()
            sizes = dataclasses.asdict(settings)
            self.assertEqual(model_folder.why_not_transformers(sizes, has_head=has_head), "")
            model_folder.write_model(folder, params, sizes, tokenizer())
            auto = "AutoModelForMaskedLM" if has_head else "AutoModel"
            model, report = getattr(parity.transformers(), auto).from_pretrained(
                folder, output_loading_info=True, attn_implementation="eager"
            )
            self.assertEmpty({key: value for key, value in report.items() if value})
            self.assert_agree(model.eval(), params, settings, 1e-4)
            read = model_folder.read_model(folder)[1]
            params["layers"] = jax.tree.map(np.copy, params["layers"])
            params["layers"]["attention_norm"]["scale"][0] = 1  # of no effect, and not written
            self.assert_same_bits(read, params)


class RefusedTest(FolderTest):
    @parameterized.parameters(
        ({"norm_bias": True}, "norm_bias is True, must be False as in the published"),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu', must be gelu or silu"),
        ({"layer_types": ["sliding_attention"] * 5}, "must be full_attention for the first"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn', must be 'defa"),
        ({"hidden_size": 34}, "hidden_size is 34, must be a multiple of twice"),
        ({"intermediate_size": 25}, "must be .* by config.json"),
    )  # fmt: skip
    def test_settings(self, change: dict, message: str):
        self.write_ours(SETTINGS)
        path = self.folder / "config.json"
        artifacts.write_json(path, artifacts.read_json(path) | change)
        with self.assertRaisesRegex(ValueError, message):
            model_folder.read_model(self.folder)

    def test_an_untied_head(self):
        self.write_ours(SETTINGS)
        tensors = load_file(self.folder / "model.safetensors")
        tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"] + 1
        save_file(tensors, self.folder / "model.safetensors")
        with self.assertRaisesRegex(ValueError, "decoder.weight differ, but the output layer must"):
            model_folder.read_model(self.folder)

    def test_another_models_settings(self):
        self.write_ours(SETTINGS)
        run = dataclasses.asdict(SETTINGS) | {"global_every": 2, "mlp": "swiglu"}
        with self.assertRaisesRegex(
            ValueError, "model.mlp: .*\n.*model.global_every: there 3, now 2"
        ):
            model_folder.check_initial(self.folder, run, tokenizer())

    def test_settings_that_the_class_lacks(self):
        sizes = dataclasses.asdict(dataclasses.replace(SETTINGS, norm="rms", first_norm=True))
        reason = model_folder.why_not_transformers(sizes)
        self.assertIn(
            "model.norm is 'rms', there 'layer_no_bias'; model.first_norm is True", reason
        )


BLANK = "\u2581"
SYMBOLS = ["<2x>", *("\n" * n for n in range(1, 4)), *(BLANK * n for n in range(2, 6))]
LINES = [
    "the thing and the other thing", "  two blanks  ", "", "x\ty", "zebra \u00e9\u4e2d \U0001f600!",
    "tha thi", "a<2x>b the<2x>", "<0x41> \u2581",
    "a\n\nb\n\n\n\n  the\n the  ", " " * 13 + "the    \u2581 thing",
    "\U0001f9d1\u200d\U0001f4bb\x00 12",
]  # fmt: skip


@functools.cache
def gemma() -> tuple[bytes, dict[str, Any]]:
    """A SentencePiece model as Gemma's, and the tokenizer.json that `transformers` makes of it."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["the thing and the other thing, that is this"] * 50),
        model_writer=model, model_type="bpe", vocab_size=300, byte_fallback=True, pad_id=0,
        eos_id=1, bos_id=2, unk_id=3, control_symbols=["<mask>"], user_defined_symbols=SYMBOLS,
        bos_piece="<bos>", eos_piece="<eos>", normalization_rule_name="identity",
        add_dummy_prefix=False, remove_extra_whitespaces=False, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    processor = spm.SentencePieceProcessor(model_proto=model.getvalue())
    ids = {processor.id_to_piece(i): i for i in range(len(processor))}
    merges = [
        ((processor.get_score(i), n, len(piece) - n), (piece[:n], piece[n:]))
        for piece, i in ids.items()
        for n in range(1, len(piece))
        if not processor.is_byte(i) and piece[:n] in ids and piece[n:] in ids
    ]
    made = tokenizers.Tokenizer(models.BPE(
        ids, [pair for _, pair in sorted(merges, reverse=True)], unk_token="<unk>", fuse_unk=True,
        byte_fallback=True,
    ))  # fmt: skip
    made.normalizer = normalizers.Replace(" ", BLANK)
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    ends = [(one, ids[one]) for one in ("<bos>", "<eos>")]
    made.post_processor = processors.TemplateProcessing("<bos> $A <eos>", special_tokens=ends)
    made.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    made.add_tokens([AddedToken(one, normalized=False) for one in SYMBOLS])
    return model.getvalue(), json.loads(made.to_str())


class TokenizerTest(FolderTest):
    def write(self, value: dict[str, Any]) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "tokenizer.json").write_text(json.dumps(value))

    def test_a_bpe_as_gemmas_segments_alike(self):
        original, value = gemma()
        self.write(value)
        model = vocabulary.sentencepiece_model(self.folder)
        old = vocabulary.read_vocabulary(self.folder)
        vocabulary.check_kept(self.folder, old, model)
        numbers = {piece: i for i, piece in enumerate(old.pieces)}
        new = vocabulary.vocabulary(model).pieces
        self.assertEqual(new[: len(SPECIALS)], SPECIALS)
        self.assertEqual(set(new), set(old.pieces))
        ids = [numbers[piece] for piece in new]
        self.assertEqual([old.pieces[i] for i in (0, 1, 2)], ["<pad>", "</s>", "<s>"])
        found = huggingface.compare(model, value, LINES, ids)
        self.assertEqual(huggingface.describe(found), "")
        before, after = (spm.SentencePieceProcessor(model_proto=m) for m in (original, model))
        for line in LINES:
            self.assertEqual(before.encode(line, out_type=str), after.encode(line, out_type=str))

    def test_an_export_has_the_original_tokens(self):
        """By `AutoTokenizer`, of what was imported, with the names of special tokens changed."""
        value = gemma()[1]
        self.write(value)
        model = vocabulary.sentencepiece_model(self.folder)
        output = self.parent / "out"
        huggingface.export_tokenizer(model, output)
        exported = parity.transformers().AutoTokenizer.from_pretrained(output)
        original = tokenizers.Tokenizer.from_str(json.dumps(value))
        for line in LINES:
            before = original.encode(line, add_special_tokens=False).tokens
            found = exported(line, add_special_tokens=False)["input_ids"]
            self.assertEqual(exported.convert_ids_to_tokens(found), before)
            self.assertEqual(exported.decode(found), line.replace(BLANK, " "))
        self.assertEqual(exported("the thing", add_special_tokens=False).word_ids()[-1], 1)

    def test_pieces_of_bytes_keep_their_embeddings(self):
        """Of ModernBERT's kind: its tokenizer is refused, its pieces are known by their text."""
        names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
        vocab = {"a": 0, "\u0120": 1, "\u0120a": 2, "\u00c3": 3, "\u00c3\u00a9": 4, "b": 5}
        added = [{"id": 6 + i, "content": one, "special": True} for i, one in enumerate(names)]
        merges = [["\u0120", "a"], ["\u00c3", "\u00a9"]]
        value = {
            "added_tokens": added, "pre_tokenizer": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        }  # fmt: skip
        self.write(value)
        old = vocabulary.read_vocabulary(self.folder)
        self.assertEqual(old.pieces[:3], ("a", "\u2581", "\u2581a"))
        self.assertEqual(old.pieces[4:8], ("\u00e9", "b", "<unk>", "<s>"))
        table = np.arange(11.0)[:, None] * np.ones((1, 2), np.float32)
        new = dataclasses.replace(old, pieces=(*SPECIALS, "\u2581a", "\u00e9", "ab"))
        new = dataclasses.replace(new, scores=np.zeros(8))
        swapped = vocabulary.swap(old, new, table, np.zeros(11, np.float32))
        self.assertEqual(swapped.table[:, 0].tolist(), [7, 9, 8, 6, 10, 2, 4, 2.5])
        with self.assertRaisesRegex(ValueError, "a byte-level BPE, .* --vocabulary"):
            vocabulary.sentencepiece_model(self.folder)

    @parameterized.parameters(
        (
            {"normalizer": {"type": "NFC"}},
            "steps are NFC and Split, must be a Replace of the blank",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "steps are Replace and Whitespace"),
        ({"model": "fewer merges"}, "no merge makes .*, so the BPE does not come"),
    )
    def test_other_bpes_are_refused(self, change: dict, message: str):
        value = {**gemma()[1], **change}
        if change.get("model"):
            model = gemma()[1]["model"]
            made = {"".join(pair): pair for pair in model["merges"]}
            value["model"] = {**model, "merges": list(made.values())}  # one for each piece
        self.write(value)
        with self.assertRaisesRegex(ValueError, f"tokenizer.json: .*{message}"):
            vocabulary.sentencepiece_model(self.folder)
