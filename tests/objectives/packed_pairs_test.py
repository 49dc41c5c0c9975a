"""Rows of several pairs: each pair as in a row of its own, in any order; text and pairs at once."""

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
# Tokens of both sentences, of the pairs of two rows.
LENGTHS = (((3, 4), (2, 2), (5, 3)), ((6, 7), (1, 3)))
PAIRS = [(row, slot) for row, pairs in enumerate(LENGTHS) for slot in range(len(pairs))]
ENCODER = factories.encoder_settings(
    vocab_size=64, dropout_rate=0.0, position="gated", max_length=L
)
FULL = factories.output_layer_settings(kind="full")


@functools.cache
def objective_of(name: str, restart: bool = False, context: str = "causal"):
    encoder = dataclasses.replace(ENCODER, cross_attention=name == "veco")
    scope = GENERATOR if name == "rtd" else ""
    one = factories.masked_lm(
        FULL, encoder, num_valid=V, scope=scope, positions_restart=restart, pair_weight=0.5,
        mask=MaskSettings(0.3, 0.8, 0.1, pair_rate=0.5), languages=("de", "fr"),
    )  # fmt: skip
    if name == "rtd":  # the likeliest replacements: a sample depends on the places of its slots
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
    """Lay the pairs of a plan out in other rows; the targets of each weigh otherwise."""
    most, is_separate = L // 2, int(plan.segments.max()) > 3
    shape = len(rows), L
    found = {name: np.zeros(shape, np.int32) for name in ("inputs", "segments", "positions")}
    found["inputs"][:] = PAD
    at, targets = np.zeros((len(rows), most), np.int32), np.zeros((len(rows), most), np.int32)
    weights = np.zeros((len(rows), most), np.float32)
    for row, pairs in enumerate(rows):
        stop, used = 0, []
        for new, (old, slot) in enumerate(pairs):
            first = sum(sum(one) + 4 for one in LENGTHS[old][:slot])
            source = np.arange(first, first + sum(LENGTHS[old][slot]) + 4)
            target = source - first + stop
            for name, array in (("inputs", plan.masked.inputs), ("positions", plan.positions)):
                found[name][row, target] = array[old, source]
            shift = (new - slot) * (2 if is_separate else 1)
            found["segments"][row, target] = plan.segments[old, source] + shift
            weight = 1.5 ** PAIRS.index((old, slot))
            masked = plan.masked.weights[old] > 0
            places = zip(plan.masked.positions[old], plan.masked.targets[old], masked, strict=True)
            used += [
                (place - first + stop, one, weight) for place, one, is_used in places
                if is_used and place in source
            ]  # fmt: skip
            stop = target[-1] + 1
        rest = [one for one in range(L) if one not in [place for place, *_ in used]]
        used += [(place, found["inputs"][row, place], 0) for place in rest]
        at[row], targets[row], weights[row] = zip(*used[:most], strict=True)
    masked = Masked(found["inputs"], at, targets, weights)
    return plan._replace(
        masked=masked, segments=found["segments"], positions=found["positions"],
        tokens=found["inputs"], language=np.zeros(len(rows), np.int32),
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
        objective, task = objective_of(name), np.array([0, 1, 0, 1], np.int32)
        text, pairs = factories.packed_tokens(num_valid=V), pairs_of(False, False)
        arrays = {one: np.repeat(array, 2, axis=0) for one, array in pairs.items()}
        arrays["tokens"][::2] = np.pad(text[:2], ((0, 0), (0, L - 16)), constant_values=PAD)
        arrays["segments"][::2] = arrays["positions"][::2] = 7  # which text has of its own
        arrays |= {"task": task, "language": np.array([0, -1, 1, -1], np.int32)}
        params, batch = factories.random_params(objective), jax.tree.map(jnp.asarray, arrays)
        plan, _ = jax.jit(objective.plan)({}, Batch(batch, "joint"), KEY, jnp.int32(0))
        grads, found = jax.device_get(differentiated(objective, params, plan))
        parts = []
        for number in (0, 1):
            rows = np.flatnonzero(task == number)
            axes = objective.example_axes(plan, 1)
            part = jax.tree.map(
                lambda axis, x, at=rows: x if axis is None else jax.tree.map(lambda y: y[at], x),
                axes, plan, is_leaf=lambda x: x is None,
            )  # fmt: skip
            alone = {"task": None, "factor": None}
            if name == "rtd":
                generator, text = part.generator._replace(**alone), part.is_text.sum()
                scale = objective.settings.weight * generator.masked.weights.sum() / text
                part = part._replace(generator=generator, scale=scale)
            else:
                part = part._replace(**alone)
            parts.append(jax.device_get(differentiated(objective, params, part)))
        means = [one[1]["loss"] for one in parts]
        expected = sum(
            weight * total / count for weight, (total, count) in zip((1, 0.5), means, strict=True)
        )
        np.testing.assert_allclose(found["loss"][0] / found["loss"][1], expected, rtol=1e-5)
        self.assertEqual(found["loss"][1], sum(count for _, count in means))

        def check(whole, one, two):
            mean = one / means[0][1] + 0.5 * two / means[1][1]
            np.testing.assert_allclose(whole / found["loss"][1], mean, rtol=1e-4, atol=1e-5)

        jax.tree.map(check, grads, *(one[0] for one in parts))
        for of_task, (_, alone) in zip(("mrtd", "trtd") if name == "rtd" else ("mlm", "tlm"), parts,
                                       strict=True):  # fmt: skip
            np.testing.assert_allclose(found[f"{of_task}_loss"], alone["loss"], rtol=1e-5)
            for metric in alone:
                if metric.startswith("mrtd/"):
                    there = found[metric.replace("mrtd", of_task)]
                    np.testing.assert_allclose(there, alone[metric], rtol=1e-5, err_msg=metric)
        for language in ("de", "fr"):  # of text alone
            np.testing.assert_allclose(
                found[f"loss/{language}"], parts[0][1][f"loss/{language}"], rtol=1e-5
            )

    def test_rows_have_the_rate_of_their_task(self):
        objective, task = objective_of("mlm"), jnp.array([0, 1, 1, 0])
        tokens = jnp.full((4, L), 9)
        batch = {"tokens": tokens, "segments": tokens, "positions": tokens, "task": task}
        batch["language"] = task
        plan, _ = jax.jit(objective.plan)({}, Batch(batch, "joint"), KEY, jnp.int32(0))
        np.testing.assert_array_equal(plan.masked.weights.sum(axis=1), [10, 16, 16, 10])
