"""Answers normalised and scored by hand in each language, and spans against a plain search."""

import itertools
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks.tasks import TASKS
from xlm.evaluation.metrics import questions


def scores(task: str, language: str, predicted: str, *gold: str) -> tuple[float, float]:
    """F1 and exact match of one answer."""
    normalize = questions.normalizer(TASKS[task].normalizer, language)
    found = questions.answer_scores({"q": gold}, {"q": predicted}, normalize)
    return found["f1"], found["exact_match"]


class NormalizeTest(parameterized.TestCase):
    @parameterized.parameters(
        ("The  Cat,\tsat!", "cat sat"),
        ("theatre, an anthem", "theatre anthem"),  # articles are whole words
        ("U.S.A.", "usa"),
        ("the-cat", "thecat"),  # punctuation goes first, and then there is no article
        ("Die Stadt Köln", "die stadt köln"),  # English articles only
        ("¿Qué?", "¿qué"),  # ASCII punctuation only
        ("«Мир»", "«мир»"),
        ("北京，中国。", "北京，中国。"),
        ("กรุงเทพฯ", "กรุงเทพฯ"),
        ("राम।", "राम।"),
        ("a", ""),
    )
    def test_squad(self, text, expected):
        self.assertEqual(questions.normalize_squad(text), expected)

    @parameterized.parameters(
        ("en", "The “Cat” — an animal!", "cat animal"),
        ("de", "Die Straße des Königs, eines Helden", "straße königs helden"),
        ("de", "dieser Hund", "dieser hund"),
        ("es", "¡Los Niños de la Calle!", "niños de calle"),
        ("es", "ella", "ella"),
        ("vi", "Những con mèo của tôi", "con mèo tôi"),
        ("ar", "الكتاب في البيت", "كتاب في بيت"),
        # The script's pattern takes the letters of the article out of any word.
        ("ar", "قال الرجل؟", "ق رجل"),
        ("hi", "भारत की राजधानी।", "भारत की राजधानी"),
        ("hi", "the राम", "the राम"),
        ("zh", "北京，中国。", "北 京 中 国"),
        ("zh", "在2008年的iPhone 3G", "在 2008 年 的 iphone 3g"),
        ("zh", "二〇〇八年", "二 〇〇 八 年"),  # this zero is not in the script's range of Han
        ("zh", "the 的", "the 的"),
    )
    def test_mlqa(self, language, text, expected):
        self.assertEqual(questions.normalize_mlqa(text, language), expected)

    @parameterized.parameters(
        ("en", "a an the"),
        ("es", "un una unos unas el la los las"),
        ("de", "ein eine einen einem eines einer der die das den dem des"),
        ("vi", "của là cái chiếc những"),
    )
    def test_nothing_is_left_of_articles(self, language, text):
        self.assertEqual(questions.normalize_mlqa(text, language), "")
        self.assertEqual(questions.normalize_mlqa(text, "hi"), text)
        with self.assertRaisesRegex(ValueError, "no normalisation for 'ru'; .* en, es, de, vi"):
            questions.normalizer("mlqa", "ru")


class AnswerTest(parameterized.TestCase):
    @parameterized.parameters(
        # Of two words left, "big" and "cat", one is right: 2 * 1 / (2 + 1).
        ("squad", "en", "the big cat", "cat", 2 / 3, 0),
        ("squad", "en", "The Cat.", "cat", 1, 1),
        # One of three right, of two right ones; a word counts as often as it occurs.
        ("squad", "en", "x y y", "y", 2 / 4, 0),
        ("squad", "en", "y y", "x y y", 4 / 5, 0),
        ("squad", "en", "dog", "cat", 0, 0),
        # "der" goes by MLQA's rule, stays by SQuAD's: 2 * 1 / (2 + 1).
        ("mlqa", "de", "der Hund", "Hund", 1, 1),
        ("xquad", "de", "der Hund", "Hund", 2 / 3, 0),
        # The Arabic article is a prefix: to SQuAD these are two different words.
        ("xquad", "ar", "الكتاب", "كتاب", 0, 0),
        ("tydiqa", "ar", "في الكتاب", "الكتاب", 2 / 3, 0),
        # Three characters, two of them right, of two: 2 * 2 / (3 + 2). To SQuAD one word each.
        ("mlqa", "zh", "北京市", "北京", 4 / 5, 0),
        ("xquad", "zh", "北京市", "北京", 0, 0),
        # Nothing is left on either side: the same text, without a common word.
        ("squad", "en", "the", "a", 0, 1),
    )
    def test_by_hand(self, task, language, predicted, gold, f1, exact_match):
        found = scores(task, language, predicted, gold)
        self.assertAlmostEqual(found[0], f1)
        self.assertEqual(found[1], exact_match)

    def test_the_best_gold_answer_counts(self):
        self.assertEqual(scores("squad", "en", "Paris", "Paris, France", "Paris"), (1, 1))
        self.assertAlmostEqual(scores("squad", "en", "Paris", "in Paris", "Rome")[0], 2 / 3)

    def test_means_over_questions_and_unanswered_ones_are_wrong(self):
        gold = {"1": ["cat"], "2": ["big dog"], "3": ["bird"], "4": ["cow"]}
        predictions = {"1": "cat", "2": "dog", "3": "cow"}
        found = questions.answer_scores(gold, predictions, questions.normalize_squad)
        self.assertAlmostEqual(found["f1"], (1 + 2 / 3 + 0 + 0) / 4)
        self.assertAlmostEqual(found["exact_match"], 1 / 4)

    def test_wrong_input_is_told(self):
        score = questions.answer_scores
        with self.assertRaisesRegex(ValueError, "prediction for q9, but no such question"):
            score({"q1": ["x"]}, {"q1": "x", "q9": "y"}, questions.normalize_squad)
        with self.assertRaisesRegex(ValueError, "question q1 has no gold answer; .* squad2"):
            score({"q1": []}, {"q1": "x"}, questions.normalize_squad)
        with self.assertRaisesRegex(ValueError, "no questions"):
            score({}, {}, questions.normalize_squad)


class Squad2Test(parameterized.TestCase):
    @parameterized.parameters(
        ((), "", 1, 1),
        ((), "cat", 0, 0),
        ((), "the", 1, 1),  # nothing is left of it
        (("cat",), "", 0, 0),
        (("cat", "dog"), "a dog", 1, 1),
        (("cat",), "big cat", 2 / 3, 0),
        (("the",), "", 1, 1),  # a gold answer of which nothing is left is none
        (("the", "cat"), "", 0, 0),
    )
    def test_by_hand(self, gold, predicted, f1, exact_match):
        found = questions.squad2_scores({"q": gold}, {"q": predicted})
        self.assertAlmostEqual(found["f1"], f1)
        self.assertEqual(found["exact_match"], exact_match)

    def test_the_first_of_the_best_thresholds_is_taken(self):
        # Exactly right of four, from none answered to all: 1, 2, 3, 3, 2.
        gold = {"a": ["cat"], "b": ["cow"], "c": ["big dog"], "d": []}
        predictions = {"a": "cat", "b": "cow", "c": "dog", "d": "hen"}
        differences = {"a": -3.0, "b": -1.0, "c": 0.5, "d": 2.0}
        found = questions.best_null_threshold(gold, predictions, differences, "exact_match")
        self.assertEqual(found, (-1, 3 / 4))

    def test_equal_differences_have_one_threshold(self):
        # Between the two lies a perfect score that no threshold reaches.
        gold, predictions = {"a": ["cat"], "b": []}, {"a": "cat", "b": "cow"}
        threshold, score = questions.best_null_threshold(gold, predictions, {"a": 0.0, "b": 0.0})
        self.assertLess(threshold, 0)
        self.assertEqual(score, 1 / 2)
        with self.assertRaisesRegex(ValueError, "question b lacks a prediction or a null"):
            questions.best_null_threshold({"a": [], "b": []}, {"a": "", "b": ""}, {"a": 0.0})
        # Unanswered questions are wrong.
        found = questions.squad2_scores({"1": [], "2": ["x"], "3": []}, {"1": "", "2": "x"})
        self.assertAlmostEqual(found["f1"], 2 / 3)

    @parameterized.parameters(*itertools.product(("f1", "exact_match"), range(8)))
    def test_the_threshold_keeps_its_word_and_none_is_better(self, metric, seed):
        rng = np.random.default_rng(seed)
        texts = ["cat", "big cat", "dog", "", "the"]
        ids = [str(i) for i in range(12)]
        gold = {i: rng.choice(texts, rng.integers(0, 3)).tolist() for i in ids}
        predictions = {i: str(rng.choice(texts)) for i in ids}
        differences = {i: float(rng.integers(-4, 5)) for i in ids}

        def score_at(threshold):
            kept = questions.withhold(predictions, differences, threshold)
            return questions.squad2_scores(gold, kept)[metric]

        threshold, score = questions.best_null_threshold(gold, predictions, differences, metric)
        self.assertAlmostEqual(score_at(threshold), score)
        self.assertAlmostEqual(max(score_at(value) for value in np.arange(-6, 6)), score)


def random_windows(seed: int, count: int = 13, length: int = 12, questions: int = 5):
    """Logits, and features in which anything may be allowed."""
    rng = np.random.default_rng(seed)
    starts, ends = rng.normal(size=(2, count, length)).astype(np.float32)
    bounds = np.sort(rng.integers(0, 60, (count, length, 2)), axis=2)
    features = {
        "offsets": bounds,
        "answerable": rng.random((count, length)) < 0.7,
        "max_context": rng.random((count, length)) < 0.7,
        "examples": rng.permutation(np.arange(count) % questions),
        "contexts": ["".join(rng.choice(list("ab γд京กह "), 60)) for _ in range(questions)],
    }
    return starts, ends, features


def plain_search(start, end, features, n_best: int, max_length: int):
    """Texts and scores of all questions, by loops over the baselines' rule."""
    found = []
    for example, context in enumerate(features["contexts"]):
        spans, null = [], []
        for w in np.flatnonzero(features["examples"] == example):
            null.append(float(start[w, 0]) + float(end[w, 0]))
            inside = np.flatnonzero(features["answerable"][w])
            allowed = [s for s in inside if features["max_context"][w, s]]
            for s in sorted(allowed, key=lambda s, w=w: -start[w, s])[:n_best]:
                for e in sorted(inside, key=lambda e, w=w: -end[w, e])[:n_best]:
                    if s <= e < s + max_length:
                        first, last = features["offsets"][w, s, 0], features["offsets"][w, e, 1]
                        text = context[first:last]
                        spans.append((float(start[w, s]) + float(end[w, e]), text.strip()))
        best = []
        for score, text in sorted(spans, reverse=True):
            if text and text not in [t for _, t in best]:
                best.append((score, text))
        found.append((best, min(null)))
    return found


class BestAnswersTest(parameterized.TestCase):
    @parameterized.parameters(*itertools.product((2, 5, 12), (1, 3, 12), range(4)))
    def test_against_a_plain_search(self, n_best, max_length, seed):
        start, end, features = random_windows(seed)
        with mock.patch.object(questions, "_WINDOWS_AT_ONCE", 5):
            found = questions.best_answers(
                start, end, **features, n_best=n_best, max_answer_length=max_length
            )
        expected = plain_search(start, end, features, n_best, max_length)
        for one, (best, null), context in zip(found, expected, features["contexts"], strict=True):
            self.assertEqual(one.null_score, null)
            self.assertEqual([(span.score, span.text) for span in one.spans], best[:n_best])
            for span in one.spans:
                self.assertEqual(context[span.start : span.start + len(span.text)], span.text)

    def test_nothing_allowed_is_no_answer(self):
        start, end, features = random_windows(0)
        features["max_context"][:] = False
        for found in questions.best_answers(start, end, **features):
            self.assertEqual((found.best.text, found.spans), ("", ()))
            self.assertBetween(found.null_difference, 1e30, np.finfo(float).max)

    def test_wrong_input_is_told(self):
        start, end, features = random_windows(0)
        features["examples"] = np.zeros(13, int)
        with self.assertRaisesRegex(ValueError, "must number 5 questions"):
            questions.best_answers(start, end, **features)
