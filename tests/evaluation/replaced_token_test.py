"""Scores of a discriminator: against slow loops, and invariances."""

import dataclasses
import functools
import pathlib
import tempfile
import types
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

from input_pipeline.packed_dataset import PackedDataset, pad_sentences
from tests import factories
from tests.evaluation.exact_masked_lm_test import write_dataset
from tests.factories import EOS, MASK, SPECIAL, SPECIAL_IDS, UNK
from xlm.evaluation import replaced_token
from xlm.evaluation.replaced_token import FROZEN, OWN, UNIGRAM, Detection
from xlm.objectives.replaced_token import DISCRIMINATOR, GENERATOR, HEAD, ReplacedToken
from xlm.objectives.settings import MaskSettings

# Only training samples classes; replacements are from the whole vocabulary.
OBJECTIVE = factories.replaced_token(
    factories.output_layer_settings(k=2, capacity=16), languages=("aa", "bb")
)
NAMES = ("auc", "precision", "recall", "replaced", "loss")


@functools.cache
def params():
    """Parameters that call about half of the tokens replaced."""
    found = factories.random_params(OBJECTIVE, 0.5)
    output = found[HEAD]["output"]
    output["bias"] -= np.median(jax.jit(OBJECTIVE.logits)(found, factories.packed_tokens()))
    return found


def changed(names: tuple[str, ...]):
    """Parameters with some parts changed."""
    return {
        name: jax.tree.map(lambda x: x[::-1].copy(), part) if name in names else part
        for name, part in params().items()
    }


def slow_detection(logits: list[float], is_replaced: list[bool]) -> Detection:
    """Scores by loops over tokens and token pairs."""
    replaced = [x for x, of in zip(logits, is_replaced, strict=True) if of]
    original = [x for x, of in zip(logits, is_replaced, strict=True) if not of]
    wins = sum((a > b) + (a == b) / 2 for a in replaced for b in original)
    found = [of for x, of in zip(logits, is_replaced, strict=True) if x > 0]
    losses = [
        -np.log(1 / (1 + np.exp(-x)) if of else 1 - 1 / (1 + np.exp(-x)))
        for x, of in zip(logits, is_replaced, strict=True)
    ]
    return Detection(
        auc=wins / (len(replaced) * len(original)) if replaced and original else np.nan,
        precision=sum(found) / len(found) if found else np.nan,
        recall=sum(x > 0 for x in replaced) / len(replaced) if replaced else np.nan,
        replaced=len(replaced) / len(logits), loss=float(np.mean(losses)), tokens=len(logits),
    )  # fmt: skip


def assert_close(found: Detection, expected: Detection, rtol: float = 1e-5):
    np.testing.assert_allclose(dataclasses.astuple(found), dataclasses.astuple(expected), rtol=rtol)


class DetectionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("many", 300, 0.2), ("none is replaced", 40, 0.0), ("all are", 40, 1.0)
    )
    def test_equals_loops(self, _, size, rate):
        rng = np.random.default_rng(0)
        is_replaced = rng.random(size) < rate
        logits = rng.integers(-8, 9, size) / 4 + is_replaced  # with ties
        found = replaced_token.detection(logits.astype(np.float32), is_replaced)
        assert_close(found, slow_detection(logits.tolist(), is_replaced.tolist()), 1e-9)

    def test_large_logits_and_no_finding(self):
        found = replaced_token.detection(np.float32([-200.0, 300.0]), np.array([True, False]))
        self.assertEqual(found.loss, 250.0)
        found = replaced_token.detection(np.float32([-1.0, -2.0]), np.array([True, False]))
        np.testing.assert_equal((found.precision, found.recall), (np.nan, 0.0))


class UnigramCorruptionTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rng = np.random.default_rng(1)
        cls.rows = rng.integers(0, 12, (400, 100)).astype(np.int32)
        # The training text lacks some pieces, also the last ones.
        cls.counts = np.array([7, 7, 7, 0, 7, 0, 10, 20, 30, 40, 0, 0, 0, 0])
        cls.is_text = ~np.isin(cls.rows, SPECIAL)

    def corrupt(self, rate: float = 1.0, seed: int = 0) -> np.ndarray:
        return replaced_token.unigram_corruption(self.rows, self.counts, rate, SPECIAL, [seed, 3])

    def test_samples_are_of_the_unigram_distribution(self):
        found = self.corrupt()
        self.assertEqual(found.dtype, np.int32)
        np.testing.assert_array_equal(found[~self.is_text], self.rows[~self.is_text])
        for special in SPECIAL:
            np.testing.assert_array_equal(found == special, self.rows == special)
        of_text = found[self.is_text]
        expected = self.counts.astype(float)
        expected[list(SPECIAL)] = 0
        expected /= expected.sum()
        shares = np.bincount(of_text, minlength=14) / len(of_text)
        np.testing.assert_array_equal(shares[expected == 0], 0)
        deviations = np.sqrt(expected * (1 - expected) / len(of_text))
        self.assertLess((np.abs(shares - expected) / np.maximum(deviations, 1e-9)).max(), 4)
        # A sample is independent of the token in its place.
        for token in (UNK, 9):
            chosen = found[self.rows == token]
            deviation = np.sqrt(0.4 * 0.6 / len(chosen))
            self.assertLess(abs((chosen == 9).mean() - 0.4) / deviation, 4)

    def test_the_least_random_number_draws_a_token_that_occurs(self):
        rng = mock.Mock(random=np.zeros)
        with mock.patch.object(np.random, "default_rng", lambda _: rng):
            found = self.corrupt()
        self.assertEqual(set(found[self.is_text].tolist()), {6})

    @parameterized.parameters(0.0, 0.15, 0.6)
    def test_rate(self, rate):
        rare = self.is_text & (self.rows == 5)  # never drawn
        found = (self.corrupt(rate) != self.rows)[rare]
        deviation = np.sqrt(rate * (1 - rate) / len(found))
        self.assertLessEqual(abs(found.mean() - rate), 4 * deviation)


class RunTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.dataset: PackedDataset = write_dataset(folder, {"aa": 9, "bb": 4, "none": 0})
        cls.rows = {lang: cls.dataset.rows(lang, "heldout")[:].astype(int) for lang in ("aa", "bb")}
        cls.evaluator = cls().of(frozen=(OBJECTIVE, params()))
        cls.results = cls.evaluator.run(params())

    def of(self, **changes) -> replaced_token.ReplacedTokenDetection:
        settings = {"rate": 0.3, "batch_size": 4, "max_sequences": 0, "seed": 0, **changes}
        return replaced_token.ReplacedTokenDetection(OBJECTIVE, self.dataset, **settings)

    def texts(self, corruption: str) -> dict[str, np.ndarray]:
        return self.evaluator._fixed[corruption]  # the evaluator draws samples

    def test_equals_a_slow_reference_language_by_language(self):
        logits_of = jax.jit(OBJECTIVE.logits)
        self.assertEqual(list(self.results), [OWN, UNIGRAM, FROZEN])
        self.assertTrue(
            np.isin(self.texts(FROZEN)["aa"], SPECIAL)[~np.isin(self.rows["aa"], SPECIAL)].any()
        )
        for corruption in (UNIGRAM, FROZEN):
            self.assertEqual(list(self.results[corruption]), list(self.rows))
            for language, rows in self.rows.items():
                texts = self.texts(corruption)[language]
                self.assertEqual(texts.shape, rows.shape)
                logits, is_replaced = [], []
                for row, text in zip(rows, texts, strict=True):
                    # Sampled special tokens do not end documents.
                    found = np.asarray(logits_of(params(), text[None], row[None]))[0]
                    for at in np.flatnonzero(~np.isin(row, SPECIAL)):
                        logits.append(float(found[at]))
                        is_replaced.append(bool(text[at] != row[at]))
                self.assertBetween(sum(is_replaced), 5, len(logits) - 5)
                expected = slow_detection(logits, is_replaced)
                assert_close(self.results[corruption][language], expected)

    def test_its_own_samples_are_those_of_the_same_generator_frozen(self):
        for language, rows in self.rows.items():
            assert_close(self.results[OWN][language], self.results[FROZEN][language], 0)
            texts = self.texts(FROZEN)[language]
            is_text = ~np.isin(rows, SPECIAL)
            np.testing.assert_array_equal(texts[~is_text], rows[~is_text])
            self.assertLess(texts.max(), 30)

    def test_what_is_fixed_does_not_follow_the_parameters(self):
        found = self.evaluator.run(changed((GENERATOR, DISCRIMINATOR, HEAD)))
        for language in self.rows:
            for corruption in (UNIGRAM, FROZEN):
                one, other = (of[corruption][language] for of in (found, self.results))
                self.assertEqual(one.replaced, other.replaced)
                self.assertNotEqual(one.loss, other.loss)
        texts = self.texts(FROZEN)
        again = self.of(frozen=(OBJECTIVE, changed((DISCRIMINATOR, HEAD))))._fixed[FROZEN]
        jax.tree.map(np.testing.assert_array_equal, again, texts)
        other = self.of(frozen=(OBJECTIVE, changed((GENERATOR,))))._fixed[FROZEN]
        self.assertGreater((other["aa"] != texts["aa"]).mean(), 0.03)

    def test_fewer_sequences_and_another_seed(self):
        few = self.of(max_sequences=2)
        self.assertEqual({lang: len(rows) for lang, rows in few._rows.items()}, {"aa": 2, "bb": 2})
        np.testing.assert_array_equal(few._rows["aa"][0], self.rows["aa"][0])
        self.assertNotIn(FROZEN, few._fixed)
        other = self.of(seed=1)._fixed[UNIGRAM]["aa"]
        self.assertGreater((other != self.texts(UNIGRAM)["aa"]).mean(), 0.1)

    def test_as_metrics_of_a_run(self):
        values = self.evaluator(types.SimpleNamespace(params=params()))
        expected = {}
        for corruption, found in self.results.items():
            for name in NAMES:
                mean = np.mean([getattr(one, name) for one in found.values()])
                expected[f"rtd/{corruption}/{name}"] = mean
            for language, one in found.items():
                expected[f"rtd/{corruption}/auc/{language}"] = one.auc
                expected[f"rtd/{corruption}/precision/{language}"] = one.precision
                expected[f"rtd/{corruption}/recall/{language}"] = one.recall
        self.assertEqual(values.keys(), expected.keys())
        for name in expected:
            self.assertAlmostEqual(values[name], expected[name], places=6, msg=name)

    def test_a_language_without_replaced_tokens_is_left_out_of_the_means(self):
        one = self.results[UNIGRAM]["aa"]
        other = dataclasses.replace(one, auc=np.nan, recall=np.nan, precision=0.0, replaced=0.0)
        none = dataclasses.replace(other, precision=np.nan)
        results = {UNIGRAM: {"aa": one, "bb": other}, OWN: {"aa": none, "bb": none}}
        self.enter_context(mock.patch.object(self.evaluator, "run", lambda _: results))
        values = self.evaluator(types.SimpleNamespace(params=params()))
        self.assertEqual(values["rtd/unigram/auc"], one.auc)
        self.assertEqual(values["rtd/unigram/precision"], one.precision / 2)
        self.assertNotIn("rtd/own/auc", values)
        self.assertNotIn("rtd/unigram/auc/bb", values)
        self.assertEqual(values["rtd/unigram/precision/bb"], 0)
        self.assertNotIn("rtd/own/precision/aa", values)
        self.assertEqual(values["rtd/own/replaced"], 0)


class PairsTest(parameterized.TestCase):
    """With all tokens of both sides masked, the generator sees only lengths."""

    objective = dataclasses.replace(
        OBJECTIVE,
        generator=dataclasses.replace(
            OBJECTIVE.generator, mask=MaskSettings(0.2, 1.0, 0.0, pair_rate=0.99)
        ),
    )

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        rng = np.random.default_rng(0)
        cls.columns = {
            lang: [rng.integers(MASK + 1, 30, rng.integers(1, 6)) for _ in range(7)]
            for lang in ("en", "ka", "sw")
        }
        for language, column in cls.columns.items():
            rows = pad_sentences(column, 12, SPECIAL_IDS, np.dtype(np.uint16))
            np.save(cls.folder / f"core.{language}.parallel.npy", rows)

    def run_on(self, restart: bool, objective: ReplacedToken, batch_size: int = 7):
        sets = {"core": ("en", "ka", "sw")}
        dataset = PackedDataset(self.folder, 30, 16, "", SPECIAL_IDS, {}, sets)
        evaluator = replaced_token.PairReplacedTokenDetection(
            objective, dataset, pivot="en", positions_restart=restart, batch_size=batch_size,
            max_sentences=0, seed=3,
        )  # fmt: skip
        return evaluator, evaluator.run(params())

    @parameterized.parameters(False, True)
    def test_as_pairs_one_by_one(self, restart):
        evaluator, results = self.run_on(restart, self.objective)
        self.assertEqual({name: list(of) for name, of in results.items()},
                         {"core": ["ka-en", "sw-en"]})  # fmt: skip
        one, pairs = self.objective, zip(self.columns["sw"], self.columns["en"], strict=True)
        logits, is_replaced, total, count = [], [], 0.0, 0
        rows = np.full((7, 16), 1)
        for row, (sw, en) in zip(rows, pairs, strict=True):
            row[: len(sw) + len(en) + 4] = [0, *sw, EOS, EOS, *en, EOS]
        seconds = np.array([[len(sw) + 2] for sw in self.columns["sw"]])
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 1), 0)
        corrupted = np.asarray(evaluator._step(params(), rows, seconds, key)[0])
        table, bias = one.generator.output_table(params())
        for row, text, (second,) in zip(rows, corrupted, seconds, strict=True):
            size = int((row != 1).sum())
            places = np.arange(size) - second * (np.arange(size) >= second) * restart
            layout = np.ones((1, size), int), places[None]
            at = np.flatnonzero(~np.isin(row[:size], SPECIAL))
            found = one.logits(params(), text[None, :size], layout=layout)[0]
            logits += np.asarray(found)[at].tolist()
            is_replaced += (text[at] != row[at]).tolist()
            masked = np.where(np.isin(row, SPECIAL), row, MASK)[None, :size]
            hidden = one.generator.predictions(params(), masked, at[None], layout)[0]
            scores = np.asarray(hidden) @ np.asarray(table).T + np.asarray(bias)
            log_probs = np.asarray(jax.nn.log_softmax(scores[:, :30]))
            total -= log_probs[np.arange(len(at)), row[at]].sum()
            count += len(at)
        found = results["core"]["sw-en"]
        self.assertBetween(sum(is_replaced), 5, len(logits) - 1)
        assert_close(Detection(*dataclasses.astuple(found)[:-1]),
                     slow_detection(logits, is_replaced))  # fmt: skip
        self.assertAlmostEqual(found.generator_loss, total / count, places=5)

    def test_at_the_rate_of_pairs_in_any_batches(self):
        """The loss has only masked tokens: all here, fewer at the rate of text."""
        (_, one), (_, other) = (self.run_on(False, self.objective, size) for size in (7, 3))
        for pair, found in one["core"].items():
            self.assertAlmostEqual(
                found.generator_loss, other["core"][pair].generator_loss, places=5
            )
            self.assertEqual(found.tokens, other["core"][pair].tokens)
        mask = MaskSettings(0.99, 1.0, 0.0, pair_rate=0.1)
        generator = dataclasses.replace(self.objective.generator, mask=mask)
        _, few = self.run_on(False, dataclasses.replace(self.objective, generator=generator))
        self.assertLess(few["core"]["sw-en"].replaced, one["core"]["sw-en"].replaced / 2)
