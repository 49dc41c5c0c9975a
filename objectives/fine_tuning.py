"""Fine-tuning: an encoder and the head of a task, trained on labelled examples."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from models.encoder import Encoder
from objectives.sums import Sums


class Prepared(NamedTuple):
    """A batch, and the key of its dropout; None for none."""

    batch: dict[str, jax.Array]
    dropout_key: jax.Array | None


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """A task's loss: an `objectives.objective.Objective` without a sampled output layer.

    Parameters are {"encoder": those of the encoder, less its masked-LM head, "task": the head's}.

    Attributes:
      encoder: the model.
      head: see `models.heads`.
      kind: "classification", "regression", "tagging" or "questions".
    """

    encoder: Encoder
    head: nn.Module
    kind: str

    table = None  # every step reads all of the table, and updates it
    refresh_every = 0
    rolling_refresh = False
    exact_fraction = 0.0

    def init(self, key: jax.Array, length: int) -> dict[str, Any]:
        """Random parameters, boxed with their logical axis names."""
        encoder_key, head_key = jax.random.split(key)
        row = jnp.zeros((1, length), jnp.int32)
        encoder = self.encoder.init(encoder_key, row, row, row)["params"]
        del encoder["head"]
        return {"encoder": encoder, "task": self.init_head(head_key)}

    def init_head(self, key: jax.Array) -> dict[str, Any]:
        """Random parameters of the head."""
        row = jnp.zeros((1, 1), jnp.int32)
        hidden = jnp.zeros((1, 1, self.encoder.settings.hidden_size))
        batch = {"words": row, "answerable": row > 0}
        return self.head.init(key, hidden, batch, deterministic=True)["params"]

    def empty_index(self) -> None:
        return None

    def refresh(self, params: Any, index: Any, part: jax.Array | None) -> tuple[Any, Sums]:
        raise NotImplementedError("fine-tuning has no neighbour index")

    def prepare(
        self, index: None, batch: dict[str, jax.Array], key: jax.Array, *, exact: bool
    ) -> tuple[Prepared, None]:
        """The batch as it is; nothing about it is random but dropout."""
        return Prepared(batch, key), None

    def sums(self, params: Any, prepared: Prepared) -> Sums:
        """Loss of a batch, and its accuracy where there are classes.

        The loss is the mean over examples, words (tagging) or answers (the mean of first and last
        token) of the negative log-likelihood; of a regression, the squared error.

        Args:
          params: as from `init`, unboxed.
          prepared: a batch of `input_pipeline.tasks.batches`.
        """
        batch = prepared.batch
        outputs = self.outputs(params, batch, prepared.dropout_key)
        weights = batch["weights"]
        if self.kind == "regression":
            return {"loss": _weighted((outputs[:, 0] - batch["labels"]) ** 2, weights)}
        if self.kind == "questions":
            found = [
                optax.softmax_cross_entropy_with_integer_labels(outputs[:, :, end], batch[name])
                for end, name in enumerate(("starts", "ends"))
            ]
            return {"loss": _weighted((found[0] + found[1]) / 2, weights)}
        if self.kind == "tagging":
            labels = batch["tags"]
            weights = weights[:, None] * (labels >= 0)
        else:
            labels = batch["labels"]
        losses = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.maximum(labels, 0))
        is_right = jnp.argmax(outputs, axis=-1) == labels
        return {"loss": _weighted(losses, weights), "accuracy": _weighted(is_right, weights)}

    def outputs(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """What the head says of a batch, float32; without dropout if there is no key."""
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
