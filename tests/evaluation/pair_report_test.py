"""The report of re-weighted pairs and of losses beyond languages, on synthetic records."""

import itertools

import numpy as np
from absl.testing import absltest

from input_pipeline.pair_phases import PairRecord, Phase
from tests import golden
from xlm.evaluation.pair_report import (
    excess_losses,
    extremes,
    mean_losses,
    ranked_pairs,
    write_pair_report,
)

LANGUAGES = {"-".join(pair): pair for pair in itertools.combinations("abcdef", 2)}


def record(ratios: np.ndarray, losses: list[float | None] | None = None) -> PairRecord:
    """Record with phases of the given ratios [phases, pairs], up to a factor."""
    names = [f"news p{i:02}-q" for i in range(ratios.shape[1])]
    base = np.linspace(1, 2, len(names))
    base /= base.sum()

    def named(values) -> dict:
        return dict(zip(names, list(values), strict=True))

    phases = []
    for number, row in enumerate(ratios):
        weights = base * row / (base @ row)
        of_pairs = row.tolist() if losses is None else losses
        phases.append(Phase(100 * (number + 1), named(weights), named(of_pairs), 0.05, None))
    return PairRecord(named(base), tuple(phases))


def examples(pair: str, number: int) -> list[tuple[str, str]]:
    """Text that would break a table and that identifies the pair."""
    return [(f"a | b\n`{pair}` {i}", "שלום" if i else "word " * 100) for i in range(number)]


class RankingTest(absltest.TestCase):
    def test_pairs_that_cannot_be_drawn_are_left_out(self):
        base = {"a": 0.5, "b": 0.5, "c": 0.0}
        phase = Phase(1, {"a": 0.6, "b": 0.4, "c": 0.0}, dict.fromkeys(base, 1.0), 0.02, 0.5)
        found = ranked_pairs(PairRecord(base, (phase,)))
        self.assertEqual([one["pair"] for one in found], ["a", "b"])
        with self.assertRaisesRegex(ValueError, "robust.num_phases"):
            ranked_pairs(PairRecord({"a": 1.0}))

    def test_ties_go_by_mean_then_loss_then_name(self):
        # Pairs 0 to 3 have no weight at the end. 0 had some before, and 3 was not seen.
        ratios = np.array([[1.0, 0, 0, 0, 2, 2], [0, 0, 0, 0, 1, 1]])
        found = ranked_pairs(record(ratios, [0.5, 2.0, 1.0, None, 7.0, 7.0]))
        self.assertEqual([int(one["pair"][6:8]) for one in found], [4, 5, 0, 1, 2, 3])

    def test_no_pair_is_at_both_ends(self):
        up, down = extremes(ranked_pairs(record(np.array([[3.0, 1, 1, 1, 0.5]]))), 4)
        self.assertEmpty({one["pair"] for one in up} & {one["pair"] for one in down})
        self.assertEqual([len(up), len(down)], [1, 4])
        unchanged = ranked_pairs(record(np.ones((2, 1))))
        self.assertEqual(extremes(unchanged), ([], []))

    def test_equal_ratios_are_ties_in_spite_of_rounding(self):
        base = dict(zip("abcd", (0.3, 0.3, 0.2, 0.2), strict=True))
        weights = {"a": 0.3, "b": 0.3, "c": 0.2 * (1 + 4e-16), "d": 0.2 * (1 - 4e-16)}
        losses = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}
        found = ranked_pairs(PairRecord(base, (Phase(1, weights, losses, 0.0, None),)))
        self.assertEqual([one["pair"] for one in found], ["b", "d", "c", "a"])
        self.assertEqual(extremes(found), ([], []))


class ExcessTest(absltest.TestCase):
    def test_it_is_the_error_of_a_fit_to_all_others(self):
        losses = dict(zip(LANGUAGES, np.random.default_rng(0).normal(size=15), strict=True))
        found = excess_losses(losses, LANGUAGES)
        for name, pair in LANGUAGES.items():
            others = [other for other in LANGUAGES if other != name]
            design = np.array([[one in LANGUAGES[other] for one in "abcdef"] for other in others])
            fitted = np.linalg.lstsq(design.astype(float), [losses[x] for x in others], rcond=None)
            expected = sum(fitted[0]["abcdef".index(one)] for one in pair)
            self.assertAlmostEqual(found[name], losses[name] - expected)

    def test_pairs_that_no_others_tell(self):
        # f has one partner; a, b and c have as many pairs as languages.
        pairs = {"a-b": ("a", "b"), "a-c": ("a", "c"), "b-c": ("b", "c"), "a-f": ("a", "f")}
        found = excess_losses(dict(zip(pairs, (1.0, 2.0, 9.0, 4.0), strict=True)), pairs)
        self.assertEqual(found, dict.fromkeys(sorted(pairs)))
        self.assertEqual(excess_losses({}, {}), {})


class MeanTest(absltest.TestCase):
    def test_the_second_half_without_the_fall_of_all(self):
        base = {"a": 0.5, "b": 0.25, "c": 0.25}
        of_phases = [(90.0, 0.0, None), (7.0, 5.0, None), (5.0, 1.0, 3.0), (4.0, 0.0, None)]
        phases = [
            Phase(step, base, dict(zip(base, losses, strict=True)), 0.0, None)
            for step, losses in enumerate(of_phases)
        ]
        found = mean_losses(PairRecord(base, tuple(phases)))
        self.assertEqual(found, {"a": 2.0, "b": -2.0, "c": 0.0})
        self.assertEqual(mean_losses(PairRecord(base, tuple(phases[:2]))), {"a": 1.0, "b": -1.0})
        with self.assertRaisesRegex(ValueError, "robust.num_phases"):
            mean_losses(PairRecord({"a": 1.0}))


class ReportTest(absltest.TestCase):
    def check(self, name: str, one: PairRecord, examples_of=examples, number: int = 10) -> None:
        # The first six are the pairs of four languages. Each other pair has its own language.
        of_four = list(itertools.combinations("abcd", 2))
        languages = {
            name: of_four[i] if i < 6 else ("a", name) for i, name in enumerate(sorted(one.base))
        }
        golden.check_report(
            self, __file__, name,
            lambda folder: write_pair_report(one, languages, examples_of, folder, number),
        )  # fmt: skip

    def test_pairs_with_weights(self):
        ratios = np.random.default_rng(0).uniform(0.2, 3.0, (4, 12))
        self.check("pair_report", record(ratios), number=4)

    def test_without_reweighting_pairs_are_those_of_highest_and_lowest_loss(self):
        self.check("pair_report_losses", record(np.ones((2, 6)), [3.0, None, 1.0, 4.0, 2.0, 5.0]))

    def test_one_end_or_none(self):
        self.check("pair_report_one", record(np.ones((1, 1))))
        one = record(np.array([[1.0, 1, 0]]), [1.0, 1.0, None])
        self.check("pair_report_unseen", one, lambda *_: [])
