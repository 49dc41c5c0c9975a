"""BUCC 2018: pairs of translations mined from two texts, by an encoder as it is.

    python finetune.py --config=configs/finetune/bucc.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `bucc2018/{language}-en.dev.{language}.tsv.xz`, the English text, and the gold pairs, in
this order. Dev serves as test data, so that the threshold is the best one for the data itself; with
other test data in --config.task.test it is the one that is best on dev. The layer is as of Tatoeba;
pairs are scored by the ratio margin, --config.task.margin=absolute is the bare cosine.
tensorflow-datasets has the pairs of BUCC, but not the texts to find them in.

VoCap has no row. Expect a mean F1 of 66.0 of XLM-R Large (VECO, Table 1), over four languages.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base

_FILES = tuple(
    f"bucc2018/{{language}}-en.dev.{part}.tsv.xz" for part in ("{language}", "en", "gold")
)


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data."""
    return base("bucc", arg, validation=_FILES, test=_FILES)
