"""The choice of new pieces: merges against a slow reference, unigram growth by its relations."""

import collections
import itertools
import random
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized

from tests.vocap import texts
from vocap import extension, merge, model_proto, pretokens

OLD = texts.made_up(["ka", "ke", "ki", "ko", "ta", "te", "ti", "to", "na", "ne"], 300, "old")
NEW = {
    "a": texts.made_up(["za", "zo", "ka", "ki", "mu", "me", "lu"], 300, "a"),
    "b": texts.made_up(["\u0436\u0430", "\u0434\u0443", "\u043c\u0438", "\u0440\u043e"], 300, "b"),
}
SIZE = 60


def slow_merges(words, gains, size, may_be_new):
    """Count all pairs anew for each piece."""
    words, gains, chosen = dict(words), dict(gains), []
    while len(chosen) < size:
        pairs = collections.Counter()
        for word, weight in words.items():
            for left, right in itertools.pairwise(word):
                if may_be_new(left + right) and left + right not in chosen:
                    pairs[left + right] += weight
        found = [(-gain, 0, one) for one, gain in gains.items() if one not in chosen]
        found += [(-gain, 1, one) for one, gain in pairs.items()]
        best = min(found, default=(0, 1, ""))
        if not best[0]:
            break
        chosen.append(best[2])
        if best[1]:
            merged = collections.Counter()
            for word, weight in words.items():
                parts = list(word)
                for i in range(len(parts) - 1):
                    if i + 1 < len(parts) and parts[i] + parts[i + 1] == best[2]:
                        parts[i : i + 2] = [best[2]]
                merged[tuple(parts)] += weight
            words = merged
    return chosen


def unigram_model() -> tuple[bytes, dict[str, float]]:
    """An old model of some syllables of its text, which lacks the second language's script."""
    pieces = [
        *"aeikotn",
        pretokens.SPACE,
        "ka",
        "ke",
        "ta",
        "ti",
        "na",
        pretokens.SPACE + "ko",
        "kato",
    ]
    scores = merge.fit_scores(pieces, np.zeros(len(pieces)), pretokens.count_pretokens(OLD), 4)
    model = merge.write_model(pieces, scores)
    normal = model_proto.ModelProto.FromString(model).pieces[5:]
    return model, {piece.piece: piece.score for piece in normal}


class MergesTest(parameterized.TestCase):
    @parameterized.parameters(range(8))
    def test_it_agrees_with_the_slow_reference(self, seed):
        rng = random.Random(seed)
        words = {
            tuple(rng.choices(["a", "b", "c", "ab", "ca"], k=rng.randint(1, 9))): rng.randint(1, 9)
            for _ in range(40)
        }
        gains = {"c": 2.0 * sum(word.count("c") * n for word, n in words.items())}
        old = {"abc", "bb"}
        found = extension.merges(words, gains, 30, lambda one: one not in old)
        self.assertEqual(found, slow_merges(words, gains, 30, lambda one: one not in old))
        self.assertEmpty(old & set(found))

    def test_a_character_precedes_the_pairs_with_it(self):
        words = {("a", "\u0436"): 5.0, ("a", "b"): 9.0}
        found = extension.merges(words, {"\u0436": 5.0}, 3, lambda _: True)
        self.assertEqual(found, ["ab", "\u0436", "a\u0436"])


class UnigramTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model, cls.old = unigram_model()
        tables = {one: pretokens.count_pretokens(lines) for one, lines in NEW.items()}
        shares = dict.fromkeys(tables, 1.0)
        cls.pieces, cls.scores = extension.unigram(cls.old, tables, shares, SIZE, 1.0)

    def grown(self, pieces, scores) -> spm.SentencePieceProcessor:
        proto = model_proto.ModelProto.FromString(self.model)
        for piece, score in zip(pieces, scores.tolist(), strict=True):
            proto.pieces.add(piece=piece, score=score)
        return spm.SentencePieceProcessor(model_proto=proto.SerializeToString())

    def test_pieces_are_new_and_cover_the_characters(self):
        self.assertLen(set(self.pieces) - set(self.old), SIZE)
        characters = set("".join(NEW["a"] + NEW["b"])) - {" "}
        self.assertLessEqual(characters, {*self.pieces, *self.old})

    def test_scores_are_probabilities_of_the_share_of_the_new_text(self):
        share = SIZE / (SIZE + len(self.old))
        self.assertBetween(np.exp(self.scores).sum(), 0.3 * share, share)

    def test_prunes_save_more_tokens_than_the_most_frequent_merges(self):
        def tokens(candidates: int) -> int:
            with mock.patch.object(extension, "_CANDIDATES", candidates):
                found = extension.unigram(self.old, {"sw": texts.table("sw")}, {"sw": 1}, 300, 1.0)
            return sum(map(len, self.grown(*found).encode(texts.sentences("sw"))))

        self.assertLess(tokens(2), 0.97 * tokens(1))

    def test_too_many_pieces_and_too_few_for_the_characters_are_refused(self):
        tables = {"b": pretokens.count_pretokens(NEW["b"])}
        for size, message in ((5, "require 8 characters"), (10_000, "offers .* pieces")):
            with self.assertRaisesRegex(ValueError, message):
                extension.unigram(self.old, tables, {"b": 1.0}, size, 1.0)
