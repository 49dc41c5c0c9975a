"""Development examples split off the training data, where there is no file of them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

_UNIT = 1 << 32


def is_held_out(example: Any, share: float) -> bool:
    """Whether an example is one of the share that is not trained on.

    By a hash of its text alone: the same text is always on the same side, whatever its label, its
    place or the other examples.

    Args:
      example: one with `content`, its text.
      share: of the examples, between 0 and 1; met on average.
    """
    text = json.dumps(example.content, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * _UNIT


def part(examples: Sequence[Any], share: float, *, held_out: bool, where: str) -> list[Any]:
    """The examples that are held out, or the others.

    Args:
      examples: of the training data.
      share: see `is_held_out`.
      held_out: which of the two.
      where: task and language, for messages.

    Raises:
      ValueError: there is none on one side.
    """
    found = [is_held_out(example, share) for example in examples]
    if all(found) or not any(found):
        raise ValueError(
            f"{where}: there is no development file, and task.validation_share = {share} of the "
            f"{len(examples)} training examples leaves {sum(found)} to select on and "
            f"{len(found) - sum(found)} to train on; add a development file (task.validation), or "
            "change the share"
        )
    return [example for example, is_out in zip(examples, found, strict=True) if is_out == held_out]
