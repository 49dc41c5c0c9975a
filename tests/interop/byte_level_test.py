"""Tests of byte-level BPE in the forms of other libraries, which all give back every text."""

import base64
import functools
import json
import pathlib
import random

import gguf
import tiktoken
import transformers

import vocap
from configs import quickstart
from tests import commands, folders
from tests.vocap.texts import sentences
from vocap import byte_tokens
from vocap.settings import SPECIALS
from xlm.experiment import data
from xlm.experiment.experiment import Experiment
from xlm.interop import byte_level

PARTS = (
    "\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "e\u0301", "\u0301", "\u200c", "\ufeff",
    "မြန်မာ", "ภาษาไทย", "中文，标点。", "हिन्दी", "한국어", "שָׁלוֹם", "\0", "\x1c", "\x85", "\u00a0",
    "\u3000", "\u2028", "\t", "\r\n", "\n", " ", "   ", "x" * 1000, "def f(x):\n    return x",
    '<p class="a">', "</s>", "<mask>", "it's", "'LL", "'\u017f", "12345", "\u0663\u0664", "\u2167",
    "\u00bd", "ß", "ǅ", "\ue000", "\U0010ffff", "%20", "__init__", "\\n", " the", "'", '"',
)  # fmt: skip


def fuzzed(count: int) -> list[str]:
    """Texts of hard parts, of which a fifth are any characters."""
    rng = random.Random(0)
    ranges = ((0, 0x80), (0, 0x3000), (0, 0xD800), (0xE000, 0x110000))

    def part() -> str:
        return rng.choice(PARTS) if rng.random() < 0.8 else chr(rng.randrange(*rng.choice(ranges)))

    return ["".join(part() for _ in range(rng.randint(0, 12))) for _ in range(count)]


@functools.cache
def vocabulary() -> vocap.Vocabulary:
    texts = {language: sentences(language) for language in ("en", "hi", "sw", "zh")}
    return vocap.build(texts, 700, method="byte_bpe", sizes=(100, 200, 1300), em_iterations=0)


class FormsTest(folders.FolderTest):
    def test_all_forms_have_the_same_ids_and_give_back_every_text(self):
        own, texts = vocabulary(), fuzzed(2000)
        for text in texts:
            self.assertEqual(own.decode(own.encode(text)), text)
        own.save_tiktoken(self.folder / "my.tiktoken")
        more = json.loads((self.folder / "my.tiktoken.json").read_text(encoding="utf-8"))
        lines = map(str.split, (self.folder / "my.tiktoken").read_text("utf-8").splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        encoding = tiktoken.Encoding("my", mergeable_ranks=ranks, **more)
        self.assertEqual(encoding.n_vocab, len(own))
        for text, ids in zip(texts, encoding.encode_ordinary_batch(texts), strict=True):
            self.assertEqual(ids, own.encode(text))
            self.assertEqual(encoding.decode(ids), text)
        for form in byte_level.FORMATS:
            byte_level.export(own.model, self.folder / form, form)
            self.assertEmpty(byte_level.differing(own.model, self.folder / form, form, texts))

    def test_the_folder_has_special_tokens_and_offsets_of_words(self):
        vocabulary().save_pretrained(self.folder / "hf")
        loaded = transformers.AutoTokenizer.from_pretrained(self.folder / "hf")
        self.assertEqual(loaded.convert_ids_to_tokens(range(5)), list(SPECIALS))
        self.assertEqual((loaded.mask_token_id, loaded.pad_token_id), (4, 1))
        found = loaded("the <mask> of", return_offsets_mapping=True)
        self.assertIn(4, found["input_ids"])
        self.assertEqual(found["offset_mapping"][-1], (11, 13))  # without the blank
        plain = loaded("the <mask> of", split_special_tokens=True)["input_ids"]
        self.assertEqual(plain, vocabulary().encode("the <mask> of"))
        self.assertEqual(loaded.decode(plain), "the <mask> of")

    def test_a_gguf_file_names_the_pattern_tokens_and_merges(self):
        vocabulary().save_gguf(self.folder / "my.gguf")
        fields = gguf.GGUFReader(self.folder / "my.gguf").fields
        found = {key: fields[key].contents() for key in fields if key.startswith("tokenizer")}
        self.assertEqual(found["tokenizer.ggml.tokens"], vocabulary().pieces)
        self.assertEqual(found["tokenizer.ggml.token_type"], [3] * 5 + [1] * 695)
        pairs = byte_tokens.merge_pairs(vocabulary().pieces[261:]).values()
        self.assertEqual(found["tokenizer.ggml.merges"], list(map(" ".join, pairs)))
        expected = {"model": "gpt2", "pre": "qwen35", "bos_token_id": 0, "eos_token_id": 2,
                    "add_bos_token": False, "add_eos_token": False}  # fmt: skip
        for key, value in expected.items():
            self.assertEqual(found[f"tokenizer.ggml.{key}"], value)

    def test_other_tokenizers_are_refused(self):
        value = json.loads(vocabulary().model)
        value["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\s+|\S+"
        for model, message in (
            (json.dumps(value).encode(), "not a byte-level BPE of this project"),
            (b'{"model": {"vocab": []}}', "vocab.*give the vocab/tokenizer.json"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                byte_level.write_tiktoken(model, self.folder / "x.tiktoken")
        self.assertFalse((self.folder / "x.tiktoken").exists())


class CommandTest(folders.FolderTest):
    def build(self, method: str) -> data.Folders:
        config = quickstart.get_config("runlocal")
        config.vocab.update(target_size=700, method=method, compare=(), sizes=(100, 200, 300))
        return Experiment(config, self.folder / "work").build_vocab().folders

    def export(self, path: pathlib.Path, *given: str) -> str:
        out = f"--output={self.folder / 'out'}", "--overwrite"
        done = commands.execute("export_tokenizer", f"--model={path}", *out, *given)
        return done.stdout + done.stderr

    def test_a_build_is_exported_and_refused_where_sentencepiece_is_read(self):
        found = self.build("byte_bpe")
        for form in byte_level.FORMATS:
            told = self.export(found.byte_tokenizer, f"--format={form}", "--check=corpus/ka.txt")
            self.assertIn("ka.txt: 50 of 50 lines agree", told)
        with self.assertRaisesRegex(ValueError, "is a byte-level BPE, but .* reads spm.model"):
            data.open_packed_dataset(found)
        self.build("joint")  # takes its place
        self.assertFalse(found.byte_tokenizer.exists())
        self.assertNotEmpty(found.read_tokenizer())
        told = self.export(found.tokenizer, "--format=gguf")
        self.assertRegex(told, "--format=gguf cannot hold .*spm.model, a SentencePiece model")
        self.build("byte_bpe")
        self.assertFalse(found.tokenizer.exists())

    def test_differences_are_found(self):
        byte_level.export(vocabulary().model, self.folder, "gguf")
        other = vocap.build(
            {"en": sentences("en")}, 300, method="byte_bpe", sizes=(50, 100), em_iterations=0
        )
        texts = ["q", "the river"]
        found = byte_level.differing(other.model, self.folder, "gguf", texts)
        self.assertEqual(found, ["the river"])
