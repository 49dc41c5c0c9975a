"""Examples of every task from files in the datasets' own formats."""

import json

from absl.testing import parameterized

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import (
    Answer,
    QuestionExample,
    Sentences,
    TaggedExample,
    TextExample,
)
from input_pipeline.tasks.files import Source
from input_pipeline.tasks.loading import available_languages, load_examples, load_pairs
from input_pipeline.tasks.tasks import TASKS
from tests.input_pipeline.reading import PackedFolderTest
from xlm.experiment.task_kinds import KINDS, SEARCHES


class Folder(PackedFolderTest):
    def write(self, name: str, text: str) -> str:
        super().write(name, text)
        return name

    def load(self, task: str, *patterns: str, language: str = "en", **codes: str) -> list:
        readers = KINDS[TASKS[task].kind].readers
        return load_examples(readers, Source(TASKS[task], self.folder, patterns, language, codes))

    def available(self, task: str, *patterns: str, **codes: str) -> set[str]:
        kind = KINDS.get(TASKS[task].kind)
        source = Source(TASKS[task], self.folder, patterns, language_codes=codes)
        return available_languages(kind and kind.readers, source)


def table(*rows: str) -> str:
    """Lines whose cells are separated by " | " in the test and by tabs in the file."""
    return "".join("\t".join(row.split(" | ")) + "\n" for row in rows)


def labels(examples: list) -> list:
    return [example.label for example in examples]


class TasksTest(parameterized.TestCase):
    def test_labels_by_name_and_by_number(self):
        for task in TASKS.values():
            for number, label in enumerate(task.labels):
                self.assertEqual(task.label(label, ""), number)
                self.assertEqual(task.label(str(number), ""), number)
        self.assertLen(TASKS["udpos"].labels, 17)
        self.assertEqual(TASKS["xnli"].label("contradictory", ""), 2)
        self.assertEqual(TASKS["stsb"].label("3.25", ""), 3.25)
        self.assertIsNone(TASKS["rte"].label("-1", ""))

    @parameterized.parameters(
        ("xnli", "entails", "no label 'entails'.*entailment, neutral, contradiction or 0 to 2"),
        ("xnli", "3", "no label '3'"),
        ("cola", "", "no label ''"),
        ("stsb", "good", "score 'good' is not a number"),
        ("stsb", "nan", "score 'nan' is not a number"),
    )
    def test_other_labels(self, task, label, message):
        with self.assertRaisesRegex(ValueError, f"f.tsv, line 7: .*{message}"):
            TASKS[task].label(label, "f.tsv, line 7")


class TextPairsTest(Folder):
    @parameterized.parameters(
        ("cola", 1, "gj04 | 1 |  | She sang.", "gj04 | 0 | * | Sang she."),
        ("cola", 1, "sentence | label", "She sang. | 1", "Sang she. | 0"),
        ("sst2", 1, "sentence | label", "a joy  | 1", "a bore  | 0"),
        ("mrpc", 2, "\ufeffQuality | #1 ID | #2 ID | #1 String | #2 String",
         '1 | 70 | 71 | He "left". | He went.', "0 | 72 | 73 | Rain. | Sun."),
        ("qqp", 2, "id | qid1 | qid2 | question1 | question2 | is_duplicate",
         "0 | 1 | 2 | Why? | How come? | 1", "1 | 3 | 4 | Who? | When? | 0"),
        ("mnli", 2,
         "index | genre | sentence1_parse | sentence1 | sentence2 | label1 | gold_label",
         "0 | fiction | (a) | It rains. | It is dry. | neutral | contradiction",
         "1 | fiction | (a) | It rains. | It is wet. | neutral | entailment"),
        ("qnli", 2, "index | question | sentence | label",
         "0 | Who? | It rains. | not_entailment", "1 | Who? | Ann. | entailment"),
        ("rte", 2, "index | sentence1 | sentence2 | label",
         "0 | A. | B. | not_entailment", "1 | A. | A. | entailment"),
        ("xnli", 2, "premise | hypothesis | label", "A. | B. | 2", "A. | A. | 0"),
        ("xnli", 2, "premise | hypo | label", "A. | B. | contradictory", "A. | A. | entailment"),
        ("xnli", 2, "a | b | A. | B. | contradictory", "a | a | A. | A. | entailment"),
        ("xnli", 2, "A. | B. | contradictory", "A. | A. | entailment"),  # as XTREME makes them
        ("pawsx", 2, "id | sentence1 | sentence2 | label",
         "1 | A B. | B A. | 1", "2 | A. | C. | 0"),
        ("pawsx", 2, "A B. | B A. | 1", "A. | C. | 0"),
        ("americasnli", 2, "premise | hypothesis | label",
         "A. | B. | contradiction", "A. | A. | entailment"),
    )  # fmt: skip
    def test_formats(self, task, num_texts, *rows):
        examples = self.load(task, self.write("f.tsv", table(*rows)))
        self.assertEqual([example.id for example in examples], ["0", "1"])
        names = TASKS[task].labels
        expected = {"0": ["1", "0"], "contradiction": ["contradiction", "entailment"]}
        self.assertEqual(
            [names[label] for label in labels(examples)],
            expected.get(names[0], expected.get(names[-1], ["not_entailment", "entailment"])),
        )
        for example, row in zip(examples, rows[-2:], strict=True):
            texts = [example.text, example.text_pair][:num_texts]
            cells = [cell.strip() for cell in row.split(" | ")]
            self.assertContainsSubsequence(cells, texts)
            self.assertEqual(example.text_pair is None, num_texts == 1)

    def test_scores_and_no_labels(self):
        rows = "0 | news | A. | B. | 2.600", "1 | news | A. | A. | 5"
        text = table("index | genre | sentence1 | sentence2 | score", *rows)
        self.assertEqual(labels(self.load("stsb", self.write("f.tsv", text))), [2.6, 5.0])
        name = self.write("f.tsv", table("index | sentence", "0 | She sang."))
        self.assertEqual(labels(self.load("cola", name)), [None])
        # Only a line feed ends a line.
        text = "sentence\tlabel\r\nHe\u2028sa\x85ng \x0c.\t1\r\n\r\n"
        example = self.load("cola", self.write("f.tsv", text))[0]
        self.assertEqual(example.text, "He\u2028sa\x85ng \x0c.")

    def test_original_xnli_holds_all_languages(self):
        rows = ("ar | neutral |  | نعم | لا | 1", "zh | contradiction |  | 是 | 不是 | 1",
                "ar | - |  | ربما | لا | 2", "zh | entailment |  | 好 | 好 | 2")  # fmt: skip
        header = "language | gold_label | sentence1_binary_parse | sentence1 | sentence2 | pairID"
        name = self.write("xnli.dev.tsv", table(header, *rows))
        expected = [TextExample("0", "是", "不是", 2), TextExample("1", "好", "好", 0)]
        self.assertEqual(self.load("xnli", name, language="zh"), expected)
        self.assertEqual(self.load("xnli", name, language="ar"), [TextExample("0", "نعم", "لا", 1)])
        self.assertEqual(self.available("xnli", name), {"ar", "zh"})
        with self.assertRaisesRegex(ValueError, "language 'sw'.*xnli.dev.tsv.* for ar, zh"):
            self.load("xnli", name, language="sw")

    @parameterized.parameters(
        ("xnli", ("premise | label", "A. | 1"), "line 1: no header of xnli.*hypothesis or hypo"),
        ("xnli", ("text | other | class",), "line 1: no header of xnli.*'text.*other"),
        ("mnli", ("A. | B. | neutral",), "line 1: no header of mnli.*'A.*B"),
        ("rte", ("sentence1 | sentence2 | label", "A. | B."), "line 2: 2 columns, expected 3"),
        ("rte", ("sentence1 | sentence2 | label", "A. | B. | C. | 1"), "line 2: 4 columns"),
        ("rte", ("sentence1 | sentence2 | label", "A. | B. | maybe"), "line 2: rte has no label"),
        ("pawsx", ("sentence1 | sentence2 | label", "A. | B. | 0", "A."), "line 3: 1 col"),
    )
    def test_faults(self, task, rows, message):
        with self.assertRaisesRegex(ValueError, f"f.tsv.*{message}"):
            self.load(task, self.write("f.tsv", table(*rows)))

    def test_a_few_broken_rows_of_qqp_are_left_out(self):
        rows = [f"{i} | Why {i}? | How {i}? | {i % 2}" for i in range(200)]
        rows[7] = "7 | Why"
        text = table("id | question1 | question2 | is_duplicate", *rows)
        with self.assertLogs(level="WARNING") as logs:
            examples = self.load("qqp", self.write("f.tsv", text))
        self.assertIn("line 9: 2 columns", logs.output[0])
        self.assertEqual([e.text for e in examples], [f"Why {i}?" for i in range(200) if i != 7])


class TaggedTest(Folder):
    def test_words_and_tags(self):
        text = table("Sie | PRON", "ging | VERB", "", "# | SYM", "a b | X", "", "", "_ | PUNCT")
        found = self.load("udpos", self.write("de/f.tsv.xz", text), language="en")
        expected = [TaggedExample("0", ("Sie", "ging"), (10, 15))]
        self.assertEqual(found, [*expected, TaggedExample("1", ("#", "a b"), (14, 16))])
        # Words that look like comments.
        found = self.load("udpos", self.write("f.tsv", table("# | SYM", "# a | X")))
        self.assertEqual(found, [TaggedExample("0", ("#", "# a"), (14, 16))])

    def test_wikiann_with_and_without_languages(self):
        plain = ("Ada | B-PER", ": | O", "", "Rome | B-LOC")
        expected = [TaggedExample("0", ("Ada", ":"), (1, 0)), TaggedExample("1", ("Rome",), (5,))]
        for rows in (plain, [row and f"en:{row}" for row in plain]):
            self.assertEqual(self.load("wikiann", self.write("f", table(*rows))), expected)
        mixed = table("en:Ada | B-PER", "http:x | O")
        found = self.load("wikiann", self.write("f", mixed))
        self.assertEqual(found[0].words, ("en:Ada", "http:x"))
        found = self.load("wikiann", self.write("f.txt", "Ada\r\nlives\r\n\r\nRome\r\n"))
        self.assertEqual(
            [(one.words, one.tags) for one in found], [(("Ada", "lives"), ()), (("Rome",), ())]
        )

    def test_conllu(self):
        rest = " | ".join("_" * 6)
        rows = ("1-2 | zum | _ | _", "1 | zu | zu | ADP", "2 | dem | der | DET",
                "2.1 | gehen | gehen | VERB", "3 | Haus | Haus | NOUN")  # fmt: skip
        first = "".join(table(f"{row} | {rest}") for row in rows)
        text = "# sent_id = 1\n" + first + "\n# sent_id = 2\n" + table(f"1 | # | # | SYM | {rest}")
        expected = [TaggedExample("0", ("zu", "dem", "Haus"), (1, 5, 7))]
        found = self.load("udpos", self.write("f.conllu", text))
        self.assertEqual(found, [*expected, TaggedExample("1", ("#",), (14,))])

    @parameterized.parameters(
        ("a\tNOUN\nb\tNAME\n", "line 2: udpos has no label 'NAME'.*ADJ, ADP"),
        ("a\tNOUN\nb\t-1\n", "line 2: udpos has no label '-1'"),
        ("a\tNOUN\nb\n", "line 2: 'b' has no tag"),
        ("\n\n", "the file is empty"),
        ("1\ta" + "\t_" * 8 + "\n2\tb\n", "line 2: not a line of CoNLL-U .2 columns"),
        ("# only\n", "no words"),
        ("the\tDET\n\tNOUN\n", "line 2: .*no word"),
    )
    def test_faults(self, text, message):
        with self.assertRaisesRegex(ValueError, f"f.tsv.*{message}"):
            self.load("udpos", self.write("f.tsv", text))


def squad(*questions: tuple, context: str = "Der Bär 🐻 schläft.", **changes) -> str:
    qas = []
    for name, *found in questions:
        answers = [{"text": text, "answer_start": start} for text, start in found]
        qas.append({"id": name, "question": "Wer?", "answers": answers, **changes})
    data = [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]
    return json.dumps({"version": "1.1", "data": data}, ensure_ascii=False)


class QuestionsTest(Folder):
    def test_answers_are_counted_in_characters(self):
        text = squad(("a", ("🐻", 8), ("Bär 🐻", 4), ("🐻", 8)), ("b", ("schläft", 10)))
        context = "Der Bär 🐻 schläft."
        answers = (Answer("🐻", 8), Answer("Bär 🐻", 4)), (Answer("schläft", 10),)
        expected = [
            QuestionExample(*one)
            for one in zip("ab", ["Wer?"] * 2, [context] * 2, answers, strict=True)
        ]
        self.assertEqual(self.load("xquad", self.write("f.json.gz", text)), expected)
        # One question with its answers apart.
        text = squad(("a", ("Bär", 4)), ("a", ("Der", 0)))
        found = self.load("xquad", self.write("f.json", text))
        self.assertEqual([one.answers for one in found], [(Answer("Bär", 4), Answer("Der", 0))])

    def test_unanswerable_and_hidden(self):
        impossible = squad(("a", ("Bär", 4)), is_impossible=True, plausible_answers=[{"text": "x"}])
        for text in (impossible, squad(("a",)), squad(("a", ("", 0)))):
            self.assertEqual(self.load("squad2", self.write("f.json", text))[0].answers, ())

    def test_tydiqa_tells_languages_by_id(self):
        text = squad(("finnish-1-0", ("Bär", 4)), ("english-7-1", ("Der", 0)))
        name = self.write("train.json", text)
        for language, wanted in (("fi", "finnish-1-0"), ("en", "english-7-1")):
            found = self.load("tydiqa", name, language=language)
            self.assertEqual([one.id for one in found], [wanted])
        with self.assertRaisesRegex(ValueError, "files for en, fi"):
            self.load("tydiqa", name, language="te")

    @parameterized.parameters(
        (squad(("a", ("Bär", 4)), ("b", ("Bär", 5))), "'b': .*'Bär' is not at character 5"),
        (squad(("b", (".", -1))), "'b': .*not at character -1"),
        (squad(("b", ("schläft..", 10))), r"'b': .* has 'schläft.' there \(1 such answers\)"),
        ('{"data": [\n{]}', "line 2: not JSON"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": "c"}]}]}]}', "in question 'c', KeyError"),
        ('{"data": 3}', "not of the form of SQuAD"),
        (squad(("d",), context=3), "question must be str, is 3"),
        ("[1]", "not of the form of SQuAD"),
        ("[" * 100_000, "not JSON|nested"),
        (squad(("d",), context="\\ud83d").replace("\\\\", "\\"), "question 'd', .*half of a char"),
    )
    def test_faults(self, text, message):
        with self.assertRaisesRegex(ValueError, f"f.json.*{message}"):
            self.load("xquad", self.write("f.json", text))

    def test_two_questions_with_one_id(self):
        data = json.loads(squad(("a", ("Bär", 4))))
        data["data"] += json.loads(squad(("a", ("Bär", 0)), context="Bär"))["data"]
        with self.assertRaisesRegex(ValueError, "f.json: two questions have the id 'a'"):
            self.load("xquad", self.write("f.json", json.dumps(data)))
        names = [self.write(name, squad(("a", ("Bär", 4)))) for name in ("f.json", "g.json")]
        with self.assertRaisesRegex(ValueError, "two files hold the example 'a'"):
            self.load("xquad", *names)


class PairsTest(Folder):
    def pairs(self, task: str, *patterns: str, language: str = "de", **codes: str):
        reader = SEARCHES[TASKS[task].kind].reader
        return load_pairs(reader, Source(TASKS[task], self.folder, patterns, language, codes))

    def test_both_forms_of_tatoeba(self):
        self.write("de-en.tsv", table("Ja. | Yes.", "Nein! | No!"))
        self.write("tatoeba.deu-eng.deu", "Ja.\nNein!\n")
        self.write("tatoeba.deu-eng.eng", "Yes.\nNo!\n")
        one = self.pairs("tatoeba", "{language}-en.tsv")
        laser = ("tatoeba.{language}-eng.{language}", "tatoeba.{language}-eng.eng")
        self.assertEqual(one, self.pairs("tatoeba", *laser, deu="de"))
        self.assertEqual(one.source, Sentences(("0", "1"), ("Ja.", "Nein!")))
        self.assertEqual(one.target.texts, ("Yes.", "No!"))
        self.assertEqual(one.gold, (("0", "0"), ("1", "1")))
        there = self.available("tatoeba", laser[0], deu="de")
        self.assertEqual(there, {"de"})

    def bucc(self, gold: str = "de-2 | en-1", german: str = "de-2 | Nein!"):
        self.write("de-en.sample.de", table("de-1 | Ja.", german))
        self.write("de-en.sample.en", table("en-1 | No!", "en-2 | Why?", "en-3 | So."))
        self.write("de-en.sample.gold", table(gold))
        stem = "{language}-en.sample."
        return self.pairs("bucc", stem + "{language}", stem + "en", stem + "gold")

    def test_bucc(self):
        found = self.bucc()
        self.assertEqual(found.source, Sentences(("de-1", "de-2"), ("Ja.", "Nein!")))
        self.assertEqual(found.target.ids, ("en-1", "en-2", "en-3"))
        self.assertEqual(found.gold, (("de-2", "en-1"),))
        hidden = self.pairs("bucc", "{language}-en.sample.{language}", "de-en.sample.en")
        self.assertEqual((hidden.source, hidden.gold), (found.source, ()))

    @parameterized.parameters(
        ({"gold": "de-9 | en-1"}, "gold, line 1: 'de-9' is not an id of .*sample.de"),
        ({"gold": "de-1 | de-2"}, "gold, line 1: 'de-2' is not an id of .*sample.en"),
        ({"german": "de-1 | Nein!"}, "sample.de, line 2: the id 'de-1' is repeated"),
        ({"german": "de-2 | Nein | !"}, "sample.de, line 2: 3 columns, expected two"),
    )
    def test_faults(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            self.bucc(**changes)
        names = self.write("a", "Ja.\nNein!\n"), self.write("b", "Yes.\n")
        with self.assertRaisesRegex(ValueError, "a: 2 lines, but .*b has 1; equal lines must"):
            self.pairs("tatoeba", *names)

    def test_patterns_that_do_not_fit(self):
        self.write("a.de", "x\ty\n")
        self.write("b.de", "x\ty\n")
        with self.assertRaisesRegex(ValueError, "1 patterns .*, expected 2 or 3: the text"):
            self.pairs("bucc", "a.{language}")
        with self.assertRaisesRegex(ValueError, "matches 2 files for 'de'"):
            self.pairs("tatoeba", "*.{language}")
        with self.assertRaisesRegex(ValueError, "no data for language 'fr'.*a.fr.*files for de:"):
            self.pairs("tatoeba", "a.{language}", language="fr")
        for patterns in (
            ("tfds:tatoeba/tatoeba_de:train", "a.{language}"),
            ("a.{language}", "tfds:a:b"),
        ):
            with self.assertRaisesRegex(ValueError, "2 patterns .*, but a split of tensorflow-"):
                self.pairs("tatoeba", *patterns)


class FilesTest(Folder):
    def text(self, *rows: str) -> str:
        return table("sentence | label", *rows)

    def test_files_of_a_language_are_joined_in_order(self):
        for name, sentence in (("b.de", "one"), ("a.de", "two"), ("a.ger", "three")):
            self.write(f"{name}.tsv.gz", self.text(f"{sentence} | 1"))
        self.write("other.tsv.xz", self.text("English | 1"))
        patterns = ("b.{language}.tsv.gz", "a.{language}.tsv.gz", "other.tsv.xz")
        found = self.load("cola", *patterns, language="de", ger="de")
        texts = [(e.id, e.text) for e in found]
        self.assertEqual(texts, [("0", "one"), ("1", "two"), ("2", "three")])
        self.assertEqual([e.text for e in self.load("cola", *patterns)], ["English"])
        self.assertEqual(self.available("cola", *patterns, ger="de"), {"de", "en"})
        # A code that means another language.
        self.write("no.tsv", self.text("x | 1"))
        self.assertLen(self.load("cola", "{language}.tsv", language="nb", no="nb"), 1)
        with self.assertRaisesRegex(ValueError, "no data for language 'no'"):
            self.load("cola", "{language}.tsv", language="no", no="nb")

    @parameterized.parameters(
        "train.{language}.[ct]sv", "train.{language}.[!c]sv", "train.{language}.[a-m]?[v-z]",
        "[tu]*.{language}.*", "[]x[]/{language}.[^\\t]sv", "[]/{language}.[t",
        "**/[!u]*.{language}.[tc]sv",
        "a-{language}-q-{language}.json",
    )  # fmt: skip
    def test_languages_of_names_are_those_that_have_files(self, pattern):
        names = ("train.en.csv", "train.de.tsv", "untrain.fr.csv", "]/sw.csv", "[/th.tsv",
                 "x/^.csv", "x/train.ur.csv", "[]/vi.[t", "]/bg.\\sv", "a-de-q-de.json",
                 "a-fr-q-en.json", "a-zh_Hant-q-zh_Hant.json")  # fmt: skip
        for name in names:
            self.write(name, "{}")
        codes = ("en", "de", "fr", "sw", "th", "ur", "vi", "bg", "zh_Hant")
        expected = {code for code in codes if files.matching(self.folder, pattern, [code])}
        self.assertNotEmpty(expected)
        self.assertEqual(files.languages_of_names(self.folder, pattern), expected)

    def test_a_language_without_data(self):
        for code in ("sw", "de", "dde"):
            self.write(f"dev/{code}.tsv", self.text("x | 1"))
        with self.assertRaisesRegex(ValueError, "'th'; looked .*dev/th.tsv; .*for dde, de, sw:"):
            self.load("cola", "dev/{language}.tsv", language="th")
        with self.assertRaisesRegex(ValueError, "no data .*.in English, .*files for de:"):
            self.load("cola", "dev/t?.tsv", "dev/d{language}.tsv", language="th")
        with self.assertRaisesRegex(ValueError, "dev/none.tsv does not exist"):
            self.load("cola", "dev/{language}.tsv", "dev/none.tsv", language="sw")

    def test_damaged_files(self):
        (self.folder / "f.tsv").write_bytes("sentence\tlabel\nMünchen\t1\n".encode("latin1"))
        with self.assertRaisesRegex(ValueError, "f.tsv, line 2: not UTF-8 .byte 0xfc.; .*iconv"):
            self.load("cola", "f.tsv")
        for suffix in ("", ".gz", ".xz", ".bz2"):
            whole = self.folder / self.write(f"f.tsv{suffix}", self.text(*["ß | 1"] * 99))
            self.assertEqual(self.load("cola", whole.name)[0], TextExample("0", "ß", None, 1))
            if suffix:
                whole.write_bytes(whole.read_bytes()[:-20])
                with self.assertRaisesRegex(ValueError, f"f.tsv{suffix}: cannot be read .*again"):
                    self.load("cola", whole.name)
