"""Interface between an objective and the training engine.

A step calls an objective in this order; the engine knows nothing else about it:

    plan, touched = objective.plan(extra, batch, key, step)     # no parameters, not differentiated
    rows = the rows `touched` of each table, brought up to date
    loss_and_metrics, observed = objective.loss(params, rows, plan, key)           # differentiated
    extra = objective.learn(extra, observed)

Shards of the examples can be differentiated separately if the objective has `example_axes`, and
before steps that are due, `extra` is refreshed from the parameters (`due`, `refresh`).
"""

from collections.abc import Mapping
from typing import Any

import jax

from xlm.objectives.batch import Batch
from xlm.objectives.loss_and_metrics import LossAndMetrics

# Learned state besides parameters, in named parts. Terms of a mixture share parts by name.
Extra = dict[str, Any]
# Path of a table in the parameters, "embeddings/table", to distinct ids [R] int32 of its rows;
# ids from the number of rows on are unused slots.
Touched = Mapping[str, jax.Array]


class Objective:
    """Loss over parameters, an extra state and a batch.

    Only `init` and `loss` are required. All other methods are optional abilities with defaults
    here.

    Attributes:
      tables: paths of the tables in the parameters that `plan` may read by rows.
    """

    tables: tuple[str, ...] = ()

    def init(self, key: jax.Array) -> Any:
        """Initialise parameters, boxed with their logical axis names."""
        raise NotImplementedError

    def loss(
        self, params: Any, rows: Mapping[str, jax.Array], plan: Any, key: jax.Array
    ) -> tuple[LossAndMetrics, Any]:
        """Loss and metrics of a step; training minimises the sum over the weight of "loss".

        Args:
          params: all parameters. A table with given rows must be read through them: its other rows
            may be out of date (`xlm.training.row_adamw`), and get no gradient.
          rows: [R, E] rows of each table in `touched` of `plan`, in the order of the ids.
          plan: from `plan`.
          key: random key of the step, the same as for `plan`.

        Returns:
          Sums and weights by name; observations for `learn`.
        """
        raise NotImplementedError

    def plan(
        self, extra: Extra, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Any, Touched]:
        """Plan a step, and select the table rows that it reads if these are few.

        Args:
          batch: batch of the step.
          key: random key of the step.
          step: scalar int32, steps taken before this one.

        Returns:
          The plan for `loss`; ids by table, without tables that are read as a whole.
        """
        del extra, key, step
        return batch, {}

    def example_axes(self, plan: Any, num_shards: int) -> Any | None:
        """Axis of the examples in each array of a plan, if `loss` is a sum over examples.

        If a plan is split along these axes, its loss must be the sum of the losses of its shards,
        each with its own examples and all shared arrays. The same holds for all metrics, sums and
        weights alike, up to a common factor of both, and for the observations. Gradient
        accumulation then sums the gradients of the shards once per step instead of once per part.

        Args:
          plan: from `plan`, or its shapes.
          num_shards: number of equal shards of the examples.

        Returns:
          A prefix of the plan's tree, like `in_axes` of `jax.vmap`, with None for arrays that every
          shard reads whole; None in place of the tree if the losses are not additive.
        """
        del plan, num_shards
        return None

    def init_extra(self) -> Extra:
        """Initialise the extra state."""
        return {}

    def learn(self, extra: Extra, observed: Any) -> Extra:
        """Update the extra state from a step's observations."""
        del observed
        return extra

    def due(self, step: int) -> tuple[str, ...]:
        """Names of the parts of the extra state to refresh before step `step`."""
        del step
        return ()

    def refresh(
        self, params: Any, extra: Extra, names: tuple[str, ...], step: jax.Array
    ) -> tuple[Extra, LossAndMetrics]:
        """Refresh the parts `names` of the extra state from up-to-date parameters; add a report."""
        raise NotImplementedError(f"{names} are due, but nothing renews them")

    def at_step(self, step: int) -> "Objective":
        """Objective of step `step`, which changes where a phase of training begins.

        Each phase must be a single object, since it is compiled separately. Its parameters and
        extra state are those of this objective.
        """
        del step
        return self


def gathered_rows(params: Any, touched: Touched) -> dict[str, jax.Array]:
    """Gather the touched rows [R, E] of each table; zeros for unused slots."""
    return {
        path: get_table(params, path).at[ids].get(mode="fill", fill_value=0)
        for path, ids in touched.items()
    }


def get_table(tree: Any, path: str) -> Any:
    """Value at path "a/b/c" of nested dictionaries."""
    for key in path.split("/"):
        tree = tree[key]
    return tree


def replace_table(tree: Any, path: str, value: Any) -> Any:
    """Copy nested dictionaries with a new value at path "a/b/c"."""
    first, _, rest = path.partition("/")
    return {**tree, first: replace_table(tree[first], rest, value) if rest else value}
