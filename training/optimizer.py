"""The optimizer: AdamW with warm-up, polynomial decay and clipping."""

import dataclasses

import jax
import optax


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and its schedule; the `optimizer` section of a config.

    Attributes:
      learning_rate: peak of the schedule.
      warmup_steps: linear from zero to the peak.
      decay_power: exponent of the polynomial decay from the peak to zero at the last step.
      beta1, beta2, epsilon: Adam's.
      weight_decay: decoupled, on matrices and embeddings, not on biases and layer norms.
      clip_norm: largest global norm of the gradient; 0 leaves it as it is.
    """

    learning_rate: float
    warmup_steps: int
    decay_power: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float


def learning_rate_schedule(settings: OptimizerSettings, num_steps: int) -> optax.Schedule:
    """Linear warm-up, then polynomial decay to zero at `num_steps`.

    Raises:
      ValueError: the warm-up takes the whole run.
    """
    if not 0 <= settings.warmup_steps < num_steps:
        raise ValueError(
            f"optimizer.warmup_steps is {settings.warmup_steps}, must be below train.num_steps "
            f"{num_steps}"
        )
    return optax.join_schedules(
        [
            optax.linear_schedule(0.0, settings.learning_rate, settings.warmup_steps),
            optax.polynomial_schedule(
                settings.learning_rate,
                0.0,
                settings.decay_power,
                num_steps - settings.warmup_steps,
            ),
        ],
        [settings.warmup_steps],
    )


def make_optimizer(settings: OptimizerSettings, num_steps: int) -> optax.GradientTransformation:
    """AdamW as `settings` say, for a run of `num_steps`."""
    adamw = optax.adamw(
        learning_rate_schedule(settings, num_steps),
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
    )
    if not settings.clip_norm:
        return adamw
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), adamw)
