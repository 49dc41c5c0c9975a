"""Tokenizers of each kind, grown and read by the libraries they are for, and models under them."""

import collections
import functools
import importlib.util
import io
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import sentencepiece as spm
import tokenizers
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

import vocap
from tests import commands
from tests.folders import FolderTest
from tests.vocap import texts
from tests.vocap.extension_test import unigram_model
from vocap import model_proto, pretokens
from xlm.interop import extended, huggingface, vocabulary, weights
from xlm.interop.tokenizer_files import JsonFile

HAS_TORCH = all(map(importlib.util.find_spec, ("torch", "transformers")))
SPACE = pretokens.SPACE
OLD = texts.made_up(["ka", "ke", "ki", "ko", "ta", "te", "ti", "to", "na"], 300, "old")
GEORGIAN = ["\u10d0\u10dc", "\u10d1\u10d0", "\u10d2\u10d4", "\u10d3\u10d8", "\u10e0\u10dd"]
LATIN = ["za", "zo", "ka", "ki", "mu", "me", "lu", "ne"]
# A sentence that ends in no piece, and begins a block.
NEW = {"sw": ["za {", *texts.made_up(LATIN, 300, "a")], "ka": texts.made_up(GEORGIAN, 300, "b")}
HELDOUT = {"sw": texts.made_up(LATIN, 60, "a", "heldout")}
TEXT = [*OLD, *NEW["sw"], *NEW["ka"], *HELDOUT["sw"], "ka 12, zo!", "\u10d0\u10dc ka  \u10d1\u10d0"]
SIZE = 80
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")


@functools.cache
def trained(kind: str, **options: Any) -> bytes:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([*OLD, "12, !"]), model_writer=model, model_type=kind,
        hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(model: bytes) -> list[Any]:
    return list(model_proto.ModelProto.FromString(model).pieces)


def write_xlmr(folder: pathlib.Path) -> None:
    """A folder as XLM-R's: fairseq's ids, <mask> behind all pieces."""
    model = trained("unigram", vocab_size=60)
    scored = [(p.piece, p.score) for p in pieces_of(model)[3:]]
    vocab = [*((one, 0.0) for one in SPECIALS), *scored, ("<mask>", 0.0)]
    made = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=3))
    spec = model_proto.ModelProto.FromString(model).normalizer_spec
    made.normalizer = normalizers.Precompiled(spec.precompiled_charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([*SPECIALS, "<mask>"])
    write(folder, made, "XLMRobertaTokenizer")
    (folder / "sentencepiece.bpe.model").write_bytes(model)


def write_llama(folder: pathlib.Path) -> None:
    """A folder as Llama 2's, with a token behind the pieces, as fine-tuned models have."""
    model = trained(
        "bpe", vocab_size=330, byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    pieces = pieces_of(model)
    ids = {p.piece: i for i, p in enumerate(pieces)}
    pairs = [
        (p.piece[:i], p.piece[i:]) for p in pieces[259:] for i in range(1, len(p.piece))
        if {p.piece[:i], p.piece[i:]} <= ids.keys()
    ]  # fmt: skip
    made = tokenizers.Tokenizer(
        models.BPE(ids, pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    made.add_special_tokens(["<unk>", "<s>", "</s>", "<pad>"])
    made.enable_truncation(5)
    write(folder, made, "LlamaTokenizer")
    (folder / "tokenizer.model").write_bytes(model)


def write_gpt(folder: pathlib.Path) -> None:
    """A folder as Llama 3's: bytes, a pattern that splits text, special tokens behind."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pattern, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        OLD, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(f"<|{i}|>", special=True) for i in range(7)])
    write(folder, made, "PreTrainedTokenizerFast")
    (folder / "vocab.json").write_text("{}")
    (folder / "merges.txt").write_text("")


def write_ours(folder: pathlib.Path) -> None:
    model, _ = unigram_model()
    huggingface.export_tokenizer(model, folder)
    (folder / "spm.model").write_bytes(model)


def write_gap(folder: pathlib.Path) -> None:
    """A Unigram model with an added token, and a gap before it."""
    write_ours(folder)
    (folder / "spm.model").unlink()
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text())
    token = {**value["added_tokens"][0], "content": "<new>", "id": len(value["model"]["vocab"]) + 2}
    value["added_tokens"].append(token)
    value["model"]["vocab"] += [["<gap>", -20.0], ["<gap2>", -20.0]]
    path.write_text(json.dumps(value))


def write(folder: pathlib.Path, made: tokenizers.Tokenizer, name: str) -> None:
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


# Name of a kind, its writer, its SentencePiece model, and how far ids are behind the model's.
KINDS = (
    ("xlmr", write_xlmr, "sentencepiece.bpe.model", 1),
    ("llama", write_llama, "tokenizer.model", 0),
    ("gpt", write_gpt, "", 0),
    ("ours", write_ours, "spm.model", 0),
    ("gap", write_gap, "", 0),
)


def read(folder: pathlib.Path) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.no_truncation()
    return made


def encode(made: tokenizers.Tokenizer, lines: list[str]) -> list[list[int]]:
    return [one.ids for one in made.encode_batch(lines, add_special_tokens=False)]


class ExtendedTest(FolderTest):
    def grown(self, write_kind: Any, **options: Any) -> extended.Extension:
        write_kind(self.folder / "old")
        return vocap.extend(self.folder / "old", NEW, SIZE, self.folder / "new", **options)

    @parameterized.named_parameters(*KINDS)
    def test_old_ids_stay_and_new_text_needs_fewer_tokens(self, write_kind, model, offset):
        found = self.grown(write_kind, heldout=HELDOUT, old_texts={"o": OLD})
        old, new = read(self.folder / "old"), read(self.folder / "new")
        before, after = old.get_vocab(), new.get_vocab()
        self.assertLessEqual(before.items(), after.items())
        first = max(before.values()) + 1
        self.assertEqual(found.first_id, first)
        self.assertEqual([after[one] for one in found.pieces], [*range(first, first + SIZE)])
        self.assertEqual(sorted(after.values()), [*range(first + SIZE)])

        was, now = encode(old, TEXT), encode(new, TEXT)
        half = len(OLD)
        self.assertLess(sum(map(len, now[half:])), 0.7 * sum(map(len, was[half:])))
        for text, x, y in zip(TEXT, was, now, strict=True):
            if max(y) < first:
                self.assertEqual(x, y)
            if old.decode(x) == text:
                self.assertEqual(new.decode(y), text)
        kept = sum(x == y for x, y in zip(was[:half], now[:half], strict=True))
        self.assertIn(f"{1 - kept / half:.1%}", found.report.splitlines()[3])
        self.assertGreater(kept, 0)

        if model:
            processor = spm.SentencePieceProcessor(model_file=str(self.folder / "new" / model))
            unknown = after["<unk>"]
            ids = processor.encode(TEXT)
            ids = [[i + offset if i != processor.unk_id() else unknown for i in one] for one in ids]
            self.assertEqual(ids, now)
        if HAS_TORCH:
            import transformers

            loaded = transformers.AutoTokenizer.from_pretrained(self.folder / "new")
            self.assertEqual(loaded(TEXT, add_special_tokens=False)["input_ids"], now)
            self.assertLen(loaded, first + SIZE)

    @parameterized.parameters((write_llama, "tokenizer.model"), (write_ours, "spm.model"))
    def test_a_sentencepiece_model_without_a_folder(self, write_kind, name):
        write_kind(self.folder / "old")
        path = self.folder / "old" / name
        vocap.extend(path, NEW, SIZE, self.folder / "new")
        new = pieces_of((self.folder / "new" / name).read_bytes())
        old = pieces_of(path.read_bytes())
        self.assertEqual(old, new[: len(old)])
        self.assertLen(new, len(old) + SIZE)

    def test_the_older_form_of_merges_is_that_of_tokenizer_json(self):
        self.grown(write_gpt)
        folder = self.folder / "new"
        made = tokenizers.Tokenizer(
            models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        )
        made.pre_tokenizer = read(folder).pre_tokenizer
        value = json.loads((folder / "tokenizer.json").read_text())
        value["model"]["ignore_merges"] = False
        self.assertEqual(
            encode(made, TEXT), encode(tokenizers.Tokenizer.from_str(json.dumps(value)), TEXT)
        )

    def test_pieces_of_a_bpe_model_that_are_parts_of_old_ones_keep_both_files_alike(self):
        # "xabc" is an old piece of (x, abc) alone; "bc" becomes one of its parts.
        pieces = ["<unk>", "xa", "abc", "xabc", "ab", *"abcx", SPACE]
        proto = model_proto.ModelProto()
        for i, piece in enumerate(pieces):
            proto.pieces.add(piece=piece, score=-float(i), type=1 if i else 2)
        proto.trainer_spec.model_type = 2
        proto.normalizer_spec.name = "identity"
        old = self.folder / "old"
        made = tokenizers.Tokenizer(models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("x", "a"), ("a", "b"), ("ab", "c"), ("x", "abc"), ("xa", "b")][:4], unk_token="<unk>",
        ))  # fmt: skip
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
        write(old, made, "PreTrainedTokenizerFast")
        (old / "tokenizer.model").write_bytes(proto.SerializeToString())
        vocap.extend(old, {"a": ["bcbc bc bcb"] * 9}, 2, self.folder / "new")
        lines = ["xabc abc", "bc xabcbc", "xabxabc"]
        processor = spm.SentencePieceProcessor(
            model_file=str(self.folder / "new" / "tokenizer.model")
        )
        self.assertEqual(encode(read(self.folder / "new"), lines), processor.encode(lines))
        self.assertIn(pieces.index("xabc"), processor.encode("xabc"))

    def test_pieces_of_bytes_are_words_by_their_text(self):
        write_gpt(self.folder / "old")
        file = JsonFile((self.folder / "old" / "tokenizer.json").read_bytes())
        for text, is_new in (("\u10e8\u10d0", True), ("\u10e8!", False), ("zo", True)):
            ((piece, _),) = pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text)
            self.assertEqual(file.may_be_new(piece), is_new)

    def test_what_cannot_grow_is_refused(self):
        folder = self.folder / "old"
        write_xlmr(folder)
        with self.assertRaisesRegex(ValueError, "offers .* pieces"):
            vocap.extend(folder, NEW, 10_000, self.folder / "new")
        (folder / "sentencepiece.bpe.model").write_bytes(trained("bpe", vocab_size=60))
        with self.assertRaisesRegex(ValueError, "belong to different tokenizers"):
            vocap.extend(folder, NEW, SIZE, self.folder / "new")
        (folder / "tokenizer.json").unlink()
        with self.assertRaisesRegex(ValueError, "behind the new pieces"):
            vocap.extend(folder, NEW, SIZE, self.folder / "new")
        self.assertFalse((self.folder / "new").exists())


class ModelTest(FolderTest):
    def write_shards(self, folder: pathlib.Path, size: int) -> dict[str, np.ndarray]:
        import ml_dtypes

        rng = np.random.default_rng(0)
        tensors = {
            "model.embed_tokens.weight": rng.normal(size=(size, 4)).astype(ml_dtypes.bfloat16),
            "model.layers.0.mlp.weight": rng.normal(size=(size, 4)).astype(np.float16),
            "lm_head.weight": rng.normal(size=(size, 4)).astype(np.float32),
            "lm_head.bias": rng.normal(size=size).astype(np.float32),
        }
        index = {}
        for i, names in enumerate((list(tensors)[:2], list(tensors)[2:])):
            file = f"model-0000{i + 1}-of-00002.safetensors"
            save_file({one: tensors[one] for one in names}, folder / file, {"format": "pt"})
            index |= dict.fromkeys(names, file)
        total = sum(one.nbytes for one in tensors.values())
        value = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / "model.safetensors.index.json").write_text(json.dumps(value))
        (folder / "config.json").write_text(json.dumps({"vocab_size": size, "model_type": "llama"}))
        return tensors

    @parameterized.parameters(0, 3, 200)
    def test_rows_are_means_of_parts_and_all_else_stays(self, padding):
        old, new = self.folder / "old", self.folder / "new"
        write_llama(old)
        first = max(read(old).get_vocab().values()) + 1
        tensors = self.write_shards(old, first + padding)
        found = vocap.extend(old, NEW, SIZE, new, model=old)
        size = max(first + padding, first + SIZE)
        self.assertEqual(json.loads((new / "config.json").read_text())["vocab_size"], size)
        grown = collections.ChainMap(*(load_file(one) for one in sorted(new.glob("*.safetensors"))))
        self.assertEqual(grown.keys(), tensors.keys())
        index = json.loads((new / "model.safetensors.index.json").read_text())
        total = sum(one.nbytes for one in grown.values())
        self.assertEqual(index["metadata"]["total_size"], total)
        processor = spm.SentencePieceProcessor(model_file=str(old / "tokenizer.model"))
        for name, tensor in tensors.items():
            self.assertEqual(grown[name].dtype, tensor.dtype)
            if "mlp" in name:  # as many rows by chance
                self.assertEqual(grown[name].tobytes(), tensor.tobytes())
                continue
            self.assertLen(grown[name], size)
            self.assertEqual(grown[name][:first].tobytes(), tensor[:first].tobytes())
            rest = slice(first + SIZE, first + padding)
            self.assertEqual(grown[name][rest].tobytes(), tensor[rest].tobytes())
            for i, piece in enumerate(found.pieces):
                # Without the visible space that the normaliser puts before a text.
                ids = processor.encode(piece.removeprefix(SPACE))
                if piece.startswith(SPACE):
                    mean = tensor[ids].astype(np.float64).mean(axis=0).astype(tensor.dtype)
                    np.testing.assert_array_equal(grown[name][first + i], mean)

    @absltest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_an_xlm_r_has_the_same_logits_on_unchanged_text_and_is_imported(self):
        import torch
        import transformers

        old, new = self.folder / "old", self.folder / "new"
        write_xlmr(old)
        first = max(read(old).get_vocab().values()) + 1
        config = transformers.XLMRobertaConfig(
            vocab_size=first, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1,
        )  # fmt: skip
        model = transformers.XLMRobertaForMaskedLM(config)
        torch.nn.init.normal_(model.lm_head.bias)
        model.save_pretrained(old, max_shard_size="4kB")
        self.assertGreater(len([*old.glob("*.safetensors")]), 1)
        folder = self.folder / "text"
        for one, lines in NEW.items():
            self.write(f"text/{one}.txt", "\n\n".join(lines))
        flags = (f"--model={old}", f"--text={folder}", "--pieces=40", f"--output={new}")
        done = commands.execute("extend_tokenizer", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"40 pieces, ids {first} to {first + 39}", done.stdout)

        grown = transformers.XLMRobertaForMaskedLM.from_pretrained(new).eval()
        ids = next(one for one in encode(read(new), OLD) if max(one) < first)
        row = torch.tensor([[0, *ids, first - 1, 2]])
        with torch.no_grad():
            np.testing.assert_array_equal(
                model.eval()(row).logits.numpy(), grown(row).logits.numpy()[..., :first]
            )
        imported = self.folder / "imported"
        done = commands.execute("import_model", f"--model={new}", f"--output={imported}")
        self.assertEqual(done.returncode, 0, done.stderr)
        table = load_file(imported / "model.safetensors")[
            "roberta.embeddings.word_embeddings.weight"
        ]
        rows = grown.get_input_embeddings().weight.detach().numpy()
        names = vocabulary.read_vocabulary(imported).pieces
        there = read(new).get_vocab()
        np.testing.assert_array_equal(table, rows[[there[one] for one in names]])
        # Without tokenizer.json the ids are those of the SentencePiece model, by fairseq's rule.
        with_json = vocabulary.read_vocabulary(new)
        (new / "tokenizer.json").unlink()
        self.assertEqual(vocabulary.read_vocabulary(new).pieces, with_json.pieces)

    def test_digests_of_our_own_models_are_renewed(self):
        old, new = self.folder / "old", self.folder / "new"
        write_ours(old)
        size = len(pieces_of((old / "spm.model").read_bytes()))
        table = np.random.default_rng(0).normal(size=(size, 4)).astype(np.float32)
        weights.write(
            old / "model.safetensors", {"embeddings.table": table, "layers.x": table.T}, {},
            {"spm.model": (old / "spm.model").read_bytes()},
        )  # fmt: skip
        (old / "config.json").write_text(json.dumps({"vocab_size": size}))
        vocap.extend(old, NEW, SIZE, new, model=old)
        seal = weights.read_seal(new / "model.safetensors")
        for name, tensor in load_file(new / "model.safetensors").items():
            seal.check(name, tensor)
        seal.check("spm.model", (new / "spm.model").read_bytes(), new / "spm.model")
        shutil.copy(old / "spm.model", new / "spm.model")
        with self.assertRaisesRegex(ValueError, "damaged"):
            seal.check("spm.model", (new / "spm.model").read_bytes(), new / "spm.model")
