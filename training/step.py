"""The compiled functions of a run: make a state, take a step, refresh the index."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh

from objectives.objective import Objective
from objectives.sums import Sums
from training import sharding
from training.accumulation import WHOLE_BATCHES, Accumulation, accumulate
from training.optimizer import OptimizerSettings, make_optimizer
from training.schedules import learning_rate_schedule
from training.state import TrainState

# Streams of random keys under the root key. Their numbers are part of the record of a run.
_INIT_STREAM, _TRAIN_STREAM = 0, 1


@dataclasses.dataclass(frozen=True)
class Program:
    """A run's compiled functions and the layout of its state; made by `make_program`.

    Attributes:
      mesh: where it runs.
      init: seed -> the first state, sharded from the start.
      train_step: (state, batch, exact) -> (state, Sums); the state given is consumed.
      exact_from: the step from which on `exact` is to be True.
      refresh: (state, whole) -> (state with a fresh neighbour index, or a fresh part of it, Sums);
        the state given is consumed.
      refresh_every: steps between refreshes; 0 for never.
      rolling_refresh: whether a part is refreshed before every step.
      flush: state -> state whose parameters are all up to date, for others to read; the state given
        is consumed.
      abstract_state: shapes, types and shardings of the state, for restoring.
    """

    mesh: Mesh | AbstractMesh
    init: Any
    train_step: Any
    refresh: Any
    refresh_every: int
    rolling_refresh: bool
    flush: Any
    exact_from: int
    abstract_state: TrainState


def make_program(
    objective: Objective,
    optimizer_settings: OptimizerSettings,
    mesh_settings: sharding.MeshSettings,
    mesh: Mesh | AbstractMesh,
    *,
    num_steps: int,
    length: int,
    accumulation: Accumulation = WHOLE_BATCHES,
) -> Program:
    """Compiles (lazily) the functions of a training run.

    Args:
      objective: what is learned.
      optimizer_settings: how.
      mesh_settings: rules that lay parameters on the mesh.
      mesh: the mesh; of an abstract one the state's layout is all that can be had.
      num_steps: length of the learning rate schedule.
      length: L, tokens a row.
      accumulation: into how many parts a batch is cut.
    """
    optimizer = make_optimizer(optimizer_settings, num_steps, objective.table)
    schedule = learning_rate_schedule(optimizer_settings, num_steps)

    def boxed_state(seed: jax.Array) -> TrainState:
        """The first state, parameters boxed with the names of their axes."""
        root = jax.random.key(seed)
        params = objective.init(jax.random.fold_in(root, _INIT_STREAM), length)
        index = objective.empty_index()
        return TrainState(
            step=jnp.int32(0),
            params=params,
            opt_state=optimizer.init(params),
            key_data=jax.random.key_data(root),
            index=index,
            index_step=None if index is None else jnp.int32(-1),
        )

    def train_step(
        state: TrainState, batch: dict[str, jax.Array], exact: bool
    ) -> tuple[TrainState, Sums]:
        root = jax.random.wrap_key_data(state.key_data)
        key = jax.random.fold_in(jax.random.fold_in(root, _TRAIN_STREAM), state.step)

        if accumulation.steps > 1:
            # Of all rows: parts touch different ones.
            params, held = optimizer.read(state.params, state.opt_state, None)
            used = accumulation.parts_at(state.step)
            grads, sums = accumulate(
                objective, params, state.index, batch, key,
                exact=exact, num_parts=accumulation.steps, num_used=used,
            )  # fmt: skip
            rows_per_part = len(jax.tree.leaves(batch)[0]) // accumulation.steps
            sums["batch_rows"] = (jnp.float32(used * rows_per_part), jnp.float32(1))
        else:
            prepared, rows = objective.prepare(state.index, batch, key, exact=exact)
            params, held = optimizer.read(state.params, state.opt_state, rows)

            def mean_loss(params):
                sums = objective.sums(params, prepared)
                total, weight = sums["loss"]
                return total / jnp.maximum(weight, 1), sums

            grads, sums = jax.grad(mean_loss, has_aux=True)(params)
        sums["grad_norm"] = (optax.tree.norm(grads), jnp.float32(1))
        sums["learning_rate"] = (schedule(state.step), jnp.float32(1))
        params, opt_state = optimizer.update(grads, held, state.params, state.opt_state)
        state = dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state)
        return state, sums

    def flush(state: TrainState) -> TrainState:
        params, opt_state = optimizer.flush(state.params, state.opt_state)
        return dataclasses.replace(state, params=params, opt_state=opt_state)

    def refresh(state: TrainState, whole: bool) -> tuple[TrainState, Sums]:
        # A part of the index is refreshed too often to flush for it: rows that no step has touched
        # lag behind by what little momentum they had left.
        state = flush(state) if whole else state
        part = None if whole else state.step % objective.refresh_every
        index, sums = objective.refresh(state.params, state.index, part)
        return dataclasses.replace(state, index=index, index_step=state.step), sums

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        boxed = jax.eval_shape(boxed_state, jnp.int32(0))
    shardings = sharding.param_shardings(boxed, mesh, mesh_settings)
    abstract_state = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        nn.unbox(boxed),
        shardings,
    )
    metrics = sharding.replicated(mesh)  # every host reads them
    return Program(
        mesh=mesh,
        init=jax.jit(lambda seed: nn.unbox(boxed_state(seed)), out_shardings=shardings),
        train_step=jax.jit(
            train_step, static_argnums=2, donate_argnums=0, out_shardings=(shardings, metrics)
        ),
        refresh=jax.jit(
            refresh, static_argnums=1, donate_argnums=0, out_shardings=(shardings, metrics)
        ),
        refresh_every=objective.refresh_every,
        rolling_refresh=objective.rolling_refresh,
        flush=jax.jit(flush, donate_argnums=0, out_shardings=shardings),
        exact_from=num_steps - round(objective.exact_fraction * num_steps),
        abstract_state=abstract_state,
    )
