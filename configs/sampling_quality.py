"""Six languages, 32,768 pieces, a small encoder: what every output layer gives on the same steps.

    python -m benchmarks.sampling_quality --config=configs/sampling_quality.py:DATA \\
        --workdir=runs/sampling_quality

DATA is a folder as for `configs/real_text.py`. This is k-NN sampling as published (Eqs. 4 to 6) but
for the output bias, which starts at log frequencies here (`output_layer.frequency_bias`); the study
sets other values in `output_layer`, and the seed. One run by itself, here with the full softmax:

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/sampling_quality.py:DATA --workdir=runs/full \\
          --config.output_layer.kind=full
    done

Hardware: 2 CPU cores, two hours for the study.
`configs/sampling_quality.py:runlocal` is the same on the embedded corpus in miniature.
"""

from ml_collections import ConfigDict

from configs import real_text

LANGUAGES = ("de", "en", "es", "fr", "ru", "vi")


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data, or "runlocal"."""
    config = real_text.get_config(arg)
    config.data.loader = "threads"  # of TensorFlow, nothing but its start would be noticed

    config.output_layer.log_q_correction = False
    config.output_layer.exact_fraction = 0.0
    if arg == "runlocal":
        return config

    config.corpus.parallel_eval = ()
    config.corpus.languages = LANGUAGES
    config.corpus.max_train_bytes = 6_000_000

    config.vocab.compare = ()
    config.vocab.target_size = 32_768
    config.vocab.sizes = tuple(range(1000, 15_001, 500))
    config.vocab.alp_probabilities = "corpus"

    # Short rows: context is learned sooner where there are few positions to choose from.
    config.store.length = 64
    config.model.max_length = 64

    config.output_layer.k = 25
    config.output_layer.capacity = 16_384
    config.output_layer.num_negatives = 4096
    config.output_layer.refresh_every = 100

    config.train.num_steps = 1500
    config.train.batch_size = 16
    config.train.log_every = 5
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 500
    config.train.keep_checkpoints = 1

    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup_steps = 100

    config.evaluation.max_rows = 150
    config.evaluation.max_rows_in_training = 8
    return config
