"""Checkpoints of the whole state, written in the background. The only module with Orbax.

A file system may return corrupt bytes without an error, so each checkpoint has a digest of the bits
of its state. Restoring skips damaged checkpoints in favour of older ones.
"""

import contextlib
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import msgspec
import numpy as np
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from xlm.common import artifacts, declarations
from xlm.training import averaging, faults, hosts
from xlm.training.digests import Inspection, inspect
from xlm.training.faults import DamagedError
from xlm.training.state import TrainState
from xlm.training.step import TrainFunctions

_Steps = TypeVar("_Steps", int, list[int])
# Replicas of an array of at least so many bytes each write a slice of it. Every slice has its own
# program, and for a small array compiling takes longer than writing.
_LEAST_BYTES_OF_A_PART = 2**20
_ITEM = "state"
_PARTIAL = ".orbax-checkpoint-tmp"  # in names of incomplete checkpoints


def _worth_reading(record: logging.LogRecord) -> bool:
    """Drop repetitions of the errors that `SaveError` and a failed read report."""
    if "/orbax/" in record.pathname:
        record.exc_info = None  # tracebacks of its threads
    return not (record.name == "asyncio" and "never retrieved" in record.getMessage())


absl_logging.get_absl_handler().addFilter(_worth_reading)
warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)  # of these
_show_unraisable = sys.unraisablehook


def _unraisablehook(found: Any) -> None:
    """Show an exception that nobody can catch, except those of tensorstore's late threads."""
    if "Event loop is closed" not in str(found.exc_value):  # after a failed read, which we report
        _show_unraisable(found)


sys.unraisablehook = _unraisablehook


class SaveError(OSError):
    """Failed write of a checkpoint; earlier ones are unchanged."""


class _Notes(declarations.Artefact, frozen=True):
    """Record in a checkpoint; `structure`, a fingerprint of its arrays, is "" in older ones."""

    digest: declarations.Count
    params_digest: declarations.Count
    is_up_to_date: bool
    structure: str = ""


class _Save(NamedTuple):
    """Save in flight, or the last complete one."""

    step: int
    response: ocp.AsyncResponse[None]
    abstract: TrainState


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """Checkpoints of one run, numbered by steps taken; a context manager.

    `keep`, `keep_every`, `max_multiples` and `verify` are those of `TrainSettings`. A `read_only`
    instance changes nothing, since another process may be saving here.
    """

    def __init__(
        self, folder: pathlib.Path, keep: int, keep_every: int = 0, max_multiples: int = 0, *,
        read_only: bool = False, verify: str = "first_and_last",
    ):  # fmt: skip
        """Open the checkpoints in `folder`; ValueError if nobody can write below its name."""
        # For the system two slashes at the start of a path are one, for tensorstore they are not.
        self._folder = pathlib.Path("/", *folder.absolute().parts[1:])
        artifacts.check_plain(self._folder)
        self._keep, self._keep_every, self._max_multiples = keep, keep_every, max_multiples
        self._read_only, self._reads_all_back = read_only, verify == "every"
        self._saving: _Save | None = None
        self._written: _Save | None = None
        self._read_step: int | None = None
        self._context = ocp.Context()
        self._context.array.saving.min_slice_bytes_for_replica_parallel = _LEAST_BYTES_OF_A_PART
        if not read_only and hosts.is_first() and self._folder.is_dir():
            # Partial checkpoints of killed runs would fill the disk.
            for path in [one for one in self._folder.iterdir() if _PARTIAL in one.name]:
                shutil.rmtree(path)

    def steps(self) -> list[int]:
        """Return the steps taken at each complete checkpoint, ascending."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))

    def save(
        self, step: int, state: TrainState, *, is_up_to_date: bool = True,
        inspection: Inspection | None = None,
    ) -> None:  # fmt: skip
        """Save `state` in the background; return after the copy off the devices.

        `is_up_to_date` says that no update of table rows is pending. `inspection` is that of the
        state, if the caller has it. Raises SaveError if this save, or the one before, failed.
        """
        self._finish()
        digest, params_digest, _ = inspection or inspect(state)
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )
        notes = _Notes(digest, params_digest, is_up_to_date, _structure(abstract))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._context:
                metadata = msgspec.structs.asdict(notes)
                response = ocp.save_async(self._path(step), state, custom_metadata=metadata)
        except Exception as error:
            raise self._save_error(step, "could not be written", error) from error
        self._saving = _Save(step, response, abstract)

    def check(self) -> None:
        """Raise SaveError if the save in the background has failed, without waiting for it."""
        # Several hosts raise together, at the next save.
        if self._saving and self._is_written(timeout=0) and jax.process_count() == 1:
            self._finish()

    def restore(self, step: int, abstract_state: TrainState) -> TrainState:
        """Restore the state of `step` with the shardings of `abstract_state`, which may be new.

        Raises:
          DamagedError: it is unreadable, or differs from the saved state.
          OSError: the system does not let us read it now.
          ValueError: other code wrote it, or it holds numbers that are not finite.
        """
        return self._checked(step, abstract_state, abstract_state)

    def _checked(self, step: int, part: Any, abstract_state: TrainState) -> Any:
        """Load `part` of a state, all or {"params": ...}, and check its digest."""
        path, found, saved, fault = self._path(step), None, None, None
        try:
            notes, arrays = self._read_notes(step)
            # If the structure is the same, other arrays are a sign of damaged metadata.
            if arrays is not None and notes.structure != _structure(abstract_state):
                faults.check_arrays(path, arrays, part)
            context = ocp.Context()
            context.pytree.loading.partial_load = part is not abstract_state
            with context:
                found = ocp.load_checkpointables(path, {_ITEM: part})[_ITEM]
            # Orbax returns the request, without numbers, for arrays that damaged metadata lack.
            if not all(isinstance(one, jax.Array | np.ndarray) for one in jax.tree.leaves(found)):
                raise DamagedError("its metadata name other arrays than it has")
            saved = notes.digest if part is abstract_state else notes.params_digest
        except Exception as error:  # Orbax raises many types
            fault = faults.fault_of(path, error)
        # All hosts must use the same checkpoint and take part in the digest of its state.
        faults.raise_worst(fault)
        inspection = inspect(found)
        if inspection.digest != saved:
            raise DamagedError("the state differs from the saved one, by its digest")
        if inspection.fault:
            raise ValueError(
                f"checkpoint {path} holds {inspection.fault}; continue from an earlier one, for "
                "instance with a lower rate (train.py --continue_from)"
            )
        return found

    def is_up_to_date(self, step: int) -> bool:
        """Return whether no update of the parameters of `step` is pending."""
        try:
            return self._read_notes(step)[0].is_up_to_date
        except Exception:  # Orbax raises many types; `restore` will report it
            return False

    def _read_notes(self, step: int) -> tuple[_Notes, Any]:
        """Return the notes on a checkpoint, and shapes and types of its arrays, None if lost."""
        found = ocp.metadata(self._path(step), _ITEM)
        text = json.dumps(found.custom_metadata)
        notes = declarations.parse(text, _Notes, place="its notes", remedy="copy it again")
        return notes, found.metadata

    def _path(self, step: int) -> pathlib.Path:
        return self._folder / str(step)

    def restore_latest(
        self, abstract_after: Callable[[int], TrainState]
    ) -> tuple[int, TrainState] | None:
        """Restore the latest usable checkpoint as (step, state); None without checkpoints.

        `abstract_after` gives the shapes of the state after some steps
        (`TrainFunctions.abstract_after`). This logs later damaged checkpoints and renames them to
        `<step>.damaged`, so the run can save these steps again. If all are damaged, it renames none
        and raises DamagedError. Other errors are those of `restore` for the latest checkpoint that
        is not damaged.
        """
        return self.latest(lambda step: self.restore(step, abstract_after(step)))

    def mean_params(
        self, functions: TrainFunctions, count: int, every: int = 1
    ) -> tuple[list[int], Any]:
        """Restore the mean of the up-to-date parameters of the latest `count` checkpoints.

        Returns (steps, params). Only multiples of `every` count, so stops of a run change nothing.
        Raises ValueError if there are fewer, and DamagedError if one of them is damaged: an average
        over other checkpoints would be another model.
        """
        steps = [step for step in self.steps() if step % every == 0][-count:]
        if len(steps) < count:
            raise ValueError(
                f"{self._folder} holds {len(steps)} checkpoints, too few for the mean of {count}; "
                f"average fewer, or train with train.averaged_checkpoints at least {count}"
            )

        def restore(step: int) -> Any:
            try:
                return self.params(step, functions)
            except DamagedError as error:
                raise DamagedError(
                    f"checkpoint {self._path(step)} is damaged: {error}; move it away to average "
                    "earlier ones, or average fewer"
                ) from error

        return steps, averaging.mean_params(map(restore, steps))

    def params(self, step: int, functions: TrainFunctions) -> Any:
        """Restore the parameters of `step` for other readers, with pending updates applied."""
        of_stage = functions.after(step)
        abstract = of_stage.abstract_state
        if of_stage.averaged is not None:
            return of_stage.gathered(of_stage.averaged(self.restore(step, abstract)).params)
        # Hosts that load different items would wait for each other in different collectives.
        if hosts.as_on_first([self.is_up_to_date(step)])[0]:
            found = self._checked(step, {"params": abstract.params}, abstract)["params"]
        else:
            found = of_stage.apply_pending_updates(self.restore(step, abstract)).params
        return of_stage.gathered(found)

    def latest(self, restore: Callable[[int], Any]) -> tuple[int, Any] | None:
        """Return the latest step that `restore` can read, and its result; see `restore_latest`."""
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                state = restore(step)
            except DamagedError as error:
                damaged[step] = str(error)
                continue
            self._set_aside(damaged, step)
            return step, state
        if not damaged:
            return None
        reasons = "\n".join(f"  {step}: {reason}" for step, reason in damaged.items())
        raise DamagedError(
            f"none of the checkpoints in {self._folder} can be restored:\n{reasons}\n"
            "Copy one back, or move the folder away to train from the first step"
        )

    def _set_aside(self, damaged: dict[int, str], used: int) -> None:
        """Rename damaged checkpoints, and log their replacement."""
        for step, reason in damaged.items():
            logging.warning(
                "checkpoint %s is damaged: %s; using that of step %d instead",
                self._path(step), reason, used,
            )  # fmt: skip
            if not self._read_only and hosts.is_first():
                self._path(step).rename(free_name(self._folder / f"{step}.damaged"))
        if damaged and not self._read_only:
            hosts.wait_for_all("damaged checkpoints set aside")

    def _is_written(self, timeout: float | None = None) -> bool:
        """Wait for the save in the background; return whether it is on disk, or raise SaveError."""
        if (save := self._saving) is None:
            return True
        try:
            save.response.result(timeout)
            if hosts.is_first():  # tensorstore syncs arrays, Orbax syncs nothing
                artifacts.sync_tree(self._path(save.step))
                artifacts.sync(self._folder)
        except Exception as error:
            if isinstance(error, TimeoutError) and timeout is not None:
                return False
            self._saving = None
            raise self._save_error(save.step, "could not be written", error) from error
        self._saving, self._written = None, save
        return True

    def _finish(self, *, is_last: bool = False) -> None:
        """Wait for the save in the background, read it back if due, and remove old ones."""
        self._is_written()
        if (save := self._written) is None:
            return
        is_due = is_last or self._reads_all_back or self._read_step is None
        if is_due and save.step != self._read_step and self._could_read_back(save):
            self._read_step = save.step
        if hosts.is_first():
            self._remove_old()

    def _could_read_back(self, save: _Save) -> bool:
        """Return whether memory sufficed to read back a save; SaveError if it differs."""
        try:
            self.restore(save.step, save.abstract)
        except MemoryError as error:
            logging.warning("%s could not be read back: %s", self._path(save.step), error)
            return False
        except (OSError, ValueError) as error:
            what = "reads back with other content"
            raise self._save_error(save.step, what, error) from error
        return True

    def _remove_old(self) -> None:
        steps = self.steps()
        multiples = [step for step in steps if self._keep_every and step % self._keep_every == 0]
        kept = {*steps[-self._keep :], *multiples[-self._max_multiples :]}
        for path in map(self._path, set(steps) - kept):
            aside = artifacts.aside_of(path)
            path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def _save_error(self, step: int, what: str, error: Exception) -> SaveError:
        good = [other for other in self.steps() if other != step]
        last = f"that of step {max(good)} is the last good one" if good else "there is none before"
        return SaveError(
            f"the checkpoint of step {step} in {self._folder} {what} ({faults.cause(error)}); "
            f"{last}. If the disk is full, make room (train.keep_checkpoints and train.keep_every "
            "set how many stay); then rerun the command to resume"
        )

    def __exit__(self, kind, *_) -> None:
        """Wait for the last save to complete."""
        if kind is None:
            self._finish(is_last=True)
            return
        try:
            self._is_written()
        except SaveError as error:
            logging.error("and the last save failed: %s", error)  # Python raises the first error


def restore_latest(
    folder: pathlib.Path, abstract_after: Callable[[int], TrainState]
) -> tuple[int, TrainState]:
    """Restore the latest usable state in `folder`, read-only: (steps taken, state).

    See `Checkpoints.restore_latest`; ValueError without a checkpoint. The state of an interrupted
    run has pending updates: apply them with `TrainFunctions.apply_pending_updates`.
    """
    return _read(folder, lambda checkpoints: checkpoints.restore_latest(abstract_after))


def restore_latest_params(folder: pathlib.Path, functions: TrainFunctions) -> tuple[int, Any]:
    """Restore the latest usable parameters, up to date and read-only: (steps taken, params)."""
    return _read(folder, lambda one: one.latest(lambda step: one.params(step, functions)))


def restore_mean_params(
    folder: pathlib.Path, functions: TrainFunctions, count: int, every: int = 1
) -> tuple[list[int], Any]:
    """Restore the mean parameters of checkpoints in `folder`; see `Checkpoints.mean_params`."""
    return _read(folder, lambda checkpoints: checkpoints.mean_params(functions, count, every))


def _read(
    folder: pathlib.Path, read: Callable[[Checkpoints], tuple[_Steps, Any] | None]
) -> tuple[_Steps, Any]:
    if folder.is_dir():
        with Checkpoints(folder, keep=1, read_only=True) as checkpoints:
            found = read(checkpoints)
            if found is not None:
                return found
    raise ValueError(f"{folder} holds no checkpoint; run train.py with this --workdir first")


def _structure(abstract: Any) -> str:
    return artifacts.fingerprint(faults.described(abstract))


def free_name(path: pathlib.Path) -> pathlib.Path:
    """Return the first of `path`, `path`-2, `path`-3, ... that does not exist."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], others) if not one.exists())
