"""A vocabulary of text that is counted as a stream: that of text in memory, to the byte."""

import pathlib
import random
import tempfile
from unittest import mock

from absl.testing import parameterized

from configs import quickstart
from input_pipeline import text_files
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import META
from input_pipeline.sources import CorpusSpec
from tests import commands
from vocap import run_tables, runs
from xlm.common import artifacts
from xlm.experiment import counted_text, vocabulary
from xlm.experiment.data import Folders

build_vocab = commands.load("build_vocab")


def sentence(rng: random.Random, letters: str) -> str:
    return " ".join("".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(6)) + "."


class CountedTextTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        rng = random.Random(0)
        (self.root / "text").mkdir()
        for language, letters in (("en", "abcdefg"), ("ru", "абвгде")):
            documents = [[sentence(rng, letters) for _ in range(4)] for _ in range(60)]
            documents += documents[:5]  # repetitions
            text = "\n".join("\n".join(one) + "\n" for one in documents)
            (self.root / "text" / f"{language}.txt").write_text(text, encoding="utf-8")
        long = " ".join(sentence(rng, "abcdefg") for _ in range(3000))
        (self.root / "text" / "ka.txt").write_text(long, encoding="utf-8")
        rows = [f"{sentence(rng, 'abcdefg')}\t{sentence(rng, 'абвгде')}" for _ in range(90)]
        (self.root / "en-ru.tsv").write_text("\n".join(["en\tru", *rows]), encoding="utf-8")
        (self.root / "test.txt").write_text(rows[3].replace("\t", "\n"), encoding="utf-8")

    def spec(self, **changes) -> CorpusSpec:
        settings = {
            "root": str(self.root), "text": ("text",), "parallel": ("*.tsv",), "parallel_eval": (),
            "languages": (), "language_codes": {}, "heldout_fraction": 0.1,
            "parallel_heldout_fraction": 0.1, "max_train_bytes": 0, "seed": 0,
            "exclude": ("test.txt",),
        }  # fmt: skip
        return CorpusSpec(**{**settings, **changes})

    def count(self, spec: CorpusSpec) -> counted_text.Counted:
        return counted_text.count(spec, self.root / "tables", 1, lambda items, *_: items)

    @parameterized.parameters(
        {}, {"heldout_by": "position"}, {"max_train_bytes": 5000}, {"deduplicate": False},
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
                expected = self.root / "expected.runs.gz"
                table = runs.count_runs(corpus.sentences(language, split))
                run_tables.write_table(expected, table)
                self.assertEqual(path.read_bytes(), expected.read_bytes(), language)

    def test_parallel_text_is_read_five_times_a_language(self):
        read = mock.Mock(side_effect=text_files.open_parallel)
        with (
            mock.patch.object(text_files, "open_parallel", read),
            self.assertLogs(level="INFO") as logs,
        ):
            found = self.count(self.spec(languages=("en", "ru"), text=()))
        # Once to count its blocks, and each side both for the choice and for the tables; headers
        # are read for the list of languages and by each language's process.
        of_header = len(found.train) + 1
        self.assertEqual(read.call_count - of_header, 2 * 5)
        # A row is told of once.
        self.assertIn("en: 1 of 91 left out", "\n".join(logs.output))

    def test_the_hash_is_of_the_text_and_its_split(self):
        first = self.count(self.spec()).digest
        self.assertEqual(self.count(self.spec()).digest, first)
        self.assertNotEqual(self.count(self.spec(heldout_fraction=0.3)).digest, first)
        (self.root / "test.txt").write_text("another sentence", encoding="utf-8")
        self.assertNotEqual(self.count(self.spec()).digest, first)

    def build(self, name: str) -> bytes:
        config = quickstart.get_config("runlocal")
        config.corpus.update(root=str(self.root), text=("text",), parallel=("*.tsv",), languages=())
        config.vocab.update(target_size=120, sizes=(20, 40, 60), compare=(), num_workers=1)
        folders = Folders(self.root / name)
        flags = {
            "_CONFIG": mock.Mock(value=config),
            "_WORKDIR": mock.Mock(value=str(folders.workdir)),
        }
        with mock.patch.multiple(build_vocab, **flags):
            build_vocab.main([])
        return folders.read_tokenizer()

    def test_the_vocabulary_is_the_same(self):
        loaded = self.build("loaded")
        with (
            mock.patch.object(counted_text, "STREAMED_FROM", 0),
            mock.patch.object(vocabulary, "load_corpus", side_effect=AssertionError),
        ):
            self.assertEqual(self.build("streamed"), loaded)
            self.assertEqual(self.build("streamed"), loaded)  # up to date
            tables = list((self.root / "streamed").rglob("counted/*.runs.gz"))
            self.assertLen(tables, 6)
        # Made from text in memory, it is compared with text in memory where no other may be made.
        artifacts.write_text(Folders(self.root / "loaded").rows / META, "{}")
        with mock.patch.object(counted_text, "STREAMED_FROM", 0):
            self.assertEqual(self.build("loaded"), loaded)

    def test_text_that_has_grown_is_streamed(self):
        self.build("grown")
        more = "\n".join(sentence(random.Random(1), "abcdefg") for _ in range(60))
        (self.root / "text" / "en.txt").write_text(more, encoding="utf-8")
        expected = self.build("loaded")
        with (
            mock.patch.object(counted_text, "STREAMED_FROM", 0),
            mock.patch.object(vocabulary, "load_corpus", side_effect=AssertionError),
        ):
            self.assertEqual(self.build("grown"), expected)
