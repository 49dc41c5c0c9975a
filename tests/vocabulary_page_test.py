"""Commands of the pages on vocabularies, run as printed on a small folder, and their promises."""

import contextlib
import csv
import io
import json
import re

import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests import commands, folders
from tests.vocap.texts import CORPUS, sentences

# In the order in which a reader would run them: some read what others wrote.
PAGES = (
    "vocabulary.md", "vocabulary_choices.md", "byte_bpe.md", "existing_tokenizer.md",
    "allocation.md",
)  # fmt: skip
PAGE = "".join((commands.ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
LANGUAGES = ("cy", "en", "hi", "sw")
# Of the pages' sizes only the smallest would be as quick.
_SMALL = (
    "--config.vocab.target_size=600", "--config.vocab.compare=()", "--config.vocab.num_workers=1",
)  # fmt: skip
# They need a model, a config or tables of counts; other tests run such commands.
_ELSEWHERE = r"=CONFIG\b|=MODEL\b|\bTABLES\b|^\.\.\.$"
DIRT = "  a\tb \r\n  می‌خواهم 👩‍👩‍👧 1234 ﬁ\x00 "


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


class PageTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        with (CORPUS / "core.tsv").open(encoding="utf-8") as rows:
            parallel = [*csv.DictReader(rows, delimiter="\t", quoting=csv.QUOTE_NONE)]
        for number, name in enumerate(LANGUAGES, 1):
            lines = [row[name] for row in parallel[60 : 60 + 800 // (number + 3)]]
            parts = [lines[i : i + 8] for i in range(0, len(lines), 8)]
            text = "\n\n".join("\n".join(part) for part in parts) + "\n"
            self.write(f"TEXT/{name}.txt", text.replace("\n", "\r\n") if name == "en" else text)
            self.write(f"HELDOUT/{name}.txt", "".join(f"{row[name]}\n" for row in parallel[:60]))
        self.old = tokenizers.Tokenizer(models.BPE())
        self.old.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.old.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=alphabet, show_progress=False
        )
        self.old.train_from_iterator(sentences("en"), trainer)
        (self.folder / "OLD").mkdir()
        self.old.save(str(self.folder / "OLD/tokenizer.json"))

    def here(self, text: str) -> str:
        text = text.replace("PARALLEL", "HELDOUT").replace("KNOWN", "HELDOUT")
        text = re.sub(r"\b(runs/|TEXT\b|HELDOUT\b|OLD\b|ALLOCATION\b)", rf"{self.folder}/\1", text)
        return text.replace("--pieces=4000", "--pieces=60")

    def run_page(self) -> dict[str, str]:
        """Run the pages' commands, and return what each printed by its output folder."""
        said = {}
        for name, *arguments in (
            one for page in PAGES for one in commands.printed(page, _ELSEWHERE)
        ):
            small = _SMALL if name == "build_vocab" else ()
            if name == "build_vocab" and "--workdir=runs/mine" not in arguments:
                small += ("--config.vocab.explore=False",)
            if "ALLOCATION" in "".join(arguments):
                self.export_allocation()
            given = [*map(self.here, arguments), *small]
            done = commands.execute(name, *given)
            self.assertEqual(done.returncode, 0, done.stderr)
            flag = re.search(r"--(?:output|workdir)=runs/(\S+)", " ".join(arguments))
            said[flag[1]] = done.stdout
        return said

    def export_allocation(self) -> None:
        """Write the smallest sizes, as the explorer of runs/vocap would export its view."""
        record = json.loads((self.folder / "runs/vocap/vocab/allocation.json").read_text())
        sizes = {name: one["sizes"][0] for name, one in record["languages"].items()}
        exported = {"target_size": 600, "beta": 0.2, "sizes": sizes}
        self.write("ALLOCATION", json.dumps(exported))

    def run_code(self, containing: str) -> tuple[dict, str]:
        (code,) = (one for one in blocks("python") if containing in one)
        names, out = {}, io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(self.here(code), names)
        return names, out.getvalue()

    def test_its_hour(self):
        said = self.run_page()
        runs = self.folder / "runs"
        table = re.search(r"in `runs/mine/vocab`.*?\n\n", PAGE, re.S)[0]
        for name in re.findall(r"^\| `(.*?)/?` \|", table, re.M):
            self.assertTrue((runs / "mine/vocab" / name).exists(), name)
        self.assertIn("const { sizes, parities", (runs / "mine/vocab/report.html").read_text())
        self.assertIn("by parity = 1.", (runs / "fair/vocab/report.md").read_text())
        self.assertRegex((runs / "best/vocab/report.md").read_text()[:900], "Chosen: ")
        self.assertRegex(said["compared"], r"(?s)\| mine \| unigram .*\| theirs \| bpe ")

        with self.subTest("transformers"):
            names, shown = self.run_code("return_offsets_mapping")
            self.assertStartsWith(shown, "[None, 0, ")
            self.assertIn("60 of 60 lines agree", said["mine/tokenizer"])
        with self.subTest("nothing is lost"):
            path = str(runs / "lossless/vocab/spm.model")
            ours = sentencepiece.SentencePieceProcessor(model_file=path)
            theirs = type(names["tokenizer"]).from_pretrained(runs / "lossless/tokenizer")
            for text in (DIRT, *sentences("hi")[:50]):
                ids = ours.encode(text)
                self.assertEqual(ours.decode(ids), text)
                self.assertEqual(theirs(text, add_special_tokens=False)["input_ids"], ids)
                self.assertEqual(theirs.decode(ids), text)
        with self.subTest("tiktoken"):
            encoding = self.run_code("load_tiktoken_bpe")[0]["encoding"]
            theirs = type(names["tokenizer"]).from_pretrained(runs / "bytes/hf")
            for text in (DIRT, *sentences("hi")[:50]):
                self.assertEqual(theirs(text)["input_ids"], encoding.encode(text))
                self.assertEqual(encoding.decode(encoding.encode(text)), text)
            self.assertTrue((runs / "bytes/gguf/tokenizer.gguf").exists())
        with self.subTest("a grown tokenizer keeps its ids"):
            grown = tokenizers.Tokenizer.from_file(str(runs / "grown/tokenizer.json"))
            self.assertLessEqual(self.old.get_vocab().items(), grown.get_vocab().items())
            self.assertIn("60 pieces, ids 500 to 559", said["grown"])
