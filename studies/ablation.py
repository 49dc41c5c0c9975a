"""Ablation of a small encoder: one key at a time changed, by exact loss and retrieval.

    python -m studies.ablation --config=configs/quickstart.py --workdir=runs/ablation

Each line of `CHANGES` is a run of --config with some keys changed, under every seed of --seeds, on
one vocabulary and one packed dataset; runs of a seed have the same masks and the same order of the
data. Losses are exact, of held-out text, less the cross-entropy of each language's unigram
distribution: below zero an encoder has learned from context. Translations found are of the sets of
several languages, in the mean of both directions.

The table goes to WORKDIR/report/report.md. Run again after a stop, it does what is missing;
--changes names some of the lines, --report_only prints what is there.

Hardware: 2 CPU cores, an hour with configs/quickstart.py, another with configs/xlm_r.py:small,DATA,
some four with configs/real_text.py:DATA.
"""

import functools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from common import artifacts, entry_point
from studies import runs
from studies.runs import Job

RECORD = "record.json"  # of a run, see `studies.records`
_LEARNED = {"model.position": "learned"}
_ADAMW = {"optimizer.kind": "adamw"}
# Label and changed keys of each line, by name.
CHANGES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "unchanged": ("as configured: gated bias with slopes, Muon", {}),
    "learned": ("learned positions", _LEARNED),
    "rotary": ("rotary positions", {"model.position": "rotary"}),
    "relative": ("relative bias with slopes, no gate", {"model.position": "relative"}),
    "no_slope": ("gated bias without slopes", {"model.distance_slope": 0.0}),
    "adamw": ("AdamW", _ADAMW),
    "learned_adamw": ("learned positions, AdamW", {**_LEARNED, **_ADAMW}),
    "fan_in": ("initialisation by fan-in", {"model.initializer": "fan_in"}),
    "dropout": (
        "dropout 0.1", {"model.dropout_rate": 0.1, "model.attention_dropout_rate": 0.1},
    ),
    "mask_15": ("mask rate 0.15", {"mask.rate": 0.15}),
    "mask_30": ("mask rate 0.3", {"mask.rate": 0.3}),
    "full": (
        "full softmax", {"output_layer.kind": "full", "output_layer.full_softmax_fraction": 0.0},
    ),
}  # fmt: skip


def run_folder(workdir: pathlib.Path, name: str, seed: int) -> pathlib.Path:
    """Return the working directory of a run."""
    return workdir / "runs" / name / f"seed{seed}"


def train(name: str, seed: int, workdir: pathlib.Path, *, pin: bool) -> bool:
    """Train and evaluate a line under a seed; return whether there was anything to do."""
    folder = run_folder(workdir, name, seed)
    if (folder / RECORD).exists():
        return False
    runs.share_data(workdir, folder)
    change = {**CHANGES[name][1], "train.seed": seed}
    for script in ("train.py", "evaluate.py"):
        runs.call(
            [script],
            runs.own_config(),
            change,
            folder,
            log=folder / "log.txt",
            compiled=workdir / "compiled",
            one_thread=pin,
        )
    results = artifacts.read_json(folder / "report" / "results.json")
    # Not the examples, which are sentences of the corpus.
    artifacts.write_json(folder / RECORD, {key: results[key] for key in ("losses", "retrieval")})
    return True


def do_study(
    names: Sequence[str], seeds: Sequence[int], workdir: pathlib.Path, *, workers: int, pin: bool
) -> None:
    """Do all runs, the first seed of every line first.

    Raises:
      ValueError: runs failed; the others have been done.
    """
    for script in ("build_vocab.py", "prepare_data.py"):
        runs.call([script], runs.own_config(), {}, workdir, log=workdir / "log.txt")
    jobs = [
        Job(f"{name}, seed {seed}", functools.partial(train, name, seed, workdir, pin=pin))
        for seed in seeds
        for name in names
    ]
    if errors := runs.do_all(jobs, workers=workers, pin=pin):
        raise ValueError(f"{len(errors)} of {len(jobs)} runs failed: {errors[0]}")


def write_report(names: Sequence[str], seeds: Sequence[int], workdir: pathlib.Path) -> str:
    """Write the table of the runs that have ended; return the text.

    Raises:
      ValueError: there are none.
    """
    found = {name: _results(name, seeds, workdir) for name in names}
    if not any(found.values()):
        raise ValueError(f"{workdir} has no finished runs to report")
    # A set of one pair of languages, of which a corpus may have hundreds, is no column of its own.
    sets = sorted(
        {
            name
            for some in found.values()
            for one in some
            for name, pairs in one["retrieval"].items()
            if len(pairs) > 1
        }
    )
    columns = ["", "seeds", "loss - unigram", "least to largest", "nearest language"]
    columns += [f"{name}, found %" for name in sets]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for name, some in found.items():
        if some:
            lines.append(f"| {' | '.join([CHANGES[name][0], *_cells(some, sets)])} |")
    text = "# Ablation\n\n" + "\n".join(lines) + "\n"
    artifacts.write_text(workdir / "report" / "report.md", text)
    return text


def _results(name: str, seeds: Sequence[int], workdir: pathlib.Path) -> list[dict[str, Any]]:
    paths = [run_folder(workdir, name, seed) / RECORD for seed in seeds]
    return [artifacts.read_json(path) for path in paths if path.exists()]


def _cells(some: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> list[str]:
    """Return the cells of a line: means over seeds of means over languages."""
    below = [
        {language: one["loss"] - one["unigram"] for language, one in run["losses"].items()}
        for run in some
    ]
    means = [statistics.fmean(one.values()) for one in below]
    by_language = {name: statistics.fmean(one[name] for one in below) for name in below[0]}
    nearest = max(by_language, key=lambda name: by_language[name])
    cells = [
        str(len(some)),
        f"{statistics.fmean(means):+.3f}",
        f"{min(means):+.3f} to {max(means):+.3f}",
        f"{nearest} {by_language[nearest]:+.2f}",
    ]
    for name in sets:
        scores = [
            (one["forward"] + one["backward"]) / 2
            for run in some
            for one in run["retrieval"].get(name, {}).values()
        ]
        cells.append(f"{100 * statistics.fmean(scores):.1f}" if scores else "")
    return cells


def main(_) -> None:
    given = flags.FLAGS
    workdir, seeds = pathlib.Path(given.workdir), [int(seed) for seed in given.seeds]
    runs.chosen("changes", given.changes, CHANGES)
    if not given.report_only:
        runs.claim(workdir, given.config)
        do_study(given.changes, seeds, workdir, workers=given.workers, pin=given.pin)
    print(write_report(given.changes, seeds, workdir))
    print(f"report: {(workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags("Of all runs.", "Of parameters, masks and order of the data.")
    flags.DEFINE_list("changes", list(CHANGES), "Lines to run.")
    entry_point.run(main)
