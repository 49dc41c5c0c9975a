"""Texts of your own, or pairs of texts, with a class or a number each.

    python finetune.py --config=configs/finetune/text.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `train.{language}.csv`, and `dev.{language}.csv` and `test.{language}.csv` where there
are such, in one language or several; CSV, TSV and JSON are told apart by content, whatever
the end of the name. Files have the columns `text` and `label`, or those of
--config.task.text_column and --config.task.label_column, by name, or by number in files without a
first line of names; pairs have a --config.task.pair_column. The classes are those of the training
files. `text.py:number,DATA` has a number as label. --config.task.class_weights=balanced gives
rare classes as much weight as others.

Without development files a tenth of the training examples is held out by a hash of their text, to
select on. The checkpoint is selected on the mean over the languages of the development data.

Trained as XNLI. Expect what your data give: docs/own_task.md goes through an example.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base

TASKS = {"class": "text_classes", "number": "text_numbers"}


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data, after "class," or "number," if need be."""
    label, _, data = arg.partition(",")
    if label not in TASKS:
        label, data = "class", arg
    return own(TASKS[label], data)


def own(name: str, data: str) -> ConfigDict:
    """The config of a task on files of one's own."""
    config = base(
        name,
        data,
        train=("train.{language}.*",),
        validation=("dev.{language}.*",),
        test=("test.{language}.*",),
    )
    config.task.train_languages = ()  # all that there are files for
    config.task.selection = "all_languages"
    return config
