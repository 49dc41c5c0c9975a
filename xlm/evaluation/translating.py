"""Translations of sources by beam search, and how fast they are."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from input_pipeline.tasks.batches import batch_sizes, token_batches
from input_pipeline.tasks.features import TranslationFeature
from xlm.evaluation.batch_layout import BatchLayout
from xlm.evaluation.decoding import Hypotheses, TokenIds, beam_search
from xlm.evaluation.settings import DecodingSettings
from xlm.evaluation.tasks import in_order
from xlm.models.attention import Cache
from xlm.models.encoder import Encoder
from xlm.models.transformer import LayerCache, empty_cache
from xlm.objectives.translation import Translation, context_mask

_SOURCE = ("tokens", "segments", "positions", "first_token")


@dataclasses.dataclass
class Throughput:
    """Translated sentences, tokens (`</s>` included), and seconds, without calls that compiled."""

    sentences: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def rates(self) -> dict[str, float]:
        """Return sentences and tokens a second; empty before the first call that counts."""
        if not self.seconds:
            return {}
        return {
            "sentences_per_second": self.sentences / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
        }


class Translator:
    """The best hypothesis for each source: batches of similar lengths, each one beam search.

    A batch has at most `batch_tokens` tokens, padding to `buckets` included. Raises ValueError if
    not even one row a device fits.
    """

    def __init__(
        self, objective: Translation, settings: DecodingSettings, ids: TokenIds, *,
        batch_tokens: int, buckets: Sequence[int], pad: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        self._buckets, self._pad = tuple(buckets), pad
        # A fused kernel is of no use for single queries.
        objective = dataclasses.replace(
            objective, encoder=_plain(objective.encoder), decoder=_plain(objective.decoder)
        )
        self._layout = BatchLayout(mesh, 1)
        num_shards = self._layout.size
        self._sizes = batch_sizes("evaluation.batch_tokens", batch_tokens, buckets, num_shards)
        self._search = self._layout.jit(
            lambda params, batch: search(objective, params, batch, settings, ids)
        )
        self._eos, self._compiled = ids.eos, set[tuple[int, ...]]()  # shapes of batches
        self.throughput = Throughput()

    def __call__(self, params: Any, features: Sequence[TranslationFeature]) -> list[np.ndarray]:
        """Return tokens [n] of the best hypothesis for each feature, in order, without `</s>`."""
        sources = [dataclasses.replace(one, target=None) for one in features]
        batches = token_batches(sources, self._sizes, self._buckets, self._pad)
        shapes: set[tuple[int, ...]] = set()

        def searched(batch: dict[str, Any]) -> jax.Array:
            shapes.add(batch["tokens"].shape)
            return self._search(params, {name: batch[name] for name in _SOURCE})

        start = time.monotonic()
        found = in_order(batches, self._layout, searched)
        ended = [np.append(row, self._eos) for row in found]
        lengths = [int(np.argmax(row == self._eos)) for row in ended]
        if shapes <= self._compiled:
            self._count(lengths, time.monotonic() - start)
        self._compiled |= shapes
        return [row[:length] for row, length in zip(found, lengths, strict=True)]

    def _count(self, lengths: Sequence[int], seconds: float) -> None:
        self.throughput.sentences += len(lengths)
        self.throughput.tokens += sum(lengths) + len(lengths)
        self.throughput.seconds += seconds


def search(
    objective: Translation, params: Any, batch: dict[str, jax.Array], settings: DecodingSettings,
    ids: TokenIds,
) -> jax.Array:  # fmt: skip
    """Return tokens [B, T] of each source's best hypothesis, with `</s>` and padding at the end.

    `batch` has `tokens`, `segments`, `positions` [B, L] and `first_token` [B]. Sources are encoded
    once. A step decodes one token of each hypothesis, from the keys and values of the tokens before
    and of the source. Only the logits and the choice among them cost more with a larger vocabulary.
    """
    mask, beams = context_mask(batch), settings.beams
    decoder, decoder_params = objective.decoder, objective.decoder_params(params)
    table, bias = objective.output_table(params)
    states = objective.states(params, batch)
    # The search makes room for tokens as they come.
    own, context = empty_cache(decoder.settings, decoder_params["layers"], states, beams, 0)

    def step(tokens: jax.Array, own: Cache, index: jax.Array) -> tuple[jax.Array, Cache]:
        hidden, own = decoder.apply(
            {"params": decoder_params},
            tokens.reshape(-1, beams), index, mask, LayerCache(own, context),
            method="decode_next",
        )  # fmt: skip
        hidden = objective.predict(decoder_params, hidden)
        hidden = hidden.reshape(len(tokens), -1)
        logits = jnp.matmul(hidden, table.T.astype(hidden.dtype), preferred_element_type=np.float32)
        return logits + bias[None], own

    axes = Cache(keys=1, values=1, length=None)  # type: ignore[arg-type]
    first = batch["first_token"]
    found: Hypotheses = beam_search(step, first, own, settings, ids, axes, Cache.grown)
    return found.tokens[:, 0]


def _plain(model: Encoder) -> Encoder:
    return Encoder(dataclasses.replace(model.settings, attention="xla"))
