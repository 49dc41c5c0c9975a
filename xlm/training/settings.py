"""Settings of a run's length, intervals and records."""

import dataclasses

from xlm.training.accumulation import Accumulation
from xlm.training.state import PRNGS

_MAY_BE_ZERO = ("batch_warmup_steps", "keep_every", "max_multiples", "peak_flops", "profile_from",
                "profile_steps")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Lengths and intervals of a run, in steps; the `train` section of a config.

    Attributes:
      num_steps: number of steps of the whole run.
      batch_size: B, sequences of the global batch.
      seed: random seed of parameters, masking, dropout and data order.
      accumulation_steps: parts of a batch, processed sequentially; 1 for the whole batch at once.
        Each part has its own masks, random tokens and classes of a sampled softmax.
      batch_warmup_steps: steps over which the parts in use grow from one to all; 0 for all parts
        from the first step on.
      log_every: interval of recording training metrics.
      evaluate_every: interval of running the evaluators, which also run at the end.
      checkpoint_every: interval of saving the state, which is also saved at the end.
      keep_checkpoints: number of latest checkpoints kept on disk; with two, there is a fallback for
        a damaged one.
      keep_every: checkpoints of multiples of it are kept as well, itself a multiple of
        `checkpoint_every`; 0 for none.
      max_multiples: how many of these, the latest ones; 0 for all.
      verify_checkpoints: which checkpoints are read back once they are written: the
        "first_and_last" of each start of the run, or "every" one.
      tensorboard: whether metrics are also written for TensorBoard.
      peak_flops: peak floating-point operations per second of a device, to report the utilisation;
        0 for no such report.
      profile_from: steps taken before a profile is recorded.
      profile_steps: number of profiled steps; 0 for no profile.
      prng: implementation of random keys, "threefry2x32", or "rbg", which is faster on accelerators
        but depends on the sharding of arrays.
      deterministic: whether GPUs are to compute the same bits whenever a program is run again, see
        `xlm.training.compilation.use_deterministic_operations`. CPUs do in any case.
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
    max_multiples: int = 0
    verify_checkpoints: str = "first_and_last"
    tensorboard: bool = False
    peak_flops: float = 0.0
    profile_from: int = 0
    profile_steps: int = 0
    prng: str = "threefry2x32"
    deterministic: bool = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if field.name in ("seed", "tensorboard", "prng", "deterministic", "verify_checkpoints"):
                continue
            smallest = 0 if field.name in _MAY_BE_ZERO else 1
            if getattr(self, field.name) < smallest:
                raise ValueError(
                    f"train.{field.name} is {getattr(self, field.name)}, must be at least "
                    f"{smallest}"
                )
        if self.prng not in PRNGS:
            raise ValueError(f"train.prng is {self.prng!r}, must be one of {', '.join(PRNGS)}")
        if self.verify_checkpoints not in ("first_and_last", "every"):
            raise ValueError(
                f"train.verify_checkpoints is {self.verify_checkpoints!r}, must be first_and_last "
                "or every"
            )
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
        if self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"train.keep_every is {self.keep_every}, must be a multiple of "
                f"train.checkpoint_every {self.checkpoint_every}: no others are saved"
            )

    @property
    def accumulation(self) -> Accumulation:
        return Accumulation(self.accumulation_steps, self.batch_warmup_steps)
