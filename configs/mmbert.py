"""mmBERT (Marone et al. 2025, arXiv 2509.06888): ModernBERT's encoder for 1,800 languages.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/mmbert.py:vocap,DATA --workdir=runs/mmbert
    done

The argument is a model, then `,DATA`; without DATA a config only shows its keys. DATA has the text
of each phase in a folder of its own, `pretrain/`, `extend/` and `decay/` with `<lang>.txt.gz`: 60,
110 and all languages in the paper. The vocabulary comes from `decay/`, which has all languages.

| model | what |
|---|---|
| base, small | 22 layers of 768 or 384, 256,000 pieces; 307M and 140M parameters as published |
| vocap, vocap_small | these with a VoCap vocabulary of 500,000 pieces and k-NN target sampling |

k-NN samples have groups of 6 sequences, one for each of 64 devices and each part of a step. A batch
of 4.7M tokens touches every row, and if devices share groups, each part reduces the table
(benchmarks/compile.py). On 64 devices of 80 GB all phases fit by `xlm estimate`: vocap needs 34 GB
at 8,192 tokens.

The shape follows the configs in JHU-CLSP/mmBERT and the published config.json. Both bases of rotary
positions are 10,000 in the first phase, 160,000 in the later ones and in the published model. The
pieces are this project's, not Gemma's; xlm import takes those of a published folder.

The three phases follow the configs there, with the tokens of its README: 2T in sequences of 1,024,
600B in sequences of 8,192, and 100B in which the rate falls by 1 - sqrt. Mask rates fall (0.3,
0.15, 0.05), and so does the exponent of the languages' shares (0.7, 0.5, 0.3). The original differs
in three points: the base model's first mask rate is 0.25, the output of attention has dropout 0.1,
and the decay runs three times and is merged.

Hardware: GPUs or TPUs. We did not run this size; `research/configs/mmbert.py` has small runs.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import small
from xlm.experiment.schema import default_config

_SMALL = {"model.embedding_size": 384, "model.hidden_size": 384, "model.num_heads": 6}
_FULL_BATCH = 4608  # sequences
# Steps for the tokens of warm-up of the rate and of the batch, on average half of the batch.
_WARMUP_STEPS = 3_000_000_000 * 2 // (_FULL_BATCH * 1024)
_BATCH_STEPS = 60_000_000_000 * 2 // (_FULL_BATCH * 1024)
_LATER = {"optimizer.warmup_steps": 0, "train.batch_warmup_steps": 0, "store.length": 8192}
PHASES: tuple[dict[str, Any], ...] = (
    {
        "name": "pretrain", "corpus.text": ("pretrain",), "train.num_tokens": 2_000_000_000_000,
        "data.alpha": 0.7, "mask.rate": 0.3,
        "model.rotary_theta": 10_000.0, "model.local_rotary_theta": 10_000.0,
    },
    {
        "name": "extend", "corpus.text": ("extend",), "train.num_tokens": 600_000_000_000,
        "data.alpha": 0.5, "mask.rate": 0.15, **_LATER,
    },
    {
        "name": "decay", "corpus.text": ("decay",), "train.num_tokens": 100_000_000_000,
        "data.alpha": 0.3, "mask.rate": 0.05, "optimizer.decay_shape": "one_minus_sqrt",
        "optimizer.final_rate_ratio": 0.02, **_LATER,
    },
)  # fmt: skip
_VOCAP = {
    "vocab.method": "vocap",
    "vocab.target_size": 500_000,
    "output_layer.kind": "knn",
    "output_layer.group_size": 6,  # 4,608 sequences in 12 parts on 64 devices
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
        config.optimizer.update(kind="stable_adamw", final_rate_ratio=1.0)
        first, second, last = (
            {k: v for k, v in one.items() if k not in ("corpus.text", "train.num_tokens")}
            for one in PHASES
        )
        first["corpus.languages"], second["store.length"], last["store.length"] = ("en",), 64, 64
        config.phases = (first, {**second, "corpus.languages": ("en", "sw")}, last)
        return config
    name, _, data = (arg or "base").partition(",")
    if name not in MODELS:
        raise ValueError(f"mmbert has no {name!r}; there are {', '.join(MODELS)}")
    config = default_config()
    config.corpus.update(root=data, text=("decay",))
    config.vocab.update(method="joint", target_size=256_000)
    config.store.length = 1024
    config.data.alpha = PHASES[0]["data.alpha"]
    config.model.update(
        BLOCKS, num_layers=22, mlp_size=1152, max_length=8192, dtype="bfloat16", attention="auto"
    )
    config.mask.rate = PHASES[0]["mask.rate"]
    config.output_layer.kind = "blockwise"
    config.optimizer.update(
        kind="stable_adamw", learning_rate=8e-4, beta2=0.95, epsilon=1e-8, weight_decay=8e-5,
        warmup_steps=_WARMUP_STEPS, final_rate_ratio=1.0,  # constant until the last phase
    )  # fmt: skip
    config.train.update(
        num_steps=0, num_tokens=PHASES[0]["train.num_tokens"], batch_size=_FULL_BATCH,
        accumulation_steps=12, batch_warmup_steps=_BATCH_STEPS,
    )  # fmt: skip
    config.update_from_flattened_dict(MODELS[name])
    config.phases = PHASES
    return config
