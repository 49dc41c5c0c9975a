"""Tests of the whole way from text to a merged model, and of its cache."""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from tests.vocap.texts import assert_same, made_up
from vocap import building, comparison, entries, merge, methods, pretoken_tables, pretokens, unigram
from vocap.settings import METHODS, VocabularySettings

SYLLABLES = {
    "xa": [c + v for c in "bdgklmn" for v in "aeiou"],
    "xb": [v + c for c in "fprstvz" for v in "aeo"],
    "yc": [c + v for c in "\u043a\u043b\u043c\u043d\u0440" for v in "\u0430\u0438\u043e\u0443"],
}
SETTINGS = VocabularySettings(
    compare=("proportional", "uniform", "joint", "clustered", "bpe", "union"), target_size=150,
    sizes=(8, 30, 45, 60, 75, 90), num_clusters=2, character_coverage=1.0, max_characters=0,
    em_iterations=3, num_workers=1,
)  # fmt: skip
# One entry of each kind.
ENTRIES = (
    "tables/yc-heldout-*.gz", "tables/xa-*.gz", "vocabularies/xb-*.npz", "together/*.npz",
    "merges/*.npz", "union/*.npz", "scores/*.npy",
)  # fmt: skip


SENTENCES = {"xa": 90, "yc": 60, "xb": 40}
TEXT = {name: made_up(SYLLABLES[name], n, name) for name, n in SENTENCES.items()}
HELDOUT = {name: made_up(SYLLABLES[name], n + 30, name)[n:] for name, n in SENTENCES.items()}


def run(cache: pathlib.Path, text=TEXT, heldout=HELDOUT, **changed) -> building.BuiltVocabulary:
    return building.build_vocabulary(text, heldout, dataclasses.replace(SETTINGS, **changed), cache)


def stamps(cache: pathlib.Path) -> dict[str, int]:
    """When each entry of a cache was written."""
    files = (path for path in cache.rglob("*") if path.is_file() and path.suffix != ".sha256")
    return {str(path.relative_to(cache)): path.stat().st_mtime_ns for path in files}


def shares_of(table: pretokens.PretokenTable) -> dict[str, float]:
    """Share of the bytes of each language, by runs whose letters only one language has."""
    sizes = dict.fromkeys(SYLLABLES, 0.0)
    for run, count in zip(table.runs(), table.counts.tolist(), strict=True):
        text = run.replace(pretokens.SPACE, " ")
        found = [one for one, known in SYLLABLES.items() if set(text) <= set(" ".join(known))]
        if len(found) == 1:
            sizes[found[0]] += count * len(text.encode())
    return {language: size / sum(sizes.values()) for language, size in sizes.items()}


@contextlib.contextmanager
def watched() -> Iterator[dict[str, mock.Mock]]:
    """Lets all that costs time through, and counts it."""
    functions = (
        (unigram, "train_vocabularies"),
        (pretokens, "count_pretokens"),
        (merge, "fit_scores"),
    )
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(mock.patch.object(module, name, wraps=getattr(module, name)))
            for module, name in functions
        }


class BuildTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.first_cache = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.first = run(cls.first_cache)

    def new_cache(self) -> pathlib.Path:
        return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def copy_of_first_cache(self) -> pathlib.Path:
        return pathlib.Path(shutil.copytree(self.first_cache, self.new_cache() / "copy"))


class ResultTest(BuildTest):
    def test_the_model_has_the_target_size_and_just_the_chosen_pieces(self):
        processor = spm.SentencePieceProcessor(model_proto=self.first.model)
        named = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        self.assertLen(named, SETTINGS.target_size)
        self.assertEqual(tuple(named[:5]), merge.SPECIALS)
        self.assertEqual(tuple(sorted(named[5:])), self.first.choice.pieces)
        for sentences in TEXT.values():
            for sentence in sentences:
                ids = processor.encode(sentence)
                self.assertNotIn(merge.UNK_ID, ids)
                self.assertEqual(processor.decode(ids), sentence)

    def test_scores_are_fitted_on_the_mixture(self):
        tables = {name: language.table for name, language in self.first.languages.items()}
        shares = {name: language.probability for name, language in self.first.languages.items()}
        choice = self.first.choice
        log_probs = merge.fit_scores(
            choice.pieces, choice.scores, pretokens.mixture(tables, shares), 3
        )
        self.assertEqual(merge.write_model(choice.pieces, log_probs), self.first.model)

    def test_scores_of_a_method_are_those_of_its_model_on_heldout_text(self):
        for method in sorted({*METHODS} - {"byte_bpe"}):
            alone = run(self.first_cache, method=method, compare=())
            self.assertEqual(alone.scores, {method: self.first.scores[method]})
            processor = spm.SentencePieceProcessor(model_proto=alone.model)
            self.assertEqual(processor.get_piece_size(), SETTINGS.target_size)
            pieces = [processor.id_to_piece(i) for i in range(5, SETTINGS.target_size)]
            scores = np.array([processor.get_score(i) for i in range(5, SETTINGS.target_size)])
            expected = comparison.score(
                comparison.counter(pieces, scores, alone.choice.kind),
                {lang: pretokens.count_pretokens(sentences) for lang, sentences in TEXT.items()},
                {lang: pretokens.count_pretokens(sentences) for lang, sentences in HELDOUT.items()},
            )
            self.assertEqual(set(alone.scores[method]), set(expected))
            for language, score in alone.scores[method].items():
                self.assertAlmostEqual(score.alp, expected[language].alp, places=3)

    def test_heldout_text_is_scored_and_does_not_matter_otherwise(self):
        cache = self.new_cache()
        without = run(cache, heldout={})
        self.assertEqual(without.model, self.first.model)
        self.assertEqual(without.scores, {method: {} for method in self.first.scores})
        self.assertIsNone(without.languages["xa"].heldout)
        before = stamps(cache)
        some = run(cache, heldout={"yc": HELDOUT["yc"], "zz": ["not trained on"]})
        self.assertEqual(some.scores["joint"], {"yc": self.first.scores["joint"]["yc"]})
        (new,) = set(stamps(cache)) - set(before)
        self.assertStartsWith(new, "tables/yc-heldout-")

    def test_neither_workers_nor_the_order_of_languages_matter(self):
        cache = self.new_cache()
        shuffled = {language: TEXT[language] for language in sorted(TEXT, reverse=True)}
        assert_same(run(cache, shuffled, num_workers=2), self.first)
        self.assertEqual(set(stamps(cache)), set(stamps(self.first_cache)))
        for path in stamps(cache):
            self.assertEqual((cache / path).read_bytes(), (self.first_cache / path).read_bytes())

    def test_tables_of_runs_will_do_instead_of_sentences(self):
        folder, cache = self.new_cache(), self.new_cache()
        paths = {}
        for split, text in (("train", TEXT), ("heldout", HELDOUT)):
            paths[split] = {lang: folder / f"{lang}.{split}.runs.gz" for lang in text}
            for language, path in paths[split].items():
                pretoken_tables.write_table(path, pretokens.count_pretokens(text[language]))
        before = stamps(folder)
        with watched() as calls:
            assert_same(run(cache, paths["train"], paths["heldout"]), self.first)
            calls["count_pretokens"].assert_not_called()
        assert_same(run(cache, {**TEXT, "yc": paths["train"]["yc"]}), self.first)
        self.assertEqual(stamps(folder), before)

    def test_amounts_given_take_the_place_of_the_bytes(self):
        amounts = {"xa": 0.25, "xb": 5, "yc": 0.75, "other": 9}
        cache = self.copy_of_first_cache()
        given = run(cache, amounts=amounts, compare=())
        smoothed = {name: amounts[name] ** 0.7 for name in TEXT}
        for name, language in given.languages.items():
            self.assertEqual(language.amount, amounts[name])
            self.assertAlmostEqual(language.probability, smoothed[name] / sum(smoothed.values()))
        self.assertNotEqual(given.choice.allocation.sizes, self.first.choice.allocation.sizes)
        sizes = {name: language.amount for name, language in self.first.languages.items()}
        assert_same(run(cache, amounts=sizes), self.first)
        with self.assertRaisesRegex(ValueError, "no amount or probability for yc"):
            run(cache, amounts={"xa": 1, "xb": 2})

    def test_sizes_to_begin_at(self):
        more = run(self.first_cache, initial_sizes={"xb": 75}, compare=())
        self.assertGreaterEqual(more.choice.allocation.sizes["xb"], 75)
        self.assertLess(self.first.choice.allocation.sizes["xb"], 75)
        message = "the size 77 for xb, but vocab.sizes are 8, 30, 45, 60, 75, 90; ch"
        with watched() as calls, self.assertRaisesRegex(ValueError, message):
            run(self.new_cache(), initial_sizes={"xb": 77})
        calls["train_vocabularies"].assert_not_called()


class CacheTest(BuildTest):
    @parameterized.parameters(
        ({}, ()),
        ({"num_workers": 2}, ()),
        ({"seed": 1}, ()),
        ({"num_clusters": 1}, ()),
        ({"beta": 3.0}, ("scores",)),
        ({"em_iterations": 2}, ("scores",)),
        ({"alpha": 0.2}, ("merges", "scores", "together")),
        ({"target_size": 140}, ("merges", "scores", "together")),
        ({"amounts": {"xa": 1, "xb": 2, "yc": 3}}, ("merges", "scores", "together")),
        ({"sizes": (30, 50, 70)}, ("scores", "vocabularies")),
        ({"max_piece_length": 5}, ("merges", "scores", "together", "vocabularies")),
        ({"character_coverage": 0.99}, ("merges", "scores", "together", "vocabularies")),
        ({"max_characters": 1000}, ("merges", "scores", "together", "vocabularies")),
    )
    def test_a_changed_setting_makes_anew_what_depends_on_it(self, changed, folders):
        cache = self.copy_of_first_cache()
        before = stamps(cache)
        with watched() as calls:
            run(cache, **{"compare": ("joint", "bpe"), **changed})
        after = stamps(cache)
        self.assertEqual({path: after[path] for path in before}, before)
        new = [pathlib.Path(path).parent.name for path in set(after) - set(before)]
        self.assertEqual(set(new), set(folders))
        trained = new.count("vocabularies") + new.count("together")
        self.assertEqual(calls["train_vocabularies"].call_count, trained)
        self.assertEqual(calls["fit_scores"].call_count, new.count("scores"))
        calls["count_pretokens"].assert_not_called()

    def test_changed_text_makes_anew_what_depends_on_it(self):
        # The amounts given, no probability changes with the text.
        cache, options = self.copy_of_first_cache(), {"amounts": SENTENCES, "compare": ("joint",)}
        run(cache, **options)
        before = stamps(cache)
        run(cache, {**TEXT, "xb": TEXT["xb"][:-1]}, **options)
        after = stamps(cache)
        self.assertEqual({path: after[path] for path in before}, before)
        new = [path.rpartition("-")[0] or path for path in sorted(set(after) - set(before))]
        kinds = ["scores", "scores", "tables/xb", "together", "vocabularies/xb"]
        for path, kind in zip(new, kinds, strict=True):
            self.assertStartsWith(path, kind)

    def test_text_that_moves_to_another_language_is_not_mistaken(self):
        text = {"xa": TEXT["xb"], "xb": TEXT["xa"], "yc": TEXT["yc"]}
        swapped = run(self.copy_of_first_cache(), text)
        assert_same(swapped, run(self.new_cache(), text))

    def test_scores_are_cached_under_where_em_starts_too(self):
        cache = self.copy_of_first_cache()
        first = run(cache, compare=(), em_iterations=0)
        start = np.full(SETTINGS.budget, -2.0)
        choice = dataclasses.replace(first.choice, scores=start)
        with mock.patch.object(methods, "choose", return_value=choice):
            other = run(cache, compare=(), em_iterations=0)
        self.assertEqual(other.model, merge.write_model(choice.pieces, start))

    @parameterized.parameters(
        *((pattern, "flipped") for pattern in ENTRIES),
        *((ENTRIES[-1], damage) for damage in ("cut", "empty", "foreign", "no digest")),
    )
    def test_a_damaged_entry_is_told_and_made_again(self, pattern, damage):
        cache = self.copy_of_first_cache()
        entry = sorted(cache.glob(pattern))[0]
        content, digest = entry.read_bytes(), entry.with_name(f"{entry.name}.sha256")
        flipped, other = content[:-1] + bytes([content[-1] ^ 1]), cache / f"other{entry.suffix}"
        if damage == "no digest":
            digest.unlink()
        elif damage == "foreign":
            with entries.written(other) as aside:
                aside.write_bytes(flipped)
            other.rename(entry)
            other.with_name(f"{other.name}.sha256").rename(digest)
        else:
            entry.write_bytes({"flipped": flipped, "cut": content[:-9], "empty": b""}[damage])
        with self.assertLogs(level="WARNING") as logs:
            assert_same(run(cache), self.first)
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], f"{entry}: damaged.*rebuilding")
        self.assertEqual(entry.read_bytes(), content)

    def test_a_folder_in_place_of_an_entry_is_named_before_training(self):
        cache = self.copy_of_first_cache()
        entry = sorted(cache.glob("vocabularies/yc-*.npz"))[0]
        entry.unlink()
        entry.mkdir()
        with watched() as calls, self.assertRaises(IsADirectoryError) as caught:
            run(cache)
        self.assertEqual(caught.exception.filename, str(entry))
        calls["train_vocabularies"].assert_not_called()


class StoppedTest(BuildTest):
    def test_a_killed_build_goes_on_where_it_was(self):
        cache, savez = self.new_cache(), np.savez

        def killed_at_the_second(path, **arrays) -> None:
            if [*cache.glob("vocabularies/[!.]*.npz")]:
                path.write_bytes(b"half")
                raise KeyboardInterrupt
            savez(path, **arrays)

        with mock.patch.object(np, "savez", killed_at_the_second):
            self.assertRaises(KeyboardInterrupt, run, cache)
        self.assertLen(list(cache.glob("vocabularies/[!.]*.npz")), 1)
        with watched() as calls:
            assert_same(run(cache), self.first)
            # Two languages, joint, one cluster.
            self.assertEqual(calls["train_vocabularies"].call_count, 4)

    @parameterized.parameters(([], 1), (["baba dodo"], 1), (["baba dodo"], 2))
    def test_a_language_too_small_is_named_and_the_others_are_kept(self, sentences, num_workers):
        cache = self.new_cache()
        with self.assertRaisesRegex(ValueError, "language 'xb': none of vocab.sizes 8..90 .*add"):
            run(cache, {"yc": TEXT["yc"], "xb": sentences}, num_workers=num_workers)
        (kept,) = cache.glob("vocabularies/*.npz")
        self.assertIn(kept.name, [p.name for p in self.first_cache.glob("vocabularies/yc-*")])


class TogetherTest(BuildTest):
    def joint_call(self, cache: pathlib.Path, **changed) -> mock._Call:
        with watched() as calls:
            run(cache, method="joint", compare=(), **changed)
        return calls["train_vocabularies"].call_args_list[-1]

    def test_of_much_text_the_most_frequent_runs_at_the_same_shares(self):
        max_characters = 200
        shares = {name: language.probability for name, language in self.first.languages.items()}
        options = {"max_characters": max_characters, "target_size": 65, "sizes": (30,)}
        with watched() as calls:
            run(self.new_cache(), method="joint", compare=(), **options)
        *alone, joint = (call.args[0] for call in calls["train_vocabularies"].call_args_list)
        (fitted,) = (call.args[2] for call in calls["fit_scores"].call_args_list)
        self.assertEqual(fitted.runs(), joint.runs())
        for table in (*alone, joint):
            self.assertBetween(len(table.text.characters), 0.8 * max_characters, max_characters)
        for language, share in shares_of(joint).items():
            self.assertAlmostEqual(share, shares[language], delta=0.02)

    def test_sentences_are_drawn_at_the_shares_by_the_seed(self):
        cache = self.new_cache()
        options = {"trainer": "sentencepiece", "amounts": {"xa": 1, "xb": 3, "yc": 2}, "alpha": 1}
        first = self.joint_call(cache, **options)
        found = shares_of(pretokens.count_pretokens(first.args[2]))
        for language, share in {"xa": 1 / 6, "xb": 1 / 2, "yc": 1 / 3}.items():
            self.assertAlmostEqual(found[language], share, delta=0.05)
        again = self.joint_call(self.new_cache(), **options)
        self.assertEqual(again.args[2], first.args[2])
        other = self.joint_call(cache, **options, seed=1)
        self.assertNotEqual(other.args[2], first.args[2])
