"""Settings of training: length and records, optimizer, mesh. Nothing here needs jax."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xlm.common import schema

if TYPE_CHECKING:
    from xlm.training.accumulation import Accumulation

PRNGS = {"threefry2x32": 2, "rbg": 4}  # words of a key
SCHEDULES = ("polynomial", "cosine", "wsd", "inverse_sqrt")
AXES = ("data", "fsdp", "model")


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Lengths and intervals of a run, in steps; the `train` section of a config.

    Attributes:
      num_steps: number of steps of the whole run; 0 if you set epochs or tokens.
      num_epochs: in place of steps, passes over the packed sequences of the dataset.
      num_tokens: in place of steps, tokens of packed sequences, without padding.
      batch_size: B, sequences of the global batch.
      seed: random seed of parameters, masking, dropout and data order.
      accumulation_steps: microbatches of a batch, which run one after the other; 1 for the whole
        batch at once. Each has its own masks, random tokens and classes of a sampled softmax.
      batch_warmup_steps: steps over which the microbatches in use grow from one to all; 0 to use
        all from the first step.
      log_every: interval of recording training metrics.
      evaluate_every: interval of running the evaluators, which also run at the end.
      checkpoint_every: interval of saving the state. The run also saves at the end.
      keep_checkpoints: number of latest checkpoints to keep. The second one is a fallback if the
        latest is damaged.
      keep_every: also keep checkpoints at multiples of this number of steps, which is a multiple of
        `checkpoint_every`; 0 for none.
      max_multiples: number of these to keep, the latest ones; 0 for all.
      verify_checkpoints: which checkpoints the run reads back after writing: the "first_and_last"
        of each start, or "every" one.
      report: whether report.html shows the run while it trains, updated at each evaluation.
      tensorboard: whether metrics also go to TensorBoard.
      wandb: whether metrics also go to Weights & Biases (docs/metrics.md).
      mlflow: whether metrics also go to MLflow (docs/metrics.md).
      hang_minutes: a run ends with status 79 after so many minutes, and at least 50 median steps,
        without a finished step; 0 for never. Compiling, evaluating, saving and starting may take 24
        times as long.
      peak_flops: peak floating-point operations per second of a device, to report the utilisation;
        0 for no such report.
      profile_from: steps before the first profiled one.
      profile_steps: number of profiled steps; 0 for no profile.
      prng: implementation of random keys, "threefry2x32", or "rbg", which is faster on accelerators
        but depends on the sharding of arrays.
      deterministic: whether GPUs compute the same bits whenever a program runs again, see
        `xlm.training.compilation.use_deterministic_operations`. CPUs always do.
    """

    num_steps: int = schema.key(1_000_000, at_least=0)
    batch_size: int = schema.key(256, at_least=1, at_most=1 << 20)
    seed: int = schema.key(0, at_least=0, below=2**31)
    log_every: int = schema.key(100, at_least=1, effect="records")
    evaluate_every: int = schema.key(10_000, at_least=1)
    checkpoint_every: int = schema.key(10_000, at_least=1)
    keep_checkpoints: int = schema.key(2, at_least=1, effect="records")
    accumulation_steps: int = schema.key(1, at_least=1)
    batch_warmup_steps: int = schema.key(0, at_least=0)
    keep_every: int = schema.key(0, at_least=0, effect="records")
    max_multiples: int = 0
    verify_checkpoints: str = schema.key(
        "first_and_last", choices=("first_and_last", "every"), effect="records"
    )
    report: bool = schema.key(True, effect="records")
    tensorboard: bool = schema.key(False, effect="records")
    wandb: bool = schema.key(False, effect="records")
    mlflow: bool = schema.key(False, effect="records")
    hang_minutes: float = schema.key(15.0, at_least=0, effect="records")
    peak_flops: float = schema.key(0.0, at_least=0, effect="records")
    profile_from: int = schema.key(0, at_least=0, effect="records")
    profile_steps: int = schema.key(0, at_least=0, effect="records")
    prng: str = schema.key("threefry2x32", choices=tuple(PRNGS))
    deterministic: bool = schema.key(False, effect="records")
    num_epochs: float = schema.key(0.0, at_least=0)
    num_tokens: int = schema.key(0, at_least=0)

    def __post_init__(self):
        schema.check(self, "train")
        lengths = (self.num_steps, self.num_epochs, self.num_tokens)
        if sum(one > 0 for one in lengths) != 1:
            raise ValueError(
                "train.num_steps, train.num_epochs and train.num_tokens are "
                f"{', '.join(map(str, lengths))}; set one of them above 0, and the others to 0"
            )
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"train.accumulation_steps is {self.accumulation_steps}, must divide "
                f"train.batch_size {self.batch_size}"
            )
        if self.batch_warmup_steps and self.accumulation_steps == 1:
            raise ValueError(
                f"train.batch_warmup_steps is {self.batch_warmup_steps}, but a batch has one "
                "microbatch; raise train.accumulation_steps"
            )
        if self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"train.keep_every is {self.keep_every}, must be a multiple of "
                f"train.checkpoint_every {self.checkpoint_every}: the run saves no others"
            )

    @property
    def accumulation(self) -> "Accumulation":
        from xlm.training.accumulation import Accumulation

        return Accumulation(self.accumulation_steps, self.batch_warmup_steps)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimizer and its schedule; the `optimizer` section of a config.

    Attributes:
      kind: "adamw"; "stable_adamw", which lowers the rate of an array whose gradient outgrows its
        second moment (Wortsman et al., 2023, Algorithm 2); or "muon" for Muon on the matrices of
        the encoder's layers and AdamW on all other parameters (Jordan, "Muon: an optimizer for
        hidden layers in neural networks", 2024).
      learning_rate: peak of the schedule of AdamW.
      muon_learning_rate: peak of the schedule of Muon. Updates have singular values of about 1,
        times the square root of outputs over inputs if inputs are fewer.
      muon_momentum: momentum of the gradients that Muon orthogonalises.
      warmup_steps: W, linear from 1 / W of the peak at the first step to the peak.
      schedule: after the warm-up: "polynomial" decay, "cosine" decay, "inverse_sqrt" decay, or
        "wsd", the peak until a polynomial decay in the last steps (see
        `optimizer.learning_rate_schedule`).
      decay_power: exponent of a polynomial decay; 1 for a linear one.
      decay_shape: of "polynomial" and "wsd": "power", or "one_minus_sqrt".
      decay_fraction: share of all steps in which "wsd" decays.
      final_rate_ratio: rate at the last step, as a share of the peak; the least of "inverse_sqrt".
      beta1, beta2, epsilon: Adam's.
      weight_decay: decoupled, on matrices and embeddings, not on biases and layer norms.
      clip_norm: largest global norm of the gradient; 0 for no clipping.
      max_norm_ratio: largest ratio of a gradient norm to its running geometric mean. A step above
        it, or with a norm that is not finite, only counts as one of `skipped_steps`; 0 for no such
        guard.
      ema_decay: share of the old value in an exponential moving average of all parameters, which
        evaluation and export then read; 0 for none. It is (1 + n) / (10 + n) at first.
      embedding_update: "dense" updates the whole embedding table at every step. "rows" updates the
        rows that a step touches, and others when a step next reads them.
      layer_decay: d multiplies the rates of layer l of L layers, counted from 0, by d^(L - l), and
        those of the embeddings by d^(L + 1) (ELECTRA, ICLR 2020); 1 for the same rate everywhere.
      frozen: names of groups of parameters to leave untrained, such as "embeddings" (see `stages`).
      stages: (name, steps) of the first stages of a run. For so many steps a stage trains only the
        parameters with `name` in their paths, such as "cross_attention". The last stage trains all
        (see `stages`).
      steps_before: steps that the optimizer's first state has taken; the schedule starts after.
      restart_schedule: whether the schedule restarts in every stage, over the stage's steps.
        Otherwise one schedule spans all stages.
    """

    learning_rate: float = schema.key(0.0001, at_least=0)
    warmup_steps: int = schema.key(10_000, at_least=0)
    decay_power: float = schema.key(1.0, at_least=0)
    beta1: float = schema.key(0.9, at_least=0, below=1)
    beta2: float = schema.key(0.98, at_least=0, below=1)
    epsilon: float = schema.key(1e-06, above=0)
    weight_decay: float = schema.key(0.01, at_least=0)
    clip_norm: float = schema.key(0.0, at_least=0)
    max_norm_ratio: float = schema.key(0.0, at_least=0)
    ema_decay: float = schema.key(0.0, at_least=0, below=1)
    embedding_update: str = schema.key("dense", choices=("dense", "rows"))
    decay_shape: str = schema.key("power", choices=("power", "one_minus_sqrt"))
    schedule: str = schema.key("polynomial", choices=SCHEDULES)
    decay_fraction: float = schema.key(0.1, at_least=0, at_most=1)
    final_rate_ratio: float = schema.key(0.0, at_least=0, at_most=1)
    layer_decay: float = schema.key(1.0, above=0, at_most=1)
    frozen: tuple[str, ...] = schema.key(())
    kind: str = schema.key("adamw", choices=("adamw", "stable_adamw", "muon"))
    muon_learning_rate: float = schema.key(0.02, at_least=0)
    muon_momentum: float = schema.key(0.95, at_least=0, below=1)
    stages: tuple[tuple[str, int], ...] = schema.key(())
    restart_schedule: bool = schema.key(True)
    steps_before: int = schema.key(0, at_least=0)

    def __post_init__(self):
        schema.check(self, "optimizer")
        if 0 < self.max_norm_ratio <= 1:
            raise ValueError(
                f"optimizer.max_norm_ratio is {self.max_norm_ratio}, must be above 1, such as 5, "
                "or 0 for no guard: usual steps have about the mean norm"
            )
        if self.steps_before and self.stages:
            raise ValueError(
                f"optimizer.steps_before is {self.steps_before}, but each of optimizer.stages has "
                "its own optimizer; set only one of the two"
            )
        if self.layer_decay != 1 and (self.embedding_update == "rows" or "layers" in self.frozen):
            raise ValueError(
                f"optimizer.layer_decay is {self.layer_decay}, but layers in optimizer.frozen have "
                'no rates, and embedding_update "rows" no depth; set layer_decay to 1 or change '
                "these"
            )
        if self.embedding_update == "rows":
            self._check_rows()
        for stage in self.stages:
            match stage:
                case (str(name), int(steps)) if name and steps > 0:
                    continue
            raise ValueError(
                f"optimizer.stages are {self.stages}, must be pairs of a part of parameter names "
                'and a number of steps, at least 1, such as (("cross_attention", 1000),)'
            )

    def _check_rows(self):
        """Raise ValueError for settings that need every row of a table at every step."""
        dense = {"kind": "stable_adamw", "ema_decay": self.ema_decay or None}
        for key, value in dense.items():
            if getattr(self, key) == value:
                raise ValueError(
                    f"optimizer.{key} is {value!r}, which needs every row of a table at every "
                    'step; set optimizer.embedding_update to "dense"'
                )


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """Mesh and sharding rules; the `mesh` section of a config.

    Attributes:
      data, fsdp, model: devices along each axis; -1, at most once, for all remaining devices.
      vocab_multiple: padding brings the rows of the embedding table to a multiple of it. Take a
        multiple of the devices that share the rows.
      rules: (logical axis, mesh axis or None) pairs; the first match applies.
      slices: groups of devices with a slower network between them than within, such as TPU slices
        or GPU machines. It divides `data`, the only axis across groups.
      shard_optimizer_over_data: whether each device along `data` keeps and updates its share of the
        parameters and of the optimizer's state. A step then gathers the parameters once (ZeRO-1,
        Rajbhandari et al., 2020).
    """

    data: int = schema.key(-1, effect="records")
    fsdp: int = schema.key(1, effect="records")
    model: int = schema.key(1, effect="records")
    vocab_multiple: int = schema.key(128, at_least=1)
    rules: tuple[tuple[str, str | None], ...] = schema.key(
        (("vocab", "model"), ("mlp", "model"), ("heads", "model"), ("embed", "fsdp")),
        effect="records",
    )
    slices: int = schema.key(1, at_least=1, effect="records")
    shard_optimizer_over_data: bool = schema.key(True, effect="records")

    def __post_init__(self):
        for name, _ in self.rules:
            if unknown := set(self.axes_of(name)) - set(AXES):
                raise ValueError(
                    f"mesh.rules shards {name!r} over {', '.join(sorted(unknown))}, must be one of "
                    f"{', '.join(AXES)}, or None"
                )

    def axes_of(self, name: str) -> tuple[str, ...]:
        """Mesh axes over which the rules shard a logical axis."""
        for logical, axes in self.rules:
            if logical == name:
                return as_tuple(axes)
        return ()

    def table_axes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Mesh axes over which the rules shard rows and columns of the embedding table.

        If rules shard both over the same mesh axis, only the first applies.
        """
        import flax.linen as nn

        rows, columns = nn.logical_to_mesh_axes(("vocab", "embed"), list(self.rules))
        return as_tuple(rows), as_tuple(columns)


def as_tuple(axes: str | Sequence[str] | None) -> tuple[str, ...]:
    """Mesh axes of a rule or of an entry of a PartitionSpec."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())
