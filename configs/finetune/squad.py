"""SQuAD 1.1 or 2.0: questions on English paragraphs, in 2.0 also unanswerable ones.

    python finetune.py --config=configs/finetune/squad.py:VERSION,DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

VERSION is 1.1 or 2.0. DATA has the official files `squad/train-vVERSION.json` and
`squad/dev-vVERSION.json`; dev serves as test data too, since SQuAD's own is not public.
configs/finetune/squad.py:2.0,tfds takes them from tensorflow-datasets. For 2.0 dev selects the
threshold between an answer and none, as in the official script. Training is XQuAD's; VoCap has no
row. For 2.0 expect an F1 / exact match of 85.3 / 82.3 from XLM-E Base (XY-LENT, Table 3).
"""

from ml_collections import ConfigDict

from configs.finetune.base import TFDS
from configs.finetune.questions import questions

TASKS = {"1.1": "squad", "2.0": "squad2"}


def get_config(arg: str = "1.1,") -> ConfigDict:
    version, _, data = arg.partition(",")
    if version not in TASKS:
        raise ValueError(f"the version of SQuAD is {version!r}, must be 1.1 or 2.0")
    config = questions(
        TASKS[version],
        data,
        train=f"squad/train-v{version}.json",
        validation=f"squad/dev-v{version}.json",
    )
    if data == TFDS:
        config.task.test = (f"tfds:squad/v{version}:validation",)
    return config
