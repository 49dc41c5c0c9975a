"""Shares of frequency classes against plain sums; growth of ALP of synthetic builds."""

import pathlib
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import PACKED
from research import alp_growth
from research.mass import classes_of, measure, shares
from tests import factories
from xlm.objectives.objective import Batch


class PredictedMassTest(absltest.TestCase):
    def test_classes_follow_the_counts(self):
        counts = np.array([5.0, 9, 0, 7, 1, 3, 0, 0])
        classes = classes_of(counts, [1, 3], vocab_size=7)
        # Ranks 2, 0, 5, 1, 4, 3 and 6; the last token only pads the table.
        np.testing.assert_array_equal(classes, [1, 0, 2, 1, 2, 2, 2, 3])

    def test_shares(self):
        rng = np.random.default_rng(0)
        probabilities = rng.dirichlet(np.ones(6), size=4).astype(np.float32)
        targets, weights = np.array([0, 5, 2, 3]), np.array([1, 1, 0, 1], np.float32)
        classes = np.array([0, 0, 1, 1, 2, 2])
        found = jax.jit(shares, static_argnums=4)(probabilities, targets, weights, classes, 3)
        counted = [0, 1, 3]
        given = probabilities[counted].sum(axis=0).reshape(3, 2).sum(axis=1)
        losses = -np.log(probabilities[counted, targets[counted]])
        expected = [[1, 1, 1], given, [losses[0], losses[2], losses[1]]]
        np.testing.assert_allclose(found, expected, rtol=1e-5)

    def test_a_model_is_measured_on_all_held_out_rows_by_its_exact_loss(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        languages = {"aa": factories.packed_tokens(), "bb": factories.packed_tokens(seed=1)}
        for language, tokens in languages.items():
            np.save(folder / f"{language}.heldout.npy", tokens.astype(np.uint16))
        dataset = PackedDataset(folder, 30, 16, "", factories.SPECIAL_IDS, {"aa": {}, "bb": {}}, {})
        objective = factories.masked_lm(languages=("aa", "bb"))
        params = factories.random_params(objective)
        classes = np.where(np.arange(32) < 30, np.arange(32) % 3, 3)
        targets, given, losses = measure(objective, params, dataset, classes, max_sequences=3)

        @jax.jit
        def exact_loss(tokens):
            arrays = {"tokens": tokens, "language": jnp.zeros(3, jnp.int32)}
            key, step = jax.random.key(0), jnp.int32(0)
            plan, _ = objective.exact.plan({}, Batch(arrays, PACKED), key, step)
            return objective.exact.loss(params, {}, plan, None)[0]["loss"]

        expected = sum(np.array(exact_loss(tokens[:3])) for tokens in languages.values())
        np.testing.assert_allclose([losses.sum(), targets.sum()], expected, rtol=1e-5)
        np.testing.assert_allclose(given.sum(), targets.sum(), rtol=1e-5)
        self.assertEqual((given[3], targets[3]), (0, 0))  # the padding of the table


def build(size: int, joint: float, vocap: float) -> dict[str, Any]:
    """Record of a build with scores of two languages; Swahili has one nat less."""
    return {
        "settings": {"method": "vocap", "compare": ["joint", "uniform"], "target_size": size},
        "languages": {
            name: {"sizes": [500, 1000], "alp": [-90.0, -80.0], "amount": amount, "resource": third}
            for name, amount, third in (("en", 5, "mid"), ("sw", 9, "high"), ("ka", 1, "low"))
        },
        "scores": {
            method: {"en": {"alp": alp}, "sw": {"alp": alp - 1}}
            for method, alp in (("vocap", vocap), ("joint", joint))
        },
    }


class AlpGrowthTest(absltest.TestCase):
    def test_steps(self):
        found = alp_growth.gains([500, 1000, 1500, 2000, 4000], [-9, -8, -6, -3, -1], 1000)
        self.assertEqual(found, {2000: 5})  # 500 to 1,500 is no multiple, and 3,000 is not trained
        count, risen = alp_growth.rises({1000: 5, 2000: 3, 3000: 4, 5000: 9}, 1000)
        self.assertEqual((count, risen), (2, {3000: 1}))

    def test_methods(self):
        records = [build(60_000, -80, -80), build(120_000, -79, -70), build(240_000, -79.5, -60)]
        head, _, *rows = alp_growth.method_table(records).splitlines()
        self.assertEqual(head, "| languages | method | 60,000 pieces | to 120,000 | to 240,000 |")
        self.assertIn("| high (1) | vocap | -81.0 | +10.00 | +20.00 |", rows)
        self.assertIn("| all (2) | joint | -80.5 | +1.00 | +0.50 |", rows)
        self.assertNotIn("uniform", " ".join(rows))  # has no scores
