"""Chunks of tags, counted by hand."""

from absl.testing import absltest, parameterized

from xlm.evaluation.metrics import tagging


def entities(gold: str, predicted: str) -> dict[str, float]:
    return tagging.entity_scores(*_read(gold, predicted))


def parts_of_speech(gold: str, predicted: str) -> dict[str, float]:
    return tagging.part_of_speech_scores(*_read(gold, predicted))


def _read(*texts: str) -> list[list[list[str]]]:
    return [[sentence.split() for sentence in text.split("|")] for text in texts]


class EntityTest(parameterized.TestCase):
    @parameterized.parameters(
        # right, gold, predicted: entities by hand.
        ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 2, 2, 2),
        # One end off: not right.
        ("B-PER I-PER O B-LOC", "B-PER O O B-LOC", 1, 2, 2),
        # The type off: not right.
        ("B-PER I-PER O B-LOC", "B-ORG I-ORG O B-LOC", 1, 2, 2),
        # An I- after O starts an entity: the lenient reading of an invalid sequence.
        ("B-PER I-PER O B-LOC", "O I-PER O I-LOC", 1, 2, 2),
        ("B-PER I-PER O O", "I-PER I-PER O O", 1, 1, 1),
        # So does an I- of another type, which ends the one before: PER, LOC against PER LOC.
        ("B-PER B-LOC I-LOC", "B-PER I-LOC I-LOC", 2, 2, 2),
        ("B-PER I-PER I-PER", "B-PER I-LOC I-PER", 0, 1, 3),
        # B- after I- of the same type starts anew: two entities against one.
        ("B-PER I-PER B-PER", "B-PER I-PER I-PER", 0, 2, 1),
        # BILOU and BMES are BIOES with other letters.
        ("U-PER U-PER O B-LOC L-LOC", "U-PER U-PER O B-LOC L-LOC", 3, 3, 3),
        ("B-LOC M-LOC E-LOC S-LOC", "B-LOC M-LOC E-LOC O", 1, 2, 1),
        # An entity ends with its sentence.
        ("B-PER | I-PER O", "B-PER | B-PER O", 2, 2, 2),
        ("O O | O", "B-PER O | O", 0, 0, 1),
        ("O B-LOC | O", "O O | O", 0, 1, 0),
        ("O O", "O O", 0, 0, 0),
    )
    def test_by_hand(self, gold, predicted, right, in_gold, in_predicted):
        found = entities(gold, predicted)
        self.assertAlmostEqual(found["precision"], right / max(in_predicted, 1))
        self.assertAlmostEqual(found["recall"], right / max(in_gold, 1))
        self.assertAlmostEqual(found["f1"], 2 * right / max(in_gold + in_predicted, 1))

    def test_entities_of_all_sentences_and_types_count_alike(self):
        # 4 LOC of which 1 is found, 1 PER that is found; nothing else is predicted. The mean of the
        # types' recalls would be (1/4 + 1) / 2.
        gold = "B-LOC O B-LOC | B-LOC B-LOC | B-PER"
        found = entities(gold, "B-LOC O O | O O | B-PER")
        self.assertAlmostEqual(found["recall"], 2 / 5)
        self.assertEqual(found["precision"], 1)

    def test_tags_without_types_are_those_of_one_type(self):
        gold, found = [["B", "I", "O", "S", "B", "M", "E"]], [["B", "I", "I", "U", "B", "I", "L"]]
        typed = ([[tag + "-X" * (tag != "O") for tag in side[0]]] for side in (gold, found))
        scores = tagging.entity_scores(gold, found)
        self.assertEqual(scores, tagging.entity_scores(*typed))
        self.assertAlmostEqual(scores["f1"], 2 / 3)

    def test_sentences_that_do_not_fit_are_told(self):
        with self.assertRaisesRegex(ValueError, "1 tagged sentences for 2"):
            entities("O | O", "O")
        with self.assertRaisesRegex(ValueError, "sentence 1: 1 predicted tags for 2 words"):
            entities("O | O O", "O | O")
        with self.assertRaisesRegex(ValueError, "at least one"):
            tagging.entity_scores([], [])


class PartOfSpeechTest(parameterized.TestCase):
    @parameterized.parameters(
        # A run of a tag is one chunk: DET, NOUN NOUN, VERB.
        ("DET NOUN NOUN VERB", "DET NOUN NOUN VERB", 3, 3, 3, 4 / 4),
        # One wrong word of the run loses the run: DET, NOUN, ADJ, VERB against 3 chunks.
        ("DET NOUN NOUN VERB", "DET NOUN ADJ VERB", 2, 3, 4, 3 / 4),
        # Runs that grow together are wrong on both sides.
        ("NOUN PROPN VERB", "NOUN NOUN VERB", 1, 3, 2, 2 / 3),
        # Each SCONJ and each SYM is a chunk: 2 of 2 gold, 1 of them found.
        ("SCONJ SCONJ", "SCONJ ADP", 1, 2, 2, 1 / 2),
        ("SYM SYM NUM NUM", "SYM SYM NUM X", 2, 3, 4, 3 / 4),
        ("PUNCT PUNCT", "PUNCT SYM", 0, 1, 2, 1 / 2),
        # Tags that differ in the first letter only are different tags.
        ("CCONJ NOUN", "SCONJ NOUN", 1, 2, 2, 1 / 2),
        ("PRON X INTJ", "PRON X INTJ", 3, 3, 3, 1),
        # Runs end with their sentence.
        ("NOUN | NOUN", "NOUN | NOUN", 2, 2, 2, 1),
    )
    def test_by_hand(self, gold, predicted, right, in_gold, in_predicted, accuracy):
        found = parts_of_speech(gold, predicted)
        self.assertAlmostEqual(found["precision"], right / in_predicted)
        self.assertAlmostEqual(found["recall"], right / in_gold)
        self.assertAlmostEqual(found["f1"], 2 * right / (in_gold + in_predicted))
        self.assertAlmostEqual(found["accuracy"], accuracy)


class WordsTest(absltest.TestCase):
    def test_each_word_counts(self):
        found = tagging.word_scores([["A", "B"], ["A", "A"]], [["A", "A"], ["A", "C"]])
        # F1 of A 2/3; of B and C 0.
        self.assertAlmostEqual(found["macro_f1"], (2 / 3) / 3)
        self.assertAlmostEqual(found["accuracy"], 0.5)
        self.assertEqual(set(found), {"macro_f1", "accuracy"})
