"""Phases solved from losses: moving averages, best response and record together; their stream."""

import dataclasses
import re

import numpy as np
from absl.testing import parameterized

from input_pipeline.bitext import PAIRS, language_pairs
from input_pipeline.pair_phases import PairRecord, Phase, load_pair_record, write_pair_record
from tests import folders
from tests.training import program_test
from xlm.experiment import model, robust, streams
from xlm.experiment.robust import baseline_losses, with_next_phase
from xlm.objectives.best_response import best_response
from xlm.objectives.settings import RobustSettings

NAMES = ("b x-y", "a x-y", "c x-y", "a x-z")
BASE = dict(zip(NAMES, (0.4, 0.3, 0.2, 0.1), strict=True))
SETTINGS = RobustSettings(rho=0.1, rate=0.1, min_ratio=0.0)  # the plain form


def named(values) -> dict[str, float]:
    return dict(zip(NAMES, (float(value) for value in values), strict=True))


class PhasesTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "pair_weights.json"

    def test_weights_go_to_the_pairs_of_the_losses(self):
        losses = (1.0, 3.0, 2.0, np.nan)
        found = with_next_phase(PairRecord(BASE), 7, named(losses), SETTINGS).phases[0]
        expected = best_response(losses, list(BASE.values()), 0.1)
        self.assertEqual(found.step, 7)
        for pair, weight in named(expected.weights).items():
            self.assertAlmostEqual(found.weights[pair], weight, places=14)
        self.assertAlmostEqual(found.divergence, 0.1, places=12)
        self.assertAlmostEqual(found.eta, expected.eta, places=9)
        self.assertEqual(found.losses, {**named(losses), "a x-z": None})
        # The order of the names does not matter.
        losses = named((1.0, 3.0, 2.0, 2.5))
        one = with_next_phase(PairRecord(BASE), 7, losses, SETTINGS)
        other = PairRecord(dict(sorted(BASE.items())))
        self.assertEqual(with_next_phase(other, 7, dict(sorted(losses.items())), SETTINGS), one)
        with self.assertRaisesRegex(ValueError, r"different pairs: \['d x-y'\]"):
            with_next_phase(PairRecord(BASE), 7, {**losses, "d x-y": 1.0}, SETTINGS)

    def test_settings_are_used(self):
        losses = named((1.0, 3.0, 2.0, 2.5))
        bounded = RobustSettings(rho=100.0, min_ratio=0.2)
        found = with_next_phase(PairRecord(BASE), 7, losses, bounded).phases[0]
        self.assertAlmostEqual(found.weights["b x-y"], 0.2 * BASE["b x-y"])
        unchanged = with_next_phase(PairRecord(BASE), 7, losses, RobustSettings(rho=0.0)).phases[0]
        self.assertEqual((unchanged.divergence, unchanged.eta), (0.0, None))
        for pair, weight in BASE.items():
            self.assertAlmostEqual(unchanged.weights[pair], weight, places=15)

    def test_a_few_examples_do_not_move_a_pair(self):
        losses, examples = named((5.0, 3.0, 2.9, 0.1)), named((900.0, 900.0, 900.0, 1.0))
        errors = named((0.1, 0.1, 0.1, 3.0))
        one, two = (
            with_next_phase(
                PairRecord(BASE), 7, losses,
                dataclasses.replace(SETTINGS, rho=0.5, shrink=shrink), None, errors, examples,
            ).phases[0]
            for shrink in (False, True)
        )  # fmt: skip
        rare = NAMES[-1]
        self.assertEqual(one.weights[rare], 0.0)
        self.assertGreater(two.weights[rare], 0.2 * BASE[rare])
        self.assertEqual((two.losses, two.errors, two.examples), (losses, errors, examples))
        write_pair_record(self.path, PairRecord(BASE, (two,)))
        self.assertEqual(load_pair_record(self.path).phases, (two,))
        self.assertEqual(RobustSettings().min_ratio, 0.2)

    def test_baseline_of_another_run(self):
        losses = named((1.0, 3.0, 2.0, np.nan))
        before = with_next_phase(PairRecord(BASE), 7, losses, RobustSettings(rho=0.0))
        write_pair_record(self.path, before)
        baseline = baseline_losses(self.path)
        self.assertEqual(baseline, {"b x-y": 1.0, "a x-y": 3.0, "c x-y": 2.0})
        # The excess over it is 1, 0 and 0.5; the last pair has none.
        later = named((2.0, 3.0, 2.5, 9.0))
        found = with_next_phase(PairRecord(BASE), 9, later, SETTINGS, baseline).phases[0]
        expected = best_response([1.0, 0.0, 0.5, np.nan], list(BASE.values()), 0.1)
        for pair, weight in named(expected.weights).items():
            self.assertAlmostEqual(found.weights[pair], weight, places=14)
        self.assertEqual(found.losses, later)
        write_pair_record(self.path, PairRecord(BASE))
        with self.assertRaisesRegex(ValueError, "robust.baseline: .* has no phases"):
            baseline_losses(self.path)


class DatasetCase(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.dataset = program_test.write_dataset(self.folder, ("aa", "bb", "cc"))
        self.config = program_test.config("rows")
        self.config.data.pair_share = 0.4


class RecordTest(DatasetCase):
    def setUp(self):
        super().setUp()
        self.config.objective, self.config.robust.num_phases = "replaced_token", 2
        self.config.data.pair_sampling = "sinkhorn"

    @parameterized.parameters(
        (3, (), [2]), (4, (5,), [2]), (6, (), [2, 5]), (6, (2,), [5]), (7, (5,), [2])
    )
    def test_a_run_does_not_go_on_without_a_phase_that_it_has_used(self, step, kept, missing):
        folder, dataset, config = self.folder, self.dataset, self.config

        def resumed(kept: tuple[int, ...]) -> None:
            """Go on from a checkpoint of `step` with the phases of these steps on record."""
            new = robust.training_data(config, dataset, model.mesh(config), folder / "none")
            base = new.record.base
            unseen = dict.fromkeys(base)
            phases = tuple(Phase(first, base, unseen, 0.0, None) for first in kept)
            if kept:
                write_pair_record(folder / robust.RECORD, PairRecord(base, phases))
            data = robust.training_data(config, dataset, model.mesh(config), folder)
            data.renew(step, self.fail)  # nothing is learned from this state

        message = rf"{robust.RECORD} has no phases of steps {re.escape(str(missing))}, .*; restore"
        with self.assertRaisesRegex(ValueError, message):
            resumed(kept)
        resumed((2, 5))

    def test_a_baseline_of_other_pairs(self):
        folder, dataset, config = self.folder, self.dataset, self.config
        config.robust.baseline = str(folder / "theirs.json")
        one, two, three = pairs = ["aa-bb", "aa-cc", "bb-cc"]

        def started(*seen: str) -> None:
            """Start a run with a baseline of these pairs."""
            base = dict.fromkeys((*pairs, "xx-yy"), 0.25)
            losses = {pair: 1.0 if pair in seen else None for pair in base}
            write_pair_record(
                folder / "theirs.json", PairRecord(base, (Phase(5, base, losses, 0.0, None),))
            )
            robust.training_data(config, dataset, model.mesh(config), folder / "mine")

        for count, seen in enumerate(((), ("xx-yy",), (two,), (two, "xx-yy"))):
            message = (
                f"robust.baseline: .*theirs.json has losses of {count // 2} of the 3 language "
                rf"pairs of this run \(aa-bb, .*\), but of {', '.join(seen) or 'none'}; at least 2"
            )
            with self.assertRaisesRegex(ValueError, message):
                started(*seen)
        with self.assert_told(r"no losses of 1 of 3 language pairs \(aa-cc\), which keep"):
            started(one, three, "xx-yy")
        with self.assertNoLogs(level="WARNING"):
            started(*pairs)


class StreamTest(DatasetCase):
    def test_pairs_follow_the_phases_and_text_goes_on_as_without_them(self):
        dataset, config = self.dataset, self.config
        pairs = language_pairs(dataset)
        weights = {
            first: {pair: float(pair == pairs[only]) for pair in pairs}
            for first, only in ((0, 2), (20, 0), (40, 1))  # one pair a phase
        }
        phased, plain = (
            streams.training_data(config, dataset, model.mesh(config), one).batches(range(60))
            for one in (weights, None)
        )
        seen = set()
        for step, (one, other) in enumerate(zip(phased, plain, strict=True)):
            (kind, found), (of_plain, expected) = one, other
            self.assertEqual(kind, of_plain)
            if kind == PAIRS:
                seen.add((step // 20, *found["pair"].tolist()))
            else:
                np.testing.assert_array_equal(found["tokens"], expected["tokens"])
        size = config.train.batch_size
        self.assertEqual(seen, {(0, *[2] * size), (1, *[0] * size), (2, *[1] * size)})
