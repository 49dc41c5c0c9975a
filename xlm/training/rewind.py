"""Return of a run to an earlier checkpoint. Later ones move aside."""

import logging
import pathlib
import shutil

from xlm.common import artifacts
from xlm.training import hosts
from xlm.training.checkpoint import Checkpoints, free_name
from xlm.training.faults import DamagedError
from xlm.training.step import TrainFunctions


def rewind(folder: pathlib.Path, step: int, functions: TrainFunctions, *, by_rows: bool) -> None:
    """Move the checkpoints after `step` to FOLDER/abandoned-STEP, with copies of all records.

    The caller must hold the lock of `folder`. `by_rows` says that updates of table rows may be
    pending, which other rates would change. Raises ValueError if the checkpoint does not exist, or
    is damaged.
    """
    with Checkpoints(folder / "checkpoints", keep=1, read_only=True) as checkpoints:
        steps = checkpoints.steps()
        usable = [one for one in steps if not by_rows or checkpoints.is_up_to_date(one)]
        listed = ", ".join(map(str, usable)) or "there is none"
        if step not in usable:
            raise ValueError(
                f"--continue_from is {step}, must be a step of a checkpoint in {folder}: {listed}"
            )
        try:
            checkpoints.restore(step, functions.abstract_after(step))  # before any move
        except DamagedError as error:
            raise DamagedError(
                f"--continue_from is {step}, but that checkpoint is damaged: {error}; choose "
                f"another one of {listed}"
            ) from error
    if hosts.is_first():
        aside = free_name(folder / f"abandoned-{step}")
        aside.mkdir()
        for path in folder.iterdir():
            if path.is_file() and path.name not in ("DONE", "LOCK"):
                shutil.copy2(path, aside)
        for one in reversed([one for one in steps if one > step]):  # a kill leaves a valid run
            (folder / "checkpoints" / str(one)).rename(aside / str(one))
        artifacts.sync_tree(aside)
        logging.info("checkpoints after step %d, and copies of all metrics: %s", step, aside)
    hosts.wait_for_all("later checkpoints are moved")


def advice(folder: pathlib.Path) -> str:
    """Return how to continue from the last checkpoint with other settings, "" without one."""
    with Checkpoints(folder / "checkpoints", keep=1, read_only=True) as checkpoints:
        steps = checkpoints.steps()
    return f"; add --continue_from={steps[-1]} to resume there with such a key" if steps else ""
