"""Cross-lingual transfer with and without pre-training, with frozen and trained embeddings.

The study fine-tunes each encoder on English, for POS and NER, in four cells: from its parameters or
from random ones of the same shapes, with frozen embeddings or with all parameters trained. The
learning rate of a cell is the one of `rates` with the best English development score under the
first seed. Other seeds use only that rate. All cells of a task have equal epochs. Tatoeba is scored
after every layer and on embeddings (layer 0). Takes two hours on two cores.
"""

from collections.abc import Iterator

from research import measures, pivot, tasks
from research.pivot import Line
from research.study import Plan, Run, Study, encoder
from research.tasks import TASKS

ENCODERS = {"pretrained": "pre-trained", "random": "random parameters"}
TRAINED = {"frozen": "embeddings frozen", "all": "everything trained"}
CELLS = {
    f"{one}-{trained}": f"{label}, {what}"
    for one, label in ENCODERS.items()
    for trained, what in TRAINED.items()
}
_TUNED = ("udpos", "wikiann")


def _names(plan: Plan, task: str, cell: str) -> dict[str, str]:
    """Return the runs of a cell by learning rate."""
    return {rate: f"tasks/{task}/{cell}/{rate}" for rate in plan.chosen["rates"]}


def runs(plan: Plan) -> Iterator[Run]:
    """Plan encoders, fine-tuning and retrieval, seed by seed."""
    config = plan.config(plan.study.config)
    for seed in plan.seeds or ():
        own = encoder(plan, "encoders", seed, {}, measures.encoder)
        yield own
        for task in _TUNED:
            for cell in CELLS:
                names = _names(plan, task, cell)
                one, trained = cell.split("-")
                for rate in plan.choices(names, "selected/value", seed):
                    change = {
                        **tasks.tuning_keys(TASKS[task], rate),
                        "random_init": one == "random",
                        "model_name": one,
                        "optimizer.frozen": ("embeddings",) if trained == "frozen" else (),
                        # The vocabulary is large, so dense updates would take most of a step.
                        "optimizer.embedding_update": "rows",
                    }
                    languages = config.corpus.languages
                    yield tasks.task_run(plan, names[rate], task, own, change, languages)
        for one in ENCODERS:
            for layer in range(config.model.num_layers + 1):
                change = {"task.layer": layer, "random_init": one == "random", "model_name": one}
                name = f"tasks/tatoeba/{one}/{layer}"
                yield tasks.task_run(
                    plan, name, "tatoeba", own, change, config.corpus.languages
                )  # fmt: skip


def report(plan: Plan) -> list[str]:
    parts = []
    for task in _TUNED:
        lines = []
        for cell, label in CELLS.items():
            names = _names(plan, task, cell)
            if rate := plan.best(names, "selected/value"):
                lines.append((label, rate, names[rate]))
        parts += _score_table(plan, task, "rate", lines)
    layers = range(plan.config(plan.study.config).model.num_layers + 1)
    lines = [
        (label, str(layer), f"tasks/tatoeba/{one}/{layer}")
        for one, label in ENCODERS.items()
        for layer in layers
    ]
    parts += _score_table(plan, "tatoeba", "layer", lines)
    if not parts:
        return []
    rows = {
        f"{TASKS[task].title}: {label}": _names(plan, task, cell)
        for task in _TUNED
        for cell, label in CELLS.items()
    }
    note = "Fine-tuned on English. Means leave English out. Minimum and maximum are over seeds."
    title = "English development data"
    return [note, *parts, tasks.choice_table(plan, title, "rates", "selected/value", rows)]


def _score_table(
    plan: Plan, task: str, choice: str, named: list[tuple[str, str, str]]
) -> list[str]:
    """Return a table of the scores of runs, with label and choice; [] without results."""
    found = [(*one, plan.results.of(one[2], plan.seeds)) for one in named]
    lines = [
        Line((label, which, str(len(by_seed))), by_seed)
        for label, which, _, by_seed in found
        if by_seed
    ]
    if not lines:
        return []
    names = list(next(iter(lines[0].by_seed.values()))[TASKS[task].metric])
    header = [TASKS[task].title, choice, "seeds"]
    return [pivot.table(header, lines, tasks.columns(task, names), detectable="")]


STUDY = Study(
    "What pre-training gives other languages",
    "research/configs/crosslingual.py:DATA",
    runs,
    report,
    {"rates": ("3e-4", "1e-3", "3e-3")},
)
