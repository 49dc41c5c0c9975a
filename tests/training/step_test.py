"""Random keys of a step: another one for every step and seed, and nothing else."""

import dataclasses

import jax
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.stream import PACKED
from tests import factories
from xlm.objectives.objective import Batch
from xlm.objectives.settings import MaskSettings
from xlm.training.accumulation import Accumulation

SOME, ALL = MaskSettings(0.3, 1.0, 0.0), MaskSettings(0.99, 1.0, 0.0)
# What is random about the loss of a batch, each alone: kind of output layer, dropout, masks.
MASKS, DROPOUT, SAMPLES = ("full", 0.0, SOME), ("full", 0.5, ALL), ("nce", 0.0, ALL)
NOTHING = ("full", 0.0, ALL)
TOLERANCE = 1e-4  # of a sum of 40 losses in another order


def losses(random, **kwargs) -> list[float]:
    """Two steps on one batch, of seeds 0, 0 and 1; nothing is learned."""
    kind, dropout_rate, mask = random
    objective = factories.masked_lm(
        factories.output_layer_settings(kind=kind, num_negatives=5),
        factories.encoder_settings(num_layers=0, dropout_rate=dropout_rate),
        mask=mask,
    )
    optimizer = factories.optimizer_settings(learning_rate=0.0)
    functions = factories.train_functions(objective, optimizer, **kwargs)
    params = factories.random_params(objective)
    batch = Batch({"tokens": factories.packed_tokens()}, PACKED)

    @jax.jit
    def two_steps(seed, params, batch):
        def step(state, _):
            state, metrics = functions.train_step(objective, state, batch)
            return state, metrics["loss"][0]

        first = dataclasses.replace(functions.init(seed), params=params)
        return jax.lax.scan(step, first, length=2)[1]

    found = [two_steps(np.int32(seed), params, batch) for seed in (0, 0, 1)]
    return np.concatenate(found).tolist()


class KeysTest(parameterized.TestCase):
    @parameterized.parameters(
        (MASKS, {}), (DROPOUT, {"prng": "rbg"}), (SAMPLES, {"accumulation": Accumulation(2, 0)})
    )
    def test_every_step_and_seed_has_a_key_of_its_own(self, random, changes):
        found = losses(random, **changes)
        self.assertEqual(found[:2], found[2:4])
        distances = np.diff(np.sort(found[2:]))
        self.assertGreater(distances.min(), 10 * TOLERANCE)

    def test_the_key_is_all_that_is_random(self):
        # Or else the test above could not tell what made its losses differ.
        self.assertLess(np.ptp(losses(NOTHING)), TOLERANCE)


if __name__ == "__main__":
    absltest.main()
