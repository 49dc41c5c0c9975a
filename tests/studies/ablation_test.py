import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

from common import artifacts
from configs import quickstart
from studies import ablation


class AblationTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.calls: list[tuple[str, str]] = []
        self.broken = ""
        self.enter_context(mock.patch.object(ablation.runs, "call", self.call))

    def call(self, script, config, change, workdir, **_):
        """Stands for the stages."""
        place = str(workdir.relative_to(self.workdir))
        self.calls.append((script[0], place))
        if place == self.broken:
            raise ValueError("broken")
        if script[0] == "evaluate.py":
            seed = change["train.seed"]
            losses = {
                "en": {"loss": 4.0 + seed, "unigram": 6.0},
                "sw": {"loss": 5.5, "unigram": 6.0},
            }
            found = {"forward": 0.2 + 0.2 * seed, "backward": 0.1, "chance": 0.02}
            retrieval = {"core": {"sw": found, "de": found}, "de-sw": {"sw": found}}
            results = {"losses": losses, "retrieval": retrieval}
            artifacts.write_json(workdir / "report" / "results.json", results)

    def study(self, *seeds: int) -> str:
        names = ("unchanged", "learned")
        ablation.do_study(names, seeds, self.workdir, workers=1, pin=False)
        return ablation.write_report(names, seeds, self.workdir)

    def test_keys_are_those_of_configs_and_change_something(self):
        seen = []
        for name, (_, change) in ablation.CHANGES.items():
            config = quickstart.get_config()
            config.update_from_flattened_dict(change)
            self.assertNotIn(config, seen, name)
            seen.append(config)

    def test_runs_and_report(self):
        text = self.study(0, 1)
        self.assertEqual(self.calls[:2], [("build_vocab.py", "."), ("prepare_data.py", ".")])
        self.assertEqual(
            [place for script, place in self.calls if script == "train.py"],
            [f"runs/{name}/seed{seed}" for seed in (0, 1) for name in ("unchanged", "learned")],
        )
        self.assertTrue((self.workdir / "runs" / "learned" / "seed1" / "rows").is_symlink())
        # Means of -2 and -0.5, and of -1 and -0.5; Swahili is nearest. One pair has no column.
        self.assertNotIn("de-sw", text)
        self.assertIn(
            "| learned positions | 2 | -1.000 | -1.250 to -0.750 | sw -0.50 | 20.0 |", text
        )
        self.calls.clear()
        self.study(0, 1)
        self.assertEqual(
            {script for script, _ in self.calls}, {"build_vocab.py", "prepare_data.py"}
        )

    def test_a_failure_stops_no_other(self):
        self.broken = "runs/unchanged/seed0"
        with self.assertRaisesRegex(ValueError, "1 of 2 runs failed: broken"):
            self.study(0)
        text = ablation.write_report(("unchanged", "learned"), (0,), self.workdir)
        self.assertNotIn("as configured", text)
        self.assertIn("| learned positions | 1 |", text)

    def test_nothing_to_report(self):
        with self.assertRaisesRegex(ValueError, "no finished runs"):
            ablation.write_report(("unchanged",), (0,), self.workdir)


if __name__ == "__main__":
    absltest.main()
