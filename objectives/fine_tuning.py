"""Fine-tuning of an encoder and a task head on labelled examples."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from models.encoder import Encoder
from objectives.batch import Batch
from objectives.loss_and_metrics import LossAndMetrics
from objectives.objective import Objective


@dataclasses.dataclass(frozen=True, eq=False)
class FineTuning(Objective):
    """Task loss on batches of `input_pipeline.tasks.batches`.

    Parameters are {"encoder": encoder without its masked-LM head, "task": task head}.

    Attributes:
      encoder: the model.
      head: see `models.heads`.
      kind: "classification", "regression", "tagging" or "extractive_qa".
    """

    encoder: Encoder
    head: nn.Module
    kind: str

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Initialise random parameters, boxed with their logical axis names."""
        encoder_key, head_key = jax.random.split(key)
        tokens = jnp.zeros((1, 1), jnp.int32)
        encoder = self.encoder.init(encoder_key, tokens, tokens, tokens)["params"]
        del encoder["head"]
        return {"encoder": encoder, "task": self.init_head(head_key)}

    def init_head(self, key: jax.Array) -> dict[str, Any]:
        """Initialise random parameters of the head."""
        row = jnp.zeros((1, 1), jnp.int32)
        hidden = jnp.zeros((1, 1, self.encoder.settings.hidden_size))
        batch = {"words": row, "answerable": row > 0}
        return self.head.init(key, hidden, batch, deterministic=True)["params"]

    def example_axes(self, plan: Batch, num_shards: int) -> int | None:
        """Return 0, the axis of the examples in all arrays."""
        return 0 if self.encoder.settings.can_map_shards() else None

    def loss(self, params, rows, plan: Batch, key: jax.Array) -> tuple[LossAndMetrics, None]:
        """Loss of a batch, and its accuracy for kinds with classes.

        The loss is the negative log-likelihood, averaged over examples, words (tagging) or answers
        (mean of first and last token); for a regression, the squared error.
        """
        del rows
        batch = plan.arrays
        outputs = self.outputs(params, batch, key)
        weights = batch["weights"]
        if self.kind == "regression":
            return {"loss": _weighted((outputs[:, 0] - batch["labels"]) ** 2, weights)}, None
        if self.kind == "extractive_qa":
            found = [
                optax.softmax_cross_entropy_with_integer_labels(outputs[:, :, end], batch[name])
                for end, name in enumerate(("starts", "ends"))
            ]
            return {"loss": _weighted((found[0] + found[1]) / 2, weights)}, None
        if self.kind == "tagging":
            labels = batch["tags"]
            weights = weights[:, None] * (labels >= 0)
        else:
            labels = batch["labels"]
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.maximum(labels, 0))
        is_right = jnp.argmax(outputs, axis=-1) == labels
        metrics = {"loss": _weighted(losses, weights), "accuracy": _weighted(is_right, weights)}
        return metrics, None

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


def _weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (values * weights).sum(), weights.sum()
