"""GLUE: eight tasks on English sentences and pairs of them.

    python finetune.py --config=configs/finetune/glue.py:TASK,DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

TASK is cola, sst2, mrpc, stsb, qqp, mnli, qnli or rte. DATA has `glue/TASK/{train,dev}.tsv.xz`, or
for stsb, qqp and mnli the official files, `glue/STS-B/train.tsv` and so on. Dev is also the test
data, since GLUE's test labels are not public. For mnli it is the matched set, the other is
--config.task.test='("glue/MNLI/dev_mismatched.tsv",)'. configs/finetune/glue.py:TASK,tfds takes all
from tensorflow-datasets.

Our papers have no settings for GLUE. Learning rate and epochs are RoBERTa's (Liu et al. 2019, Table
10: 1e-5 to 3e-5, batches of 16 or 32, at most 10 epochs). With all of the data expect from XLM-E
Base (XY-LENT, Table 3): mnli 86.1, qqp 91.5 accuracy and 88.7 F1, qnli 92.8, sst2 94.0, cola 67.4
(Matthews), rte 77.8, mrpc 90.2, stsb 91.4.
"""

from ml_collections import ConfigDict

from configs.finetune.base import TFDS, base

# Folders of the tasks that are read from the official distribution.
_OFFICIAL = {"stsb": "STS-B", "qqp": "QQP", "mnli": "MNLI"}
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


def get_config(arg: str = "cola,") -> ConfigDict:
    task, _, data = arg.partition(",")
    if task not in TASKS:
        raise ValueError(f"the task of GLUE is {task!r}, must be one of {', '.join(TASKS)}")
    if task in _OFFICIAL:
        dev = "dev_matched" if task == "mnli" else "dev"
        train, validation = (f"glue/{_OFFICIAL[task]}/{name}.tsv" for name in ("train", dev))
    else:
        train, validation = (f"glue/{task}/{name}.tsv.xz" for name in ("train", "dev"))
    config = base(task, data, train=train, validation=validation)
    if data == TFDS:
        split = "validation_matched" if task == "mnli" else "validation"
        config.task.validation = config.task.test = (f"tfds:glue/{task}:{split}",)
    return config
