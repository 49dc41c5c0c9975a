"""Twenty languages of real text, half of the steps on pairs of translations (TLM).

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/bitext.py:DATA --workdir=runs/bitext
    done
    # the same without pairs, to compare the retrieval of translations with
    python train.py --config=configs/bitext.py:DATA --workdir=runs/no_bitext \\
        --config.data.pair_share=0.0

DATA is a folder as for `configs/real_text.py`. Its NTREX, 1,400 sentences in all twenty languages,
makes 190 pairs of languages. Pairs are padded to 64 or 128 tokens; positions go on through both
sentences (`--config.data.pair_positions=restart` for the other convention).

Hardware: 2 CPU cores. `configs/bitext.py:runlocal` is the same on the embedded corpus in miniature.
"""

from ml_collections import ConfigDict

from configs import real_text


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data, or "runlocal"."""
    config = real_text.get_config(arg)
    config.data.pair_share = 0.5
    config.data.pair_buckets = (64, 128)
    if arg == "runlocal":
        config.train.num_steps = 4  # of which some are on pairs
        return config

    config.corpus.text = tuple(path for path in config.corpus.text if path != "ntrex/train")
    config.corpus.parallel = ("ntrex/train",)
    config.corpus.parallel_heldout_fraction = 0.0  # ntrex/dev is there for that
    config.vocab.compare = ()
    return config
