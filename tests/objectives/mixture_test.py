"""Mixtures: each batch goes to its term, and shared parts stay shared."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import factories
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Batch, Objective, means
from xlm.training.step import TrainFunctions


@dataclasses.dataclass(frozen=True, eq=False)
class Toward(Objective):
    """Moves a vector towards a target."""

    target: float
    parts: tuple[str, ...] = ()  # of the auxiliary state, changed by a refresh
    every: int = 1
    last_from: int = 0  # step from which the target is zero; 0 for never
    tables: tuple[str, ...] = ()

    def init(self, key):
        return {"vector": jnp.full(3, 1.0)}

    def plan(self, aux_state, batch, key, step):
        return (batch["weights"], aux_state.get("seen", jnp.float32(0))), {}

    def loss(self, params, rows, plan, key):
        weights, seen = plan
        total = ((params["vector"] - self.target) ** 2).sum() * weights.sum()
        return {"loss": (total, weights.sum()), "seen": (seen, 1.0)}, weights.sum()

    def learn(self, aux_state, observed):
        return {name: old + observed * (name == "seen") for name, old in aux_state.items()}

    def init_aux_state(self):
        return {name: jnp.float32(0) for name in self.parts}

    def due(self, step):
        return self.parts if step % self.every == 0 else ()

    def refresh(self, params, aux_state, names, step):
        renewed = {name: aux_state[name] + self.target for name in names}
        report = {f"{name}_renewed": (value, 1.0) for name, value in renewed.items()}
        return {**aux_state, **renewed}, report

    @functools.cached_property
    def _last(self) -> "Toward":
        return dataclasses.replace(self, target=0.0, last_from=0)

    def at_step(self, step):
        return self._last if self.last_from and step >= self.last_from else self


def batch(kind: str) -> Batch:
    return Batch({"weights": jnp.array([1.0, 3.0])}, kind)


def step_on(functions: TrainFunctions, kind: str, step: int = 0):
    state = functions.init(np.int32(0))
    return functions.train_step(functions.objective.at_step(step), state, batch(kind))


def mixture(a: float = 1.0) -> Mixture:
    """Terms "a" towards 3, with a weight, and "b" towards -1."""
    return Mixture({"a": Term(Toward(3.0), "of_a", a), "b": Term(Toward(-1.0), "of_b")})


class TermsTest(parameterized.TestCase):
    @parameterized.parameters("a", "b")
    def test_a_batch_is_of_the_term_of_its_kind(self, kind):
        whole = mixture()
        alone = whole.terms[kind].objective
        state, found = step_on(factories.train_functions(whole), kind)
        expected_state, expected = step_on(factories.train_functions(alone), kind)
        jax.tree.map(np.testing.assert_array_equal, state.params, expected_state.params)
        # Its loss has its own name; other metrics are those of the term.
        name = f"of_{kind}_loss"
        jax.tree.map(np.testing.assert_array_equal, found, {**expected, name: expected["loss"]})

    @parameterized.parameters(0.5, 0.0, 7.0)
    def test_a_weight_scales_the_loss_and_the_gradient_and_no_metric(self, weight):
        (_, plain), (_, found) = (
            step_on(factories.train_functions(mixture(a=one)), "a") for one in (1.0, weight)
        )
        for name in ("loss", "grad_norm"):
            np.testing.assert_allclose(found[name][0], weight * plain[name][0], rtol=1e-6)
            self.assertEqual(found[name][1], plain[name][1])
        self.assertGreater(plain["grad_norm"][0], 1)
        self.assertEqual(found["of_a_loss"], plain["of_a_loss"])

    def test_a_kind_without_a_term(self):
        message = "is of kind 'c', but the objective has terms for a, b only; set the shares"
        with self.assertRaisesRegex(ValueError, message):
            mixture().plan({}, batch("c"), jax.random.key(0), jnp.int32(0))

    def test_tables_are_those_of_all_terms(self):
        kinds = {"a": ("x", "y"), "b": ("y", "z")}
        terms = {k: Term(Toward(1.0, tables=tables), k) for k, tables in kinds.items()}
        self.assertEqual(Mixture(terms).tables, ("x", "y", "z"))


class MeansTest(absltest.TestCase):
    def test_each_metric_has_its_own_weight(self):
        found = means({"loss": (jnp.float32(6), 4.0), "overflow": (3.0, 1.0), "none": (0.0, 0.0)})
        self.assertEqual((found["loss"], found["overflow"]), (1.5, 3.0))
        self.assertTrue(math.isnan(found["none"]))


class AuxStateTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        # Both have "index" and "seen"; only the second has "other".
        first = Toward(3.0, ("index", "seen"), every=2)
        second = Toward(-1.0, ("index", "other", "seen"), every=3)
        self.mixture = Mixture({"a": Term(first, "a"), "b": Term(second, "b")})

    def test_a_shared_part_is_one_and_renewed_by_its_first_term(self):
        first = self.mixture.init_aux_state()
        self.assertCountEqual(first, ["index", "other", "seen"])
        due = [self.mixture.due(step) for step in range(4)]
        second = ("index", "other", "seen")
        self.assertEqual(due, [("index", "seen", "other"), (), ("index", "seen"), second])
        values = {"index": 3, "other": -1, "seen": 3}
        for names in (("index", "seen", "other"), ("index",), ("other",)):
            aux_state, report = self.mixture.refresh({}, first, names, jnp.int32(0))
            renewed = {name: values[name] for name in names}
            self.assertEqual(aux_state, {**first, **renewed})
            self.assertEqual(report, {f"{x}_renewed": (value, 1) for x, value in renewed.items()})

    def test_what_one_term_learns_the_other_one_sees(self):
        functions = factories.train_functions(self.mixture)
        state, seen = functions.init(np.int32(0)), []
        for kind in ("a", "b", "b", "a"):
            state, found = functions.train_step(self.mixture, state, batch(kind))
            seen.append(float(found["seen"][0]))
        self.assertEqual(seen, [0, 4, 8, 12])


class PhasesTest(absltest.TestCase):
    def test_each_phase_is_one_object(self):
        first, second = Toward(3.0, last_from=4), Toward(-1.0, last_from=6)
        whole = Mixture({"a": Term(first, "a", 2.0), "b": Term(second, "b")})
        phases = [whole.at_step(step) for step in range(9)]
        self.assertEqual([phases.index(one) for one in phases], [0] * 4 + [4] * 2 + [6] * 3)
        self.assertIs(phases[0], whole)
        for number, expected in ((4, (first._last, second)), (6, (first._last, second._last))):
            terms = phases[number].terms
            self.assertEqual((terms["a"].objective, terms["b"].objective), expected)
            self.assertEqual((terms["a"].weight, terms["b"].name), (2.0, "b"))
        # Phases have the losses of their terms.
        functions = factories.train_functions(whole)
        losses = [float(step_on(functions, "a", step)[1]["loss"][0]) for step in (0, 4)]
        self.assertEqual(losses, [2 * 3 * (1 - 3.0) ** 2 * 4, 2 * 3 * (1 - 0.0) ** 2 * 4])
