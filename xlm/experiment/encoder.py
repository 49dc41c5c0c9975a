"""A trained encoder from Python: sentence vectors, predictions of masked words, losses."""

import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece as spm

from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tokenization import special_ids
from xlm.experiment.pretrained import Pretrained, read_pretrained
from xlm.models import encoder as models
from xlm.models.pooling import mean_state
from xlm.models.segments import packed_segments
from xlm.models.settings import EncoderSettings

MASK = "<mask>"
_LENGTHS = 64  # rows are padded to multiples of it, each with a program of its own


class Prediction(NamedTuple):
    """A piece that may stand at a mask, and its probability."""

    piece: str
    probability: float


class Encoder:
    """An encoder with its tokenizer, on the default device.

    encoder = xlm.Encoder.load("runs/quickstart")
    vectors = encoder.encode(["a text", "another one"])
    """

    def __init__(self, pretrained: Pretrained):
        self.settings: EncoderSettings = pretrained.settings
        self._params = jax.device_put(pretrained.params)
        self._tokenizer = spm.SentencePieceProcessor(model_proto=pretrained.tokenizer)
        self._special = special_ids(self._tokenizer)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Encoder":
        """Read a working directory of `xlm train`, or a folder of `xlm export` or `xlm import`.

        Raises:
          ValueError: it is none of these, or damaged.
        """
        return cls(read_pretrained(os.fspath(folder)))

    def encode(
        self, texts: Sequence[str], *, layer: int | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Sentence vectors: the mean state of a text's tokens, without special ones.

        Args:
          texts: cut to as many tokens as the encoder has positions.
          layer: whose states are taken; the last by default, 0 for the embeddings.
          batch_size: texts at a time.

        Returns:
          [N, D] float32; zeros for a text without tokens.
        """
        rows = [self._row(text) for text in texts]
        found = [
            np.asarray(_vectors(self.settings, self._special, layer, self._params, batch))
            for batch in self._batches(rows, batch_size)
        ]
        return (
            np.concatenate(found)[: len(rows)] if rows else np.zeros((0, self.settings.hidden_size))
        )

    def fill(self, text: str, *, top: int = 5) -> list[list[Prediction]]:
        """The likeliest pieces at each `<mask>` of a text, the likeliest first.

        Raises:
          ValueError: the text has no mask within the encoder's positions.
        """
        row = self._row(text)
        places = [i for i, one in enumerate(row) if one == self._special.mask]
        if not places:
            raise ValueError(
                f"the text has no {MASK} in its first {self.settings.max_length} tokens"
            )
        (batch,) = self._batches([row], 1)
        logits = np.asarray(_logits(self.settings, self._special, self._params, batch))[0, places]
        logits = logits[:, : self._tokenizer.get_piece_size()].astype(np.float64)
        probabilities = np.exp(logits - logits.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        return [
            [Prediction(self._tokenizer.id_to_piece(int(i)), float(of[i])) for i in ids]
            for ids, of in zip(best, probabilities, strict=True)
        ]

    def loss(
        self, texts: Sequence[str], *, num_folds: int = 7, batch_size: int = 32, seed: int = 0
    ) -> float:
        """Exact masked-LM loss in nats a token; each token is masked once.

        Args:
          num_folds: passes over a text, each of which masks another part of its tokens.

        Raises:
          ValueError: the texts have no tokens.
        """
        rows = [self._row(text) for text in texts]
        rng, total, count = np.random.default_rng(seed), 0.0, 0
        for tokens in self._batches(rows, batch_size):
            is_text = ~np.isin(tokens, self._special.special_ids())
            order = np.argsort(np.where(is_text, rng.random(tokens.shape), 2.0), axis=1)
            rank = np.argsort(order, axis=1)
            for fold in range(num_folds):
                masked = is_text & (rank % num_folds == fold)
                inputs = np.where(masked, self._special.mask, tokens)
                logits = _logits(self.settings, self._special, self._params, inputs)
                total += float(
                    _summed_loss(logits, tokens, masked, self._tokenizer.get_piece_size())
                )
                count += int(masked.sum())
        if not count:
            raise ValueError(f"the {len(texts)} texts have no tokens")
        return total / count

    def _row(self, text: str) -> list[int]:
        """Ids of a text between `<s>` and `</s>`, with those of masks in it."""
        ids: list[int] = []
        for number, part in enumerate(text.split(MASK)):
            if number:
                ids.append(self._special.mask)
            pieces = self._tokenizer.encode(part, out_type=str)
            if number and pieces and not part[0].isspace():  # it goes on with the masked word
                bare = pieces[0].removeprefix("\u2581")
                known = self._tokenizer.piece_to_id(bare) != self._tokenizer.unk_id()
                pieces = [*([bare] if known else []), *pieces[1:]] if known or not bare else pieces
            ids += self._tokenizer.piece_to_id(pieces)
        return [self._special.bos, *ids[: self.settings.max_length - 2], self._special.eos]

    def _batches(self, rows: Sequence[Sequence[int]], size: int) -> list[np.ndarray]:
        """Batches of padded tokens [B, L]; empty rows fill the last one."""
        found = []
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            length = math.ceil(max(map(len, batch)) / _LENGTHS) * _LENGTHS
            tokens = np.full(
                (size, min(length, self.settings.max_length)), self._special.pad, np.int32
            )
            for i, row in enumerate(batch):
                tokens[i, : len(row)] = row
            found.append(tokens)
        return found


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _vectors(
    settings: EncoderSettings, special: SpecialIds, layer: int | None, params: Any,
    tokens: jax.Array,
) -> jax.Array:  # fmt: skip
    hidden = _states(settings, special, layer, params, tokens)
    return mean_state(hidden, ~jnp.isin(tokens, jnp.array(special.special_ids())))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _logits(
    settings: EncoderSettings, special: SpecialIds, params: Any, tokens: jax.Array
) -> jax.Array:
    """Scores of all pieces at all positions, [B, L, V] float32."""
    hidden = _states(settings, special, None, params, tokens)
    found = models.Encoder(settings).apply({"params": params}, hidden, method="predict")
    table, bias = models.output_table(params)
    return (
        jnp.einsum("ble,ve->blv", found, table, preferred_element_type=jnp.float32)
        + bias[None, None]
    )


def _states(
    settings: EncoderSettings, special: SpecialIds, layer: int | None, params: Any,
    tokens: jax.Array,
) -> jax.Array:  # fmt: skip
    segments, positions = packed_segments(
        tokens, bos=special.bos, pad=special.pad, across_documents=False
    )
    return models.Encoder(settings).apply(
        {"params": params}, tokens, segments, positions,
        deterministic=True, num_layers=layer, method="encode",
    )  # fmt: skip


@functools.partial(jax.jit, static_argnums=3)
def _summed_loss(
    logits: jax.Array, targets: jax.Array, masked: jax.Array, num_pieces: int
) -> jax.Array:
    losses = -jax.nn.log_softmax(logits[..., :num_pieces])
    losses = jnp.take_along_axis(losses, targets[..., None], axis=-1)[..., 0]
    return jnp.where(masked, losses, 0).sum()
