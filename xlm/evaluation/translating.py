"""Translations of sources by beam search or sampling, their scores, and their speed."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from input_pipeline.tasks.batches import batch_sizes, token_batches
from input_pipeline.tasks.features import TranslationFeature
from xlm.common import entry_point
from xlm.evaluation.batch_layout import BatchLayout
from xlm.evaluation.decoding import Hypotheses, TokenIds, beam_search, sample
from xlm.evaluation.settings import DecodingSettings
from xlm.evaluation.tasks import in_order
from xlm.models.attention import Cache
from xlm.models.encoder import Encoder
from xlm.models.transformer import LayerCache, empty_cache
from xlm.objectives.translation import Translation, context_mask

_SOURCE = ("tokens", "segments", "positions", "first_token", "number")


class Hypothesis(NamedTuple):
    """Tokens [n] of a hypothesis without `</s>`, its score, and its text, if decoded."""

    tokens: np.ndarray
    score: float
    text: str = ""


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
    """Hypotheses for each source: batches of similar lengths, each one search.

    A batch has at most `batch_tokens` tokens, including padding to `buckets`. If memory runs out,
    batches get half as many. Raises ValueError if not even one row per device fits.
    """

    def __init__(
        self, objective: Translation, settings: DecodingSettings, ids: TokenIds, *,
        batch_tokens: int, buckets: Sequence[int], pad: int, mesh: Mesh | None = None,
    ):  # fmt: skip
        self._buckets, self._pad = tuple(buckets), pad
        # Single queries gain nothing from a fused kernel.
        objective = dataclasses.replace(
            objective, encoder=_plain(objective.encoder), decoder=_plain(objective.decoder)
        )
        self._layout = BatchLayout(mesh, 1)
        num_shards = self._layout.size
        self._sizes = batch_sizes("evaluation.batch_tokens", batch_tokens, buckets, num_shards)
        self._search = self._layout.jit(
            lambda params, batch: search(objective, params, batch, settings, ids)
        )
        self._token_scores = self._layout.jit(objective.token_log_probs)
        self.settings = settings
        self._eos, self._compiled = ids.eos, set[tuple[int, ...]]()  # shapes of batches
        self.throughput = Throughput()

    def __call__(self, params: Any, features: Sequence[TranslationFeature]) -> list[np.ndarray]:
        """Return tokens [n] of the best hypothesis for each feature, in order, without `</s>`."""
        return [one[0].tokens for one in self.n_best(params, features)]

    def n_best(
        self, params: Any, features: Sequence[TranslationFeature], *, has_prefixes: bool = False
    ) -> list[list[Hypothesis]]:
        """Return hypotheses for each feature, best first, that begin with its target if asked."""
        names = (*_SOURCE, *(("target_outputs",) if has_prefixes else ()))
        if not has_prefixes:
            features = [dataclasses.replace(one, target=None) for one in features]
        longest = max((len(one.target) for one in features if one.target is not None), default=0)
        if longest > (most := self.settings.max_length):
            raise ValueError(
                f"a prefix has {longest} tokens with </s>, but decoding.max_length is {most}; "
                "shorten the prefix, or raise decoding.max_length"
            )
        shapes: set[tuple[int, ...]] = set()

        def searched(batch: dict[str, Any]) -> Hypotheses:
            shapes.add(batch["tokens"].shape)
            return self._search(params, {name: batch[name] for name in names})

        start = time.monotonic()
        found = self._in_order(features, searched)
        if shapes <= self._compiled:
            self._count([int(one.lengths[0]) for one in found], time.monotonic() - start)
        self._compiled |= shapes
        return [
            [
                Hypothesis(tokens[: max(length - 1, 0)], float(score))
                for number, (tokens, score, length) in enumerate(zip(*one, strict=True))
                if length or not number
            ]
            for one in found
        ]

    def token_scores(self, params: Any, features: Sequence[TranslationFeature]) -> list[np.ndarray]:
        """Return the log probabilities [n] of each feature's target tokens, `</s>` included."""
        found = self._in_order(features, lambda batch: self._token_scores(params, batch))
        lengths = (0 if one.target is None else len(one.target) for one in features)
        return [row[:length] for row, length in zip(found, lengths, strict=True)]

    def _in_order(
        self, features: Sequence[TranslationFeature], run: Callable[[dict[str, Any]], Any]
    ) -> list[Any]:
        of_features = np.array([one.example for one in features] + [0], np.int32)  # 0 if empty
        while True:
            batches = token_batches(features, self._sizes, self._buckets, self._pad)
            numbered = (({**batch, "number": of_features[rows]}, rows) for batch, rows in batches)
            try:
                return in_order(numbered, self._layout, run)
            except Exception as error:
                least = self._layout.size
                halves = [max(size // 2 // least * least, least) for size in self._sizes]
                is_last = halves == self._sizes or jax.process_count() > 1
                if is_last or not entry_point.out_of_memory(error):
                    raise
                logging.warning("memory ran out; resuming with batches of half as many sentences")
                self._sizes = halves

    def _count(self, lengths: Sequence[int], seconds: float) -> None:
        self.throughput.sentences += len(lengths)
        self.throughput.tokens += sum(lengths)
        self.throughput.seconds += seconds


def search(
    objective: Translation, params: Any, batch: dict[str, jax.Array], settings: DecodingSettings,
    ids: TokenIds,
) -> Hypotheses:  # fmt: skip
    """Return each source's hypotheses, the best one first.

    `batch` has `tokens`, `segments`, `positions` [B, L], `first_token` [B] and `number` [B], the
    seeds of samples. With `target_outputs` [B, L], -1 for none, hypotheses begin with these tokens
    up to `</s>`. The encoder runs once. A step decodes one token of each hypothesis, from the keys
    and values of earlier tokens and of the source. Only the logits and the choice among them cost
    more with a larger vocabulary.
    """
    mask, beams = context_mask(batch), settings.samples or settings.beams
    decoder, decoder_params = objective.decoder, objective.decoder_params(params)
    table, bias = objective.output_table(params)
    states = objective.states(params, batch)
    # The search grows the cache.
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
    limit = functools.partial(_limited, batch, ids)
    if not settings.samples:
        return beam_search(step, first, own, settings, ids, axes, Cache.grown, limit)
    key = jax.random.key(settings.seed)
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(batch["number"])
    return sample(step, first, own, settings, ids, keys, Cache.grown, limit)


def _limited(
    batch: dict[str, jax.Array], ids: TokenIds, allowed: jax.Array, logits: jax.Array,
    index: jax.Array,
) -> jax.Array:  # fmt: skip
    """Allow `<unk>` only for sources that have it, and within a prefix only its next token."""
    tokens = jnp.arange(logits.shape[-1])[None]
    repeats = len(logits) // len(batch["tokens"])
    if ids.unk >= 0:
        has_unknown = jnp.repeat((batch["tokens"] == ids.unk).any(axis=1), repeats)[:, None]
        allowed = jnp.where((tokens == ids.unk) & ~has_unknown, -jnp.inf, allowed)
    prefix = batch.get("target_outputs")
    if prefix is None:
        return allowed
    wanted = prefix[:, jnp.minimum(index, prefix.shape[1] - 1)]
    is_given = (wanted >= 0) & (wanted != ids.eos) & (index < prefix.shape[1])
    wanted, is_given = (jnp.repeat(one, repeats)[:, None] for one in (wanted, is_given))
    return jnp.where(is_given, jnp.where(tokens == wanted, logits, -jnp.inf), allowed)


def _plain(model: Encoder) -> Encoder:
    return Encoder(dataclasses.replace(model.settings, attention="xla"))
