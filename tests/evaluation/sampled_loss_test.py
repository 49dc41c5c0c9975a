"""Sampled against exact loss on held-out rows: equal if no class is left out."""

import collections
import dataclasses
import functools
import pathlib
import tempfile
import types
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.packed_dataset import PackedDataset
from knn_sampling.settings import OutputLayerSettings
from tests import factories
from tests.factories import SPECIAL_IDS as SPECIAL
from tests.input_pipeline.reading import pack_rows
from xlm.evaluation.batch_layout import spread_rows
from xlm.evaluation.sampled_loss import SampledLoss
from xlm.objectives.masked_lm import MaskedLM

VOCAB, PADDED, L = 60, 64, 16
LAYER = factories.output_layer_settings(k=2, capacity=40, num_negatives=10, group_size=2)
WHOLE = dataclasses.replace(LAYER, k=VOCAB, capacity=PADDED, log_q_correction=True)


@functools.cache  # equal objectives share compiled programs
def objective_with(
    layer: OutputLayerSettings, dropout_rate: float = 0.5, kind: type[MaskedLM] = MaskedLM
) -> MaskedLM:
    """Objective with dropout, which evaluation must not apply."""
    encoder = factories.encoder_settings(vocab_size=PADDED, num_layers=0, dropout_rate=dropout_rate)
    return factories.masked_lm(layer, encoder, kind=kind, num_valid=VOCAB, languages=("aa", "bb"))


@functools.cache
def params():
    return factories.random_params(objective_with(LAYER), 0.5)


@functools.cache
def small_dataset() -> PackedDataset:
    """Held-out rows of two languages, and a language without rows."""
    folder = tempfile.TemporaryDirectory()
    small_dataset.folder = folder  # removed when the process ends
    for place, (language, count) in enumerate({"aa": 9, "bb": 4, "none": 0}.items()):
        rng = np.random.default_rng(place)
        documents = [rng.integers(5, VOCAB, rng.integers(6, 20)) for _ in range(count)]
        rows = pack_rows(documents, L, SPECIAL, np.dtype(np.uint16))
        np.save(pathlib.Path(folder.name) / f"{language}.heldout.npy", rows)
    languages = {"aa": {}, "bb": {}, "none": {}}
    return PackedDataset(pathlib.Path(folder.name), VOCAB, L, "", SPECIAL, languages, {})


class Compiled:
    """Programs and state that evaluators of an objective share."""

    def __init__(self, objective: MaskedLM):
        self._objective = objective
        self._losses = None

    @functools.cached_property
    def aux_state(self):
        """The auxiliary state at the first step."""
        aux_state = functools.partial(factories.first_aux_state, self._objective)
        return jax.device_get(jax.jit(aux_state)(params()))

    def evaluator(self, rows: PackedDataset, **changes) -> SampledLoss:
        settings = {"batch_size": 4, "max_sequences": 0, "seed": 0, **changes}
        found = SampledLoss(self._objective, rows, **settings)
        # The program depends on the objective only; rows, seed and step are arguments.
        self._losses = found._losses = self._losses or found._losses
        return found


compiled_of: dict[int, Compiled] = {}


def compiled(objective: MaskedLM) -> Compiled:
    """Look up by identity, since objectives have arrays; a reference keeps the id unique."""
    return compiled_of.setdefault(id(objective), Compiled(objective))


def evaluate(
    objective: MaskedLM,
    rows: PackedDataset,
    step: int = 0,
    aux_state_of: MaskedLM | None = None,
    **changes,
) -> dict[str, float]:
    aux_state = compiled(aux_state_of or objective).aux_state
    state = types.SimpleNamespace(params=params(), aux_state=aux_state, step=np.int32(step))
    return dict(compiled(objective).evaluator(rows, **changes)(state))


class Watching(MaskedLM):
    """Records the rows, and computes nothing else."""

    seen: ClassVar[list[np.ndarray]] = []

    def loss(self, params, rows, plan, key):
        masked = plan.masked
        at = jnp.arange(len(masked.inputs))[:, None], masked.positions
        tokens = masked.inputs.at[at].set(masked.targets)
        jax.debug.callback(lambda rows: self.seen.append(np.asarray(rows)), tokens)
        pair = masked.weights.sum(), jnp.float32(1)
        return {"loss": pair, "candidates": pair, "overflow": pair}, None


@functools.cache
def values_of(layer: OutputLayerSettings) -> dict[str, float]:
    return evaluate(objective_with(layer), small_dataset())


class SampledLossTest(parameterized.TestCase):
    def test_equal_where_every_token_is_a_candidate(self):
        values = values_of(WHOLE)
        found, exact = values["sampling/sampled_loss"], values["sampling/exact_loss"]
        self.assertAlmostEqual(found, exact, delta=1e-5 * exact)
        self.assertEqual(values["sampling/overflow"], 0)

    @parameterized.parameters("knn", "target_sampling")
    def test_fewer_candidates_understate_the_loss(self, kind: str):
        values = values_of(dataclasses.replace(LAYER, kind=kind))
        self.assertLess(values["sampling/sampled_loss"], 0.95 * values["sampling/exact_loss"])
        self.assertBetween(values["sampling/candidates"], 2, 40)
        exact = values_of(WHOLE)["sampling/exact_loss"]  # the same rows, masks and model
        self.assertAlmostEqual(values["sampling/exact_loss"], exact, delta=1e-5 * exact)

    def test_overflow_is_told(self):
        small, large = values_of(dataclasses.replace(LAYER, capacity=10)), values_of(LAYER)
        self.assertEqual(large["sampling/overflow"], 0)
        self.assertEqual(small["sampling/candidates"], large["sampling/candidates"])
        # Every group has more than 10 candidates.
        self.assertAlmostEqual(small["sampling/overflow"], small["sampling/candidates"] - 10)
        self.assertGreater(small["sampling/overflow"], 1)

    @parameterized.parameters("full", "blockwise")
    def test_nothing_where_nothing_is_sampled(self, kind: str):
        self.assertEqual(values_of(dataclasses.replace(LAYER, kind=kind)), {})
        none = dataclasses.replace(small_dataset(), statistics={"none": {}})  # held out
        self.assertEqual(evaluate(objective_with(LAYER), none), {})

    def test_there_is_no_dropout(self):
        without = evaluate(objective_with(LAYER, dropout_rate=0.0), small_dataset())
        self.assertEqual(without, values_of(LAYER))

    def test_statistics_and_mask_rate_are_those_of_the_step(self):
        layer = dataclasses.replace(LAYER, kind="target_sampling", log_q_correction=True)
        first = objective_with(layer)
        skewed = first.statistics.probabilities * jnp.arange(1, PADDED + 1)
        later = first.statistics._replace(probabilities=skewed / skewed.sum())
        both = dataclasses.replace(first, later_statistics=((5, later),))
        before, after = (evaluate(both, small_dataset(), step=step) for step in (4, 5))
        self.assertEqual(before, evaluate(first, small_dataset()))
        always = dataclasses.replace(first, statistics=later)
        self.assertEqual(after, evaluate(always, small_dataset(), aux_state_of=first))
        self.assertNotEqual(before["sampling/sampled_loss"], after["sampling/sampled_loss"])
        mask = dataclasses.replace(first.mask, rate=0.5, final_rate=0.125)
        long, short = (dataclasses.replace(first, mask=mask, num_steps=n) for n in (8, 4))
        last = evaluate(long, small_dataset(), step=7)
        self.assertEqual(last, evaluate(short, small_dataset(), step=3))
        self.assertNotEqual(last, evaluate(long, small_dataset(), step=3))

    def test_batches_and_masks_are_those_of_the_seed(self):
        one, other = (
            compiled(objective_with(LAYER)).evaluator(small_dataset(), seed=n) for n in (0, 1)
        )
        self.assertTrue((one._batches != other._batches).any())
        alike = self.one_row(4)  # in any order
        one, other = (evaluate(objective_with(LAYER), alike, seed=n) for n in (0, 1))
        self.assertNotEqual(one["sampling/exact_loss"], other["sampling/exact_loss"])

    @parameterized.parameters((3, 8), (11, 8), (19, 16))
    def test_batches_are_full_whatever_the_number_of_rows(self, count: int, used: int):
        layer = dataclasses.replace(LAYER, kind="target_sampling", group_size=0)
        objective = objective_with(layer)
        found = (evaluate(objective, self.one_row(n), batch_size=8) for n in (count, used))
        self.assertEqual(*found)

    def one_row(self, times: int) -> PackedDataset:
        """Equal rows of one language."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        row = small_dataset().rows("aa", "heldout")[:1]
        np.save(folder / "aa.heldout.npy", np.repeat(row, times, axis=0))
        return dataclasses.replace(small_dataset(), folder=folder, statistics={"aa": {}})

    @parameterized.parameters((0, 4), (2, 4), (1, 4), (0, 32))
    def test_the_rows_are_all_or_some_of_each_language(self, max_sequences: int, batch_size: int):
        seen = Watching.seen
        seen.clear()
        layer = dataclasses.replace(LAYER, kind="target_sampling")
        objective = objective_with(layer, kind=Watching)
        changes = {"max_sequences": max_sequences, "batch_size": batch_size}
        values = evaluate(objective, small_dataset(), **changes)
        jax.effects_barrier()
        found = collections.Counter(tuple(row) for batch in seen for row in batch.tolist())
        expected = {
            tuple(row)
            for language in ("aa", "bb")
            for row in spread_rows(
                small_dataset().rows(language, "heldout"), max_sequences
            ).tolist()
        }
        # Once sampled, once exact, in batches like those of training, without a partial one.
        num_batches = max(len(expected) // batch_size, 1)
        self.assertLen(seen, 2 * num_batches)
        self.assertContainsSubset(found, expected)
        self.assertLen(found, min(len(expected), num_batches * batch_size))
        # Repeated rows occur equally often, or once more.
        self.assertLessEqual(max(found.values()) - min(found.values()), 2)
        self.assertEqual(values["sampling/sampled_loss"], values["sampling/exact_loss"])
        self.assertGreater(values["sampling/exact_loss"], 0)


class SpreadRowsTest(parameterized.TestCase):
    @parameterized.parameters((10, 0), (10, 10), (3, 5))
    def test_all_of_them(self, num_rows: int, max_sequences: int):
        rows = np.arange(2 * num_rows).reshape(num_rows, 2)
        np.testing.assert_array_equal(spread_rows(rows, max_sequences), rows)

    @parameterized.parameters((10, 4), (10, 9), (100, 7), (5, 1))
    def test_some_from_every_part(self, num_rows: int, max_sequences: int):
        found = spread_rows(np.arange(num_rows)[:, None], max_sequences)[:, 0]
        self.assertLen(found, max_sequences)
        steps = np.diff([*found, num_rows])
        self.assertLessEqual(steps.max() - steps.min(), 1)
        self.assertEqual(found[0], 0)
