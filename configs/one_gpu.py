"""One GPU, or a laptop's night: an encoder of your own text, as large as the budget trains.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/one_gpu.py:24gb_day,TEXT --workdir=runs/mine
    done
    xlm estimate --config=configs/one_gpu.py:24gb_day,TEXT --target=rtx4090 --price=0.4

TEXT is a folder of `<lang>.txt` files, also compressed. `24gb_day,TEXT,START` continues START, a
folder that `xlm import` made of XLM-R or mmBERT (configs/continue.py). `24gb_day` with
--config.corpus.root=TEXT ignores the amount of text.

| budget | GPU | sustained |
|---|---|---|
| laptop_night | 8 hours of two cores | 0.08 TFLOP/s |
| 24gb_day | a day of 24 GB, such as an RTX 4090 | 30 TFLOP/s |
| 80gb_day, 80gb_week | a day or a week of 80 GB, such as an A100 or H100 | 120 TFLOP/s |

The rest follows from these and the text. D, the tokens of the run, are those that the FLOPs allow,
at most 16 epochs, since more repetitions add next to nothing (Muennighoff et al. 2023), and at most
4 if START is given. The encoder is the largest of `SIZES` that sees 50 tokens a parameter of its
layers. This is more than twice the compute-optimal number (Hoffmann et al. 2022), since an encoder
is used longer than it is trained. The table has as many parameters as the layers, and a step has
sqrt(D) tokens in parts that fit the memory. Blocks and phases are mmBERT's (configs/mmbert.py),
with Muon.

Hardware: see the table. We ran steps of `laptop_night` (docs/small_runs.md), and no other budget.
"""

import importlib
import math
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from configs import mmbert, small
from xlm.common import places
from xlm.experiment import data
from xlm.experiment.schema import default_config


class Budget(NamedTuple):
    """Bytes of memory, hours, FLOPs a second that a run sustains, and tokens of a first row."""

    memory: float
    hours: float
    flops: float
    length: int

    def tokens(self, parameters: float) -> float:
        """Return the tokens for an encoder whose table is as large as its layers.

        A weight takes 2 FLOPs forward and 4 backward: in the layers for each token, in the output
        layer for each masked token.
        """
        return self.hours * 3600 * self.flops / (6 * parameters * (1 + RECIPE["mask.rate"]))


BUDGETS = {
    "laptop_night": Budget(8e9, 8, 80e9, 128),
    "24gb_day": Budget(24e9, 24, 30e12, 512),
    "80gb_day": Budget(80e9, 24, 120e12, 1024),
    "80gb_week": Budget(80e9, 168, 120e12, 1024),
}
SIZES = ((28, 1024), (22, 768), (12, 512), (6, 384), (4, 256), (2, 128))  # layers, D
_EPOCHS, _TOKENS_A_PARAMETER = 16, 50

# ModernBERT's blocks and Muon; the rate is constant, then falls by 1 - sqrt.
RECIPE: dict[str, Any] = {
    **{f"model.{key}": value for key, value in mmbert.BLOCKS.items()},
    "mask.rate": 0.3,
    "optimizer.kind": "muon", "optimizer.learning_rate": 5e-3,
    "optimizer.muon_learning_rate": 0.02, "optimizer.schedule": "wsd",
    "optimizer.decay_fraction": 0.2, "optimizer.decay_shape": "one_minus_sqrt",
}  # fmt: skip


def size(layers: int, width: int) -> dict[str, int]:
    """Return the keys of an encoder with heads of 32 or 64 and 8 D^2 parameters a layer."""
    return {
        "model.num_layers": layers, "model.hidden_size": width, "model.embedding_size": width,
        "model.num_heads": width // (32 if width < 384 else 64),
        "model.mlp_size": 8 * (4 * width // 24),
    }  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of "BUDGET", "BUDGET,TEXT", "BUDGET,TEXT,START" or "runlocal"."""
    if arg == "runlocal":
        config = small.runlocal()
        config.update_from_flattened_dict({**RECIPE, **size(2, 32)})
        config.output_layer.kind = "blockwise"
        return config
    name, text, start, *_ = *(arg or "24gb_day").split(",", 2), "", ""
    if name not in BUDGETS:
        raise ValueError(f"one_gpu has no {name!r}; there are {', '.join(BUDGETS)}")
    budget = BUDGETS[name]
    if start:
        config = importlib.import_module("configs.continue").get_config(f"{start},{text}")
        model = config.model
        of_mlp = (2 if model.mlp == "gelu" else 3) * model.mlp_size
        parameters = model.num_layers * model.hidden_size * (4 * model.hidden_size + of_mlp)
        _set_length(config, budget, min(budget.tokens(parameters), 4 * _tokens_of(config)))
        return config
    config = _from_random(budget, text)
    most = _EPOCHS * _tokens_of(config)
    for layers, width in SIZES:
        parameters = 8 * layers * width**2
        tokens = min(budget.tokens(parameters), most)
        if tokens >= _TOKENS_A_PARAMETER * parameters:
            break
    config.update_from_flattened_dict(size(layers, width))
    config.vocab.target_size = max(8 * layers * width, 4000)
    _set_length(config, budget, tokens)
    if budget.length > 128:
        config.phases = _phases(config)
    return config


def _from_random(budget: Budget, text: str) -> ConfigDict:
    """Return all keys that do not depend on the amount of text."""
    config = default_config()
    config.corpus.update(root=text, heldout_fraction=0.01, heldout_by="document")
    config.clean.update(bad_lines=0.01, long_lines=True, repeated_lines=10)
    config.vocab.update(method="union", alpha=0.3, byte_fallback=True, sizes=(), compare=())
    config.store.length = config.model.max_length = budget.length
    config.data.alpha = 0.3
    config.output_layer.kind = "blockwise"
    config.update_from_flattened_dict(RECIPE)
    config.model.dtype = "bfloat16"
    if budget.length <= 128:  # a shorter window and smaller bases, as rows are shorter
        config.model.update(local_window=budget.length // 2, rotary_theta=100.0)
        config.model.update(local_rotary_theta=100.0, dtype="float32")
    config.optimizer.update(warmup_steps=500, clip_norm=1.0)
    config.train.update(log_every=50, evaluate_every=1000, checkpoint_every=1000)
    return config


def _phases(config: ConfigDict) -> tuple[dict[str, Any], ...]:
    """Return mmBERT's phases with their shares of the tokens, on all text, in rows up to 4 L."""
    whole, length = sum(one["train.num_tokens"] for one in mmbert.PHASES), config.store.length
    config.model.max_length = 4 * length
    config.optimizer.update(schedule="polynomial", final_rate_ratio=1.0)
    found = []
    for one in mmbert.PHASES:
        own = {key: value for key, value in one.items() if key != "corpus.text"}
        own["train.num_tokens"] = config.train.num_tokens * own["train.num_tokens"] // whole
        if "store.length" in own:
            own |= {"store.length": 4 * length, "train.batch_size": config.train.batch_size // 4}
        found.append(own)
    return tuple(found)


def _tokens_of(config: ConfigDict) -> float:
    """Return the approximate tokens of the text; infinity if it does not exist (yet)."""
    if not (config.corpus.root and places.path(config.corpus.root).is_dir()):
        return math.inf
    return sum(data.text_tokens(config).values())


def _set_length(config: ConfigDict, budget: Budget, tokens: float) -> None:
    """Set D, sqrt(D) tokens a step, and its parts, which must fit into half of the memory."""
    model, length = config.model, config.store.length
    # Bytes of a token's activations in a layer (xlm/training/memory.py), twice as many in float32.
    of_token = (54 if model.dtype == "bfloat16" else 108) * model.num_layers * model.hidden_size
    of_step = max(2 ** round(math.log2(tokens) / 2), 4 * length)
    at_once = 2 ** round(math.log2(budget.memory / 2 / of_token))
    config.train.update(
        num_steps=0, num_epochs=0.0, num_tokens=int(tokens), batch_size=of_step // length,
        accumulation_steps=max(of_step // at_once, 1),
    )  # fmt: skip
