"""Label smoothing against its definition, term by term."""

import jax
import numpy as np
import optax
from absl.testing import parameterized

from tests.models.factories import random
from xlm.objectives.label_smoothing import smoothing_penalty

B, L, E, R, V = 3, 5, 4, 12, 9


HIDDEN, TABLE, BIAS = 2 * random(B, L, E), random(R, E, seed=1), random(R, seed=2)
LABELS = np.random.default_rng(3).integers(V, size=(B, L)).astype(np.int32)


def _smoothed(hidden, smoothing, table, bias) -> jax.Array:
    logits = (hidden @ table.T + bias[None, None])[..., :V]
    plain = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)
    return plain + smoothing_penalty(hidden, LABELS, table, bias, smoothing, V)


smoothed = jax.jit(_smoothed)
penalty = jax.jit(smoothing_penalty, static_argnums=5)


def slow_loss(logits, label: int, smoothing: float) -> float:
    """Cross-entropy of the smoothed distribution, in float64, class by class."""
    logits = np.asarray(logits[:V], np.float64)
    log_probs = logits - np.log(np.exp(logits).sum())
    return -sum(((1 - smoothing) * (c == label) + smoothing / V) * log_probs[c] for c in range(V))


class LabelSmoothingTest(parameterized.TestCase):
    @parameterized.parameters(0.0, 0.1, 1.0)
    def test_against_the_definition(self, smoothing):
        found = np.asarray(smoothed(HIDDEN, smoothing, TABLE, BIAS))
        logits = HIDDEN @ TABLE.T + BIAS
        for i, j in np.ndindex(B, L):
            expected = slow_loss(logits[i, j], int(LABELS[i, j]), smoothing)
            np.testing.assert_allclose(found[i, j], expected, rtol=1e-5)

    def test_rows_of_no_class_do_not_count(self):
        table, bias = TABLE.copy(), BIAS.copy()
        table[V:], bias[V:] = 1e9, 1e9
        found = penalty(HIDDEN, LABELS, table, bias, 0.3, V)
        expected = penalty(HIDDEN, LABELS, TABLE, BIAS, 0.3, V)
        np.testing.assert_array_equal(found, expected)
