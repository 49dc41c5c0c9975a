"""AmericasNLI: XNLI in ten languages of the Americas, trained on English MultiNLI.

    python finetune.py --config=configs/finetune/americasnli.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `nli_en/mnli_train.tsv.xz`, `nli_en/mnli_dev.tsv.xz` to select on, since AmericasNLI is for
zero-shot transfer, and `americasnli/dev/{language}.tsv.xz` as test data. `:tfds` takes MultiNLI
from tensorflow-datasets, and --config.task.root names the folder of the rest. Training is XNLI's.
With all of MultiNLI expect a mean accuracy of 38.5 from XLM-R Base, without English (XY-LENT, Table
5).
"""

from ml_collections import ConfigDict

from configs.finetune.base import TFDS, base


def get_config(arg: str = "") -> ConfigDict:
    config = base(
        "americasnli",
        arg,
        train="nli_en/mnli_train.tsv.xz",
        validation="nli_en/mnli_dev.tsv.xz",
        test="americasnli/dev/{language}.tsv.xz",
    )
    if arg == TFDS:
        config.task.validation = ("tfds:glue/mnli:validation_matched",)
        config.task.test = ("americasnli/dev/{language}.tsv.xz",)
    config.optimizer.learning_rate = 1e-5
    return config
