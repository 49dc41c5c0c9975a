"""The main job on the embedded corpus: a vocabulary, a small encoder, a report.

    bash scripts/quickstart.sh

or, stage by stage:

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/quickstart.py --workdir=runs/quickstart
    done

Hardware: 2 CPU cores, 4 GB, 3 minutes. Expect an exact held-out loss of 3.48 to 3.51 nats a token,
1.4 below the unigram distribution's 4.90, and translations found in 10 to 13 % (`core`, chance 2 %)
and 15 to 20 % (`everyday`, chance 0.8 %) of cases: three seeds, docs/results.md.

The argument is the corpus folder, `configs/quickstart.py:/path/to/text`; the folder `corpus` by
default. `configs/quickstart.py:runlocal` is the same job on the embedded corpus in miniature.
"""

from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is a corpus folder, or "runlocal"."""
    runlocal = arg == "runlocal"
    config = ConfigDict()
    config.objective = "masked_lm"

    config.corpus = ConfigDict()
    config.corpus.root = "corpus" if runlocal or not arg else arg
    config.corpus.text = (".",)
    config.corpus.parallel = ("*.tsv*",)
    config.corpus.parallel_eval = ()
    config.corpus.languages = ()
    config.corpus.language_codes = ConfigDict()
    config.corpus.heldout_fraction = 0.1
    config.corpus.parallel_heldout_fraction = 0.2
    config.corpus.max_train_bytes = 0
    config.corpus.exclude = ()
    config.corpus.seed = 0

    config.vocab = ConfigDict()
    config.vocab.tables = ""
    config.vocab.method = "vocap"
    config.vocab.compare = ("vocap", "proportional", "uniform", "joint", "clustered")
    config.vocab.target_size = 5000
    config.vocab.sizes = (
        *range(100, 2000, 100),
        *range(2000, 3000, 250),
        *range(3000, 10001, 1000),
    )
    config.vocab.amounts = ""
    config.vocab.alpha = 0.7
    config.vocab.beta = 0.7
    config.vocab.num_clusters = 4
    config.vocab.trainer = "nested"
    config.vocab.character_coverage = 0.9995
    config.vocab.max_piece_length = 16
    config.vocab.max_seeds = 1_000_000
    config.vocab.max_characters = 100_000_000
    config.vocab.alp_probabilities = "corpus"
    config.vocab.em_iterations = 5
    config.vocab.num_workers = 2
    config.vocab.seed = 0

    config.store = ConfigDict()
    config.store.length = 128
    config.store.parallel_length = 64
    config.store.num_workers = 2

    config.data = ConfigDict()
    config.data.alpha = 0.7
    config.data.alpha_phases = ()
    config.data.loader = "tf.data"
    config.data.prefetch = 4
    config.data.across_documents = False
    config.data.pair_share = 0.0
    config.data.contrast_share = 0.5
    config.data.pair_buckets = (32,)
    config.data.pair_positions = "continue"
    config.data.pair_alpha = 0.5

    config.model = ConfigDict()
    config.model.embedding_size = 128
    config.model.hidden_size = 128
    config.model.num_layers = 2
    config.model.num_heads = 4
    config.model.mlp_size = 256
    config.model.max_length = 128
    config.model.norm_position = "pre"
    config.model.dropout_rate = 0.0
    config.model.attention_dropout_rate = 0.0
    config.model.dtype = "float32"
    config.model.attention = "xla"
    config.model.remat = "none"
    config.model.unroll = 2  # both layers: they are small
    config.model.position = "gated"
    config.model.rotary_theta = 10_000.0
    config.model.distance_buckets = 32
    config.model.max_distance = 128
    config.model.distance_slope = 0.5
    config.model.initializer = "normal"

    config.mask = ConfigDict()
    config.mask.rate = 0.2
    config.mask.final_rate = 0.0
    config.mask.mask_share = 0.8
    config.mask.random_share = 0.1

    config.contrast = ConfigDict()
    config.contrast.weight = 1.0
    config.contrast.temperature = 0.05

    config.output_layer = ConfigDict()
    config.output_layer.kind = "knn"
    config.output_layer.k = 10
    config.output_layer.capacity = 1024
    config.output_layer.row_capacity = 0
    config.output_layer.num_negatives = 1024
    config.output_layer.group_size = 0
    config.output_layer.refresh_every = 50
    config.output_layer.log_q_correction = True
    config.output_layer.exact_fraction = 0.1
    config.output_layer.frequency_bias = True

    config.optimizer = ConfigDict()
    config.optimizer.kind = "muon"
    config.optimizer.muon_learning_rate = 0.02
    config.optimizer.muon_momentum = 0.95
    config.optimizer.learning_rate = 5e-3
    config.optimizer.warmup_steps = 100
    config.optimizer.schedule = "polynomial"
    config.optimizer.decay_power = 1.0
    config.optimizer.decay_fraction = 0.1
    config.optimizer.final_rate_ratio = 0.0
    config.optimizer.beta1 = 0.9
    config.optimizer.beta2 = 0.98
    config.optimizer.epsilon = 1e-6
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0
    config.optimizer.embedding_update = "dense"

    config.mesh = ConfigDict()
    config.mesh.data = -1
    config.mesh.fsdp = 1
    config.mesh.model = 1
    config.mesh.vocab_multiple = 128
    config.mesh.rules = (
        ("vocab", "model"),
        ("mlp", "model"),
        ("heads", "model"),
        ("embed", "fsdp"),
    )

    config.train = ConfigDict()
    config.train.num_steps = 1200
    config.train.batch_size = 16
    config.train.accumulation_steps = 1
    config.train.batch_warmup_steps = 0
    config.train.seed = 0
    config.train.init_from = ""
    config.train.log_every = 10
    config.train.evaluate_every = 300
    config.train.checkpoint_every = 300
    config.train.keep_checkpoints = 2
    config.train.keep_every = 0
    config.train.tensorboard = False
    config.train.peak_flops = 0.0
    config.train.profile_from = 0
    config.train.profile_steps = 0
    config.train.prng = "threefry2x32"

    config.evaluation = ConfigDict()
    config.evaluation.batch_size = 32
    config.evaluation.num_folds = 7
    config.evaluation.max_rows = 0
    config.evaluation.max_rows_in_training = 4
    config.evaluation.seed = 0
    config.evaluation.retrieval_layer = 2
    config.evaluation.retrieval_pivot = "en"
    config.evaluation.retrieval_max_sentences = 0

    if runlocal:
        _shrink(config)
    return config


def _shrink(config: ConfigDict) -> None:
    """The whole job in seconds, for tests."""
    config.corpus.languages = ("en", "ka", "sw")
    config.vocab.compare = ("uniform",)
    config.vocab.target_size = 600
    config.vocab.sizes = (100, 200, 300, 400, 500)
    config.vocab.num_workers = 1
    config.store.num_workers = 1
    config.data.loader = "threads"
    config.data.contrast_share = 0.0
    config.model.embedding_size = 16
    config.model.hidden_size = 32
    config.model.num_layers = 2
    config.model.num_heads = 2
    config.model.mlp_size = 64
    config.output_layer.k = 4
    config.output_layer.capacity = 512
    config.output_layer.refresh_every = 2
    config.optimizer.warmup_steps = 1
    config.train.num_steps = 2
    config.train.batch_size = 4
    config.train.log_every = 1
    config.train.evaluate_every = 2
    config.train.checkpoint_every = 2
    config.evaluation.batch_size = 8
    config.evaluation.max_rows = 2
    config.evaluation.retrieval_layer = 1
