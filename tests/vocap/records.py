"""Records of builds that were never made."""

import copy
from collections.abc import Mapping
from typing import Any

SIZES = [8, 40, 80]
LANGUAGES = ("xa", "xb", "xc", "yd", "ze")  # least text first
STEP = {"size": 50, "alp": 1.0, "gain": 1.0, "pieces": 1}
METHODS = {"vocap": -30.0, "uniform": -31.0, "joint": -31.5}


def record(changes: Mapping[str, Any] | None = None, languages=LANGUAGES) -> dict[str, Any]:
    """A record without anything to warn of, with `changes` of the values at dotted keys."""
    found: dict[str, Any] = {
        "pieces": 38 * len(languages),
        "settings": {
            "method": "vocap", "compare": ["uniform", "joint"], "sizes": SIZES,
            "target_size": 38 * len(languages) + 5, "amounts": {}, "initial_sizes": {},
            "alpha": 0.7, "beta": 0.7, "character_coverage": 0.98, "max_characters": 1000,
            "max_seeds": 1000,
        },
        "languages": {
            name: {
                "amount": 1 + number, "bytes": 1200 * (1 + number),
                "probability": 0.1 + 0.05 * number,
                "resource": ("low", "mid", "high")[3 * number // len(languages)],
                "sizes": SIZES, "alp": [-50.0, -40.0, -39.0], "allocated": 40,
                "at_largest": False, "not_concave": [], "less": STEP, "more": STEP,
                "shared": 0.25, "uncovered": 0.0, "heldout_sentences": 11,
                "heldout_uncovered": 0.0, "heldout_unseen": 0.0,
            }
            for number, name in enumerate(languages)
        },
        "clusters": {},
        "first_pieces": 8 * len(languages),
        "steps": [{}] * len(languages),
        "cut": 0.5,
        "partial": None,
        "scores": {
            method: {
                name: {"alp": alp, "tokens_per_sentence": 9.0, "unknown_rate": 0.001}
                for name in languages
            }
            for method, alp in METHODS.items()
        },
    }  # fmt: skip
    found = copy.deepcopy(found)
    for key, value in (changes or {}).items():
        *path, last = key.split(".")
        place = found
        for name in path:
            place = place[name]
        place[last] = copy.deepcopy(value)
    return found
