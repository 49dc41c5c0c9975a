"""Checkpoints of the whole state, written in the background. The only module with Orbax.

A checkpoint carries a digest of the bits of its state, since a file system may return corrupt bytes
without any error. Damaged checkpoints are skipped in favour of older ones.
"""

import logging
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from training import averaging
from training.state import TrainState
from training.step import TrainFunctions

_Steps = TypeVar("_Steps", int, list[int])
# Words of a state whose digest numpy finds sooner than the program for it is compiled.
_MOST_WORDS_ON_HOST = 2**20
# Bytes from which on replicas of an array write a part of it each: parts are slices, every one of
# which is a program of its own, and those of small arrays take longer to compile than to write.
_LEAST_BYTES_OF_A_PART = 2**20


def _worth_reading(record: logging.LogRecord) -> bool:
    """Whether a log line is ours or a warning; Orbax logs about thirty lines per checkpoint."""
    return record.levelno >= logging.WARNING or "/orbax/" not in record.pathname


absl_logging.get_absl_handler().addFilter(_worth_reading)


class SaveError(OSError):
    """Failed write of a checkpoint; earlier ones are unchanged."""


class DamagedError(ValueError):
    """Unreadable checkpoint, or one that differs from the saved state."""


class Checkpoints:
    """Checkpoints of one run, numbered by steps taken; a context manager."""

    def __init__(
        self,
        folder: pathlib.Path,
        keep: int,
        keep_every: int = 0,
        max_multiples: int = 0,
        *,
        read_only: bool = False,
    ):
        """Open the checkpoints in `folder`.

        Args:
          folder: folder of the checkpoints.
          keep: number of latest checkpoints to keep.
          keep_every: keep checkpoints of multiples of it as well; 0 for none.
          max_multiples: number of the latest of these to keep; 0 for all.
          read_only: change nothing, since another process may be saving here.
        """
        self._folder = folder.absolute()
        self._read_only = read_only
        self._saving: int | None = None
        policies = ocp.training.preservation_policies
        kept = [policies.LatestN(keep)]
        if keep_every:
            kept.append(policies.EveryNSteps(keep_every, max_to_keep=max_multiples or None))
        context = ocp.Context()
        context.array.saving.min_slice_bytes_for_replica_parallel = _LEAST_BYTES_OF_A_PART
        self._checkpointer = ocp.training.Checkpointer(
            self._folder,
            context=context,
            # The loop decides when to save.
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.PreserveAll()
            if read_only
            else policies.AnyPreservationPolicy(kept),
            # Remove partial checkpoints of killed runs, which would fill the disk.
            cleanup_tmp_directories=not read_only,
        )

    def steps(self) -> list[int]:
        """Steps taken at each complete checkpoint, ascending."""
        return [checkpoint.step for checkpoint in self._checkpointer.checkpoints]

    def save(self, step: int, state: TrainState, *, is_up_to_date: bool = True) -> None:
        """Save `state`; return once it is copied off the devices, and write in the background.

        Args:
          step: steps taken.
          state: complete state.
          is_up_to_date: whether no update of its table rows is pending.

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
        """Raise SaveError if the save in the background has failed, without waiting for it."""
        if not self._checkpointer.is_saving_in_progress():
            self._finish()

    def restore(self, step: int, abstract_state: TrainState) -> TrainState:
        """Restore the state of `step` with the shardings of `abstract_state`.

        The shardings may differ from those at the time of saving.

        Raises:
          DamagedError: it cannot be read, or differs from the saved state.
        """
        return self._checked(step, "digest", lambda: self._checkpointer.load(step, abstract_state))

    def restore_params(self, step: int, abstract_params: Any) -> Any:
        """Restore the parameters of `step` alone, with the shardings of `abstract_params`.

        Raises:
          DamagedError: they cannot be read, or differ from the saved ones.
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
        except Exception:  # Orbax raises many types; `restore` will report it
            return False

    def _metadata(self, step: int) -> dict[str, Any]:
        return self._checkpointer.metadata(step).custom_metadata or {}

    def _checked(self, step: int, name: str, load: Callable[[], Any]) -> Any:
        """Load an item of `step`, and check its digest against the one saved under `name`."""
        found, saved, reason = None, None, "its metadata is lost"
        try:
            found = load()
            saved = self._metadata(step).get(name)
        except Exception as error:  # Orbax raises many types
            reason = f"it cannot be read ({type(error).__name__}: {_root_cause(error)})"
        # All hosts must use the same checkpoint and take part in the digest of its state.
        readable = found is not None and saved is not None
        if not _on_all_hosts(readable):
            raise DamagedError("another host cannot read it" if readable else reason)
        if digest(found) != saved:
            raise DamagedError("the state read is not the one that was saved, its digest differs")
        return found

    def restore_latest(
        self, abstract_after: Callable[[int], TrainState]
    ) -> tuple[int, TrainState] | None:
        """Restore the latest complete checkpoint: its step and state; None without checkpoints.

        The shapes of a state depend on the steps taken, see `TrainFunctions.abstract_after`.

        Later damaged checkpoints are logged and renamed to `<step>.damaged`, so that the run can
        save these steps again.

        Raises:
          DamagedError: all checkpoints are damaged. None is renamed, since the cause may be an
            unavailable file system or a change of the code.
        """
        return self._latest(lambda step: self.restore(step, abstract_after(step)))

    def latest_params(self, functions: TrainFunctions) -> tuple[int, Any] | None:
        """Restore the up-to-date parameters of the latest complete checkpoint: step and params.

        The rest of the state is read only if updates of table rows are pending.

        Raises:
          DamagedError: as `restore_latest`.
        """
        return self._latest(lambda step: self._params(step, functions))

    def mean_params(
        self, functions: TrainFunctions, count: int, every: int = 1
    ) -> tuple[list[int], Any]:
        """Restore the mean of the up-to-date parameters of the latest checkpoints: steps, params.

        Args:
          functions: of the run.
          count: number of checkpoints to average.
          every: of checkpoints of multiples of it alone, which does not depend on where a run was
            stopped.

        Raises:
          ValueError: there are fewer.
          DamagedError: one of them is damaged. It is not passed over, since an average over other
            checkpoints would be another model.
        """
        steps = [step for step in self.steps() if step % every == 0][-count:]
        if len(steps) < count:
            raise ValueError(
                f"{self._folder} holds {len(steps)} checkpoints, too few for the mean of {count}; "
                f"average fewer, or train with train.averaged_checkpoints at least {count}"
            )

        def restore(step: int) -> Any:
            try:
                return self._params(step, functions)
            except DamagedError as error:
                raise DamagedError(
                    f"checkpoint {self._folder / str(step)} is damaged: {error}; remove it, to "
                    "average the ones before, or average fewer"
                ) from error

        return steps, averaging.mean_params(map(restore, steps))

    def _params(self, step: int, functions: TrainFunctions) -> Any:
        """Restore the parameters of `step`, with pending updates applied."""
        of_stage = functions.after(step)
        abstract = of_stage.abstract_state
        # Hosts that load different items would wait in different collectives for each other.
        if _on_all_hosts(self.is_up_to_date(step)):
            return self.restore_params(step, abstract.params)
        return of_stage.apply_pending_updates(self.restore(step, abstract)).params

    def _latest(self, restore: Callable[[int], Any]) -> tuple[int, Any] | None:
        """Latest step that `restore` can read, and its result; see `restore_latest`."""
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
        """Rename damaged checkpoints, and log which one is used instead."""
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
        """Wait for the save in the background, if there is one."""
        step, self._saving = self._saving, None
        if step is None:
            return
        try:
            self._checkpointer.wait()
        except Exception as error:
            raise self._save_error(step) from error

    def _save_error(self, step: int) -> SaveError:
        self._checkpointer.reload()  # from disk: old checkpoints leave the list when a save begins
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
        """Wait for the last save to complete."""
        try:
            self._finish()
        except SaveError:
            if kind is None:
                raise
            logging.exception("and the last save failed")  # the one in flight has precedence
        finally:
            self._checkpointer.close()


def restore_latest(
    folder: pathlib.Path, abstract_after: Callable[[int], TrainState]
) -> tuple[int, TrainState]:
    """Restore the latest complete state in `folder`, read-only: (steps taken, state).

    See `Checkpoints.restore_latest` for its shapes. An interrupted run saves a state with pending
    updates; apply them with `TrainFunctions.apply_pending_updates`.

    Raises:
      ValueError: there is no checkpoint, or all are damaged.
    """
    return _read(folder, lambda checkpoints: checkpoints.restore_latest(abstract_after))


def restore_latest_params(folder: pathlib.Path, functions: TrainFunctions) -> tuple[int, Any]:
    """Restore the up-to-date parameters of the latest complete state: (steps taken, params).

    Raises:
      ValueError: there is no checkpoint, or all are damaged.
    """
    return _read(folder, lambda checkpoints: checkpoints.latest_params(functions))


def restore_mean_params(
    folder: pathlib.Path, functions: TrainFunctions, count: int, every: int = 1
) -> tuple[list[int], Any]:
    """Restore the mean of the parameters of the `count` latest checkpoints in `folder`, read-only.

    Of those alone whose steps are multiples of `every`.

    Raises:
      ValueError: there are fewer, or one of them is damaged; see `Checkpoints.mean_params`.
    """
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


def digest(state: Any) -> int:
    """Digest of 32 bits that detects any change of a single word of any array.

    It is the sum, modulo 2^32, of a hash of each word and its index. Integer addition is
    independent of order, so the digest does not depend on the sharding.

    Args:
      state: arrays of any dtype of up to 32 bits.
    """
    arrays = jax.tree.leaves(state)
    if jax.process_count() == 1 and sum(array.size for array in arrays) <= _MOST_WORDS_ON_HOST:
        return int(_sum_of_hashes(jax.device_get(arrays), np))
    return int(np.asarray(_digest(arrays)))


@jax.jit
def _digest(arrays: Sequence[jax.Array]) -> jax.Array:
    """See `digest`; scalar uint32.

    One program over all arrays: hosts may run several, which sum over them, in different orders,
    and then wait for each other forever.
    """
    return _sum_of_hashes(arrays, jnp)


def _sum_of_hashes(arrays: Sequence[Any], xp: Any) -> Any:
    """See `digest`; a scalar uint32, by numpy or by jax.numpy."""
    total = xp.zeros(1, np.uint32)  # an array, since scalars of numpy warn of what is over 2^32
    for number, array in enumerate(arrays):
        words = _words(xp.atleast_1d(array))
        place = xp.full(words.shape, number * 0x9E3779B9 & 0xFFFFFFFF, np.uint32)
        for axis, size in enumerate(words.shape):
            stride = math.prod(words.shape[axis + 1 :]) & 0xFFFFFFFF
            along = xp.arange(size, dtype=np.uint32) * np.uint32(stride)
            place += along.reshape([size if one == axis else 1 for one in range(words.ndim)])
        total += xp.sum(_mixed(words ^ _mixed(place)), dtype=np.uint32)
    return total[0]


def _words(array: Any) -> Any:
    """Bits of each element, uint32 of the array's shape."""
    if array.dtype == bool:
        return array.astype(np.uint32)
    return array.view(f"uint{8 * array.dtype.itemsize}").astype(np.uint32)


def _mixed(x: Any) -> Any:
    """Hash uint32 by a bijection that decorrelates neighbouring values."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _on_all_hosts(mine: bool) -> bool:
    """Whether a condition holds on every host."""
    if jax.process_count() == 1:
        return mine
    return bool(np.all(multihost_utils.process_allgather(np.array(mine))))


def _root_cause(error: BaseException) -> str:
    """Message of the first error in a chain of causes, as one line of limited length."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return " ".join(str(error).split())[:300]


def _free_name(path: pathlib.Path) -> pathlib.Path:
    """First of `path`, `path`-2, `path`-3, ... that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
