"""Fine-tuning of an encoder and a task head on labelled examples."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from xlm.models.encoder import Context, Encoder, init_params, run_encoder
from xlm.models.segments import other_segment_mask
from xlm.objectives import low_rank
from xlm.objectives.objective import AuxState, Batch, LossAndMetrics, Objective, Touched
from xlm.objectives.settings import LoraSettings

TABLE = "encoder/embeddings/table"
# Array of a batch: its tokens as indices into the touched rows.
_ROW_INDICES = "row_indices"

# (outputs of the head, arrays of the batch) -> loss and metrics
TaskLoss = Callable[[jax.Array, Mapping[str, jax.Array]], LossAndMetrics]


@dataclasses.dataclass(frozen=True, eq=False)
class FineTuning(Objective):
    """Task loss on batches of `input_pipeline.tasks.batches`.

    Parameters are {"encoder": encoder without its masked-LM head, "task": task head}. `head` is one
    of `xlm.models.heads`, `task_loss` one of the functions below or your own. With `by_rows` a step
    reads only the embedding rows of its tokens. With `lora` a run trains parameters "lora", the
    factors of `xlm.objectives.low_rank`, in place of the encoder.
    """

    encoder: Encoder
    head: nn.Module
    task_loss: TaskLoss
    by_rows: bool = False
    lora: LoraSettings | None = None

    @property
    def tables(self) -> tuple[str, ...]:  # type: ignore[override]
        return (TABLE,) if self.by_rows else ()

    def init(self, key: jax.Array) -> dict[str, Any]:
        encoder_key, head_key = jax.random.split(key)
        encoder = init_params(self.encoder, encoder_key)
        del encoder["head"]
        params = self.joined(encoder, self.init_head(head_key))
        if self.lora:
            # The keys above stay those of a run without factors.
            factors_key = jax.random.fold_in(key, 2)
            params["lora"] = low_rank.init_factors(self.lora, encoder, factors_key)
        return params

    def joined(self, encoder: Any, head: Any) -> dict[str, Any]:
        """Join the parameters of both; a head without parameters has no entry."""
        return {"encoder": encoder, **({"task": head} if head else {})}

    def merged(self, params: Any) -> Any:
        """Return the parameters of a model without factors: its kernels include them."""
        if not self.lora or "lora" not in params:
            return params
        encoder = low_rank.merged(self.lora, params["encoder"], params["lora"])
        return self.joined(encoder, params.get("task"))

    @property
    def head_width(self) -> int:
        """Width of the head's input states."""
        return self.encoder.settings.hidden_size

    def init_head(self, key: jax.Array) -> dict[str, Any]:
        """Initialise random parameters of the head."""
        hidden = jnp.zeros((1, 1, self.head_width))
        # Only shapes matter, and heads read only arrays [B, L].
        row = jnp.zeros((1, 1), jnp.int32)
        batch: Mapping[str, jax.Array] = collections.defaultdict(lambda: row)
        return self.head.init(key, hidden, batch, deterministic=True).get("params", {})

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Batch, Touched]:
        """Find the distinct tokens of a batch, and the index of each token among them."""
        tokens, vocab_size = batch["tokens"], self.encoder.settings.vocab_size
        if not self.by_rows or tokens.size >= vocab_size:
            return batch, {}
        ids = jnp.unique(tokens, size=tokens.size, fill_value=vocab_size)
        indices = jnp.searchsorted(ids, tokens).astype(jnp.int32)
        return Batch({**batch.arrays, _ROW_INDICES: indices}, batch.kind), {TABLE: ids}

    def example_axes(self, plan: Batch, num_shards: int) -> int | None:
        """Return 0, the axis of the examples in all arrays; None if the encoder crosses shards."""
        return 0 if self.encoder.settings.can_map_shards() else None

    def loss(self, params, rows, plan: Batch, key: jax.Array) -> tuple[LossAndMetrics, None]:
        """Return the loss of a batch by the task's function."""
        outputs = self.outputs(params, plan.arrays, key, rows.get(TABLE))
        return self.task_loss(outputs, plan.arrays), None

    def outputs(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None,
        rows: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return the head's float32 outputs; `rows` [R, E] replace the table of a planned batch."""
        params = self.merged(params)
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        hidden = self.hidden(params["encoder"], batch, keys[0], rows)
        rngs = None if keys[1] is None else {"dropout": keys[1]}
        return self.head.apply(
            {"params": params.get("task", {})}, hidden, batch, deterministic=rngs is None, rngs=rngs
        )

    def hidden(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None,
        rows: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return the encoder's hidden states [B, L, D] with parameters `params`; see `outputs`."""
        return run_encoder(
            self.encoder, params, *_inputs_of(batch, rows), key=dropout_key, table=rows
        )


class CrossPairFineTuning(FineTuning):
    """Task loss on pairs of texts that attend to each other by cross-attention.

    This is the plug-in form of VECO, which keeps cross-attention. The encoder reads both texts as
    separate segments. The decoder then reads each, without a causal mask, with the states of the
    other as context. The head's input is the two states of `<s>` side by side, [B, 1, 2 D].
    """

    @property
    def head_width(self) -> int:
        return 2 * self.encoder.settings.hidden_size

    def hidden(
        self, params: Any, batch: dict[str, jax.Array], dropout_key: jax.Array | None = None,
        rows: jax.Array | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return states [B, 1, 2 D] of the first tokens of both texts, segments 1 and 2."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        states = super().hidden(params, batch, keys[0], rows)
        segments = batch["segments"]
        decoded = run_encoder(
            self.encoder, params, *_inputs_of(batch, rows),
            Context(states, other_segment_mask(segments)),
            is_causal=False, key=keys[1], table=rows, method="decode",
        )  # fmt: skip
        second = jnp.argmax(segments == 2, axis=1)
        of_second = jnp.take_along_axis(decoded, second[:, None, None], axis=1)
        return jnp.concatenate([decoded[:, :1], of_second], axis=2)


def _inputs_of(batch: Mapping[str, jax.Array], rows: jax.Array | None) -> tuple[jax.Array, ...]:
    """Return tokens [B, L], as indices of any given rows of a planned batch, and their layout."""
    return batch["tokens" if rows is None else _ROW_INDICES], batch["segments"], batch["positions"]


def classification_loss(
    outputs: jax.Array, batch: Mapping[str, jax.Array], class_weights: tuple[float, ...] = (),
    label_smoothing: float = 0.0,
) -> LossAndMetrics:  # fmt: skip
    """Return NLL of `labels` [B] by outputs [B, C], weighted by class (default 1), and accuracy.

    With `label_smoothing` e the target of C classes is 1 - e for the label, plus e / C for each.
    """
    return _class_loss(outputs, batch["labels"], batch["weights"], class_weights, label_smoothing)


def multilabel_loss(
    outputs: jax.Array, batch: Mapping[str, jax.Array], class_weights: tuple[float, ...] = ()
) -> LossAndMetrics:
    """Return the mean binary NLL of `labels` [B, C], 0 or 1, by outputs [B, C], as logits.

    The weight of a class (default 1) multiplies the NLL of texts that have it.
    """
    losses = optax.sigmoid_binary_cross_entropy(outputs, batch["labels"])
    factors = jnp.where(batch["labels"] > 0, jnp.array(class_weights or [1.0])[None], 1.0)
    return {"loss": _weighted((losses * factors).mean(axis=1), batch["weights"])}


def tagging_loss(
    outputs: jax.Array, batch: Mapping[str, jax.Array], class_weights: tuple[float, ...] = (),
    label_smoothing: float = 0.0,
) -> LossAndMetrics:  # fmt: skip
    """Return `classification_loss` over words: `tags` [B, L], -1 for none, outputs [B, L, C]."""
    tags = batch["tags"]
    weights = batch["weights"][:, None] * (tags >= 0)
    return _class_loss(outputs, tags, weights, class_weights, label_smoothing)


def _class_loss(
    outputs: jax.Array, labels: jax.Array, weights: jax.Array, class_weights: tuple[float, ...],
    label_smoothing: float,
) -> LossAndMetrics:  # fmt: skip
    known = jnp.maximum(labels, 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, known)
    if label_smoothing:  # see `xlm.objectives.label_smoothing.smoothing_penalty`
        of_label = jnp.take_along_axis(outputs, known[..., None], axis=-1)[..., 0]
        losses += label_smoothing * (of_label - outputs.mean(axis=-1))
    is_right = jnp.argmax(outputs, axis=-1) == labels
    of_loss = weights * jnp.asarray(class_weights)[known] if class_weights else weights
    return {"loss": _weighted(losses, of_loss), "accuracy": _weighted(is_right, weights)}


def regression_loss(outputs: jax.Array, batch: Mapping[str, jax.Array]) -> LossAndMetrics:
    """Return the squared error of outputs [B, 1] from `labels` [B] float32, over examples."""
    return {"loss": _weighted((outputs[:, 0] - batch["labels"]) ** 2, batch["weights"])}


def span_loss(outputs: jax.Array, batch: Mapping[str, jax.Array]) -> LossAndMetrics:
    """Return the mean NLL of `starts` and `ends` [B] by outputs [B, L, 2], over answers."""
    found = [
        optax.softmax_cross_entropy_with_integer_labels(outputs[:, :, end], batch[name])
        for end, name in enumerate(("starts", "ends"))
    ]
    return {"loss": _weighted((found[0] + found[1]) / 2, batch["weights"])}


def _weighted(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    return (values * weights).sum(), weights.sum()
