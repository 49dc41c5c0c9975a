"""XNLI: does the premise entail the hypothesis? Trained on MultiNLI, in 15 languages.

    python finetune.py --config=configs/finetune/xnli.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `nli_en/mnli_train.tsv.xz` and `xnli/dev/{language}.tsv.xz`, which serves as test data too:
XNLI's own test files go into --config.task.test. configs/finetune/xnli.py:tfds takes all splits
from tensorflow-datasets. With all of MultiNLI expect a mean accuracy of 76.2 from XLM-R Base
(XY-LENT, Table 1), 68.7 from VoCap's XLM-R vocabulary after 1M steps and 70.5 from VoCap, 500K
(VoCap, Table 1).
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "") -> ConfigDict:
    config = base(
        "xnli", arg, train="nli_en/mnli_train.tsv.xz", validation="xnli/dev/{language}.tsv.xz"
    )
    config.optimizer.learning_rate = 1e-5  # VoCap, appendix C: 7e-6 or 1e-5, 10 epochs
    return config
