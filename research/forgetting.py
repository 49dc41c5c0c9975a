"""Measure forgetting: a model before and after continued training, language by language.

    python -m research.forgetting --before=DIR --after=DIR --rows=DIR,... --output=FOLDER

--before and --after are working directories of train.py. The command reads their latest
checkpoints. --rows are working directories with packed rows of the same vocabulary. Rows of the
first training show the forgetting, rows of the second the gain. Both models are scored on the
held-out rows of each. The score is the exact loss of the masked LM or the generator. Discriminators
also have an AUC on tokens replaced by unigram samples.

--tasks=DIR,DIR adds the scores of a task from folders of finetune.py, before and after. They are on
test data, or on validation data without test scores. The command writes report.md, its plot and
results.json (XY-LENT Section 8, Table 6 and Figure 5).
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
from absl import flags
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts, charts, declarations, entry_point, html_report, outputs, tables
from xlm.evaluation.replaced_token import UNIGRAM
from xlm.evaluation.task_results import read_results, reported_scores, reported_split
from xlm.experiment import evaluators
from xlm.experiment import model as builders
from xlm.experiment.data import Folders, open_packed_dataset
from xlm.experiment.masked_lm import encoder_of, has_masked_lm, masked_lm_of
from xlm.experiment.pretrained import read_run, run_config
from xlm.objectives.replaced_token import ReplacedToken
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh

RESULTS, PLOT = "results.json", "forgetting.svg"
LOSS, AUC = "exact loss", "AUC, unigram"

# Scores before and after by language.
Change = Mapping[str, tuple[float, float]]
# Changes by data and measure, such as ("rows", LOSS).
Changes = Mapping[tuple[str, str], Change]

NOTE = """\
- *relative*: (before - after) / before, as in Table 6. The loss has the opposite sign, so positive
  values are forgetting. A score of 0 before has none.
- *exact loss*: nats per token, of the masked LM or the generator on held-out text.
- Scores are in per cent. An AUC of 50 is chance. Means are of the columns."""

_ONE_DEVICE = MeshSettings(data=1, fsdp=1, model=1, vocab_multiple=1, rules=())


class Model(NamedTuple):
    """Model of a run, and the tokenizer of its rows."""

    name: str
    config: ConfigDict
    trained: builders.Trained
    tokenizer: str


def compare(
    before: pathlib.Path, after: pathlib.Path, rows: Sequence[str], folder: pathlib.Path, *,
    tasks: Sequence[str] = (), max_sequences: int = 1000, objective: str = "",
) -> str:  # fmt: skip
    """Compare two runs on rows, and on two folders of a task; write and return the report."""
    if len(tasks) not in (0, 2):
        raise ValueError(f"--tasks names {len(tasks)} folders, must be two: before and after")
    # Reads before the slow scoring of the models.
    of_task = _task_changes(*map(pathlib.Path, tasks)) if tasks else {}
    models = first, second = [
        read_model(flag, workdir, max_sequences, objective)
        for flag, workdir in (("--before", before), ("--after", after))
    ]
    stores = {name: open_packed_dataset(Folders(pathlib.Path(name))) for name in rows}
    check_comparable(first, second, stores)
    # The last folder of each path, or whole paths if these are not distinct.
    names = [pathlib.Path(path).name for path in stores]
    names = names if len(set(names)) == len(names) else list(stores)
    changes: dict[tuple[str, str], Change] = {}
    for name, dataset in zip(names, stores.values(), strict=True):
        found = [scores(model, dataset) for model in models]
        changes |= {(name, of): _both(found[0][of], found[1][of]) for of in found[0]}
    title = " and ".join(f"{model.name}, step {model.trained.step}," for model in models)
    return write_report(changes | of_task, title.removesuffix(","), folder)


def read_model(flag: str, workdir: pathlib.Path, max_sequences: int, objective: str = "") -> Model:
    """Read a run's latest checkpoint, for evaluation on `max_sequences` sequences of each language.

    Raises ValueError if there is no checkpoint, or its objective has no masked LM.
    """
    folders = Folders(workdir)
    if not (folders.train / "settings.json").exists():
        raise ValueError(f"{flag}: {workdir} is no --workdir of train.py; name one with train/")
    trained = read_run(folders, objective)
    if not has_masked_lm(trained.objective):
        raise ValueError(
            f"{flag}: the objective of {workdir}, {type(trained.objective).__name__}, has neither "
            "a masked LM nor a generator, so it has no loss to compare; name a run that has"
        )
    config = run_config(folders, objective)
    config.evaluation.max_sequences = max_sequences
    return Model(str(workdir), config, trained, open_packed_dataset(folders).tokenizer)


def check_comparable(before: Model, after: Model, stores: dict[str, PackedDataset]) -> None:
    """Raise ValueError unless vocabularies are equal and both models have one objective."""
    found = [("--after", after.name, after.tokenizer)]
    found += [(f"--rows {name}", name, dataset.tokenizer) for name, dataset in stores.items()]
    for flag, name, tokenizer in found:
        if tokenizer != before.tokenizer:
            raise ValueError(
                f"{flag}: the vocabulary of {name} ({tokenizer[:12]}) is not that of {before.name} "
                f"({before.tokenizer[:12]}), so their losses cannot be compared; copy the folder "
                "vocab of the first and run prepare_data.py again"
            )
    encoders = [encoder_of(model.trained.objective) for model in (before, after)]
    kinds = [type(encoder).__name__ for encoder in encoders]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"--before is a run of {kinds[0]} and --after of {kinds[1]}; compare runs with the "
            "same objective"
        )
    rates = [one.generator.mask.rate for one in encoders if isinstance(one, ReplacedToken)]
    if len(set(rates)) > 1:
        raise ValueError(
            f"mask.rate is {rates[0]} in --before and {rates[1]} in --after, so different shares "
            "of tokens would be replaced; continue the training with the same rate"
        )


def scores(model: Model, dataset: PackedDataset) -> dict[str, dict[str, float]]:
    """Score a model on held-out rows; return values by measure and language."""
    objective, params = model.trained.objective, model.trained.params
    mesh = make_mesh(_ONE_DEVICE, jax.devices()[:1])
    exact = evaluators.exact_masked_lm(
        model.config, masked_lm_of(objective), dataset, mesh, in_training=False
    )
    found = {LOSS: {language: one.loss for language, one in exact.run(params).items()}}
    detection = evaluators.detection(model.config, objective, dataset, mesh, in_training=False)
    if detection is not None:
        by_language = detection.run(params)[UNIGRAM]
        found[AUC] = {language: one.auc for language, one in by_language.items()}
    return found


def _both(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Join scores by language, without the AUC of languages without replaced tokens."""
    both = {name: (before[name], after[name]) for name in before if name in after}
    return {name: pair for name, pair in both.items() if not any(map(math.isnan, pair))}


def _task_changes(*folders: pathlib.Path) -> dict[tuple[str, str], Change]:
    """Read the reported metric of two runs of a task, by language.

    Raises ValueError if a run is not finished, the runs differ in task, data or split, or no
    language has a score in both.
    """
    before, after = folders
    for folder in folders:
        if not (folder / "results.json").exists():
            raise ValueError(f"--tasks: {folder} has no results.json; finish finetune.py there")
    with declarations.of_file("--tasks"):
        found = [read_results(folder / "results.json") for folder in folders]
    (name, split), other = ((one["task"], reported_split(one)) for one in found)
    datasets = [one.get("dataset") for one in found]
    if None not in datasets and len(set(datasets)) > 1:
        raise ValueError(
            f"--tasks: {before} is of the data {datasets[0]!r}, {after} of {datasets[1]!r}; name "
            "two runs on the same data"
        )
    if (name, split) != other:
        raise ValueError(
            f"--tasks: {before} is of {name}, {split} data, and {after} of {other[0]}, {other[1]} "
            "data, so their scores cannot be compared; name two runs on one task and data"
        )
    scores = [reported_scores(one) for one in found]
    change = _both(*scores)
    if not change:
        languages = " and ".join(", ".join(sorted(one)) or "none" for one in scores)
        raise ValueError(
            f"--tasks: no language has a score in both {before} and {after}, which have "
            f"{languages}; name runs that score the same languages"
        )
    # Report names have no suffix for test data.
    data = "" if split == "test" else f", {split} data"
    return {("task", f"{name}, {TASKS[name].metrics[0]}{data}"): change}


def relative(measure: str, before: float, after: float) -> float:
    """Return the relative loss of quality in per cent, below 0 for a gain; NaN if 0 before."""
    worse = after - before if measure == LOSS else before - after
    return 100 * worse / abs(before) if before else math.nan


def form_of(measure: str) -> tuple[str, float]:
    """Return a measure's number format and factor for tables; scores are in per cent."""
    return ("{:.3f}", 1.0) if measure == LOSS else ("{:.1f}", 100.0)


def write_report(changes: Changes, title: str, folder: pathlib.Path) -> str:
    """Write report, plot and results; return the report. ValueError if runs share no score."""
    changes = {of: change for of, change in changes.items() if change}
    if not changes:
        raise ValueError(
            "no language has a score both before and after; compare runs on rows, or tasks, of "
            "the same languages"
        )
    charts.save(plot_changes(changes), folder / PLOT)
    parts = ["# Forgetting", tables.escaped(title), NOTE]
    results = []
    for (data, measure), change in changes.items():
        parts += [f"## {tables.escaped(data)}: {measure}", change_table(measure, change)]
        before, after = ({name: both[i] for name, both in change.items()} for i in (0, 1))
        results.append({"data": data, "measure": measure, "before": before, "after": after})
    parts.append(f"![Relative loss of quality by language]({PLOT})")
    text = tables.page(*parts)
    html_report.write(folder, text)
    artifacts.write_json(folder / RESULTS, {"changes": results})
    return text


def change_table(measure: str, change: Change) -> str:
    """Return a table of before, after and the relative loss, with a row per language."""
    form, scale = form_of(measure)
    form = form.strip("{:}")
    rows = [
        {
            "language": language,
            "before": scale * before,
            "after": scale * after,
            "relative %": relative(measure, before, after),
        }
        for language, (before, after) in sorted(change.items())
    ]
    formats = {"before": form, "after": form, "relative %": "+.1f"}
    return tables.markdown(rows, formats, mean=formats)


def plot_changes(changes: Changes) -> str:
    """Draw the relative losses of quality by language as bars, in a panel per data and measure."""
    panels = []
    for (data, measure), change in changes.items():
        values = {name: relative(measure, *both) for name, both in sorted(change.items())}
        bars = charts.Marks("", list(values.values()), range(len(values)), "bars", style="c0")
        x, rows = charts.Axis("worse by, %", ends=(0,)), charts.Axis(names=list(values))
        panels.append(charts.chart([bars], x, rows, title=f"{data}: {measure}"))
    return charts.stacked(panels)


def main(_) -> None:
    given = flags.FLAGS
    with outputs.folder(
        given.output, [given.before, given.after, *given.rows, *given.tasks]
    ) as aside:
        report = compare(
            pathlib.Path(given.before), pathlib.Path(given.after), given.rows, aside,
            tasks=given.tasks, max_sequences=given.sequences, objective=given.allow_objective,
        )  # fmt: skip
        print(report)
    print(f"report: {(pathlib.Path(given.output) / html_report.MARKDOWN).absolute()}")


if __name__ == "__main__":
    flags.DEFINE_string("before", None, "Working directory of the first training.")
    flags.DEFINE_string("after", None, "Working directory of the continued training.")
    flags.DEFINE_list("rows", None, "Working directories with rows to score on.")
    outputs.define_flags("Output folder.")
    flags.DEFINE_string(
        "allow_objective", "", "Objective of another package to import, if the runs record it."
    )
    flags.DEFINE_list("tasks", [], "Two folders of finetune.py, before and after.")
    flags.DEFINE_integer("sequences", 1000, "Held-out rows used per language; 0 for all.", 0)
    entry_point.run(main, required=("before", "after", "rows", "output"))
