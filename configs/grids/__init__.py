"""Grids of named runs: what a figure or a table of a paper is made of.

`configs/grids/X.py` has those of `configs/X.py`, as `GRIDS`: by the first word of that
config's argument ("" for any), then by name. Each run is an argument of the config, so that the
stages, the launchers and `studies.grid` start the same runs:

    python -m studies.grid --config=configs/xlm_r.py:small,DATA --grid=alpha --workdir=DIR
    python -m launch.slurm --config=configs/xlm_r.py:ablation,DATA --grid=alpha --workdir=DIR
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

_FOLDER = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Point:
    """Place of a run in a plot.

    Attributes:
      run: name, which the config knows.
      x: place on the axis of the grid.
      series: line that the point is on.
    """

    run: str
    x: float
    series: str = "all"


@dataclasses.dataclass(frozen=True)
class Grid:
    """Runs that differ in what one figure or table of a paper is about.

    Attributes:
      title: question that the grid answers.
      place: figure, table or section of the paper.
      axis: label of x, with its unit.
      points: the runs, by series.
      keys: keys of the config, or sections, in which the runs may differ.
      is_log: whether x is logarithmic.
      ticks: labels of x, where it is no number.
      paper: values of the paper by series and x.
      measure: measure of these values.
      note: origin of these values, and what the paper does not state.
      minutes: estimated minutes of one core for a run, with its fine-tuning; 0 without estimate.
      is_small: whether its encoders are of two layers, which learn tasks by other settings than
        large ones (`studies.downstream`).
    """

    title: str
    place: str
    axis: str
    points: tuple[Point, ...]
    keys: tuple[str, ...]
    is_log: bool = False
    ticks: Mapping[float, str] = dataclasses.field(default_factory=dict)
    paper: Mapping[str, Mapping[float, float]] = dataclasses.field(default_factory=dict)
    measure: str = "XNLI, mean accuracy"
    note: str = ""
    minutes: float = 0.0
    is_small: bool = False

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of the runs, each once, in the order of the points."""
        return tuple(dict.fromkeys(point.run for point in self.points))

    def ordered(self) -> list[Point]:
        """Return the points by series, in the order of their first points, and x."""
        series = list(dict.fromkeys(point.series for point in self.points))
        return sorted(self.points, key=lambda point: (series.index(point.series), point.x))

    def tick(self, x: float) -> str:
        """Return the label of a place on the axis."""
        return self.ticks.get(x, f"{x:,g}" if x < 1000 else f"{x:,.0f}")


class Line(NamedTuple):
    """Line of a table, whose runs have no number to be plotted by.

    Attributes:
      run: name, which the config knows.
      label: of the line.
      paper: value of the paper.
      series: that the line is of.
    """

    run: str
    label: str
    paper: float
    series: str = "all"


def categories(lines: Sequence[Line]) -> dict[str, Any]:
    """Return points, ticks and the paper's values of a grid with a place for each line."""
    paper: dict[str, dict[float, float]] = {}
    for x, line in enumerate(lines):
        paper.setdefault(line.series, {})[float(x)] = line.paper
    return {
        "points": tuple(Point(line.run, float(x), line.series) for x, line in enumerate(lines)),
        "ticks": {float(x): line.label for x, line in enumerate(lines)},
        "paper": paper,
    }


class Argument(NamedTuple):
    """Parts of the value of --config, "configs/X.py:WORD.RUN,DATA".

    Attributes:
      file: path of the config.
      word: first word of the argument.
      data: what follows the comma.
    """

    file: str
    word: str
    data: str


def parse(config: str) -> Argument:
    """Split the value of --config."""
    file, _, argument = config.partition(":")
    name, _, data = argument.partition(",")
    return Argument(file, name.partition(".")[0], data)


def find(config: str) -> dict[str, Grid]:
    """Return the grids of a config by name.

    Args:
      config: value of --config.

    Raises:
      ValueError: the config has none, or none for its argument.
    """
    file, word, _ = parse(config)
    name = pathlib.PurePath(file).stem
    if not importlib.util.find_spec(f"configs.grids.{name}"):
        known = sorted(path.stem for path in _FOLDER.glob("[a-z]*.py"))
        raise ValueError(f"--config is {config!r}, which has no grids; those that have: {known}")
    grids = importlib.import_module(f"configs.grids.{name}").GRIDS
    if not (found := grids.get(word) or grids.get("")):
        raise ValueError(
            f"--config is {config!r}, which has no grids for {word!r}; there are some for "
            + ", ".join(grids)
        )
    return found


def choose(config: str, name: str) -> Grid:
    """Return a grid of a config.

    Raises:
      ValueError: there is no such grid.
    """
    found = find(config)
    if name not in found:
        raise ValueError(f"--grid is {name!r}; {config} has: {', '.join(found)}")
    return found[name]


def config_of(config: str, run: str) -> str:
    """Return the value of --config for a run of a grid."""
    file, word, data = parse(config)
    grids = importlib.import_module(f"configs.grids.{pathlib.PurePath(file).stem}").GRIDS
    argument = f"{word}.{run}" if word in grids else run
    return f"{file}:{argument},{data}"


def load(config: str) -> ConfigDict:
    """Return the config of a value of --config, of a file that has grids."""
    file, _, argument = config.partition(":")
    return importlib.import_module(f"configs.{pathlib.PurePath(file).stem}").get_config(argument)


def run_folder(run: str, seed: int) -> str:
    """Return the working directory of a run below that of its grids."""
    return f"runs/{run}/seed{seed}"


def data_settings(config: ConfigDict) -> dict[str, Any]:
    """Return the keys of a config that affect its vocabulary and packed rows, but for the root."""
    sections = {name: config[name].to_dict() for name in ("corpus", "vocab", "store")}
    for section, key in (("corpus", "root"), ("vocab", "num_workers"), ("store", "num_workers")):
        del sections[section][key]  # which change no row
    return sections


def data_folder(config: ConfigDict) -> str:
    """Return the folder of a run's vocabulary and packed rows below that of its grids.

    It is one for runs with equal text, vocabulary and sequence length.
    """
    text = json.dumps(data_settings(config), sort_keys=True, default=list)
    return f"data/{hashlib.sha256(text.encode()).hexdigest()[:10]}"
