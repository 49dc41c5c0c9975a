"""Report of a run from its files, also while it trains, and of several runs side by side."""

import dataclasses
import math
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from xlm.common import artifacts, charts, html_report, tables
from xlm.common.charts import Axis, Marks
from xlm.common.languages import label
from xlm.training.clock import GOODPUT, PARTS, shares
from xlm.training.metrics import read_metrics

# Metrics that a page shows by step; others stay in the files.
_SPEED, _OF = "speed/tokens_per_second", "eval/loss/"
_KEPT = re.compile(rf"train/(mlm_)?loss|eval/loss|{_OF}.*|validation/[^/]*|rtd/own/auc|{_SPEED}")
_UNITS = ("nats a token", "bits a character")
_SAMPLED_NOTE = (
    "A sampled output layer trains over few classes, so its training loss lies below the held-out "
    "loss. That gap is no sign of overfitting."
)
_RELOAD = '<meta http-equiv="refresh" content="30">\n'  # seconds


@dataclasses.dataclass
class Run:
    """Content of a run's files: metrics by step, losses of results.json, meta.json of rows."""

    name: str
    folder: pathlib.Path
    settings: Mapping[str, Any]
    records: dict[int, dict[str, float]]
    results: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer: str = ""

    def add(self, step: int, values: Mapping[str, float]) -> bool:
        """Add metrics after `step` steps; return whether the page shows evaluations of them."""
        kept = {name: one for name, one in values.items() if _KEPT.fullmatch(name)}
        self.records.setdefault(step, {}).update(kept, step=step)
        return any(name.startswith(("eval/", "validation/")) for name in kept)

    @property
    def task(self) -> str:
        return self.settings.get("task.name", "")

    @property
    def progress(self) -> tuple[int, int]:
        """Steps taken, and steps to take, 0 if unknown."""
        return max(self.records, default=0), int(self.settings.get("train.num_steps", 0))

    def line(self, metric: str, name: str = "") -> Marks:
        return charts.by_step([self.records[step] for step in sorted(self.records)], metric, name)

    def by_language(self) -> dict[str, float]:
        """Losses of the evaluation after training, or of the latest one."""
        if self.results:
            return {language: of["loss"] for language, of in self.results.items()}
        last = max((step for step, of in self.records.items() if "eval/loss" in of), default=0)
        found = self.records.get(last, {}).items()
        return {name.removeprefix(_OF): one for name, one in found if name.startswith(_OF)}

    def compared(self, languages: Sequence[str], in_bits: bool) -> "Run":
        """Return the run with only the held-out losses of some languages and their means."""

        def factor(language: str) -> float:
            of = self.statistics[language]["heldout"]
            return of["tokens"] / of["characters"] / math.log(2) if in_bits else 1.0

        records = {}
        for step, of in self.records.items():
            if found := {n: of[n] * factor(one) for one in languages if (n := _OF + one) in of}:
                records[step] = found | {"step": step, "eval/loss": tables.mean_of(found.values())}
        key = "bits_per_character" if in_bits else "loss"
        results = {one: {"loss": self.results[one][key]} for one in languages if self.results}
        return dataclasses.replace(self, records=records, results=results)


def read(workdir: pathlib.Path) -> Run:
    """Read a run of train.py or finetune.py; ValueError for a folder without one."""
    folder = workdir / "train" if (workdir / "train").is_dir() else workdir
    if not any((folder / name).exists() for name in ("metrics.jsonl", "settings.json")):
        raise ValueError(f"{workdir} has no metrics.jsonl; name the --workdir of a run")
    run = Run(workdir.absolute().name, folder, settings_of(folder), {})
    for prefix, name in (("", "metrics.jsonl"), ("speed/", "speed.jsonl")):
        for record in read_metrics(folder / name):
            run.add(int(record["step"]), {prefix + key: one for key, one in record.items()})
    if (results := workdir / "report" / "results.json").exists():
        run.results = artifacts.read_object(results).get("losses", {})
    if (rows := workdir / "rows" / "meta.json").exists():
        meta = artifacts.read_object(rows)
        run.statistics, run.tokenizer = meta["statistics"], meta["tokenizer"]
    return run


def settings_of(folder: pathlib.Path) -> dict[str, Any]:
    """Return the settings of a run by key."""
    path = folder / "settings.json"
    found = artifacts.read_object(path) if path.exists() else {}
    leaves = jax.tree_util.tree_leaves_with_path(found, lambda one: not isinstance(one, dict))
    return {jax.tree_util.keystr(k, simple=True, separator="."): value for k, value in leaves}


def write_live(folder: pathlib.Path, run: Run) -> None:
    """Write report.html of a run into `folder`; it reloads itself until the run is over."""
    steps, total = run.progress
    with tempfile.TemporaryDirectory() as name:
        write(pathlib.Path(name), [run], "" if 0 < total <= steps else _RELOAD)
        page = pathlib.Path(name, html_report.PAGE).read_text(encoding="utf-8")
        artifacts.write_text(folder / html_report.PAGE, page)


def write(
    folder: pathlib.Path, runs: Sequence[Run], head: str = "", more: Sequence[str] = ()
) -> pathlib.Path:
    """Write report.md, report.html and charts of one run or several; `more` parts come first."""
    parts = ["# " + ", ".join(tables.escaped(run.name) for run in runs), *map(_status, runs)]
    shown, unit = list(runs), _UNITS[0]
    if not all(run.results for run in runs):  # evaluations in training read less text
        shown = [dataclasses.replace(run, results={}) for run in runs]
    if len(runs) == 1:
        parts.append(f"Written on {time.strftime('%Y-%m-%d at %H:%M:%S')}.")
    elif any(run.task for run in runs):
        shown = []
        kinds = ", ".join(f"{run.name}: {run.task or 'pre-training'}" for run in runs)
        parts.append(
            "`xlm table` on the same folders compares scores by language."
            if len({run.task for run in runs}) == 1
            else f"**Runs of different kinds: no loss compares.** {tables.escaped(kinds)}."
        )
    elif lacking := [one.name for one in runs if not one.tokenizer]:
        shown = []
        parts.append(
            "**The losses are not compared.** Nats a token compare runs of one vocabulary only. "
            f"There is no rows/meta.json, for bits a character, in {', '.join(lacking)}."
        )
    else:
        in_bits = len({run.tokenizer for run in runs}) > 1
        common = sorted(set.intersection(*(set(run.by_language()) for run in shown)))
        shown, unit = [run.compared(common, in_bits) for run in shown], _UNITS[in_bits]
        parts.append(
            f"The vocabularies {'differ' if in_bits else 'are the same'}. Held-out losses are in "
            f"{unit}, over the {len(common)} languages that all runs have."
        )
    texts = [
        {one: of["heldout"]["characters"] for one, of in run.statistics.items()} for run in runs
    ]
    if shown and any(one != texts[0] for one in texts):
        parts.append("**The held-out texts differ. Compare with care.**")
    parts += [*more, *_curves(folder, runs, shown, unit), *_by_language(folder, shown, unit)]
    parts += [*time_section(folder, runs), *_differences(runs)]
    return html_report.write(folder, tables.page(*parts), head=head)


def _status(run: Run) -> str:
    step, total = run.progress
    state = "trained" if 0 < total <= step or (run.folder / "DONE").exists() else "training"
    of_total = f" of {total:,}" if total else ""
    text = f"**{tables.escaped(run.name)}: {state}, step {step:,}{of_total}.**"
    if (path := run.folder / "results.json").exists():  # of finetune.py
        chosen = artifacts.read_object(path).get("selected") or {}
        if "steps" not in chosen and chosen.get("step", step) != step:
            text += f" Its scores are of the checkpoint of step {chosen['step']:,}."
    for loss in run.line("eval/loss").ys[-1:]:
        text += f" The held-out loss is {loss:.3f} nats a token, the mean of the languages."
    return text


def _curves(
    folder: pathlib.Path, runs: Sequence[Run], shown: Sequence[Run], unit: str
) -> Iterator[str]:
    """Draw losses by step. Training losses only of one run: those of output layers differ."""
    there = {name: None for run in runs for of in run.records.values() for name in of}
    losses = ["eval/loss", "train/mlm_loss" if "train/mlm_loss" in there else "train/loss"]
    panels = [(f"loss ({unit})", shown, losses[: 1 + (len(runs) == 1)])]
    panels += [(name, runs, [name]) for name in there if name.startswith(("validation/", "rtd/"))]
    for i, (y, of, names) in enumerate(panels):
        found = (run.line(name, run.name if runs[1:] else "") for name in names for run in of)
        if lines := [line for line in found if line.xs]:
            charts.save(charts.chart(lines, Axis("step"), Axis(y)), folder / f"curves{i}.svg")
            yield f"![{y} by step](curves{i}.svg)"
            if names[1:] and "eval/loss" in there:
                yield _SAMPLED_NOTE


def _by_language(folder: pathlib.Path, runs: Sequence[Run], unit: str) -> Iterator[str]:
    found = {tables.escaped(run.name): run.by_language() for run in runs}
    if not any(found.values()):
        return
    first, *_, last = [*found.values()] * 2
    order = sorted(last, key=last.__getitem__)
    marks = [Marks(run.name, [of[one] for one in order], range(len(order)), "dots")
             for run, of in zip(runs, found.values(), strict=True)]  # fmt: skip
    names = Axis(names=[label(one) for one in order])
    charts.save(charts.chart(marks, Axis(f"loss ({unit})"), names), folder / "languages.svg")
    rows: list[dict[str, Any]] = [
        {"language": one} | {name: of[one] for name, of in found.items()}
        | ({"difference": last[one] - first[one]} if len(runs) == 2 else {})
        for one in order
    ]  # fmt: skip
    formats = dict.fromkeys(found, ".3f") | {"difference": "+.3f"}
    yield f"## Losses by language, in {unit}"
    yield "![Losses by language](languages.svg)"
    yield tables.markdown(rows, formats, mean=list(rows[0])[1:])


def time_section(folder: pathlib.Path, runs: Sequence[Run]) -> list[str]:
    """Return the parts of a report on the time of runs by activity, and on their speed."""
    last = {run.name: next(iter(read_metrics(run.folder / GOODPUT)[-1:]), {}) for run in runs}
    timed = {name: {part: of[part] for part in PARTS} for name, of in last.items() if of}
    percent = {name: [100 * one for one in shares(of).values()] for name, of in timed.items()}
    parts, bars = [], []
    rows: list[dict[str, Any]] = []
    for i, part in enumerate(PARTS):
        if all(of[part] < 3 and percent[name][i] < 0.05 for name, of in timed.items()):
            continue  # 0.0 minutes and %
        rows.append({"part": part})
        ends = [sum(of[: i + 1]) for of in percent.values()]
        starts = [sum(of[:i]) for of in percent.values()]
        tips = [f"{name}, {part}: {of[i]:.1f} %" for name, of in percent.items()]
        bars.append(Marks(part, ends, range(len(ends)), "bars", starts, tips=tips))
        for name, of in timed.items():
            begin = f"{tables.escaped(name)}, " * bool(runs[1:])
            rows[-1] |= {f"{begin}minutes": of[part] / 60, f"{begin}%": percent[name][i]}
    if timed:
        svg = charts.chart(bars, Axis("% of the time"), Axis(names=list(timed)))
        charts.save(svg, folder / "time.svg")
        parts += ["![Where the time went](time.svg)", tables.markdown(rows, ",.1f")]
    speeds = [line for run in runs if (line := run.line(_SPEED, run.name)).xs]
    if speeds:
        svg = charts.chart(speeds, Axis("step"), Axis("tokens a second", ends=(0,)), height=180)
        charts.save(svg, folder / "speed.svg")
        parts.append("![Tokens a second](speed.svg)")
    return ["## Time of training", *parts] if parts else []


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if value and isinstance(value, list) else str(value)


def _differences(runs: Sequence[Run]) -> Iterator[str]:
    if len(runs) == 1:
        return
    keys = list(dict.fromkeys(key for run in runs for key in run.settings))
    if len({run.task for run in runs}) > 1:  # compare only the keys of all tasks
        keys = [key for key in keys if all(key in run.settings for run in runs)]
    found = {key: [_text(run.settings.get(key, "-")) for run in runs] for key in keys}
    names = [tables.escaped(run.name) for run in runs]
    rows = [
        {"key": f"`{key}`"} | dict(zip(names, map(tables.text_cell, values), strict=True))
        for key, values in found.items()
        if len({*values}) > 1
    ]
    yield "## Settings that differ"
    yield tables.markdown(rows, left=1 + len(runs)) or "None."
