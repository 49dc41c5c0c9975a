"""Report of a study, from a working directory or from its records."""

import pathlib

from research import results, study
from research.study import Plan
from xlm.common import artifacts


def text(plan: Plan) -> str:
    """Return a report in Markdown; write its plots to the plan's folder, if any.

    Raise ValueError if no run has finished.
    """
    parts = plan.study.report(plan)
    if not parts:
        raise ValueError("no run has finished; run the study first")
    return "\n\n".join([f"# {plan.study.title}", *parts]) + "\n"


def write(
    name: str,
    arguments: list[str],
    *,
    workdir: pathlib.Path | None = None,
    folder: pathlib.Path | None = None,
) -> str:
    """Write and return a report of a study.

    Args:
      arguments: those of `study.plan`; without `seeds=` it reports all seeds.
      workdir: working directory of the runs; None for the records.
      folder: folder for report and plots; None to write nothing.
    """
    if workdir:  # with recorded results, if the last call counted them as done
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
