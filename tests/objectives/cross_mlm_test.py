"""VECO's objective: against each side alone, where gradients go, and what may not matter."""

import dataclasses
import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.bitext import SEPARATE_PAIRS
from input_pipeline.stream import PACKED
from tests import factories
from tests.factories import BOS, EOS, PAD
from xlm.models.encoder import (
    CROSS_ATTENTION,
    Context,
    Encoder,
    EncoderSettings,
    without_cross_attention,
)
from xlm.models.segments import packed_segments
from xlm.objectives.cross_mlm import CrossMLM, Plan
from xlm.objectives.masked_lm import MaskedLM, TranslationLM
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Batch, gathered_rows, means
from xlm.objectives.settings import VecoSettings
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh

SETTINGS = VecoSettings(is_weight=0.5, cs_weight=2.0, tlm_weight=3.0, context="causal", flip=True)
KEY = jax.random.key(1)
NUM_VALID, L = 60, 16
# Of these rows a batch touches a part.
ENCODER = factories.encoder_settings(
    vocab_size=160, num_layers=1, dropout_rate=0.0, position="gated", cross_attention=True
)
NO_LAYERS = dataclasses.replace(ENCODER, num_layers=0)
KINDS = (PACKED, SEPARATE_PAIRS)


def tearDownModule():
    trained.cache_clear()  # or its programs would stay loaded


@functools.cache
def cross_mlm(
    kind: str,
    layer: str = "full",
    restart: bool = False,
    encoder: EncoderSettings = ENCODER,
    changes: tuple[tuple[str, object], ...] = (),
    **settings,
) -> CrossMLM:
    """Of a kind of batch, with changes of its masked LM and its settings."""
    masked_lm = factories.masked_lm(
        factories.output_layer_settings(kind=layer, k=2, capacity=40, num_negatives=10),
        encoder,
        kind=MaskedLM if kind == PACKED else TranslationLM,
        num_valid=NUM_VALID,
        **dict(changes),
    )
    settings = dataclasses.replace(SETTINGS, **settings)
    if kind == PACKED:
        return CrossMLM(masked_lm, settings)
    return CrossMLM(masked_lm, settings, dataclasses.replace(masked_lm, positions_restart=restart))


def tokens() -> np.ndarray:
    """[4, L] sequences of two documents each, the second one longer than half in the first."""
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
    """Plan of the batch for the full softmax, which settings do not change."""
    objective = cross_mlm(kind, changes=(("across_documents", across),))
    return jax.device_get(_planned(objective, batch(kind)))


@functools.partial(jax.jit, static_argnums=0)
def _loss(objective: CrossMLM, parameters, plan: Plan):
    return objective.loss(parameters, {}, plan, None)[0]


def of_plan(objective: CrossMLM, plan: Plan):
    """Loss and metrics of a plan, which says what the tokens see."""
    return jax.device_get(_loss(objective, params(), plan))


def sides_of(kind: str, row: np.ndarray) -> list[slice]:
    """Places of the two sides of a sequence."""
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


def apply(
    method: str, inputs: np.ndarray, *context: Context, across: bool, parameters=None, **is_causal
) -> jax.Array:
    """States [1, L, D] of a sequence alone, filled up to one length for all.

    What it is filled up with is a segment of its own.
    """
    size = len(inputs)
    inputs = np.pad(inputs, (0, L - size), constant_values=PAD)[None]
    segments, positions = _packed_segments(inputs, across)
    layout = np.where(np.arange(L) < size, segments, -1), positions
    parameters = params() if parameters is None else parameters
    return _apply(parameters, inputs, layout, *(context or [None]), method, **is_causal)


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
    """Of tokens by their position, given states [1, L, D]."""
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
            targets = {
                int(position): int(target)
                for position, target, weight in zip(
                    masked.positions[row], masked.targets[row], masked.weights[row], strict=True
                )
                if weight
            }
            sides = sides_of(kind, inputs)
            own = [
                {at - side.start: target for at, target in targets.items()
                 if side.start <= at < side.stop}
                for side in sides
            ]  # fmt: skip
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
    def test_each_term_of_eq_8_is_a_metric(self, kind):
        """The side that is predicted: targets of the other side add nothing to it."""
        objective, plan = cross_mlm(kind), planned(kind)
        found = of_plan(objective, plan)
        masked = plan.masked_lm.masked
        sides = np.take_along_axis(plan.sides, masked.positions, axis=1)
        for side, letter in ((1, "x"), (2, "y")):
            of_side = masked._replace(weights=masked.weights * (sides == side))
            alone = of_plan(
                objective, plan._replace(masked_lm=plan.masked_lm._replace(masked=of_side))
            )
            for name in ("is_loss", "cs_loss"):
                self.assertGreater(alone[name][1], 0)
                np.testing.assert_allclose(found[f"{name}/{letter}"], alone[name], rtol=1e-5)

    @parameterized.parameters(*KINDS)
    def test_the_loss_is_the_weighted_sum(self, kind):
        plan = planned(kind)
        found = of_plan(cross_mlm(kind), plan)
        weights = {"is_loss": 0.5, "cs_loss": 2.0, "tlm_loss": 3.0}
        terms = {name: weight for name, weight in weights.items() if name in found}
        self.assertEqual(len(terms), 2 if kind == PACKED else 3)
        total = sum(weight * found[name][0] for name, weight in terms.items())
        np.testing.assert_allclose(found["loss"][0], total, rtol=1e-6)
        self.assertEqual(found["loss"][1], plan.masked_lm.masked.weights.sum())
        alone = of_plan(cross_mlm(kind, is_weight=1.0, cs_weight=0.0, tlm_weight=0.0), plan)
        self.assertEqual(alone["loss"], alone["is_loss"])
        self.assertNoCommonElements(alone, ("cs_loss", "tlm_loss"))


class DependenceTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_cross_sequence_loss_sends_no_gradient_into_its_context(self, kind):
        objective = cross_mlm(kind, is_weight=0.0, cs_weight=1.0, tlm_weight=0.0)
        one, plan = objective.masked_lm, planned(kind)

        @jax.jit
        def gradients(parameters, moved):
            def loss(parameters, moved):
                """Of states that are moved, which is what a gradient into them would tell."""
                states = one.states(parameters, {}, plan.masked_lm, None) + moved
                with mock.patch.object(type(one), "states", return_value=states):
                    return objective.loss(parameters, {}, plan, None)[0]["loss"][0]

            return jax.value_and_grad(loss, (0, 1))(parameters, moved)

        moved = np.random.default_rng(0).normal(size=(2, 4, L, 16)).astype(np.float32)
        (loss, (found, into_context)), (other, _) = (
            jax.device_get(gradients(params(), one)) for one in moved
        )
        self.assertGreater(abs(loss - other), 1e-2)
        np.testing.assert_array_equal(into_context, 0)
        of_cross_attention = found["layers"]["cross_attention"]["value"]["kernel"]
        self.assertGreater(np.abs(of_cross_attention).max(), 1e-3)

    @parameterized.parameters(*KINDS)
    def test_swapping_the_sides_changes_nothing(self, kind):
        """Flipping the order of a pair is no other example, as both directions are trained."""
        objective = cross_mlm(kind)
        # A sequence of two equally long sides, in every row.
        plan = jax.tree.map(lambda x: np.repeat(x[3:], len(x), axis=0), planned(kind))
        self.assertEqual(plan.sides.tolist(), [[1] * 8 + [2] * 8] * 4)

        def moved(x: np.ndarray) -> np.ndarray:
            return np.roll(x, L // 2, axis=1)

        found = plan.masked_lm
        masked = found.masked._replace(positions=(found.masked.positions + L // 2) % L)
        swapped = found._replace(
            masked=masked, segments=moved(found.segments), positions=moved(found.positions),
            tokens=moved(found.tokens),
        )  # fmt: skip
        expected = of_plan(objective, plan)
        result = of_plan(objective, Plan(swapped, 3 - moved(plan.sides)))
        for name in ("is_loss", "cs_loss"):
            np.testing.assert_allclose(result[name], expected[name], rtol=1e-5)
        # Of TLM the positions differ.
        losses = [found["loss"][0] - 3 * found.get("tlm_loss", (0,))[0]
                  for found in (result, expected)]  # fmt: skip
        np.testing.assert_allclose(*losses, rtol=1e-5)
        self.assertEqual(result["loss"][1], expected["loss"][1])

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
        others = masked._replace(weights=masked.weights * (np.arange(4) > 0)[:, None])
        others = plan._replace(masked_lm=plan.masked_lm._replace(masked=others))
        expected = of_plan(cross_mlm(PACKED), others)["cs_loss"]
        np.testing.assert_allclose(found["cs_loss"], expected, rtol=1e-5)

    def test_every_pass_has_dropout_and_a_key_of_its_own(self):
        encoder = dataclasses.replace(NO_LAYERS, dropout_rate=0.3)
        objective, plan = cross_mlm(SEPARATE_PAIRS, encoder=encoder), planned(SEPARATE_PAIRS)
        passes = []

        @jax.jit
        def keys(parameters):
            with mock.patch.object(Encoder, "apply", autospec=True, side_effect=Encoder.apply) as f:
                objective.loss(parameters, {}, plan, KEY)
            passes.extend(call.kwargs for call in f.call_args_list if call.kwargs.get("rngs"))
            return [jax.random.key_data(one["rngs"]["dropout"]) for one in passes]

        found = {np.asarray(key).tobytes() for key in keys(params(encoder))}
        self.assertEqual([one["method"] for one in passes], ["encode", "decode", "encode"])
        self.assertFalse(any(one["deterministic"] for one in passes))
        self.assertLen(found, 3)


@functools.partial(jax.jit, static_argnums=0)
def differentiated(objectives: tuple[CrossMLM, ...], parameters, batch: Batch):
    """Gradients and metrics of a step of each objective, and the rows that it touches."""

    def of_step(objective: CrossMLM):
        extra = factories.first_extra(objective, parameters)
        plan, touched = objective.plan(extra, batch, KEY, jnp.int32(0))

        def total(parameters):
            found, _ = objective.loss(parameters, gathered_rows(parameters, touched), plan, KEY)
            return found["loss"][0], found

        return jax.grad(total, has_aux=True)(parameters), touched

    return [of_step(one) for one in objectives]


@functools.cache
def trained(axes: tuple[int, int, int]):
    """Means of the metrics of each step, parameters after the first stage and at the end.

    Cross-attention alone on text, then all on pairs; sampled and exact; a table by rows.
    """
    # Adam divides a gradient by its own size: where that is rounding, so are parameters.
    optimizer = factories.optimizer_settings(
        epsilon=1e-4, weight_decay=0.1, embedding_update="rows", stages=(("cross_attention", 2),)
    )
    settings = MeshSettings(*axes, vocab_multiple=1, rules=(("vocab", "model"), ("mlp", "model")))
    mesh = make_mesh(settings, jax.devices()[: math.prod(axes)])
    changes = (("mesh", mesh), ("mesh_settings", settings))
    terms = {
        kind: Term(cross_mlm(kind, layer, changes=changes), kind)
        for kind, layer in zip(KINDS, ("knn", "full"), strict=True)
    }
    functions = factories.train_functions(Mixture(terms), optimizer, mesh_settings=settings)
    state, found = factories.first_state(functions, params()), []
    state, _ = functions.refresh(functions.objective.due(0), state)
    for step, kind in enumerate((PACKED, PACKED, SEPARATE_PAIRS)):
        if step == functions.stage.end:
            after_first_stage = jax.device_get(state.params)
            functions = functions.following
            state = functions.begin(state)
        state, metrics = functions.train_step(functions.objective, state, batch(kind))
        found.append(means(jax.device_get(metrics)))
    return found, after_first_stage, jax.device_get(state.params)


class EngineTest(parameterized.TestCase):
    @parameterized.parameters(
        (PACKED, "knn"), (SEPARATE_PAIRS, "knn"), (PACKED, "target_sampling"), (PACKED, "nce"),
        (PACKED, "neg"),
    )  # fmt: skip
    def test_touched_rows_stand_for_the_table(self, kind, layer):
        """No layers: rows are read in the embeddings of all passes and behind the head."""
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

    def test_phases_and_the_index_are_those_of_masked_lm(self):
        objective = cross_mlm(SEPARATE_PAIRS, "knn", changes=(("full_softmax_from", 6),))
        one = objective.masked_lm
        self.assertIs(objective.at_step(5), objective)
        exact = objective.at_step(6)
        self.assertIs(exact, objective.at_step(9))
        self.assertIs(exact.masked_lm, one.exact)
        self.assertIs(exact.translation_lm.output_layer, one.exact_layer)
        self.assertEqual(objective.due(0), one.due(0))
        first = jax.jit(lambda values: [factories.first_extra(x, values) for x in (objective, one)])
        jax.tree.map(np.testing.assert_array_equal, *first(params()))

    def test_the_encoder_stays_while_cross_attention_alone_is_trained(self):
        _, found, _ = trained((1, 1, 1))
        row = tokens()[0]
        np.testing.assert_array_equal(
            apply("encode", row, across=True, parameters=found), apply("encode", row, across=True)
        )
        jax.tree.map(
            np.testing.assert_array_equal,
            without_cross_attention(found), without_cross_attention(params()),
        )  # fmt: skip
        for name in CROSS_ATTENTION:
            moved = jax.tree.map(
                lambda x, y: np.abs(x - y).max(), found["layers"][name], params()["layers"][name]
            )
            self.assertGreater(max(jax.tree.leaves(moved)), 0.01)


if __name__ == "__main__":
    absltest.main()
