"""English, own or everyone's training data; one encoder of all languages or one for each.

    python -m studies.supervision --config=configs/xlm_r.py:small,DATA --workdir=DIR

XLM-R's settings of NER (Section 5.2), on NER, POS and XNLI, and its comparison with monolingual
encoders (Section 5.3). An encoder of seven languages, `languages_7`, is fine-tuned

- *en*: on English, and tested in all languages of the task; the checkpoint is selected on English
  development data, or on the mean over all languages (*en_one*), or for each language on its own
  (*en_each*), so that there are as many models as languages (Section 5.2, column #M);
- *each*: on the data of a language, and tested in it;
- *all*: on the data of all languages, selected on the mean of their development scores; of XNLI,
  whose data are translations, translate-train-all. So are an encoder of as much text as Wikipedia
  has in the seven languages, `wikipedia_7` (*all_wikipedia*; Section 5.4), and random parameters
  (*all_random*);

and an encoder of each language alone, `only_LANGUAGE`, with half the pieces or less and equal
steps, on that language (*alone*). Section 5.4 compares more in Swahili and Urdu: an encoder of as
much text as Wikipedia has (*wikipedia*), and random parameters, with the pieces of either encoder
(*random*, *wikipedia_random*), since pieces are learned from text as well.

Training data are parts of the development data (`studies.splits`), some 600 sentences of a
language, 1,494 pairs of XNLI's, since the full sets are not at hand. All runs are fine-tuned at the
rates and for the epochs of `TASKS`; embeddings are frozen where English alone is trained on, so
that tokens of other languages keep their neighbours.

Tables and a plot go to DIR/report/supervision.md. Runs of the config are in DIR as those of
`studies.grid` are, which may have the same DIR. If it is run again after a stop, it completes
missing runs; --report_only prints the tables of finished runs.

Hardware: 2 CPU cores, two hours for three seeds.
"""

import functools
import pathlib
from typing import Any

from absl import flags
from ml_collections import config_flags

from common import entry_point
from configs import grids
from configs.xlm_r import LOW
from studies import grid, runs, splits
from studies.runs import Job
from studies.supervision_report import write_report
from studies.supervision_settings import (
    ONE,
    ONE_WIKIPEDIA,
    SETTINGS,
    TASKS,
    Run,
    all_runs,
    languages_of,
)

# Keys of fine-tuning that are the same in all tasks.
_SHARED = {
    "task.text_pooling": "mean",
    "task.buckets": (32,),
    "model.attention_dropout_rate": 0.0,
    "train.batch_size": 16,
    "train.evaluations": 4,
}


def change_of(study: grid.Study, run: Run) -> dict[str, Any]:
    """Return the keys of a fine-tuning that differ from its task's config."""
    names = languages_of(study, run.task)
    languages = {"en": ("en",), "all": names, "own": (run.language,)}
    setting = SETTINGS[run.setting]
    return {
        **_SHARED,
        **TASKS[run.task],
        "optimizer.frozen": ("embeddings",) if setting.train == "en" else (),
        "task.root": splits.split_folder(study.workdir / "supervision"),
        **{
            f"task.{name}": (f"{run.task}/{name}/{{language}}.tsv",)
            for name in splits.SPLITS[run.task]
        },
        "task.max_length": study.config_of(run.encoder).store.length,
        "task.train_languages": languages[setting.train],
        "task.validation_languages": languages[setting.select],
        "task.test_languages": (run.language,) if run.language else names,
        "task.selection": setting.rule,
        "init_from": study.encoder(run.encoder, run.seed).absolute(),
        "random_init": setting.is_random,
        "model_name": run.setting,
        "train.seed": run.seed,
    }


def pretrain(study: grid.Study, name: str, seed: int) -> bool:
    """Train an encoder that something needs; return whether there was anything to do."""
    wanted = [run for run in all_runs(study) if (run.encoder, run.seed) == (name, seed)]
    paths = [study.record(name, seed), *(run.results(study.workdir) for run in wanted)]
    if all(path.exists() for path in paths):
        return False
    grid.train(study, name, seed)
    return True


def fine_tune(study: grid.Study, run: Run) -> bool:
    """Fine-tune, unless finished; return whether there was anything to do."""
    if run.results(study.workdir).exists():
        return False
    root = pathlib.Path(study.config_of(ONE).corpus.root).absolute()
    config = [f"--config=configs/finetune/{run.task}.py:{root}"]
    study.call("finetune.py", run.folder(study.workdir), change_of(study, run), config)
    return True


def do_study(study: grid.Study) -> None:
    """Execute all runs.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    root = pathlib.Path(study.config_of(ONE).corpus.root)
    of_tasks = {task: languages_of(study, task) for task in study.tasks}
    splits.write_splits(root, study.workdir / "supervision", of_tasks)
    errors = study.do(
        Job(f"data of {name}", functools.partial(grid.prepare, study, name)) for name in study.names
    )
    for seed in study.seeds:
        errors += study.do(
            Job(f"{name}, seed {seed}", functools.partial(pretrain, study, name, seed))
            for name in study.names
        )
        errors += study.do(
            Job(str(run), functools.partial(fine_tune, study, run))
            for run in all_runs(study)
            if run.seed == seed
        )
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


def main(_) -> None:
    given = flags.FLAGS
    argument = config_flags.get_config_filename(given["config"])
    tasks = runs.chosen("tasks", given.tasks, TASKS)
    names = grids.load(grids.config_of(argument, ONE)).corpus.languages
    alone = (*(f"only_{name}" for name in names), *(f"only_wikipedia_{name}" for name in LOW))
    study = grid.Study(
        argument,
        config_flags.get_override_values(given["config"]),
        grids.choose(argument, "languages"),
        [ONE, ONE_WIKIPEDIA, *alone],
        pathlib.Path(given.workdir),
        [int(seed) for seed in given.seeds],
        tasks,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        runs.claim(study.workdir, given.config)
        do_study(study)
    print(write_report(study))
    print(f"report: {(study.workdir / 'report' / 'supervision.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags(
        "Of the runs, configs/xlm_r.py:small,DATA.", "Of pre-training and fine-tuning."
    )
    flags.DEFINE_list("tasks", list(TASKS), "Tasks to fine-tune on.")
    entry_point.run(main)
