"""A user's own data before training: Parquet and lists, bad rows, ids, and what is held out."""

import collections
import dataclasses
import json

import numpy as np
import pyarrow as pa
from absl.testing import absltest, parameterized
from pyarrow import ipc, parquet

from input_pipeline.tasks import delimited, loading, tagged
from input_pipeline.tasks.examples import BadRow, TextExample
from input_pipeline.tasks.files import Source
from input_pipeline.tasks.held_out import held_out
from input_pipeline.tasks.tasks import TASKS, Columns
from tests.folders import FolderTest

LABELS = ("neg", "pos")
TEXTS = TASKS["text_classes"].with_labels(LABELS, Columns(("text",), (), ("label",), ("id",)))
SPANS = TASKS["tag_spans"].with_labels(
    ("O", "B-X", "I-X"), Columns(("1",), (), ("-1",), ("id",), ("doc",))
)


def write_table(path, form: str, columns: dict, **names: list[str]) -> None:
    """Write Parquet, an Arrow file, or a stream, with classes of `names` as `datasets` does."""
    label = {key: {"names": one, "_type": "ClassLabel"} for key, one in names.items()}
    features = {key: {"feature": one} if isinstance(columns[key][0], list) else one
                for key, one in label.items()}  # fmt: skip
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    if form == "parquet":
        parquet.write_table(table, path)
        return
    make = ipc.new_file if form == "file" else ipc.new_stream
    with make(path, table.schema) as writer:
        writer.write_table(table)


class TablesTest(FolderTest):
    @parameterized.parameters("parquet", "file", "stream")
    def test_parquet_and_arrow_are_what_csv_is(self, form):
        path = self.folder / "a.csv"
        path.write_text("id,text,label,lang\n7,a,pos,sw\n8,b,neg,de\n")
        expected = list(delimited.read_texts(path, TEXTS))
        self.assertEqual([one for one, _ in expected], ["sw", "de"])
        self.assertEqual([one.id for _, one in expected], ["7", "8"])
        columns = {"id": [7, 8], "text": ["a", "b"], "label": [1, 0], "lang": ["sw", "de"]}
        write_table(path, form, columns, label=[*LABELS])
        self.assertEqual(list(delimited.read_texts(path, TEXTS)), expected)
        unlabelled = delimited.read_unlabelled(path, TEXTS)
        self.assertEqual([one.cells["label"] for one in unlabelled], ["pos", "neg"])
        path.write_bytes(path.read_bytes()[:-20])
        if form != "stream":
            with self.assertRaisesRegex(ValueError, "a.csv: cannot be read .*; it may be cut off"):
                list(delimited.read_texts(path, TEXTS))

    def test_lists_of_words_and_tags(self):
        path, words = self.folder / "a.jsonl", [["Abe", "Lee"], ["the cat"]]
        tags = [[1, 2], [0]]
        rows = [{"tokens": w, "ner_tags": t, "doc": 3, "locale": "de"}
                for w, t in zip(words, tags, strict=True)]  # fmt: skip
        numbers = "\n".join(map(json.dumps, [{**one, "id": i} for i, one in enumerate(rows)]))
        path.write_text(numbers)
        found = list(tagged.read_tagged(path, SPANS))
        self.assertEqual([(lang, one.words, one.tags, one.id, one.group) for lang, one in found],
                         [("de", ("Abe", "Lee"), (1, 2), "0", "3"),
                          ("de", ("the cat",), (0,), "1", "3")])  # fmt: skip
        path.write_text(numbers.replace("1, 2", '"B-X", "I-X"').replace("[0]", '["O"]'))
        self.assertEqual(list(tagged.read_tagged(path, SPANS)), found)
        self.assertEqual([one.words for one in tagged.read_untagged(path, SPANS)],
                         [("Abe", "Lee"), ("the cat",)])  # fmt: skip
        columns = {"tokens": words, "ner_tags": tags, "locale": ["de"] * 2, "id": [0, 1]}
        write_table(path, "parquet", columns, ner_tags=["O", "B-X", "I-X"])
        self.assertEqual(list(tagged.read_tagged(path, SPANS)), found)
        path.write_text('{"tokens": ["a"], "tags": ["O", "O"]}\n{"tokens": "a"}\n')
        for (_, one), message in zip(tagged.read_tagged(path, SPANS),
                                     ("line 1: 1 words, 2 tags", "line 2: .* a list of words"),
                                     strict=True):  # fmt: skip
            self.assertRegex(one.error, message)


class BadRowsTest(FolderTest):
    ROWS = 'id,text,label\n1,a,pos\n2,,pos\n3,b\n4,"c "c" c",neg\n5,d,maybe\n6,e,neg\n,,\n'

    def load(self, limit: int, text: str = ROWS) -> tuple[list, dict]:
        (self.folder / "a.csv").write_text(text)
        bad: dict[str, BadRow] = {}
        readers = loading.Readers(delimited.read_texts, None, None)
        source = Source(TEXTS, self.folder, ("a.csv",), max_bad_rows=limit)
        return loading.load_examples(readers, source, bad), bad

    def test_they_are_counted_or_left_out(self):
        for limit in (0, 3):
            message = "line 3: column 'text' is .*; 4 rows are bad, .*line 4: 2 col.*max_bad_rows=4"
            with self.assertRaisesRegex(ValueError, message):
                self.load(limit)
        with self.assert_told("4 bad rows are left out, the first one: .*line 3"):
            found, bad = self.load(4)
        self.assertEqual([one.text for one in found], ["a", "e"])
        self.assertEqual([one.cells for one in bad.values()],
                         [{"id": "2", "text": "", "label": "pos"}, {"line": "3,b"},
                          {"line": '4,"c "c" c",neg'},
                          {"id": "5", "text": "d", "label": "maybe"}])  # fmt: skip
        self.assertRegex([*bad][-1], "line 6: no label 'maybe'")
        objects = [{"id": 1, "text": "a", "label": "pos"}, {"id": 2, "text": "a"}]
        lines = "\n".join(map(json.dumps, objects)) + '\n{"id": \n[1]\n'
        self.assertLen(self.load(3, lines)[1], 3)
        with self.assertRaisesRegex(ValueError, "not CSV .*unexpected end"):  # it ends nowhere
            self.load(9, 'id,text,label\n1,a,pos\n2,"b,pos\n3,c,neg\n')

    def test_a_sentence_with_a_bad_line(self):
        path = self.folder / "a.conll"
        path.write_text("a O\nb B-X x\n\nc B-X\n\nd B-Y\n")
        (_, one), (_, good), (_, two) = tagged.read_tagged(path, SPANS)
        self.assertRegex(one.error, "line 2: 3 columns, expected 2")
        self.assertEqual(good.words, ("c",))
        self.assertRegex(two.error, "line 6: no label 'B-Y'")

    def test_a_row_to_predict_on_has_one_line_whatever_is_in_it(self):
        (self.folder / "a.csv").write_text(self.ROWS.replace("5,d", '5,"d\td\nd"'))
        found = delimited.read_unlabelled(self.folder / "a.csv", TEXTS)
        self.assertEqual([one.id for one in found], ["1", "2", "4", "5", "5", "6", "9"])
        self.assertEqual([isinstance(one, BadRow) for one in found],
                         [False, True, True, True, False, False, True])  # fmt: skip
        self.assertEqual(found[4].text, "d\td\nd")
        self.assertEqual(found[-2].cells, {"id": "6", "text": "e", "label": "neg"})


class HeldOutTest(absltest.TestCase):
    def examples(self, seed: int, count: int = 500) -> list[TextExample]:
        """A label in five rare, another in one of a hundred."""
        rng = np.random.default_rng(seed)
        labels = rng.choice(3, count, p=[0.79, 0.2, 0.01])
        labels[:5] = 2
        return [TextExample(str(i), f"{seed} {i}", None, int(n)) for i, n in enumerate(labels)]

    def out(self, examples: dict, share: float = 0.1, selecting=None) -> dict[str, list]:
        found = held_out(examples, lambda one: [one.label], share, selecting or [*examples])
        return {one: [example for example, is_out in zip(some, found[one], strict=True) if is_out]
                for one, some in examples.items()}  # fmt: skip

    def test_each_label_of_each_language_has_its_share(self):
        examples = {"en": self.examples(0), "sw": self.examples(1, 60)}
        for language, out in self.out(examples).items():
            whole = collections.Counter(one.label for one in examples[language])
            found = collections.Counter(one.label for one in out)
            self.assertEqual(found, {label: max(round(0.1 * n), 1) for label, n in whole.items()})

    def test_it_depends_on_texts_alone_and_little_on_other_examples(self):
        examples = self.examples(0)
        out = {one.text for one in self.out({"en": examples})["en"]}
        again = [dataclasses.replace(one, id="") for one in reversed(examples)]
        self.assertEqual({one.text for one in self.out({"en": again})["en"]}, out)
        fewer = {one.text for one in self.out({"en": examples[:450]})["en"]}
        self.assertGreater(len(fewer & out), 0.8 * len(fewer))

    def test_groups_and_texts_are_on_one_side_in_all_languages(self):
        english = [
            dataclasses.replace(one, group=f"g{int(one.id) // 3}") for one in self.examples(0)
        ]
        german = [dataclasses.replace(one, text="de " + one.text) for one in english]
        same = [dataclasses.replace(one, group="") for one in english]
        for selecting in (["en", "de", "sw"], ["en"]):
            examples = {"en": english, "de": german, "sw": same}
            found = held_out(examples, lambda one: [one.label], 0.1, selecting)
            self.assertEqual(found["de"], found["en"])
            self.assertEqual(found["sw"], found["en"])
            sides = collections.defaultdict(set)
            for one, is_out in zip(english, found["en"], strict=True):
                sides[one.group].add(is_out)
            self.assertTrue(all(len(one) == 1 for one in sides.values()))
            self.assertBetween(sum(found["en"]), 40, 90)

    def test_large_groups_are_a_last_resort(self):
        examples = [dataclasses.replace(one, group="large" if int(one.id) < 200 else "", label=0)
                    for one in self.examples(0)]  # fmt: skip
        for seed in range(8):  # by their hashes the large group comes first for most
            some = [dataclasses.replace(one, text=f"{seed} {one.text}") for one in examples]
            self.assertLen(self.out({"en": some})["en"], 50)

    def test_rare_labels_come_first_of_examples_with_several(self):
        for seed in range(8):
            some = [TextExample(str(i), f"{seed} {i}", None, i) for i in range(20)]
            found = held_out({"en": some}, lambda one: {0, int(one.label < 2)}, 0.1, ["en"])["en"]
            self.assertEqual((sum(found), sum(found[:2])), (2, 1))

    def test_what_cannot_be_divided(self):
        one, two, three = (TextExample(str(i), f"t{i}", None, i // 2) for i in range(3))
        self.assertLen(self.out({"en": [one, two, three]})["en"], 1)  # the label of one text stays
        for some, share, message in (
            (
                [one],
                0.5,
                "en: there is no development file, and none of 1 training examples can be held",
            ),
            ([one] * 9, 0.5, "have one text or group"),
            ([one, two], 0.0, "validation_share is 0.0, must be between 0 and 1"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.out({"en": some}, share)
