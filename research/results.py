"""Results of studies in long format: a row per run, seed, metric and item.

A row is a line of JSON: study, run, seed, metric, item (a language, pair, direction or step; "" for
none), value, and its origin (overrides, commit, command, time). `measured.jsonl` in the folder of a
run has its rows. `results.jsonl` of the working directory has the rows of all runs, and
`research/records` has kept rows.

Records before 2026-11-29 have a line per result file: `path`, `content`, `commit` and `time`, with
numbers of six significant digits. `read` reads both formats.
"""

import datetime
import json
import pathlib
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xlm.common import artifacts

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = pathlib.Path(__file__).resolve().parent / "records"
# Rows of a run in its folder, and of all runs in the working directory.
MEASURED, RESULTS = "measured.jsonl", "results.jsonl"

_SEED = re.compile(r"seed(\d+)")
# Folders of a run with results of its stages.
_OF_STAGES = {"report", "pairs", "forgetting"}
# Keys whose children are items. Below the first are metrics, the second are metrics themselves.
_GROUPS = {"losses", "vocabulary", "test", "validation", "retrieval"}
_METRICS = {
    "loss", "unigram", "below", "curve", "auc_curve", "auc", "excess", "before", "after",
    "divergences",
}  # fmt: skip
# Keys that name the entries of a list.
_NAMES = ("data", "measure", "pair", "id", "split", "averaged", "beams")


class Row(NamedTuple):
    """Value of a run."""

    study: str
    run: str
    seed: int | None
    metric: str
    item: str
    value: Any
    overrides: Mapping[str, Any]
    commit: str
    command: str
    time: str


class Result(dict[str, dict[str, Any]]):
    """Values of a run under a seed, by metric and item."""

    def one(self, metric: str) -> Any:
        """Return the value of a metric without items, or None."""
        return self.get(metric, {}).get("")


BySeed = Mapping[int, Result]


class Results:
    """Values of runs, by run and seed."""

    def __init__(self, rows: Iterable[Row]):
        self._runs: dict[str, dict[int, Result]] = {}
        self.update(rows)

    def update(self, rows: Iterable[Row]) -> None:
        for row in rows:
            of_run = self._runs.setdefault(row.run, {})
            result = of_run.setdefault(-1 if row.seed is None else row.seed, Result())
            result.setdefault(row.metric, {})[row.item] = row.value

    def __contains__(self, key: tuple[str, int | None]) -> bool:
        run, seed = key
        return (-1 if seed is None else seed) in self._runs.get(run, {})

    def runs(self) -> list[str]:
        return list(self._runs)

    def of(self, run: str, seeds: Sequence[int] | None = None) -> BySeed:
        """Return the results of a run by seed, for some or all seeds."""
        found = self._runs.get(run, {})
        return {s: found[s] for s in (sorted(found) if seeds is None else seeds) if s in found}

    def joined(self, runs: Mapping[str, str], seeds: Sequence[int] | None = None) -> BySeed:
        """Return the joined results of runs, for the seeds of the first.

        `runs` has names by the prefix of their metrics. `seeds` None stands for all seeds.
        """
        first = next(iter(runs.values()))
        return {
            seed: Result({
                f"{prefix}{metric}": values
                for prefix, run in runs.items()
                for metric, values in self._runs.get(run, {}).get(seed, Result()).items()
            })
            for seed in self.of(first, seeds)
        }  # fmt: skip

    def merged(self, runs: Sequence[str], seeds: Sequence[int] | None = None) -> BySeed:
        """Merge the results of runs with different items, such as one run per language."""
        found: dict[int, Result] = {}
        for run in runs:
            for seed, result in self.of(run, seeds).items():
                for metric, values in result.items():
                    found.setdefault(seed, Result()).setdefault(metric, {}).update(values)
        return found


def mean(
    metric: str, items: Sequence[str] | None = None, *, less: str = "", scale: float = 1.0
) -> Callable[[Result], float | None]:
    """Return a measure: the mean of a metric over items, by default all; it is None without any.

    The measure subtracts the metric `less`, and multiplies by `scale`, such as 100 for per cent.
    """

    def of(result: Result) -> float | None:
        values = {name: one for name, one in result.get(metric, {}).items() if one is not None}
        names = [name for name in (values if items is None else items) if name in values]
        if not names or (items is not None and len(names) < len(items)):
            return None
        return statistics.fmean(
            scale * (values[name] - (result[less][name] if less else 0)) for name in names
        )

    return of


def shared_items(some: Iterable[Result], metric: str) -> list[str]:
    """Return the common items of all results that have a metric, in order."""
    sets = [set(result[metric]) for result in some if metric in result]
    return sorted(set.intersection(*sets)) if sets else []


# 1. Reading and writing.


def flat(content: Any, metric: tuple[str, ...] = (), item: tuple[str, ...] = ()) -> Iterator:
    """Yield metric, item and value of each value in the content of a result file."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            last = metric[-1] if metric else ""
            is_group = isinstance(value, Mapping)
            if (is_group and last in _GROUPS) or (
                not is_group and (last in _METRICS or metric[:1] == ("examples",))
            ):
                yield from flat(value, metric, (*item, key))
            else:
                yield from flat(value, (*metric, key), item)
    elif isinstance(content, list) and content and isinstance(content[0], Mapping):
        for one in content:
            own = tuple(str(one[name]) for name in _NAMES if name in one)
            others = {key: value for key, value in one.items() if key not in _NAMES}
            yield from flat(others, metric, (*item, *own))
    elif isinstance(content, list) and content and isinstance(content[0], list):
        for key, value in content:
            yield "/".join(metric), "/".join((*item, str(key))), value
    else:
        yield "/".join(metric), "/".join(item), content


def run_of(path: str) -> tuple[str, int | None]:
    """Return run and seed by the path of a result file; ("", None) for a training state."""
    *parts, _ = path.split("/")
    places = [place for place, part in enumerate(parts) if _SEED.fullmatch(part)]
    if not places:
        return "/".join(parts), None
    (place,) = places
    if "train" in parts[place:]:
        return "", None
    names = [*parts[:place], *(part for part in parts[place + 1 :] if part not in _OF_STAGES)]
    return "/".join(names), int(parts[place].removeprefix("seed"))


def read(path: pathlib.Path, study: str = "") -> Iterator[Row]:
    """Yield the rows of a file in either format, if it exists."""
    if not path.exists():
        return
    # splitlines() would also split at characters that JSON keeps, such as U+2028.
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        found = json.loads(line)
        if "metric" in found:
            yield Row(**found)
            continue
        run, seed = run_of(found["path"])
        if run:
            for metric, item, value in flat(found["content"]):
                yield Row(
                    study, run, seed, metric, item, value, {}, found["commit"], "", found["time"]
                )


def in_folder(workdir: pathlib.Path) -> list[Row]:
    """Return the rows of all runs in a working directory."""
    return [row for path in sorted(workdir.glob(f"**/{MEASURED}")) for row in read(path)]


def write(path: pathlib.Path, rows: Iterable[Row]) -> None:
    """Write rows atomically."""
    lines = (json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in rows)
    artifacts.write_text(path, "".join(lines))


def keep(study: str, workdir: pathlib.Path) -> int:
    """Add new runs of a working directory to the records of a study; return their number."""
    record = RECORDS / f"{study}.jsonl"
    known = Results(read(record))
    new = [row for row in in_folder(workdir) if (row.run, row.seed) not in known]
    text = record.read_text(encoding="utf-8") if record.exists() else ""
    lines = (json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in new)
    artifacts.write_text(record, text + "".join(lines))
    return len({(row.run, row.seed) for row in new})


def commit() -> str:
    """Return the commit of the code, marked if files have changed."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%MZ}"
