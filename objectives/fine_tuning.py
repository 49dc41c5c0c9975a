"""Fine-tuning of an encoder and a task head on labelled examples."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from models.encoder import Context, Encoder
from objectives.batch import Batch
from objectives.loss_and_metrics import LossAndMetrics
from objectives.objective import Objective

# (outputs of the head, arrays of the batch) -> loss and metrics
TaskLoss = Callable[[jax.Array, Mapping[str, jax.Array]], LossAndMetrics]


@dataclasses.dataclass(frozen=True, eq=False)
class FineTuning(Objective):
    """Task loss on batches of `input_pipeline.tasks.batches`.

    Parameters are {"encoder": encoder without its masked-LM head, "task": task head}.

    Attributes:
      encoder: the model.
      head: see `models.heads`.
      task_loss: one of the functions below, or of a kind of tasks of one's own.
    """

    encoder: Encoder
    head: nn.Module
    task_loss: TaskLoss

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Initialise random parameters, boxed with their logical axis names."""
        encoder_key, head_key = jax.random.split(key)
        tokens = jnp.zeros((1, 1), jnp.int32)
        encoder = self.encoder.init(encoder_key, tokens, tokens, tokens)["params"]
        del encoder["head"]
        return {"encoder": encoder, "task": self.init_head(head_key)}

    @property
    def head_width(self) -> int:
        """Width of the states that the head is given."""
        return self.encoder.settings.hidden_size

    def init_head(self, key: jax.Array) -> dict[str, Any]:
        """Initialise random parameters of the head."""
        hidden = jnp.zeros((1, 1, self.head_width))
        # Shapes alone count, and all arrays that a head reads are [B, L].
        row = jnp.zeros((1, 1), jnp.int32)
        batch: Mapping[str, jax.Array] = collections.defaultdict(lambda: row)
        return self.head.init(key, hidden, batch, deterministic=True)["params"]

    def example_axes(self, plan: Batch, num_shards: int) -> int | None:
        """Return 0, the axis of the examples in all arrays."""
        return 0 if self.encoder.settings.can_map_shards() else None

    def loss(self, params, rows, plan: Batch, key: jax.Array) -> tuple[LossAndMetrics, None]:
        """Loss of a batch by the task's function."""
        del rows
        return self.task_loss(self.outputs(params, plan.arrays, key), plan.arrays), None

    def outputs(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Outputs of the head for a batch, float32; without dropout if there is no key."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        hidden = self.hidden(params["encoder"], batch, keys[0])
        rngs = None if keys[1] is None else {"dropout": keys[1]}
        return self.head.apply(
            {"params": params["task"]}, hidden, batch, deterministic=rngs is None, rngs=rngs
        )

    def hidden(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Hidden states [B, L, D] of the encoder with parameters `params`."""
        rngs = None if dropout_key is None else {"dropout": dropout_key}
        return self.encoder.apply(
            {"params": params},
            batch["tokens"],
            batch["segments"],
            batch["positions"],
            deterministic=rngs is None,
            method="encode",
            rngs=rngs,
        )


class CrossPairFineTuning(FineTuning):
    """Task loss on pairs of texts that attend to each other by cross-attention.

    The plug-in form of VECO, in which cross-attention is kept. Both texts are encoded as segments
    of their own; each is then decoded, without a causal mask, with the states of the other one as
    context. The head is given the two states of `<s>` side by side, [B, 1, 2 D].
    """

    @property
    def head_width(self) -> int:
        return 2 * self.encoder.settings.hidden_size

    def hidden(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """States [B, 1, 2 D] of the first tokens of both texts, segments 1 and 2."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        states = super().hidden(params, batch, keys[0])
        segments = batch["segments"]
        sees = (segments[:, :, None] != segments[:, None, :]) & (segments > 0)[:, None, :]
        decoded = self.encoder.apply(
            {"params": params},
            batch["tokens"],
            segments,
            batch["positions"],
            Context(states, sees[:, None]),
            is_causal=False,
            deterministic=keys[1] is None,
            method="decode",
            rngs=None if keys[1] is None else {"dropout": keys[1]},
        )
        second = jnp.argmax(segments == 2, axis=1)
        of_second = jnp.take_along_axis(decoded, second[:, None, None], axis=1)
        return jnp.concatenate([decoded[:, :1], of_second], axis=2)


def classification_loss(outputs: jax.Array, batch: Mapping[str, jax.Array]) -> LossAndMetrics:
    """Negative log-likelihood of `labels` [B] by outputs [B, C], and accuracy, over examples."""
    return _class_loss(outputs, batch["labels"], batch["weights"])


def tagging_loss(outputs: jax.Array, batch: Mapping[str, jax.Array]) -> LossAndMetrics:
    """Negative log-likelihood of `tags` [B, L], -1 for none, by [B, L, C]; accuracy; over words."""
    tags = batch["tags"]
    return _class_loss(outputs, tags, batch["weights"][:, None] * (tags >= 0))


def _class_loss(outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> LossAndMetrics:
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.maximum(labels, 0))
    is_right = jnp.argmax(outputs, axis=-1) == labels
    return {"loss": _weighted(losses, weights), "accuracy": _weighted(is_right, weights)}


def regression_loss(outputs: jax.Array, batch: Mapping[str, jax.Array]) -> LossAndMetrics:
    """Squared error of outputs [B, 1] from `labels` [B] float32, over examples."""
    return {"loss": _weighted((outputs[:, 0] - batch["labels"]) ** 2, batch["weights"])}


def span_loss(outputs: jax.Array, batch: Mapping[str, jax.Array]) -> LossAndMetrics:
    """Mean negative log-likelihood of `starts` and `ends` [B] by [B, L, 2], over answers."""
    found = [
        optax.softmax_cross_entropy_with_integer_labels(outputs[:, :, end], batch[name])
        for end, name in enumerate(("starts", "ends"))
    ]
    return {"loss": _weighted((found[0] + found[1]) / 2, batch["weights"])}


def _weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (values * weights).sum(), weights.sum()
