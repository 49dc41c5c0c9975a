"""Translation of line-aligned files of one's own, from any starting point.

    python finetune.py --config=configs/finetune/translation.py:en-de,DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

Directions are joined by "+": `en-de+en-fr,DATA` is one model for both, which tells them apart by
the symbol of the target language. DATA has `{train,dev,test}.{en,de}`, or other names, as
`--config.task.train='("corpus.{source}.gz","corpus.{target}.gz")'`. CHECKPOINT is a working
directory of train.py or a folder of xlm export; with `--config.random_init=True` it may be
a working directory of build_vocab.py, for a model of the `architecture` section.
docs/translation.md has more.

From VECO, Section 5.1, for En-De: layers, updates, tokens of a batch, rate, its linear warm-up and
decay, the average of ten checkpoints, five beams. Not stated there: label smoothing, dropout and
Adam's betas (those of Vaswani et al. 2017), its epsilon (of VECO's Table 9), no weight decay and no
clipping, the steps between checkpoints, the length penalty (1: hypotheses compare by their mean log
probability) and the end of the search, lengths, and the symbol of the target language.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "en-de,") -> ConfigDict:
    """The config; `arg` is directions joined by "+", a comma, and the folder with the data."""
    directions, _, data = arg.partition(",")
    return translation("translation", directions, data)


def translation(name: str, directions: str, data: str) -> ConfigDict:
    """The config of a task of translation.

    Args:
      directions: such as "en-de", joined by "+".
      data: the folder, or "tfds".
    """
    files = {
        split: (f"{file}.{{source}}", f"{file}.{{target}}")
        for split, file in (("train", "train"), ("validation", "dev"), ("test", "test"))
    }
    config = base(name, data, **files)
    config.task.train_languages = tuple(directions.split("+"))
    config.task.validation_languages = config.task.test_languages = ()  # those of training
    config.task.selection = "all_languages"
    config.task.max_length = 256
    config.task.buckets = (16, 32, 64, 128)

    config.translation = ConfigDict()
    config.translation.decoder_layers = 6
    config.translation.decoder_from = "last"
    config.translation.needs_cross_attention = False
    config.translation.label_smoothing = 0.1
    config.translation.output_layer = "blockwise"
    config.translation.language_pieces = ConfigDict()
    config.translation.prune = False

    config.architecture = _architecture()

    config.decoding = ConfigDict()
    config.decoding.beams = 5
    config.decoding.max_length = 256
    config.decoding.length_penalty = 1.0
    config.decoding.no_repeat_ngram = 0
    config.decoding.early_stop = True  # the exact end takes nearly all steps

    del config.optimizer.embedding_update  # the softmax reads the whole table
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_share = 0.16
    config.optimizer.beta2 = 0.98
    config.optimizer.clip_norm = 0.0
    config.optimizer.kind = "adamw"
    config.optimizer.muon_learning_rate = 0.02
    config.optimizer.muon_momentum = 0.95

    config.train = ConfigDict()
    config.train.num_steps = 100_000
    config.train.batch_tokens = 65_536
    config.train.accumulation_steps = 1
    config.train.averaged_checkpoints = 10
    config.train.seed = 0
    config.train.log_every = 100
    config.train.evaluate_every = 5000
    config.train.checkpoint_every = 1000
    config.train.tensorboard = False
    config.train.deterministic = False

    config.evaluation = ConfigDict()
    config.evaluation.batch_tokens = 4096
    config.evaluation.examples_in_training = 1000
    config.evaluation.beams_in_training = 1
    return config


def _architecture() -> ConfigDict:
    """xlm/models/settings.py, EncoderSettings, of a model that starts from a vocabulary alone."""
    architecture = ConfigDict()
    architecture.embedding_size = 512
    architecture.hidden_size = 512
    architecture.num_layers = 6
    architecture.num_heads = 8
    architecture.mlp_size = 2048
    architecture.max_length = 512
    architecture.norm_position = "pre"
    architecture.embedding_norm = True
    architecture.norm_epsilon = 1e-5
    architecture.unroll = 1
    architecture.position = "learned"
    architecture.rotary_theta = 10_000.0
    architecture.distance_buckets = 32
    architecture.max_distance = 128
    architecture.distance_slope = 0.0
    architecture.initializer = "normal"
    return architecture
