"""Texts that belong together, to train sentence vectors: examples, their files, features."""

import dataclasses
import pathlib
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece as spm

from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tasks import delimited, files, tables, translation
from input_pipeline.tasks.examples import BadRow, TextExample
from input_pipeline.tasks.features import text_features, token_arrays
from input_pipeline.tasks.tasks import Task

# One side of two aligned files, as OPUS names them: train.de-en.de and train.de-en.en.
_ALIGNED = re.compile(r"(.*\.([^.-]+)-([^.-]+)\.)(\2|\3)((?:\.(?:gz|xz|bz2|zst))?)")


@dataclasses.dataclass(frozen=True)
class EmbeddingExample:
    """A query, its passage, and passages that are wrong for it: `texts`.

    `label` is the similarity of the first two, if known. A hold-out keeps a `group` on one side.
    """

    id: str
    texts: tuple[str, ...]
    label: float | None = None
    group: str = dataclasses.field(default="", compare=False)

    @property
    def content(self) -> tuple[str, ...]:
        return self.texts


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingFeature:
    """The texts of an example, S rows `<s> text </s>` of int32 ids.

    `ids` [S] int32 are equal for equal texts, `label` is the example's. The vector is a mean over a
    text's tokens or, with `reads_first`, the state of `<s>`. `teacher` [D] float32 is a vector to
    learn.
    """

    example: int
    rows: tuple[np.ndarray, ...]
    ids: np.ndarray
    reads_first: bool
    label: float | None = None
    teacher: np.ndarray | None = None

    @property
    def tokens(self) -> np.ndarray:
        """Ids of the longest text."""
        return max(self.rows, key=len)

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        """Return arrays [S, length] as of other features; `pooled` marks the tokens to average."""
        made = [token_arrays(row, length, pad) for row in self.rows]
        arrays = {name: np.stack([one[name] for one in made]) for name in made[0]}
        index, sizes = np.arange(length), np.array([len(row) for row in self.rows])[:, None]
        is_text = (index > 0) & (index < sizes - 1)
        pooled = np.broadcast_to(index == 0, is_text.shape) if self.reads_first else is_text
        arrays |= {"pooled": pooled, "text_ids": self.ids}
        if self.label is not None:
            arrays["labels"] = np.array(self.label, np.float32)
        return arrays if self.teacher is None else {**arrays, "teacher": self.teacher}


def embedding_features(
    examples: Sequence[EmbeddingExample], processor: spm.SentencePieceProcessor,
    special: SpecialIds, max_length: int, query_prefix: str = "", passage_prefix: str = "",
    reads_first: bool = False,
) -> list[EmbeddingFeature]:  # fmt: skip
    """Return a feature of each example; cut texts that are too long, with a warning."""
    texts = [
        TextExample(one.id, (passage_prefix if place else query_prefix) + text, None, None)
        for one in examples
        for place, text in enumerate(one.texts)
    ]
    rows = iter(text_features(texts, processor, special, max_length))
    found = []
    for number, one in enumerate(examples):
        own = tuple(next(rows).tokens for _ in one.texts)
        ids = np.array([zlib.crc32(text.encode()) for text in one.texts], np.uint32)
        found.append(EmbeddingFeature(number, own, ids.view(np.int32), reads_first, one.label))
    return found


def read_examples(path: pathlib.Path, task: Task) -> delimited.Found:
    """Yield (language, example) of a file; the language is None unless a column names it.

    A file is a table of `tables`. If its first line has tabs and does not name the task's columns,
    these are the first ones. Or it is one of two line-aligned files, read with the first of them.
    A `BadRow` stands for a row of another width, with an empty text, or a label that is not a
    number. Examples have a label if the task is scored by labels, and the first line names their
    column or has one column more. Raise ValueError if a column or the other file is missing.
    """
    if match := _ALIGNED.fullmatch(path.name):
        stem, *codes, _, packed = match.groups()
        sides = [path.with_name(f"{stem}{one}{packed}") for one in codes]
        if missing := [one for one in sides if not one.is_file()]:
            raise ValueError(f"{path}: the other side, {missing[0]}, does not exist; add it")
        pairs = files.read_pairs(sides) if path == sides[0] else ()
        for pair in translation.without_empty(pairs, f"{sides[0]} and {sides[1]}", "line", 1):
            yield None, EmbeddingExample("", pair)
        return
    text, columns = tables.content(path), task.columns
    assert columns is not None, f"{task.name} is not read from columns"
    names, label = [*columns.text, *columns.pair], columns.label if task.has_scored_pairs else ()
    has_names = tables.has_names(text, names, may_be_lines=False)
    if text is not None and "\t" in text.partition("\n")[0] and not has_names:
        names = [str(number) for number in range(1, len(names) + 1)]
        has_more = text.partition("\n")[0].count("\t") >= len(names)
        label = (str(len(names) + 1),) * (has_more and bool(label))
    elif not tables.has_names(text, [*names, *label], may_be_lines=False):
        label = ()
    needed = list(dict.fromkeys([*names, *label, *columns.id, *columns.group]))
    for row in tables.read_records(path, text, needed):
        if isinstance(row, BadRow):
            yield None, row
            continue
        texts = tuple(str(row.cells[name] or "").strip() for name in names)
        name, group = (delimited.identity(task, row.cells, is_group=way) for way in (False, True))
        if all(texts):
            language = delimited.language_of(row.cells, row.where)
            try:
                score = task.label(str(row.cells[label[0]]), row.where) if label else None
            except ValueError as error:
                yield None, BadRow(name or str(row.line), str(error), row.cells)
                continue
            assert not isinstance(score, tuple), f"{task.name} has sets of labels"
            yield language, EmbeddingExample(name, texts, score, group)
        else:
            empty = names[texts.index("")]
            reason = f"{row.where}: column {empty!r} is empty; remove the row"
            yield None, BadRow(name or str(row.line), reason, row.cells)


def refuse_unlabelled(path: pathlib.Path, task: Task) -> list[Any]:
    """Raise ValueError: such a run predicts nothing."""
    raise ValueError(f"{path}: {task.name} predicts no labels; xlm encode gives its vectors")
