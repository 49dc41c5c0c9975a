"""Beam search against exhaustive search and a plain loop; translating_test.py tests its cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from xlm.evaluation import decoding
from xlm.evaluation.decoding import Hypotheses, TokenIds, beam_search
from xlm.evaluation.settings import DecodingSettings

PAD, BOS, EOS = 0, 1, 2
V, T, NUM_STATES = 6, 4, 997
IDS = TokenIds(eos=EOS, pad=PAD, forbidden=(PAD, BOS), num_classes=V)
# Ids from 6 on are table rows without a class.
ROWS = 8
FIRST = np.array([6, 7, 3], np.int32)


def table(seed: int, has_ties: bool = False) -> np.ndarray:
    """Logits [states, rows] of a model whose state is a hash of all earlier tokens.

    With ties, some tokens have equal probabilities, and the others are impossible.
    """
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(NUM_STATES, ROWS))
    if has_ties:
        logits = np.where(logits > -1, 0, -np.inf)
    return logits.astype(np.float32)


def hashed(state, token):
    return (state * 31 + token + 1) % NUM_STATES


def step(logits, tokens, state, index):
    del index
    state = hashed(state, tokens)
    return logits[state], state


@functools.partial(jax.jit, static_argnames="settings")
def compiled(logits, first, cache, settings):
    return beam_search(functools.partial(step, logits), first, cache, settings, IDS)


def search(logits, settings, first=FIRST) -> Hypotheses:
    cache = np.zeros(len(first) * settings.beams, np.int32)
    return jax.tree.map(np.asarray, compiled(logits, first, cache, settings=settings))


def log_probs_of(logits) -> np.ndarray:
    """Log probabilities over the classes; -inf for tokens that are never generated."""
    found = np.array(log_softmax(logits[:, : IDS.num_classes]))
    found[:, list(IDS.forbidden)] = -np.inf
    return found


log_softmax = jax.jit(jax.nn.log_softmax)


def after(first, tokens) -> int:
    return functools.reduce(hashed, tokens, hashed(0, int(first)))


def repeats(tokens, size) -> bool:
    grams = [tokens[i : i + size] for i in range(len(tokens) - size + 1)]
    return bool(size) and len(set(grams)) < len(grams)


def plain_search(logits, first, settings):
    """Beam search of a sentence with lists; `beam_search` has the order of equal scores."""
    log_probs, beams = log_probs_of(logits), settings.beams
    live = [(np.float32(0), ())]
    finished: list = []
    for length in range(1, settings.max_length + 1):
        options = []
        for rank, (total, tokens) in enumerate(live):
            for token in range(V):
                value = total + log_probs[after(first, tokens), token]
                is_allowed = token == EOS or length < settings.max_length
                if is_allowed and not repeats((*tokens, token), settings.no_repeat_ngram):
                    options.append((-value, rank, token, (*tokens, token)))
        options = sorted(option for option in options if option[0] < np.inf)
        penalty = np.float32(length**settings.length_penalty)
        finished += [
            (-cost / penalty, tokens) for cost, *_, tokens in options[:beams] if tokens[-1] == EOS
        ]
        finished = sorted(finished, key=lambda one: -one[0])[:beams]
        live = [(-cost, tokens) for cost, *_, tokens in options if tokens[-1] != EOS][:beams]
        if len(finished) == beams and (settings.early_stop or beams == 1):
            break
    return finished


class SearchTest(parameterized.TestCase):
    def assert_finds(self, found: Hypotheses, expected: list, settings):
        """Compare with `expected`, the (scores, tokens) of each sentence's hypotheses."""
        for sentence, hypotheses in enumerate(expected):
            for rank in range(settings.beams):
                score, tokens = hypotheses[rank] if rank < len(hypotheses) else (-np.inf, ())
                padded = np.pad(tokens, (0, settings.max_length - len(tokens)))
                where = f"sentence {sentence}, rank {rank}"
                np.testing.assert_array_equal(found.tokens[sentence, rank], padded, where)
                self.assertEqual(found.lengths[sentence, rank], len(tokens), where)
                scored = found.scores[sentence, rank]
                np.testing.assert_allclose(scored, score, rtol=1e-6, err_msg=where)

    @parameterized.parameters(
        (1, False, 0.0), (1, True, 1.0), (2, False, 1.0), (2, True, -0.5), (2, False, -0.5),
        (3, False, 0.0), (3, False, 1.5), (5, True, 0.0), (5, False, 1.0), (5, True, 1.0),
    )  # fmt: skip
    def test_few_beams_are_those_of_a_plain_loop(self, beams, early_stop, penalty):
        settings = DecodingSettings(beams, 7, penalty, early_stop=early_stop)
        for seed in range(10):
            logits = table(seed, has_ties=seed in (3, 4, 5))
            logits[:, EOS] += 2 * (seed > 5)  # the loop continues where the search stops
            expected = [plain_search(logits, first, settings) for first in FIRST]
            self.assert_finds(search(logits, settings), expected, settings)

    def test_a_search_stops_when_nothing_better_can_come(self):
        calls = []

        def counted(tokens, state, index):
            jax.debug.callback(lambda i: calls.append(int(i)), index)
            return step(logits, tokens, state, index)

        table_of_ends = table(0)
        table_of_ends[:, EOS] = 20
        logits = jnp.asarray(table_of_ends)
        for settings, expected in (
            (DecodingSettings(1, 30, 1.0), range(1, 2)),  # greedy
            (
                DecodingSettings(2, 30, 0.0),
                range(2, 3),
            ),  # open hypotheses are already less probable
            # 30 tokens might raise the mean, until the sum is 30 times the worst mean.
            (DecodingSettings(2, 30, 1.0), range(10, 30)),
            (DecodingSettings(2, 30, 1.0, early_stop=True), range(2, 3)),
        ):
            calls.clear()
            cache = np.zeros(len(FIRST) * settings.beams, np.int32)
            searched = functools.partial(beam_search, counted, settings=settings, ids=IDS)
            jax.block_until_ready(jax.jit(searched)(FIRST, cache))
            jax.effects_barrier()
            self.assertIn(len(calls), expected, settings)

    @parameterized.parameters(1, 2, 3)
    def test_no_ngram_comes_twice(self, size):
        settings = DecodingSettings(3, 10, 1.0, no_repeat_ngram=size)
        logits = table(0)
        logits[:, EOS] -= 4
        free = search(logits, DecodingSettings(3, 10, 1.0))
        self.assertTrue(any(repeats(tuple(x), size) for x in free.tokens.reshape(-1, 10)))
        expected = [plain_search(logits, first, settings) for first in FIRST]
        self.assert_finds(search(logits, settings), expected, settings)

    @parameterized.parameters(np.nan, -np.inf)
    def test_tokens_without_a_score_do_not_count(self, value):
        settings = DecodingSettings(beams=3, max_length=6)
        logits, without = table(0), table(0)
        logits[::2, 3] = value
        logits[:, IDS.num_classes :] = np.inf
        without[::2, 3] = -1e30
        found, expected = search(logits, settings), search(without, settings)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)
        self.assertFalse(np.isin(found.tokens, [BOS, 6, 7]).any())

    @parameterized.parameters(
        (1, [1]), (30, [30]), (31, [16, 31]), (64, [16, 32, 64]), (65, [17, 33, 65])
    )
    def test_capacities(self, max_length, expected):
        self.assertEqual(decoding.capacities(max_length), expected)

    def test_a_model_without_any_score_finds_nothing(self):
        for settings in (DecodingSettings(2, 5), DecodingSettings(2, 5, early_stop=True)):
            found = search(np.full((NUM_STATES, ROWS), np.nan, np.float32), settings)
            np.testing.assert_array_equal(found.scores, np.full((3, 2), -np.inf))
            self.assertFalse(found.lengths.any() or found.tokens.any())
