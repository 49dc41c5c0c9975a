"""Toy runs of the loop, for tests of its intervals, records and stops."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from tests import factories, folders
from xlm.objectives.objective import Objective
from xlm.training.checkpoint import restore_latest
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.settings import TrainSettings
from xlm.training.state import TrainState
from xlm.training.step import TrainFunctions

NUM_STEPS = 10
SETTINGS = TrainSettings(
    num_steps=NUM_STEPS, batch_size=4, log_every=2, evaluate_every=4, checkpoint_every=3
)
GOOD, NAN_LOSS, NAN_GRADIENT = 1.0, np.nan, 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Toy(Objective):
    """Learns sqrt(x (100 + sum of w)); keeps a copy of w, refreshed in the first 8 steps."""

    exact: bool = False
    every: int = 3

    def init(self, key):
        return {"w": jnp.zeros(4)}

    def init_aux_state(self):
        return {"copy": jnp.full(4, -1.0), "copied_at": jnp.int32(-1)}

    def due(self, step):
        return ("copy",) if not self.exact and step % self.every == 0 else ()

    def refresh(self, params, aux_state, names, step):
        report = {"moved": (jnp.abs(params["w"] - aux_state["copy"]).sum(), jnp.float32(1))}
        return {"copy": params["w"], "copied_at": step}, report

    @functools.cached_property
    def last_phase(self):
        return dataclasses.replace(self, exact=True)

    def at_step(self, step):
        return self.last_phase if step >= 8 else self

    def loss(self, params, rows, plan, key):
        if plan.kind == "tokens":
            x = plan["tokens"].astype(jnp.float32)
            product = (x @ x.T) + (x @ x.T if self.exact else 0)
            return {"loss": ((params["w"] + 100).sum() * product.sum(), 1.0)}, None
        losses = jnp.sqrt(plan["x"] * (params["w"].sum() + 100))
        exact = (jnp.float32(self.exact), 1.0)
        return {"loss": (losses.sum(), jnp.float32(4)), "exact": exact}, None


class Data:
    """Yields the given batches first, good ones afterwards."""

    def __init__(self, *values: float):
        self._values = values

    def batches(self, steps: range) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for step in steps:
            value = self._values[step] if step < len(self._values) else GOOD
            yield "numbers", {"x": np.full(4, value, np.float32)}

    def describe_batch(self, step: int):
        return [["en", 10 * step]]

    def step_values(self, step: int):
        return {"values_of": step}


@functools.cache
def toy_functions() -> TrainFunctions:
    return factories.train_functions(Toy())


@functools.cache
def whole_run() -> tuple[pathlib.Path, TrainState]:
    """Folder and last state of an uninterrupted run; do not write to it."""
    folder = tempfile.TemporaryDirectory()
    whole_run.folder = folder  # removed when the process ends
    path = pathlib.Path(folder.name)
    return path, jax.device_get(train(toy_functions(), SETTINGS, path, Data()))


class TestCase(folders.FolderTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.functions = toy_functions()

    def train(self, *values: float, functions: TrainFunctions | None = None, **kwargs):
        functions = functions or self.functions
        return train(functions, SETTINGS, self.folder, Data(*values), **kwargs)

    def assert_is_whole_run(self, state: TrainState):
        folder, expected = whole_run()
        jax.tree.map(np.testing.assert_array_equal, state, expected)
        found, metrics = (one / "metrics.jsonl" for one in (self.folder, folder))
        self.assertEqual(found.read_bytes(), metrics.read_bytes())

    def steps_with(self, metric: str) -> list[float]:
        return [record["step"] for record in self.records() if metric in record]

    def records(self) -> list[dict[str, float]]:
        return read_metrics(self.folder / "metrics.jsonl")

    def latest(self):
        return restore_latest(self.folder / "checkpoints", self.functions.abstract_after)
