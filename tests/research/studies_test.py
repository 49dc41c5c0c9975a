"""All studies: their scripts and keys exist, and their records make reports; the claims."""

import importlib
import pathlib
import shlex
import tempfile
from collections.abc import Iterator
from typing import Any

from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from research import claims, report, results, runner, study
from research.figure import Figure
from research.results import Results
from research.studies import encoders, veco, vocap_paper, xlm_r, xy_lent_full
from research.study import Plan, Run
from research.tasks import TASKS
from xlm.cli.main import VERBS
from xlm.experiment import data as data_builders
from xlm.experiment import objectives, schema
from xlm.experiment.memory import absent_rows
from xlm.launch import grids

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Languages of the tasks in a synthetic data folder.
_LANGUAGES = ("ar", "de", "en", "fi", "fr", "ru", "sw", "tr", "ur", "xx")
FIGURES: list[tuple[str, str, Figure]] = [
    (config, name, figure)
    for config, figures in (
        ("research/configs/xlm_r.py:reference,DATA", xlm_r.figures("small")),
        ("research/configs/xlm_r_full.py:reference,DATA", xlm_r.figures("ablation")),
        ("research/configs/vocap.py:vocap,DATA", vocap_paper.FIGURES["small"]),
        ("configs/vocap_paper.py:vocap_500k,DATA", vocap_paper.FIGURES["full"]),
        ("configs/veco.py:small,DATA", {"small_table2": veco.table2("small")}),
        ("configs/veco.py:base,DATA", {"table2": veco.table2("base")}),
        ("configs/xy_lent.py:base,DATA", xy_lent_full.FIGURES),
        ("research/configs/mmbert.py:modern,DATA", encoders.FIGURES),
    )
    for name, figure in figures.items()
]

# Report rows from before the pivot, by command; see `quoted`.
QUOTED: dict[str, list[str]] = {}
for _line in (ROOT / "tests/research/golden/quoted.md").read_text("utf-8").splitlines()[1:]:
    QUOTED.setdefault(_line.partition(": ")[0], []).append(_line.partition(": ")[2])


def quoted(row: str) -> list[str]:
    """Nonempty cells of a row, sorted."""
    return sorted(filter(None, (cell.strip() for cell in row.split("|"))))


def flat(config: ConfigDict, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found[f"{prefix}{key}"] = value
        if isinstance(value, ConfigDict):
            found |= flat(value, f"{prefix}{key}.")
    return found


def made_up_data(folder: pathlib.Path) -> pathlib.Path:
    patterns = [one.test for one in TASKS.values()]
    patterns += [one.unseen[1] for one in TASKS.values() if one.unseen]
    for pattern in patterns:
        for language in _LANGUAGES:
            path = folder / pattern.format(language)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return folder


def closure(plan: Plan) -> Iterator[Run]:
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
                # Equal names are equal runs; the first to need one decides its data.
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
        with self.assertRaisesRegex(ValueError, "no claim or study C99; claims are C1 to C70"):
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
