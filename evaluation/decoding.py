"""Beam search and greedy decoding inside `jit`, with a cache and static shapes."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# (tokens [B K] int32, cache, index of the tokens) -> logits [B K, V] of the next token, cache
Step = Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True)
class DecodingSettings:
    """Settings of a search; the `decoding` section of a config.

    Attributes:
      beams: K, hypotheses kept per sentence; 1 for greedy decoding.
      max_length: T, tokens of the longest hypothesis, its `</s>` included; the T-th is always
        `</s>`.
      length_penalty: a; the score of a hypothesis of n tokens, `</s>` included, is its log
        probability over n^a. 0 for none, 1 for the mean of the tokens. (Wu et al. 2016, Eq. 14,
        divide by ((5 + n) / 6)^a, which favours length less where n is small.)
      no_repeat_ngram: n; no n tokens in a row come twice in a hypothesis. 0 for no such rule.
      early_stop: whether the search for a sentence ends with its K-th finished hypothesis, in place
        of when none that is unfinished can score better than the worst of K. With one beam it
        always does.
    """

    beams: int = 5
    max_length: int = 128
    length_penalty: float = 1.0
    no_repeat_ngram: int = 0
    early_stop: bool = False

    def __post_init__(self):
        for name, least in (("beams", 1), ("max_length", 1), ("no_repeat_ngram", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"decoding.{name} is {getattr(self, name)}, must be at least {least}"
                )
        if not np.isfinite(self.length_penalty):
            raise ValueError(
                f"decoding.length_penalty is {self.length_penalty}, must be a finite number"
            )


class TokenIds(NamedTuple):
    """Ids that a search must know.

    Attributes:
      eos: ends a hypothesis.
      pad: stands after its end.
      forbidden: never generated, such as `<s>`, `<pad>` and `<mask>`.
      num_classes: ids from it on are rows of the table that are no classes of the softmax.
    """

    eos: int
    pad: int
    forbidden: tuple[int, ...]
    num_classes: int


class Hypotheses(NamedTuple):
    """Finished hypotheses of each sentence, the best one first.

    Attributes:
      tokens: [B, K, T] int32, `</s>` and then padding at the end; without the first token.
      scores: [B, K] float32; -inf of a hypothesis that was not found, which has no tokens.
      lengths: [B, K] int32 tokens with `</s>`.
    """

    tokens: jax.Array
    scores: jax.Array
    lengths: jax.Array


class _State(NamedTuple):
    """A search under way.

    Attributes:
      length: scalar int32, tokens of each live hypothesis.
      tokens: [B, K, T] int32 live hypotheses, the most probable one first.
      log_probs: [B, K] float32 of the live hypotheses; -inf where there are fewer than K.
      finished: the best finished ones so far.
      cache: that of the step.
    """

    length: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    finished: Hypotheses
    cache: Any


def beam_search(
    step: Step,
    first_tokens: jax.Array,
    cache: Any,
    settings: DecodingSettings,
    ids: TokenIds,
    cache_axes: Any = 0,
) -> Hypotheses:
    """Search for the best continuations of each sentence's first token.

    At each length the K best unfinished continuations of the live hypotheses stay alive. Those that
    end among the K best of all are finished: they are kept apart, with the K best scores. Of equal
    scores the one of the better live hypothesis is first, then that of the smaller token, and among
    finished hypotheses the one found earlier. All is traceable by `jax.jit`; the sentences of a
    batch do not influence each other.

    Args:
      step: the model; NaN among its logits counts as -inf. The first tokens have index 0.
      first_tokens: [B] int32, such as a language symbol.
      cache: any pytree of arrays, for K hypotheses of each sentence (see `repeat`), reordered as
        hypotheses are.
      settings: of the search.
      ids: of the vocabulary.
      cache_axes: axis [B K] of the arrays of the cache, for all, or a prefix of the pytree with
        None for arrays that all hypotheses share, such as a length.

    Returns:
      The K best hypotheses of each sentence.
    """
    batch, beams, length = len(first_tokens), settings.beams, settings.max_length
    empty = jnp.full((batch, beams, length), ids.pad, jnp.int32)
    none = jnp.full((batch, beams), -jnp.inf)
    state = _State(
        length=jnp.int32(0),
        tokens=empty,
        # All hypotheses begin alike, so that only one of them may be continued.
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
        log_probs = _allowed(_log_probs(logits, ids), state, settings, ids)
        return _extended(state._replace(cache=cache), log_probs, settings, ids, cache_axes)

    def is_under_way(state: _State) -> jax.Array:
        return (state.length < length) & ~_is_done(state, settings).all()

    return jax.lax.while_loop(is_under_way, advance, state).finished


def repeat(tree: Any, beams: int) -> Any:
    """Repeat each sentence of arrays [B, ...] for its hypotheses, [B K, ...]."""
    return jax.tree.map(lambda x: jnp.repeat(x, beams, axis=0), tree)


def _log_probs(logits: jax.Array, ids: TokenIds) -> jax.Array:
    """Log probabilities [B K, V] float32 by the classes' softmax; -inf for all that is none."""
    is_class = np.arange(logits.shape[-1])[None] < ids.num_classes
    logits = logits.astype(jnp.float32)
    logits = jnp.where(is_class & ~jnp.isnan(logits), logits, -jnp.inf)
    log_probs = jax.nn.log_softmax(logits)
    return jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)


def _allowed(
    log_probs: jax.Array, state: _State, settings: DecodingSettings, ids: TokenIds
) -> jax.Array:
    """Log probabilities [B K, V] with -inf for tokens that must not come next."""
    tokens = np.arange(log_probs.shape[-1])[None]
    is_last = state.length == settings.max_length - 1
    is_allowed = ~np.isin(tokens, ids.forbidden) & ((tokens == ids.eos) | ~is_last)
    log_probs = jnp.where(is_allowed, log_probs, -jnp.inf)
    size = settings.no_repeat_ngram
    if not 0 < size < settings.max_length:
        return log_probs
    sequences = state.tokens.reshape(-1, settings.max_length)
    starts = np.arange(settings.max_length - size + 1)
    is_repeated = jnp.broadcast_to(starts + size <= state.length, (len(sequences), len(starts)))
    for i in range(size - 1):
        suffix = sequences[:, jnp.maximum(state.length - size + 1 + i, 0)]
        is_repeated &= sequences[:, starts + i] == suffix[:, None]
    rows = np.arange(len(sequences))[:, None]
    penalties = jnp.where(is_repeated, -jnp.inf, jnp.inf)
    return log_probs.at[rows, sequences[:, starts + size - 1]].min(penalties)


def _extended(
    state: _State,
    log_probs: jax.Array,
    settings: DecodingSettings,
    ids: TokenIds,
    cache_axes: Any,
) -> _State:
    """Search one token further, given log probabilities [B K, V] of the next tokens."""
    batch, beams = state.log_probs.shape
    totals = state.log_probs[:, :, None] + log_probs.reshape(batch, beams, -1)
    # Each hypothesis ends in one way, so that K of the best 2 K continuations do not.
    best, parents, tokens = _best_continuations(totals, 2 * beams)
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


def _best_continuations(totals: jax.Array, count: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest log probabilities [B, count] of [B, K, V], their hypotheses and tokens.

    Those of each hypothesis first, then those of all: a selection from K V at once reads no less,
    and is slower where it sorts.
    """
    batch, beams, vocab_size = totals.shape
    per_beam = min(count, vocab_size)
    best, tokens = jax.lax.top_k(totals, per_beam)  # [B, K, per_beam]
    best, chosen = jax.lax.top_k(best.reshape(batch, -1), min(count, beams * per_beam))
    return best, chosen // per_beam, _take(tokens.reshape(batch, -1), chosen)


def _merged(old: Hypotheses, new: Hypotheses, ids: TokenIds) -> Hypotheses:
    """The best ones of two sets of K hypotheses."""
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
    # Log probabilities only decrease, and no length to come divides them by more.
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
    """A cache whose hypotheses are those with the given parents, [B, K]."""
    batch, beams = parents.shape
    rows = (parents + beams * jnp.arange(batch)[:, None]).reshape(-1)

    def reorder(axis: int | None, part: Any) -> Any:
        if axis is None:
            return part
        return jax.tree.map(lambda x: jnp.take(x, rows, axis=axis), part)

    return jax.tree.map(reorder, axes, cache, is_leaf=lambda x: x is None)


def _take(x: jax.Array, indices: jax.Array) -> jax.Array:
    return jnp.take_along_axis(x, indices, axis=1)
