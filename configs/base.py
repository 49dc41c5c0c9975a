"""Every key with its default: plain masked language modelling by the papers' Base encoder.

A config is `get_config()` of this file and what its run sets differently, so that a change of one
run changes no other. What a key means stands with the settings that it is read into, named here by
section. Keys that no one reads are refused, as are values out of range, where a command starts.

Defaults are also what a working directory is read with that was made before a key existed: a new
key's default is what the code did without it.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return all sections, without a corpus."""
    config = ConfigDict()
    config.objective = "masked_lm"  # xlm/experiment/objectives.py
    config.corpus = _corpus()
    config.vocab = _vocab()
    config.store = ConfigDict()  # input_pipeline/tokenization.py, PackedDatasetSettings
    config.store.length = 512
    config.store.parallel_length = 64
    config.store.num_workers = 2
    config.store.shard_bytes = 1 << 28  # 256 MiB of text
    config.data = _data()
    config.model = _model()
    config.mask = ConfigDict()  # xlm/objectives/masking.py, MaskSettings
    config.mask.rate = 0.15
    config.mask.final_rate = 0.0
    config.mask.pair_rate = 0.0  # as on text
    config.mask.mask_share = 0.8
    config.mask.random_share = 0.1
    config.contrast = ConfigDict()  # xlm/objectives/contrastive.py, ContrastSettings
    config.contrast.weight = 1.0
    config.contrast.temperature = 0.05
    config.replaced_token = _replaced_token()
    config.robust = _robust()
    config.veco = _veco()
    config.output_layer = _output_layer()
    config.optimizer = _optimizer()
    config.mesh = _mesh()
    config.train = _train()
    config.evaluation = _evaluation()
    return config


def _corpus() -> ConfigDict:
    """Text and pairs of sentences; docs/corpus_format.md."""
    corpus = ConfigDict()
    corpus.root = ""
    corpus.text = (".",)
    corpus.parallel = ()
    corpus.parallel_eval = ()
    corpus.languages = ()  # all that there are
    corpus.language_codes = ConfigDict()
    corpus.heldout_fraction = 0.001
    corpus.parallel_heldout_fraction = 0.2
    corpus.max_train_bytes = 0  # no limit
    corpus.max_train_bytes_of = ConfigDict()
    corpus.exclude = ()
    corpus.heldout_by = "text"  # or "position"
    corpus.deduplicate = True
    corpus.block_bytes = 8192  # input_pipeline/blocks.py
    corpus.parallel_as_text = True
    corpus.seed = 0
    return corpus


def _vocab() -> ConfigDict:
    """vocap/build.py, VocabularySettings, and vocap/unigram.py, TrainerSettings."""
    vocab = ConfigDict()
    vocab.tokenizer = ""  # a tokenizer that is there already, in place of one built
    vocab.tables = ""
    vocab.method = "vocap"
    vocab.compare = ()
    vocab.target_size = 250_000
    vocab.sizes = tuple(range(1000, 50_001, 1000))
    vocab.amounts = ""
    vocab.alpha = 0.7
    vocab.beta = 0.7
    vocab.allocation = ""
    vocab.num_clusters = 4
    vocab.trainer = "nested"
    vocab.character_coverage = 0.9995
    vocab.max_piece_length = 16
    vocab.max_seeds = 1_000_000
    vocab.max_characters = 100_000_000
    vocab.alp_probabilities = "corpus"
    vocab.em_iterations = 5
    vocab.num_workers = 2
    vocab.seed = 0
    return vocab


def _data() -> ConfigDict:
    """DataSettings of xlm/experiment/data.py; BitextSettings, PairSamplingSettings."""
    data = ConfigDict()
    data.alpha = 0.7
    data.alpha_phases = ()
    data.loader = "tf.data"
    data.prefetch = 4
    data.block_bytes = 0  # sequences in random order, read one by one
    data.window_blocks = 16
    data.lanes = 1
    data.read_threads = 16
    data.read_ahead = 16
    data.across_documents = False
    data.pair_share = 0.0
    data.contrast_share = 0.0
    data.kinds_in_turns = False
    data.pair_buckets = (128,)
    data.pair_positions = "continue"
    data.pair_alpha = 0.5
    data.pair_sampling = "alpha"
    data.pair_temperature = 2.0
    data.pair_pivot = "en"
    return data


def _model() -> ConfigDict:
    """xlm/models/encoder.py, EncoderSettings."""
    model = ConfigDict()
    model.embedding_size = 768
    model.hidden_size = 768
    model.num_layers = 12
    model.num_heads = 12
    model.mlp_size = 3072
    model.max_length = 512
    model.norm_position = "post"
    model.embedding_norm = True
    model.norm_epsilon = 1e-5
    model.dropout_rate = 0.1
    model.attention_dropout_rate = 0.1
    model.dtype = "float32"
    model.attention = "xla"
    model.remat = "none"
    model.unroll = 1
    model.position = "learned"
    model.rotary_theta = 10_000.0
    model.distance_buckets = 32
    model.max_distance = 128
    model.distance_slope = 0.0
    model.initializer = "normal"
    model.cross_attention = False
    return model


def _replaced_token() -> ConfigDict:
    """xlm/objectives/replaced_token.py, ReplacedTokenSettings; XLM-E's where they are stated."""
    section = ConfigDict()
    section.generator_layers = 4
    section.weight = 50.0
    section.temperature = 1.0
    section.embeddings = "shared"
    return section


def _robust() -> ConfigDict:
    """xlm/objectives/best_response.py, RobustSettings."""
    robust = ConfigDict()
    robust.num_phases = 0  # no robust sampling; the paper's is 10
    robust.rho = 0.05
    robust.rate = 0.1
    robust.min_ratio = 0.0
    robust.baseline = ""
    return robust


def _veco() -> ConfigDict:
    """xlm/objectives/cross_mlm.py, VecoSettings; the first paper's."""
    veco = ConfigDict()
    veco.is_weight = 1.0
    veco.cs_weight = 1.0
    veco.tlm_weight = 1.0
    veco.context = "causal"
    veco.flip = True
    return veco


def _output_layer() -> ConfigDict:
    """knn_sampling/output_layer.py, OutputLayerSettings."""
    layer = ConfigDict()
    layer.kind = "full"
    layer.k = 50
    layer.capacity = 65_536
    layer.row_capacity = 0  # derived
    layer.num_negatives = 50_000
    layer.group_size = 0  # all sequences of a step
    layer.refresh_every = 1000
    layer.log_q_correction = False
    layer.full_softmax_fraction = 0.0
    layer.frequency_bias = False
    return layer


def _optimizer() -> ConfigDict:
    """xlm/training/optimizer.py, OptimizerSettings, and xlm/training/schedules.py."""
    optimizer = ConfigDict()
    optimizer.kind = "adamw"
    optimizer.learning_rate = 1e-4
    optimizer.muon_learning_rate = 0.02
    optimizer.muon_momentum = 0.95
    optimizer.warmup_steps = 10_000
    optimizer.schedule = "polynomial"
    optimizer.decay_power = 1.0
    optimizer.decay_fraction = 0.1
    optimizer.final_rate_ratio = 0.0
    optimizer.beta1 = 0.9
    optimizer.beta2 = 0.98
    optimizer.epsilon = 1e-6
    optimizer.weight_decay = 0.01
    optimizer.clip_norm = 0.0  # none
    optimizer.embedding_update = "dense"
    optimizer.stages = ()  # all parameters throughout
    optimizer.restart_schedule = True
    return optimizer


def _mesh() -> ConfigDict:
    """xlm/training/sharding.py, MeshSettings."""
    mesh = ConfigDict()
    mesh.data = -1  # all devices that the other axes leave
    mesh.fsdp = 1
    mesh.model = 1
    mesh.slices = 1
    mesh.vocab_multiple = 128
    mesh.rules = (("vocab", "model"), ("mlp", "model"), ("heads", "model"), ("embed", "fsdp"))
    return mesh


def _train() -> ConfigDict:
    """xlm/training/settings.py, TrainSettings."""
    train = ConfigDict()
    train.num_steps = 1_000_000
    train.batch_size = 256
    train.accumulation_steps = 1
    train.batch_warmup_steps = 0
    train.seed = 0
    train.init_from = ""
    train.log_every = 100
    train.evaluate_every = 10_000
    train.checkpoint_every = 10_000
    train.keep_checkpoints = 2
    train.keep_every = 0
    train.verify_checkpoints = "first_and_last"  # read back; or "every"
    train.tensorboard = False
    train.peak_flops = 0.0
    train.profile_from = 0
    train.profile_steps = 0
    train.prng = "threefry2x32"
    train.deterministic = False
    return train


def _evaluation() -> ConfigDict:
    """xlm/experiment/data.py, EvaluationSettings."""
    evaluation = ConfigDict()
    evaluation.batch_size = 32
    evaluation.num_folds = 7
    evaluation.max_sequences = 1000
    evaluation.max_sequences_in_training = 64
    evaluation.seed = 0
    evaluation.retrieval_layer = 8  # of 12, as XTREME's
    evaluation.retrieval_pivot = "en"
    evaluation.retrieval_max_sentences = 1000
    evaluation.frozen_generator = ""  # none
    return evaluation
