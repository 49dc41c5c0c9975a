"""Sinks of metrics besides the files of a run: its page, TensorBoard, Weights & Biases, MLflow."""

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
from xlm.training import run_report

Write = Callable[[Mapping[str, float], int], Any]
_MOST_PARAMS = 100  # of a request to MLflow
_LAST_SECONDS = 60  # that a run waits for a sink at its end


class Sink:
    """One of `SINKS` in its own thread, where it may fail or hang without harm to the training."""

    def __init__(self, kind: str, folder: pathlib.Path, step: int):
        """Open the sink of a run in `folder` after `step` steps."""
        self._kind = kind
        self._queue: queue.SimpleQueue[tuple[dict[str, float], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(folder, step), daemon=True)
        self._thread.start()

    def write(self, values: Mapping[str, float], step: int) -> None:
        """Pass on the metrics after `step` steps, without waiting."""
        if self._thread.is_alive():
            self._queue.put(({name: float(one) for name, one in values.items()}, step))

    def close(self) -> None:
        """Wait for pending metrics, but not for long."""
        self._queue.put(None)
        self._thread.join(_LAST_SECONDS)

    def _work(self, folder: pathlib.Path, step: int) -> None:
        try:
            needed = packages.needed(f"train.{self._kind}", self._kind)
            with needed, SINKS[self._kind](folder, step) as write:
                while (one := self._queue.get()) is not None:
                    write(*one)
        except BaseException as error:  # a library may also raise SystemExit
            fault = f"{type(error).__name__}: {error}"
            logging.warning("%s failed (%s); the run's files keep its metrics", self._kind, fault)


@contextlib.contextmanager
def _tensorboard(folder: pathlib.Path, step: int) -> Iterator[Write]:
    """Write a new event file, which withdraws later steps of older files."""
    from tensorboardX import SummaryWriter  # slow: it imports PyTorch if installed

    # Without the suffix, runs that resume within a second would share a file.
    suffix = f".{os.getpid()}.{step}"
    path = str(folder / "tensorboard")
    with SummaryWriter(path, purge_step=step + 1, filename_suffix=suffix) as writer:

        def write(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()  # a killed run must not lose them

        yield write


@contextlib.contextmanager
def _wandb(folder: pathlib.Path, step: int) -> Iterator[Write]:
    """Log to one run for all starts. Steps are a metric, since wandb's own steps never decrease."""
    import wandb

    name = _run(folder / "wandb.json", lambda: secrets.token_hex(4))
    with wandb.init(
        id=name, resume="allow", dir=folder, config=run_report.settings_of(folder),
        allow_val_change=True, settings=wandb.Settings(console="off"),
    ) as run:  # fmt: skip
        run.define_metric("*", step_metric="step")
        yield lambda values, step: run.log({**values, "step": step})


@contextlib.contextmanager
def _mlflow(folder: pathlib.Path, step: int) -> Iterator[Write]:
    import mlflow

    def begin() -> str:
        params = list(run_report.settings_of(folder).items())
        with mlflow.start_run() as run:
            for first in range(0, len(params), _MOST_PARAMS):
                mlflow.log_params(dict(params[first : first + _MOST_PARAMS]))
        return run.info.run_id

    with mlflow.start_run(run_id=_run(folder / "mlflow.json", begin)):
        yield lambda values, step: mlflow.log_metrics(dict(values), step)


@contextlib.contextmanager
def _report(folder: pathlib.Path, step: int) -> Iterator[Write]:
    """Write the page of the run at its start and at each evaluation, also the last."""
    is_train = folder.name == "train" and (folder.parent / "rows").exists()
    workdir = folder.parent if is_train else folder
    run, page = run_report.read(workdir), workdir / "report" if is_train else workdir

    def write(values: Mapping[str, float], step: int) -> None:
        if run.add(step, values):
            run_report.write_live(page, run)

    run_report.write_live(page, run)
    yield write


SINKS = {"report": _report, "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _run(path: pathlib.Path, begin: Callable[[], str]) -> str:
    """Return the name in `path` of a run of the service, or begin a new one."""
    if not path.exists():
        artifacts.write_json(path, {"run": begin()})
    return artifacts.read_object(path)["run"]
