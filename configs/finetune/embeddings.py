"""Sentence vectors, trained on pairs of your own texts: translations, questions and passages.

    python finetune.py --config=configs/finetune/embeddings.py:DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT

DATA has `train.{language}.*`, and optionally `dev` and `test`, for one or several languages or
pairs. A file has columns `query` and `passage`, or two columns between tabs, or is one of two
line-aligned files, `train.de-en.de` and `train.de-en.en`. Each text finds its partner among those
of the batch. Equal texts are never negatives of each other. --config.task.negative_columns names
columns of wrong passages. --config.train.accumulation_steps encodes a large batch in parts, and
contrasts all of it. `embeddings.py:scores,DATA` tests on pairs with a third column `score`, by
Spearman's correlation with their cosines. It trains on such pairs, or on pairs without scores. xlm
encode and xlm search use the vectors; see docs/embeddings.md.
"""

from ml_collections import ConfigDict

from configs.finetune.text import own

TASKS = {"pairs": "text_pairs", "scores": "text_similarity"}


# Batch, rate and temperature are usual for small encoders; we did not tune them.
def get_config(arg: str = "") -> ConfigDict:
    config = own(TASKS, arg)
    config.task.update(
        text_column="query", pair_column="passage", label_column="score", text_pooling="mean"
    )
    config.optimizer.learning_rate = 1e-4
    config.train.update(batch_size=128, epochs=3.0, evaluations=6)
    return config
