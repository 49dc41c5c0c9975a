"""Checkpoints: the whole state, written aside in the background. The one module with Orbax.

A checkpoint carries a digest of the bits of its state, since a file system may give back other
bytes than it took without any error. Damaged checkpoints are passed over, in favour of older ones.
"""

import logging
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from training.state import TrainState
from training.step import TrainFunctions


def _worth_reading(record: logging.LogRecord) -> bool:
    """Whether a log line is ours or a warning; Orbax tells some thirty lines a checkpoint."""
    return record.levelno >= logging.WARNING or "/orbax/" not in record.pathname


absl_logging.get_absl_handler().addFilter(_worth_reading)


class SaveError(OSError):
    """A checkpoint could not be written; those before it are as they were."""


class DamagedError(ValueError):
    """A checkpoint cannot be read, or is not what was saved."""


class Checkpoints:
    """The checkpoints of one run, numbered by steps taken; a context manager."""

    def __init__(
        self, folder: pathlib.Path, keep: int, keep_every: int = 0, *, read_only: bool = False
    ):
        """Opens the checkpoints in `folder`.

        Args:
          folder: where they are.
          keep: so many stay, the latest.
          keep_every: those of multiples of it stay as well; 0 for none.
          read_only: nothing is changed; someone else may be saving here.
        """
        self._folder = folder.absolute()
        self._read_only = read_only
        self._saving: int | None = None
        policies = ocp.training.preservation_policies
        kept = [policies.LatestN(keep)]
        if keep_every:
            kept.append(policies.EveryNSteps(keep_every))
        self._checkpointer = ocp.training.Checkpointer(
            self._folder,
            # When to save is the loop's decision.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.PreserveAll()
            if read_only
            else policies.AnyPreservationPolicy(kept),
            # What killed runs were writing would fill the disk one day.
            cleanup_tmp_directories=not read_only,
        )

    def steps(self) -> list[int]:
        """Steps taken at each whole checkpoint, ascending."""
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints]

    def save(self, step: int, state: TrainState, *, is_up_to_date: bool = True) -> None:
        """Saves `state`; returns when it has been copied off the devices, writes on.

        Args:
          step: steps taken.
          state: all of it.
          is_up_to_date: whether no update of its parameters is pending.

        Raises:
          SaveError: this save, or the one before, failed.
        """
        self._finish()
        self._saving = step
        metadata = {
            "digest": digest(state),
            "params_digest": digest(state.params),
            "is_up_to_date": is_up_to_date,
        }
        try:
            self._checkpointer.save_async(step, state, custom_metadata=metadata)
        except Exception as error:
            raise self._save_error(step) from error

    def check(self) -> None:
        """Raises SaveError if the save in the background has failed; does not wait for it."""
        if not self._checkpointer.is_saving_in_progress():
            self._finish()

    def restore(self, step: int, abstract_state: TrainState) -> TrainState:
        """Restores the state of `step`, laid out as `abstract_state` says.

        The layout may differ from the one it was saved under.

        Raises:
          DamagedError: it cannot be read, or is not what was saved.
        """
        return self._checked(step, "digest", lambda: self._checkpointer.load(step, abstract_state))

    def restore_params(self, step: int, abstract_params: Any) -> Any:
        """Restores the parameters of `step` alone, laid out as `abstract_params` says.

        Raises:
          DamagedError: they cannot be read, or are not what was saved.
        """

        def load() -> Any:
            partial = ocp.Context()
            partial.pytree.loading.partial_load = True
            with partial:
                return self._checkpointer.load(step, {"params": abstract_params})["params"]

        return self._checked(step, "params_digest", load)

    def is_up_to_date(self, step: int) -> bool:
        """Whether no update of the parameters of `step` is pending."""
        try:
            return bool(self._metadata(step).get("is_up_to_date"))
        except Exception:  # Orbax raises all kinds; `restore` will name it
            return False

    def _metadata(self, step: int) -> dict[str, Any]:
        return self._checkpointer.metadata(step).custom_metadata or {}

    def _checked(self, step: int, name: str, load: Callable[[], Any]) -> Any:
        """What `load` reads of `step`, if its digest is the one saved by that name."""
        found, saved, reason = None, None, "its metadata is lost"
        try:
            found = load()
            saved = self._metadata(step).get(name)
        except Exception as error:  # Orbax raises all kinds
            reason = f"it cannot be read ({type(error).__name__}: {_root_cause(error)})"
        # All hosts go on with the same checkpoint, and take part in the digest of its state.
        readable = found is not None and saved is not None
        if not _on_all_hosts(readable):
            raise DamagedError("another host cannot read it" if readable else reason)
        if digest(found) != saved:
            raise DamagedError("the state read is not the one that was saved, its digest differs")
        return found

    def restore_latest(self, abstract_state: TrainState) -> tuple[int, TrainState] | None:
        """The state of the latest checkpoint that is whole, and its step; None if there is none.

        Damaged ones after it are named in the log and set aside, `<step>.damaged`, so that the run
        can save these steps again.

        Raises:
          DamagedError: there are checkpoints, and none is whole. All are left where they are: this
            is what a file system that is away looks like, or a change of the code.
        """
        return self._latest(lambda step: self.restore(step, abstract_state))

    def latest_params(self, functions: TrainFunctions) -> tuple[int, Any] | None:
        """The parameters, all up to date, of the latest whole checkpoint, and its step, or None.

        The rest of the state is read only where updates of the parameters are pending.

        Raises:
          DamagedError: as `restore_latest`.
        """
        abstract = functions.abstract_state

        def restore(step: int) -> Any:
            if self.is_up_to_date(step):
                return self.restore_params(step, abstract.params)
            return functions.apply_pending_updates(self.restore(step, abstract)).params

        return self._latest(restore)

    def _latest(self, restore: Callable[[int], Any]) -> tuple[int, Any] | None:
        """The latest step that `restore` can read, and what it gives; see `restore_latest`."""
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
            "If the files cannot be brought back and the code is the one that wrote them, delete "
            "the folder to train from the first step"
        )

    def _set_aside(self, damaged: dict[int, str], used: int) -> None:
        """Renames damaged checkpoints, and says which is used instead."""
        for step, reason in damaged.items():
            logging.warning(
                "checkpoint %s is damaged: %s; using that of step %d instead",
                self._folder / str(step), reason, used,
            )  # fmt: skip
            if not self._read_only and jax.process_index() == 0:
                (self._folder / str(step)).rename(_free_name(self._folder / f"{step}.damaged"))
        if damaged and not self._read_only:
            if jax.process_count() > 1:
                multihost_utils.sync_global_devices("damaged checkpoints set aside")
            self._checkpointer.reload()

    def _finish(self) -> None:
        """Waits for the save in the background, if there is one."""
        step, self._saving = self._saving, None
        if step is None:
            return
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise self._save_error(step) from error

    def _save_error(self, step: int) -> SaveError:
        self._checkpointer.reload()  # from disk: older ones are struck off when a save begins
        good = [other for other in self.steps() if other != step]
        last = f"that of step {max(good)} is the last good one" if good else "there is none before"
        return SaveError(
            f"the checkpoint of step {step} in {self._folder} could not be written; {last}. If the "
            "disk is full, make room (train.keep_checkpoints and train.keep_every say how many "
            "stay); the same command then goes on from there"
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind, *_) -> None:
        """Waits for the last save to be whole."""
        try:
            self._finish()
        except SaveError:
            if kind is None:
                raise
            logging.exception("and the last save failed")  # what is on its way out matters more
        finally:
            self._checkpointer.close()


def restore_latest(folder: pathlib.Path, abstract_state: TrainState) -> tuple[int, TrainState]:
    """The latest whole state in `folder`, for reading: (steps taken, state).

    A run that was asked to stop saves parameters that are not all up to date;
    `TrainFunctions.apply_pending_updates` brings them there.

    Raises:
      ValueError: there is no checkpoint, or none that is whole.
    """
    return _read(folder, lambda checkpoints: checkpoints.restore_latest(abstract_state))


def restore_latest_params(folder: pathlib.Path, functions: TrainFunctions) -> tuple[int, Any]:
    """The parameters, all up to date, of the latest whole state in `folder`: (steps taken, params).

    Raises:
      ValueError: there is no checkpoint, or none that is whole.
    """
    return _read(folder, lambda checkpoints: checkpoints.latest_params(functions))


def _read(
    folder: pathlib.Path, read: Callable[[Checkpoints], tuple[int, Any] | None]
) -> tuple[int, Any]:
    if folder.is_dir():
        with Checkpoints(folder, keep=1, read_only=True) as checkpoints:
            found = read(checkpoints)
            if found is not None:
                return found
    raise ValueError(f"{folder} holds no checkpoint; run train.py with this --workdir first")


def digest(state: Any) -> int:
    """A number of 32 bits that any change of one word of any array changes.

    The sum, modulo 2^32, of a hash of each word and its place: integers are added in any order to
    the same sum, so arrays may lie on devices as they like.

    Args:
      state: arrays of any type of up to 32 bits.
    """
    return int(np.asarray(_digest(state)))


@jax.jit
def _digest(state: Any) -> jax.Array:
    """See `digest`; scalar uint32."""
    total = jnp.uint32(0)
    for number, array in enumerate(jax.tree.leaves(state)):
        words = _words(array)
        place = jnp.full(words.shape, number * 0x9E3779B9 & 0xFFFFFFFF, jnp.uint32)
        for axis in range(words.ndim):
            stride = math.prod(words.shape[axis + 1 :]) & 0xFFFFFFFF
            along = jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
            place += along * jnp.uint32(stride)
        total += jnp.sum(_mixed(words ^ _mixed(place)), dtype=jnp.uint32)
    return total


def _words(array: jax.Array) -> jax.Array:
    """The bits of each element, uint32 of the array's shape."""
    if array.dtype == bool:
        return array.astype(jnp.uint32)
    unsigned = jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """A bijection of uint32 under which neighbours have nothing in common."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _on_all_hosts(mine: bool) -> bool:
    """Whether something is true on every host."""
    if jax.process_count() == 1:
        return mine
    return bool(np.all(multihost_utils.process_allgather(np.array(mine))))


def _root_cause(error: BaseException) -> str:
    """The message that an error began with, in one line of bearable length."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return " ".join(str(error).split())[:300]


def _free_name(path: pathlib.Path) -> pathlib.Path:
    """`path`, or the first of `path`-2, `path`-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
