"""Translation language modelling (TLM): masked LM on a sentence and its translation.

TLM is from Conneau and Lample, "Cross-lingual language model pretraining" (2019).
"""

import dataclasses

import jax

from xlm.objectives.batch import Batch
from xlm.objectives.masked_lm import MaskedLM


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationLM(MaskedLM):
    """Masked LM of pairs, on batches with `tokens`, `segments`, `positions` [B, L].

    A pair is one segment, or two if its sentences must not attend to each other.
    `positions_restart` says whether positions restart with the second sentence of a segment.
    """

    positions_restart: bool = False

    def layout(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["segments"], batch["positions"]
