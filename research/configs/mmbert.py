"""ModernBERT's blocks, its optimizers and mmBERT's phases at a small size.

    python -m xlm.launch.start --config=research/configs/mmbert.py:modern,DATA --grid=blocks \\
        --workdir=DIR

15 languages, two layers of width 128. The argument is a run of `RUNS`, then `,DATA`, a folder as
for `configs/real_text.py`.

Hardware: one CPU core and some minutes per run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import mmbert
from research.configs import xlm_r
from research.configs.xlm_r import named

# A window of 32 tokens in rows of 64, and a base of 100, scale the published values down. The gated
# feed-forward network has as many parameters as the plain one of 256.
_ROTARY = {"model.position": "rotary", "model.rotary_theta": 100.0}
_BLOCKS = {
    **{f"model.{key}": value for key, value in mmbert.BLOCKS.items()},
    **_ROTARY, "model.local_rotary_theta": 100.0, "model.local_window": 32,
    "model.mlp_size": 172,
}  # fmt: skip
_RATES = ("1e-3", "3e-3", "1e-2")
_FEW = ("de", "el", "en", "es", "fr", "id", "ru", "th", "vi")
_MORE = (*_FEW, "ar", "bg", "tr")
_ALL = xlm_r.LANGUAGES[15]  # with hi, sw and ur


def _phase(name: str, languages: tuple[str, ...], number: int, steps: int) -> dict[str, Any]:
    """Return phase 0, 1 or 2 with the masks, the exponent and the schedule of `mmbert.PHASES`."""
    kinds = ("data", "mask", "optimizer")
    kept = {k: v for k, v in mmbert.PHASES[number].items() if k.startswith(kinds)}
    return {"name": name, "corpus.languages": languages, "train.num_steps": steps, **kept}


def _phases(*steps: int) -> tuple[dict[str, Any], ...]:
    phases = (("pretrain", _FEW), ("extend", _MORE), ("decay", _ALL))
    return tuple(
        _phase(name, languages, number, steps[number])
        for number, (name, languages) in enumerate(phases)
    )


_PUBLISHED = _phases(1776, 528, 96)  # shares of 74, 22 and 4 %
_DECAYS = tuple(
    {**_phase(name, languages, 2, 96), "after": "extend"}
    for name, languages in (("decay_en", ("en",)), ("decay_12", _MORE), ("decay_15", _ALL))
)
_PHASED = {**_BLOCKS, "optimizer.final_rate_ratio": 1.0}
RUNS: dict[str, dict[str, Any]] = {
    "gated": {},
    "rotary": _ROTARY,
    "modern": _BLOCKS,
    **{
        f"{kind}_{rate}": {
            **_BLOCKS, "optimizer.kind": kind, "optimizer.learning_rate": float(rate)
        }
        for kind in ("adamw", "stable_adamw")
        for rate in _RATES
    },
    "phases": {**_PHASED, "phases": _PUBLISHED},
    "phases_even": {**_PHASED, "phases": _phases(1200, 600, 600)},
    "merged": {
        **_PHASED,
        "phases": (
            *_PUBLISHED[:2],
            *_DECAYS,
            {"name": "merged", "after": "extend", "method": "ties",
             "merge": tuple(one["name"] for one in _DECAYS)},
            # A phase without updates, so the merger is evaluated as a run.
            {**_phase("last", _ALL, 2, 1), "optimizer.learning_rate": 1e-9},
        ),
    },
}  # fmt: skip

# Runs by figure.
GRIDS: dict[str, tuple[str, ...]] = {
    "blocks": ("gated", "rotary", "modern"),
    "optimizers": ("modern", *named("adamw_{}", _RATES), *named("stable_adamw_{}", _RATES)),
    "phases": ("modern", "phases", "phases_even", "merged"),
}


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of RUN or "RUN,DATA"; the default is modern."""
    run, _, data = (arg or "modern").partition(",")
    if run not in RUNS:
        raise ValueError(f"mmbert has no run {run!r}; there are {', '.join(RUNS)}")
    config = xlm_r.get_config(f"reference,{data}")
    config.update_from_flattened_dict(RUNS[run])
    return config
