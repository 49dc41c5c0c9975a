"""Text of tensorflow-datasets, mocked, becomes files that a corpus reads."""

import pathlib
import tempfile

import tensorflow_datasets as tfds
from absl.testing import absltest, parameterized

from input_pipeline import text_files, tfds_text
from input_pipeline.tfds_text import DATASETS, TextDataset

ARTICLE = (
    "\n_START_ARTICLE_\nA title\n_START_SECTION_\nA section\n_START_PARAGRAPH_\n"
    "First line._NEWLINE_Second line.\n_START_PARAGRAPH_\nThird line.\n"
)


def texts(*values: str):
    """Makes every mocked dataset hold these texts."""

    def as_dataset(builder, *args, **kwargs):
        import tensorflow as tf

        del args, kwargs
        names = builder.info.features
        return tf.data.Dataset.from_tensor_slices({name: list(values) for name in names})

    return tfds.testing.mock_data(as_dataset_fn=as_dataset)


class TfdsTextTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    @parameterized.parameters(("wiki40b", "th"), ("wikipedia", "sw"), ("c4", "yo"))
    def test_every_dataset_has_its_languages(self, name: str, language: str):
        with tfds.testing.mock_data(num_examples=5):
            count = tfds_text.write_text(DATASETS[name], language, self.folder)
        self.assertEqual(count, 5)
        written = list(text_files.read_documents(self.folder / f"{language}.jsonl.gz"))
        self.assertLen(written, 5)

    def test_lines_and_documents_stay_what_they_are(self):
        with texts("One.\n\n  Two. ", " \n ", "Три."):
            count = tfds_text.write_text(DATASETS["wikipedia"], "ru", self.folder)
        self.assertEqual(count, 2)
        written = list(text_files.read_documents(self.folder / "ru.jsonl.gz"))
        self.assertEqual(written, [["One.", "Two."], ["Три."]])

    def test_marks_of_wiki40b_are_taken_out(self):
        with texts(ARTICLE):
            found = list(tfds_text.documents(DATASETS["wiki40b"], "en"))
        self.assertEqual(found, [["First line.", "Second line.", "Third line."]])

    def test_no_more_documents_than_wanted(self):
        with texts(*"abcdef"):
            count = tfds_text.write_text(DATASETS["c4"], "en", self.folder, max_documents=2)
        self.assertEqual(count, 2)
        written = list(text_files.read_documents(self.folder / "en.jsonl.gz"))
        self.assertEqual(written, [["a"], ["b"]])

    @parameterized.parameters(
        (DATASETS["wiki40b"], "xx", "wiki40b/xx"),
        (TextDataset("no_such_dataset/{}"), "en", "no_such_dataset/en"),
    )
    def test_what_is_not_there_is_named_and_nothing_written(self, dataset, language, message):
        with tfds.testing.mock_data(num_examples=1), self.assertRaisesRegex(ValueError, message):
            tfds_text.write_text(dataset, language, self.folder)
        self.assertEmpty(list(self.folder.iterdir()))

    def test_a_dataset_without_text(self):
        with (
            tfds.testing.mock_data(num_examples=1),
            self.assertRaisesRegex(ValueError, "mnist has no text; .*'image'"),
        ):
            list(tfds_text.documents(TextDataset("mnist"), "en"))

    def test_no_documents(self):
        with texts(""), self.assertRaisesRegex(ValueError, "wiki40b/de has no text of 'de'"):
            tfds_text.write_text(DATASETS["wiki40b"], "de", self.folder)
        self.assertEmpty(list(self.folder.iterdir()))


if __name__ == "__main__":
    absltest.main()
