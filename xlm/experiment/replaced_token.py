"""Builder of replaced-token detection, with a term on pairs of translations."""

import dataclasses

from input_pipeline.bitext import PAIRS, language_pairs
from input_pipeline.stream import PACKED
from knn_sampling.settings import OutputLayerSettings
from xlm.experiment.masked_lm import encoder_settings, masked_lms
from xlm.experiment.objectives import Setup
from xlm.experiment.robust import robust_settings
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Objective
from xlm.objectives.replaced_token import GENERATOR, ReplacedToken
from xlm.objectives.settings import ReplacedTokenSettings

# Names of the task on each kind of batch, as in XY-LENT.
_TASKS = {PACKED: "mrtd", PAIRS: "trtd"}


def build(setup: Setup) -> Objective:
    """Build MRTD on packed sequences, and TRTD if there are pairs; one objective for joint steps.

    The `model` section is the discriminator's. The generator differs in depth and width, and has no
    dropout. Raises ValueError if settings do not fit the data.
    """
    if setup.config.data.contrast_share:
        raise ValueError(
            f"data.contrast_share is {setup.config.data.contrast_share}, but objective "
            '"replaced_token" has no contrast of sentences; set it to 0'
        )
    settings = setup.settings(ReplacedTokenSettings, "replaced_token")
    discriminator = encoder_settings(setup)
    layer = setup.settings(OutputLayerSettings, "output_layer").kind
    if settings.corrective_weight and layer in ("nce", "neg"):
        raise ValueError(
            f"replaced_token.corrective_weight is {settings.corrective_weight}, but "
            f'output_layer.kind "{layer}" has no probabilities of tokens; choose "knn" or '
            '"blockwise", or set the weight to 0'
        )
    generator = _generator_settings(discriminator, settings)
    terms = {
        kind: ReplacedToken(masked_lm, Encoder(discriminator), settings, _TASKS[kind])
        for kind, masked_lm in masked_lms(setup, generator, GENERATOR).items()
    }
    robust = robust_settings(setup.config)
    if robust.num_phases:
        num_pairs = len(language_pairs(setup.dataset))
        kind = PAIRS if PAIRS in terms else PACKED  # of joint steps
        terms[kind] = dataclasses.replace(terms[kind], num_pairs=num_pairs, pair_rate=robust.rate)
    if len(terms) == 1:
        return terms[PACKED]
    weights = {PACKED: 1.0, PAIRS: setup.config.data.pair_weight}
    return Mixture({kind: Term(one, one.name, weights[kind]) for kind, one in terms.items()})


def _generator_settings(
    discriminator: EncoderSettings, settings: ReplacedTokenSettings
) -> EncoderSettings:
    """Settings of the generator, whose token embeddings are of the discriminator's size."""
    names = ("hidden_size", "num_heads", "mlp_size")
    shares = (settings.generator_width * getattr(discriminator, name) for name in names)
    hidden, heads, mlp = (max(round(share), 1) for share in shares)
    if hidden % heads:
        raise ValueError(
            f"replaced_token.generator_width is {settings.generator_width}, which makes a "
            f"generator of width {hidden} with {heads} heads, not a multiple; choose a share of "
            f"model.num_heads, {discriminator.num_heads}, that is whole"
        )
    return dataclasses.replace(
        discriminator, hidden_size=hidden, num_heads=heads, mlp_size=mlp,
        num_layers=settings.generator_layers, dropout_rate=0.0, attention_dropout_rate=0.0,
    )  # fmt: skip
