"""Where metrics go besides the files of a run: TensorBoard, Weights & Biases, MLflow."""

import contextlib
import logging
import os
import pathlib
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from xlm.common import artifacts, packages

Write = Callable[[Mapping[str, float], int], Any]
_MOST = 10_000  # records that wait
_MOST_PARAMS = 100  # of a request to MLflow
_LAST_SECONDS = 60  # that a run waits for a sink at its end


class Sink:
    """One of `SINKS`, in a thread of its own, so that it can fail or hang without the training."""

    def __init__(self, kind: str, folder: pathlib.Path, step: int):
        """Open the sink of a run in `folder`, which has taken `step` steps."""
        self._kind, self._queue = kind, queue.Queue[tuple[dict[str, float], int] | None](_MOST)
        self._is_open = True
        self._thread = threading.Thread(target=self._work, args=(folder, step), daemon=True)
        self._thread.start()

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Pass on the metrics after `step` steps, without waiting."""
        if self._is_open:
            try:
                self._queue.put_nowait(({name: float(x) for name, x in values.items()}, step))
            except queue.Full:
                self._fail(f"{_MOST} records are waiting")

    def close(self) -> None:
        """Wait for what is under way, but not for long."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(_LAST_SECONDS)

    def _work(self, folder: pathlib.Path, step: int) -> None:
        try:
            needed = packages.needed(f"train.{self._kind}", self._kind)
            with needed, SINKS[self._kind](folder, step) as write:
                while (one := self._queue.get()) is not None:
                    write(*one)
        except BaseException as error:  # a library may also raise SystemExit
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        logging.warning("metrics go to %s no more (%s); metrics.jsonl has them", self._kind, why)


@contextlib.contextmanager
def _tensorboard(folder: pathlib.Path, step: int) -> Iterator[Write]:
    """Write a new event file, which takes back what older files say of later steps."""
    from tensorboardX import SummaryWriter  # imports PyTorch if installed, which is slow

    # Without the suffix, runs that resume within a second would share a file.
    suffix = f".{os.getpid()}.{step}"
    path = str(folder / "tensorboard")
    writer = SummaryWriter(path, purge_step=step + 1, filename_suffix=suffix)

    def write(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # or a run that is killed would lose them

    with contextlib.closing(writer):
        yield write


@contextlib.contextmanager
def _wandb(folder: pathlib.Path, step: int) -> Iterator[Write]:
    """Log to one run for all starts; steps are a metric, since wandb's own never go back."""
    import wandb

    name = _known(folder, "wandb") or _know(folder, "wandb", secrets.token_hex(4))
    with wandb.init(
        id=name, resume="allow", dir=folder, config=_config(folder), allow_val_change=True,
        settings=wandb.Settings(console="off"),
    ) as run:  # fmt: skip
        run.define_metric("*", step_metric="step")
        yield lambda values, step: run.log({**values, "step": step})


@contextlib.contextmanager
def _mlflow(folder: pathlib.Path, step: int) -> Iterator[Write]:
    """Log to one run for all starts."""
    import mlflow

    known = _known(folder, "mlflow")
    with mlflow.start_run(run_id=known, log_system_metrics=False) as run:
        if not known:
            params = [*_config(folder).items()]
            for first in range(0, len(params), _MOST_PARAMS):
                mlflow.log_params(dict(params[first : first + _MOST_PARAMS]))
            _know(folder, "mlflow", run.info.run_id)
        yield lambda values, step: mlflow.log_metrics(dict(values), step)


SINKS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _known(folder: pathlib.Path, kind: str) -> str | None:
    path = folder / f"{kind}.json"
    return artifacts.read_object(path)["run"] if path.exists() else None


def _know(folder: pathlib.Path, kind: str, run: str) -> str:
    artifacts.write_json(folder / f"{kind}.json", {"run": run})
    return run


def _config(folder: pathlib.Path) -> dict[str, Any]:
    """Return the settings of a run by the names of its keys."""
    path = folder / "settings.json"
    return _flat(artifacts.read_object(path)) if path.exists() else {}


def _flat(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in section.items():
        is_section = isinstance(value, Mapping)
        found |= _flat(value, f"{prefix}{name}.") if is_section else {prefix + name: value}
    return found
