"""placeholder"""

from ml_collections import ConfigDict

from configs.finetune.translation import translation


def get_config(arg: str = "en-de,") -> ConfigDict:
    """The config; `arg` is directions joined by "+", a comma, and the folder with the data."""
    directions, _, data = arg.partition(",")
    config = translation("translation", directions, data)
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr")):
        config.task[split] = tuple(f"{name}.{{{side}}}.txt.xz" for side in ("source", "target"))
    config.random_init = True
    config.task.max_length = 64
    config.task.buckets = (16, 24, 32)

    config.architecture.update(
        embedding_size=256, hidden_size=256, num_layers=3, num_heads=4, mlp_size=512, max_length=64,
        unroll=3, position="gated", distance_slope=0.5,
    )  # fmt: skip
    config.translation.update(decoder_layers=3, output_layer="full")
    config.decoding.max_length = 64
    config.model.update(dropout_rate=0.1, attention_dropout_rate=0.0)

    config.optimizer.update(
        kind="muon", learning_rate=3e-3, muon_learning_rate=0.02, warmup_share=0.05,
        weight_decay=0.01, clip_norm=1.0,
    )  # fmt: skip
    config.train.update(
        num_steps=1500, batch_tokens=2048, averaged_checkpoints=3, log_every=20,
        evaluate_every=250, checkpoint_every=50,
    )  # fmt: skip
    config.evaluation.update(batch_tokens=2048, examples_in_training=200)
    return config
