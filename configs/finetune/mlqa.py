"""MLQA: questions on paragraphs of Wikipedia in 7 languages, each in its own language.

    python finetune.py --config=configs/finetune/mlqa.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `mlqa/dev-context-{language}-question-{language}.json.xz`, MLQA's development data, which
serves as test data, and in place of the papers' SQuAD the English part of TyDiQA-GoldP:
`tydiqa_goldp/{train,dev}.{language}.json.xz`. With SQuAD and MLQA's test data:

    --config.task.train='("squad/train-v1.1.json",)' \\
    --config.task.validation='("mlqa/dev-context-{language}-question-{language}.json",)' \\
    --config.task.test='("mlqa/test-context-{language}-question-{language}.json",)'

configs/finetune/mlqa.py:tfds trains on SQuAD 1.1 and takes all splits from tensorflow-datasets.
MLQA's own rules for each language compare answers. Epochs and learning rate come from VoCap,
appendix C (4; 2e-5 or 3e-5). After training on SQuAD expect a mean F1 / exact match of 57.2 / 39.6
from VoCap's XLM-R vocabulary after 1M steps and 60.9 / 42.9 from VoCap, 500K (VoCap, Table 1).
"""

from ml_collections import ConfigDict

from configs.finetune.questions import questions


def get_config(arg: str = "") -> ConfigDict:
    return questions(
        "mlqa",
        arg,
        train="tydiqa_goldp/train.{language}.json.xz",
        validation="tydiqa_goldp/dev.{language}.json.xz",
        test="mlqa/dev-context-{language}-question-{language}.json.xz",
    )
