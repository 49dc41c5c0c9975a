"""Tests of the whole way from sentences to a merged model, and of its cache."""

import dataclasses
import math
import pathlib
import random
import shutil
import tempfile

import sentencepiece as spm
from absl.testing import absltest, parameterized

from vocap import merge, unigram, words
from vocap.build import VocabularySettings, build_vocabulary

SYLLABLES = {
    "xa": [c + v for c in "bdgklmn" for v in "aeiou"],
    "xb": [v + c for c in "fprstvz" for v in "aeo"],
    "yc": [c + v for c in "\u043a\u043b\u043c\u043d\u0440" for v in "\u0430\u0438\u043e\u0443"],
}
SETTINGS = VocabularySettings(
    target_size=170,
    sizes=(8, 30, 45, 60, 75, 90),
    alpha=0.7,
    beta=0.7,
    character_coverage=1.0,
    max_piece_length=16,
    alp_probabilities="corpus",
    em_iterations=3,
    num_workers=1,
)


def made_up_text(language: str, num_sentences: int) -> list[str]:
    """Sentences of made-up words whose frequencies fall as Zipf has it."""
    rng = random.Random(language)
    lexicon = ["".join(rng.choices(SYLLABLES[language], k=rng.randint(1, 4))) for _ in range(120)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]
    return [
        " ".join(rng.choices(lexicon, weights, k=rng.randint(3, 9))) for _ in range(num_sentences)
    ]


TEXT = {"xa": made_up_text("xa", 90), "yc": made_up_text("yc", 60), "xb": made_up_text("xb", 40)}


def build(text, cache: pathlib.Path, **changed):
    return build_vocabulary(text, dataclasses.replace(SETTINGS, **changed), cache)


def stamps(cache: pathlib.Path) -> dict[str, int]:
    """When each cached language was written."""
    return {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}


class BuildVocabularyTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.first_cache = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.first = build(TEXT, cls.first_cache)

    def copy_of_first_cache(self) -> pathlib.Path:
        cache = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        shutil.copytree(self.first_cache, cache, dirs_exist_ok=True)
        return cache

    def test_the_model_has_the_target_size_and_just_the_allocated_pieces(self):
        processor = spm.SentencePieceProcessor(model_proto=self.first.model)
        named = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        self.assertLen(named, SETTINGS.target_size)
        self.assertEqual(tuple(named[:5]), merge.SPECIALS)
        self.assertEqual(tuple(sorted(named[5:])), self.first.allocation.pieces)
        for sentences in TEXT.values():
            for sentence in sentences:
                ids = processor.encode(sentence)
                self.assertNotIn(merge.UNK_ID, ids)
                self.assertEqual(processor.decode(ids), sentence)

    def test_curves_probabilities_and_allocation_are_of_the_text(self):
        first = self.first
        self.assertEqual(list(first.curves), ["xa", "xb", "yc"])
        for language, curve in first.curves.items():
            self.assertContainsSubset(curve.sizes, SETTINGS.sizes)
            self.assertNotIn(8, curve.sizes)  # fewer than any of the languages has characters
            self.assertEqual(sorted(curve.alp), list(curve.alp))
            self.assertEqual([len(set(pieces)) for pieces in curve.pieces], list(curve.sizes))
            self.assertEqual(
                first.num_bytes[language], sum(len(s.encode()) + 1 for s in TEXT[language])
            )
            self.assertContainsSubset(set("".join(TEXT[language])) - {" "}, first.allocation.pieces)
        smoothed = {language: size**0.7 for language, size in first.num_bytes.items()}
        for language, share in first.probabilities.items():
            self.assertAlmostEqual(share, smoothed[language] / sum(smoothed.values()))

    def test_em_starts_from_the_mixture_of_the_chosen_vocabularies(self):
        unfitted = build(TEXT, self.first_cache, em_iterations=0, target_size=155)
        mixed = dict.fromkeys(unfitted.allocation.pieces, 0.0)
        for language, size in unfitted.allocation.sizes.items():
            (chosen,) = unigram.train_vocabularies(
                TEXT[language], words.count_words(TEXT[language]), [size], character_coverage=1.0
            )
            for piece, log_prob in zip(chosen.pieces, chosen.log_probs, strict=True):
                if piece in mixed:
                    mixed[piece] += unfitted.probabilities[language] * math.exp(log_prob)
        # Here a partial last step keeps a piece of the step before, which no vocabulary chose.
        self.assertIn(0.0, mixed.values())
        rarest = min(p for p in mixed.values() if p)
        processor = spm.SentencePieceProcessor(model_proto=unfitted.model)
        for piece, probability in mixed.items():
            score = processor.get_score(processor.piece_to_id(piece))
            self.assertAlmostEqual(score, math.log(probability or rarest), places=5)

    def test_one_language_alone_gets_its_own_vocabulary(self):
        cache = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        alone = build({"xa": TEXT["xa"]}, cache, target_size=65, sizes=(60,))
        self.assertEqual(alone.allocation.pieces, tuple(sorted(alone.curves["xa"].pieces[0])))
        self.assertEqual(alone.probabilities, {"xa": 1.0})

    def test_neither_workers_nor_the_order_of_languages_matter(self):
        cache = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        shuffled = {language: TEXT[language] for language in sorted(TEXT, reverse=True)}
        second = build(shuffled, cache, num_workers=3)
        self.assertEqual(second, self.first)
        self.assertEqual(
            {path.name: path.read_bytes() for path in cache.iterdir()},
            {path.name: path.read_bytes() for path in self.first_cache.iterdir()},
        )

    def test_a_second_build_and_other_ways_to_allocate_train_nothing(self):
        before = stamps(self.first_cache)
        self.assertLen(before, 3)
        self.assertEqual(build(TEXT, self.first_cache), self.first)
        other = build(TEXT, self.first_cache, alpha=0.2, beta=0.1, target_size=150, num_workers=2)
        self.assertLen(other.allocation.pieces, 150 - len(merge.SPECIALS))
        self.assertNotEqual(other.probabilities, self.first.probabilities)
        self.assertEqual(stamps(self.first_cache), before)

    def test_only_a_language_that_is_missing_is_built(self):
        cache = self.copy_of_first_cache()
        (lost,) = cache.glob("yc-*")
        lost.unlink()
        before = stamps(cache)
        finished = []

        def watch(futures):
            for future in futures:
                finished.append(future)
                yield future

        self.assertEqual(build_vocabulary(TEXT, SETTINGS, cache, progress=watch), self.first)
        after = stamps(cache)
        self.assertEqual(after, {**before, lost.name: after[lost.name]})
        self.assertLen(finished, 1)

    def test_changed_text_or_other_sizes_are_built_beside_the_old(self):
        cache = self.copy_of_first_cache()
        before = stamps(cache)
        build({**TEXT, "xb": TEXT["xb"][:-1]}, cache)
        with_changed_text = stamps(cache)
        self.assertLen(with_changed_text, 4)
        build({"xa": TEXT["xa"]}, cache, sizes=(30, 45), target_size=48)
        self.assertLen(stamps(cache), 5)
        self.assertContainsSubset(before.items(), stamps(cache).items())

    @parameterized.parameters(([],), (["   "],), (["baba dodo"],))
    def test_a_language_too_small_is_named_and_the_others_are_kept(self, sentences):
        cache = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (kept,) = self.first_cache.glob("yc-*")
        with self.assertRaisesRegex(ValueError, "language 'xb': none of vocab.sizes 8..90 .*add"):
            build({"yc": TEXT["yc"], "xb": sentences}, cache)
        self.assertEqual(list(stamps(cache)), [kept.name])

    def test_a_target_out_of_reach_is_named_without_the_specials(self):
        with self.assertRaisesRegex(
            ValueError, "target of 35 pieces besides specials is too small"
        ):
            build(TEXT, self.first_cache, target_size=40)


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters([()], [(20, 10)], [(10, 10)], [(0, 10)])
    def test_sizes_that_do_not_ascend_are_named(self, sizes):
        with self.assertRaisesRegex(ValueError, r"vocab.sizes must be positive and ascending, got"):
            dataclasses.replace(SETTINGS, sizes=sizes)

    @parameterized.parameters(0.0, 1.1)
    def test_a_coverage_that_is_no_share_is_named(self, coverage):
        with self.assertRaisesRegex(ValueError, f"character_coverage is {coverage}, must be in"):
            dataclasses.replace(SETTINGS, character_coverage=coverage)


if __name__ == "__main__":
    absltest.main()
