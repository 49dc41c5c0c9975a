"""A vocabulary of text counted as a stream: equal to that of text in memory, to the byte."""

import random
from unittest import mock

from absl.testing import parameterized

from configs import quickstart
from input_pipeline import text_files
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import META
from input_pipeline.sources import CorpusSpec
from tests import folders
from vocap import pretoken_tables, pretokens
from vocap.text_rules import TextRules
from xlm.common import artifacts
from xlm.experiment import counted_text, vocabulary
from xlm.experiment.data import Folders
from xlm.experiment.experiment import Experiment


def sentence(rng: random.Random, letters: str) -> str:
    return " ".join("".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(6)) + "."


class CountedTextTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        rng = random.Random(0)
        for language, letters in (("en", "abcdefg"), ("ru", "абвгде")):
            documents = [[sentence(rng, letters) for _ in range(4)] for _ in range(60)]
            documents += documents[:5]  # repetitions
            text = "\n".join("\n".join(one) + "\n" for one in documents)
            self.write(f"text/{language}.txt", text)
        long = " ".join(sentence(rng, "abcdefg") for _ in range(3000))
        self.write("text/ka.txt", long)
        rows = [f"{sentence(rng, 'abcdefg')}\t{sentence(rng, 'абвгде')}" for _ in range(90)]
        self.write("en-ru.tsv", "\n".join(["en\tru", *rows]))
        self.write("test.txt", rows[3].replace("\t", "\n"))

    def spec(self, **changes) -> CorpusSpec:
        shares = {"heldout_fraction": 0.1, "parallel_heldout_fraction": 0.1}
        files = {"text": ("text",), "parallel": ("*.tsv",), "exclude": ("test.txt",)}
        return CorpusSpec(**{"root": str(self.folder), **shares, **files, **changes})

    def count(self, spec: CorpusSpec) -> counted_text.Counted:
        return counted_text.count(
            spec, self.folder / "tables", TextRules(), 1, lambda items, *_: items
        )

    @parameterized.parameters(
        {}, {"heldout_by": "position"}, {"heldout_by": "document"},
        {"max_train_bytes": 5000}, {"deduplicate": False},
        {"heldout_fraction": 0.0, "parallel_heldout_fraction": 0.0}, {"languages": ("ru",)},
        {"parallel_as_text": False},
    )  # fmt: skip
    def test_tables_are_those_of_the_loaded_text(self, **changes):
        spec = self.spec(**changes)
        corpus, found = load_corpus(spec), self.count(spec)
        self.assertEqual(set(found.train), set(corpus.train))
        self.assertEqual(set(found.heldout), {k for k, v in corpus.heldout.items() if v})
        for split in ("train", "heldout"):
            for language, path in getattr(found, split).items():
                expected = self.folder / "expected.runs.gz"
                table = pretokens.count_pretokens(corpus.sentences(language, split))
                pretoken_tables.write_table(expected, table)
                self.assertEqual(path.read_bytes(), expected.read_bytes(), language)

    def test_parallel_text_is_read_five_times_a_language(self):
        read = mock.Mock(side_effect=text_files.open_parallel)
        # A row is logged once.
        told = self.assert_told("en: 1 of 91 left out", level="INFO")
        with mock.patch.object(text_files, "open_parallel", read), told:
            found = self.count(self.spec(languages=("en", "ru"), text=()))
        # Once to count its blocks, and each side both for the choice and for the tables; headers
        # are read for the list of languages and by each language's process.
        of_header = len(found.train) + 1
        self.assertEqual(read.call_count - of_header, 2 * 5)

    def test_the_hash_is_of_the_text_and_its_split(self):
        first = self.count(self.spec()).digest
        self.assertEqual(self.count(self.spec()).digest, first)
        self.assertNotEqual(self.count(self.spec(heldout_fraction=0.3)).digest, first)
        self.write("test.txt", "another sentence")
        self.assertNotEqual(self.count(self.spec()).digest, first)

    def build(self, name: str) -> bytes:
        config = quickstart.get_config("runlocal")
        config.corpus.update(
            root=str(self.folder), text=("text",), parallel=("*.tsv",), languages=()
        )
        config.vocab.update(target_size=120, sizes=(20, 40, 60), compare=(), num_workers=1)
        return Experiment(config, self.folder / name).build_vocab().folders.read_tokenizer()

    @mock.patch.object(counted_text, "STREAMED_FROM", 0)
    @mock.patch.object(vocabulary, "load_corpus", side_effect=AssertionError)
    def build_streamed(self, name: str, _) -> bytes:
        return self.build(name)

    def test_the_vocabulary_is_the_same(self):
        loaded = self.build("loaded")
        for _ in range(2):  # built, and up to date
            self.assertEqual(self.build_streamed("streamed"), loaded)
        self.assertLen(list((self.folder / "streamed").rglob("counted/*.runs.gz")), 6)
        # Made from text in memory, it is compared with text in memory where no other may be made.
        artifacts.write_text(Folders(self.folder / "loaded").rows / META, "{}")
        with mock.patch.object(counted_text, "STREAMED_FROM", 0):
            self.assertEqual(self.build("loaded"), loaded)

    def test_text_that_has_grown_is_streamed(self):
        self.build("grown")
        more = "\n".join(sentence(random.Random(1), "abcdefg") for _ in range(60))
        self.write("text/en.txt", more)
        expected = self.build("loaded")
        self.assertEqual(self.build_streamed("grown"), expected)
