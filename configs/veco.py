"""VECO's pre-training runs (anonymous, ICLR 2021 submission), and small ones for two CPU cores.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/veco.py:RUN,DATA --workdir=runs/RUN
    done

IS-MLM and CS-MLM on text and on bitext, in turns, and TLM on bitext; docs/veco.md has the keys,
docs/veco_paper.md the equations. Without `,DATA` a config only shows its keys.

| run | the paper's | expected XNLI |
|---|---|---|
| large | Table 7, Large; Section 3 | 79.9 (Table 1) |
| base, base_text | Table 7, Small, with bitext and without | 67.7, 60.6 (Table 2) |
| base_xlm, base_xlm_text | MLM + TLM and only MLM on the same data | 61.2, 59.8 (Table 2) |

We ran none of these. DATA is a folder as for `configs/vocap_paper.py`, with pairs as TSV files
`bitext/*-*.tsv*` (docs/parallel_text.md). The paper has 1.36 TB of text of CommonCrawl in 50
languages, and 6.4G pairs of OPUS in 879 language pairs. Its small models had a quarter of it, in 33
languages (appendix A); `--config.corpus.languages` chooses them. `large` starts from XLM-R Large
with its vocabulary, `--config.train.init_from=FOLDER` of xlm import, and first trains only
cross-attention. `base` has 250.0M parameters (xlm estimate), the paper's Small 247M. It builds a
VoCap vocabulary; `--config.vocab.tokenizer=PATH` takes the paper's, XLM-R's of 250K.

The runs of `SMALL` need DATA as for `configs/bitext.py`. `configs/veco.py:runlocal` is a miniature
of `small` on the embedded corpus. `GRIDS` has the runs of Table 2.

Hardware: 64 V100 of 32 GB in the paper; 2 CPU cores for the small runs.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import bitext, small, xlm_r
from xlm.experiment.schema import default_config

_BASE = {
    "model.num_layers": 6,
    "evaluation.retrieval_layer": 4,
    "optimizer.learning_rate": 3e-4,
    "optimizer.beta2": 0.999,
}
_LARGE = {
    **xlm_r.size(24, 1024, 16),
    "model.remat": "full",
    "optimizer.learning_rate": 2e-4,
    "optimizer.stages": (("cross_attention", 24_000),),
}
_TEXT = {"data.pair_share": 0.0}
_XLM = {"objective": "masked_lm", "model.cross_attention": False}

# Differences from `_paper`, by run.
RUNS = {
    "large": _LARGE,
    "base": _BASE,
    "base_text": {**_BASE, **_TEXT},
    "base_xlm": {**_BASE, **_XLM},
    "base_xlm_text": {**_BASE, **_XLM, **_TEXT},
}

# Differences from `_small`, by run.
SMALL: dict[str, dict[str, Any]] = {
    "small": {},
    "small_text": _TEXT,
    "small_xlm": _XLM,
    "small_xlm_text": {**_XLM, **_TEXT},
}

# Runs by the table that compares them.
GRIDS: dict[str, tuple[str, ...]] = {
    "table2": ("base_xlm_text", "base_xlm", "base_text", "base"),
    "small_table2": ("small_xlm_text", "small_xlm", "small_text", "small"),
}


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of a run, of "RUN,DATA" or of "runlocal"; by default of large."""
    run, _, data = arg.partition(",")
    if run == "runlocal":
        config = small.runlocal()
        _veco(config)
        config.train.num_steps = 4  # some of them on pairs
        return config
    runs = {"": _LARGE, **RUNS, **SMALL}
    if run not in runs:
        raise ValueError(f"veco has no run {run!r}; there are {', '.join((*RUNS, *SMALL))}")
    config = _small() if run in SMALL else _paper()
    config.corpus.root = data
    config.update_from_flattened_dict(runs[run])
    return config


def _veco(config: ConfigDict) -> None:
    """Set the keys that all runs of the objective share."""
    config.objective = "veco"
    config.model.cross_attention = True
    config.data.update(alpha=0.5, pair_share=0.5, kinds="turns")
    config.mask.update(rate=0.15, pair_rate=0.25)
    config.train.log_every |= 1  # odd, so that both kinds are logged, which take turns


# Our choices, not in the paper: the steps in which `large` trains only cross-attention, no clipping
# of gradients, the share of `<mask>` among masked tokens (BERT's, which it names), positions of
# TLM, the sampling of language pairs (alpha as for text), the halves of a sequence of 512 as
# adjacent segments of text, 1 % held-out pairs, and 1,000 of them from each set for retrieval.
def _paper() -> ConfigDict:
    """Return the settings of Table 7 and Section 3."""
    config = default_config()
    _veco(config)
    config.corpus.parallel = ("bitext/*-*.tsv*",)
    config.corpus.parallel_heldout_fraction = 0.01
    config.corpus.parallel_as_text = False  # the monolingual text is Common Crawl, Section 3
    config.model.dtype = "bfloat16"
    config.output_layer.kind = "blockwise"
    config.optimizer.warmup_steps = 12_000
    # 512 tokens of text and 128 of pairs: 4096 pairs have as many tokens.
    config.train.update(num_steps=240_000, batch_size=1024)
    return config


def _small() -> ConfigDict:
    """Return two layers on the data of `configs/bitext.py`."""
    config = bitext.get_config("DATA")
    _veco(config)
    config.vocab.target_size = 10_000
    config.model.update(num_layers=2, mlp_size=256, unroll=2)
    config.output_layer.kind = "full"
    # Small batches: learning to use context depends on the number of steps.
    config.train.update(num_steps=2400, batch_size=16, evaluate_every=600)
    return config
