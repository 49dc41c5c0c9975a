"""The pre-training runs that the VoCap paper describes.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/vocap_paper.py:vocap_500k_knn,DATA --workdir=runs/knn
    done

DATA is a folder of text, `<lang>.txt.gz` with one sentence a line and a blank line after each
document, in the paper's 86 languages of more than 0.1 GB. Without `,DATA` the config only shows its
keys. The paper learns vocabularies from CommonCrawl (Table 7) and pre-trains on Wikipedia (Table
8). Then DATA is Wikipedia, and xlm count makes --config.vocab.tables=TABLES from CommonCrawl.
`configs/vocap_paper.py:runlocal` is a miniature on the embedded corpus.

XTREME averages of Table 1, a million updates (speed in brackets, relative to the first):

| run | vocabulary, output layer | expected |
|---|---|---|
| xlmr_250k | XLM-R's if `vocab.tokenizer` gives it, else JOINT, alpha 0.3; full | 60.7 (1.00) |
| joint_250k, joint_500k | one training on all text, full | 61.1 (1.00), 61.4 (0.72) |
| vocap_250k, vocap_500k | VoCap, full | 61.5 (1.00), 63.1 (0.72) |
| vocap_500k_knn | VoCap, k-NN, k = 50 | 63.7 (1.18) |
| vocap_500k_half | half embedding | 62.5 (0.94) |
| vocap_500k_knn_half | both | 62.5 (1.35) |

Tables 2 to 4, 500,000 updates on VoCap's 500K pieces: XNLI, POS, MLQA F1, speed relative to full:

| run | expected |
|---|---|
| short_full | 69.2, 71.8 (72.9 in Table 2), 59.9, 1.00 |
| short_knn (k = 50) | 69.3, 72.1, 59.6, 1.64 |
| short_k5, short_k10 | 68.5, 71.3, 58.6, 1.76; 69.3, 71.4, 58.9, 1.74 |
| short_k25, short_k100 | 69.2, 71.7, 59.8, 1.69; 69.5, 72.1, 60.0, 1.57 |
| short_target_sampling | 68.8, 71.3, 57.6, 1.56 |
| short_nce, short_neg | 56.0, 61.8, 41.1, 1.40; 56.5, 62.9, 40.1, 1.40 |
| short_beta0, short_beta3, short_beta10 (beta 0, 0.3, 1) | XNLI 66.9, 69.0, 69.5 |

Table 4 also has NER and MLQA of the beta runs, and beta = 0.7, which is short_full. Beyond the
paper is vocap_1m_knn, a million pieces. We ran none of these.

`GRIDS` has the runs of each table. Small vocabularies are in `research/configs/vocap.py`.

Hardware: 8 GPUs of 80 GB for the 500K runs at 32 rows each; see `xlm estimate` for others.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import small
from xlm.experiment.schema import default_config

_500K = {"vocab.target_size": 500_000}
_JOINT = {"vocab.method": "joint"}
_HALF = {"model.embedding_size": 384}
# The k-NN runs update the embedding table by rows. That saves one third (500K) to one half (1M) of
# the data that a dense update reads and sends. We measured the speed of scattered rows against
# whole arrays only on a CPU: on GPUs and TPUs also try --config.optimizer.embedding_update=dense.
# On synthetic text a step needs 285,000 to 320,000 rows of a table of 500,000, and 360,000 to
# 415,000 of a million (benchmarks/row_adamw.py). The metric train/table_rows has a run's number.
_KNN = {
    "output_layer.kind": "knn",
    "output_layer.row_capacity": 327_680,
    "optimizer.embedding_update": "rows",
}
_SHORT = {"train.num_steps": 500_000, **_500K}
BETAS = {f"beta{int(10 * beta)}": {"vocab.beta": beta} for beta in (0.0, 0.3, 1.0)}

# Differences from `_base`, by run.
RUNS: dict[str, dict[str, Any]] = {
    "vocap_500k_knn": {**_500K, **_KNN},
    "xlmr_250k": {**_JOINT, "vocab.alpha": 0.3},
    "joint_250k": _JOINT,
    "joint_500k": {**_JOINT, **_500K},
    "vocap_250k": {},
    "vocap_500k": _500K,
    "vocap_1m_knn": {"vocab.target_size": 1_000_000, **_KNN, "output_layer.row_capacity": 458_752},
    "vocap_500k_half": {**_500K, **_HALF},
    "vocap_500k_knn_half": {**_500K, **_KNN, **_HALF},
    "short_full": _SHORT,
    "short_knn": {**_SHORT, **_KNN},
    **{f"short_k{k}": {**_SHORT, **_KNN, "output_layer.k": k} for k in (5, 10, 25)},
    "short_k100": {
        **_SHORT, **_KNN, "output_layer.k": 100, "output_layer.capacity": 131_072,
    },
    **{f"short_{kind}": {**_SHORT, **_KNN, "output_layer.kind": kind}
       for kind in ("target_sampling", "nce", "neg")},
    **{f"short_{name}": {**_SHORT, **beta} for name, beta in BETAS.items()},
}  # fmt: skip

# Runs by the table that compares them.
GRIDS: dict[str, tuple[str, ...]] = {
    "table1": (
        "xlmr_250k", "joint_250k", "joint_500k", "vocap_250k", "vocap_500k", "vocap_500k_knn",
        "vocap_500k_half", "vocap_500k_knn_half",
    ),
    "table2": ("short_full", "short_knn", "short_target_sampling", "short_nce", "short_neg"),
    "table3": ("short_k5", "short_k10", "short_k25", "short_knn", "short_k100"),
    "table4": ("short_beta0", "short_beta3", "short_full", "short_beta10"),
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of a run, of "RUN,DATA" or of "runlocal"; by default of vocap_500k_knn."""
    if arg == "runlocal":
        config = small.runlocal()
        config.optimizer.embedding_update = "rows"
        return config
    run, _, data = (arg or "vocap_500k_knn").partition(",")
    if run not in RUNS:
        raise ValueError(f"vocap_paper has no run {run!r}; there are {', '.join(RUNS)}")
    config = _base()
    config.corpus.root = data
    config.update_from_flattened_dict(RUNS[run])
    return config


# The paper has (Sections 2.2.2, 4.1 and 4.3) 12 layers of 768, batch 256 on eight GPUs, peak rate
# 1e-4 after 10,000 steps, polynomial decay, k = 50, n = 1,000, alpha = beta = 0.7 of the
# vocabulary. It refers to Chi et al. (2021b) for the rest. We chose: alpha of the stream (that of
# the vocabulary), heads and LayerNorm (XLM-R's), feed-forward width, positions and masking
# (BERT's), 512 tokens a sequence, no clipping (RoBERTa's), power and end of the decay, Adam's
# betas, epsilon, weight decay (XY-LENT, Table 9), dropout (VECO, Table 7), groups of 32.
def _base() -> ConfigDict:
    config = default_config()
    config.data.block_bytes = 1 << 20
    config.model.dtype = "bfloat16"
    config.output_layer.group_size = 32  # rows of a device in the paper
    return config
