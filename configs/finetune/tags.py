"""Sentences of your own with a tag for each word: names, parts of speech, any other.

    python finetune.py --config=configs/finetune/tags.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `train.{language}.conll`, and `dev.{language}.conll` and `test.{language}.conll` where
there are such, in one language or several: a word a line, its tag in the last column, a blank
line after each sentence; columns separated by tabs or blanks, or CoNLL-U.
--config.task.text_column=2 and --config.task.label_column=4 name other columns, by number. The
tags are those of the training files: spans such as B-PER, scored as whole spans; of any other
kind with `tags.py:words,DATA`, scored word by word.

Without development files a tenth of the training sentences is held out by a hash of their words,
to select on. The checkpoint is selected on the mean over the languages of the development data.

Trained as WikiANN: a word is tagged at its first piece. Expect what your data give.
"""

from ml_collections import ConfigDict

from configs.finetune.text import own

TASKS = {"spans": "tag_spans", "words": "tag_words"}


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data, after "spans," or "words," if need be."""
    scored, _, data = arg.partition(",")
    if scored not in TASKS:
        scored, data = "spans", arg
    config = own(TASKS[scored], data)
    config.task.text_column, config.task.label_column = "1", "-1"
    config.task.pooling = "first"
    return config
