"""Training step, and the compiled functions of a run."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh

from xlm.objectives.objective import (
    Batch,
    LossAndMetrics,
    Objective,
    Touched,
    divisor,
    gathered_rows,
    get_table,
    replace_table,
)
from xlm.training import sharding
from xlm.training.accumulation import WHOLE_BATCHES, Accumulation, accumulate
from xlm.training.optimizer import Optimizer, sharded_over_data
from xlm.training.settings import OptimizerSettings
from xlm.training.stages import Stage, has_path, merged, stage_optimizer, stages_of, without
from xlm.training.state import TrainState

# Streams of random keys under the root key. Changing these numbers changes all results.
_INIT_STREAM, _TRAIN_STREAM = 0, 1


def train_step(
    objective: Objective, optimizer: Optimizer, accumulation: Accumulation, state: TrainState,
    batch: Batch,
) -> tuple[TrainState, LossAndMetrics]:  # fmt: skip
    """Take one step: plan, gather the touched table rows, differentiate, update.

    `objective` is that of this step (`Objective.at_step`). Returns the next state, and sums and
    weights of the step's metrics. `make_train_functions` compiles this with `state` donated.
    """
    key = jax.random.fold_in(jax.random.fold_in(state.root_key, _TRAIN_STREAM), state.step)
    if accumulation.steps > 1:
        # All rows, since microbatches touch different ones.
        trained, held = optimizer.read(state.params, state.opt_state, {})
        fixed = without(state.params, trained)
        grads, metrics, aux_state = accumulate(
            objective, trained, state.aux_state, batch, key, state.step, accumulation, fixed
        )
    else:
        plan, touched = objective.plan(state.aux_state, batch, key, state.step)
        trained, held = optimizer.read(state.params, state.opt_state, touched)

        def mean_loss(trained):
            params, rows = separate(trained, state.params, touched)
            metrics, observed = objective.loss(params, rows, plan, key)
            total, weight = metrics["loss"]
            return total / divisor(weight), (metrics, observed)

        grads, (metrics, observed) = jax.grad(mean_loss, has_aux=True)(trained)
        aux_state = objective.learn(state.aux_state, observed)

    grads, one = optimizer.reduced(grads), jnp.float32(1)
    metrics["grad_norm"] = (optax.tree.norm(grads), one)
    metrics["learning_rate"] = (optimizer.learning_rate(state.step), one)
    params, opt_state = optimizer.update(grads, held, state.params, state.opt_state)
    metrics.update({name: (x, one) for name, x in optimizer.metrics(opt_state).items()})
    state = dataclasses.replace(
        state, step=state.step + 1, params=params, opt_state=opt_state, aux_state=aux_state
    )
    return state, metrics


def separate(trained: Any, params: Any, touched: Touched) -> tuple[Any, dict[str, jax.Array]]:
    """Split `trained`, which has touched rows in place of tables, into all parameters and rows."""
    fixed = {path: ids for path, ids in touched.items() if not has_path(trained, path)}
    rows = gathered_rows(params, fixed)
    for path in touched:
        if path not in fixed:
            rows[path] = get_table(trained, path)
            trained = replace_table(trained, path, get_table(params, path))
    return merged(params, trained), rows


def refresh(
    objective: Objective, optimizer: Optimizer, names: tuple[str, ...], state: TrainState
) -> tuple[TrainState, LossAndMetrics]:
    """Apply pending updates, then refresh the parts `names` of the auxiliary state."""
    state = apply_pending_updates(optimizer, state)
    aux_state, report = objective.refresh(state.params, state.aux_state, names, state.step)
    return dataclasses.replace(state, aux_state=aux_state), report


def apply_pending_updates(optimizer: Optimizer, state: TrainState) -> TrainState:
    """Bring every table row of the state up to date, for other readers."""
    params, opt_state = optimizer.apply_pending_updates(state.params, state.opt_state)
    return dataclasses.replace(state, params=params, opt_state=opt_state)


@dataclasses.dataclass(frozen=True)
class TrainFunctions:
    """Compiled functions of a stage of a run, and the sharding of its state.

    Most runs have one stage. `train_step`, `refresh` and `apply_pending_updates` donate the state.

    Attributes:
      init: (seed, given=None) -> initial sharded state. The parameters `given` (`sharding.placed`)
        replace random ones, and are donated.
      train_step: (objective of the step, state, batch) -> (state, LossAndMetrics).
      refresh: (names, state) -> (state with these parts of the auxiliary state refreshed, report).
      apply_pending_updates: state -> state with all parameters up to date.
      abstract_state: shapes, dtypes and shardings of the state, for restoring.
      begin: last state of the stage before, without pending updates -> first state of this stage.
      following: functions of the next stage, if any.
      averaged: state -> state with the parameters for evaluation and export; None if these are the
        trained ones.
      whole_params: shapes, dtypes and shardings of the parameters without the split over `data`
        that updates have.
      gathered: parameters -> the same in the shardings of `whole_params`.
    """

    objective: Objective
    mesh: Mesh | AbstractMesh
    stage: Stage
    init: Any
    train_step: Any
    refresh: Any
    apply_pending_updates: Any
    abstract_state: TrainState
    whole_params: Any
    begin: Any
    following: "TrainFunctions | None"
    averaged: Callable[[TrainState], TrainState] | None = None
    gathered: Callable[[Any], Any] = lambda params: params

    def at_step(self, step: int) -> "TrainFunctions":
        """Return the functions of step `step`, counted from zero."""
        if self.following is None or step < self.stage.end:
            return self
        return self.following.at_step(step)

    def after(self, steps_taken: int) -> "TrainFunctions":
        """Return the functions of the last of so many steps, whose state a checkpoint holds."""
        return self.at_step(max(steps_taken - 1, 0))

    def abstract_after(self, steps_taken: int) -> TrainState:
        """Return shapes, dtypes and shardings of the state after so many steps."""
        return self.after(steps_taken).abstract_state


def make_train_functions(
    objective: Objective, optimizer_settings: OptimizerSettings,
    mesh_settings: sharding.MeshSettings, mesh: Mesh | AbstractMesh, *, num_steps: int,
    accumulation: Accumulation = WHOLE_BATCHES, prng: str = "threefry2x32",
) -> TrainFunctions:  # fmt: skip
    """Compile (lazily) the functions of a training run; return those of its first stage.

    An abstract `mesh` only gives the state's shardings. `num_steps` is the length of the learning
    rate schedule, `prng` one of `xlm.training.settings.PRNGS`. Raises ValueError if the optimizer's
    stages or schedule do not fit the run.
    """
    found: TrainFunctions | None = None
    for stage in reversed(stages_of(optimizer_settings, num_steps)):
        optimizer = stage_optimizer(optimizer_settings, stage, num_steps, objective.tables)
        found = _stage_functions(
            objective, optimizer, mesh_settings, mesh, accumulation, prng, stage, found
        )
    assert found is not None
    return found


def _stage_functions(
    objective: Objective, optimizer: Optimizer, mesh_settings: sharding.MeshSettings,
    mesh: Mesh | AbstractMesh, accumulation: Accumulation, prng: str, stage: Stage,
    following: TrainFunctions | None,
) -> TrainFunctions:  # fmt: skip
    # Jitted to trace it once, for the shapes and for `init`.
    @functools.partial(jax.jit, inline=True)
    def boxed_state(seed: jax.Array) -> TrainState:
        root = jax.random.key(seed, impl=prng)
        params = objective.init(jax.random.fold_in(root, _INIT_STREAM))
        return TrainState(
            step=jnp.int32(0), params=params, opt_state=optimizer.init(params),
            key_data=jax.random.key_data(root), aux_state=objective.init_aux_state(),
        )  # fmt: skip

    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        boxed = jax.eval_shape(boxed_state, jnp.int32(0))
    shardings = sharding.param_shardings(boxed, mesh, mesh_settings)
    whole = abstract_state = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), nn.unbox(boxed), shardings
    )
    if mesh_settings.shard_optimizer_over_data and mesh.shape["data"] > 1:
        params = sharding.split_over_data(stage.trained_part(whole.params))
        abstract_state = dataclasses.replace(
            whole,
            params=merged(whole.params, params),
            opt_state=sharding.split_over_data(whole.opt_state),
        )
        shardings = jax.tree.map(lambda x: x.sharding, abstract_state)
        optimizer = sharded_over_data(optimizer, params, whole.params, objective.used_dtype)
    metrics = sharding.replicated(mesh)  # every host reads them

    def init(seed: jax.Array, given: Any = None) -> TrainState:
        state = nn.unbox(boxed_state(seed))
        return dataclasses.replace(state, params=merged(state.params, given or {}))

    init_optimizer = sharding.traced_on(mesh, optimizer.init)
    new_opt_state = jax.jit(init_optimizer, out_shardings=shardings.opt_state)
    whole_shardings = jax.tree.map(lambda x: x.sharding, whole.params)

    def begin(state: TrainState) -> TrainState:
        params = jax.device_put(state.params, shardings.params)  # of the newly trained ones
        return dataclasses.replace(state, params=params, opt_state=new_opt_state(params))

    def refresh_whole(names: tuple[str, ...], state: TrainState) -> Any:
        params = jax.lax.with_sharding_constraint(state.params, whole_shardings)
        return refresh(objective, optimizer, names, dataclasses.replace(state, params=params))

    def compiled(name: str, function: Callable, **options: Any) -> Any:
        traced = sharding.traced_on(mesh, function)
        traced.__name__ = name  # the program's name in profiles
        return jax.jit(traced, **options)

    def averaged(state: TrainState) -> TrainState:
        assert optimizer.averaged is not None
        mean = merged(state.params, optimizer.averaged(state.opt_state))
        return dataclasses.replace(state, params=mean)

    reports = {"static_argnums": 0, "donate_argnums": 1, "out_shardings": (shardings, metrics)}
    return TrainFunctions(
        objective, mesh, stage,
        init=compiled("init", init, donate_argnums=1, out_shardings=shardings),
        train_step=compiled(
            "train_step",
            lambda objective, *args: train_step(objective, optimizer, accumulation, *args),
            **reports,
        ),
        refresh=compiled("refresh", refresh_whole, **reports),
        apply_pending_updates=compiled(
            "apply_pending_updates",
            functools.partial(apply_pending_updates, optimizer),
            donate_argnums=0, out_shardings=shardings,
        ),
        abstract_state=abstract_state,
        whole_params=whole.params,
        averaged=optimizer.averaged and averaged,
        begin=begin,
        gathered=lambda params: jax.device_put(params, whole_shardings),
        following=following,
    )  # fmt: skip
