"""Sentences of test sets are found however they are written, and left out."""

import lzma

from absl.testing import parameterized

from input_pipeline.exclusion import Exclusion, letters, sentences_of
from tests.folders import FolderTest


class ExclusionTest(FolderTest):
    def setUp(self):
        super().setUp()
        with lzma.open(self.folder / "de-en.tsv.xz", "wt", encoding="utf-8") as file:
            file.write("Wo bist du?\tWhere are u?\n\n!\t\n")
        (self.folder / "zh.txt").write_text("你在哪里？\n", encoding="utf-8")
        tagged = "Trả lời\tVERB\n,\tPUNCT\nông\tNOUN\n\n\nRom\tB-LOC\n.\tO\n"
        (self.folder / "vi.tsv").write_text(tagged, encoding="utf-8")
        # Cells that are like tags in most lines only.
        (self.folder / "en-de.tsv").write_text("I see\tOK\nI go\tIch gehe\n", encoding="utf-8")
        self.exclusion = Exclusion(sorted(self.folder.iterdir()))

    @parameterized.parameters(
        "Wo bist du?", "wo bist du", " WO  BIST DU !", "你在哪里", "Ｗｈｅｒｅ are u?",
        "Trả lời, ông!", "Rom", "I see", "OK", "ich gehe",
    )  # fmt: skip
    def test_found(self, sentence):
        self.assertIn(sentence, self.exclusion)

    @parameterized.parameters(
        "Wo bist?", "Wo bist du, Tom?", "", "?", "你在哪", "Where are ü?",
        "Trả lời", "ông", "Trả lời, ông Rom.", "NOUN", "I see OK",
    )  # fmt: skip
    def test_not_found(self, sentence):
        self.assertNotIn(sentence, self.exclusion)

    @parameterized.parameters(
        ("B-WORK_OF_ART", "I-WORK_OF_ART"), ("B-T047", "O"), ("B-creative-work", "O"),
        ("PRP$", "NN|SYM"), ("WP$", "``"), ("-LRB-", ","), ("I-geo", "_"), ("$,", "B-NP.2"),
    )  # fmt: skip
    def test_labels_of_tagged_words(self, one, two):
        path = self.folder / "tagged.tsv"
        path.write_text(f"The\tO\nlast\t{one}\nday\t{two}\n", encoding="utf-8")
        self.assertEqual(list(sentences_of(path)), ["Thelastday"])

    def test_odd_lines_of_tagged_words(self):
        path = self.folder / "tagged.tsv"
        lines = [
            "-DOCSTART-", "", "The\tO", "last day\tnoun", "", "A\tO", "B\tO", "C", "\t", "D\tO",
        ]  # fmt: skip
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.assertEqual(list(sentences_of(path)), ["-DOCSTART-", "Thelast day", "ABC", "D"])

    @parameterized.parameters("0", "cat", "Ich", "ÄÖ", "是", "。", "...", "I see")
    def test_cells_that_are_no_labels(self, cell):
        path = self.folder / "cells.tsv"
        path.write_text(f"I\tOK\nsee\t{cell}\n", encoding="utf-8")
        self.assertEqual(list(sentences_of(path)), ["I", "OK", "see", cell])

    def test_json_lines(self):
        path = self.folder / "en.jsonl"
        path.write_text('{"text": "One.\\nTwo\\tcells."}\n\n{"text": "3"}\n', encoding="utf-8")
        self.assertEqual(list(sentences_of(path)), ["One.", "Two\tcells.", "3"])

    @parameterized.parameters(("कि", "क"), ("Ä", "A"), ("3.5", "36"))
    def test_letters_keep_marks_and_digits(self, one, other):
        self.assertNotEqual(letters(one), letters(other))

    def test_blocks_lose_sentences(self):
        blocks = [["Wo bist du?", "Hier."], ["where are u"], ["Dort.", "Dort."]]
        kept = [self.exclusion.of_block(block) for block in blocks]
        self.assertEqual(kept, [["Hier."], [], ["Dort.", "Dort."]])
        self.assertEqual(self.exclusion.tally(), (5, 3, 0))
        self.assertEqual(self.exclusion.tally(), (0, 0, 0))

    def test_rows_go_whole_whichever_side_is_found(self):
        rows = [("Tu es où ?", "Wo bist du?"), ("Ici.", "Hier."), ("Where are u?", "")]
        self.assertEqual(self.exclusion.of_rows(rows, is_heldout=False), [("Ici.", "Hier.")])
