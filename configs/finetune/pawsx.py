"""PAWS-X: do two sentences of the same words mean the same? Trained on English, in 7 languages.

    python finetune.py --config=configs/finetune/pawsx.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `pawsx/train_en.tsv.xz`, which may be a part of PAWS, and `pawsx/dev/{language}.tsv.xz`,
which serves as test data too. configs/finetune/pawsx.py:tfds takes all splits from
tensorflow-datasets. With all of PAWS expect a mean accuracy of 82.6 from VoCap's XLM-R vocabulary
after 1M steps and 83.0 from VoCap, 500K (VoCap, Table 1).
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "") -> ConfigDict:
    config = base(
        "pawsx",
        arg,
        train="pawsx/train_{language}.tsv.xz",
        validation="pawsx/dev/{language}.tsv.xz",
    )
    config.optimizer.learning_rate = 1e-5  # VoCap, appendix C: 7e-6 or 1e-5, 10 epochs
    return config
