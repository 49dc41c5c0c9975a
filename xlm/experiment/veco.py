"""Builder of VECO's objective: IS-MLM and CS-MLM, with TLM on pairs of translations."""

import dataclasses

from input_pipeline.bitext import SEPARATE_PAIRS
from input_pipeline.stream import PACKED
from xlm.experiment.data import data_settings
from xlm.experiment.masked_lm import encoder_settings, masked_lms
from xlm.experiment.objectives import Setup
from xlm.objectives.cross_mlm import CrossMLM
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Objective
from xlm.objectives.settings import VecoSettings


def build(setup: Setup) -> Objective:
    """Build VECO's objective on packed sequences, and on pairs if there are any.

    Pairs come with two segments, and `data.pair_positions` is the layout of TLM's pass. Raises
    ValueError if settings do not fit the data; the message names the keys.
    """
    data = data_settings(setup.config)
    if data.is_joint:
        raise ValueError(
            'data.kinds is "joint", but objective "veco" has text and pairs in steps of their own; '
            'set data.kinds to "turns" or "random"'
        )
    if data.contrast_share:
        raise ValueError(
            f'data.contrast_share is {data.contrast_share}, but objective "veco" has no contrast '
            "of sentences; set it to 0, its share of pairs is data.pair_share"
        )
    settings = setup.settings(VecoSettings, "veco")
    found = masked_lms(setup, encoder_settings(setup, cross_attention=True))
    text = CrossMLM(found[PACKED], settings)
    if SEPARATE_PAIRS not in found:
        return text
    of_pairs = found[SEPARATE_PAIRS]
    joined = dataclasses.replace(of_pairs, positions_restart=data.pair_positions == "restart")
    pairs = CrossMLM(of_pairs, settings, translation_lm=joined)
    weighted = Term(pairs, "pairs", data.pair_weight)
    return Mixture({PACKED: Term(text, "text"), SEPARATE_PAIRS: weighted})
