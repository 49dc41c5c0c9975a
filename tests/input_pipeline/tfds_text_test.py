"""Text of tensorflow-datasets, mocked, becomes files that a corpus reads."""

import errno
from unittest import mock

import tensorflow_datasets as tfds
from absl.testing import parameterized

from input_pipeline import tfds_text
from input_pipeline.sources import CorpusSpec, find_text
from input_pipeline.tfds_text import DATASETS, TextDataset
from tests.folders import FolderTest
from tests.input_pipeline.reading import read_documents

ARTICLE = (
    "\n_START_ARTICLE_\nA title\n_START_SECTION_\nA section\n_START_PARAGRAPH_\n"
    "First line._NEWLINE_Second line.\n_START_PARAGRAPH_\nThird line.\n"
)


def texts(*values: str):
    def as_dataset(builder, *args, **kwargs):
        import tensorflow as tf

        del args, kwargs
        names = builder.info.features
        return tf.data.Dataset.from_tensor_slices({name: list(values) for name in names})

    return tfds.testing.mock_data(as_dataset_fn=as_dataset)


class TfdsTextTest(FolderTest):
    @parameterized.parameters(("wiki40b", "th"), ("wikipedia", "sw"), ("c4", "yo"))
    def test_every_dataset_has_its_languages(self, name: str, language: str):
        with tfds.testing.mock_data(num_examples=5):
            count = tfds_text.write_text(DATASETS[name], language, self.folder)
        self.assertEqual(count, 5)
        written = list(read_documents(self.folder / f"{language}.jsonl.gz"))
        self.assertLen(written, 5)

    def test_lines_and_documents_stay_what_they_are(self):
        with texts("One.\n\n  Two. ", " \n ", "Три."):
            count = tfds_text.write_text(DATASETS["wikipedia"], "ru", self.folder)
        self.assertEqual(count, 2)
        written = list(read_documents(self.folder / "ru.jsonl.gz"))
        self.assertEqual(written, [["One.", "Two."], ["Три."]])
        with texts(*"abcdef"):
            count = tfds_text.write_text(DATASETS["c4"], "en", self.folder, max_documents=2)
        self.assertEqual(count, 2)
        self.assertEqual(list(read_documents(self.folder / "en.jsonl.gz")), [["a"], ["b"]])

    def test_marks_of_wiki40b_are_taken_out(self):
        with texts(ARTICLE):
            found = list(tfds_text.documents(DATASETS["wiki40b"], "en"))
        self.assertEqual(found, [["First line.", "Second line.", "Third line."]])

    def test_shards_are_parts_that_a_corpus_reads(self):
        splits = []
        with texts("a", "b"), mock.patch.object(tfds, "load", wraps=tfds.load) as load:
            for number in range(3):
                shard = (number, 3)
                tfds_text.write_text(DATASETS["wiki40b"], "en", self.folder, shard=shard)
            splits = [call.kwargs["split"] for call in load.call_args_list]
        self.assertEqual(splits, tfds.even_splits("train", n=3))
        (self.folder / "sw.txt").write_text("moja\n")
        spec = CorpusSpec(root=str(self.folder))
        names = [file.path.name for file in find_text(spec) if file.language == "en"]
        self.assertEqual(names, [f"en-0000{i}-of-00003.jsonl.gz" for i in range(3)])

    @parameterized.parameters(((0, 1), (0, 2), 1), ((1, 2), (0, 1), 2), ((0, 2), (0, 3), 2))
    def test_a_language_is_not_written_in_another_number_of_files(self, before, after, count):
        with texts("a", "b", "c"):
            for language in ("zh", "zh-Latn"):
                tfds_text.write_text(DATASETS["c4"], language, self.folder, shard=before)
            there = sorted(self.folder.iterdir())
            with self.assertRaisesRegex(ValueError, f"read twice; give --shards={count}, or"):
                tfds_text.write_text(DATASETS["c4"], "zh", self.folder, shard=after)
            self.assertEqual(sorted(self.folder.iterdir()), there)
            tfds_text.write_text(DATASETS["c4"], "sw", self.folder, shard=after)

    @parameterized.parameters(
        (DATASETS["wiki40b"], "xx", "wiki40b/xx"),
        (TextDataset("no_such_dataset/{}"), "en", "no_such_dataset/en"),
        (TextDataset("mnist"), "en", "mnist has no text; .*'image'"),
    )
    def test_what_is_not_there_is_named_and_nothing_written(self, dataset, language, message):
        with tfds.testing.mock_data(num_examples=1), self.assertRaisesRegex(ValueError, message):
            tfds_text.write_text(dataset, language, self.folder)
        with texts(""), self.assertRaisesRegex(ValueError, "wiki40b/de has no text of 'de'"):
            tfds_text.write_text(DATASETS["wiki40b"], "de", self.folder)
        self.assertEmpty(list(self.folder.iterdir()))

    @parameterized.parameters(
        (ModuleNotFoundError("no apache_beam"), r"de: .*no apache_beam; pip install '\.\[data"),
        (ConnectionError("no\nhost"), r"de: .*cannot prepare it \(no host\); check the network"),
        (tfds.download.DownloadError("404"), r"de: .*cannot prepare it \(404\); check the net"),
        (OSError(errno.ENOSPC, "full"), "full"),
    )
    def test_what_cannot_be_prepared_is_named(self, error, message):
        kind = OSError if getattr(error, "errno", None) else ValueError
        with (
            mock.patch.object(tfds, "load", side_effect=error),
            self.assertRaisesRegex(kind, message),
        ):
            tfds_text.write_text(DATASETS["wiki40b"], "de", self.folder)
        self.assertEmpty(list(self.folder.iterdir()))
