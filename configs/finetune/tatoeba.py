"""Tatoeba: translations of English sentences, found by the vectors of an encoder without training.

    python finetune.py --config=configs/finetune/tatoeba.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `tatoeba_retrieval/{language}-en.tsv.xz`, up to 1,000 pairs each. A sentence's vector is
the mean of its text's states after two thirds of the layers (`task.layer`), such as 8 of 12. XTREME
takes 8 of 12 and 14 of 24, and includes the states of specials. configs/finetune/tatoeba.py:tfds
takes the data from tensorflow-datasets. VoCap has no row. Expect a mean accuracy of 57.3 from XLM-R
Large (VECO, Table 1).
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "") -> ConfigDict:
    return base("tatoeba", arg, test="tatoeba_retrieval/{language}-en.tsv.xz")
