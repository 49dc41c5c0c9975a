"""Learning rate schedules."""

from typing import Any

import jax.numpy as jnp
import optax


def learning_rate_schedule(settings: Any, num_steps: int) -> optax.Schedule:
    """Build a schedule, steps taken -> rate: linear warm-up to the peak p, then a decay.

    `settings` are `OptimizerSettings`. The W warm-up steps have p / W, 2 p / W, ..., p. With f = p
    final_rate_ratio, and x from 0 at the start of the decay to 1 at the last step:

      polynomial   f + (p - f) (1 - x)^decay_power, from the last step of the warm-up on
      cosine       f + (p - f) (1 + cos(pi x)) / 2, likewise (SGDR, ICLR 2017, Eq. 5, no restarts)
      wsd          p, then polynomial in the last decay_fraction of all steps
                   (warm-up, stable, decay; Hu et al., "MiniCPM", 2024, section 4)
      inverse_sqrt p (W / n)^(1/2) at the n-th step, at least f; W = 0 counts as 1
                   (Vaswani et al., "Attention is all you need", 2017, Eq. 3)

    Raises ValueError if warm-up and decay do not fit into the run of `num_steps`.
    """
    warmup_steps, peak = settings.warmup_steps, settings.learning_rate
    if not 0 <= warmup_steps < num_steps:
        raise ValueError(
            f"optimizer.warmup_steps is {warmup_steps}, must be below train.num_steps {num_steps}"
        )
    peak_step = max(warmup_steps - 1, 0)  # first step with the peak rate, counted from 0
    decay_steps = max(num_steps - 1 - peak_step, 1)
    if settings.schedule == "wsd":
        decay_steps = wsd_decay_steps(settings, num_steps)
    if warmup_steps + decay_steps > num_steps:
        raise ValueError(
            f"optimizer.decay_fraction is {settings.decay_fraction}: its {decay_steps} steps and "
            f"the {warmup_steps} of optimizer.warmup_steps are more than train.num_steps "
            f"{num_steps}"
        )
    decay: optax.Schedule
    if settings.schedule == "inverse_sqrt":
        decay = _inverse_sqrt(peak, peak_step, peak * settings.final_rate_ratio)
    elif settings.schedule == "cosine":
        decay = optax.cosine_decay_schedule(peak, decay_steps, alpha=settings.final_rate_ratio)
    else:
        final = peak * settings.final_rate_ratio
        power = optax.polynomial_schedule(peak, final, settings.decay_power, decay_steps)

        def decay(step):
            # Compiled code may give a negative 1 - x at the last step, whose root is NaN.
            return jnp.where(step < decay_steps, power(step), final)

    schedules, boundaries = [], []
    if peak_step:
        schedules.append(optax.linear_schedule(peak / warmup_steps, peak, peak_step))
        boundaries.append(peak_step)
    if settings.schedule == "wsd":
        schedules.append(optax.constant_schedule(peak))
        boundaries.append(max(num_steps - 1 - decay_steps, 0))
    return optax.join_schedules([*schedules, decay], boundaries)


def wsd_decay_steps(settings: Any, num_steps: int) -> int:
    """Return the number of decay steps of "wsd": at most all but the first, which has the peak."""
    return max(min(round(settings.decay_fraction * num_steps), num_steps - 1), 1)


def _inverse_sqrt(peak: float, peak_step: int, final: float) -> optax.Schedule:
    """Decay from `peak` at step `peak_step`, from which steps are counted, to at least `final`."""

    def rate(step):
        return jnp.maximum(peak * jnp.sqrt((peak_step + 1) / (peak_step + 1 + step)), final)

    return rate
