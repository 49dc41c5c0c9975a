"""Corpus files from tensorflow-datasets: Wikipedia, multilingual C4 and similar datasets."""

import dataclasses
import gzip
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from input_pipeline import text_files
from xlm.common import artifacts, declarations, packages

# Marks of wiki40b: titles and sections on lines of their own, and ends of paragraphs.
_WIKI40B_HEADING = re.compile(r"_START_(?:ARTICLE|SECTION)_\n[^\n]*\n?")
_WIKI40B_MARK = re.compile(r"_START_PARAGRAPH_\n?|_NEWLINE_")


@dataclasses.dataclass(frozen=True)
class TextDataset:
    """Name (with config) and split of a text dataset; "{}" stands for the language."""

    name: str
    split: str = "train"


DATASETS = {
    "wiki40b": TextDataset("wiki40b/{}"),
    "wikipedia": TextDataset("wikipedia/20230601.{}"),
    "c4": TextDataset("c4/multilingual", "{}"),
}


class NoSplitError(ValueError):
    """tensorflow-datasets has no such dataset, config or split."""


def load_split(
    name: str, split: str, data_dir: str | None, shard: tuple[int, int] = (0, 1)
) -> tuple[Any, Any]:
    """Load a split in its own order, and its info; prepare the dataset first if needed.

    `data_dir` and `shard` are as in `documents`. Raise NoSplitError if there is no such split,
    ValueError if the dataset cannot be prepared or needs a package that is not installed.
    """
    with packages.needed(name, "datasets"):
        import tensorflow_datasets as tfds

        try:
            part = tfds.even_splits(split, n=shard[1])[shard[0]] if shard[1] > 1 else split
            # Without shuffling a prefix of the data is reproducible; the stream shuffles.
            return tfds.load(
                name, split=part, data_dir=data_dir, shuffle_files=False, with_info=True
            )
        except ValueError as error:
            raise NoSplitError(str(error).splitlines()[0]) from error
        except Exception as error:  # the code of a dataset raises anything
            # Network errors are OSErrors too, but without an errno.
            if isinstance(error, ImportError) or getattr(error, "errno", None):
                raise
            raise ValueError(
                f"{name}: tensorflow-datasets cannot prepare it ({' '.join(str(error).split())}); "
                "check the network, or set data_dir to a folder that has it"
            ) from error


def documents(
    dataset: TextDataset,
    language: str,
    data_dir: str | None = None,
    shard: tuple[int, int] = (0, 1),
) -> Iterator[list[str]]:
    """Yield the lines of each document of a language, without empty lines.

    The examples of `dataset` must have a `text`. `language` is a code of the dataset, such as
    "zh-cn" in wiki40b or "iw" in c4. `data_dir` is the data folder of tensorflow-datasets, None for
    its default, and `shard` the number of a part and of all parts, of about equal size. Raise
    ValueError if there is no such dataset, language or text, or it cannot be prepared.
    """
    name, split = dataset.name.format(language), dataset.split.format(language)
    try:
        found, _ = load_split(name, split, data_dir, shard)
    except NoSplitError as error:
        raise ValueError(f"{name}, split {split}: {error}") from None
    if "text" not in found.element_spec:
        raise ValueError(f"{name} has no text; its examples have {sorted(found.element_spec)}")
    for text in found.map(lambda example: example["text"]).as_numpy_iterator():
        lines = [line.strip() for line in _plain(text.decode("utf-8")).split("\n")]
        if lines := [line for line in lines if line]:
            yield lines


def _plain(text: str) -> str:
    if "_START_ARTICLE_" not in text:
        return text
    return _WIKI40B_MARK.sub("\n", _WIKI40B_HEADING.sub("", text))


def file_name(language: str, shard: tuple[int, int] = (0, 1)) -> str:
    """Return the file name of a part, or <language>.jsonl.gz for a single part."""
    number, total = shard
    part = f"-{number:05d}-of-{total:05d}" if total > 1 else ""
    return f"{language}{part}.jsonl.gz"


def write_text(
    dataset: TextDataset,
    language: str,
    folder: pathlib.Path,
    max_documents: int = 0,
    data_dir: str | None = None,
    shard: tuple[int, int] = (0, 1),
) -> int:
    """Write the first `max_documents` (0: all) `documents` of a language to a file in `folder`.

    Return their number. Raise ValueError as `documents`, without documents, or if the folder has
    the language in another number of files.
    """
    check_number_of_files(folder, language, shard[1])
    found = itertools.islice(documents(dataset, language, data_dir, shard), max_documents or None)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with (
        artifacts.atomic_path(folder / file_name(language, shard)) as aside,
        gzip.open(aside, "wt", encoding="utf-8", compresslevel=5) as file,
    ):
        for lines in found:
            count += 1
            file.write(text_files.json_line(lines))
        if not count:
            raise ValueError(f"{dataset.name.format(language)} has no text of {language!r}")
    return count


def check_number_of_files(folder: pathlib.Path, language: str, total: int) -> None:
    """Raise ValueError if a folder has the language, but not in `total` files."""
    declarations.check_name(language, "--languages", "give codes of languages")
    for path in sorted(folder.glob("*.jsonl.gz")):
        name = path.name.removesuffix(".jsonl.gz")
        stem, _, count = text_files.shard_of(name) or (name, 0, 1)
        if stem == language and count != total:
            raise ValueError(
                f"{path} is one of {count} files of {language!r}, not of {total}, so that its text "
                f"would be read twice; give --shards={count}, or remove the {count} files"
            )
