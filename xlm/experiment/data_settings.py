"""The `data` section of a config: the training stream."""

import dataclasses

from input_pipeline.bitext import POSITIONS
from input_pipeline.order import BlockSettings
from input_pipeline.pair_sampling import PairSamplingSettings
from xlm.common import schema


@dataclasses.dataclass(frozen=True)
class DataSettings(PairSamplingSettings, BlockSettings):
    """Settings of the training stream; the `data` section of a config.

    Attributes:
      alpha: exponent of the language probabilities (Eq. 3) by which the stream samples sequences.
      loader: "tf.data", or "threads" where TensorFlow is not installed.
      prefetch: number of prefetched batches.
      read_threads: threads that read blocks ahead; 0 to read on demand. No effect without
        `block_bytes`.
      read_ahead: number of batches whose blocks the threads request in advance.
      alpha_phases: (step, alpha) pairs: the exponent from this step on. Only steps on packed
        sequences count. Each language's sequences then start over.
      across_documents: whether attention crosses the documents of a sequence.
      pair_share: share of steps on pairs of translations (translation language modelling, or the
        bilingual batches of VECO), from `corpus.parallel`; 0 for none. With joint steps it is the
        share of the rows of every step, and train.batch_size counts the rows of both tasks.
      pair_weight: weight of the loss on these pairs; the loss on text has weight 1.
      contrast_share: share of steps on pairs of separately encoded sentences with a contrastive
        loss (`xlm.objectives.contrastive`); 0 for none.
      kinds: "joint" puts rows of text and of pairs into every step, and adds their losses
        (XY-LENT, Table 9). Otherwise a step has either, in "random" order or spread evenly, in
        "turns" (VECO, Section 3). Metrics are of the recorded step: in turns of one step each, an
        even train.log_every records one kind only.
      pair_positions: "continue" through both sentences of a pair, or "restart" at zero in the
        second.
    """

    alpha: float = schema.key(0.7, at_least=0)
    alpha_phases: tuple[tuple[int, float], ...] = schema.key(())
    loader: str = schema.key("tf.data", choices=("tf.data", "threads"), effect="records")
    prefetch: int = schema.key(4, at_least=1, effect="records")
    read_threads: int = schema.key(16, at_least=0, effect="records")
    read_ahead: int = schema.key(16, at_least=0, effect="records")
    across_documents: bool = schema.key(False)
    pair_share: float = schema.key(0.0, at_least=0)
    pair_weight: float = schema.key(1.0, at_least=0)
    contrast_share: float = schema.key(0.0, at_least=0)
    kinds: str = schema.key("random", choices=("joint", "random", "turns"))
    pair_positions: str = schema.key("continue", choices=POSITIONS)

    def __post_init__(self):
        schema.check(self, "data")
        starts = [step for step, _ in self.alpha_phases]
        if min(starts, default=1) < 1 or sorted(set(starts)) != starts:
            raise ValueError(
                f"data.alpha_phases are {self.alpha_phases}; phases must begin at step 1 or later, "
                "each later than the one before it; data.alpha is for the steps before them"
            )
        alphas = [alpha for _, alpha in self.alpha_phases]
        if min(alphas, default=0) < 0:
            raise ValueError(
                f"data.alpha_phases are {self.alpha_phases}; alpha must be at least 0 in each"
            )
        shares = (self.pair_share, self.contrast_share)
        if sum(shares) >= 1:
            raise ValueError(
                f"data.pair_share is {shares[0]} and data.contrast_share {shares[1]}; they must be "
                "below 1 together"
            )
        if self.kinds == "joint" and self.contrast_share:
            raise ValueError(
                f'data.kinds is "joint" and data.contrast_share {self.contrast_share}; joint steps '
                'hold text and pairs of data.pair_share only: set one to 0, or kinds to "random"'
            )
        BlockSettings.__post_init__(self)
        PairSamplingSettings.__post_init__(self)

    @property
    def is_joint(self) -> bool:
        """Whether every step holds text and pairs."""
        return self.kinds == "joint" and self.pair_share > 0
