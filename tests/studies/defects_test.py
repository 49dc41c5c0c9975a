import json
import pathlib
import tempfile
from typing import Any
from unittest import mock

from absl.testing import absltest

from common import artifacts
from configs import xy_lent
from objectives.best_response import RobustSettings
from studies import defects
from studies.planted_defects import Defect

# From the most up-weighted pair on, by corpus and run; the damaged pairs are de-fr and en-nl.
RANKS = {
    ("planted", "baseline"): ["de-fr", "en-it", "de-it", "en-nl"],
    ("planted", "robust"): ["de-fr", "de-it", "en-it", "en-nl"],
    ("planted", "excess"): ["en-it", "de-fr", "en-nl", "de-it"],
    ("clean", "baseline"): ["en-it", "de-fr", "en-nl", "de-it"],
    ("clean", "robust"): ["en-it", "de-fr", "en-nl", "de-it"],
    ("clean", "excess"): ["en-it", "de-it", "de-fr", "en-nl"],
}


class DefectsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.data, self.workdir = folder / "data", folder / "work"
        for pair in ("de-fr", "nl-en", "en-it"):
            rows = "".join(f"source {pair} {i}\ttarget {pair} {i}\n" for i in range(9))
            artifacts.write_text(self.data / "pairs" / f"{pair}.tsv", rows)
        self.study = defects.Study(
            xy_lent.get_config(f"small_defects,{self.data}"),
            self.workdir,
            "pairs",
            [Defect("shuffled", "de-fr"), Defect("near_copies", "nl-en")],
            seeds=(0, 3),
            workers=1,
            pin=False,
        )
        self.calls: list[tuple[str, str]] = []
        self.changes: dict[str, dict[str, Any]] = {}
        self.broken = ""
        self.enter_context(mock.patch.object(defects.runs, "call", self.call))

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages."""
        place = str(workdir.relative_to(self.workdir))
        self.calls.append((script[-1], place))
        self.changes[place] = change
        if place == self.broken:
            raise ValueError("broken")
        if script == ["train.py"]:
            loss = 4.0 + 0.1 * change["train.seed"] + (change["robust.rho"] > 0)
            records = [{"eval/loss": 9.0}, {"eval/loss": loss, "rtd/unigram/auc": 0.75}, {"a": 1.0}]
            text = "".join(json.dumps(one) + "\n" for one in records)
            artifacts.write_text(workdir / "train" / "metrics.jsonl", text)
        if script == ["-m", "tools.pair_weights"]:
            corpus, kind = workdir.parts[-3:-1]
            ranked = RANKS[corpus, kind]
            pairs = [
                {"pair": pair, "ratio": 1.5 - 0.3 * place, "loss": 4.0 - place}
                for place, pair in enumerate(ranked)
            ]
            # In another order than the weights; a pair without others has none.
            excess = {"de-fr": -1.0, "en-nl": 2.0, "de-it": 0.5, "en-it": None}
            artifacts.write_json(
                workdir / "report" / "pairs" / "pair_weights.json",
                {"pairs": pairs, "excess": excess},
            )

    def places(self, script: str) -> list[str]:
        return [place for name, place in self.calls if name == script]

    def test_runs(self):
        defects.do_study(self.study)
        self.assertEqual(self.places("build_vocab.py"), ["data/clean"])
        self.assertEqual(self.places("prepare_data.py"), ["data/planted", "data/clean"])
        self.assertEqual((self.workdir / "data/planted/vocab").readlink().as_posix(),
                         "../clean/vocab")  # fmt: skip
        trained = [
            f"runs/{corpus}/{kind}/seed{seed}"
            for seed in (0, 3)
            for kinds in (("baseline", "robust"), ("excess",))
            for corpus in ("planted", "clean")
            for kind in kinds
        ]
        self.assertEqual(self.places("train.py"), trained)
        self.assertEqual(self.places("tools.pair_weights"), trained)
        for place in trained:
            _, corpus, kind, seed = place.split("/")
            change = self.changes[place]
            root = self.workdir / "corpus" if corpus == "planted" else self.data
            self.assertEqual(change["corpus.root"], root)
            self.assertEqual(f"seed{change['train.seed']}", seed)
            self.assertEqual(change["robust.rho"], 0.0 if kind == "baseline" else 0.05)
            baseline = self.workdir / "runs" / corpus / "baseline" / seed / "train"
            self.assertEqual(
                change.get("robust.baseline"),
                baseline / "pair_weights.json" if kind == "excess" else None,
            )
            rows = self.workdir / place / "rows"
            self.assertEqual(rows.readlink().as_posix(), f"../../../../data/{corpus}/rows")

    def test_the_corpus_is_damaged(self):
        defects.do_study(self.study)
        planted = self.workdir / "corpus" / "pairs"
        old, new = ((root / "pairs/de-fr.tsv").read_text("utf-8").splitlines()
                    for root in (self.data, self.workdir / "corpus"))  # fmt: skip
        self.assertFalse(set(old) & set(new))
        self.assertTrue((planted / "en-it.tsv").is_symlink())

    def test_report(self):
        defects.do_study(self.study)
        text = defects.write_report(self.study)
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        # Both seeds have the same ranks here.
        self.assertEqual(
            lines[0], "| run | corpus | seeds | de-fr: shuffled | en-nl: near copies |"
        )
        self.assertEqual(
            lines[1:5],
            [
                "| by loss, not re-weighted | damaged | 2 | 1, 1; 4.000; 1.50 "
                "| 4, 4; 1.000; 0.60 |",
                "| by loss, not re-weighted | as it is | 2 | 2, 2; 3.000; 1.20 "
                "| 3, 3; 2.000; 0.90 |",
                "| robust, without a baseline | damaged | 2 | 1, 1; 4.000; 1.50 "
                "| 4, 4; 1.000; 0.60 |",
                "| robust, without a baseline | as it is | 2 | 2, 2; 3.000; 1.20 "
                "| 3, 3; 2.000; 0.90 |",
            ],
        )
        self.assertIn("among all 4", text)
        self.assertEqual(
            lines[8], "| by loss, not re-weighted | damaged | 2 | 3, 3; -1.00 | 1, 1; +2.00 |"
        )
        self.assertIn("| 3 | en-nl 2.00, de-it 0.50, de-fr -1.00 | de-fr -1.00, de-it", text)
        cost = text.split("## Cost")[1]
        self.assertIn(
            "| robust, without a baseline | as it is | 5.150 (5.000 to 5.300) "
            "| 0.750 (0.750 to 0.750) |",
            cost,
        )
        self.assertIn("| by loss, not re-weighted | as it is | 4.150 (", cost)
        ends = "| 3 | en-it 1.50, de-fr 1.20, en-nl 0.90, de-it 0.60 "
        self.assertIn(f"{ends}| de-it 0.60, en-nl 0.90, de-fr 1.20, en-it 1.50 |", text)

    def test_what_is_done_is_not_repeated_and_a_failure_stops_no_other(self):
        self.broken = "runs/planted/robust/seed0"
        with self.assertRaisesRegex(ValueError, "1 runs failed: broken"):
            defects.do_study(self.study)
        self.assertIn("| robust, without a baseline | damaged | 1 |",
                      defects.write_report(self.study))  # fmt: skip
        self.broken = ""
        self.calls.clear()
        defects.do_study(self.study)
        self.assertEqual(self.places("train.py"), ["runs/planted/robust/seed0"])

    def test_keys_are_those_of_the_config(self):
        for kind, (_, change) in defects.KINDS.items():
            config = self.study.config.copy_and_resolve_references()
            config.update_from_flattened_dict(change)
            settings = RobustSettings(**config.robust)
            self.assertLen(settings.phase_steps(config.train.num_steps), 10, kind)

    def test_nothing_to_report(self):
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            defects.write_report(self.study)


if __name__ == "__main__":
    absltest.main()
