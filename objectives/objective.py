"""What the training engine asks of an objective.

A step goes through an objective in this order; the engine knows nothing else about it:

    plan, touched = objective.plan(extra, batch, key, step)     # no parameters, not differentiated
    rows = the rows `touched` of each table, brought up to date
    loss_and_metrics, observed = objective.loss(params, rows, plan, key)           # differentiated
    extra = objective.learn(extra, observed)

Shards of the examples can be differentiated apart where the plan says how (`example_axes`),
and before steps that are due, `extra` is renewed from the parameters (`due`, `refresh`).
"""

from collections.abc import Mapping
from typing import Any

import jax

from objectives.batch import Batch
from objectives.loss_and_metrics import LossAndMetrics

# What a run learns besides parameters, in named parts. Terms of a mixture share parts by name.
Extra = dict[str, Any]
# Path of a table in the parameters, "embeddings/table", to distinct ids [R] int32 of its rows;
# ids from the number of rows on stand for none.
Touched = Mapping[str, jax.Array]


class Objective:
    """A loss over parameters, an extra state and a batch.

    `init` and `loss` are all that an objective needs. Everything else is an ability, which an
    objective that lacks it does not mention.

    Attributes:
      tables: paths of the tables in the parameters of which `plan` may touch some rows only.
    """

    tables: tuple[str, ...] = ()

    def init(self, key: jax.Array) -> Any:
        """First parameters, boxed with their logical axis names."""
        raise NotImplementedError

    def loss(
        self, params: Any, rows: Mapping[str, jax.Array], plan: Any, key: jax.Array
    ) -> tuple[LossAndMetrics, Any]:
        """Loss and metrics of a step; training minimises the sum over the weight of "loss".

        Args:
          params: all parameters. A table whose rows are given is to be read through them: its other
            rows may lag behind (`training.row_adamw`), and get no gradient.
          rows: [R, E] rows of each table that `plan` touched, in the order of the ids.
          plan: from `plan`.
          key: random key of the step, the one that `plan` had.

        Returns:
          Sums and weights by name; something for `learn`.
        """
        raise NotImplementedError

    def plan(
        self, extra: Extra, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Any, Touched]:
        """What a step is to do, and the table rows that it reads where these are few.

        Args:
          extra: as learned so far.
          batch: what the step works on.
          key: random key of the step.
          step: scalar int32, steps taken before this one.

        Returns:
          Something for `loss`; ids by table, none for a table that is read as a whole.
        """
        del extra, key, step
        return batch, {}

    def example_axes(self, plan: Any, num_shards: int) -> Any | None:
        """The axis of the examples in each array of a plan, if `loss` is a sum over examples.

        The loss of a plan that can be cut along these axes is the sum of the losses of its shards,
        of which each has its examples and what all share: so are all metrics, sums and weights
        alike, up to a common factor of both, and what is observed is added up as well.
        Accumulation then sums the gradients of the shards once a step, not once a part.

        Args:
          plan: from `plan`, or its shapes.
          num_shards: equal shards of the examples.

        Returns:
          A prefix of the plan's tree as `in_axes` of `jax.vmap` is, with None for arrays that every
          shard reads whole; None in place of the tree if the losses do not add up.
        """
        del plan, num_shards
        return None

    def init_extra(self) -> Extra:
        """The extra state before the first step."""
        return {}

    def learn(self, extra: Extra, observed: Any) -> Extra:
        """The extra state after a step that observed something."""
        del observed
        return extra

    def due(self, step: int) -> tuple[str, ...]:
        """Names of the parts of the extra state that are to be renewed before step `step`."""
        del step
        return ()

    def refresh(
        self, params: Any, extra: Extra, names: tuple[str, ...], step: jax.Array
    ) -> tuple[Extra, LossAndMetrics]:
        """The extra state with its parts `names` renewed from parameters up to date; a report."""
        raise NotImplementedError(f"{names} are due, but nothing renews them")

    def at_step(self, step: int) -> "Objective":
        """The objective of step `step`; another one where a phase of training begins.

        Each phase must be one object, since it is compiled for itself. Its parameters and extra
        state are those of the objective that was asked.
        """
        del step
        return self


def gathered_rows(params: Any, touched: Touched) -> dict[str, jax.Array]:
    """The touched rows [R, E] of each table; zeros for ids that stand for none."""
    return {
        path: get_table(params, path).at[ids].get(mode="fill", fill_value=0)
        for path, ids in touched.items()
    }


def get_table(tree: Any, path: str) -> Any:
    """What nested dictionaries hold at "a/b/c"."""
    for key in path.split("/"):
        tree = tree[key]
    return tree


def replace_table(tree: Any, path: str, value: Any) -> Any:
    """A copy of nested dictionaries with another value at "a/b/c"."""
    first, _, rest = path.partition("/")
    return {**tree, first: replace_table(tree[first], rest, value) if rest else value}
