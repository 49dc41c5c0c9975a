"""Files of a user's own: formats told apart by content, and lines at fault named."""

import dataclasses
import gzip
from collections.abc import Iterable

from absl.testing import parameterized

from input_pipeline.tasks import delimited, tagged
from input_pipeline.tasks.examples import BadRow, TaggedExample, TextExample
from input_pipeline.tasks.tasks import TASKS, Columns
from tests.folders import FolderTest

LABELS = ("neg", "pos")
NAMED = Columns(("text",), (), ("label",))
PAIRS = Columns(("a",), ("b",), ("label",))
NUMBERED = Columns(("2",), (), ("1",))


def good(found: Iterable) -> list:
    """What a reader found; ValueError for the first bad row."""
    found = list(found)
    for one in found:
        row = one[1] if isinstance(one, tuple) else one
        if isinstance(row, BadRow):
            raise ValueError(row.error)
    return found


class Case(FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "mine.csv"

    def read(self, text: str, columns: Columns = NAMED, labels=LABELS) -> list:
        self.path.write_text(text, encoding="utf-8")
        task = TASKS["text_classes"].with_labels(labels, columns)
        return good(delimited.read_texts(self.path, task))

    def texts(self, text: str, columns: Columns = NAMED) -> list[tuple]:
        found = self.read(text, columns)
        return [(one.text, one.label) for _, one in found]


class FormatsTest(Case):
    @parameterized.parameters(
        ('text,label\n"Good, ""really"" good.\nYes.",pos\n\nBad.,neg\n',),
        ('label;text\npos;"Good, ""really"" good.\nYes."\nneg;Bad.\n',),
        ('{"label": "pos", "text": "Good, \\"really\\" good.\\nYes."}\n\n'
         '{"text": "Bad.", "label": "neg", "other": 1}\n',),
    )  # fmt: skip
    def test_csv_and_json_lines(self, text):
        expected = [('Good, "really" good.\nYes.', 1), ("Bad.", 0)]
        self.assertEqual(self.texts(text), expected)

    def test_between_tabs_a_quotation_mark_may_be_text(self):
        text = (
            'text\tid\tlabel\n"He" said "no"\t1\tpos\n"She said ""no"""\t2\tneg\n5" nail\t3\tneg\n'
        )
        expected = [('"He" said "no"', 1), ('She said "no"', 0), ('5" nail', 0)]
        self.assertEqual(self.texts(text), expected)

    @parameterized.parameters(
        ("\ufefftext;label\r\na;pos\r\nb;neg\r\n".encode(),),  # Excel, of a comma as point
        ("sep=;\r\ntext;label\r\na;pos\r\nb;neg\r\n".encode("utf-16"),),
        (b"text,label\ra,pos\rb,neg\r",),
        (b",text,label\n0,a,pos\n1,b,neg\n",),  # pandas, of an index
        (b" Text , LABEL\na,pos\nb,neg\n",),
        (b'[{"text": "a", "label": "pos"},\n {"label": "neg", "text": "b", "more": null}]\n',),
        (b'{\n  "text": "a",\n  "label": "pos"\n}\n{\n  "text": "b", "label": "neg"\n}\n',),
        (gzip.compress(b"text,label\na,pos\nb,neg\n"),),  # called mine.csv
    )
    def test_as_programs_write_them(self, content):
        self.path.write_bytes(content)
        task = TASKS["text_classes"].with_labels(LABELS, NAMED)
        found = [(one.text, one.label) for _, one in delimited.read_texts(self.path, task)]
        self.assertEqual(found, [("a", 1), ("b", 0)])

    def test_cells_of_tabs_and_large_ones(self):
        text = 'text\tlabel\n"A ""b""\nc\td"\tpos\nBad\tneg\n'
        self.assertEqual(self.texts(text), [('A "b"\nc\td', 1), ("Bad", 0)])
        ((text, _), _) = self.texts(f"text,label\n{'a ' * 500_000},pos\nb,neg\n")
        self.assertLen(text, 999_999)
        for content, error in (
            (b"PK\3\4\0\0", "zip archive, as .xlsx.*CSV"),
            (b"PAR1\0", "cut off"),
        ):
            self.path.write_bytes(content)
            with self.assertRaisesRegex(ValueError, f"mine.csv: .*{error}"):
                good(delimited.read_labels(self.path, TASKS["text_classes"]))

    @parameterized.parameters(
        'pos,"One, or two"\nneg,Bad\n', "pos\tOne\tx\nneg\tBad; worse, still\ty\n",
        "neg;A\npos;B, C\n",
    )  # fmt: skip
    def test_columns_by_number_have_no_first_line_of_names(self, text):
        self.assertLen(self.texts(text, NUMBERED), 2)
        for wrong, message in (
            ("pos,One, or two\nneg,Bad\n", "line 2: 2 columns, expected 3 .* commas"),
            ("pos;a,b\nneg;c,d\n", "commas and semicolons both cut all lines"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.texts(wrong, NUMBERED)

    def test_pairs_and_the_language_of_a_column(self):
        found = self.read("language,a,b,label\nsw,x,y,pos\nde,z,w,neg\n", PAIRS)
        self.assertEqual(found[0], ("sw", TextExample("", "x", "y", 1)))
        self.assertEqual([language for language, _ in found], ["sw", "de"])
        with self.assertRaisesRegex(ValueError, r"line 2: '\.\./x' in the column 'language' is no"):
            self.read("language,a,b,label\n../x,x,y,pos\n", PAIRS)

    def test_labels_go_by_name_alone(self):
        # Of a dataset's task "1" would be the second class, and "-1" a hidden label.
        columns = Columns(("text",), (), ("stars",))
        found = self.read("text,stars\na,1\nb,-1\n", columns, ("-1", "1", "5"))
        self.assertEqual([one.label for _, one in found], [1, 0])
        with self.assertRaisesRegex(ValueError, "line 2: no label '0' in the training data, whose"):
            self.read("text,stars\na,0\n", columns, ("-1", "1", "5"))

    def test_numbers(self):
        self.path.write_text('{"text": "a", "label": -1}\n{"text": "b", "label": 2.5}\n')
        task = TASKS["text_numbers"].with_labels((), NAMED)
        found = [one.label for _, one in delimited.read_texts(self.path, task)]
        self.assertEqual(found, [-1.0, 2.5])
        self.path.write_text("text,label\na,many\n")
        with self.assertRaisesRegex(ValueError, "line 2: the score 'many' is not a number"):
            good(delimited.read_texts(self.path, task))

    def test_labels_before_they_are_known(self):
        self.path.write_text("text,label\na,x\nb,1.0\nc,True\n")
        found = delimited.read_labels(self.path, TASKS["text_classes"])
        self.assertEqual([label for _, label in found], ["x", "1", "true"])
        # Of such labels it does not matter how another program writes them.
        numbers = self.read("text,label\na,1.0\nb,1\nc,TRUE\n", labels=("1", "true"))
        self.assertEqual([one.label for _, one in numbers], [0, 0, 1])
        by_number = dataclasses.replace(TASKS["text_classes"], columns=NUMBERED)
        for text, task, message in (
            ("text,label\na,x\nb,nan\n", TASKS["text_classes"],
             "line 3: the label is 'nan', as pa"),
            ("label,text\npos,a\n", by_number, "line 1: 'label' seems to be the name of a column"),
        ):  # fmt: skip
            self.path.write_text(text)
            with self.assertRaisesRegex(ValueError, message):
                good(delimited.read_labels(self.path, task))
        for name, labels, message in (
            ("text_classes", ("x",), "labels are x; they must be two or more"),
            ("tag_spans", ("NOUN", "O"), "'NOUN' is not a tag of a span .*tags.py:words,DATA"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                TASKS[name].with_labels(labels, NUMBERED)
        TASKS["tag_words"].with_labels(("NOUN", "O"), NUMBERED)
        with self.assertRaisesRegex(ValueError, "label_column are text, text, must be different"):
            self.texts("text,label\na,pos\n", Columns(("text",), (), ("text",)))


class FaultsTest(Case):
    @parameterized.parameters(
        ("text,class\na,pos\n",
         "line 1: no column 'label'; the columns there are 'text', 'class':"),
        ("text,label,text\na,pos,b\n", "line 1: several columns 'text'"),
        ("text,label\na,pos\nb\n", "line 3: 1 columns, expected 2 as in the first line.*commas"),
        ('text,label\n"a,pos\nb,neg\n', "line 2: not CSV with commas .unexpected end"),
        ('text,label\n"a"b,pos\n', "line 2: not CSV with commas"),
        ("text,label\n ,pos\n", "line 2: column 'text' is empty; fill it in"),
        ("text,label\na,\n", "line 2: column 'label' is empty"),
        ("text,label\na,good\n", "line 2: no label 'good' in the training data.* neg, pos;"),
        ('{"text": "a", "label": "pos"}\n{"text": "a"\n', "line 2: not JSON"),
        ('{"text": "a", "label": "pos"}\n[1]\n', "line 2: .* is not a JSON object"),
        ('{"text": "a", "label": "pos"}\n{"text": "a"}\n', "line 2: no column 'label'"),
        ('{"text": ["a"], "label": "pos"}\n', "line 1: column 'text' holds"),
        ('[{"text": "a", "label": "pos"},\n {"text": "b"]\n', "line 2: not JSON .*delimiter"),
        ('{"text": {"0": "a"}, "label": {"0": "pos"}}', "line 1: .* orient='records'"),
        ('{"text": "a", "label": NaN}', "line 1: column 'label' is empty"),
        ('{"text": "a\\ud800", "label": "pos"}', "line 1: .* not a character; remove it"),
        ("text,label\n\u200b,pos\n", "line 2: column 'text' is empty"),
        ("text,label\n", "has no rows below the names"),
        ("sentence|label\na|pos\n", "line 1: no column 'text'; .* commas or semicolons"),
        ("\n", "the file is empty"),
    )  # fmt: skip
    def test_they_are_named(self, text, error):
        with self.assertRaisesRegex(ValueError, f"mine.csv.*{error}"):
            self.texts(text)


class UnlabelledTest(Case):
    def predict(self, text: str, columns: Columns = NAMED, name="mine.txt") -> list[TextExample]:
        self.path = self.path.with_name(name)
        self.path.write_text(text)
        task = TASKS["text_classes"].with_labels(LABELS, columns)
        return good(delimited.read_unlabelled(self.path, task))

    def test_columns_or_plain_lines(self):
        expected = [TextExample("2", "a, b", None, None), TextExample("4", "c", None, None)]
        self.assertEqual(self.predict('text,label\n"a, b",pos\n\nc,?\n'), expected)
        self.assertEqual(self.predict('\n{"text": "a, b"}\n\n{"text": "c"}\n'), expected)
        plain = [TextExample("1", "a, b", None, None), TextExample("2", "text", None, None)]
        self.assertEqual(self.predict("a, b\ntext\n"), plain)
        for name in ("mine.txt", "mine.tsv"):
            pair = self.predict("x\ty\n", PAIRS, name)
            self.assertEqual(pair, [TextExample("1", "x", "y", None)])

    def test_objects_on_one_line_are_numbered(self):
        for text, ids in (
            ('[{"text":"a"},{"text":"b"}]', "12"), ('{"text":"a"} {"text":"b"}\n', "12"),
            ('[\n{"text": "a"},\n{"text": "b"}\n]\n', "23"),
        ):  # fmt: skip
            found = [(one.id, one.text) for one in self.predict(text, name="mine.json")]
            self.assertEqual(found, list(zip(ids, "ab", strict=True)))

    @parameterized.parameters("{laughs} hello\nbye\n", "text\nbye\n", "{\n}\n", "TEXT\n")
    def test_lines_of_a_txt_that_look_like_json_or_a_name(self, text):
        self.assertEqual([one.text for one in self.predict(text)], text.splitlines())
        # A table called .txt is not told to be called so.
        with self.assertRaisesRegex(ValueError, "line 2: 1 columns.* a line end$"):
            self.predict("text,label\na\n")

    def test_the_name_of_a_table_makes_its_lines_rows(self):
        rows = self.predict("neg,a b\npos,c\n", NUMBERED, "mine.csv")
        self.assertEqual([one.text for one in rows], ["a b", "c"])
        with self.assertRaisesRegex(ValueError, "no column 'text'.*plain lines must be called"):
            self.predict("sentence,label\na,pos\n", NAMED, "mine.CSV")

    @parameterized.parameters(
        ('the cat,pos\n"a, b",neg\n', ["the cat", "a, b"]),
        ("sep=;\nthe cat;pos\na, b;neg\n", ["the cat", "a, b"]),
        ("the cat\tpos\na, b\tneg\n", ["the cat", "a, b"]),
        ('the cat,?\n"a, b",\n', ["the cat", "a, b"]),  # labels that are not known
        ("a, b\nc, d\n", ["a, b", "c, d"]),  # without labels
        ('"a, b"\nc\n', ["a, b", "c"]),
        ("Well, pos, or not\nthe cat\nc; d\n", ["Well, pos, or not", "the cat", "c; d"]),
    )
    def test_of_a_text_in_the_first_column_labels_are_cut_off(self, text, expected):
        rows = self.predict(text, Columns(("1",), (), ("2",)), "mine.csv")
        self.assertEqual([one.text for one in rows], expected)


class TagsTest(Case):
    def read_tags(self, text: str, columns=("1", "-1"), labels=("B-X", "I-X", "O")) -> list:
        self.path.write_text(text)
        word, tag = columns
        task = TASKS["tag_spans"].with_labels(labels, Columns((word,), (), (tag,)))
        return [one for _, one in good(tagged.read_tagged(self.path, task))]

    @parameterized.parameters(
        ("-DOCSTART- -X- O\n\nAbe NNP B-X\nLee NNP I-X\n\nruns VB O\n", ("1", "-1")),
        ("Abe\tB-X\t_\nLee\tI-X\t_\n\nruns\tO\t_\n", ("1", "2")),
        ("1 B-X Abe\n2 I-X Lee\n\n1 O runs\n", ("3", "2")),
    )
    def test_conll_by_tabs_or_blanks(self, text, columns):
        expected = [TaggedExample("", ("Abe", "Lee"), (0, 1)), TaggedExample("", ("runs",), (2,))]
        self.assertEqual(self.read_tags(text, columns), expected)

    @parameterized.parameters(
        "# id 1 domain=en\nAbe _ _ B-X\nLee _ _ I-X\n\n# id 2 domain=en\nruns _ _ O\n",
        "# newdoc\nAbe\tB-X\t\nLee\tI-X\t\n\t\t\n# text = runs\nruns\tO\t\n",
        "Abe B-X \nLee  I-X\n\u00a0\nruns O\n",
        "-DOCSTART-\n\nAbe\tB-X\nLee\tI-X\n\n-DOCSTART-\n\nruns\tO\n",
        "en:Abe\tB-X\nen:Lee\tI-X\n\nen:runs\tO\n",
    )
    def test_comments_and_blanks_of_other_programs(self, text):
        expected = [TaggedExample("", ("Abe", "Lee"), (0, 1)), TaggedExample("", ("runs",), (2,))]
        self.assertEqual(self.read_tags(text), expected)

    def test_comments_that_are_none_and_other_columns(self):
        (found,) = self.read_tags("# O\n10\u00a0000 B-X\n#x O\n")
        self.assertEqual(found.words, ("#", "10\u00a0000", "#x"))
        text = "# c\n1-2\tdu" + "\t_" * 8 + "\n1\tde\tde\tADP\tO" + "\t_" * 5 + "\n"  # CoNLL-U
        self.assertEqual(self.read_tags(text, ("2", "5")), [TaggedExample("", ("de",), (2,))])
        with self.assertRaisesRegex(ValueError, "line 3: no label 'ADP'"):
            self.read_tags(text)

    @parameterized.parameters(
        ("the cat\nruns O\n", "t.txt", [("1", ("the", "cat")), ("2", ("runs", "O"))]),
        ("en:the\tO\nen:cat\tO\n\nen:runs\tO\n", "t.txt",
         [("1", ("the", "cat")), ("4", ("runs",))]),
        ("the O\ncat B-X\n\nruns O\n", "t.txt", [("1", ("the", "cat")), ("4", ("runs",))]),
        ("-DOCSTART-\n\n# a\nthe\tO\ncat\tO\n\nruns\t\n", "t.txt",
         [("4", ("the", "cat")), ("7", ("runs",))]),
        ("the\tO\ncat\n", "t.conll", [("1", ("the", "cat"))]),
        ("the\ncat\n\nruns\n", "t.conll", [("1", ("the", "cat")), ("4", ("runs",))]),
    )  # fmt: skip
    def test_sentences_to_predict_on(self, text, name, expected):
        path = self.path.with_name(name)
        path.write_text(text)
        self.assertEqual(self.untagged(path), expected)

    def untagged(self, path, columns=("1", "-1")) -> list:
        task = TASKS["tag_spans"].with_labels(("B-X", "O"), Columns(columns[:1], (), columns[1:]))
        return [(one.id, one.words) for one in good(tagged.read_untagged(path, task))]

    def test_a_tab_in_some_sentences_alone(self):
        path = self.path.with_name("t.txt")
        path.write_text("Abe\tLee runs\nthe cat\n")  # a line is a sentence, whatever is in it
        self.assertEqual(
            self.untagged(path), [("1", ("Abe", "Lee", "runs")), ("2", ("the", "cat"))]
        )
        path.write_text("1\tthe\n2\tcat\n")  # words to predict on need no column of tags
        self.assertEqual(self.untagged(path, ("2", "-1")), [("1", ("the", "cat"))])

    def test_tags_before_they_are_known(self):
        columns = Columns(("1",), (), ("-1",))
        spans, words = (
            dataclasses.replace(TASKS[name], columns=columns) for name in ("tag_spans", "tag_words")
        )
        self.path.write_text("a X\nb Y\n\nc X\n")
        self.assertEqual([tag for _, tag in tagged.read_tags(self.path, words)], ["X", "Y", "X"])
        for text, message in (
            ("Abe B-X\nLee ORG\n", "mine.csv, line 2: 'ORG' is not a tag of a span"),
            ("word,tag\nAbe,B-X\n", "line 1: .* has no tag; .*tags cannot be CSV"),
        ):
            self.path.write_text(text)
            with self.assertRaisesRegex(ValueError, message):
                good(tagged.read_tags(self.path, spans))

    @parameterized.parameters(
        ("Abe B-X\nLee\n", ("1", "-1"), "line 2: 'Lee' has no tag"),
        ("Word\tTag\nAbe\tB-X\n", ("1", "-1"), "line 1: .* are names of columns; remove the line"),
        ("1 A B-X\n2 B O\n\n1 C O\n", ("1", "-1"), "line 1: .* running numbers; set .*=2"),
        ("Abe B-X\nLee X O\n", ("1", "-1"), "line 2: 3 columns, expected 2 as in the first line"),
        ("Abe B-X\n", ("1", "4"), "line 1: 2 columns, but task.text_column and .* name column 4"),
        ("Abe B-X\n", ("1", "-4"), "line 1: 2 columns, but .* name column -4; correct"),
        ("O 1\nO 2\n", ("2", "-1"), "line 1: 2 columns; .* both name column 2"),
        ("1" + "\tO" * 9 + "\n", ("4", "-1"), "line 1: 10 columns; .* both name column 4"),
        ("1" + "\tO" * 9 + "\n", ("2", "11"), "line 1: 10 columns, but .* name column 11"),
        ("Abe\tB-X\nLee\t\n", ("1", "-1"), "line 2: 'Lee' has no tag"),
        ("Abe B-Y\n", ("1", "-1"), "line 1: no label 'B-Y' in the training data"),
    )
    def test_lines_at_fault_are_named(self, text, columns, error):
        with self.assertRaisesRegex(ValueError, f"mine.csv, {error}"):
            self.read_tags(text, columns)

    @parameterized.parameters(
        (("1", "1"), "label_column are both 1, must be the different"),
        (("-1", "-1"), "label_column are both -1, must be the different"),
        (("0", "-1"), "task.text_column is '0', must be the number of a column, from 1"),
        (("1", "0"), "task.label_column is '0', must be the number of a column, from 1"),
    )
    def test_columns_that_are_no_two(self, columns, error):
        """Words would be read as tags, which of any kind are all well."""
        self.path.write_text("O O\nB-X B-X\n")
        task = TASKS["tag_words"].with_labels((), Columns(columns[:1], (), columns[1:]))
        with self.assertRaisesRegex(ValueError, error):
            good(tagged.read_tags(self.path, task))
        with self.assertRaisesRegex(ValueError, error):
            self.read_tags("O O\nB-X B-X\n", columns)
