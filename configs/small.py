"""Keys of small encoders: two layers of 128 that learn from context within some hundred steps.

Other configs add their data. Learned positions keep an encoder of this size at the unigram level
for thousands of steps. A gated bias by distance with initial slopes, and Muon for the layers'
matrices, avoid this (docs/small_runs.md). The output layer is k-NN sampling with correction.
"""

from ml_collections import ConfigDict

from xlm.common import packages
from xlm.experiment.schema import default_config


def get_config() -> ConfigDict:
    """Return the config of a small encoder, without a corpus."""
    config = default_config()
    config.corpus.heldout_fraction = 0.02
    # Finer than the papers' thousands, for little text.
    config.vocab.sizes = (
        *range(100, 2000, 100),
        *range(2000, 3000, 250),
        *range(3000, 10_001, 1000),
    )
    config.store.length = 128

    config.model.update(
        embedding_size=128, hidden_size=128, num_layers=2, num_heads=4, mlp_size=256,
        max_length=128, norm_position="pre", dropout_rate=0.0, attention_dropout_rate=0.0,
        unroll=2,  # both small layers
        position="gated", distance_slope=0.5,
    )  # fmt: skip
    config.mask.rate = 0.2
    config.output_layer.update(
        kind="knn", k=20, capacity=6144, num_negatives=1024, refresh_every=100,
        log_q_correction=True, full_softmax_fraction=0.1, frequency_bias=True,
    )  # fmt: skip
    config.optimizer.update(kind="muon", learning_rate=5e-3, warmup_steps=100, clip_norm=1.0)
    config.train.update(
        num_steps=3000, batch_size=32, log_every=10, evaluate_every=500, checkpoint_every=500
    )
    # All held-out sequences and all sentences.
    config.evaluation.update(max_sequences=0, retrieval_max_sentences=0)
    config.evaluation.update(max_sequences_in_training=4, retrieval_layer=2)
    return config


def runlocal() -> ConfigDict:
    """Return a job on the embedded corpus that takes seconds, for tests."""
    config = get_config()
    config.corpus.root = str(packages.embedded("corpus"))
    config.corpus.update(parallel=("*.tsv*",), languages=("en", "ka", "sw"), heldout_fraction=0.1)
    config.vocab.update(
        compare=("uniform",), target_size=600, sizes=(100, 200, 300, 400, 500), num_workers=1
    )
    config.store.num_workers = 1
    config.data.loader = "threads"
    config.model.update(embedding_size=16, hidden_size=32, num_layers=2, num_heads=2, mlp_size=64)
    config.model.unroll = 1  # compiles sooner
    config.output_layer.update(k=4, capacity=512, refresh_every=2)
    config.optimizer.warmup_steps = 1
    config.train.update(
        num_steps=2, batch_size=4, log_every=1, evaluate_every=2, checkpoint_every=2
    )
    config.evaluation.update(batch_size=8, max_sequences=2, retrieval_layer=1)
    return config
