"""Tests of the mixture, the EM that scores merged pieces, and the model that is written."""

import io
import random

import numpy as np
import scipy.special
import sentencepiece as spm
from absl.testing import absltest, parameterized
from sentencepiece import sentencepiece_model_pb2 as model_pb2

from vocap import lattice, merge, words

TRICKY = [
    "plain words",
    "  many   spaces\tand tabs ",
    "\uff21\uff22\uff23 \u2460 \ufb01 \u00bd \u00a8x \u00ad- e\u0301",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0645\u0631\u062d\u0628\u0627 \u0e44\u0e17\u0e22",
    "a\u200bb \u3000 c\u2581d",
    "",
]


def made_up_words() -> tuple[list[str], np.ndarray]:
    rng = random.Random(0)
    lexicon = {"".join(rng.choices("abcde", k=rng.randint(1, 7))) for _ in range(200)}
    return sorted(lexicon), np.array([float(rng.randint(1, 50)) for _ in lexicon])


def made_up_pieces() -> list[str]:
    rng = random.Random(1)
    longer = {"".join(rng.choices("abcde", k=rng.randint(2, 4))) for _ in range(60)}
    return [*"abcde", *sorted(longer)]


def fit(pieces, corpus, weights, num_iterations: int) -> np.ndarray:
    uniform = np.full(len(pieces), -np.log(len(pieces)))
    return merge.fit_scores(pieces, uniform, corpus, weights, num_iterations)


def segmentations(word: str, pieces) -> list[list[str]]:
    """All ways to write `word` in pieces."""
    if not word:
        return [[]]
    ends = [end for end in range(1, len(word) + 1) if word[:end] in pieces]
    return [[word[:end], *rest] for end in ends for rest in segmentations(word[end:], pieces)]


def log_likelihood(pieces, log_probs, corpus, weights) -> float:
    trie, text = lattice.build_trie(pieces), lattice.pack_words(corpus)
    return lattice.expected_counts(trie, log_probs, text, weights, -99.0)[1]


class MixtureWeightsTest(absltest.TestCase):
    def test_each_language_makes_up_its_share_of_the_bytes(self):
        tables = {
            "de": words.count_words(["ab cd ab"] * 9),
            "hi": words.count_words(["\u0915\u093f \u0916"]),
        }
        shares = {"de": 0.3, "hi": 0.7}
        mixture, weights = merge.mixture_weights(tables, shares)
        sizes = np.array([len(word[1:].encode()) + 1 for word in mixture])
        total = sum(table.num_bytes for table in tables.values())
        self.assertAlmostEqual(sizes @ weights, total)
        for language, table in tables.items():
            own = np.array([word in table.words for word in mixture])
            self.assertAlmostEqual((sizes * weights)[own].sum(), shares[language] * total)

    def test_shares_of_the_corpora_leave_the_counts_and_shared_words_add_up(self):
        texts = {"a": ["x y", "x"], "b": ["x z z"]}
        tables = {language: words.count_words(text) for language, text in texts.items()}
        together = words.count_words(texts["a"] + texts["b"])
        shares = {lang: table.num_bytes / together.num_bytes for lang, table in tables.items()}
        mixture, weights = merge.mixture_weights(tables, shares)
        order = np.argsort(mixture)
        self.assertEqual([mixture[i] for i in order], list(together.words))
        np.testing.assert_allclose(weights[order], together.counts)


class FitScoresTest(parameterized.TestCase):
    def test_is_variational_em_over_all_segmentations(self):
        pieces = made_up_pieces()
        corpus, weights = made_up_words()
        log_probs = dict.fromkeys(pieces, -np.log(len(pieces)))
        for _ in range(3):
            counts = dict.fromkeys(pieces, 0.0)
            for word, weight in zip(corpus, weights, strict=True):
                ways = segmentations(word, log_probs)
                scores = np.array([sum(log_probs[p] for p in way) for way in ways])
                for way, share in zip(ways, scipy.special.softmax(scores), strict=True):
                    for piece in way:
                        counts[piece] += weight * share
            floored = {piece: max(count, 0.5) for piece, count in counts.items()}
            total = scipy.special.digamma(sum(floored.values()))
            log_probs = {p: scipy.special.digamma(c) - total for p, c in floored.items()}
        expected = [log_probs[piece] for piece in pieces]
        np.testing.assert_allclose(fit(pieces, corpus, weights, 3), expected, rtol=1e-9)

    def test_the_log_likelihood_never_falls_where_text_is_plenty(self):
        pieces = made_up_pieces()
        corpus, weights = made_up_words()
        weights *= 1e6  # so much that digamma is the logarithm, and the M-step is plain EM's
        fits = [fit(pieces, corpus, weights, n) for n in range(8)]
        values = np.array([log_likelihood(pieces, f, corpus, weights) for f in fits])
        self.assertGreater(values[1], values[0])
        self.assertGreater(np.diff(values).min(), -1e-9 * abs(values[0]))
        self.assertAlmostEqual(np.exp(fits[-1]).sum(), 1.0, places=5)

    def test_the_order_of_words_and_of_pieces_does_not_matter(self):
        rng = np.random.default_rng(0)
        pieces = [*made_up_pieces(), "xa"]
        corpus, weights = made_up_words()
        corpus.append("xabc")  # x is no piece: unknown, or part of one
        weights = np.append(weights, 30.0)
        expected = fit(pieces, corpus, weights, 4)
        by_word, by_piece = rng.permutation(len(corpus)), rng.permutation(len(pieces))
        actual = fit(
            [pieces[i] for i in by_piece], [corpus[i] for i in by_word], weights[by_word], 4
        )
        np.testing.assert_allclose(actual, expected[by_piece], rtol=1e-9)

    def test_a_piece_that_never_occurs_keeps_a_finite_score_below_all_that_do(self):
        log_probs = fit(["a", "b", "zz"], ["ab", "a"], np.array([5.0, 3.0]), 4)
        self.assertTrue(np.isfinite(log_probs).all())
        self.assertEqual(np.argmin(log_probs), 2)


class WriteModelTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        characters = sorted(set("".join(words.normalizer().normalize(t) for t in TRICKY)))
        cls.pieces = [*characters, *"<>ks", "\u2581wor", "ds", "mask", "\u2581<"]
        cls.pieces = list(dict.fromkeys(cls.pieces))
        cls.log_probs = -np.random.default_rng(0).permutation(len(cls.pieces)).astype(float) - 1
        cls.model = merge.write_model(cls.pieces, cls.log_probs)
        cls.processor = spm.SentencePieceProcessor(model_proto=cls.model)

    def test_ids_are_the_specials_then_the_pieces_by_falling_score(self):
        processor = self.processor
        named = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        by_score = [self.pieces[i] for i in np.argsort(-self.log_probs)]
        self.assertEqual(named, ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *by_score])
        self.assertEqual(processor.piece_to_id("<mask>"), merge.MASK_ID)
        ids = (processor.bos_id(), processor.pad_id(), processor.eos_id(), processor.unk_id())
        self.assertEqual(ids, (merge.BOS_ID, merge.PAD_ID, merge.EOS_ID, merge.UNK_ID))
        self.assertEqual([processor.is_control(i) for i in range(6)], [1, 1, 1, 0, 1, 0])
        for piece, log_prob in zip(self.pieces, self.log_probs, strict=True):
            self.assertEqual(processor.get_score(processor.piece_to_id(piece)), log_prob)

    def test_the_trainer_spec_calls_the_mask_a_control_symbol_and_nothing_user_defined(self):
        spec = model_pb2.ModelProto.FromString(self.model).trainer_spec
        self.assertEqual(list(spec.control_symbols), ["<mask>"])
        self.assertEmpty(spec.user_defined_symbols)
        self.assertEqual(spec.vocab_size, self.processor.get_piece_size())

    def test_the_order_of_the_pieces_does_not_matter(self):
        order = np.random.default_rng(1).permutation(len(self.pieces))
        shuffled = [self.pieces[i] for i in order]
        self.assertEqual(merge.write_model(shuffled, self.log_probs[order]), self.model)

    def test_normalises_as_a_trained_unigram_model(self):
        trained = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab abc bca"] * 9),
            model_writer=trained,
            model_type="unigram",
            vocab_size=9,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        expected = model_pb2.ModelProto.FromString(trained.getvalue()).normalizer_spec
        actual = model_pb2.ModelProto.FromString(self.model).normalizer_spec
        self.assertEqual(actual, expected)
        self.assertNotEmpty(actual.precompiled_charsmap)

    @parameterized.parameters(*TRICKY)
    def test_text_comes_back_normalised_as_the_words_were_counted(self, text):
        ids = self.processor.encode(text)
        self.assertNotIn(merge.UNK_ID, ids)
        normalized = words.normalizer().normalize(text)
        self.assertEqual("".join(map(self.processor.id_to_piece, ids)), normalized)
        self.assertEqual(self.processor.decode(ids), normalized.replace(words.SPACE, " ").strip())

    def test_the_literal_text_of_a_special_token_is_only_text(self):
        for token in merge.SPECIALS:
            ids = self.processor.encode(f"words {token} words{token}")
            self.assertNoCommonElements(ids, [0, 1, 2, merge.MASK_ID])
        ids = self.processor.encode("<mask>")
        self.assertEqual([self.processor.id_to_piece(i) for i in ids], ["\u2581<", "mask", ">"])

    @parameterized.parameters((["a", "b", "a"], "'a'"), (["a", ""], "''"), (["<pad>"], "'<pad>'"))
    def test_pieces_that_cannot_stand_are_named(self, pieces, name):
        with self.assertRaisesRegex(ValueError, rf"distinct, not empty.*<mask>; got \[{name}\]"):
            merge.write_model(pieces, np.full(len(pieces), -1.0))


if __name__ == "__main__":
    absltest.main()
