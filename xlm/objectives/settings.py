"""Settings of the objectives; sections of a config. Nothing here needs jax."""

import dataclasses
import math
from typing import TYPE_CHECKING, Literal, get_args

from xlm.common import schema

if TYPE_CHECKING:
    import jax


@dataclasses.dataclass(frozen=True)
class MaskSettings:
    """Rates of masking; the `mask` section of a config.

    Attributes:
      rate: share of a sequence's text tokens to predict.
      mask_share: share of these that `<mask>` replaces.
      random_share: share of these that a random piece replaces. The rest stays.
      final_rate: rate at the last step, linear from `rate` at the first; 0 for a constant rate.
      pair_rate: constant rate on pairs of translations; 0 for the same rates as on text.
      span: mean length of masked spans, geometric as in SpanBERT (arXiv 1907.10529); 1 for single
        tokens.
    """

    rate: float = schema.key(0.15, above=0, below=1)
    mask_share: float = schema.key(0.8, at_least=0)
    random_share: float = schema.key(0.1, at_least=0)
    final_rate: float = schema.key(0.0, at_least=0, below=1)
    pair_rate: float = schema.key(0.0, at_least=0, below=1)
    span: float = schema.key(1.0, at_least=1)

    def __post_init__(self):
        schema.check(self, "mask")
        if self.mask_share + self.random_share > 1:
            raise ValueError(
                f"mask.mask_share {self.mask_share} and mask.random_share {self.random_share} must "
                "be shares that sum to at most 1"
            )

    def of_pairs(self) -> "MaskSettings":
        """Settings for pairs of translations."""
        if not self.pair_rate:
            return self
        return dataclasses.replace(self, rate=self.pair_rate, final_rate=0.0)

    def slots(self, length: int) -> int:
        """M, number of masked positions in a sequence of `length` text tokens."""
        return math.ceil(max(self.rate, self.final_rate) * length)

    def rate_at(self, step: "jax.Array", num_steps: int) -> "jax.Array | None":
        """Rate at a step of `num_steps`, scalar float32; None if it is always `rate`."""
        if not self.final_rate:
            return None
        import jax.numpy as jnp

        share = step.astype(jnp.float32) / max(num_steps - 1, 1)
        return self.rate + (self.final_rate - self.rate) * jnp.minimum(share, 1)


@dataclasses.dataclass(frozen=True)
class ContrastSettings:
    """Cross-lingual contrast; the `contrast` section of a config.

    Attributes:
      weight: of the contrastive loss, relative to the masked-LM loss.
      temperature: divisor of the cosines.
    """

    weight: float = schema.key(1.0, at_least=0)
    temperature: float = schema.key(0.05, above=0)

    def __post_init__(self):
        schema.check(self, "contrast")


Sharing = Literal["shared", "separate", "disentangled"]


@dataclasses.dataclass(frozen=True)
class ReplacedTokenSettings:
    """Replaced-token detection; the `replaced_token` section of a config.

    Attributes:
      generator_layers: layers of the generator.
      generator_width: width of the generator, as a share of the discriminator's: of its states, its
        feed-forward layers and its heads. A narrower generator projects token embeddings of the
        discriminator's size to its own, as in ELECTRA.
      weight: lambda, of the discriminator's loss relative to the generator's.
      temperature: of the samples that replace tokens; 0 for the likeliest token.
      embeddings: token embeddings of the discriminator. "shared" takes the generator's table,
        "separate" an own table. "disentangled" adds a table that starts at zero to the
        generator's, which gets no gradient (DeBERTaV3, arXiv 2111.09543, Section 3.3).
      corrective_weight: of COCO-LM's corrective language modelling (arXiv 2102.08473), relative to
        the generator's loss; 0 for none. The discriminator predicts the original of each masked
        token, by a softmax and a copy mechanism.
    """

    generator_layers: int = schema.key(4, at_least=0)
    weight: float = schema.key(50.0, at_least=0)
    temperature: float = schema.key(1.0, at_least=0)
    embeddings: Sharing = schema.key("shared", choices=get_args(Sharing))
    generator_width: float = schema.key(1.0, at_least=0.25, at_most=1)
    corrective_weight: float = schema.key(0.0, at_least=0)

    def __post_init__(self):
        schema.check(self, "replaced_token")


Visible = Literal["causal", "full"]


@dataclasses.dataclass(frozen=True)
class VecoSettings:
    """Terms of VECO's objective; the `veco` section of a config.

    Attributes:
      is_weight, cs_weight, tlm_weight: of the terms. A weight of 0 skips CS-MLM or TLM. IS-MLM
        always runs, since CS-MLM needs its states, and its loss is a metric.
      context: tokens of its own sequence that CS-MLM sees at a position: "causal" for those up to
        the position (Eq. 7), "full" for all.
      flip: whether CS-MLM also predicts the first of two adjacent segments of text from the second
        one (footnote 4). Pairs of translations always have both directions.
    """

    is_weight: float = schema.key(1.0, at_least=0)
    cs_weight: float = schema.key(1.0, at_least=0)
    tlm_weight: float = schema.key(1.0, at_least=0)
    context: Visible = schema.key("causal", choices=get_args(Visible))
    flip: bool = schema.key(True)

    def __post_init__(self):
        schema.check(self, "veco")


@dataclasses.dataclass(frozen=True)
class RobustSettings:
    """Distributionally robust sampling of pairs; the `robust` section of a config.

    Attributes:
      rho: radius of the ball around the base distribution, in the divergence of
        `xlm.objectives.best_response`; 0 for the base distribution itself.
      num_phases: number of times, evenly spaced, that a run solves for the worst distribution; 0
        for no robust sampling.
      rate: share of the moving averages of losses that each batch or microbatch replaces, see
        `pair_losses.update_pair_losses`.
      min_ratio: lower bound on p_i / q_i, which keeps all pairs in use; 0 for none, as in the
        paper. The run never samples a pair of weight 0 again, and its loss stays as it was.
      shrink: whether to shrink losses towards their mean by their standard errors, see
        `best_response.shrunk`. A few examples then do not move a pair. The paper does not shrink.
      baseline: file of the phases of another run, whose last losses this run subtracts from its
        own; "" for none. A run with rho = 0 writes one, and keeps the shares of the pairs.
    """

    rho: float = schema.key(0.05, at_least=0)
    num_phases: int = schema.key(10, at_least=0)
    rate: float = schema.key(0.1, above=0, at_most=1)
    min_ratio: float = schema.key(0.2, at_least=0, below=1)
    shrink: bool = schema.key(True)
    baseline: str = schema.key("")

    def __post_init__(self):
        schema.check(self, "robust")

    def phase_steps(self, num_steps: int) -> tuple[int, ...]:
        """Steps before which a run finds the worst distribution: i num_steps / (num_phases + 1).

        Up to the first of them it samples from the base distribution. Raises ValueError if the run
        is too short for so many phases.
        """
        if num_steps <= self.num_phases:
            raise ValueError(
                f"robust.num_phases is {self.num_phases}, must be below train.num_steps, "
                f"{num_steps}; lower it or train for longer"
            )
        parts = self.num_phases + 1
        return tuple(i * num_steps // parts for i in range(1, parts))


@dataclasses.dataclass(frozen=True)
class LoraSettings:
    """Low-rank updates in place of the encoder's training; in the `optimizer` section of a config.

    Attributes:
      lora_rank: r, the rank of trained updates of kernels, while the encoder stays unchanged (Hu et
        al., "LoRA", 2021); 0 to train the encoder itself.
      lora_alpha: lora_alpha / lora_rank multiplies the updates.
      lora_targets: kernels of the encoder's layers with such updates: "attention/query",
        "attention/key", "attention/value", "attention/output", "mlp/wide", "mlp/gate" or
        "mlp/output", if the layers have them.
    """

    lora_rank: int = schema.key(0, at_least=0)
    lora_alpha: float = schema.key(16.0, above=0)
    lora_targets: tuple[str, ...] = schema.key(("attention/query", "attention/value"))

    def __post_init__(self):
        schema.check(self, "optimizer")
        if self.lora_rank and not self.lora_targets:
            raise ValueError(
                f"optimizer.lora_rank is {self.lora_rank}, but optimizer.lora_targets are (); name "
                'kernels such as ("attention/query", "attention/value"), or set the rank to 0'
            )
