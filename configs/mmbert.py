"""mmBERT (Marone et al. 2025, arXiv 2509.06888): ModernBERT's encoder for 1,800 languages.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/mmbert.py:vocap,DATA --workdir=runs/mmbert
    done

The argument is a model, then `,DATA`, a folder of text, `<lang>.txt.gz`; without DATA a config is
only for looking at.

| model | what |
|---|---|
| base, small | 22 layers of 768 or 384, 256,000 pieces; 307M and 140M parameters as published |
| vocap, vocap_small | these with a VoCap vocabulary of 500,000 pieces and k-NN target sampling |

The shape is of the configs in JHU-CLSP/mmBERT and of the published config.json. Both bases of
rotary positions are 10,000 in its first phase, 160,000 in the later ones and in what is published,
and here. The pieces are this project's, not Gemma's: xlm import takes those of a published folder.

This is the shape, with the batch, the betas and the rate of its first phase, but AdamW. The phases
(1,024 tokens at mask 0.3, then 8,192 at 0.15, then the decay) are not here yet.

Hardware: GPUs or TPUs. Nothing of this size was run here.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import small
from xlm.experiment.schema import default_config

_SMALL = {"model.embedding_size": 384, "model.hidden_size": 384, "model.num_heads": 6}
_VOCAP = {
    "vocab.method": "vocap",
    "vocab.target_size": 500_000,
    "output_layer.kind": "knn",
    "output_layer.group_size": 32,
    "output_layer.row_capacity": 327_680,
    "optimizer.embedding_update": "rows",
}
MODELS: dict[str, dict[str, Any]] = {
    "base": {}, "small": _SMALL, "vocap": _VOCAP, "vocap_small": {**_SMALL, **_VOCAP},
}  # fmt: skip

# Keys of ModernBERT's blocks, for encoders of any size.
BLOCKS: dict[str, Any] = {
    "norm_position": "pre", "norm": "layer_no_bias", "first_norm": False, "bias": False,
    "mlp": "geglu", "position": "rotary", "rotary_theta": 160_000.0, "local_window": 128,
    "local_rotary_theta": 160_000.0, "global_every": 3, "initializer": "megatron",
    "dropout_rate": 0.0, "attention_dropout_rate": 0.0,
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of a model, of "MODEL,DATA" or of "runlocal"; by default of base."""
    if arg == "runlocal":
        config = small.runlocal()
        config.model.update(BLOCKS, local_window=16, num_layers=4, embedding_size=32)
        return config
    name, _, data = (arg or "base").partition(",")
    if name not in MODELS:
        raise ValueError(f"mmbert has no {name!r}; there are {', '.join(MODELS)}")
    config = default_config()
    config.corpus.root = data
    config.vocab.update(method="joint", target_size=256_000)
    config.store.length = 1024
    config.data.alpha = 0.7
    config.model.update(
        BLOCKS, num_layers=22, mlp_size=1152, max_length=8192, dtype="bfloat16", attention="auto"
    )
    config.mask.rate = 0.3
    config.output_layer.kind = "blockwise"
    config.optimizer.update(learning_rate=8e-4, beta2=0.95, epsilon=1e-8, weight_decay=8e-5)
    config.train.batch_size = 4608
    config.update_from_flattened_dict(MODELS[name])
    return config
