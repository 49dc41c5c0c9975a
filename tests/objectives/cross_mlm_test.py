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
from models.encoder import CROSS_ATTENTION, Context, Encoder, without_cross_attention
from models.segments import packed_segments
from objectives.batch import Batch
from objectives.cross_mlm import CrossMLM, Plan, VecoSettings
from objectives.masked_lm import MaskedLM
from objectives.mixture import Mixture, Term
from objectives.objective import gathered_rows
from objectives.translation_lm import TranslationLM
from tests import factories
from tests.factories import BOS, EOS, PAD
from training.sharding import MeshSettings, make_mesh

SETTINGS = VecoSettings(is_weight=1.0, cs_weight=1.0, tlm_weight=1.0, context="causal", flip=True)
KEY = jax.random.key(1)
NUM_VALID, L = 60, 16
# Of these rows a batch touches a part.
ENCODER = factories.encoder_settings(
    vocab_size=160, num_layers=2, dropout_rate=0.0, position="gated", cross_attention=True
)
KINDS = (PACKED, SEPARATE_PAIRS)


def cross_mlm(
    kind: str, layer: str = "full", restart: bool = False, changes=None, encoder=None, **settings
) -> CrossMLM:
    """Of a kind of batch, with changes of its masked LM, its encoder and its settings."""
    masked_lm = factories.masked_lm(
        factories.output_layer_settings(kind=layer, k=2, capacity=40, num_negatives=10),
        dataclasses.replace(ENCODER, **(encoder or {})),
        kind=MaskedLM if kind == PACKED else TranslationLM,
        num_valid=NUM_VALID,
        **(changes or {}),
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


def batch(kind: str) -> Batch:
    arrays = {"tokens": jnp.asarray(tokens()), "language": jnp.array([0, 1, 1, 0])}
    if kind == SEPARATE_PAIRS:
        segments, positions = packed_segments(
            arrays["tokens"], bos=BOS, pad=PAD, across_documents=False
        )
        arrays |= {"segments": segments, "positions": positions}
    return Batch(arrays, kind)


@functools.cache
def params():
    return jax.tree.map(jnp.asarray, factories.random_params(cross_mlm(PACKED), 0.3))


def copied(tree):
    """Arrays that a step may be given for good."""
    return jax.tree.map(jnp.copy, tree)


def planned(objective: CrossMLM, kind: str):
    extra = factories.first_extra(objective, params())
    return objective.plan(extra, batch(kind), KEY, jnp.int32(0))


def of_plan(objective: CrossMLM, plan: Plan, parameters=None, key=None):
    parameters = params() if parameters is None else parameters
    return jax.jit(objective.loss)(parameters, {}, plan, key)[0]


def sides_of(kind: str, row: np.ndarray) -> list[slice]:
    """Where the two sides of a sequence are."""
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
        objective = cross_mlm(
            kind, changes={"across_documents": across}, context=context, flip=flip
        )
        plan, _ = planned(objective, kind)
        found = of_plan(objective, plan)
        masked = jax.device_get(plan.masked_lm.masked)
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
        objective = cross_mlm(SEPARATE_PAIRS, restart=restart)
        plan, _ = planned(objective, SEPARATE_PAIRS)
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
        objective = cross_mlm(kind, tlm_weight=0.0)
        plan, _ = planned(objective, kind)
        found = of_plan(objective, plan)
        masked = plan.masked_lm.masked
        sides = np.take_along_axis(np.asarray(plan.sides), np.asarray(masked.positions), axis=1)
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
        objective = cross_mlm(kind, is_weight=0.5, cs_weight=2.0, tlm_weight=3.0)
        plan, _ = planned(objective, kind)
        found = of_plan(objective, plan)
        weights = {"is_loss": 0.5, "cs_loss": 2.0, "tlm_loss": 3.0}
        terms = {name: weight for name, weight in weights.items() if name in found}
        self.assertEqual(len(terms), 2 if kind == PACKED else 3)
        total = sum(weight * found[name][0] for name, weight in terms.items())
        np.testing.assert_allclose(found["loss"][0], total, rtol=1e-6)
        self.assertEqual(found["loss"][1], plan.masked_lm.masked.weights.sum())
        alone = of_plan(cross_mlm(kind, cs_weight=0.0, tlm_weight=0.0), plan)
        self.assertEqual(alone["loss"], alone["is_loss"])
        self.assertNoCommonElements(alone, ("cs_loss", "tlm_loss"))


class DependenceTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_cross_sequence_loss_sends_no_gradient_into_its_context(self, kind):
        objective = cross_mlm(kind, is_weight=0.0, tlm_weight=0.0)
        plan, _ = planned(objective, kind)
        states = jax.jit(objective.masked_lm.states)(params(), {}, plan.masked_lm, None)

        def of_constants(parameters):
            cross_plan = objective._cross_plan(plan)
            decoded = objective.decoded(parameters, {}, plan, states, None)
            return objective._losses(objective.masked_lm, parameters, {}, cross_plan, decoded).sum()

        found = jax.jit(jax.grad(lambda p: objective.loss(p, {}, plan, None)[0]["loss"][0]))(
            params()
        )
        expected = jax.jit(jax.grad(of_constants))(params())
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
                     found, expected)  # fmt: skip
        of_cross_attention = found["layers"]["cross_attention"]["value"]["kernel"]
        self.assertGreater(jnp.abs(of_cross_attention).max(), 1e-3)

    @parameterized.parameters(*KINDS)
    def test_swapping_the_sides_changes_nothing(self, kind):
        """Flipping the order of a pair is no other example, as both directions are trained."""
        objective = cross_mlm(kind, tlm_weight=0.0)  # of which the positions differ
        plan, _ = planned(objective, kind)
        plan = jax.tree.map(lambda x: x[3:], plan)  # a sequence of two equally long sides
        self.assertEqual(plan.sides.tolist(), [[1] * 8 + [2] * 8])

        def moved(x: jax.Array) -> jax.Array:
            return jnp.roll(x, L // 2, axis=1)

        found = plan.masked_lm
        masked = found.masked._replace(positions=(found.masked.positions + L // 2) % L)
        swapped = found._replace(
            masked=masked, segments=moved(found.segments), positions=moved(found.positions),
            tokens=moved(found.tokens),
        )  # fmt: skip
        expected = of_plan(objective, plan)
        result = of_plan(objective, Plan(swapped, 3 - moved(plan.sides)))
        for name in ("is_loss", "cs_loss", "loss"):
            np.testing.assert_allclose(result[name], expected[name], rtol=1e-5)

    def test_a_side_without_another_one_is_not_predicted_from_it(self):
        objective = cross_mlm(PACKED, changes={"across_documents": True})
        arrays = {"tokens": jnp.asarray(tokens()).at[0, 7:].set(PAD)}
        plan, _ = objective.plan({}, Batch(arrays, PACKED), KEY, jnp.int32(0))
        found = of_plan(objective, plan)
        masked = plan.masked_lm.masked.weights.sum(axis=1)
        self.assertEqual(found["is_loss"][1], masked.sum())
        self.assertEqual(found["cs_loss"][1], masked[1:].sum())
        others = of_plan(objective, jax.tree.map(lambda x: x[1:], plan))
        np.testing.assert_allclose(found["cs_loss"], others["cs_loss"], rtol=1e-5)

    def test_every_pass_has_dropout_and_a_key_of_its_own(self):
        objective = cross_mlm(SEPARATE_PAIRS, encoder={"dropout_rate": 0.3})
        plan, _ = planned(objective, SEPARATE_PAIRS)
        passes = []

        @jax.jit
        def keys(parameters):
            with mock.patch.object(Encoder, "apply", autospec=True, side_effect=Encoder.apply) as f:
                objective.loss(parameters, {}, plan, KEY)
            passes.extend(call.kwargs for call in f.call_args_list if call.kwargs.get("rngs"))
            return [jax.random.key_data(one["rngs"]["dropout"]) for one in passes]

        found = {np.asarray(key).tobytes() for key in keys(params())}
        self.assertEqual([one["method"] for one in passes], ["encode", "decode", "encode"])
        self.assertFalse(any(one["deterministic"] for one in passes))
        self.assertLen(found, 3)


class EngineTest(parameterized.TestCase):
    @parameterized.parameters(
        (PACKED, "knn"), (SEPARATE_PAIRS, "knn"), (PACKED, "target_sampling"), (PACKED, "nce"),
        (PACKED, "neg"),
    )  # fmt: skip
    def test_touched_rows_stand_for_the_table(self, kind, layer):
        objective = cross_mlm(kind, layer)
        plan, touched = planned(objective, kind)
        self.assertEqual(set(touched), set(objective.tables))
        whole = dataclasses.replace(objective.masked_lm, row_capacity=1000)
        reads_all, nothing = planned(dataclasses.replace(objective, masked_lm=whole), kind)
        self.assertEmpty(nothing)

        def gradient(plan, touched):
            def total(parameters):
                rows = gathered_rows(parameters, touched)
                found, _ = objective.loss(parameters, rows, plan, KEY)
                return found["loss"][0], found

            return jax.jit(jax.grad(total, has_aux=True))(params())

        found, expected = gradient(plan, touched), gradient(reads_all, {})
        check = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
        jax.tree.map(check, found, expected)

    def test_phases_and_the_index_are_those_of_masked_lm(self):
        objective = cross_mlm(SEPARATE_PAIRS, "knn", changes={"full_softmax_from": 6})
        one = objective.masked_lm
        self.assertIs(objective.at_step(5), objective)
        exact = objective.at_step(6)
        self.assertIs(exact, objective.at_step(9))
        self.assertIs(exact.masked_lm, one.exact)
        self.assertIs(exact.translation_lm.output_layer, one.exact_layer)
        self.assertEqual(objective.due(0), one.due(0))
        expected = factories.first_extra(one, params())
        jax.tree.map(
            np.testing.assert_array_equal, factories.first_extra(objective, params()), expected
        )

    def test_sharded_equals_single(self):
        """Cross-attention alone on text, then all on pairs; sampled and exact; a table by rows."""
        # Adam divides a gradient by its own size: where that is rounding, so are parameters.
        optimizer = factories.optimizer_settings(
            epsilon=1e-3, embedding_update="rows", stages=(("cross_attention", 1),)
        )
        layers = dict(zip(KINDS, ("knn", "full"), strict=True))

        def trained(axes: tuple[int, int, int]):
            settings = MeshSettings(
                *axes, vocab_multiple=1, rules=(("vocab", "model"), ("mlp", "model"))
            )
            mesh = make_mesh(settings, jax.devices()[: math.prod(axes)])
            changes = {"mesh": mesh, "mesh_settings": settings}
            terms = {
                kind: Term(cross_mlm(kind, layers[kind], changes=changes), kind) for kind in KINDS
            }
            functions = factories.train_functions(Mixture(terms), optimizer, mesh_settings=settings)
            state, losses = functions.init(np.int32(0)), []
            state, _ = functions.refresh(functions.objective.due(0), state)
            for step, kind in enumerate(KINDS):
                if step == functions.stage.end:
                    functions = functions.following
                    state = functions.begin(state)
                state, metrics = functions.train_step(functions.objective, state, batch(kind))
                losses.append({k: v[0] / v[1] for k, v in jax.device_get(metrics).items()})
            return losses, jax.device_get(state.params)

        expected, found = trained((1, 1, 1)), trained((2, 2, 2))
        self.assertIn("table_rows", expected[0][0])
        self.assertIn("tlm_loss", expected[0][1])
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected
        )

    def test_the_encoder_stays_while_cross_attention_alone_is_trained(self):
        optimizer = factories.optimizer_settings(
            weight_decay=0.1, embedding_update="rows", stages=(("cross_attention", 2),)
        )
        objective = cross_mlm(PACKED, "knn")
        functions = factories.train_functions(objective, optimizer)
        state = dataclasses.replace(functions.init(np.int32(0)), params=copied(params()))
        state, _ = functions.refresh(objective.due(0), state)
        for _ in range(2):
            state, _ = functions.train_step(objective, state, batch(PACKED))
        row = tokens()[0]
        expected = apply("encode", row, across=True)
        found = apply("encode", row, across=True, parameters=state.params)
        np.testing.assert_array_equal(found, expected)
        jax.tree.map(
            np.testing.assert_array_equal,
            without_cross_attention(state.params), without_cross_attention(params()),
        )  # fmt: skip
        for name in CROSS_ATTENTION:
            moved = jax.tree.map(
                lambda x, y: np.abs(x - y).max(),
                state.params["layers"][name],
                params()["layers"][name],
            )
            self.assertGreater(max(jax.tree.leaves(moved)), 0.01)


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"cs_weight": -1.0}, "veco.cs_weight is -1.0"),
        ({"is_weight": float("nan")}, "veco.is_weight is nan"),
        ({"context": "all"}, "veco.context is 'all', must be in .*causal"),
    )
    def test_what_cannot_be(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(SETTINGS, **changes)


if __name__ == "__main__":
    absltest.main()
