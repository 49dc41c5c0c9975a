"""XQuAD: questions on paragraphs of SQuAD, professionally translated, in 11 languages.

    python finetune.py --config=configs/finetune/xquad.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `xquad/xquad.{language}.json.xz`, and in place of the papers' SQuAD the English part of
TyDiQA-GoldP: `tydiqa_goldp/{train,dev}.{language}.json.xz`. With SQuAD:

    --config.task.train='("squad/train-v1.1.json",)' \\
    --config.task.validation='("squad/dev-v1.1.json",)'

configs/finetune/xquad.py:tfds trains on SQuAD 1.1 and takes all splits from tensorflow-datasets.
Epochs and learning rate come from VoCap, appendix C (4; 2e-5 or 3e-5). After training on SQuAD
expect a mean F1 / exact match of 63.4 / 47.4 from VoCap's XLM-R vocabulary after 1M steps and 66.8
/ 50.6 from VoCap, 500K (VoCap, Table 1). Expect far less from the 3,696 English questions of
TyDiQA-GoldP.
"""

from ml_collections import ConfigDict

from configs.finetune.questions import questions


def get_config(arg: str = "") -> ConfigDict:
    return questions(
        "xquad",
        arg,
        train="tydiqa_goldp/train.{language}.json.xz",
        validation="tydiqa_goldp/dev.{language}.json.xz",
        test="xquad/xquad.{language}.json.xz",
    )
