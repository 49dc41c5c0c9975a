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
from knn_sampling.blockwise import blockwise_softmax_loss, vocabulary_block_size
from xlm.evaluation.masked_lm import deal_folds
from xlm.experiment.pretrained import Pretrained, read_pretrained
from xlm.models import encoder as models
from xlm.models.segments import mean_state, packed_segments
from xlm.models.settings import EncoderSettings

MASK = "<mask>"
_LENGTHS = 64  # rows are padded to its multiples, with a compiled program for each


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
    def load(cls, folder: str | os.PathLike[str], objective: str = "") -> "Encoder":
        """Read a working directory of `xlm train`, or a folder of `xlm export` or `xlm import`.

        `objective` is the run's, where it is of another package: code that you trust. Raises
        ValueError if it is none of these, or damaged.
        """
        return cls(read_pretrained(os.fspath(folder), objective=objective))

    def encode(
        self, texts: Sequence[str], *, layer: int | None = None, batch_size: int = 32
    ) -> np.ndarray:
        """Sentence vectors: the mean state of a text's tokens, without special ones.

        Returns [N, D] float32; zeros for a text without tokens. Each text is cut to the encoder's
        positions. `layer` chooses the states: by default the last one, 0 for the embeddings.
        """
        rows = [self._row(text) for text in texts]
        found = [
            np.asarray(_vectors(self.settings, self._special, layer, self._params, batch))
            for batch in self._batches(rows, batch_size)
        ]
        none = np.zeros((0, self.settings.hidden_size), np.float32)
        return np.concatenate([none, *found])[: len(rows)]

    def fill(self, text: str, *, top: int = 5) -> list[list[Prediction]]:
        """The likeliest pieces at each `<mask>` of a text, the likeliest first.

        Raises ValueError if the text has no mask within the encoder's positions.
        """
        row = self._row(text)
        places = [i for i, one in enumerate(row) if one == self._special.mask]
        if not places:
            raise ValueError(
                f"the text has no {MASK} in its first {self.settings.max_length} tokens"
            )
        (batch,) = self._batches([row], 1)
        found = _predictions(self.settings, self._special, self._params, batch)[
            0, jnp.array(places)
        ]
        table, bias = models.output_table(self._params)
        logits = np.asarray(found @ table.T + bias[None], np.float64)
        logits = logits[:, : self._tokenizer.get_piece_size()]
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
        """Exact masked-LM loss in nats per token, with each token masked once.

        Each of `num_folds` passes masks another part of the tokens. Raises ValueError if the texts
        have no tokens.
        """
        rows = [self._row(text) for text in texts]
        rng, total, count = np.random.default_rng(seed), 0.0, 0
        for tokens in self._batches(rows, batch_size):
            folds = deal_folds(tokens, self._special.special_ids(), num_folds, rng)
            for fold in range(num_folds):
                masked = folds == fold
                total += float(
                    _summed_loss(
                        self.settings, self._special, self._tokenizer.get_piece_size(),
                        self._params, tokens, masked,
                    )
                )  # fmt: skip
                count += int(masked.sum())
        if not count:
            raise ValueError(f"the {len(texts)} texts have no tokens")
        return total / count

    def _row(self, text: str) -> list[int]:
        """Ids of a text and its masks, between `<s>` and `</s>`."""
        ids: list[int] = []
        for number, part in enumerate(text.split(MASK)):
            if number:
                ids.append(self._special.mask)
            pieces = self._tokenizer.encode(part, out_type=str)
            if number and pieces and not part[0].isspace():  # it continues the masked word
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
def _predictions(
    settings: EncoderSettings, special: SpecialIds, params: Any, tokens: jax.Array
) -> jax.Array:
    """Inputs of the output layer at all positions, [B, L, E]."""
    hidden = _states(settings, special, None, params, tokens)
    return models.Encoder(settings).apply({"params": params}, hidden, method="predict")


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


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _summed_loss(
    settings: EncoderSettings, special: SpecialIds, num_pieces: int, params: Any,
    tokens: jax.Array, masked: jax.Array,
) -> jax.Array:  # fmt: skip
    inputs = jnp.where(masked, special.mask, tokens)
    hidden = _predictions(settings, special, params, inputs)
    return blockwise_softmax_loss(
        hidden.reshape(-1, hidden.shape[-1]), tokens.reshape(-1),
        masked.reshape(-1).astype(jnp.float32), *models.output_table(params),
        num_valid=num_pieces, block_size=vocabulary_block_size(),
    ).sum()  # fmt: skip
