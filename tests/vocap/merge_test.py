"""Tests of the EM that scores merged pieces, and of the model that is written."""

import io
import random

import numpy as np
import scipy.special
import sentencepiece as spm
from absl.testing import parameterized

from vocap import merge, model_proto, pretokens
from vocap.text_rules import TextRules

TRICKY = [
    "plain words", "  many   spaces\tand tabs ",
    "\uff21\uff22\uff23 \u2460 \ufb01 \u00bd \u00a8x \u00ad- e\u0301",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0645\u0631\u062d\u0628\u0627 \u0e44\u0e17\u0e22",
    "a\u200bb \u3000 c\u2581d", "",
]  # fmt: skip


def table_of(counts: dict[str, float]) -> pretokens.PretokenTable:
    text = pretokens.pack(list(counts))
    follow = np.zeros(len(counts), np.int16)
    return pretokens.PretokenTable(text, np.array([*counts.values()], np.float64), follow, 1)


def made_up_runs() -> dict[str, float]:
    rng = random.Random(0)
    lexicon = {"".join(rng.choices("abcde", k=rng.randint(1, 7))) for _ in range(200)}
    return {run: float(rng.randint(1, 50)) for run in sorted(lexicon)}


def made_up_pieces() -> list[str]:
    rng = random.Random(1)
    longer = {"".join(rng.choices("abcde", k=rng.randint(2, 4))) for _ in range(60)}
    return [*"abcde", *sorted(longer)]


def fit(pieces, counts: dict[str, float], num_iterations: int) -> np.ndarray:
    uniform = np.full(len(pieces), -np.log(len(pieces)))
    return merge.fit_scores(pieces, uniform, table_of(counts), num_iterations)


def segmentations(run: str, pieces) -> list[list[str]]:
    if not run:
        return [[]]
    ends = [end for end in range(1, len(run) + 1) if run[:end] in pieces]
    return [[run[:end], *rest] for end in ends for rest in segmentations(run[end:], pieces)]


class FitScoresTest(parameterized.TestCase):
    def test_is_variational_em_over_all_segmentations(self):
        pieces, corpus = [*made_up_pieces(), "never"], made_up_runs()
        log_probs = dict.fromkeys(pieces, -np.log(len(pieces)))
        for _ in range(3):
            counts = dict.fromkeys(pieces, 0.0)
            for run, weight in corpus.items():
                ways = segmentations(run, log_probs)
                scores = np.array([sum(log_probs[p] for p in way) for way in ways])
                for way, share in zip(ways, scipy.special.softmax(scores), strict=True):
                    for piece in way:
                        counts[piece] += weight * share
            floored = {piece: max(count, 0.5) for piece, count in counts.items()}
            total = scipy.special.digamma(sum(floored.values()))
            log_probs = {p: scipy.special.digamma(c) - total for p, c in floored.items()}
        expected = [log_probs[piece] for piece in pieces]
        np.testing.assert_allclose(fit(pieces, corpus, 3), expected, rtol=1e-9)

    def test_unknown_characters_are_as_dear_as_for_sentencepiece(self):
        # "xa" competes with an unknown x and "a", whatever the piece costs that never occurs.
        log_probs = np.log([0.2, 0.5, 1e-5, 1e-6])
        pieces = ["a", "b", "xa", "zz"]
        scores = merge.fit_scores(pieces, log_probs, table_of({"xa": 1e15, "b": 1e15}), 1)
        unknown = 1e-6 * np.exp(-10)
        share = 1e-5 / (1e-5 + unknown * 0.2)
        self.assertAlmostEqual(np.exp(scores[0] - scores[2]) * share / (1 - share), 1, places=5)


class WriteModelTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        characters = sorted(set("".join(TextRules().processor().normalize(t) for t in TRICKY)))
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
        spec = model_proto.ModelProto.FromString(self.model).trainer_spec
        self.assertEqual((list(spec.control_symbols), spec.vocab_size), (["<mask>"], len(named)))
        self.assertEmpty(spec.user_defined_symbols)
        for piece, log_prob in zip(self.pieces, self.log_probs, strict=True):
            self.assertEqual(processor.get_score(processor.piece_to_id(piece)), log_prob)

    def test_sums_of_rounded_scores_are_exact_in_single_precision(self):
        log_probs = np.random.default_rng(1).uniform(-15, -1, len(self.pieces))
        model = merge.write_model(self.pieces, log_probs)
        processor = spm.SentencePieceProcessor(model_proto=model)
        scores = np.array([processor.get_score(processor.piece_to_id(p)) for p in self.pieces])
        np.testing.assert_allclose(scores, log_probs, rtol=0, atol=0.5 / 1024)
        np.testing.assert_array_equal(scores * 1024 % 1, 0)
        self.assertEqual(np.cumsum(scores.astype(np.float32))[-1], scores.sum())

    def test_normalises_as_a_trained_unigram_model(self):
        trained = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(["ab abc bca"] * 9), model_writer=trained, model_type="unigram",
            vocab_size=9, hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        expected = model_proto.ModelProto.FromString(trained.getvalue()).normalizer_spec
        actual = model_proto.ModelProto.FromString(self.model).normalizer_spec
        self.assertEqual(actual, expected)
        self.assertNotEmpty(actual.precompiled_charsmap)

    @parameterized.parameters(*TRICKY)
    def test_text_comes_back_normalised_as_the_runs_were_counted(self, text):
        ids = self.processor.encode(text)
        self.assertNotIn(merge.UNK_ID, ids)
        normalized = TextRules().processor().normalize(text)
        self.assertEqual("".join(map(self.processor.id_to_piece, ids)), normalized)
        self.assertEqual(
            self.processor.decode(ids), normalized.replace(pretokens.SPACE, " ").strip()
        )

    def test_the_literal_text_of_a_special_token_is_only_text(self):
        for token in merge.SPECIALS:
            ids = self.processor.encode(f"words {token} words{token}")
            self.assertNoCommonElements(ids, [0, 1, 2, merge.MASK_ID])
        ids = self.processor.encode("<mask>")
        self.assertEqual([self.processor.id_to_piece(i) for i in ids], ["\u2581<", "mask", ">"])

    @parameterized.parameters((["a", "b", "a"], "'a'"), (["a", ""], "''"), (["<pad>"], "'<pad>'"))
    def test_pieces_that_cannot_stand_are_named(self, pieces, name):
        with self.assertRaisesRegex(ValueError, rf"pieces \[{name}\] are repeated, empty or fixed"):
            merge.write_model(pieces, np.full(len(pieces), -1.0))


class ModelProtoTest(parameterized.TestCase):
    def test_fields_are_those_of_the_package(self):
        """Of sentencepiece's own classes, which only new releases of protobuf can load."""
        from sentencepiece import sentencepiece_model_pb2 as package

        for name in ("ModelProto", "TrainerSpec", "NormalizerSpec"):
            self.assert_contained(getattr(model_proto, name), getattr(package, name))
        self.assert_contained(
            model_proto.ModelProto.SentencePiece, package.ModelProto.SentencePiece
        )

    def assert_contained(self, ours, theirs):
        for field in ours.DESCRIPTOR.fields:
            expected = theirs.DESCRIPTOR.fields_by_name[field.name]
            for what in ("number", "type", "is_repeated", "default_value"):
                self.assertEqual(getattr(field, what), getattr(expected, what), field.full_name)
            if field.enum_type:
                values = field.enum_type.values_by_name, expected.enum_type.values_by_name
                self.assertEqual(*({k: v.number for k, v in part.items()} for part in values))
