"""Vocabularies under a model's weights: read, exchanged, pruned."""

import importlib.util
import random
import warnings
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized

from tests import folders
from tests.interop.tokenizer_json_test import fairseq_model
from vocap import merge
from vocap.settings import BPE
from xlm.common import artifacts
from xlm.interop import huggingface
from xlm.interop import vocabulary as vocabularies
from xlm.interop.vocabulary import ModelVocabulary

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
SPACE = "\u2581"
WIDTH = 8


def made_up_pieces(seed: int, characters: str = "abcd", num: int = 60) -> dict[str, float]:
    """Pieces of up to four characters out of five, "e" among them only in longer ones."""
    rng = random.Random(seed)
    longer = {"".join(rng.choices("abcde", k=rng.randint(2, 4))) for _ in range(num)}
    spaced = (SPACE + piece for piece in sorted(longer)[::3])
    pieces = [*characters, SPACE, *spaced, *sorted(longer)]
    return {piece: -rng.uniform(1, 12) for piece in pieces}


def model_of(pieces: dict[str, float]) -> bytes:
    return merge.write_model([*pieces], np.array([*pieces.values()]))


def vocabulary_of(pieces: dict[str, float]) -> ModelVocabulary:
    return vocabularies.vocabulary(model_of(pieces))


def shuffled(old: ModelVocabulary, seed: int) -> ModelVocabulary:
    """The same pieces under other ids."""
    order = np.random.default_rng(seed).permutation(len(old.pieces))
    return ModelVocabulary(tuple(old.pieces[i] for i in order), old.scores[order])


def random_rows(num: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return (
        rng.normal(size=(num, WIDTH)).astype(np.float32),
        rng.normal(size=num).astype(np.float32),
    )


def best_known_parts(text: str, scores: dict[str, float]) -> list[str]:
    """The known parts of the best way to write `text`, by trying all."""
    unknown = min(scores.values()) - 10  # SentencePiece's price of a character that is no piece

    def paths(rest: str):
        if not rest:
            yield 0.0, []
        for end in range(1, len(rest) + 1):
            head = rest[:end]
            if head in scores:
                first, parts = scores[head], [head]
            elif end == 1:
                first, parts = unknown, []
            else:
                continue
            for score, tail in paths(rest[end:]):
                yield first + score, parts + tail

    return max(paths(text))[1]


class ReadTest(folders.FolderTest):
    def assert_same(self, found: ModelVocabulary, expected: ModelVocabulary):
        self.assertEqual(found.pieces, expected.pieces)
        np.testing.assert_array_equal(found.scores, expected.scores)

    def test_ours_has_the_ids_of_sentencepiece(self):
        model = model_of(made_up_pieces(0))
        processor = spm.SentencePieceProcessor(model_proto=model)
        found = vocabularies.vocabulary(model)
        self.assertEqual([*found.pieces], [processor.id_to_piece(i) for i in range(len(processor))])
        normal = np.arange(len(processor)) >= len(merge.SPECIALS)
        np.testing.assert_array_equal(np.isfinite(found.scores), normal)
        self.assertAlmostEqual(found.scores[9], processor.get_score(9))

    def test_files_of_a_folder_in_their_order(self):
        model, other = model_of(made_up_pieces(0)), model_of(made_up_pieces(1))
        huggingface.export_tokenizer(model, self.folder)
        self.assert_same(vocabularies.read_vocabulary(self.folder), vocabularies.vocabulary(model))
        (self.folder / "sentencepiece.bpe.model").write_bytes(fairseq_model())
        (self.folder / "spm.model").write_bytes(other)  # counts before the others
        self.assert_same(vocabularies.read_vocabulary(self.folder), vocabularies.vocabulary(other))

    def json_of_xlm_r(self, **added: int) -> None:
        """Ids as XLM-R has them: four special tokens, pieces, <mask>."""
        vocab = [[token, 0.0] for token in ("<s>", "<pad>", "</s>", "<unk>")]
        vocab += [["a", -1.0], [",", -2.5], ["<mask>", 0.0]]
        tokens = [{"id": i, "content": vocab[i][0]} for i in (0, 1, 2, 6)]
        tokens += [{"id": i, "content": piece} for piece, i in added.items()]
        model = {"type": "Unigram", "unk_id": 3, "vocab": vocab}
        artifacts.write_json(
            self.folder / "tokenizer.json", {"model": model, "added_tokens": tokens}
        )

    def test_added_tokens_are_pieces_without_scores(self):
        self.json_of_xlm_r(a=4, extra=7)
        pieces = ("<s>", "<pad>", "</s>", "<unk>", "a", ",", "<mask>", "extra")
        expected = ModelVocabulary(pieces, np.array([-np.inf] * 5 + [-2.5] + [-np.inf] * 2))
        self.assert_same(vocabularies.read_vocabulary(self.folder), expected)

    @absltest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
    def test_fairseq_numbers_are_those_of_transformers(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import transformers

            path = self.folder / "sentencepiece.bpe.model"
            path.write_bytes(fairseq_model())
            theirs = transformers.XLMRobertaTokenizer.from_pretrained(self.folder)
        found = vocabularies.read_vocabulary(self.folder)
        self.assertEqual(theirs.convert_ids_to_tokens([*range(len(theirs))]), [*found.pieces])
        processor = spm.SentencePieceProcessor(model_proto=fairseq_model())
        scores = [processor.get_score(i) for i in range(3, len(processor))]
        self.assertEqual(found.scores[4:-1].tolist(), scores)
        saved = self.folder / "saved"
        theirs.save_pretrained(saved)
        self.assertFalse((saved / "sentencepiece.bpe.model").exists())
        again = vocabularies.read_vocabulary(saved)
        self.assertEqual(again.pieces, found.pieces)
        np.testing.assert_allclose(again.scores, found.scores, rtol=1e-6)

    def test_what_cannot_be_read_is_named(self):
        with self.assertRaisesRegex(ValueError, "has no spm.model, tokenizer.json or sentencep"):
            vocabularies.read_vocabulary(self.folder)
        with self.assertRaisesRegex(ValueError, "has none of spm.model, .* give a --vocabulary"):
            vocabularies.sentencepiece_model(self.folder)
        fairseq = self.folder / "sentencepiece.bpe.model"
        fairseq.write_bytes(model_of(made_up_pieces(0)))
        with self.assertRaisesRegex(ValueError, "bpe.model: the model begins with <s> <pad> </s>"):
            vocabularies.read_vocabulary(self.folder)
        json_file = self.folder / "tokenizer.json"
        for text, message in (
            ("{", "not JSON"),
            ('{"model": {"type": "WordPiece"}}', "model lacks the field vocab"),
            ('{"model": {"type": "Unigram", "vocab": [["<s>", 0]]}}', "no <pad> </s> <unk> <mask>"),
        ):
            json_file.write_text(text)
            with self.assertRaisesRegex(ValueError, f"tokenizer.json: .*{message}"):
                vocabularies.read_vocabulary(self.folder)
        for number in (4, 9):
            self.json_of_xlm_r(extra=number)
            with self.assertRaisesRegex(ValueError, f"added token 'extra' has id {number}"):
                vocabularies.read_vocabulary(self.folder)
        (self.folder / "spm.model").write_bytes(b"no model")
        with self.assertRaisesRegex(ValueError, "spm.model: not a SentencePiece model"):
            vocabularies.read_vocabulary(self.folder)
        with self.assertRaisesRegex(ValueError, "has a piece twice"):
            ModelVocabulary((*merge.SPECIALS, "a", "a"), np.zeros(7))


class SwapTest(parameterized.TestCase):
    def swap(self, old: ModelVocabulary, new: ModelVocabulary, padding: int = 0):
        self.table, self.bias = random_rows(len(old.pieces) + padding)
        return vocabularies.swap(old, new, self.table, self.bias)

    @parameterized.parameters(0, 5)
    def test_the_same_pieces_keep_their_rows(self, padding):
        old = vocabulary_of(made_up_pieces(0))
        found = self.swap(old, old, padding)
        np.testing.assert_array_equal(found.table, self.table[: len(old.pieces)])
        np.testing.assert_array_equal(found.bias, self.bias[: len(old.pieces)])
        self.assertEqual((found.copied, found.segmented, found.unknown), (len(old.pieces), 0, 0))
        with self.assertRaisesRegex(ValueError, "give the tokenizer of this model"):
            self.swap(old, old, padding=-1)

    @parameterized.parameters(7, vocabularies._BATCH)
    def test_a_new_piece_is_the_mean_of_its_best_parts(self, batch):
        self.enter_context(mock.patch.object(vocabularies, "_BATCH", batch))
        old = shuffled(vocabulary_of(made_up_pieces(0)), 0)
        new = vocabulary_of(made_up_pieces(1) | {"e": -3.0, "ee": -4.0, "ae": -4.5, "qaq": -5.0})
        found = self.swap(old, new)
        rows = np.concatenate([self.table, self.bias[:, None]], axis=1).astype(np.float64)
        ids = {piece: i for i, piece in enumerate(old.pieces)}
        known_scores = {p: old.scores[i] for p, i in ids.items() if p not in merge.SPECIALS}
        counts = {"copied": 0, "segmented": 0, "unknown": 0}
        lengths = set()
        for i, piece in enumerate(new.pieces):
            if piece in ids:
                counts["copied"] += 1
                expected = rows[ids[piece]]
            elif parts := best_known_parts(piece, known_scores):
                counts["segmented"] += 1
                lengths.add(len(parts))
                expected = np.mean([rows[ids[part]] for part in parts], axis=0)
            else:
                counts["unknown"] += 1
                expected = rows[sorted(ids[piece] for piece in known_scores)].mean(axis=0)
            np.testing.assert_allclose(found.table[i], expected[:-1], rtol=0, atol=1e-6)
            np.testing.assert_allclose(found.bias[i], expected[-1], rtol=0, atol=1e-6)
        self.assertGreaterEqual(lengths, {1, 2, 3})
        self.assertGreater(min(counts.values()), 0)
        self.assertEqual(counts, {name: getattr(found, name) for name in counts})

    def test_special_tokens_go_by_their_names(self):
        order = ("<s>", "<pad>", "</s>", "<unk>", "a", "b", "<mask>")
        old = ModelVocabulary(order, np.array([-np.inf] * 4 + [-1.0, -2.0, -np.inf]))
        new = vocabulary_of({"b": -1.0, "a": -2.0})
        found = self.swap(old, new)
        expected = [order.index(piece) for piece in new.pieces]
        self.assertEqual(expected, [0, 1, 2, 3, 6, 5, 4])
        np.testing.assert_array_equal(found.table, self.table[expected])

    @parameterized.parameters(
        # The literal of a special token is text.
        ({"<": -1.0, "s": -1.5, ">": -2.0, "mask": -3.0, "x": -3.5},
         {"x<s>": ["x", "<", "s", ">"], "<mask>x": ["<", "mask", ">", "x"]}),
        # No space is put before a piece.
        ({SPACE + "ab": -1.0, "a": -5.0, "b": -6.0, SPACE: -2.0},
         {"abab": ["a", "b", "a", "b"], SPACE + "abb": [SPACE + "ab", "b"]}),
        # By the merges of the old vocabulary, and not ab, cd.
        (["ab", "abc", "cd", SPACE, *"abcd"], {"abcd": ["abc", "d"]}),
    )  # fmt: skip
    def test_parts_of_new_pieces(self, old, new):
        if isinstance(old, list):
            old = vocabularies.vocabulary(merge.write_model(old, -np.arange(float(len(old))), BPE))
        else:
            old = vocabulary_of(old)
        named = vocabulary_of({piece: -1.0 - i for i, piece in enumerate(new)})
        found = self.swap(old, named)
        for piece, parts in new.items():
            rows = self.table[[old.pieces.index(part) for part in parts]]
            row = found.table[named.pieces.index(piece)]
            np.testing.assert_allclose(row, rows.mean(axis=0), rtol=0, atol=1e-6)


class PruneTest(parameterized.TestCase):
    def texts(self, seed: int, characters: str) -> list[str]:
        rng = random.Random(seed)
        return ["".join(rng.choices(characters, k=rng.randint(0, 25))) for _ in range(40)]

    def merges(self, seed: int) -> bytes:
        """A BPE whose pieces are random merges of earlier ones."""
        rng, pieces = random.Random(seed), [SPACE, *"abcde"]
        while len(pieces) < 60:
            piece = "".join(rng.choices(pieces, k=2))
            if piece not in pieces and SPACE not in piece[1:]:
                pieces.append(piece)
        made, characters = pieces[6:], pieces[:6]
        return merge.write_model([*made, *characters], -np.arange(60.0), BPE)

    @parameterized.product(
        seed=(0, 1, 2), characters=("abc ", "abcde q", "cd"), is_bpe=(False, True)
    )
    def test_texts_are_cut_as_before(self, seed, characters, is_bpe):
        model = self.merges(seed) if is_bpe else model_of(made_up_pieces(seed))
        texts = self.texts(seed, characters)
        pruned, kept = vocabularies.prune(model, iter(texts))
        before, after = (spm.SentencePieceProcessor(model_proto=m) for m in (model, pruned))
        self.assertLess(len(after), len(before))
        for text in texts:
            self.assertEqual(after.encode(text, out_type=str), before.encode(text, out_type=str))
            self.assertEqual(kept[after.encode(text)].tolist(), before.encode(text))

    def test_what_is_kept(self):
        model, texts = model_of(made_up_pieces(0)), self.texts(0, "abc ")
        old = vocabularies.vocabulary(model)
        pruned, kept = vocabularies.prune(model, texts)
        processor = spm.SentencePieceProcessor(model_proto=model)
        used = {piece for text in texts for piece in processor.encode(text, out_type=str)}
        lowest = old.pieces[int(np.argmin(np.where(np.isinf(old.scores), 0, old.scores)))]
        expected = {*merge.SPECIALS, *used, *"abc", SPACE, lowest}
        self.assertEqual({old.pieces[i] for i in kept}, expected)
        self.assertTrue((np.diff(kept) > 0).all())
        new = vocabularies.vocabulary(pruned)
        self.assertEqual(new.pieces, tuple(old.pieces[i] for i in kept))
        np.testing.assert_array_equal(new.scores, old.scores[kept])
        unused = next(piece for piece in old.pieces if piece not in expected)
        more, _ = vocabularies.prune(model, texts, (unused, "none of them"))
        self.assertEqual({*vocabularies.vocabulary(more).pieces}, {*expected, unused})

    def test_characters_stay_that_the_texts_use_in_pieces_only(self):
        pieces = {SPACE: -9.0, "a": -8.0, "b": -9.5, "c": -9.5, SPACE + "ab": -1.0}
        pruned, _ = vocabularies.prune(model_of(pieces | {"zz": -20.0, "z": -19.0}), ["ab ab"])
        kept = vocabularies.vocabulary(pruned).pieces
        self.assertEqual(kept[len(merge.SPECIALS) :], (SPACE + "ab", "a", SPACE, "b", "zz"))

    def test_the_unknown_costs_what_it_did(self):
        # Where the lowest score is gone, "?" "abc" is better than "?a" "bc".
        pieces = {SPACE: -1.0, "a": -9.0, "b": -9.0, "c": -9.0, "zz": -60.0}
        model = model_of(pieces | {"abc": -1.0, "?a": -12.0, "bc": -12.0})
        texts = ["abc", "?abc"]
        before = spm.SentencePieceProcessor(model_proto=model)
        self.assertEqual(before.encode(texts[1], out_type=str), [SPACE, "?a", "bc"])
        after = spm.SentencePieceProcessor(model_proto=vocabularies.prune(model, texts)[0])
        self.assertEqual(after.encode(texts[1], out_type=str), [SPACE, "?a", "bc"])

    @parameterized.parameters(False, True)
    def test_what_is_pruned_can_be_exported_and_pruned_again(self, is_bpe):
        model = self.merges(0) if is_bpe else model_of(made_up_pieces(0))
        texts = self.texts(0, "abcd ")
        pruned, _ = vocabularies.prune(model, texts)
        huggingface.tokenizer_json(pruned)
        again, kept = vocabularies.prune(pruned, texts)
        self.assertEqual(again, pruned)
        self.assertEqual(kept.tolist(), list(range(len(kept))))

    def test_what_cannot_be_pruned(self):
        for texts in ([], ["", " "]):
            with self.assertRaisesRegex(ValueError, "the texts are empty"):
                vocabularies.prune(model_of(made_up_pieces(0)), texts)
