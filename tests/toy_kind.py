"""A kind of task of a user's own: nothing in the project knows it.

Finding the odd word: a sentence of which one word does not belong, told by its number. An example,
a feature with arrays of its own, a head that scores tokens, a loss, decisions, a score and a line.
"""

import dataclasses
import pathlib

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

from input_pipeline.tasks import files
from input_pipeline.tasks.features import token_arrays
from input_pipeline.tasks.loading import Readers
from input_pipeline.tasks.tasks import Task
from xlm.experiment.task_kinds import TaskKind

TASK = Task("toy", "odd_word", (), ("en", "sw"), ("found",), None)


@dataclasses.dataclass(frozen=True)
class Example:
    id: str
    words: tuple[str, ...]
    odd: int | None


@dataclasses.dataclass(frozen=True, eq=False)
class Feature:
    example: int
    tokens: np.ndarray
    firsts: np.ndarray  # [N] place of each word's first token
    odd: int | None

    def arrays(self, length, pad):
        is_first = np.isin(np.arange(length), self.firsts)
        odd = {} if self.odd is None else {"odd": np.int32(self.firsts[self.odd])}
        return {**token_arrays(self.tokens, length, pad), "is_first": is_first, **odd}


class Head(nn.Module):
    @nn.compact
    def __call__(self, hidden, batch, *, deterministic):
        scores = nn.Dense(1)(hidden.astype(jnp.float32))[:, :, 0]
        return jnp.where(batch["is_first"], scores, -1e9)


def read(path: pathlib.Path, task: Task):
    for _, line in files.numbered_lines(path):
        text, _, odd = line.partition("\t")
        yield None, Example("", tuple(text.split()), int(odd) if odd else None)


def read_unlabelled(path: pathlib.Path, task: Task):
    found = [example for _, example in read(path, task)]
    return [dataclasses.replace(example, id=str(i)) for i, example in enumerate(found, 1)]


def features(options, examples, processor, special, max_length):
    rows = []
    for number, example in enumerate(examples):
        pieces = [processor.encode(word) for word in example.words]
        firsts = 1 + np.cumsum([0, *map(len, pieces[:-1])])
        tokens = np.concatenate([[special.bos], *pieces, [special.eos]])
        rows.append(Feature(number, tokens.astype(np.int32), firsts, example.odd))
    return rows


def loss(outputs, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, batch["odd"])
    return {"loss": ((losses * batch["weights"]).sum(), batch["weights"].sum())}


def decide(options, data, outputs):
    return [
        int(np.argmax(row[feature.firsts]))
        for feature, row in zip(data.features, outputs, strict=True)
    ]


def score(task, data, decided, threshold):
    right = [example.odd == one for example, one in zip(data.examples, decided, strict=True)]
    return {"found": float(np.mean(right))}


KIND = TaskKind(
    readers=Readers(read, None, read_unlabelled),
    is_labelled=lambda task, example: example.odd is not None, features=features,
    head=lambda options, encoder: Head(), loss=loss, decide=decide, score=score,
    line=lambda task, example, decided, threshold: {"prediction": example.words[decided]},
    target="odd word",
)  # fmt: skip
