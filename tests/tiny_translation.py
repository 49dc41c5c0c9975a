"""A tiny task of translation, and runs of it: words of one language are swapped for others."""

import dataclasses
import functools
import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs.finetune import translation
from tests import tiny_tasks
from xlm.interop import model_folder

WORDS = ("the", "cat", "dog", "runs", "sleeps", ".")
# Each word's translation is the next one.
SETTINGS = dataclasses.replace(
    tiny_tasks.SETTINGS, num_layers=3, norm_position="pre", dropout_rate=0.0,
    attention_dropout_rate=0.0,
)  # fmt: skip


def translated(text: str) -> str:
    return " ".join(WORDS[(WORDS.index(word) + 1) % len(WORDS)] for word in text.split())


@functools.cache
def data_folder() -> pathlib.Path:
    """Aligned files of English and German, and of French, which is English."""
    root = tiny_tasks.scratch() / "translation"
    rng = np.random.default_rng(0)
    for split, count in (("train", 96), ("dev", 12), ("test", 11)):
        texts = [" ".join(rng.choice(WORDS, rng.integers(1, 4))) for _ in range(count)]
        for language, lines in (("en", texts), ("de", map(translated, texts)), ("fr", texts)):
            tiny_tasks.write(root / f"{split}.{language}", "".join(f"{x}\n" for x in lines))
    return root


@functools.cache
def vocabulary_folder() -> pathlib.Path:
    """A working directory of build_vocab.py."""
    folder = tiny_tasks.scratch() / "vocabulary"
    (folder / "vocab").mkdir(parents=True)
    (folder / "vocab" / "spm.model").write_bytes(tiny_tasks.tokenizer())
    return folder


@functools.cache
def checkpoint(cross_attention: bool) -> pathlib.Path:
    """An exported model, with a decoder or without."""
    folder = tiny_tasks.scratch() / f"checkpoint-{cross_attention}"
    settings = dataclasses.replace(SETTINGS, cross_attention=cross_attention)
    params, sizes = tiny_tasks.params(settings), dataclasses.asdict(settings)
    model_folder.write_model(folder, params, sizes, tiny_tasks.tokenizer())
    return folder


def config(directions: str = "en-de", **overrides: Any) -> ConfigDict:
    """A config so small that a run of it takes seconds; keys of overrides have __ for dots."""
    made = translation.get_config(f"{directions},{data_folder()}")
    made.init_from, made.random_init = str(vocabulary_folder()), True
    made.task.update(max_length=tiny_tasks.LENGTH, buckets=())
    sizes = dataclasses.asdict(SETTINGS)
    made.architecture.update({key: sizes[key] for key in made.architecture})
    made.model.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    made.translation.update(decoder_layers=1, output_layer="full")
    made.decoding.update(beams=2, max_length=tiny_tasks.LENGTH)
    made.optimizer.update(learning_rate=1e-2, warmup_share=0.1)
    made.train.update(
        num_steps=8, batch_tokens=24 * 16, averaged_checkpoints=2, log_every=1,
        evaluate_every=4, checkpoint_every=4,
    )  # fmt: skip
    # The search in training is the one at its end: one program.
    made.evaluation.update(batch_tokens=24 * 8, examples_in_training=4, beams_in_training=2)
    made.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    return made
