"""Report of a study, from the results of a working directory or from its records."""

import pathlib

from research import results, study
from research.study import Plan
from xlm.common import artifacts


def text(plan: Plan) -> str:
    """Return a report in Markdown; its plots go to the plan's folder, if it has one.

    Raise ValueError if there are no finished runs.
    """
    parts = plan.study.report(plan)
    if not parts:
        raise ValueError("there are no finished runs to report; run some first")
    return "\n\n".join([f"# {plan.study.title}", *parts]) + "\n"


def write(
    name: str,
    arguments: list[str],
    *,
    workdir: pathlib.Path | None = None,
    folder: pathlib.Path | None = None,
) -> str:
    """Write a report of a study and return it.

    Args:
      arguments: see `study.plan`; without `seeds=` it reports all.
      workdir: of the runs; None for the records.
      folder: of report and plots; None to write nothing.
    """
    if workdir:  # with recorded results that the last call counted as done
        rows = [*results.read(workdir / results.RESULTS), *results.in_folder(workdir)]
    else:
        rows = list(results.read(results.RECORDS / f"{name}.jsonl", name))
    plan = study.plan(name, arguments, seeds=None, results=results.Results(rows), folder=folder)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    made = text(plan)
    if folder:
        artifacts.write_text(folder / f"{name}.md", made)
    return made
