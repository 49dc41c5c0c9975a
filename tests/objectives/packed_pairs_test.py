"""Rows of several pairs: each pair as in its own row, in any order; joint text and pairs."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from tests import factories
from tests.factories import BOS, EOS, MASK, PAD, SPECIAL
from xlm.models.encoder import Encoder
from xlm.models.segments import packed_segments
from xlm.objectives import masked_lm, replaced_token
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.cross_mlm import CrossMLM
from xlm.objectives.cross_mlm import Plan as CrossPlan
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.masking import Masked
from xlm.objectives.objective import Batch
from xlm.objectives.replaced_token import GENERATOR, ReplacedToken
from xlm.objectives.settings import (
    ContrastSettings,
    MaskSettings,
    ReplacedTokenSettings,
    VecoSettings,
)

L, V = 32, 60
KEY = jax.random.key(5)
# Tokens of both sentences, for the pairs of two rows.
LENGTHS = (((3, 4), (2, 2), (5, 3)), ((6, 7), (1, 3)))
PAIRS = [(row, slot) for row, pairs in enumerate(LENGTHS) for slot in range(len(pairs))]
ENCODER = factories.encoder_settings(
    vocab_size=64, dropout_rate=0.0, position="gated", max_length=L
)
FULL = factories.output_layer_settings(kind="full")


@functools.cache
def objective_of(name: str, restart: bool = False, context: str = "causal"):
    encoder = dataclasses.replace(
        ENCODER, cross_attention=name == "veco", position="gated" if restart else "learned"
    )
    scope = GENERATOR if name == "rtd" else ""
    one = factories.masked_lm(
        FULL, encoder, num_valid=V, scope=scope, positions_restart=restart, pair_weight=0.5,
        mask=MaskSettings(0.3, 0.8, 0.1, pair_rate=0.5), languages=("de", "fr"),
    )  # fmt: skip
    if name == "rtd":  # the likeliest replacements, since samples depend on the places of slots
        return ReplacedToken(one, Encoder(encoder), ReplacedTokenSettings(temperature=0.0))
    if name == "veco":
        separate = dataclasses.replace(one, positions_restart=False)
        return CrossMLM(separate, VecoSettings(1.0, 2.0, 3.0, context), translation_lm=one)
    return SentenceContrast(one, ContrastSettings(0.5, 0.1)) if name == "contrast" else one


def pairs_of(is_separate: bool, restart: bool) -> dict[str, np.ndarray]:
    """Rows of pairs as the stream lays them out."""
    tokens = np.full((len(LENGTHS), L), PAD, np.int32)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    rng = np.random.default_rng(0)
    for row, pairs in enumerate(LENGTHS):
        start = 0
        for slot, (one, two) in enumerate(pairs):
            second, stop = start + one + 2, start + one + two + 4
            tokens[row, start:stop] = rng.integers(MASK + 1, V, stop - start)
            tokens[row, [start, second - 1, second, stop - 1]] = BOS, EOS, EOS, EOS
            segments[row, start:stop], positions[row, start:stop] = slot + 1, range(stop - start)
            if is_separate:
                tokens[row, second] = BOS
                segments[row, start:second], segments[row, second:stop] = 2 * slot + 1, 2 * slot + 2
            if is_separate or restart:
                positions[row, second:stop] -= one + 2
            start = stop
    language = np.zeros(len(LENGTHS), np.int32)
    return {"tokens": tokens, "segments": segments, "positions": positions, "language": language}


def arranged(plan: masked_lm.Plan, rows: Sequence[Sequence[tuple[int, int]]]) -> masked_lm.Plan:
    """Lay out the pairs of a plan in other rows, with other weights of targets."""
    # Equally many rows for all, some empty, so one program serves all.
    shape, scale = (len(PAIRS), L), 2 if plan.segments.max() > 3 else 1
    inputs, segments, positions = np.full(shape, PAD), np.zeros(shape, int), np.zeros(shape, int)
    weights, targets = np.zeros(shape, np.float32), np.zeros(shape, int)
    for row, pairs in enumerate(rows):
        stop = 0
        for new, (old, slot) in enumerate(pairs):
            first = sum(sum(one) + 4 for one in LENGTHS[old][:slot])
            size = sum(LENGTHS[old][slot]) + 4
            here, there = (row, slice(stop, stop + size)), (old, slice(first, first + size))
            inputs[here], positions[here] = plan.masked.inputs[there], plan.positions[there]
            segments[here] = plan.segments[there] + scale * (new - slot)
            masked = plan.masked
            for at, one, used in zip(*(x[old] for x in masked[1:]), strict=True):
                if used and first <= at < first + size:
                    targets[row, at - first + stop] = one
                    weights[row, at - first + stop] = 1.5 ** PAIRS.index((old, slot))
            stop += size
    # Every token has a slot; only targets have weights.
    at = np.broadcast_to(np.arange(L), shape)
    masked = Masked(inputs, at, np.where(weights > 0, targets, inputs), weights)
    return plan._replace(
        masked=masked, segments=segments, positions=positions, tokens=inputs,
        language=np.zeros(len(PAIRS), int),
    )  # fmt: skip


def whole_plan(objective, plan: masked_lm.Plan):
    if isinstance(objective, CrossMLM):
        return CrossPlan(plan, plan.segments)
    if isinstance(objective, ReplacedToken):
        is_text = ~np.isin(plan.masked.inputs, [one for one in SPECIAL if one != MASK])
        return replaced_token.Plan(plan, is_text, np.float32(3), None)
    return plan


@functools.partial(jax.jit, static_argnums=0)
def differentiated(objective, params, plan):
    def loss(params):
        found = objective.loss(params, {}, plan, None)[0]
        return found["loss"][0], found

    return jax.grad(loss, has_aux=True)(params)


class PackedTest(parameterized.TestCase):
    @parameterized.parameters(
        ("mlm", False), ("mlm", True), ("rtd", False), ("contrast",), ("veco", False),
        ("veco", True, "full"),
    )  # fmt: skip
    def test_each_pair_is_as_in_a_row_of_its_own_and_the_order_changes_nothing(self, *names):
        objective = objective_of(*names)
        one = objective if isinstance(objective, MaskedLM) else objective.masked_lm
        is_separate = names[0] in ("contrast", "veco")
        arrays = jax.tree.map(jnp.asarray, pairs_of(is_separate, one.positions_restart))
        plan = jax.device_get(jax.jit(one.plan)({}, Batch(arrays, "pairs"), KEY, jnp.int32(0))[0])
        self.assertGreater(plan.masked.weights.sum(), 10)
        same = [[pair for pair in PAIRS if pair[0] == row] for row in range(len(LENGTHS))]
        others = [[one] for one in PAIRS], [[PAIRS[i] for i in row] for row in ((3, 2), (4, 1, 0))]
        params = factories.random_params(objective)
        expected, *found = (
            jax.device_get(
                differentiated(objective, params, whole_plan(objective, arranged(plan, rows)))
            )
            for rows in (same, *others)
        )
        check = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
        for grads, metrics in found:
            jax.tree.map(check, grads, expected[0])
            for name, sums in expected[1].items():
                if not name.endswith(("padding", "candidates", "overflow")):
                    check(metrics[name], sums, err_msg=name)


class JointTest(parameterized.TestCase):
    @parameterized.parameters("mlm", "rtd")
    def test_the_loss_is_the_weighted_sum_of_the_means_of_each_task(self, name):
        objective, task = objective_of(name), np.array([0, 1, 0, 1])
        arrays = {key: np.repeat(one, 2, axis=0) for key, one in pairs_of(False, False).items()}
        text = factories.packed_tokens(num_valid=V)[:2]
        arrays["tokens"][::2] = np.pad(text, ((0, 0), (0, L - 16)), constant_values=PAD)
        arrays["segments"][::2] = arrays["positions"][::2] = 7  # which text has of its own
        arrays |= {"task": task, "language": np.array([0, -1, 1, -1])}
        batch, params = jax.tree.map(jnp.asarray, arrays), factories.random_params(objective)
        plan, _ = jax.jit(objective.plan)({}, Batch(batch, "joint"), KEY, jnp.int32(0))
        # Rows have the mask rates of their tasks.
        one = plan if name == "mlm" else plan.generator
        num_text = (~np.isin(arrays["tokens"], SPECIAL)).sum(axis=1)
        expected = np.round(np.where(task == 1, 0.5, 0.3) * num_text)
        np.testing.assert_array_equal(one.masked.weights.sum(axis=1), expected)
        layout = packed_segments(batch["tokens"], bos=BOS, pad=PAD, across_documents=False)
        for key, packed in zip(("segments", "positions"), layout, strict=True):
            expected = np.where(task[:, None] == 1, arrays[key], packed)
            np.testing.assert_array_equal(getattr(one, key), expected)
        parts, axes = [], objective.example_axes(plan, 1)
        for number in (0, 1):
            part = jax.tree.map(
                lambda axis, x, at=task == number: (
                    x if axis is None else jax.tree.map(lambda y: y[at], x)
                ), axes, plan, is_leaf=lambda x: x is None,
            )  # fmt: skip
            if name == "rtd":
                generator = part.generator._replace(task=None, factor=None)
                scale = 50 * generator.masked.weights.sum() / part.is_text.sum()
                part = part._replace(generator=generator, scale=scale)
            else:
                part = part._replace(task=None, factor=None)
            parts.append(jax.device_get(differentiated(objective, params, part)))
        grads, found = jax.device_get(differentiated(objective, params, plan))
        counts, names = [one["loss"][1] for _, one in parts], ("mrtd", "trtd")
        self.assertEqual(found["loss"][1], sum(counts))

        def check(whole, *of_parts):
            expected = of_parts[0] / counts[0] + 0.5 * of_parts[1] / counts[1]
            np.testing.assert_allclose(whole / sum(counts), expected, rtol=1e-4, atol=1e-5)

        jax.tree.map(check, grads, *(one for one, _ in parts))
        check(*(one["loss"][0] for one in (found, *(one for _, one in parts))))
        for of_task, (_, alone) in zip(names if name == "rtd" else ("mlm", "tlm"), parts,
                                       strict=True):  # fmt: skip
            there = {key.replace("mrtd", of_task): one for key, one in alone.items() if "/" in key}
            for key, sums in {**there, f"{of_task}_loss": alone["loss"]}.items():
                if of_task in key or of_task in ("mlm", "mrtd"):  # languages are of text only
                    np.testing.assert_allclose(found[key], sums, rtol=1e-5, err_msg=key)
