"""Keys that all configs of extractive question answering share.

Windows of 384 tokens begin every 128, and questions have 64, as in XTREME. An encoder with fewer
positions needs, for example, --config.task.max_length=128 --config.task.stride=64
--config.task.max_query_length=32.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.finetune.base import base


def questions(name: str, arg: str, **patterns: Any) -> ConfigDict:
    config = base(name, arg, **patterns)
    config.task.max_length = 384
    config.optimizer.learning_rate = 3e-5
    config.train.epochs = 4.0
    return config
