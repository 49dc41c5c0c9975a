"""Checkpoints: the whole state, written aside in the background. The one module with Orbax."""

import logging
import pathlib

from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from training.state import TrainState


def _worth_reading(record: logging.LogRecord) -> bool:
    """Whether a log line is ours or a warning; Orbax tells some thirty lines a checkpoint."""
    return record.levelno >= logging.WARNING or "/orbax/" not in record.pathname


absl_logging.get_absl_handler().addFilter(_worth_reading)


class Checkpoints:
    """The checkpoints of one run, numbered by steps taken; a context manager."""

    def __init__(self, folder: pathlib.Path, keep: int):
        """Opens the checkpoints in `folder`; only the `keep` latest stay."""
        self._checkpointer = ocp.training.Checkpointer(
            folder.absolute(),
            # When to save is the loop's decision.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),
        )

    def latest_step(self) -> int | None:
        """Steps taken at the latest whole checkpoint, or None."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    def save(self, step: int, state: TrainState) -> None:
        """Saves `state`; returns when it has been copied off the devices, writes on."""
        self._checkpointer.save_async(step, state)

    def restore(self, step: int, abstract_state: TrainState) -> TrainState:
        """Restores the state of `step`, laid out as `abstract_state` says.

        The layout may differ from the one it was saved under.
        """
        return self._checkpointer.load(step, abstract_state)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception) -> None:
        """Waits for the last save to be whole."""
        self._checkpointer.close()


def restore_latest(folder: pathlib.Path, abstract_state: TrainState) -> tuple[int, TrainState]:
    """The latest state in `folder` for evaluation: (steps taken, state).

    Raises:
      ValueError: there is no checkpoint.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} holds no checkpoint; run train.py with this --workdir first")
    with Checkpoints(folder, keep=1_000_000) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise ValueError(
                f"{folder} holds no checkpoint; run train.py with this --workdir first"
            )
        return step, checkpoints.restore(step, abstract_state)
