"""All studies: what they would run exists, and their records make reports; the claims."""

import importlib
import pathlib
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from configs import grids
from research import claims, figure_report, report, results, runner, study
from research.figure import Figure
from research.results import Results
from research.studies import veco, vocap_paper, xlm_r, xy_lent_full
from research.study import Plan, Run
from research.tasks import TASKS
from xlm.cli.main import VERBS
from xlm.experiment import data as data_builders
from xlm.experiment import objectives, schema
from xlm.experiment.memory import absent_rows

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Languages that tasks of a made-up folder of data have.
_LANGUAGES = ("ar", "de", "en", "fi", "fr", "ru", "sw", "tr", "ur", "xx")
FIGURES: list[tuple[str, str, Figure]] = [
    (config, name, figure)
    for config, figures in (
        ("configs/xlm_r.py:small,DATA", xlm_r.figures("small")),
        ("configs/xlm_r.py:ablation,DATA", xlm_r.figures("ablation")),
        ("configs/vocap_paper.py:small,DATA", vocap_paper.FIGURES["small"]),
        ("configs/vocap_paper.py:vocap_500k,DATA", vocap_paper.FIGURES["full"]),
        ("configs/veco.py:small,DATA", {"small_table2": veco.table2("small")}),
        ("configs/veco.py:base,DATA", {"table2": veco.table2("base")}),
        ("configs/xy_lent.py:base,DATA", xy_lent_full.FIGURES),
    )
    for name, figure in figures.items()
]

# Rows that the reports had before the pivot, made of the same records at 2c6e365; see `quoted`.
QUOTED = {
    "continued": (
        "MLM + TLM, peak rate | 3 | 3.637 | 5.356 | +48.3 | +46.4 to +50.4 | +16.5 | +15.0 | +78.6",
        "MLM + TLM, peak rate | +0.645 | +0.626 to +0.665 | +0.558 | +0.556 to +0.561 | +2.775 "
        "| +2.642 to +2.917",
    ),
    "crosslingual": (
        "random parameters, everything trained | 3e-3 | 3 | 20.6 | 25.6 | 91.2 | 22.9 | 12.4 "
        "| 26.0 | 24.2 | 13.5 | 29.3 | 7.2 | 21.8 | 25.4 | 27.4 | 31.3 | 29.1 | 23.5 | 15.8 | 22.3 "
        "| 22.0 to 22.4",
    ),
    "defects": (
        "robust, losses less the baseline's | damaged | 3 | 2, 2, 3; +1.84 | 4, 3, 2; +1.08 "
        "| 1, 1, 1; +3.21",
    ),
    "monolingual": (
        "de | NER | 5 | 0.750 (0.42 to 0.71) | 0.438 (0.13 to 0.55) | 0.704 (0.38 to 0.70) | 5.1 "
        "| 2.3 | 4.3",
    ),
    "sampling_quality": (
        "k-NN corrected: log Q, frequency bias, exact last tenth | 3 | 4.862 | -1.622 "
        "| -1.656 to -1.600 | -0.072 | -0.085 to -0.055 | 2225 | 0.136 | 0 | 67",
    ),
    "supervision": (
        "one encoder, trained on all languages | 3 | 85.2 | 83.3 | 88.8 | 84.3 | 73.3 "
        "| 83.0 (82.9 to 83.1)",
    ),
    "translation": (
        "VECO, last two layers | 1 | 3 | 30.4 | 30.1 to 30.7 | 54.5 | 29.6 | -0.2 | -0.7 to +0.6",
    ),
    "veco": ("text and pairs less text | POS, F1 | +1.6 | +1.3 | +1.5 | 1.5",),
    "vocap_paper": (
        "NER, F1 | all, equal size | 10 | -0.24 (-0.36 to 0.19) | -0.22 (-0.29 to 0.09) "
        "| -0.12 (-0.05 to 0.18)",
    ),
    "xlm_r": (
        "30 | growing width | wide_30 | 3 | 8,000 | -0.142 | eu +0.17 | 3.249 (3.197 to 3.283) "
        "| 3.044 (2.966 to 3.093) | 3.294 (3.256 to 3.315) | 24.7 (23.4 to 26.6) "
        "| 16.9 (15.5 to 17.8) | 0.9 (0.9 to 1.0) | 6.8",
    ),
    "xy_lent arms=small,small_english,small_mlm,small_2x": (
        "twice the vocabulary | 3 | -1.109 | -1.133 to -1.094 | zh -0.31 | 3.149 | 65.3 "
        "| 62.7 to 67.4 | 100 % | 65.4 | 18.2 % | 39,721 | 10.3",
        "twice the vocabulary | 51.4 | 53.3 | 54.9 | 56.9 | 59.2 | 61.9 | 64.7 | 65.6",
        "twice the vocabulary | 3e-3 | 3 | 19.3 | 31.8 | 84.4 | 37.9 | 15.0 | 30.9 | 35.5 | 14.6 "
        "| 36.8 | 9.4 | 20.0 | 42.0 | 30.4 | 31.0 | 30.8 | 28.2 | 12.3 | 26.6 | 26.2 to 27.4 "
        "| +1.3 | -0.3 to +3.1 | 57.8 | 57.5 to 57.9",
        "detectable | 8.2 | 2.2 | 1.1 | 5.6 | 9.2 | 3.0 | 7.4 | 12.8 | 2.9 | 4.9 | 8.9 | 5.6 | 9.8 "
        "| 7.5 | 1.5 | 2.6 | 3.1 | 2.3 | 2.1",
    ),
}


def quoted(row: str) -> list[str]:
    """Cells of a row that are not empty, whatever their order."""
    return sorted(filter(None, (cell.strip() for cell in row.split("|"))))


def flat(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    """Keys of a config, "section.key"."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found[f"{prefix}{key}"] = value
        if isinstance(value, ConfigDict):
            found |= flat(value, f"{prefix}{key}.")
    return found


def made_up_data(folder: pathlib.Path) -> pathlib.Path:
    """Make empty files where tasks have theirs."""
    patterns = [one.test for one in TASKS.values()]
    patterns += [one.unseen[1] for one in TASKS.values() if one.unseen]
    for pattern in patterns:
        for language in _LANGUAGES:
            path = folder / pattern.format(language)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return folder


def closure(plan: Plan) -> Iterator[Run]:
    """Runs of a plan and what they need."""
    queue = list(plan.study.runs(plan))
    while queue:
        run = queue.pop()
        yield run
        queue += run.needs


class PlanTest(parameterized.TestCase):
    @parameterized.parameters(study.names())
    def test_runs_are_of_configs_and_keys_that_are_there(self, name):
        with tempfile.TemporaryDirectory() as folder:
            data = made_up_data(pathlib.Path(folder))
            plan = study.plan(name, ["seeds=0,1"], results=Results([]), data=data)
            found: dict[tuple[str, int | None], Run] = {}
            loaded: dict[str, dict[str, Any]] = {}
            for run in closure(plan):
                # Equal names are equal runs, whoever needs them; data are of the first that does.
                same = found.setdefault(run.key, run)
                if run.seed is not None:
                    self.assertEqual(
                        (same.config, same.overrides, same.steps),
                        (run.config, run.overrides, run.steps),
                    )
                for step in run.steps:
                    script = step.words[0] if step.words[0] != "-m" else step.words[1]
                    if script == "xlm":
                        script = f"xlm.cli.{VERBS[step.words[2]]}"
                    path = script.removesuffix(".py").replace(".", "/") + ".py"
                    self.assertTrue((ROOT / path).exists(), script)
                    own = {**run.overrides, **step.overrides}
                    if not step.has_config:
                        continue
                    if run.config not in loaded:
                        loaded[run.config] = flat(study.load(run.config, str(data)))
                    for key, value in own.items():
                        self.assertIn(key, loaded[run.config], run.config)
                        there = loaded[run.config][key]
                        if there is not None and not isinstance(there, ConfigDict):
                            kinds = (type(there), int) if type(there) is float else type(there)
                            self.assertIsInstance(value, kinds, key)
                linked = {target.rpartition("/")[0] for target in run.links.values()}
                needed = {one.folder for each in (run, *run.needs) for one in each.needs}
                self.assertLessEqual(linked, needed)
            self.assertNotEmpty(found)
            self.assertFalse(runner.is_made(next(iter(found.values())), data))

    @parameterized.parameters(sorted(path.stem for path in results.RECORDS.glob("*.jsonl")))
    def test_records_make_a_report(self, name):
        self.assertGreater(report.write(name, []).count("\n|"), 5)

    @parameterized.parameters(*QUOTED)
    def test_records_give_what_was_reported(self, command):
        name, *arguments = command.split()
        rows = list(map(quoted, report.write(name, arguments).splitlines()))
        for row in QUOTED[command]:
            self.assertIn(quoted(row), rows)

    @parameterized.parameters("veco", "supervision", "continued", "monolingual")
    def test_plots_of_each_kind(self, name):
        with tempfile.TemporaryDirectory() as folder:
            text = report.write(name, [], folder=pathlib.Path(folder))
            images = [line for line in text.splitlines() if line.startswith("![")]
            self.assertNotEmpty(images)
            for line in images:
                image = line.partition("](")[2].removesuffix(")")
                self.assertGreater((pathlib.Path(folder) / image).stat().st_size, 1000)

    def test_configs_of_studies_are_valid(self):
        for name in ("crosslingual", "sampling_quality"):
            for argument in ("DATA", "runlocal"):
                config = importlib.import_module(f"research.configs.{name}").get_config(argument)
                schema.checked(config)
                data_builders.vocabulary_settings(config)
                objectives.objective(config, absent_rows(config))


class FigureTest(parameterized.TestCase):
    @parameterized.parameters(*FIGURES)
    def test_runs_differ_in_the_keys_of_the_figure_alone(self, config, name, figure):
        self.assertCountEqual(grids.choose(config, name), figure.runs)
        configs = {run: flat(grids.load(grids.config_of(config, run))) for run in figure.runs}
        first = next(iter(configs.values()))
        for run, own in configs.items():
            different = {
                key for key, value in own.items()
                if value != first.get(key) and not isinstance(value, ConfigDict)
            }  # fmt: skip
            allowed = {
                key for key in different for one in figure.keys if f"{key}.".startswith(f"{one}.")
            }
            self.assertEmpty(different - allowed, run)
        places = [(point.series, point.x) for point in figure.points]
        self.assertLen(set(places), len(places))
        if figure.ticks:
            self.assertLessEqual({point.x for point in figure.points}, set(figure.ticks))

    def test_missing_runs_are_named(self):
        found = {"a": {0: results.Result(), 2: results.Result()}}
        self.assertEqual(figure_report.missing(["a"], None, found), "All 2 runs are done.")
        text = figure_report.missing(["a", "b"], [0, 1], found)
        self.assertEqual(text, "**Missing** (seeds): a (1), b (0, 1).")


class ClaimsTest(absltest.TestCase):
    def test_the_page_is_that_of_the_data(self):
        self.assertEqual(claims.PAGE.read_text(encoding="utf-8"), claims.page())

    def test_commands_of_studies_are_valid(self):
        commands = {one for claim in claims.read().values() for one in claim.commands}
        for command in commands:
            words = shlex.split(command)
            if words[1:4] == ["-m", "research", "run"]:
                options = [one for one in words[5:] if not one.startswith("--")]
                study.plan(words[4], options, results=Results([]))
                self.assertIn("--data=DATA", words)
                self.assertTrue(any(one.startswith("--workdir=DIR/") for one in words), command)
            else:
                script = words[2] if words[1] == "-m" else words[1].removesuffix(".py")
                if words[0] == "xlm":
                    script = f"xlm.cli.{VERBS[words[1]]}"
                self.assertTrue((ROOT / f"{script.replace('.', '/')}.py").exists(), command)

    def test_what_cannot_be_run_is_refused(self):
        folder = pathlib.Path("/nowhere")
        with self.assertRaisesRegex(ValueError, "no claim or study C99; claims are C1 to C68"):
            claims.run(["C99"], folder, folder)
        with self.assertRaisesRegex(ValueError, "C5 needs a larger machine"):
            claims.run(["C5"], folder, folder)

    def test_a_claim_runs_its_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            workdir = pathlib.Path(folder)
            claims.run(["C50"], workdir, workdir)  # an estimate of memory
            self.assertIn("GB", (workdir / "log.txt").read_text(encoding="utf-8"))

    def test_links_of_reports(self):
        for path in sorted((ROOT / "research").glob("**/*.md")):
            text = path.read_text(encoding="utf-8")
            for part in text.split("](")[1:]:
                link = part.partition(")")[0].partition("#")[0]
                if link and not link.startswith("http"):
                    self.assertTrue((path.parent / link).exists(), f"{path.name}: {link}")
