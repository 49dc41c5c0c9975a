"""Heads against slow loops: what is pooled, what is masked, where dropout is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests.models.factories import random_like
from xlm.models.heads import ClassificationHead, SpanHead, TaggingHead

RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(3, 7, 4)).astype(np.float32)
# Words of one token and of several, a row without words, and padding.
WORDS = np.array(
    [[-1, 0, 0, 0, 1, 2, -1], [-1, -1, -1, -1, -1, -1, -1], [-1, 0, 1, 1, -1, -1, -1]], np.int32
)


@functools.partial(jax.jit, static_argnames=("head", "deterministic"))
def outputs(head, params, hidden, batch, rngs, deterministic):
    return head.apply({"params": params}, hidden, batch, rngs=rngs, deterministic=deterministic)


def pooled_slowly(hidden: np.ndarray, words: np.ndarray, pooling: str) -> np.ndarray:
    found = np.zeros_like(hidden)
    for row, numbers in enumerate(words):
        for word in set(numbers.tolist()) - {-1}:
            states = [hidden[row, i] for i in range(len(numbers)) if numbers[i] == word]
            found[row, word] = states[0] if pooling == "first" else np.mean(states, axis=0)
    return found


class HeadsTest(parameterized.TestCase):
    def apply(self, head, batch, hidden=HIDDEN, key=None):
        """Random parameters and the outputs; dropout where there is a key."""
        init = functools.partial(head.init, deterministic=True)
        params = random_like(jax.eval_shape(init, jax.random.key(0), hidden, batch)["params"])
        rngs = {} if key is None else {"dropout": key}
        found = outputs(head, params, hidden, batch, rngs, deterministic=key is None)
        return params, np.asarray(found)

    @parameterized.parameters("first", "mean")
    def test_classes_are_told_by_the_first_state_or_the_mean(self, pooling):
        segments = np.array([[1] * 7, [1] * 4 + [0] * 3, [1, 2, 2, 2, 2, 0, 0]], np.int32)
        others = np.where(segments[:, :, None] > 0, HIDDEN, 1e6)  # padding does not matter
        head = ClassificationHead(5, 0.1, pooling)
        params, found = self.apply(head, {"segments": segments}, others)
        of_text = [HIDDEN[row, : np.sum(segments[row] > 0)] for row in range(3)]
        state = np.stack([x[0] if pooling == "first" else x.mean(axis=0) for x in of_text])
        dense, output = params["dense"], params["output"]
        x = np.tanh(state @ dense["kernel"] + dense["bias"])
        expected = x @ output["kernel"] + output["bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        _, half = self.apply(head, {"segments": segments}, HIDDEN.astype(jnp.bfloat16))
        self.assertEqual(half.dtype, jnp.float32)

    @parameterized.parameters("mean", "first")
    def test_tags_are_those_of_the_words(self, pooling):
        wider = (0, 0), (0, 3)
        words = np.pad(WORDS, wider, constant_values=-1)
        others = np.where(WORDS[:, :, None] < 0, 1e6, HIDDEN)  # padding and specials do not matter
        others = np.pad(others, (*wider, (0, 0)), constant_values=1e6)
        params, found = self.apply(TaggingHead(3, 0.1, pooling), {"words": words}, others)
        pooled, output = pooled_slowly(HIDDEN, WORDS, pooling), params["output"]
        pooled = np.pad(pooled, (*wider, (0, 0)))
        expected = pooled @ output["kernel"] + output["bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    def test_no_span_begins_or_ends_where_no_answer_may_be(self):
        answerable = WORDS >= 0
        params, found = self.apply(SpanHead(), {"answerable": answerable})
        expected = HIDDEN @ params["output"]["kernel"] + params["output"]["bias"]
        np.testing.assert_allclose(found[answerable], expected[answerable], rtol=1e-5)
        self.assertLess(np.max(found[~answerable]), -1e8)

    @parameterized.parameters(
        (ClassificationHead(2, 0.5), {}), (TaggingHead(2, 0.5, "mean"), {"words": WORDS})
    )
    def test_dropout_is_in_training_alone(self, head, batch):
        _, whole = self.apply(head, batch)
        one, two = (self.apply(head, batch, key=jax.random.key(i))[1] for i in range(2))
        for a, b in ((one, two), (one, whole)):
            self.assertGreater(np.max(np.abs(a - b)), 0.01)
