"""Windows of a context, and the way from tokens back to its characters."""

import unicodedata

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline.tasks.examples import Answer, QuestionExample
from input_pipeline.tasks.features import question_features, token_offsets, token_span
from input_pipeline.tokenization import special_ids
from vocap import merge

CONTEXTS = {
    "spaces": "  Two   spaces\tand\u3000one \n end. ",
    "german": "Königin Ännchen (geb. 1840) aß 1,5 kg – „süß“.",
    "decomposed": "Ko\u0308nigin A\u0308nnchen, cafe\u0301 nin\u0303o.",
    "full_width": "ＡＢＣ１２３，ｗｉｄｅ　ｔｅｘｔ！",
    "chinese": "中文，《紅樓夢》共120回。 北京　上海",
    "japanese": "ｶﾞﾗｽの中、㍿は㌔で。",
    "korean": "한국어 각 문장.",
    "thai": "น้ำท่วมที่กรุงเทพฯ ทำ 5 วัน",
    "hindi": "क्षेत्र में ज़मीन है।",
    "telugu": "ఎల్\u200cబీ నగర్\u200c , x\u200c",
    "arabic": "قال ﷺ إلى سینا\u200e; ﻻ",
    "ligatures": "ﬁne oﬃce ½ cup ㎞ x² №5 ™ … a½",
    "other_planes": "🐻 𐍈𐍈 👩\u200d👩\u200d👧 x",
    "controls": "\ufeffa\x01b \x02 c\u00ad\u200bd\u2028e\x85f \u00a0g",
    "accents_alone": "´a ¨ \u0301b",
}
QUESTION = "Wer?"


def processor() -> spm.SentencePieceProcessor:
    """A tokenizer that knows most characters, some words, and a run over a space."""
    letters = set()
    for text in CONTEXTS.values():
        letters |= set(unicodedata.normalize("NFKC", text)) - {" ", "´", "™", "回", "𐍈"}
    letters = {c for c in letters if c.isprintable() and not c.isspace()}
    pieces = ["▁", *sorted(letters | set("abcdefghij")), "▁fine", "▁Kö", "中文", "fi", "한국", "▁a"]
    pieces += ["▁สามัญ", "km", "น้ํา", "ab", "▁b"]
    scores = np.full(len(pieces), -5.0)  # the fewer pieces, the better
    return spm.SentencePieceProcessor(model_proto=merge.write_model(pieces, scores))


PROCESSOR = processor()
SPECIAL = special_ids(PROCESSOR)


def offsets_of(text: str) -> tuple[list[str], np.ndarray]:
    found = PROCESSOR.encode(text, return_type="offset_mapping")
    return found["pieces"], token_offsets(text, found["pieces"], found["offsets"])


def normalized(text: str) -> str:
    return PROCESSOR.normalize(text).replace("▁", "")


class TokenOffsetsTest(parameterized.TestCase):
    @parameterized.parameters(*CONTEXTS.values())
    def test_a_token_says_what_its_characters_say(self, text):
        pieces, offsets = offsets_of(text)
        for place, (piece, (start, end)) in enumerate(zip(pieces, offsets, strict=True)):
            surface = normalized(text[start:end])
            if surface == piece.strip("▁"):
                continue
            # Then it is a part of what one character became, with others of the same character.
            same = (offsets[:, 0] < end) & (offsets[:, 1] > start)
            self.assertGreater(same.sum(), 1, (piece, text[start:end]))
            together = "".join(pieces[i] for i in np.flatnonzero(same)).replace("▁", "")
            self.assertIn(piece.strip("▁"), together)
            self.assertEqual(
                normalized(text[offsets[same, 0].min() : offsets[same, 1].max()]), together, place
            )

    @parameterized.parameters(*CONTEXTS.values())
    def test_every_answer_comes_back(self, text):
        _, offsets = offsets_of(text)
        for start in range(len(text)):
            for end in range(start + 1, len(text) + 1):
                span = token_span(offsets, Answer(text[start:end], start))
                if not normalized(text[start:end]):
                    continue
                first, last = offsets[span[0], 0], offsets[span[1], 1]
                # But for what is a space or nothing to the tokenizer.
                self.assertEqual(normalized(text[start : max(first, start)]), "")
                self.assertEqual(normalized(text[min(last, end) : end]), "")
                for inner in offsets[span[0] : span[1] + 1]:
                    self.assertTrue(inner[0] == inner[1] or (inner[1] > start and inner[0] < end))

    def test_a_lone_space_is_no_token_of_an_answer(self):
        pieces, offsets = offsets_of("中 文")
        self.assertEqual(pieces, ["▁", "中", "▁", "文"])
        np.testing.assert_array_equal(offsets, [[0, 0], [0, 1], [2, 2], [2, 3]])
        self.assertIsNone(token_span(offsets, Answer(" ", 1)))


def windows_by_hand(length: int, room: int, stride: int) -> list[range]:
    """The rule of run_squad.py, step by step."""
    spans, start = [], 0
    while True:
        size = min(length - start, room)
        spans.append(range(start, start + size))
        if start + size >= length:
            return spans
        start += min(size, stride)


class WindowsTest(parameterized.TestCase):
    def features(self, *examples: tuple, max_length=24, max_query_length=6, stride=5):
        found = [
            QuestionExample(str(i), question, context, tuple(Answer(*one) for one in answers))
            for i, (question, context, *answers) in enumerate(examples)
        ]
        return question_features(found, PROCESSOR, SPECIAL, max_length, max_query_length, stride)

    @parameterized.parameters(
        (0, 5, 24), (1, 1, 20), (16, 5, 24), (17, 16, 24), (18, 100, 24), (40, 1, 20), (101, 5, 24),
        (101, 16, 20), (310, 200, 310),
    )  # fmt: skip
    def test_windows_are_those_of_the_rule(self, num_letters, stride, max_length):
        context = ("acegi" * 62)[:num_letters]
        question, whole = PROCESSOR.encode(QUESTION), PROCESSOR.encode(context)
        _, offsets = offsets_of(context)
        head = [SPECIAL.bos, *question, SPECIAL.eos, SPECIAL.eos]
        spans = windows_by_hand(len(whole), max_length - len(head) - 1, stride)
        found = self.features((QUESTION, context), max_length=max_length, stride=stride)
        self.assertLen(found, len(spans))
        for feature, span in zip(found, spans, strict=True):
            expected = [*head, *whole[span.start : span.stop], SPECIAL.eos]
            np.testing.assert_array_equal(feature.tokens, expected)
            np.testing.assert_array_equal(
                feature.offsets[len(head) : -1], offsets[span.start : span.stop]
            )
            self.assertFalse(feature.offsets[: len(head)].any())
            for token in span:
                # Of the windows that hold it, is this the first one with the most context?
                scores = [
                    min(token - s.start, s.stop - 1 - token) + 0.01 * len(s) if token in s else -1
                    for s in spans
                ]
                best = spans[int(np.argmax(scores))]
                place = len(head) + token - span.start
                self.assertEqual(feature.has_max_context[place], span == best)

    def test_a_long_question_is_cut(self):
        feature = self.features(("a" * 30, "bc"))[0]
        expected = PROCESSOR.encode("a" * 30)[:6]
        np.testing.assert_array_equal(feature.tokens[1:7], expected)
        np.testing.assert_array_equal(feature.tokens[7:9], [SPECIAL.eos] * 2)

    @parameterized.parameters(*(name for name, text in CONTEXTS.items() if len(text) > 12))
    def test_the_answer_is_in_the_windows_that_hold_it(self, name):
        text = CONTEXTS[name].strip()
        words = text.split()
        for word in words:
            start = text.index(word)
            if not normalized(word):
                continue
            answers = (word, start), ("never the second one", 0)
            found = self.features((QUESTION, text, *answers))
            _, offsets = offsets_of(text)
            span = token_span(offsets, Answer(word, start))
            first, last = offsets[list(span)]
            room = 24 - len(PROCESSOR.encode(QUESTION)) - 4
            windows = windows_by_hand(len(offsets), room, 5)
            for feature, window in zip(found, windows, strict=True):
                is_there = span[0] in window and span[1] in window
                self.assertEqual(feature.start > 0, is_there)
                self.assertEqual(feature.end > 0, is_there)
                if is_there:
                    self.assertEqual(feature.offsets[feature.start, 0], first[0])
                    self.assertEqual(feature.offsets[feature.end, 1], last[1])
                    self.assertTrue(feature.answerable[[feature.start, feature.end]].all())

    def test_arrays(self):
        feature = self.features(("a", "中 ab c", ("ab", 2)), ("a", "b"))[0]
        arrays = feature.arrays(24, SPECIAL.pad)
        # <s> ▁a </s> </s> ▁ 中 ▁ ab ▁ c </s>
        pieces = [PROCESSOR.id_to_piece(int(i)) for i in feature.tokens]
        self.assertEqual(pieces[4:10], ["▁", "中", "▁", "ab", "▁", "c"])
        np.testing.assert_array_equal(np.flatnonzero(arrays["answerable"]), [0, 5, 7, 9])
        self.assertEqual((int(arrays["starts"]), int(arrays["ends"])), (7, 7))
        self.assertEqual(arrays["starts"].dtype, np.int32)
        self.assertEqual(arrays["answerable"].dtype, bool)

    @parameterized.parameters(
        (24, 20, 5, "max_query_length is 20 of max_length 24, which leaves no room"),
        (7, 2, 5, "max_length is 7"),
    )  # fmt: skip
    def test_lengths_that_cannot_be(self, max_length, query, stride, message):
        sizes = {"max_length": max_length, "max_query_length": query, "stride": stride}
        with self.assertRaisesRegex(ValueError, message):
            self.features(("a", "b"), **sizes)
