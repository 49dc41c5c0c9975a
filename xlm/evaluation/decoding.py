"""Beam search, greedy decoding and sampling inside `jit`, with a cache and static shapes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from xlm.evaluation.settings import DecodingSettings

# (tokens [B K] int32, cache, index of the tokens) -> logits [B K, V] of the next token, cache
Step = Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]]
# (logits [B K V] of allowed next tokens, all logits, index) -> the former, limited further
Limit = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

# Fewer tokens are not worth their own loop.
_LEAST_CAPACITY = 16


class TokenIds(NamedTuple):
    """Special ids of a search.

    Hypotheses end with `eos`, then `pad` follows. The search never generates `forbidden` ids, such
    as `<s>`, `<pad>` and `<mask>`. Table rows from `num_classes` on are no classes of the softmax.
    Only sources with `unk` may generate it, to copy from the source; -1 for none.
    """

    eos: int
    pad: int
    forbidden: tuple[int, ...]
    num_classes: int
    unk: int = -1


class Hypotheses(NamedTuple):
    """Finished hypotheses of each sentence, the best one first.

    Attributes:
      tokens: [B, K, T] int32, without the first token; they end with `</s>` and padding.
      scores: [B, K] float32; -inf for a missing hypothesis, which has no tokens.
      lengths: [B, K] int32 tokens, including `</s>`.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


class _State(NamedTuple):
    """Search in progress, with the best `finished` hypotheses so far and the step's cache.

    Attributes:
      length: scalar int32, tokens of each live hypothesis.
      tokens: [B, K, T] int32 live hypotheses, the most probable one first.
      log_probs: [B, K] float32 of the live hypotheses; -inf for fewer than K.
    """

    length: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    finished: Hypotheses
    cache: Any


def beam_search(
    step: Step, first_tokens: jax.Array, cache: Any, settings: DecodingSettings, ids: TokenIds,
    cache_axes: Any = 0, grown: Callable[[Any, int], Any] | None = None,
    limit: Limit = lambda allowed, logits, index: allowed, keys: jax.Array | None = None,
) -> Hypotheses:  # fmt: skip
    """Search for the K best continuations of each sentence's first token; traceable by `jax.jit`.

    At each length the K best unfinished continuations of the live hypotheses stay alive.
    Continuations that end, among the K best of all, are finished, and the search keeps those with
    the K best scores. Ties go to the better live hypothesis, then the larger logit, then the
    smaller token; among finished hypotheses to the earlier one. The sentences of a batch do not
    influence each other.

    Args:
      step: the model; NaN among its logits counts as -inf. The first tokens have index 0.
      first_tokens: [B] int32, such as a language symbol.
      cache: any pytree of arrays for K hypotheses of each sentence, reordered with the hypotheses.
      cache_axes: axis [B K] of all arrays of the cache, or a prefix of the pytree, with None for
        arrays that all hypotheses share, such as a length.
      grown: grows a cache to one of `capacities` when the search needs it; None if the cache has
        room for T tokens.
      limit: allows fewer tokens than the settings, such as those of a prefix.
      keys: [B] random keys to draw one hypothesis of each sentence; None to search.
    """
    batch, beams = len(first_tokens), settings.beams
    empty = jnp.full((batch, beams, settings.max_length), ids.pad, jnp.int32)
    none = jnp.full((batch, beams), -jnp.inf)
    state = _State(
        length=jnp.int32(0),
        tokens=empty,
        # All hypotheses begin alike, so the search continues only one of them.
        log_probs=none.at[:, 0].set(0),
        finished=Hypotheses(empty, none, jnp.zeros((batch, beams), jnp.int32)),
        cache=cache,
    )

    def advance(state: _State) -> _State:
        before = jax.lax.dynamic_index_in_dim(
            state.tokens, jnp.maximum(state.length - 1, 0), axis=2, keepdims=False
        )
        inputs = jnp.where(state.length == 0, first_tokens[:, None], before)
        logits, cache = step(inputs.reshape(-1), state.cache, state.length)
        log_probs, tokens = _best_of_each(logits, state, settings, ids, limit, keys)
        state = state._replace(cache=cache)
        return _extended(state, log_probs, tokens, settings, ids, cache_axes)

    def is_under_way(capacity: int, state: _State) -> jax.Array:
        return (state.length < capacity) & ~_is_done(state, settings).all()

    for capacity in capacities(settings.max_length) if grown else (settings.max_length,):
        if grown is not None:
            state = state._replace(cache=grown(state.cache, capacity))
        state = jax.lax.while_loop(functools.partial(is_under_way, capacity), advance, state)
    return state.finished


def sample(
    step: Step, first_tokens: jax.Array, cache: Any, settings: DecodingSettings, ids: TokenIds,
    keys: jax.Array, grown: Callable[[Any, int], Any] | None, limit: Limit,
) -> Hypotheses:  # fmt: skip
    """Draw continuations of each sentence's first token, sorted by score; see `beam_search`.

    Draws of a sentence depend on its key, of `keys` [B]. Scores are without temperature.
    """
    batch, count = len(first_tokens), settings.samples
    each = jax.vmap(lambda key: jax.random.split(key, count))(keys).reshape(-1)
    found = beam_search(
        step, jnp.repeat(first_tokens, count), cache, dataclasses.replace(settings, beams=1), ids,
        None, grown, limit, each,
    )  # fmt: skip
    found = jax.tree.map(lambda x: x.reshape(batch, count, *x.shape[2:]), found)
    scores, order = jax.lax.top_k(found.scores, count)
    tokens = jnp.take_along_axis(found.tokens, order[:, :, None], axis=1)
    return Hypotheses(tokens, scores, _take(found.lengths, order))


def capacities(max_length: int) -> list[int]:
    """Return the capacities of a growing cache in tokens: a quarter, a half and all.

    The cost of a step grows with its cache's capacity, and most sentences are far shorter than the
    limit. Each capacity is another loop to compile, so there are only three.
    """
    parts = (-(-max_length // 4), -(-max_length // 2))
    return [part for part in parts if part >= _LEAST_CAPACITY] + [max_length]


def _best_of_each(
    logits: jax.Array, state: _State, settings: DecodingSettings, ids: TokenIds, limit: Limit,
    keys: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Return log probabilities [B, K, N] float32 and ids [B, K, N] int32 of the best next tokens.

    Logits [B K, V] have the order of log probabilities, so only the chosen ones are normalised. N
    is min(2 K, V): each hypothesis can end in one way, so K of the best 2 K continuations do not
    end. Tokens that are no class or not allowed have -inf. With keys [B] it draws one token.
    """
    batch, beams = state.log_probs.shape
    is_class = np.arange(logits.shape[-1])[None] < ids.num_classes
    logits = logits.astype(jnp.float32)
    logits = jnp.where(is_class & ~jnp.isnan(logits), logits, -jnp.inf)
    largest = logits.max(axis=-1, keepdims=True)
    log_sums = jnp.log(jnp.exp(logits - largest).sum(axis=-1, keepdims=True))
    allowed = limit(_allowed(logits, state, settings, ids), logits, state.length)
    if keys is None:
        best, tokens = jax.lax.top_k(allowed, min(2 * beams, logits.shape[-1]))
    else:
        now = jax.vmap(lambda key: jax.random.fold_in(key, state.length))(keys)
        tokens = jax.vmap(jax.random.categorical)(now, _truncated(allowed, settings))[:, None]
        best = _take(allowed, tokens)
    log_probs = best - largest - log_sums
    log_probs = jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)
    return log_probs.reshape(batch, beams, -1), tokens.reshape(batch, beams, -1)


def _truncated(logits: jax.Array, settings: DecodingSettings) -> jax.Array:
    """Return logits [B, V] over the temperature, -inf for those outside top_k and top_p."""
    logits = logits / settings.temperature
    largest = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(largest, axis=-1)
    is_kept = jnp.cumsum(probabilities, axis=-1) - probabilities < settings.top_p
    is_kept &= np.arange(logits.shape[-1])[None] < (settings.top_k or logits.shape[-1])
    least = jnp.where(is_kept, largest, jnp.inf).min(axis=-1, keepdims=True)
    return jnp.where(logits < least, -jnp.inf, logits)


def _allowed(
    logits: jax.Array, state: _State, settings: DecodingSettings, ids: TokenIds
) -> jax.Array:
    """Return logits [B K, V] with -inf for tokens that are not allowed next."""
    tokens = np.arange(logits.shape[-1])[None]
    is_last = state.length == settings.max_length - 1
    is_allowed = ~np.isin(tokens, ids.forbidden) & ((tokens == ids.eos) | ~is_last)
    logits = jnp.where(is_allowed, logits, -jnp.inf)
    size = settings.no_repeat_ngram
    if not 0 < size < settings.max_length:
        return logits
    sequences = state.tokens.reshape(-1, settings.max_length)
    starts = np.arange(settings.max_length - size + 1)
    is_repeated = jnp.broadcast_to(starts + size <= state.length, (len(sequences), len(starts)))
    for i in range(size - 1):
        suffix = sequences[:, jnp.maximum(state.length - size + 1 + i, 0)]
        is_repeated &= sequences[:, starts + i] == suffix[:, None]
    rows = np.arange(len(sequences))[:, None]
    penalties = jnp.where(is_repeated, -jnp.inf, jnp.inf)
    return logits.at[rows, sequences[:, starts + size - 1]].min(penalties)


def _extended(
    state: _State, log_probs: jax.Array, tokens: jax.Array, settings: DecodingSettings,
    ids: TokenIds, cache_axes: Any,
) -> _State:  # fmt: skip
    """Search one token further, given the best next tokens of each hypothesis, both [B, K, N]."""
    batch, beams, number = tokens.shape
    totals = (state.log_probs[:, :, None] + log_probs).reshape(batch, -1)
    best, chosen = jax.lax.top_k(totals, min(2 * beams, totals.shape[1]))
    parents, tokens = chosen // number, _take(tokens.reshape(batch, -1), chosen)
    is_end = tokens == ids.eos

    ends = slice(0, beams)
    is_new = is_end[:, ends] & ~_is_done(state, settings)[:, None]
    scores = best[:, ends] / _penalties(settings)[state.length + 1]
    new = Hypotheses(
        _appended(state, parents[:, ends], tokens[:, ends]),
        jnp.where(is_new, scores, -jnp.inf),
        jnp.full((batch, beams), state.length + 1),
    )
    log_probs, chosen = jax.lax.top_k(jnp.where(is_end, -jnp.inf, best), beams)
    parents, tokens = _take(parents, chosen), _take(tokens, chosen)
    return _State(
        length=state.length + 1,
        tokens=_appended(state, parents, tokens),
        log_probs=log_probs,
        finished=_merged(state.finished, new, ids),
        cache=_reordered(state.cache, parents, cache_axes),
    )


def _merged(old: Hypotheses, new: Hypotheses, ids: TokenIds) -> Hypotheses:
    both = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), old, new)
    scores, chosen = jax.lax.top_k(both.scores, old.scores.shape[1])
    is_there = scores > -jnp.inf
    tokens = jnp.take_along_axis(both.tokens, chosen[:, :, None], axis=1)
    return Hypotheses(
        jnp.where(is_there[:, :, None], tokens, ids.pad),
        scores,
        jnp.where(is_there, _take(both.lengths, chosen), 0),
    )


def _is_done(state: _State, settings: DecodingSettings) -> jax.Array:
    """Whether the finished hypotheses of a sentence are final, [B] bool."""
    worst, best_live = state.finished.scores[:, -1], state.log_probs[:, 0]
    if settings.early_stop or settings.beams == 1:
        return (worst > -jnp.inf) | (best_live == -jnp.inf)
    # Log probabilities only decrease, and no later length divides them by more.
    penalties = _penalties(settings)
    largest = jnp.maximum(penalties[-1], penalties[state.length + 1])
    return worst >= best_live / largest


def _penalties(settings: DecodingSettings) -> jax.Array:
    """Divisors of log probabilities by the length of a hypothesis, [T + 1] float32."""
    lengths = np.maximum(np.arange(settings.max_length + 1), 1)
    powers = (lengths**settings.length_penalty).astype(np.float32)
    return jnp.asarray(powers)


def _appended(state: _State, parents: jax.Array, tokens: jax.Array) -> jax.Array:
    """Live hypotheses [B, K, T] with the given parents and next tokens, both [B, K]."""
    sequences = jnp.take_along_axis(state.tokens, parents[:, :, None], axis=1)
    return sequences.at[:, :, state.length].set(tokens)


def _reordered(cache: Any, parents: jax.Array, axes: Any) -> Any:
    """Return a cache whose hypotheses are those with the given parents, [B, K]."""
    batch, beams = parents.shape
    rows = (parents + beams * jnp.arange(batch)[:, None]).reshape(-1)

    def reorder(axis: int | None, part: Any) -> Any:
        if axis is None:
            return part
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=axis), part)

    return jax.tree.map(reorder, axes, cache, is_leaf=lambda x: x is None)


def _take(x: jax.Array, indices: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, indices, axis=1)
