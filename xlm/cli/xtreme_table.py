"""Summarise fine-tuning runs in one report: the cross-lingual table, and an XTREME submission.

    xlm table --runs=DIR1,DIR2,... --output=DIR [--center=median] [--submission]

DIR may contain *, for many runs. Writes report.md, report.html, scores.csv and averages.csv.
--submission adds a folder for each model and setting that XTREME's evaluate.py reads.
"""

import glob
import itertools
import pathlib
import re

from absl import flags, logging

from xlm.common import outputs
from xlm.evaluation import published, xtreme_report, xtreme_runs, xtreme_submission

_RUNS = flags.DEFINE_list("runs", None, "Folders of finished runs, with results.json each.")
_OUTPUT = outputs.define_flags("The folder to write.")
_CENTER = flags.DEFINE_enum("center", "mean", ["mean", "median"], "Summary of several seeds.")
_PUBLISHED = flags.DEFINE_string(
    "published",
    str(published.DEFAULT),
    "Numbers to compare with, as xlm/evaluation/published.json.",
)
_SUBMISSION = flags.DEFINE_bool("submission", False, "Also write predictions for XTREME.")

OPTIONS = {"required": ("runs", "output")}


def main(_) -> None:
    folders = itertools.chain.from_iterable(map(glob.glob, _RUNS.value))
    with outputs.folder(_OUTPUT.value, [*folders, _PUBLISHED.value]) as aside:
        runs = xtreme_runs.find_runs(_RUNS.value)
        variants = xtreme_runs.variants(runs, _CENTER.value)
        numbers = published.read(pathlib.Path(_PUBLISHED.value))
        logging.info("runs: %d; if all seeds count as one: %d", len(runs), len(variants))
        if _SUBMISSION.value:
            _submit(aside / "submission", xtreme_runs.chosen(variants))
        path = xtreme_report.write_report(aside, variants, numbers)
    print(pathlib.Path(_OUTPUT.value, path.name))


def _submit(folder: pathlib.Path, best: list[xtreme_runs.Variant]) -> None:
    for model, setting in dict.fromkeys((one.model, one.setting) for one in best):
        those = [one for one in best if (one.model, one.setting) == (model, setting)]
        name = re.sub(r"[^\w.-]+", "_", f"{model}-{setting}")
        missing = xtreme_submission.write_submission(folder / name, those)
        for task, languages in missing.items():
            logging.warning("%s: no %s predictions in %s", name, task, ", ".join(languages))
