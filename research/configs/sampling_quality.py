"""Six languages, 16,384 pieces, a small encoder: a comparison of output layers at equal steps.

    python -m research run sampling_quality --data=DATA --workdir=runs/sampling_quality

DATA is a folder as for `configs/real_text.py`, with `udpos`, `wikiann_ner` and `tatoeba_retrieval`
for fine-tuning and tests. Pre-training leaves out their sentences (`corpus.exclude`). This config
is k-NN sampling as published (Eqs. 4 to 6, Algorithm 2): no correction, no exact phase, and output
biases that start at zero. The study changes `output_layer`, the embedding size and the seed. To
start a single run, here with the full softmax:

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=research/configs/sampling_quality.py:DATA --workdir=runs/full \\
          --config.output_layer.kind=full
    done

The encoder leaves the unigram level within some hundred steps. It has gated positions with slopes,
Muon for the layers' matrices, and no dropout. A step has some 410 targets, so n = 500 keeps the
paper's rule |V| << n |W|: n |W| is 12 |V|. S = 4,096 is a little above the mean |V'| of k-NN
sampling, which is 5,400 until the first refresh after step 0, and 2,700 later. The paper chose its
50,000 in the same way.

Hardware: 2 CPU cores, some five hours for the study. One core does 5.7 steps per second with the
full softmax, 8.6 with k-NN. `research/configs/sampling_quality.py:runlocal` is a miniature on the
embedded corpus.
"""

from ml_collections import ConfigDict

from configs import real_text

LANGUAGES = ("de", "en", "es", "fr", "ru", "vi")


def get_config(arg: str = "") -> ConfigDict:
    """Return the config; `arg` is the data folder, or "runlocal"."""
    config = real_text.get_config(arg)
    config.data.loader = "threads"  # with TensorFlow most of the time would be its start

    config.output_layer.log_q_correction = False
    config.output_layer.full_softmax_fraction = 0.0
    config.output_layer.frequency_bias = False
    if arg == "runlocal":
        return config

    # All text is monolingual: this compares masked language modelling only.
    config.corpus.text = (
        "bible/train",
        "common_voice_text/train",
        "wikiann_text",
        "books",
        "thai_messages",
        "ntrex/train",
    )
    config.corpus.parallel = ()
    config.corpus.parallel_eval = ()
    config.data.contrast_share = 0.0
    config.corpus.languages = LANGUAGES
    config.corpus.max_train_bytes = 6_000_000

    config.vocab.target_size = 16_384
    config.vocab.sizes = tuple(range(1000, 10_001, 500))

    config.store.length = 64
    config.model.max_length = 64

    config.output_layer.k = 25
    config.output_layer.capacity = 8192
    config.output_layer.num_negatives = 4096
    config.output_layer.refresh_every = 500

    config.train.num_steps = 1500
    config.train.log_every = 5
    config.train.keep_checkpoints = 1

    config.evaluation.max_sequences = 150
    config.evaluation.max_sequences_in_training = 8
    return config
