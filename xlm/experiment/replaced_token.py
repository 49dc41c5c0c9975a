"""Builder of replaced-token detection, with a term on pairs of translations."""

import dataclasses

from input_pipeline.bitext import PAIRS, language_pairs
from input_pipeline.stream import PACKED
from xlm.experiment.masked_lm import encoder_settings, masked_lms
from xlm.experiment.objectives import Setup
from xlm.experiment.robust import robust_settings
from xlm.models.encoder import Encoder
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Objective
from xlm.objectives.replaced_token import GENERATOR, ReplacedToken
from xlm.objectives.settings import ReplacedTokenSettings

# Names of the task on each kind of batch, as in XY-LENT.
_TASKS = {PACKED: "mrtd", PAIRS: "trtd"}


def build(setup: Setup) -> Objective:
    """Build MRTD on packed sequences, and TRTD if there are pairs; one objective for joint steps.

    The `model` section is the discriminator's; the generator differs in depth, and in having no
    dropout.

    Raises:
      ValueError: settings do not fit the data; the message names the keys.
    """
    if setup.config.data.contrast_share:
        raise ValueError(
            f"data.contrast_share is {setup.config.data.contrast_share}, but objective "
            '"replaced_token" has no contrast of sentences; set it to 0'
        )
    settings = setup.settings(ReplacedTokenSettings, "replaced_token")
    discriminator = encoder_settings(setup)
    generator = dataclasses.replace(
        discriminator,
        num_layers=settings.generator_layers,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    terms = {
        kind: ReplacedToken(masked_lm, Encoder(discriminator), settings, _TASKS[kind])
        for kind, masked_lm in masked_lms(setup, generator, GENERATOR).items()
    }
    robust = robust_settings(setup.config)
    if robust.num_phases:
        num_pairs = len(language_pairs(setup.store))
        kind = PAIRS if PAIRS in terms else PACKED  # of joint steps
        terms[kind] = dataclasses.replace(terms[kind], num_pairs=num_pairs, pair_rate=robust.rate)
    if len(terms) == 1:
        return terms[PACKED]
    weights = {PACKED: 1.0, PAIRS: setup.config.data.pair_weight}
    return Mixture({kind: Term(one, one.name, weights[kind]) for kind, one in terms.items()})
