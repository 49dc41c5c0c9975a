"""Small vocabularies, alpha = 0.7, for the encoders of `research/configs/xlm_r.py`.

    python -m xlm.launch.start --config=research/configs/vocap.py:vocap,DATA --grid=methods \\
        --workdir=DIR

The argument is a run of `RUNS`, then `,DATA`, a folder as for `configs/real_text.py`.

Hardware: one CPU core and some minutes per run.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.vocap_paper import BETAS
from research.configs import xlm_r
from research.configs.xlm_r import named

_METHODS = ("joint", "proportional", "clustered", "uniform")
# Beyond the paper: one problem for all languages at the shares f^0.3, and JOINT at the same.
_UNION = {
    "vocab.method": "union", "vocab.alpha": 0.3, "vocab.beta": 1.0, "vocab.byte_fallback": True,
}  # fmt: skip
_8K: dict[str, dict[str, Any]] = {
    "vocap": {},
    **{method: {"vocab.method": method} for method in _METHODS},
    **BETAS,
}
_16K: dict[str, dict[str, Any]] = {
    **_8K,
    "joint_even": {"vocab.method": "joint", "vocab.alpha": 0.3},
    "union": _UNION,
    "union_fair": {**_UNION, "vocab.parity": 1.0},
}

# Changes to `_base`, by run.
RUNS: dict[str, dict[str, Any]] = {
    **_8K,
    **{f"{name}_16k": {**keys, "vocab.target_size": 16_000} for name, keys in _16K.items()},
}

_COMPARED = ("vocap", *_METHODS)
_BETA_RUNS = ("beta0", "beta3", "vocap", "beta10")
# Runs by figure.
GRIDS: dict[str, tuple[str, ...]] = {
    "methods": (*_COMPARED, *named("{}_16k", _COMPARED)),
    "beta": (*_BETA_RUNS, *named("{}_16k", _BETA_RUNS)),
    "union": named("{}_16k", ("joint", "joint_even", "vocap", "union", "union_fair")),
}


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of RUN or "RUN,DATA"; the default is vocap."""
    run, _, data = (arg or "vocap").partition(",")
    if run not in RUNS:
        raise ValueError(f"vocap has no run {run!r}; there are {', '.join(RUNS)}")
    config = xlm_r.get_config(f"reference,{data}")
    config.vocab.update(method="vocap", alpha=0.7)
    config.data.alpha = 0.7
    config.update_from_flattened_dict(RUNS[run])
    return config
