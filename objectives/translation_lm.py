"""Translation language modelling: masked tokens are predicted from a sentence and its translation.

TLM is of Conneau and Lample, "Cross-lingual language model pretraining" (2019).
"""

import dataclasses

import jax

from objectives.batch import Batch
from objectives.masked_lm import MaskedLM


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationLM(MaskedLM):
    """Predicts masked tokens of pairs: batches with `tokens`, `segments`, `positions` [B, L].

    A pair is one segment, or two where its sentences are not to see each other.

    Attributes:
      positions_restart: whether positions begin anew with the second sentence of a segment.
    """

    positions_restart: bool = False

    def layout(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["segments"], batch["positions"]
