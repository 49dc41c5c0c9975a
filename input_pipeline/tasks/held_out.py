"""Development examples split off the training data, for tasks without a file of them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def part(examples: Sequence[Any], share: float, *, held_out: bool, where: str) -> list[Any]:
    """Return the examples that are `held_out`, or the others.

    `share` of the different texts, at least one, is held out: those with the smallest hashes. So a
    text is on one side only, whatever its label and place, and adding examples moves few others.
    Raise ValueError unless 0 < share < 1 and there are enough texts for both sides.
    """
    if not 0 < share < 1:
        raise ValueError(
            f"task.validation_share is {share}, must be between 0 and 1; or name development files "
            "in task.validation"
        )
    keys = [_hash(example) for example in examples]
    texts = sorted(set(keys))
    count = max(round(share * len(texts)), 1)
    if count >= len(texts):
        raise ValueError(
            f"{where}: there is no development file, and of {len(texts)} different training texts "
            f"task.validation_share = {share} leaves {len(texts) - count} to train on; add a "
            "development file (task.validation), or more examples"
        )
    last = texts[count - 1]
    return [
        example for example, key in zip(examples, keys, strict=True) if (key <= last) == held_out
    ]


def _hash(example: Any) -> bytes:
    text = json.dumps(example.content, ensure_ascii=False)
    return hashlib.sha256(text.encode()).digest()
