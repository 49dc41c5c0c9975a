"""WikiANN: names of persons, places and organisations. Trained on English, in 40 languages.

    python finetune.py --config=configs/finetune/wikiann.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `wikiann_ner/{train,dev}/{language}.tsv.xz`; dev serves as test data too.
configs/finetune/wikiann.py:tfds takes all splits from tensorflow-datasets. seqeval scores whole
names. Epochs and learning rate come from VoCap, appendix C (10; 1e-5 or 2e-5). Expect a mean F1 of
60.6 from VoCap's XLM-R vocabulary after 1M steps and 62.7 from VoCap, 500K (VoCap, Table 1), over
the 40 languages of XTREME.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "") -> ConfigDict:
    config = base(
        "wikiann",
        arg,
        train="wikiann_ner/train/{language}.tsv.xz",
        validation="wikiann_ner/dev/{language}.tsv.xz",
    )
    config.task.pooling = "first"  # piece of a word, as in XTREME
    return config
