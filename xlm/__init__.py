"""Multilingual encoders: models, objectives, training, evaluation, and the way in.

`Experiment` and `Encoder` are imported when they are first used, as is what they need.
"""

import importlib
from typing import Any

_WHERE = {"Experiment": "xlm.experiment.experiment", "Encoder": "xlm.experiment.encoder"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module xlm has no attribute {name!r}")
