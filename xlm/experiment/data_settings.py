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
      alpha: exponent of the language probabilities (Eq. 3) that sequences are sampled with.
      loader: "tf.data", or "threads" where TensorFlow is not installed.
      prefetch: number of prefetched batches.
      read_threads: threads that read blocks; 0 to read what is needed when it is needed. Without
        `block_bytes` there are none.
      read_ahead: number of batches whose blocks are requested before they are made.
      alpha_phases: (step, alpha) pairs: changes of the exponent from these steps on, counting those
        on packed sequences; each language's sequences then start over.
      across_documents: whether attention crosses the documents of a sequence.
      pair_share: share of steps on pairs of translations (translation language modelling, or the
        bilingual batches of VECO), from `corpus.parallel`; 0 for none. With joint steps it is the
        share of the rows of every step, and train.batch_size counts the rows of both tasks.
      pair_weight: weight of the loss on these pairs; that on text has 1.
      contrast_share: share of steps on pairs of separately encoded sentences with a contrastive
        loss (`xlm.objectives.contrastive`); 0 for none.
      kinds: "joint" for rows of text and of pairs in every step, whose losses are added
        (XY-LENT, Table 9); otherwise a step is of text or of pairs, in "random" order or spread
        evenly, in "turns" if each has half of the steps (VECO, Section 3). Metrics are of the step
        recorded: of kinds in turns with an even train.log_every they would all be of one kind.
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
                "each later than the one before it; data.alpha is that of the first"
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
