"""The section on vocabularies of a grid's report, of made-up results."""

import dataclasses
import math

import numpy as np
from absl.testing import absltest
from scipy import stats

from configs import grids
from studies import grid_vocabularies
from studies.grid_runs import Run

ARGUMENT = "configs/vocap_paper.py:small,DATA"
RUNS = ("vocap", "joint", "proportional", "uniform")
RESOURCE = {"en": "high", "de": "high", "hi": "mid", "sw": "low"}


def made_up(alp: dict[str, float], pos: dict[str, float], *, with_vocabulary: bool = True) -> Run:
    """Results of a run: tokens a sentence are a tenth of -ALP, bits a character a hundredth."""
    losses = {
        name: {"loss": 4.0, "unigram": 6.0, "bits_per_character": -value / 100}
        for name, value in alp.items()
    }
    vocabulary = {
        name: {"alp": value, "tokens_per_sentence": -value / 10, "resource": RESOURCE[name]}
        for name, value in alp.items()
    }
    examples = dict.fromkeys(pos, 100)
    return Run(
        losses,
        8000,
        2.0,
        {"udpos": pos},
        {"udpos": examples},
        vocabulary if with_vocabulary else {},
    )


def rows(text: str) -> dict[tuple[str, str], list[str]]:
    """Cells of the correlation table by task and language."""
    found = {}
    for line in text.splitlines()[2:]:
        task, language, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        found[task, language] = cells
    return found


class VocabulariesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.grid = grids.choose(ARGUMENT, "methods")
        rng = np.random.default_rng(0)
        # ALP of English and three others by run, and scores: of German they follow ALP, of Hindi
        # they go against it, of Swahili they are noise.
        self.alp = {
            run: dict(zip(RESOURCE, rng.uniform(-300, -100, 4), strict=True)) for run in RUNS
        }
        self.noise = rng.uniform(0, 10, (2, len(RUNS)))
        self.found = {
            run: {seed: made_up(self.alp[run], self.pos(run, seed)) for seed in (0, 1)}
            for run in RUNS
        }

    def pos(self, run: str, seed: int) -> dict[str, float]:
        alp, noise = self.alp[run], self.noise[seed, RUNS.index(run)]
        return {"en": 90.0, "de": 80 + alp["de"] / 10, "hi": 10 - alp["hi"] / 5, "sw": noise}

    def test_correlations(self):
        found = rows(grid_vocabularies.correlation_table(self.found))
        self.assertEqual(list(found), [("POS, F1", name) for name in ("de", "hi", "sw", "all")])
        self.assertEqual(found["POS, F1", "de"], ["4"] + ["1.00 (1.00 to 1.00)"] * 3)
        self.assertEqual(found["POS, F1", "hi"], ["4"] + ["-1.00 (-1.00 to -1.00)"] * 3)

        alp = np.array([self.alp[run]["sw"] for run in RUNS])
        each = sorted(stats.pearsonr(alp, noise).statistic for noise in self.noise)
        both = stats.pearsonr(alp, self.noise.mean(0)).statistic
        wanted = f"{both:.2f} ({each[0]:.2f} to {each[1]:.2f})"
        self.assertEqual(found["POS, F1", "sw"][1], wanted)

    def test_all_languages_count_by_how_they_differ_from_their_own_mean(self):
        xs, ys = [], []
        for name in ("de", "hi", "sw"):
            alp = np.array([self.alp[run][name] for run in RUNS])
            score = np.array(
                [np.mean([self.pos(run, seed)[name] for seed in (0, 1)]) for run in RUNS]
            )
            xs.append((alp - alp.mean()) / abs(alp.mean()))
            ys.append(score - score.mean())
        wanted = stats.pearsonr(np.concatenate(xs), np.concatenate(ys)).statistic
        cell = rows(grid_vocabularies.correlation_table(self.found))["POS, F1", "all"][1]
        self.assertEqual(cell.split()[0], f"{wanted:.2f}")

    def test_at_equal_size_runs_count_by_how_they_differ_from_those_of_their_size(self):
        # Larger vocabularies have higher ALP and lower scores; of equal size they go together.
        alp = {"vocap": -200.0, "joint": -210.0, "vocap_16k": -150.0, "joint_16k": -155.0}
        found = {}
        for name, value in alp.items():
            large = name.endswith("16k")
            score = 50 + value / 10 - 20 * large
            run = made_up({"de": value}, {"en": 90.0, "de": score})
            found[name] = {0: dataclasses.replace(run, vocab_size=16_000 if large else 8000)}
        text = grid_vocabularies.correlation_table(found)
        cells = rows(text)
        self.assertLess(float(cells["POS, F1", "all"][1]), -0.9)
        # 10 of 205 and 5 of 152.5, and 1 and 0.5.
        x = np.array([5 / 205, -5 / 205, 2.5 / 152.5, -2.5 / 152.5])
        wanted = stats.pearsonr(x, [0.5, -0.5, 0.25, -0.25]).statistic
        self.assertGreater(wanted, 0.9)
        self.assertEqual(cells["POS, F1", "all, equal size"][1], f"{wanted:.2f}")

    def test_one_seed_has_no_range_and_equal_scores_no_correlation(self):
        found = {run: {0: made_up(self.alp[run], {"en": 90.0, "de": 5.0})} for run in RUNS}
        cells = rows(grid_vocabularies.correlation_table(found))["POS, F1", "de"]
        self.assertEqual(cells, ["4", "nan", "nan", "nan"])

    def test_by_amount_of_text(self):
        alp, bits, pos = grid_vocabularies.group_tables(self.grid, self.found)
        self.assertIn("| ALP | high (2) | mid (1) | low (1) |", alp)
        high = (self.alp["joint"]["en"] + self.alp["joint"]["de"]) / 2
        self.assertIn(f"| joint | {high:.1f} | {self.alp['joint']['hi']:.1f} |", alp)
        self.assertTrue(alp.endswith("| detectable |  |  |  |"), alp)
        self.assertIn(f"| joint | {-high / 100:.3f} |", bits)
        # English has training data.
        self.assertIn("| POS, F1 | high (1) | mid (1) | low (1) |", pos)
        self.assertIn(f"| joint | {80 + self.alp['joint']['de'] / 10:.1f} |", pos)
        swahili = stats.t.ppf(0.975, 4) * math.sqrt(np.var(self.noise, axis=0, ddof=1).mean())
        self.assertTrue(pos.endswith(f"| detectable | 0.0 | 0.0 | {swahili:.1f} |"), pos)

    def test_where_there_is_no_section(self):
        parts = grid_vocabularies.parts(self.grid, self.found)
        self.assertEqual(parts[0], "## Vocabularies")
        self.assertIn("4 runs is significant at 5 % from 0.95 on", " ".join(parts[1].split()))
        batch = grids.choose("configs/xlm_r.py:small,DATA", "batch")
        self.assertEmpty(grid_vocabularies.parts(batch, self.found))
        # Records that were kept before have nothing of the vocabulary.
        old = {0: made_up(self.alp["joint"], self.pos("joint", 0), with_vocabulary=False)}
        self.assertEmpty(grid_vocabularies.parts(self.grid, {**self.found, "joint": old}))
        more = grid_vocabularies.parts(self.grid, {**self.found, "clustered": old})
        self.assertEqual(more, parts)


if __name__ == "__main__":
    absltest.main()
