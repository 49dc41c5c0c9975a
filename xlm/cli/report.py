"""Show runs side by side: losses by language, curves, time, and the settings that differ.

    xlm report --runs=DIR1,DIR2,... --output=DIR

DIR1, ... are working directories of train.py or finetune.py, finished or not. Losses of runs whose
vocabularies differ are compared in bits a character. A paired bootstrap over the test examples
compares later fine-tuned runs with the first. Writes report.md, and report.html with charts.
"""

import dataclasses
import pathlib

from absl import flags

from xlm.common import html_report, outputs, places
from xlm.training import run_report

_RUNS = flags.DEFINE_list("runs", None, "Working directories of runs; one or more.")
_OUTPUT = outputs.define_flags("The folder to write.")

OPTIONS = {"required": ("runs", "output")}


def main(_) -> None:
    folders = {one: places.fetched(one) for one in _RUNS.value}
    runs = {one: run_report.read(path) for one, path in folders.items()}
    if len({run.name for run in runs.values()}) < len(runs):  # of several parents
        runs = {name: dataclasses.replace(run, name=name) for name, run in runs.items()}
    more, named = [], dict(zip((run.name for run in runs.values()), folders.values(), strict=True))
    if any((path / "results.json").exists() for path in folders.values()):  # of finetune.py
        from xlm.evaluation import significance, translation_report  # slow: scipy

        more = translation_report.comparison(named) or significance.section(named)
    with outputs.folder(_OUTPUT.value, list(folders.values())) as aside:
        run_report.write(aside, list(runs.values()), more=more)
    print(f"report: {pathlib.Path(_OUTPUT.value, html_report.PAGE)}")
