"""Pairs of texts from files of both forms and tensorflow-datasets; files that do not fit."""

import pathlib

import tensorflow_datasets as tfds
from absl.testing import parameterized

from input_pipeline.tasks import translation
from input_pipeline.tasks.examples import TranslationExample
from input_pipeline.tasks.files import Source
from input_pipeline.tasks.loading import load_translations, translation_files
from input_pipeline.tasks.tasks import Task
from tests.input_pipeline.reading import PackedFolderTest

TASK = Task(
    "wmt14", "translation", (), ("de-en", "en-de"), ("bleu",),
    {"train": "tfds:wmt14_translate/{language}:train"},
    {"en-de": "de-en"},  # tensorflow-datasets has one name for both directions
)  # fmt: skip
# Only a line feed ends a line.
PAIRS = [
    ("It rains.", "Es regnet."), ("Y\u2028es.", "J\x85a."), ("“No”, he said.", "„Nein“, sagte er."),
]  # fmt: skip
EXAMPLES = [TranslationExample(str(i), *pair, "de") for i, pair in enumerate(PAIRS)]
TURNED = [TranslationExample(str(i), *pair[::-1], "en") for i, pair in enumerate(PAIRS)]


class TranslationTest(PackedFolderTest):
    def write_sides(self, pairs=PAIRS, suffix: str = "") -> list[pathlib.Path]:
        sides = zip(("en", "de"), zip(*pairs, strict=True), strict=True)
        return [self.write(f"train.{code}{suffix}", "\n".join(side) + "\n") for code, side in sides]

    def load(self, *patterns: str, language: str = "en-de", codes=None, languages=()):
        source = Source(TASK, self.folder, patterns, language, codes or {})
        return load_translations(source, languages)

    @parameterized.parameters("", ".gz", ".xz")
    def test_files_of_both_forms(self, suffix):
        self.write_sides(suffix=suffix)
        rows = "".join(f"{one}\t{two}\n" for one, two in PAIRS)
        self.write("plain.tsv" + suffix, rows)
        self.write("named.tsv" + suffix, "en\tde\n" + rows)
        sides = [f"train.{{{side}}}{suffix}" for side in ("source", "target")]
        for patterns in (sides, ["named.tsv" + suffix]):
            self.assertEqual(self.load(*patterns), EXAMPLES)
            self.assertEqual(self.load(*patterns, language="de-en"), TURNED)
        self.assertEqual(self.load("plain.tsv" + suffix), EXAMPLES)

    def test_tensorflow_datasets(self):
        def as_dataset(builder, *args, **kwargs):
            import tensorflow as tf

            spec = builder.info.features.get_tensor_spec()
            rows = [{"en": one + " ", "de": two} for one, two in PAIRS]
            return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec)

        with tfds.testing.mock_data(as_dataset_fn=as_dataset):
            self.assertEqual(self.load(TASK.tfds["train"]), EXAMPLES)
            self.assertEqual(self.load(TASK.tfds["train"], language="de-en"), TURNED)
            with self.assertRaisesRegex(ValueError, "no fr for the direction 'en-fr'.*has de, en"):
                self.load("tfds:wmt14_translate/de-en:train", language="en-fr")
            with self.assertRaisesRegex(ValueError, "wmt14 has no data for language 'cs-fr'"):
                self.load(TASK.tfds["train"], language="cs-fr")

    def test_sources_are_joined_in_order(self):
        self.write_sides()
        self.write("more.tsv", "A.\tB.\n")
        found = self.load("more.tsv", "train.{source}", "train.{target}", "more.tsv")
        texts = [(one.source, one.target) for one in found]
        self.assertEqual(texts, [("A.", "B."), *PAIRS, ("A.", "B.")])
        self.assertEqual([one.id for one in found], list("01234"))

    def test_other_codes_in_names_and_first_lines(self):
        _, two = self.write_sides()
        two.rename(self.folder / "train.deu")
        patterns = ["train.{source}", "train.{target}"]
        self.assertEqual(self.load(*patterns, codes={"deu": "de"}), EXAMPLES)
        rows = "".join(f"{one}\t{two}\n" for one, two in PAIRS)
        self.write("named.tsv", "en\tdeu\n" + rows)
        codes = {"eng": "en", "deu": "de"}
        self.write("others.tsv", "eng\tdeu\n" + rows)
        for name in ("named.tsv", "others.tsv"):
            self.assertEqual(self.load(name, codes=codes), EXAMPLES)
            self.assertEqual(self.load(name, language="de-en", codes=codes), TURNED)
        self.write_sides()
        with self.assertRaisesRegex(ValueError, "2 files of .*train.de and .*train.deu"):
            self.load(*patterns, codes={"deu": "de"})

    def test_empty_lines_are_left_out_while_they_are_few(self):
        pairs = [("a", "b")] * 300
        pairs[16], pairs[40], pairs[299] = ("", "b"), ("a", " "), ("", "")
        self.write_sides(pairs)
        with self.assertLogs(level="WARNING") as logs:
            found = self.load("train.en", "train.de")
        self.assertLen(found, 297)
        self.assertRegex(logs.output[0], r"train.en and .*3 of 300 .*\(line 17, 41, 300\)")
        pairs[100] = ("a", "")
        self.write_sides(pairs)
        with self.assertRaisesRegex(ValueError, r"4 of 300 pairs .*\(line 17, 41, 101, 300\)"):
            self.load("train.en", "train.de")
        # Below a first line of names they are named as the file counts them.
        rows = ["a\tb\n"] * 300
        rows[16] = "a\t\n"
        self.write("train.tsv", "en\tde\n" + "".join(rows))
        with self.assertLogs(level="WARNING") as logs:
            self.load("train.tsv")
        self.assertIn("(line 18)", logs.output[0])

    def test_a_first_line_of_other_languages(self):
        self.write("named.tsv", "en\tdeu\nIt rains.\tEs regnet.\n")
        settings = {"codes": {"deu": "de"}, "languages": {"en", "de", "fr"}}
        self.assertEqual(self.load("named.tsv", **settings), EXAMPLES[:1])
        for language in ("en-fr", "fr-en", "de-fr"):
            message = f"line 1: names the languages en and deu, but the direction is {language}"
            with self.assertRaisesRegex(ValueError, f"named.tsv, {message}"):
                self.load("named.tsv", language=language, **settings)
        # Which are words where the run has no such language.
        found = self.load("named.tsv", language="fr-cs", languages={"fr", "cs", "en"})
        self.assertEqual([one.source for one in found], ["en", "It rains."])

    def check_distinct(self, *patterns: str, codes=None, languages: tuple[str, ...]):
        sources = {
            one: translation_files(Source(TASK, self.folder, patterns, one, codes or {}))
            for one in languages
        }
        translation.check_distinct(sources, codes or {}, "task.train")

    def test_every_direction_has_a_text_of_its_own(self):
        self.write_sides()
        self.write("train.fr", "Oui.\n")
        self.write("plain.tsv", "Yes.\tJa.\n")
        self.write("named.tsv", "en\tdeu\nYes.\tJa.\n")
        self.write("plain.en-de.tsv", "Yes.\tJa.\n")
        (self.folder / "plain.en-fr.tsv").symlink_to("plain.en-de.tsv")
        others, turned = ("en-de", "en-fr"), ("en-de", "de-en")
        sides = ("train.{source}", "train.{target}")
        self.check_distinct(*sides, languages=(*others, "de-en", "fr-en"))
        # The same text twice is more of it.
        self.check_distinct("plain.tsv", "plain.tsv", *sides, languages=("en-de",))
        self.check_distinct("named.tsv", codes={"deu": "de"}, languages=turned)
        for patterns, languages in (
            (("train.en", "train.de"), others),
            (("train.en", "train.de"), turned),
            ((*sides, "train.en", "train.de"), others),
            (("train.{source}", "train.de"), others),
            (("plain.tsv",), others),
            (("plain.tsv",), turned),
            (("named.tsv",), others),
            (("named.tsv",), turned),  # without the code "deu" it names none
            (("plain.{source}-{target}.tsv",), others),
        ):
            message = f"task.train: {' and '.join(languages)} have the same text, {self.folder}"
            with self.subTest(patterns), self.assertRaisesRegex(ValueError, message):
                self.check_distinct(*patterns, languages=languages)
        with self.assertRaisesRegex(ValueError, "task.train: de-en has one file as source and"):
            self.check_distinct("train.en", "train.{target}", languages=("en-fr", "de-en"))

    @parameterized.parameters(
        (["train.en", "short.de"], "train.en: 3 lines, but .*short.de has 1"),
        (["train.en"], "wmt14: train.en has no partner"),
        (["train.en", "tfds:x:y"], "wmt14: train.en has no partner"),
        (["train.en", "train.fr"], "no files of .*train.fr"),
        (["three.tsv"], "three.tsv, line 2: 3 columns"),
        (["header.tsv"], "header.tsv: no pair of texts"),
        (["blank.tsv"], "blank.tsv: the file is empty"),
    )
    def test_files_at_fault(self, patterns, message):
        self.write_sides()
        self.write("three.tsv", "a\tb\na\tb\tc\n")
        self.write("header.tsv", "en\tde\n")
        self.write("blank.tsv", "\n")
        self.write("short.de", "Ja.\n")
        with self.assertRaisesRegex(ValueError, message):
            self.load(*patterns)

    @parameterized.parameters("en", "en-", "-de", "en-de-fr", "en-en", "")
    def test_no_direction(self, language):
        with self.assertRaisesRegex(ValueError, f"direction '{language}' must be"):
            translation.direction(language)
