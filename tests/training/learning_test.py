"""Pre-training lowers the exact loss of held-out text."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest

from configs import quickstart
from input_pipeline.packed_dataset import PackedDataset
from tests import factories
from tests.factories import SPECIAL_IDS
from tests.input_pipeline.reading import pack_rows
from xlm.experiment import evaluators, objectives, streams
from xlm.experiment import model as builders
from xlm.training.loop import train

VOCAB, L, NUM_STEPS = 64, 16, 30


def write_store(folder: pathlib.Path) -> PackedDataset:
    """Documents of tokens of which each is half as frequent as the one before it."""
    rng, statistics = np.random.default_rng(0), {}
    for split, count in (("train", 200), ("heldout", 20)):
        tokens = 5 + np.minimum(rng.geometric(0.5, (count, L - 2)), VOCAB - 6)
        rows = pack_rows(list(tokens), L, SPECIAL_IDS, np.dtype(np.uint16))
        np.save(folder / f"aa.{split}.npy", rows)
        numbers = {"tokens": tokens.size, "characters": 3 * tokens.size}
        statistics[split] = {"rows": len(rows), **numbers}
        if split == "train":
            np.save(folder / "aa.counts.npy", np.bincount(tokens.reshape(-1), minlength=VOCAB))
    return PackedDataset(folder, VOCAB, L, "", SPECIAL_IDS, {"aa": statistics}, {})


class LearningTest(absltest.TestCase):
    def test_k_nn_sampling_lowers_the_exact_loss(self):
        config = quickstart.get_config("runlocal")
        config.model.update(num_layers=1, max_length=L)
        config.mesh.vocab_multiple = 8
        config.output_layer.update(
            k=8, capacity=VOCAB, refresh_every=10, full_softmax_fraction=0.0, frequency_bias=False
        )
        config.optimizer.learning_rate = 0.03
        config.train.update(num_steps=NUM_STEPS, batch_size=16, checkpoint_every=NUM_STEPS)
        config.evaluation.max_sequences = 0
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        store = write_store(folder)
        mesh = factories.one_device(config)
        objective = objectives.objective(config, store, mesh)
        functions = builders.train_functions(config, objective, mesh)
        evaluator = evaluators.exact_masked_lm(config, objective, store, mesh, in_training=False)

        first = evaluator.run(functions.init(np.int32(config.train.seed)).params)["aa"]
        data, settings = streams.training_data(config, store, mesh), builders.train_settings(config)
        last = evaluator.run(train(functions, settings, folder, data).params)["aa"]
        # The text has no more to learn than how frequent each token is.
        self.assertLess(last.loss, 1.1 * first.unigram)
        self.assertGreater(first.loss, 2 * last.loss)
