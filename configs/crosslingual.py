"""A small encoder of 21 languages whose sentences lie near their translations.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/crosslingual.py:DATA --workdir=runs/crosslingual
    done

DATA is a folder as for `configs/bitext.py`. Of the steps, three in ten are on rows of text (MLM),
two on pairs of translations that see each other (TLM), and five on pairs that do not and are
contrasted (XLCO), as InfoXLM (arXiv 2007.07834) has its three tasks. Pairs are those of
`configs/bitext.py` and of Tatoeba (`tatoeba_bitext`), whose short sentences of daily life are what
words are learnt from soonest. Of these, no sentence is trained on that the retrieval tasks ask for:
`corpus.exclude`.

"""

from ml_collections import ConfigDict

from configs import bitext


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data, or "runlocal"."""
    config = bitext.get_config(arg)
    config.data.update(pair_share=0.2, contrast_share=0.5, pair_positions="restart")
    config.mask.rate = 0.3
    if arg == "runlocal":
        config.train.num_steps = 6  # of which some are on pairs of either kind
        return config

    config.corpus.parallel = ("bible/train", "ntrex/train", "tatoeba_bitext/*-*.tsv.xz")
    config.corpus.exclude = ("tatoeba_retrieval/*.tsv.xz", "bucc2018/*.tsv.xz")
    config.data.pair_buckets = (32, 64)
    config.data.pair_alpha = 0.2
    return config
