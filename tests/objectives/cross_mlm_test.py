"""VECO's objective: against single sides, paths of gradients, and invariances."""

import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.bitext import SEPARATE_PAIRS
from input_pipeline.stream import PACKED
from tests import factories
from tests.factories import BOS, EOS, PAD
from xlm.models import attention, flash_attention
from xlm.models.encoder import (
    CROSS_ATTENTION,
    Context,
    Encoder,
    EncoderSettings,
    without_cross_attention,
)
from xlm.models.segments import packed_segments
from xlm.objectives.cross_mlm import CrossMLM, Plan
from xlm.objectives.objective import Batch, gathered_rows
from xlm.objectives.settings import VecoSettings
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh

SETTINGS = VecoSettings(is_weight=0.5, cs_weight=2.0, tlm_weight=3.0, context="causal", flip=True)
KEY = jax.random.key(1)
NUM_VALID, L = 60, 16
# A batch touches some of these rows.
ENCODER = factories.encoder_settings(
    vocab_size=160, num_layers=1, dropout_rate=0.0, position="gated", cross_attention=True
)
NO_LAYERS = dataclasses.replace(ENCODER, num_layers=0)
KINDS = (PACKED, SEPARATE_PAIRS)


@functools.cache
def cross_mlm(
    kind: str, layer: str = "full", restart: bool = False, encoder: EncoderSettings = ENCODER,
    changes: tuple[tuple[str, object], ...] = (), **settings,
) -> CrossMLM:  # fmt: skip
    """Objective for a kind of batch, with changes of its masked LM and its settings."""
    masked_lm = factories.masked_lm(
        factories.output_layer_settings(kind=layer, k=2, capacity=40, num_negatives=10),
        encoder,
        num_valid=NUM_VALID,
        **dict(changes),
    )
    settings = dataclasses.replace(SETTINGS, **settings)
    if kind == PACKED:
        return CrossMLM(masked_lm, settings)
    return CrossMLM(masked_lm, settings, dataclasses.replace(masked_lm, positions_restart=restart))


def tokens() -> np.ndarray:
    """Sequences [4, L] of two documents; in the first the second is longer than half."""
    found = np.random.default_rng(0).integers(5, NUM_VALID, (4, L)).astype(np.int32)
    for row, (first, end) in zip(found, ((6, 16), (11, 14), (3, 12), (8, 16)), strict=True):
        row[[0, first]], row[[first - 1, end - 1]], row[end:] = BOS, EOS, PAD
    return found


@functools.cache
def batch(kind: str) -> Batch:
    arrays = {"tokens": tokens(), "language": np.array([0, 1, 1, 0])}
    if kind == SEPARATE_PAIRS:
        segments, positions = _packed_segments(tokens(), False)
        arrays |= {"segments": segments, "positions": positions}
    return Batch(jax.tree.map(jnp.asarray, arrays), kind)


@functools.cache
def params(encoder: EncoderSettings = ENCODER):
    return factories.random_params(cross_mlm(PACKED, encoder=encoder), 0.3)


@functools.partial(jax.jit, static_argnums=0)
def _planned(objective: CrossMLM, batch: Batch) -> Plan:
    return objective.plan({}, batch, KEY, jnp.int32(0))[0]


@functools.cache
def planned(kind: str, across: bool = False) -> Plan:
    """Plan of the batch for the full softmax, the same for all settings."""
    objective = cross_mlm(kind, changes=(("across_documents", across),))
    return jax.device_get(_planned(objective, batch(kind)))


def with_targets(plan: Plan, condition: np.ndarray) -> Plan:
    masked = plan.masked_lm.masked
    masked = masked._replace(weights=masked.weights * condition)
    return plan._replace(masked_lm=plan.masked_lm._replace(masked=masked))


@functools.partial(jax.jit, static_argnums=0)
def _loss(objective: CrossMLM, parameters, plan: Plan):
    return objective.loss(parameters, {}, plan, None)[0]


def of_plan(objective: CrossMLM, plan: Plan):
    return jax.device_get(_loss(objective, params(), plan))


def sides_of(kind: str, row: np.ndarray) -> list[slice]:
    end = int((row != PAD).sum())
    middle = L // 2 if kind == PACKED else int(np.flatnonzero(row == BOS)[1])
    return [slice(0, middle), slice(middle, end)]


@functools.partial(jax.jit, static_argnames=("method", "is_causal"))
def _apply(parameters, inputs, layout, context, method, **is_causal):
    contexts = () if context is None else (context,)
    return Encoder(ENCODER).apply(
        {"params": parameters}, inputs, *layout, *contexts, deterministic=True, method=method,
        **is_causal,
    )  # fmt: skip


def apply(method: str, inputs: np.ndarray, *context: Context, across: bool, **is_causal):
    """States [1, L, D] of a single sequence, padded to a common length.

    Padding is a segment of its own.
    """
    size = len(inputs)
    inputs = np.pad(inputs, (0, L - size), constant_values=PAD)[None]
    segments, positions = _packed_segments(inputs, across)
    layout = np.where(np.arange(L) < size, segments, -1), positions
    return _apply(params(), inputs, layout, *(context or [None]), method, **is_causal)


@functools.partial(jax.jit, static_argnums=1)
def _packed_segments(inputs, across: bool):
    return packed_segments(inputs, bos=BOS, pad=PAD, across_documents=across)


@jax.jit
def _hidden(parameters, states):
    """Hidden states [L, E] of all positions for the output layer, its table and bias."""
    masked_lm = cross_mlm(PACKED).masked_lm
    everywhere = jnp.arange(L)[None]
    hidden = masked_lm.predicted(parameters, states, everywhere)[0]
    return hidden, *masked_lm.output_table(parameters)


def log_likelihood(states: jax.Array, targets: dict[int, int]) -> float:
    """Losses of tokens by position, given states [1, L, D]."""
    if not targets:
        return 0.0
    hidden, table, bias = (np.asarray(x, np.float64) for x in _hidden(params(), states))
    logits = hidden[list(targets)] @ table[:NUM_VALID].T + bias[:NUM_VALID]
    found = logits[np.arange(len(targets)), list(targets.values())]
    return float((found - np.log(np.exp(logits).sum(axis=1))).sum())


class ReferenceTest(parameterized.TestCase):
    @parameterized.parameters(
        (PACKED, "causal", True, False),
        (PACKED, "full", False, True),
        (SEPARATE_PAIRS, "causal", True, False),
        (SEPARATE_PAIRS, "full", True, False),
    )
    def test_each_side_alone_gives_the_same(self, kind, context, flip, across):
        plan = planned(kind, across)
        found = of_plan(cross_mlm(kind, context=context, flip=flip), plan)
        masked = plan.masked_lm.masked
        inner, cross, count = 0.0, 0.0, 0
        for row, inputs in enumerate(masked.inputs):
            is_used = masked.weights[row] > 0
            used = (x[row][is_used] for x in (masked.positions, masked.targets))
            targets = dict(zip(*used, strict=True))
            sides = sides_of(kind, inputs)
            own = [
                {at - side.start: targets[at] for at in targets if side.start <= at < side.stop}
                for side in sides
            ]
            states = [apply("encode", inputs[side], across=across) for side in sides]
            for y, x in ((0, 1), (1, 0)):
                inner -= log_likelihood(states[y], own[y])
                if y == 0 and not flip:
                    continue
                sees_all = np.arange(L) < sides[x].stop - sides[x].start
                decoded = apply(
                    "decode", inputs[sides[y]], Context(states[x], sees_all[None, None, None]),
                    across=across, is_causal=context == "causal",
                )  # fmt: skip
                cross -= log_likelihood(decoded, own[y])
                count += len(own[y])
        np.testing.assert_allclose(found["is_loss"][0], inner, rtol=1e-5)
        np.testing.assert_allclose(found["cs_loss"], (cross, count), rtol=1e-5)

    @parameterized.parameters(True, False)
    def test_tlm_is_that_of_batches_of_pairs(self, restart):
        objective = cross_mlm(SEPARATE_PAIRS, **({"restart": True} if restart else {}))
        plan = planned(SEPARATE_PAIRS)
        found = of_plan(objective, plan)
        joined, index = np.array(plan.masked_lm.masked.inputs), np.arange(L)
        positions = np.broadcast_to(index, joined.shape).copy()
        for row, line in enumerate(joined):
            second = np.flatnonzero(line == BOS)[1]
            line[second] = EOS
            positions[row, second:] -= second if restart else 0
        masked = plan.masked_lm.masked._replace(inputs=joined)
        alike = plan.masked_lm._replace(
            masked=masked, tokens=joined, segments=(joined != PAD).astype(np.int32),
            positions=positions,
        )  # fmt: skip
        expected = jax.jit(objective.translation_lm.loss)(params(), {}, alike, None)[0]["loss"]
        np.testing.assert_allclose(found["tlm_loss"], expected, rtol=1e-5)

    @parameterized.parameters(*KINDS)
    def test_the_loss_is_the_weighted_sum_of_the_terms_of_eq_8(self, kind):
        plan = planned(kind)
        found = of_plan(cross_mlm(kind), plan)
        weights = {"is_loss": 0.5, "cs_loss": 2.0, "tlm_loss": 3.0}
        terms = {name: weight for name, weight in weights.items() if name in found}
        self.assertEqual(len(terms), 2 if kind == PACKED else 3)
        total = sum(weight * found[name][0] for name, weight in terms.items())
        np.testing.assert_allclose(found["loss"][0], total, rtol=1e-6)
        masked = plan.masked_lm.masked
        self.assertEqual(found["loss"][1], masked.weights.sum())
        alone = of_plan(cross_mlm(kind, is_weight=1.0, cs_weight=0.0, tlm_weight=0.0), plan)
        self.assertEqual(alone["loss"], alone["is_loss"])
        self.assertNoCommonElements(alone, ("cs_loss", "tlm_loss"))
        # The metric is of the predicted side: targets of the other side add nothing.
        sides = np.take_along_axis(plan.sides, masked.positions, axis=1)
        for side, letter in ((1, "x"), (2, "y")):
            alone = of_plan(cross_mlm(kind), with_targets(plan, sides == side))
            for name in ("is_loss", "cs_loss"):
                self.assertGreater(alone[name][1], 0)
                np.testing.assert_allclose(found[f"{name}/{letter}"], alone[name], rtol=1e-5)


class DependenceTest(parameterized.TestCase):
    def test_cross_sequence_loss_sends_no_gradient_into_its_context(self):
        objective = cross_mlm(SEPARATE_PAIRS, is_weight=0.0, cs_weight=1.0, tlm_weight=0.0)
        one, plan = objective.masked_lm, planned(SEPARATE_PAIRS)

        @jax.jit
        @functools.partial(jax.value_and_grad, argnums=(0, 1))
        def gradients(parameters, moved):
            """Loss with moved states: a gradient into them would change it."""
            states = one.states(parameters, {}, plan.masked_lm, None) + moved
            with mock.patch.object(type(one), "states", return_value=states):
                return objective.loss(parameters, {}, plan, None)[0]["loss"][0]

        moved = np.random.default_rng(0).normal(size=(2, 4, L, 16)).astype(np.float32)
        (loss, (found, into_context)), (other, _) = (gradients(params(), one) for one in moved)
        self.assertGreater(abs(loss - other), 1e-2)
        np.testing.assert_array_equal(into_context, 0)
        of_cross_attention = found["layers"]["cross_attention"]["value"]["kernel"]
        self.assertGreater(np.abs(of_cross_attention).max(), 1e-3)

    def test_a_side_without_another_one_is_not_predicted_from_it(self):
        first_half = tokens()
        first_half[0, 7:] = PAD
        with_both = cross_mlm(PACKED, changes=(("across_documents", True),))
        plan = jax.device_get(_planned(with_both, Batch({"tokens": first_half}, PACKED)))
        found = of_plan(cross_mlm(PACKED), plan)
        masked = plan.masked_lm.masked
        self.assertEqual(found["is_loss"][1], masked.weights.sum())
        self.assertGreater(masked.weights[0].sum(), 0)
        self.assertEqual(found["cs_loss"][1], masked.weights[1:].sum())
        others = with_targets(plan, (np.arange(4) > 0)[:, None])
        expected = of_plan(cross_mlm(PACKED), others)["cs_loss"]
        np.testing.assert_allclose(found["cs_loss"], expected, rtol=1e-5)

    def test_every_pass_has_dropout_and_a_key_of_its_own(self):
        encoder = dataclasses.replace(NO_LAYERS, dropout_rate=0.3)
        objective, plan = cross_mlm(SEPARATE_PAIRS, encoder=encoder), planned(SEPARATE_PAIRS)

        @jax.jit
        def keys(parameters):
            with mock.patch.object(Encoder, "apply", autospec=True, side_effect=Encoder.apply) as f:
                objective.loss(parameters, {}, plan, KEY)
            passes = [call.kwargs for call in f.call_args_list if call.kwargs.get("rngs")]
            self.assertFalse(any(one["deterministic"] for one in passes))
            return [jax.random.key_data(one["rngs"]["dropout"]) for one in passes]

        self.assertLen({np.asarray(key).tobytes() for key in keys(params(encoder))}, 3)


@functools.partial(jax.jit, static_argnums=0)
def differentiated(objectives: tuple[CrossMLM, ...], parameters, batch: Batch):
    """Gradients, metrics and touched rows of a step of each objective."""

    def of_step(objective: CrossMLM):
        aux_state = factories.first_aux_state(objective, parameters)
        plan, touched = objective.plan(aux_state, batch, KEY, jnp.int32(0))

        def total(parameters):
            found, _ = objective.loss(parameters, gathered_rows(parameters, touched), plan, KEY)
            return found["loss"][0], found

        return jax.grad(total, has_aux=True)(parameters), touched

    return [of_step(one) for one in objectives]


class KernelTest(parameterized.TestCase):
    """The kernel of GPUs, interpreted, in blocks of 8 tokens."""

    def gradients(self, kind: str, attention_: str, rate: float, *axes: int):
        changes = {"attention": attention_, "attention_dropout_rate": rate}
        objective = cross_mlm(kind, encoder=dataclasses.replace(ENCODER, **changes))
        key = KEY if rate else None

        def loss(parameters, plan):
            return objective.loss(parameters, {}, plan, key)[0]["loss"][0]

        devices = jax.devices()[: math.prod(axes)]
        mesh = make_mesh(MeshSettings(*axes, vocab_multiple=1, rules=()), devices)
        function = functools.partial(flash_attention.flash_attention, interpret=True)
        with (
            jax.set_mesh(mesh),
            mock.patch.object(flash_attention, "_BLOCK", 8),
            mock.patch.object(attention, "flash_attention", side_effect=function) as called,
        ):
            plan = jax.device_put(planned(kind), batch_sharding(mesh))
            found = jax.device_get(jax.jit(jax.value_and_grad(loss))(params(), plan))
        uses = {(one.kwargs["is_causal"], one.args[7] is None) for one in called.call_args_list}
        return found, uses

    @parameterized.parameters(
        (PACKED, 0.0, (1, 1, 1), (2, 1, 1)), (SEPARATE_PAIRS, 0.0, (1, 1, 1)),
        (SEPARATE_PAIRS, 0.3, (2, 1, 1), (1, 2, 2)),
    )  # fmt: skip
    def test_steps_are_those_of_plain_attention_on_any_mesh(self, kind, rate, *meshes):
        # Only the kernel has its own dropout.
        expected, _ = self.gradients(kind, "flash" if rate else "xla", rate, 1, 1, 1)
        largest = max(np.abs(x).max() for x in jax.tree.leaves(expected[1]))
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5 * largest)
        for axes in meshes:
            found, uses = self.gradients(kind, "flash", rate, *axes)
            # Self-attention of the encoder and of the decoder have a bias, that to a context none.
            self.assertEqual(uses, {(False, False), (True, False), (False, True)})
            jax.tree.map(check, found, expected)


class EngineTest(parameterized.TestCase):
    @parameterized.parameters((PACKED, "knn"), (SEPARATE_PAIRS, "knn"), (PACKED, "nce"))
    def test_touched_rows_stand_for_the_table(self, kind, layer):
        """No layers: only the embeddings of all passes and the head read rows."""
        objective = cross_mlm(kind, layer, encoder=NO_LAYERS)
        whole = dataclasses.replace(objective.masked_lm, row_capacity=1000)
        reads_all = dataclasses.replace(objective, masked_lm=whole)
        (found, touched), (expected, nothing) = jax.device_get(
            differentiated((objective, reads_all), params(NO_LAYERS), batch(kind))
        )
        self.assertEqual(set(touched), set(objective.tables))
        self.assertEmpty(nothing)
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        jax.tree.map(check, found, expected)

    def test_the_encoder_stays_while_cross_attention_alone_is_trained(self):
        optimizer = factories.optimizer_settings(
            weight_decay=0.1, embedding_update="rows", stages=(("cross_attention", 2),)
        )
        functions = factories.train_functions(cross_mlm(PACKED, "knn"), optimizer)
        state = factories.first_state(functions, params())
        state, _ = functions.refresh(functions.objective.due(0), state)
        for _ in range(2):
            state, _ = functions.train_step(functions.objective, state, batch(PACKED))
        found = jax.device_get(state.params)
        others = map(without_cross_attention, (found, params()))
        jax.tree.map(np.testing.assert_array_equal, *others)
        for name in CROSS_ATTENTION:
            moved = jax.tree.map(
                lambda x, y: np.abs(x - y).max(), found["layers"][name], params()["layers"][name]
            )
            self.assertGreater(max(jax.tree.leaves(moved)), 0.01)
