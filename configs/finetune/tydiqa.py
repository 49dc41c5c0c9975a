"""TyDiQA-GoldP: questions people wanted answered, in 9 languages. Trained on English.

    python finetune.py --config=configs/finetune/tydiqa.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `tydiqa_goldp/{train,dev}.{language}.json.xz`. Dev serves as test data too, as in XTREME,
and its English part for selection. configs/finetune/tydiqa.py:tfds takes all splits from
tensorflow-datasets. Expect a mean F1 / exact match of 45.2 / 29.6 from VoCap's XLM-R vocabulary
after 1M steps and 50.0 / 34.5 from VoCap, 500K (VoCap, Table 1).
"""

from ml_collections import ConfigDict

from configs.finetune.questions import questions


def get_config(arg: str = "") -> ConfigDict:
    config = questions(
        "tydiqa",
        arg,
        train="tydiqa_goldp/train.{language}.json.xz",
        validation="tydiqa_goldp/dev.{language}.json.xz",
    )
    config.train.epochs = 8.0  # VoCap, appendix C: 6 or 8, rates 2e-5 or 3e-5
    return config
