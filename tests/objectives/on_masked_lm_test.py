"""Objectives on a masked LM have its phases and its index."""

import jax
import numpy as np
from absl.testing import parameterized

from tests import factories
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.cross_mlm import CrossMLM
from xlm.objectives.masked_lm import NEIGHBOURS
from xlm.objectives.settings import ContrastSettings, VecoSettings

SETTINGS = factories.encoder_settings(cross_attention=True)
LAYER = factories.output_layer_settings(refresh_every=3)
MASKED_LM = factories.masked_lm(LAYER, SETTINGS, full_softmax_from=6)


class OnMaskedLMTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("contrast", SentenceContrast(MASKED_LM, ContrastSettings(0.5, 0.1))),
        ("veco", CrossMLM(MASKED_LM, VecoSettings(), MASKED_LM)),
        ("rtd", factories.replaced_token(LAYER, full_softmax_from=6)),
    )
    def test_phases_and_the_index_are_those_of_its_masked_lm(self, objective):
        one = objective.masked_lm
        self.assertEqual(objective.tables[0], one.table_path)
        self.assertEqual([objective.due(step) for step in (0, 2)], [(NEIGHBOURS,), ()])
        phases = [objective.at_step(step) for step in (0, 5, 6, 9)]
        self.assertEqual(phases[:2], [objective] * 2)
        self.assertIs(phases[2], phases[3])
        self.assertIs(phases[2].masked_lm, one.exact)
        self.assertEqual(phases[2].settings, objective.settings)
        self.assertEmpty(phases[2].due(6))
        if tlm := getattr(phases[2], "translation_lm", None):
            self.assertIs(tlm.output_layer, one.exact_layer)
        params = factories.random_params(objective)
        first = jax.jit(lambda params: [factories.first_extra(x, params) for x in (objective, one)])
        jax.tree.map(np.testing.assert_array_equal, *first(params))
