"""The `data` section of a config: the training stream."""

import dataclasses

from input_pipeline.bitext import POSITIONS
from input_pipeline.order import BlockSettings
from input_pipeline.pair_sampling import METHODS, PairSamplingSettings
from xlm.common import schema


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Settings of the training stream; the `data` section of a config.

    Attributes:
      alpha: exponent of the language probabilities (Eq. 3) that sequences are sampled with.
      loader: "tf.data", or "threads" where TensorFlow is not installed.
      prefetch: number of prefetched batches.
      block_bytes, window_blocks, lanes: order of large languages by blocks, see
        `input_pipeline.order.BlockSettings`.
      window_bytes: most bytes of the windows of a lane, of text and of each kind of pairs; many
        languages or pairs have smaller blocks then. 0 for no limit.
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
      pair_positions, pair_alpha: see `input_pipeline.bitext.BitextSettings`.
      pair_sampling, pair_temperature, pair_pivot, pair_strength: method that samples language
        pairs, its T, the language of its pairs and the price of missed marginals, see
        `input_pipeline.pair_sampling.PairSamplingSettings`.
      pair_least: sentence pairs of a language, summed over its pairs, below which all its pairs
        are left out of training.
    """

    alpha: float = schema.key(0.7, at_least=0)
    alpha_phases: tuple[tuple[int, float], ...] = schema.key(())
    loader: str = schema.key("tf.data", choices=("tf.data", "threads"), effect="records")
    prefetch: int = schema.key(4, at_least=1, effect="records")
    block_bytes: int = schema.key(0, at_least=0)
    window_blocks: int = schema.key(16, at_least=1)
    lanes: int = schema.key(1, at_least=1)
    window_bytes: int = schema.key(0, at_least=0)
    read_threads: int = schema.key(16, at_least=0, effect="records")
    read_ahead: int = schema.key(16, at_least=0, effect="records")
    across_documents: bool = schema.key(False)
    pair_share: float = schema.key(0.0, at_least=0)
    pair_weight: float = schema.key(1.0, at_least=0)
    contrast_share: float = schema.key(0.0, at_least=0)
    kinds: str = schema.key("random", choices=("joint", "random", "turns"))
    pair_positions: str = schema.key("continue", choices=POSITIONS)
    pair_alpha: float = schema.key(0.5, at_least=0)
    pair_sampling: str = schema.key("alpha", choices=METHODS)
    pair_temperature: float = schema.key(2.0, above=0)
    pair_pivot: str = schema.key("en")
    pair_strength: float = schema.key(3.0, at_least=0)
    pair_least: int = schema.key(0, at_least=0)

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
        self.block_settings()
        self.pair_sampling_settings()

    @property
    def is_joint(self) -> bool:
        """Whether every step holds text and pairs."""
        return self.kinds == "joint" and self.pair_share > 0

    def block_settings(self) -> BlockSettings:
        """Settings of the order by blocks."""
        return BlockSettings(self.block_bytes, self.window_blocks, self.lanes, self.window_bytes)

    def pair_sampling_settings(self) -> PairSamplingSettings:
        """Settings of the sampling of language pairs."""
        return PairSamplingSettings(
            method=self.pair_sampling,
            alpha=self.pair_alpha,
            temperature=self.pair_temperature,
            pivot=self.pair_pivot,
            least=self.pair_least,
            strength=self.pair_strength,
        )
