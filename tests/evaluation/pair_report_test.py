"""The report of up- and down-weighted pairs, on made-up records."""

import itertools
import pathlib
import re
import tempfile

import numpy as np
from absl.testing import absltest

from input_pipeline.pair_phases import PairRecord, Phase
from xlm.common import artifacts
from xlm.evaluation.pair_report import ends_by_loss, extremes, ranked_pairs, write_pair_report


def record(ratios: np.ndarray, losses: list[float | None] | None = None) -> PairRecord:
    """A record with phases of the given ratios, up to a factor, [phases, pairs]."""
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
    """Text that would break a table, and in which the pair can be recognised."""
    return [(f"a | b\n`{pair}` {i}", "שלום" if i else "word " * 100) for i in range(number)]


class RankingTest(absltest.TestCase):
    def test_order_is_that_of_the_last_ratio(self):
        rng = np.random.default_rng(0)
        for _ in range(5):
            ratios = rng.uniform(0.2, 3.0, (4, 30))
            found = ranked_pairs(record(ratios))
            order = np.argsort(-ratios[-1])
            self.assertEqual([one.pair for one in found], [f"news p{i:02}-q" for i in order])
            up, down = extremes(found)
            self.assertEqual(up, found[:10])
            self.assertEqual(down, found[:-11:-1])

    def test_ratios_average_to_one_under_the_base(self):
        found = ranked_pairs(record(np.random.default_rng(1).uniform(0, 3, (3, 12))))
        for name in ("ratio", "mean_ratio"):
            self.assertAlmostEqual(sum(one.base * getattr(one, name) for one in found), 1)

    def test_mean_is_over_all_phases(self):
        ratios = np.random.default_rng(2).uniform(0, 3, (3, 8))
        phases = [ranked_pairs(record(row[None, :])) for row in ratios]
        for one in ranked_pairs(record(ratios)):
            own = [next(x.ratio for x in phase if x.pair == one.pair) for phase in phases]
            self.assertAlmostEqual(one.mean_ratio, np.mean(own))

    def test_ties_go_by_mean_then_loss_then_name(self):
        # Pairs 0 to 3 have no weight at the end; 0 had some before, and 3 was not seen.
        ratios = np.array([[1.0, 0, 0, 0, 2, 2], [0, 0, 0, 0, 1, 1]])
        found = ranked_pairs(record(ratios, [0.5, 2.0, 1.0, None, 7.0, 7.0]))
        self.assertEqual([int(one.pair[6:8]) for one in found], [4, 5, 0, 1, 2, 3])

    def test_no_pair_is_at_both_ends(self):
        up, down = extremes(ranked_pairs(record(np.array([[3.0, 1, 1, 1, 0.5]]))), 4)
        self.assertEmpty({one.pair for one in up} & {one.pair for one in down})
        self.assertEqual([len(up), len(down)], [1, 4])
        unchanged = ranked_pairs(record(np.ones((2, 1))))
        self.assertEqual(extremes(unchanged), ([], []))

    def test_equal_ratios_are_ties_in_spite_of_rounding(self):
        base = dict(zip("abcd", (0.3, 0.3, 0.2, 0.2), strict=True))
        weights = {"a": 0.3, "b": 0.3, "c": 0.2 * (1 + 4e-16), "d": 0.2 * (1 - 4e-16)}
        losses = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}
        found = ranked_pairs(PairRecord(base, (Phase(1, weights, losses, 0.0, None),)))
        self.assertEqual([one.pair for one in found], ["b", "d", "c", "a"])
        self.assertEqual(extremes(found), ([], []))

    def test_pairs_that_cannot_be_drawn_are_left_out(self):
        base = {"a": 0.5, "b": 0.5, "c": 0.0}
        phase = Phase(1, {"a": 0.6, "b": 0.4, "c": 0.0}, dict.fromkeys(base, 1.0), 0.02, 0.5)
        found = ranked_pairs(PairRecord(base, (phase,)))
        self.assertEqual([one.pair for one in found], ["a", "b"])

    def test_no_phases(self):
        with self.assertRaisesRegex(ValueError, "robust.num_phases"):
            ranked_pairs(PairRecord({"a": 1.0}))


class ReportTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "pairs"

    def report(self, one: PairRecord, examples_of=examples) -> str:
        # The first six are the pairs of four languages, each other has a language of its own.
        of_four = list(itertools.combinations("abcd", 2))
        languages = {
            name: of_four[i] if i < 6 else ("a", name) for i, name in enumerate(sorted(one.base))
        }
        return write_pair_report(one, languages, examples_of, self.folder)

    def test_report(self):
        one = record(np.random.default_rng(0).uniform(0.2, 3.0, (4, 30)))
        text = self.report(one)
        self.assertEqual(text, (self.folder / "report.md").read_text())
        ranked = ranked_pairs(one)
        lines = text.splitlines()
        by_weight, by_excess = text.split("## Beyond their languages")
        first = re.compile(r"^\| (news \S+) ", re.M)
        shown = first.findall(by_weight)
        ends = [*ranked[:10], *ranked[:-11:-1]]
        self.assertEqual(shown, [end.pair for end in ends])
        self.assertIn(f"| {ends[0].pair} | {ends[0].ratio:.3f} | {ends[0].mean_ratio:.3f}", text)
        # A line each, with two cells, and the text of a pair below its own title.
        for end in ends:
            start = lines.index(f"### {end.pair}, ratio {end.ratio:.3f}")
            table = lines[start + 4 : start + 7]
            for i, line in enumerate(table):
                self.assertIn(rf"a \| b \`{end.pair}\` {i}", line)
                self.assertEqual(line.replace(r"\|", "").count("|"), 3)
            self.assertIn("…", table[0])
            self.assertIn("\u2068שלום\u2069", table[1])
        results = artifacts.read_json(self.folder / "pair_weights.json")
        self.assertEqual([one["pair"] for one in results["pairs"]], [x.pair for x in ranked])
        self.assertEqual(results["up"] + results["down"], shown)
        known = {pair: value for pair, value in results["excess"].items() if value is not None}
        self.assertCountEqual(known, [f"news p{i:02}-q" for i in range(6)])
        self.assertEqual(first.findall(by_excess), sorted(known, key=lambda pair: -known[pair]))
        self.assertEqual(set(results["examples"]), {*shown, *known})
        self.assertGreater((self.folder / "pair_weights.png").stat().st_size, 10_000)
        self.assertLen(list(self.folder.iterdir()), 3)

    def test_without_reweighting_pairs_are_those_of_highest_and_lowest_loss(self):
        losses = [3.0, None, 1.0, 4.0, 2.0, 5.0]
        one = record(np.ones((2, 6)), losses)
        high, low = ends_by_loss(ranked_pairs(one), 2)
        self.assertEqual([x.loss for x in (*high, *low)], [5.0, 4.0, 1.0, 2.0])
        high, low = ends_by_loss(ranked_pairs(one))
        self.assertEqual([x.loss for x in (*high, *low)], [5.0, 4.0, 3.0, 1.0, 2.0])
        text = self.report(one)
        titles = [line for line in text.splitlines() if line.startswith("#")][:3]
        self.assertEqual(titles, ["# Pairs by their loss", "## Highest loss", "## Lowest loss"])
        shown = re.findall(r"^\| (news \S+) ", text.split("## Beyond")[0], re.M)
        self.assertEqual([losses[int(pair[6:8])] for pair in shown], [5.0, 4.0, 3.0, 1.0, 2.0])
        for pair in shown:
            self.assertIn(f"### {pair}, loss {losses[int(pair[6:8])]:.3f}", text)
        results = artifacts.read_json(self.folder / "pair_weights.json")
        self.assertEqual(results["up"] + results["down"], [])
        self.assertFalse((self.folder / "pair_weights.png").exists())

    def test_one_end_or_none(self):
        text = self.report(record(np.ones((1, 1))))
        self.assertIn("None.", text)
        self.assertIn("No pair has other pairs of both languages.", text)
        text = self.report(record(np.array([[1.0, 1, 0]]), [1.0, 1.0, None]), lambda *_: [])
        self.assertIn("| not seen |", text)
        self.assertIn("No text.", text)


if __name__ == "__main__":
    absltest.main()
