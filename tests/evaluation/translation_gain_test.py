"""Losses beside a translation, against single sentences, and their invariances."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.packed_dataset import PackedDataset, pad_sentences
from tests import factories, folders
from tests.evaluation.retrieval_test import sentences
from tests.factories import SPECIAL_IDS as SPECIAL
from xlm.evaluation.masked_lm import deal_folds
from xlm.evaluation.translation_gain import TranslationGain
from xlm.models.encoder import run_encoder

VOCAB, L, FOLDS = 32, 24, 3
OBJECTIVE = factories.masked_lm(
    factories.output_layer_settings(kind="full"),
    factories.encoder_settings(max_length=L, dropout_rate=0.0),
    num_valid=VOCAB,
)
PARAMS = factories.random_params(OBJECTIVE, 0.5)


class TranslationGainTest(folders.FolderTest, parameterized.TestCase):
    def run_on(self, columns: dict[str, list[np.ndarray]], **changes):
        for language, column in columns.items():
            rows = pad_sentences(column, 12, SPECIAL, np.dtype(np.uint16))
            np.save(self.folder / f"core.{language}.parallel.npy", rows)
        dataset = PackedDataset(self.folder, VOCAB, L, "", SPECIAL, {}, {"core": tuple(columns)})
        settings = {
            "pivot": "en", "positions_restart": False, "num_folds": FOLDS, "batch_size": 4,
            "max_sentences": 0, "seed": 3, **changes,
        }  # fmt: skip
        return TranslationGain(OBJECTIVE, dataset, **settings).run(PARAMS)["core"]

    def loss(self, tokens: list[int], places: list[int], positions: list[int]) -> float:
        """Loss of the masked tokens at `places` of one segment."""
        row, masked = np.array([tokens]), np.array([tokens])
        masked[0, places] = OBJECTIVE.mask_id
        params = OBJECTIVE.encoder_params(PARAMS)
        states = run_encoder(
            OBJECTIVE.encoder, params, masked, np.ones_like(row), np.array([positions]), key=None
        )
        table, bias = OBJECTIVE.output_table(PARAMS)
        hidden = OBJECTIVE.predicted(PARAMS, states, np.array([places]))[0]
        log_probs = jax.nn.log_softmax((hidden @ table.T + bias[None])[:, :VOCAB])
        return -float(jnp.take_along_axis(log_probs, row[0, places][:, None], axis=1).sum())

    @parameterized.parameters(False, True)
    def test_as_sentences_one_by_one(self, restart):
        """Without padding, other sentences, or segments."""
        sw, en = sentences(0), sentences(1)
        found = self.run_on({"en": en, "sw": sw}, positions_restart=restart)["sw"]
        text = np.full((len(sw), L), SPECIAL.pad)
        for row, one in zip(text, sw, strict=True):
            row[: len(one) + 3] = [SPECIAL.bos, *one, SPECIAL.eos, SPECIAL.eos]
        folds = deal_folds(text, OBJECTIVE.special_ids, FOLDS, np.random.default_rng(3))
        alone, beside = [], []
        for one, two, fold in zip(sw, en, folds, strict=True):
            places = np.flatnonzero(fold == 0).tolist()
            first = [SPECIAL.bos, *one.tolist(), SPECIAL.eos]
            second = [SPECIAL.eos, *two.tolist(), SPECIAL.eos]
            start = 0 if restart else len(first)
            positions = [*range(len(first)), *range(start, start + len(second))]
            alone.append(self.loss(first, places, positions[: len(first)]))
            beside.append(self.loss(first + second, places, positions))
        counts = (folds == 0).sum(axis=1)
        self.assertEqual(found.tokens, counts.sum())
        self.assertAlmostEqual(found.alone, sum(alone) / counts.sum(), places=5)
        self.assertAlmostEqual(found.translated, sum(beside) / counts.sum(), places=5)
        gains = np.subtract(alone, beside)
        apart = gains - gains.sum() / counts.sum() * counts
        error = np.sqrt(len(gains) * (apart**2).sum() / (len(gains) - 1)) / counts.sum()
        self.assertAlmostEqual(found.error, error, places=5)

    def test_only_the_loss_beside_it_depends_on_the_translation(self):
        sw, none = sentences(0), np.array([], int)
        one, other = (self.run_on({"en": sentences(seed), "sw": sw})["sw"] for seed in (1, 2))
        self.assertAlmostEqual(one.alone, other.alone, places=6)
        self.assertNotAlmostEqual(one.translated, other.translated, places=3)
        # Sentences and languages without translations are left out.
        gaps = {"en": sentences(1), "sw": [none, *sw[1:]], "ka": [none] * len(sw)}
        found = self.run_on(gaps)
        self.assertEqual(list(found), ["sw"])
        kept = {"en": sentences(1)[1:], "sw": sw[1:]}
        self.assertEqual(
            dataclasses.asdict(found["sw"]), dataclasses.asdict(self.run_on(kept)["sw"])
        )
