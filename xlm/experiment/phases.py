"""Phases of a run: train.py --continue_from begins each further one, with other settings."""

import pathlib
from typing import Any

from xlm.common import artifacts

PHASES = "phases"  # key of settings.json, absent if a run has one phase
# Keys that change neither the arrays of the state nor the examples of a step.
_CHANGEABLE = (
    "optimizer.learning_rate", "optimizer.muon_learning_rate", "optimizer.warmup_steps",
    "optimizer.schedule", "optimizer.decay_power", "optimizer.decay_fraction",
    "optimizer.final_rate_ratio", "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon",
    "optimizer.weight_decay", "optimizer.clip_norm", "train.num_steps", "train.evaluate_every",
    "train.checkpoint_every",
)  # fmt: skip


def recorded(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Return the phases after the first of the run in a folder of training."""
    path = folder / "settings.json"
    return artifacts.read_object(path).get(PHASES, []) if path.exists() else []


def with_phase(settings: dict[str, Any], stage: artifacts.Stage, step: int) -> dict[str, Any]:
    """Add a phase from the checkpoint of `step` on to a run's settings, if it is not there already.

    `stage` has these settings and the recorded phases. Raises ValueError if there is no run, or a
    phase cannot change the settings so.
    """
    if not (stage.folder / "settings.json").exists():
        raise ValueError(f"--continue_from is {step}, but {stage.folder} has no run; leave it out")
    earlier, changes = recorded(stage.folder), stage.changes()
    fixed = set(changes) - set(_CHANGEABLE)
    if settings["robust"]["num_phases"]:  # which begin at shares of the steps
        fixed |= set(changes) & {"train.num_steps"}
    if fixed:
        there, now = changes[min(fixed)]
        raise ValueError(
            f"--continue_from: {min(fixed)} is {there!r} in {stage.folder} and now {now!r}, which "
            "would change the state or the examples of earlier steps; set it back. These may "
            f"change: {', '.join(_CHANGEABLE)}"
        )
    if step >= settings["train"]["num_steps"]:
        raise ValueError(
            f"--continue_from is {step}, must be below train.num_steps "
            f"{settings['train']['num_steps']}; raise that"
        )
    if not changes and earlier and earlier[-1]["step"] == step:  # the same command again
        return {**settings, PHASES: earlier}
    return {**settings, PHASES: [*earlier, {"step": step, "changed": changes}]}
