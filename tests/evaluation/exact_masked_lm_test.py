"""The exact evaluation: each held-out token once, against a slow softmax and by hand."""

import dataclasses
import functools
import math
import pathlib
import tempfile
import types

import jax
import numpy as np
from absl.testing import parameterized

from input_pipeline.packed_dataset import PackedDataset
from tests import factories
from tests.factories import SPECIAL_IDS as SPECIAL
from tests.input_pipeline.reading import pack_rows
from xlm.evaluation.masked_lm import ExactMaskedLM, LanguageLoss
from xlm.models.encoder import output_table
from xlm.objectives.masked_lm import MaskedLM

VOCAB, L = 30, 16
FOLDS = 3
OBJECTIVE = factories.masked_lm(
    # Only training samples; evaluation is exact and without dropout.
    factories.output_layer_settings(k=2, capacity=16, log_q_correction=True, frequency_bias=True),
    factories.encoder_settings(dropout_rate=0.5, attention_dropout_rate=0.5),
)


@functools.cache
def params():
    return factories.random_params(OBJECTIVE, 0.5)


def write_dataset(folder: pathlib.Path, num_heldout: dict[str, int]) -> PackedDataset:
    """Write languages with numbers of held-out documents, each with text of its own."""
    statistics = {}
    for place, (language, count) in enumerate(num_heldout.items()):
        rng = np.random.default_rng(place)
        train, heldout = (
            [rng.integers(3 + place, VOCAB - place, rng.integers(2, 20)) for _ in range(n)]
            for n in (9, count)
        )
        heldout = [np.where(tokens == SPECIAL.mask, 5, tokens) for tokens in heldout]
        rows = pack_rows(heldout, L, SPECIAL, np.dtype(np.uint16))
        np.save(folder / f"{language}.heldout.npy", rows)
        counts = np.bincount(np.concatenate(train), minlength=VOCAB)
        np.save(folder / f"{language}.counts.npy", counts)
        tokens = sum(map(len, heldout))
        statistics[language] = {"heldout": {"tokens": tokens, "characters": 3 * tokens + place}}
    return PackedDataset(folder, VOCAB, L, "", SPECIAL, statistics, {})


class TestCase(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.dataset = write_dataset(cls.folder, {"aa": 5, "bb": 3, "none": 0})
        cls.rows = {lang: cls.dataset.rows(lang, "heldout")[:].astype(int) for lang in ("aa", "bb")}
        cls.text = {lang: x[~np.isin(x, SPECIAL.special_ids())] for lang, x in cls.rows.items()}

    def evaluator(self, objective: MaskedLM = OBJECTIVE, **kwargs) -> ExactMaskedLM:
        settings = {"num_folds": FOLDS, "batch_size": 4, "max_sequences": 0, "seed": 0, **kwargs}
        return ExactMaskedLM(objective, self.dataset, **settings)

    def assert_close(self, found: dict[str, LanguageLoss], expected: dict[str, LanguageLoss]):
        self.assertEqual(list(found), list(expected))
        for language in expected:
            np.testing.assert_allclose(
                dataclasses.astuple(found[language]),
                dataclasses.astuple(expected[language]),
                rtol=1e-5,
            )


class LossTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.exact = cls().evaluator()
        cls.results = cls.exact.run(params())

    def test_equals_a_slow_softmax_fold_by_fold(self):
        predict = jax.jit(OBJECTIVE.predictions)
        table, bias = (np.asarray(x, np.float64)[:VOCAB] for x in output_table(params()))
        folds = self.exact._folds  # the evaluator assigns tokens to folds
        for language, rows in self.rows.items():
            losses = []
            for row, fold in zip(rows, folds[language], strict=True):
                for masked in (fold == f for f in range(FOLDS)):
                    inputs = np.where(masked, SPECIAL.mask, row)[None].astype(np.int32)
                    hidden = np.asarray(predict(params(), inputs, np.arange(L)[None])[0])
                    for at in np.flatnonzero(masked):
                        exps = np.exp(hidden[at].astype(np.float64) @ table.T + bias)
                        losses.append(-np.log(exps[row[at]] / exps.sum()))
            self.assertLen(losses, len(self.text[language]))  # each token once
            self.assertEqual(self.results[language].tokens, len(losses))
            self.assertAlmostEqual(self.results[language].loss, np.mean(losses), places=4)

    def test_neither_output_layer_nor_batch_size_matters(self):
        for kind in ("full", "blockwise", "nce"):
            layer = factories.output_layer_settings(kind=kind)
            objective = factories.masked_lm(layer, OBJECTIVE.encoder.settings)
            self.assert_close(self.evaluator(objective=objective).run(params()), self.results)
        self.assertNotEqual(sum(map(len, self.rows.values())) % 3, 0)
        self.assert_close(self.evaluator(batch_size=3).run(params()), self.results)

    def test_a_seed_deals_the_folds(self):
        folds = np.concatenate(list(self.exact._folds.values()))
        for fold in folds:
            sizes = np.bincount(fold[fold >= 0], minlength=FOLDS)
            self.assertLessEqual(sizes.max() - sizes.min(), 1)
        again, other = (self.evaluator(seed=seed)._folds for seed in (0, 1))
        np.testing.assert_array_equal(np.concatenate(list(again.values())), folds)
        self.assertFalse(np.array_equal(np.concatenate(list(other.values())), folds))

    def test_fewer_rows_and_none(self):
        found = self.evaluator(max_sequences=1).run(params())
        for language, rows in self.rows.items():
            count = (~np.isin(rows[0], SPECIAL.special_ids())).sum()
            self.assertEqual(found[language].tokens, count)
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        none = write_dataset(folder, {"aa": 0})
        with self.assertRaisesRegex(ValueError, "no held-out rows .* corpus.heldout_fraction"):
            ExactMaskedLM(OBJECTIVE, none, num_folds=2, batch_size=4, max_sequences=0, seed=0)

    def test_metrics_bits_and_unigram_by_hand(self):
        values = self.exact(types.SimpleNamespace(params=params()))
        losses = {f"eval/loss/{lang}": result.loss for lang, result in self.results.items()}
        self.assertEqual(values, {"eval/loss": np.mean(list(losses.values())), **losses})
        for place, (language, text) in enumerate(self.text.items()):
            found, count = self.results[language], len(text)
            bits = found.loss * count / math.log(2) / (3 * count + place)
            self.assertAlmostEqual(found.bits_per_character, bits, places=6)
            counts = self.dataset.token_counts(language).tolist()
            for special in SPECIAL.special_ids():
                counts[special] = 0
            num_tokens, num_types = sum(counts), sum(count > 0 for count in counts)
            total = 0.0
            for token in text:
                seen = num_tokens / (num_tokens + num_types) * counts[token] / num_tokens
                total -= math.log(seen + num_types / (num_tokens + num_types) / VOCAB)
            self.assertAlmostEqual(found.unigram, total / len(text), places=6)
