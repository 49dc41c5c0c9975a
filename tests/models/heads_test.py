"""Heads of spans: what is masked. task_heads_parity_test.py compares all heads with PyTorch."""

import functools

import jax
import numpy as np
from absl.testing import absltest

from tests.models.factories import random_like
from xlm.models.heads import SpanHead


class HeadsTest(absltest.TestCase):
    def test_no_span_begins_or_ends_where_no_answer_may_be(self):
        hidden = np.random.default_rng(0).normal(size=(3, 7, 4)).astype(np.float32)
        batch = {"answerable": np.arange(7) % 3 < np.array([[2], [0], [1]])}
        init, apply = (
            functools.partial(function, deterministic=True)
            for function in (SpanHead().init, SpanHead().apply)
        )
        shapes = jax.eval_shape(init, jax.random.key(0), hidden, batch)
        params = random_like(shapes["params"])
        found = np.asarray(jax.jit(apply)({"params": params}, hidden, batch))
        expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
        answerable = batch["answerable"]
        np.testing.assert_allclose(found[answerable], expected[answerable], rtol=1e-5)
        self.assertLess(np.max(found[~answerable]), -1e8)
