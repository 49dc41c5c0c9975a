"""Pairs on disk against pairs in memory: equal batches, resumed builds, tags; large files."""

import itertools
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline.packed_dataset import read_column
from input_pipeline.tasks import batches, files, pair_columns
from input_pipeline.tasks.batches import TokenStream
from input_pipeline.tasks.examples import TranslationExample
from input_pipeline.tasks.features import translation_features
from input_pipeline.tokenization import special_ids
from tests import folders, tiny_tasks
from tests.input_pipeline.tasks.token_batches_test import Listed

WORDS = ("the", "cat", "dog", "runs", "sleeps", ".")
SYMBOLS = {"de": 50, "fr": 51}


def texts(*counts: int, seed: int = 0) -> list[list[tuple[str, str]]]:
    rng = np.random.default_rng(seed)
    sides = lambda: " ".join(rng.choice(WORDS, rng.integers(1, 14)))  # noqa: E731
    return [[(sides(), sides()) for _ in range(count)] for count in counts]


def processor() -> spm.SentencePieceProcessor:
    return spm.SentencePieceProcessor(model_proto=tiny_tasks.tokenizer())


class PairColumnsTest(folders.FolderTest):
    def stored(self, data, directions=("en-de", "en-fr"), length: int = 12):
        pair_columns.write(self.folder, data, (processor(),) * 2)
        return pair_columns.StoredPairs(self.folder, directions, SYMBOLS, processor(), length)

    @parameterized.parameters(("en-de", "en-fr"), ("en-fr", "en-de"))
    def test_batches_are_those_of_features_in_memory(self, *directions):
        data = {"en-de": texts(40, 7), "en-fr": texts(23, seed=1)}
        special, length = special_ids(processor()), 12
        features = []
        for one in directions:
            target = one[3:]
            pairs = itertools.chain.from_iterable(data[one])
            examples = [TranslationExample(str(i), *p, target) for i, p in enumerate(pairs)]
            args = processor(), special, length, SYMBOLS
            features += translation_features(examples, *args)
        with (
            mock.patch.object(pair_columns, "_PART", 16),
            mock.patch.object(pair_columns, "_AT_ONCE", 5),
            self.assertLogs(level="WARNING") as logs,
        ):
            stored = self.stored(data, directions)
        self.assertIn("of 47 sources have more than 10 tokens and are cut", "".join(logs.output))
        self.assertEqual(sum(stored.texts), 70)
        streams = [
            TokenStream(pairs, 60, (6, 12), 3, special.pad) for pairs in (Listed(features), stored)
        ]
        self.assertEqual(*(one.steps_per_epoch for one in streams))
        for step in range(2 * streams[0].steps_per_epoch):
            old, new = (one.batch(step) for one in streams)
            self.assertEqual(old.keys(), new.keys())
            for name in old:
                np.testing.assert_array_equal(old[name], new[name], name)
                self.assertEqual(old[name].dtype, new[name].dtype)

    @parameterized.parameters((0.0, (30, 30, 30)), (0.5, (44, 26, 18)))
    def test_an_epoch_draws_texts_by_a_power_of_their_pairs(self, alpha, expected):
        stored = self.stored({"en-de": texts(60, 20), "en-fr": texts(10, seed=1)}, length=40)
        with mock.patch.object(batches, "_AT_ONCE", 7):
            stream = TokenStream(stored, 80, (40,), 0, 1, alpha=alpha)
            orders = [stream._order(epoch) for epoch in range(8)]
        for order in orders:
            counts = np.histogram(order, (0, 60, 80, 90))[0]
            np.testing.assert_allclose(counts, expected, atol=1)
            self.assertNotEqual(order.tolist(), sorted(order))
        # Over several epochs each text is passed over as a whole, in another order each time.
        times = np.bincount(np.concatenate(orders), minlength=90)
        for part in np.split(times, (60, 80)):
            self.assertLessEqual(part.max() - part.min(), 1)
        self.assertEqual(stream.batch(stream.steps_per_epoch * 3)["tokens"].shape, (2, 40))

    def test_a_build_resumes_after_its_last_part(self):
        data = {"en-de": texts(40)}
        part = mock.patch.object(pair_columns, "_PART", 16)
        with part:
            self.stored(data, ["en-de"])
        files_of = lambda: {p.name: p.read_bytes() for p in self.folder.glob("*")}  # noqa: E731
        whole = files_of()
        for path in self.folder.glob("*.2.*.npy"):
            path.unlink()
        (self.folder / "en-de.0.1.target.ends.npy").unlink()
        (self.folder / "pairs.json").unlink()
        kept = mock.Mock(wraps=pair_columns._write_part)
        with part, mock.patch.object(pair_columns, "_write_part", kept):
            self.stored(data, ["en-de"])
        self.assertEqual(kept.call_count, 2)
        self.assertEqual(files_of(), whole)

    def test_a_synthetic_source_begins_with_the_mask(self):
        data = {"en-de": [[("<bt>the cat", "dog"), ("the cat", "<bt>"), ("<bt> the cat", "dog")]]}
        stored, special = self.stored(data, ["en-de"]), special_ids(processor())
        rows = [one.tokens.tolist() for one in stored.take(np.arange(3))]
        self.assertEqual(rows[0], [special.bos, special.mask, *rows[1][1:]])
        self.assertEqual(rows[2], rows[0])
        self.assertEqual(stored.sizes[0], stored.sizes[1] + 1)

    def test_a_damaged_column_is_refused(self):
        self.stored({"en-de": texts(9)}, ["en-de"])
        path = self.folder / "en-de.0.0.source.bitext.npy"
        np.save(path, np.load(path)[:-1])
        with self.assertRaisesRegex(ValueError, "source.ends.npy: must ascend to"):
            read_column(self.folder, "en-de.0.0", "source")
            pair_columns.StoredPairs(self.folder, ["en-de"], SYMBOLS, processor(), 12)


class LargeFileTest(folders.FolderTest):
    @parameterized.parameters("", ".gz", ".xz")
    def test_a_streamed_file_has_the_lines_of_one_read_whole(self, suffix):
        path = self.folder / f"text{suffix}"
        opened = files.text_files.gzip.open if suffix == ".gz" else files.text_files.lzma.open
        content = b"\xef\xbb\xbfone\r\n\n two\rthree\r\nfour\xe2\x80\xa8\n\nend"
        for end in (b"", b"\n"):
            with (open if not suffix else opened)(path, "wb") as file:
                file.write(content + end)
            whole = list(files.numbered_lines(path))
            with mock.patch.object(files, "_READ_WHOLE", 10):
                self.assertEqual(list(files.numbered_lines(path)), whole)

    def test_faults_of_a_streamed_file(self):
        for content, message in (
            (b"one\ntwo\nth\xffree\n", "line 3: not UTF-8 .byte 0xff"),
            (b"one two three\ntw\0o\n", "line 2: a NUL byte"),
        ):
            (path := self.folder / "text").write_bytes(content)
            with (
                mock.patch.object(files, "_READ_WHOLE", 10),
                self.assertRaisesRegex(ValueError, message),
            ):
                list(files.numbered_lines(path))
