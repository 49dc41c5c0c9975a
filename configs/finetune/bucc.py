"""BUCC 2018: pairs of translations mined from two texts, by an encoder without training.

    python finetune.py --config=configs/finetune/bucc.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `bucc2018/{language}-en.dev.{language}.tsv.xz`, the English text, and the gold pairs, in
this order. Dev selects the threshold and, unless --config.task.test names other data, also serves
as test data. The layer is Tatoeba's. The ratio margin scores pairs, with
--config.task.margin=absolute the cosine. tensorflow-datasets lacks the texts. VoCap has no row.
Expect a mean F1 of 66.0 from XLM-R Large (VECO, Table 1), over four languages.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base

_FILES = tuple(
    f"bucc2018/{{language}}-en.dev.{part}.tsv.xz" for part in ("{language}", "en", "gold")
)


def get_config(arg: str = "") -> ConfigDict:
    return base("bucc", arg, validation=_FILES)
