"""Translation of your own line-aligned files, from any starting point.

    python finetune.py --config=configs/finetune/translation.py:en-de,DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

`small,en-de,DATA` is a small model from random parameters, for CPU cores. CHECKPOINT is then a
working directory of build_vocab.py (docs/tutorials/translation.md).

`en-de+en-fr,DATA` is one model for both directions, with a symbol for each target language. DATA
has `{train,dev,test}.{en,de}`, or other names, as
`--config.task.train='("corpus.{source}.gz","corpus.{target}.gz")'`. CHECKPOINT is a working
directory of train.py or a folder of xlm export. With `--config.random_init=True` it may be a
working directory of build_vocab.py, for a model of the `architecture` section. From a run of a
translation, training continues. See docs/translation.md.
"""

from ml_collections import ConfigDict

from configs.finetune.base import base


def get_config(arg: str = "en-de,") -> ConfigDict:
    is_small = arg.startswith("small,")
    directions, _, data = arg.removeprefix("small,").partition(",")
    config = translation("translation", directions, data)
    if is_small:
        small(config)
    return config


# From VECO, Section 5.1, for En-De: layers, updates, tokens of a batch, rate, its linear warm-up
# and decay, the average of ten checkpoints, five beams. Not stated there: label smoothing, dropout
# and Adam's betas (Vaswani et al. 2017), its epsilon (VECO, Table 9), no weight decay and no
# clipping, the steps between checkpoints, the length penalty (1: hypotheses compare by their mean
# log probability) and the end of the search, lengths, and the symbol of the target language.
def translation(name: str, directions: str, data: str) -> ConfigDict:
    """Return the config of a task; `directions` are joined by "+", `data` is a folder or "tfds"."""
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
    return config


def small(config: ConfigDict) -> None:
    """Set a model of two layers of 128 and Muon's rates, for sentences of up to 64 tokens."""
    config.random_init = True
    config.task.max_length = 64
    config.task.buckets = (16, 32)
    config.architecture.update(
        embedding_size=128, hidden_size=128, num_layers=2, num_heads=4, mlp_size=512, max_length=64,
        unroll=2, position="gated", distance_slope=0.5,
    )  # fmt: skip
    config.translation.update(decoder_layers=2, output_layer="full")
    config.decoding.max_length = 64
    config.model.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    config.optimizer.update(
        kind="muon", learning_rate=5e-3, muon_learning_rate=0.02, warmup_share=0.05,
        weight_decay=0.01, clip_norm=1.0,
    )  # fmt: skip
    config.train.update(
        num_steps=2000, batch_tokens=1024, averaged_checkpoints=3, log_every=20,
        evaluate_every=400, checkpoint_every=100,
    )  # fmt: skip
    config.evaluation.update(batch_tokens=2048, examples_in_training=128)
