"""UD-POS: the part of speech of each word, one of 17. Trained on English, in 33 languages.

    python finetune.py --config=configs/finetune/udpos.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `udpos/{train,dev,test}/{language}.tsv.xz`. configs/finetune/udpos.py:tfds takes all splits
from tensorflow-datasets. A word's state is the mean of its pieces' (VoCap, appendix C). Words are
syntactic; XTREME has fused forms instead of their parts in ar, de, es, fr, he, it and pt. Epochs
and learning rate come from VoCap, appendix C (10; 1e-5 or 2e-5). Expect a mean F1 of 72.1 from
VoCap's XLM-R vocabulary after 1M steps and 72.9 from VoCap, 500K (VoCap, Table 1), over the 33
languages and treebanks of XTREME.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "") -> ConfigDict:
    return base(
        "udpos",
        arg,
        train="udpos/train/{language}.tsv.xz",
        validation="udpos/dev/{language}.tsv.xz",
        test="udpos/test/{language}.tsv.xz",
    )
