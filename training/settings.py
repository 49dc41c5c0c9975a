"""The settings of a run's length, intervals and records."""

import dataclasses

from training.accumulation import Accumulation
from training.state import PRNGS

_MAY_BE_ZERO = ("batch_warmup_steps", "keep_every", "peak_flops", "profile_from", "profile_steps")


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Lengths and intervals of a run, in steps; the `train` section of a config.

    Attributes:
      num_steps: steps of the whole run.
      batch_size: B, sequences of the global batch.
      seed: of parameters, masking, dropout and data order.
      accumulation_steps: parts of a batch, worked on one after the other; 1 for the whole at once.
        Masks, random tokens and the classes of a sampled softmax are each part's own.
      batch_warmup_steps: steps in which the parts in use grow from one to all; 0 for all of them
        from the first step on.
      log_every: training metrics are recorded.
      evaluate_every: evaluators run, as they do at the end.
      checkpoint_every: the state is saved, as it is at the end.
      keep_checkpoints: latest checkpoints that stay on disk; with two, a damaged one has one before
        it to fall back on.
      keep_every: checkpoints of multiples of it stay as well; 0 for none.
      tensorboard: whether metrics are written for TensorBoard, too.
      peak_flops: floating-point operations per second that a device is capable of, to report what
        share is used; 0 for no such report.
      profile_from: steps taken before a profile is recorded.
      profile_steps: steps of the profile; 0 for none.
      prng: implementation of random keys, "threefry2x32" or, faster on accelerators and dependent
        on how arrays are split, "rbg".
    """

    num_steps: int
    batch_size: int
    seed: int
    log_every: int
    evaluate_every: int
    checkpoint_every: int
    keep_checkpoints: int
    accumulation_steps: int = 1
    batch_warmup_steps: int = 0
    keep_every: int = 0
    tensorboard: bool = False
    peak_flops: float = 0.0
    profile_from: int = 0
    profile_steps: int = 0
    prng: str = "threefry2x32"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name in ("seed", "tensorboard", "prng"):
                continue
            smallest = 0 if field.name in _MAY_BE_ZERO else 1
            if getattr(self, field.name) < smallest:
                raise ValueError(
                    f"train.{field.name} is {getattr(self, field.name)}, must be at least "
                    f"{smallest}"
                )
        if self.prng not in PRNGS:
            raise ValueError(f"train.prng is {self.prng!r}, must be one of {', '.join(PRNGS)}")
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"train.accumulation_steps is {self.accumulation_steps}, must divide "
                f"train.batch_size {self.batch_size}"
            )
        if self.batch_warmup_steps and self.accumulation_steps == 1:
            raise ValueError(
                f"train.batch_warmup_steps is {self.batch_warmup_steps}, but a batch has one part; "
                "raise train.accumulation_steps"
            )

    @property
    def accumulation(self) -> Accumulation:
        return Accumulation(self.accumulation_steps, self.batch_warmup_steps)
