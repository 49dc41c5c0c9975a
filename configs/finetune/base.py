"""The part that all configs of fine-tuning share. Each of them sets the data and what differs.

Batch size, warm-up and weight decay are those of XY-LENT, Table 15 (of XNLI it has 12,500 steps of
warm-up, a tenth of ten epochs), and Adam's those of VECO, Table 9: VoCap's appendix C, which
learning rates and epochs are from, states none. Dropout and clipping of fine-tuning are in none
of the three. The parameters that do best on English development data are kept, as in XTREME (Hu et
al. 2020). VoCap (appendix C) and VECO (appendix B) keep those with the best average over the
development sets of all languages:
--config.task.selection=all_languages, which selects on the test data where a config says that the
development data serve as such; results and tables then say so. VoCap selects XQuAD on MLQA's
development set, and TyDiQA-GoldP on its English test set.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

TFDS = "tfds"


def base(
    name: str,
    arg: str,
    *,
    train: tuple[str, ...] = (),
    validation: tuple[str, ...] = (),
    test: tuple[str, ...] = (),
) -> ConfigDict:
    """The config of a task.

    Args:
      arg: the folder with the data, or "tfds" for tensorflow-datasets.
      train, validation, test: patterns of files below the folder; () for a split not used.
    """
    patterns = {"train": train, "validation": validation, "test": test}
    if arg == TFDS:
        patterns = {split: (TFDS,) if files else () for split, files in patterns.items()}
    config = ConfigDict()
    config.init_from = ""  # a working directory of train.py, or a folder of xlm import
    config.objective = ""  # of init_from, where that run has one of another package
    config.random_init = False  # that encoder with random parameters, to compare with
    config.model_name = ""  # in tables; the last folder of init_from by default

    config.task = ConfigDict()
    config.task.name = name
    config.task.dataset = ""  # in tables, of data of one's own; the last folder of root by default
    config.task.root = "" if arg == TFDS else arg
    config.task.update(patterns)
    config.task.train_languages = ("en",)
    config.task.validation_languages = ()  # those of the selection
    config.task.test_languages = ()
    config.task.selection = "english"  # of XTREME; "all_languages" of VoCap and VECO
    config.task.validation_share = 0.1
    config.task.labels = ()
    config.task.class_weights = ()
    config.task.text_column = "text"
    config.task.pair_column = ""
    config.task.label_column = "label"
    config.task.language_codes = ConfigDict()
    config.task.data_dir = ""
    config.task.max_length = 128
    config.task.buckets = (32, 64, 128, 256)
    config.task.stride = 128
    config.task.max_query_length = 64
    config.task.max_answer_length = 30
    config.task.n_best = 20
    config.task.pooling = "mean"
    config.task.text_pooling = "first"  # "mean" for small encoders, whose <s> may hold nothing
    config.task.cross_attention = False
    config.task.layer = 8
    config.task.margin = "ratio"
    config.task.threshold = placeholder(float)

    config.model = ConfigDict()
    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1
    config.model.dtype = "float32"
    config.model.attention = "xla"
    config.model.remat = "none"

    config.optimizer = ConfigDict()
    config.optimizer.learning_rate = 2e-5
    config.optimizer.warmup_share = 0.1
    config.optimizer.schedule = "polynomial"
    config.optimizer.decay_power = 1.0
    config.optimizer.decay_fraction = 0.1
    config.optimizer.final_rate_ratio = 0.0
    config.optimizer.beta1 = 0.9
    config.optimizer.beta2 = 0.999
    config.optimizer.epsilon = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = 1.0
    config.optimizer.embedding_update = "dense"  # "rows" for those that a step reads, of a large V
    config.optimizer.frozen = ()  # ("embeddings",): tokens of other languages keep their neighbours

    config.train = ConfigDict()
    config.train.batch_size = 32
    config.train.accumulation_steps = 1
    config.train.epochs = 10.0
    config.train.seed = 0
    config.train.evaluations = 10
    config.train.log_every = 10
    config.train.keep_checkpoints = 1
    config.train.tensorboard = False
    config.train.deterministic = False

    config.evaluation = ConfigDict()
    config.evaluation.batch_size = 32
    return config
