"""Translation of your own line-aligned files, from any starting point.

    python finetune.py --config=configs/finetune/translation.py:en-de,DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

`en-de+en-fr,DATA` is one model for both directions, told apart by the symbol of the target
language. DATA has `{train,dev,test}.{en,de}`, or other names, as
`--config.task.train='("corpus.{source}.gz","corpus.{target}.gz")'`. CHECKPOINT is a working
directory of train.py or a folder of xlm export. With `--config.random_init=True` it may be a
working directory of build_vocab.py, for a model of the `architecture` section. A run of a
translation is continued. See docs/translation.md.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "en-de,") -> ConfigDict:
    directions, _, data = arg.partition(",")
    return translation("translation", directions, data)


# From VECO, Section 5.1, for En-De: layers, updates, tokens of a batch, rate, its linear warm-up
# and decay, the average of ten checkpoints, five beams. Not stated there: label smoothing, dropout
# and Adam's betas (those of Vaswani et al. 2017), its epsilon (of VECO's Table 9), no weight decay
# and no clipping, the steps between checkpoints, the length penalty (1: hypotheses compare by their
# mean log probability) and the end of the search, lengths, and the symbol of the target language.
def translation(name: str, directions: str, data: str) -> ConfigDict:
    """Return the config of a task; `directions` are joined by "+", `data` is a folder or "tfds"."""
    files = {
        split: (f"{file}.{{source}}", f"{file}.{{target}}")
        for split, file in (("train", "train"), ("validation", "dev"), ("test", "test"))
    }
    config = base(name, data, **files)
    config.task.train_languages = tuple(directions.split("+"))
    config.task.validation_languages = config.task.test_languages = ()  # those of training
    config.task.selection = "all_languages"
    config.task.max_length = 256
    config.task.buckets = (16, 32, 64, 128)
    return config
