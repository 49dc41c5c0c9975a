"""Fine-tuning tasks of studies: trained on English, tested in other languages.

Embeddings are frozen, so tokens of other languages keep their neighbours. English development data
select the parameters. WikiANN has no other English test set, so means leave English out. Tatoeba
needs no training. It has no development set, so its layer is fixed, two thirds up as in XTREME.
"""

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from research import pivot
from research.pivot import Column
from research.results import Result, mean
from research.study import Plan, Run, Step
from xlm.common import artifacts


@dataclasses.dataclass(frozen=True)
class Task:
    """Downstream task.

    Attributes:
      metric: reported metric.
      test: pattern of its test files below the data folder.
      epochs: epochs of fine-tuning; 0 for retrieval.
      change: changed config keys.
      unseen: title and pattern of test files in languages that no encoder has seen.
    """

    title: str
    metric: str
    test: str
    epochs: float = 0.0
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unseen: tuple[str, str] | None = None


TASKS = {
    "udpos": Task("POS, F1", "test/f1", "udpos/test/{}.tsv.xz", 2.0),
    "wikiann": Task("NER, F1", "test/f1", "wikiann_ner/dev/{}.tsv.xz", 3.0),
    "xnli": Task(
        "XNLI, accuracy", "test/accuracy", "xnli/dev/{}.tsv.xz", 3.0,
        {"task.validation": ("nli_en/mnli_dev.tsv.xz",)},
        ("AmericasNLI, accuracy", "americasnli/dev/{}.tsv.xz"),
    ),
    "tatoeba": Task("Tatoeba, accuracy", "test/accuracy", "tatoeba_retrieval/{}-en.tsv.xz"),
}  # fmt: skip


def tuning_keys(task: Task, rate: str) -> dict[str, Any]:
    """Return the changed keys of fine-tuning on a task, at a learning rate."""
    return {
        **task.change,
        "task.text_pooling": "mean",  # after so few steps <s> does not represent its text
        "optimizer.frozen": ("embeddings",),
        "optimizer.learning_rate": float(rate),
        "model.attention_dropout_rate": 0.0,
        "train.epochs": task.epochs,
        "train.evaluations": round(task.epochs),
    }


def retrieval_keys(num_layers: int) -> dict[str, Any]:
    """Return the changed keys of retrieval on a task."""
    return {"task.layer": round(num_layers * 2 / 3)}


def task_run(
    plan: Plan,
    name: str,
    task: str,
    encoder: Run,
    change: Mapping[str, Any],
    languages: Sequence[str],
    needs: tuple[Run, ...] = (),
) -> Run:
    """Return the run of a task from an encoder, with a `change` of the task's config.

    It tests in the `languages` of the pre-training that have test data. `needs` are further runs
    that must end first.
    """
    remedy = f"add them, or leave {task} out of tasks="
    overrides = {
        "init_from": encoder.path,
        "model_name": encoder.name.rpartition("/")[2],
        "train.seed": encoder.seed,
        "task.test_languages": plan.tested(TASKS[task].test, languages, remedy),
        **change,
    }
    return Run(
        name, encoder.seed, (Step(("finetune.py",)),), f"configs/finetune/{task}.py:DATA",
        overrides, needs=(encoder, *needs), measure=task_results,
    )  # fmt: skip


def task_results(folder: pathlib.Path) -> Any:
    """Return the results of fine-tuning."""
    return artifacts.read_json(folder / "results.json")


def scores(result: Result, task: str, prefix: str = "") -> dict[str, float]:
    """Return the reported metric of each test language, in per cent."""
    found = result.get(f"{prefix}{TASKS[task].metric}", {})
    return {language: 100 * one for language, one in found.items()}


def zero_shot(found: Mapping[str, float]) -> float | None:
    """Return the mean over the languages without training data; None without one."""
    others = [score for language, score in found.items() if language != "en"]
    return statistics.fmean(others) if others else None


def columns(task: str, languages: Sequence[str], change: str = "") -> list[Column]:
    """Return the columns of a table of scores, in per cent.

    Each language has a column, and so has the mean without English, with its range. `change` is the
    title of a column with the difference of that mean from a line's reference.
    """
    metric = TASKS[task].metric
    others = mean(metric, [name for name in languages if name != "en"], scale=100)
    made = [Column(name, mean(metric, [name], scale=100)) for name in languages]
    made.append(Column("mean but en", others, show="range"))
    return [*made, Column(change, others, show="change")] if change else made


def choice_table(
    plan: Plan, title: str, option: str, metric: str, rows: Mapping[str, Mapping[str, str]]
) -> str:
    """Return a table of the development scores behind choices, in per cent.

    The choices are the values of `option`, and `metric` chose. `rows` has runs by label and choice.
    Runs without results are left out.
    """
    found = {
        label: [plan.results.of(name).get(plan.first_seed) for name in names.values()]
        for label, names in rows.items()
    }
    cells = [
        [label, *(f"{100 * one.one(metric):.1f}" if one else "" for one in some)]
        for label, some in found.items()
        if any(some)
    ]
    return pivot.markdown([title, *plan.chosen[option]], cells) if cells else ""


def transfer_gap(found: Mapping[str, float]) -> float | None:
    """Return English minus the mean of other languages (XY-LENT Section 6.5), or None."""
    others = zero_shot(found)
    return found["en"] - others if "en" in found and others is not None else None
