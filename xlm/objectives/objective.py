"""Interface between an objective and the training engine.

The engine knows an objective only by the calls of a step, in this order:

    plan, touched = objective.plan(aux_state, batch, key, step)  # no parameters, no gradients
    rows = the rows `touched` of each table, up to date
    loss_and_metrics, observed = objective.loss(params, rows, plan, key)  # differentiated
    aux_state = objective.learn(aux_state, observed)
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Batch of a step: arrays [B, ...], or their shapes, by name, and the kind of its examples.

    The kind, such as "packed" for packed documents, determines the names of the arrays. It is
    static: each kind has its own compiled program.
    """

    arrays: dict[str, Any]
    kind: str = dataclasses.field(metadata={"static": True})

    def __getitem__(self, name: str) -> jax.Array:
        return self.arrays[name]

    @property
    def num_examples(self) -> int:
        """Number of examples, B."""
        return len(next(iter(self.arrays.values())))


# Sum and weight, float32 scalars, of each metric by name. Training minimises "loss". We divide
# once, after all reductions: a mean of means would give short and long batches the same weight.
LossAndMetrics = dict[str, tuple[jax.Array, jax.Array]]


def divisor(weight: jax.Array) -> jax.Array:
    """Return `weight`, or 1 if it is 0: a batch without examples has the mean 0."""
    return jnp.where(weight > 0, weight, 1)


def means(totals: Mapping[str, tuple]) -> dict[str, float]:
    """Divide each metric's sum by its weight; a weight of zero gives NaN."""
    return {
        name: float(total) / float(weight) if weight else float("nan")
        for name, (total, weight) in totals.items()
    }


AuxState = dict[str, Any]  # learned state besides parameters, by name of the part
# Distinct ids [R] int32 of a table's rows, by its path in the parameters ("embeddings/table"). Ids
# from the number of rows on are unused slots.
Touched = Mapping[str, jax.Array]


class Objective:
    """Loss over parameters, an auxiliary state and a batch.

    Implement `init` and `loss`; all other methods have defaults. `tables` are the paths of the
    tables in the parameters that `plan` may read by rows. The objective casts tables and kernels to
    `used_dtype` before any use, so a sharded optimizer sends them in it.
    """

    tables: tuple[str, ...] = ()
    used_dtype = "float32"

    def init(self, key: jax.Array) -> Any:
        """Initialise parameters, boxed with their logical axis names."""
        raise NotImplementedError

    def loss(
        self, params: Any, rows: Mapping[str, jax.Array], plan: Any, key: jax.Array
    ) -> tuple[LossAndMetrics, Any]:
        """Return loss and metrics by name as (sum, weight), and observations for `learn`.

        `rows` are the rows [R, E] of each table in `touched` of `plan`, in the order of the ids.
        Read such a table only through them: its other rows may be out of date
        (`xlm.training.row_adamw`), and get no gradient. `key` is the step's random key, the same as
        for `plan`.
        """
        raise NotImplementedError

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Any, Touched]:
        """Return the plan of a step for `loss`, and ids of table rows that it reads, if few.

        `step` is scalar int32, the number of earlier steps. Tables read as a whole have no ids.
        """
        del aux_state, key, step
        return batch, {}

    def example_axes(self, plan: Any, num_shards: int) -> Any | None:
        """Return the axis of the examples in each array of a plan, None if losses do not add up.

        The result is a prefix of the plan's tree, like `in_axes` of `jax.vmap`, with None for
        arrays that every shard reads whole. `plan` may be its shapes. The loss of a plan must be
        the sum of the losses of `num_shards` equal shards along these axes. So must observations
        and metrics, sums and weights alike, up to a common factor of both. Gradient accumulation
        then sums gradients of shards once per step, not once per part.
        """
        del plan, num_shards
        return None

    def init_aux_state(self) -> AuxState:
        """Initialise the auxiliary state."""
        return {}

    def learn(self, aux_state: AuxState, observed: Any) -> AuxState:
        """Update the auxiliary state from a step's observations."""
        del observed
        return aux_state

    def due(self, step: int) -> tuple[str, ...]:
        """Return the names of the parts of the auxiliary state to refresh before step `step`."""
        del step
        return ()

    def refresh(
        self, params: Any, aux_state: AuxState, names: tuple[str, ...], step: jax.Array
    ) -> tuple[AuxState, LossAndMetrics]:
        """Refresh parts `names` of the auxiliary state from up-to-date parameters; add a report."""
        raise NotImplementedError(f"{names} are due, but {type(self).__name__} has no `refresh`")

    def at_step(self, step: int) -> "Objective":
        """Return the objective of step `step`: one object per phase, since JAX compiles each."""
        del step
        return self

    def loss_name(self, kind: str) -> str:
        """Return the metric that shows how the loss of batches of this kind falls."""
        del kind
        return "loss"


def gathered_rows(params: Any, touched: Touched) -> dict[str, jax.Array]:
    """Gather the touched rows [R, E] of each table; zeros for unused slots."""
    return {
        path: get_table(params, path).at[ids].get(mode="fill", fill_value=0)
        for path, ids in touched.items()
    }


def get_table(tree: Any, path: str) -> Any:
    """Return the value at path "a/b/c" of nested dictionaries."""
    for key in path.split("/"):
        tree = tree[key]
    return tree


def replace_table(tree: Any, path: str, value: Any) -> Any:
    """Copy nested dictionaries with a new value at path "a/b/c"."""
    first, _, rest = path.partition("/")
    return {**tree, first: replace_table(tree[first], rest, value) if rest else value}
