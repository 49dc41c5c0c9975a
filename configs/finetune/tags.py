"""Sentences of your own with a tag for each word: names, parts of speech, any other.

    python finetune.py --config=configs/finetune/tags.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `train.{language}.conll`, in one language or several, and optionally `dev.{language}.conll`
and `test.{language}.conll`: a word a line, its tag in the last column, a blank line after each
sentence, columns separated by tabs or blanks; CoNLL-U; or JSON lines, Parquet and Arrow with a list
`tokens` and a list `tags` or `ner_tags` in each row. --config.task.text_column=2 and
--config.task.label_column=4 choose other columns. The training files determine the tags: spans such
as B-PER, scored as whole spans, or with `tags.py:words,DATA` any tags, scored word by word.
Development files and selection are as in `text.py`, training as for WikiANN, by first pieces.
"""

from ml_collections import ConfigDict

from configs.finetune.text import own

TASKS = {"spans": "tag_spans", "words": "tag_words"}


def get_config(arg: str = "") -> ConfigDict:
    config = own(TASKS, arg)
    config.task.text_column, config.task.label_column = "1", "-1"
    config.task.pooling = "first"
    return config
