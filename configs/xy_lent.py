"""XY-LENT's pre-training runs (Patra et al., ACL 2023), and small ones for two CPU cores.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/xy_lent.py:RUN,DATA --workdir=runs/RUN
    done

ELECTRA-style replaced-token detection on text (MRTD) and on many-to-many bitext (TRTD), equally
many rows of both in every step, with a VoCap vocabulary and a gated relative position bias; see
docs/xy_lent.md. Without `,DATA` a config only shows its keys.

| run | the paper's | expected XNLI |
|---|---|---|
| base, large, xl | Tables 8 and 9 | 80.5, 83.0, 84.8 (Table 1) |
| base_mlm | MLM + TLM on the same data, Table 2 | 78.4 |
| base_english | pairs with English only, near CCAligned's in Table 2 | 78.1 |
| base_250k | the same with 250K pieces, Table 2 | 76.6 |
| base_m2m | Eq. 1 in place of Eq. 2 | - |
| base_knn | the generator's softmax by k-NN sampling | - |
| modern | Base in ModernBERT's blocks, as many parameters in its layers; not the paper's | - |

We ran none of these. DATA is a folder as for `configs/vocap_paper.py`, with pairs as TSV files
`bitext/*-*.tsv*` (docs/parallel_text.md). The paper's text is CC-100, its pairs are CCMatrix (1,015
language pairs), or for an ablation multiCCAligned (2,959; 79.5, Table 2).

`small` needs DATA as for `configs/bitext.py`: 21 languages, 210 pairs from the Bible, news and
Tatoeba; a generator of one layer and a discriminator of two. `configs/xy_lent.py:runlocal` is a
miniature of `small` on the embedded corpus.

Hardware: 128 GPUs of 40 GB for Base and Large, 512 of 80 GB for XL (the paper); one CPU core and a
quarter of an hour for `small`. From `small` expect a generator 1.27 to 1.34 nats below the unigram
level and an AUC of 0.71 to 0.78 on unigram samples (six runs of one task a step, before rows of
several pairs, research/reports/results_xy_lent.md).
"""

from ml_collections import ConfigDict

from configs import bitext, mmbert, small, xlm_r
from xlm.experiment.schema import default_config

_LARGE = {
    **xlm_r.size(24, 1024, 16),
    "model.remat": "full",
    "replaced_token.generator_layers": 6,
    "train.num_steps": 500_000,
    "train.batch_size": 2 * 2048,
    "train.accumulation_steps": 1,
    "optimizer.learning_rate": 2e-4,
    "optimizer.clip_norm": 1.0,
}
_XL = {
    **xlm_r.size(48, 1536, 24),
    "model.remat": "full",
    "replaced_token.generator_layers": 8,
    "train.num_steps": 150_000,
    "train.accumulation_steps": 1,
    "optimizer.learning_rate": 1e-4,
    "optimizer.clip_norm": 1.0,
}
MLM = {"objective": "masked_lm", "mask.mask_share": 0.8, "mask.random_share": 0.1}
ENGLISH = {"data.pair_sampling": "pivot"}

# Differences from `_paper`, by run.
RUNS = {
    "base": {},
    "large": _LARGE,
    "xl": _XL,
    "base_mlm": MLM,
    "base_english": ENGLISH,
    "base_250k": {**ENGLISH, "vocab.target_size": 250_000},
    "base_m2m": {"data.pair_sampling": "m2m"},
    # As many sequences share V' as in VoCap's runs: 8192 have more targets than its capacity. VoCap
    # has no correction, but without it samples are too often a position's own target.
    "base_knn": {
        "output_layer.kind": "knn",
        "output_layer.group_size": 32,
        "output_layer.log_q_correction": True,
    },
    "modern": {**{f"model.{key}": one for key, one in mmbert.BLOCKS.items()},
               "model.mlp_size": 2048},
}  # fmt: skip

# Runs by the table that compares them.
GRIDS: dict[str, tuple[str, ...]] = {"table2": ("base_250k", "base_english", "base", "base_mlm")}


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of a run, of "RUN,DATA" or of "runlocal"; by default of base."""
    run, _, data = (arg or "base").partition(",")
    if run == "runlocal":
        config = small.runlocal()
        _replaced_tokens(config)
        config.data.update(pair_sampling="sinkhorn", pair_share=0.5, kinds="joint")
        config.output_layer.kind = "full"
        config.train.update(num_steps=4, batch_size=8)  # four rows of each task
        return config
    if run not in (*RUNS, "small"):
        raise ValueError(f"xy_lent has no run {run!r}; there are {', '.join(RUNS)}, small")
    config = _small() if run == "small" else _paper()
    config.corpus.root = data
    config.update_from_flattened_dict(RUNS.get(run, {}))
    return config


def _replaced_tokens(config: ConfigDict) -> None:
    """Set the keys that small generators and discriminators share."""
    config.objective = "replaced_token"
    config.replaced_token.generator_layers = 1
    # With a shared table the weighted gradient of the discriminator drowns the generator's.
    config.replaced_token.embeddings = "disentangled"
    config.mask.update(mask_share=1.0, random_share=0.0)


# Our choices, not in the paper: the languages' shares of text (alpha = 0.7, as in VoCap's
# vocabularies), the mask rate, `<mask>` for all masked tokens, the temperature of Eq. 2 (2, a
# square root), dropout of the discriminator, the generators' depth (XLM-E's for Base), lambda
# (XLM-E's), shared token embeddings of both models (ELECTRA's), the placement of LayerNorm, 1 %
# held-out pairs, and 1,000 of them from each set for retrieval.
# `train.batch_size` counts the rows of both tasks; each task has the tokens of Table 9.
def _paper() -> ConfigDict:
    """Return XY-LENT Base: Tables 8 and 9, Section 5 and Appendix A."""
    config = default_config()
    config.objective = "replaced_token"
    config.corpus.parallel = ("bitext/*-*.tsv*",)
    config.corpus.parallel_as_text = False  # the monolingual text is only CC-100, Section 5
    config.corpus.update(parallel_heldout_fraction=0.01, parallel_heldout_most=10_000)
    config.vocab.target_size = 500_000
    config.data.update(
        kinds="joint", pair_share=0.5, pair_sampling="sinkhorn", block_bytes=1 << 20,
        lanes=128,  # the launchers start a process for each of the 128 GPUs
        window_bytes=1 << 30,
    )  # fmt: skip
    config.mask.update(mask_share=1.0, random_share=0.0)
    config.model.update(position="gated", dtype="bfloat16", remat="dots")
    config.output_layer.kind = "blockwise"
    config.optimizer.update(learning_rate=8e-4, clip_norm=2.0)
    config.train.update(num_steps=125_000, batch_size=2 * 8192)
    config.train.accumulation_steps = 2  # 128 devices of 40 GB hold half of 16,384 rows
    return config


def _small() -> ConfigDict:
    """Return a generator of one layer and a discriminator of two, in 21 languages."""
    # Sides of pairs are text of their languages, too, as in research/reports/results_xy_lent.md.
    config = small.get_config()
    _replaced_tokens(config)
    config.corpus.update(bitext.get_config("DATA").corpus)
    config.corpus.parallel = ("bible/train", "ntrex/train", "tatoeba_bitext/*-*.tsv.xz")
    config.corpus.max_train_bytes = 1_500_000
    config.vocab.target_size = 10_000
    config.store.length = 64
    config.data.update(kinds="joint", pair_share=0.5, pair_sampling="sinkhorn")
    config.output_layer.kind = "full"
    config.optimizer.clip_norm = 2.0
    config.train.update(num_steps=4000, evaluate_every=500)
    config.evaluation.max_sequences_in_training = 16
    return config
