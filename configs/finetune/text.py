"""Texts of your own, or pairs of texts, with a class or a number each.

    python finetune.py --config=configs/finetune/text.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `train.{language}.csv`, in one language or several, and optionally `dev.{language}.csv`, or
`validation.`, and `test.{language}.csv`. Without `{language}.`, a column `language`, `lang` or
`locale` names it. The content shows whether a file is CSV, TSV, JSON, Parquet or Arrow, whatever
its suffix. DATA may be a folder of `DatasetDict.save_to_disk`. Columns are `text` and `label`, or
--config.task.text_column and --config.task.label_column, by name, or by number if the first line
has no names. Pairs have a --config.task.pair_column. The training files determine the classes.
`text.py:number,DATA` has a number as label, `text.py:multilabel,DATA` any number of labels: a list
in JSON or Parquet, or a cell with --config.task.label_separator (a comma).
--config.task.class_weights=balanced gives rare classes as much weight as others. Without
development files, a tenth of the training examples of each label is held out for selection. The
mean over all development languages selects the checkpoint. Encoders as wide as XLM-R are trained as
for XNLI. Narrower ones get a higher rate and the mean state; see docs/own_task.md.
"""

from collections.abc import Mapping

from ml_collections import ConfigDict

from configs.finetune.base import base

# Ends of names: with a language, without one, of the hub's Parquet, and of saved `datasets`.
_ENDS = (".{language}.*", ".[ct]sv*", ".json*", ".conll*", ".parque[t]", "-*.parquet", "/*.arrow")
TASKS = {"class": "text_classes", "number": "text_numbers", "multilabel": "text_labels"}


def get_config(arg: str = "") -> ConfigDict:
    return own(TASKS, arg)


def own(tasks: Mapping[str, str], arg: str) -> ConfigDict:
    """Return the config of one of `tasks` by `arg`, "NAME,DATA", or of the first by "DATA"."""
    chosen, _, data = arg.partition(",")
    name, data = (tasks[chosen], data) if chosen in tasks else (next(iter(tasks.values())), arg)
    train, test, *dev = (
        tuple(split + end for end in _ENDS)
        for split in ("train", "test", "dev", "val", "valid", "validation")
    )
    config = base(name, data, train=train, validation=sum(dev, ()), test=test)
    config.task.train_languages = ()  # all languages with files
    config.task.selection = "all_languages"
    config.task.text_pooling = "by_width"
    config.optimizer.learning_rate = 0.0  # by width
    return config
