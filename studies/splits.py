"""Training data of tasks in other languages than English, made of their development data.

Of each file in its own order, POS is trained on the first nine tenths of the development data and
selected on the last, and tested on the test data; NER and XNLI are trained on the first six tenths
of the development data, selected on the next and tested on the last three, since there is no other.
XNLI's files are translations of one another, line by line, so training on all of them is the
papers' translate-train-all; its 830 premises have three lines each, and no split divides one.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from common import artifacts
from input_pipeline.tasks.files import read_text


@dataclasses.dataclass(frozen=True)
class Share:
    """Slice of a file of examples, from `begin` to `end` as fractions of their number."""

    source: str
    begin: float
    end: float


# Source of each split of a task.
SPLITS = {
    "udpos": {
        "train": Share("udpos/dev/{language}.tsv.xz", 0.0, 0.9),
        "validation": Share("udpos/dev/{language}.tsv.xz", 0.9, 1.0),
        "test": Share("udpos/test/{language}.tsv.xz", 0.0, 1.0),
    },
    "wikiann": {
        "train": Share("wikiann_ner/dev/{language}.tsv.xz", 0.0, 0.6),
        "validation": Share("wikiann_ner/dev/{language}.tsv.xz", 0.6, 0.7),
        "test": Share("wikiann_ner/dev/{language}.tsv.xz", 0.7, 1.0),
    },
    "xnli": {
        "train": Share("xnli/dev/{language}.tsv.xz", 0.0, 0.6),
        "validation": Share("xnli/dev/{language}.tsv.xz", 0.6, 0.7),
        "test": Share("xnli/dev/{language}.tsv.xz", 0.7, 1.0),
    },
}
# Tasks whose files are tables with a header, an example a line; in others a blank line ends one.
_TABLES = ("xnli",)


def split_folder(workdir: pathlib.Path) -> pathlib.Path:
    """Folder of the task splits."""
    return workdir.absolute() / "tasks"


def blocks(text: str) -> list[str]:
    """Split a file into examples that end with a blank line."""
    return [block for block in text.split("\n\n") if block.strip()]


def table_rows(text: str) -> tuple[str, list[str]]:
    """Split a table into its header and its rows, lines that end with a line feed alone."""
    header, *rows = (f"{line}\n" for line in text.rstrip("\n").split("\n"))
    return header, rows


def part(examples: Sequence[str], share: Share) -> Sequence[str]:
    """Select the examples of a share; adjacent shares are disjoint and leave no gap."""
    return examples[round(share.begin * len(examples)) : round(share.end * len(examples))]


def write_splits(
    data: pathlib.Path, workdir: pathlib.Path, languages: Mapping[str, Sequence[str]]
) -> None:
    """Write all splits of some tasks.

    Args:
      data: folder of the data.
      workdir: of the study.
      languages: of each task.

    Raises:
      ValueError: a file is missing, empty or damaged.
    """
    for task, some in languages.items():
        for language in some:
            for split, share in SPLITS[task].items():
                path = data / share.source.format(language=language)
                if not path.exists():
                    raise ValueError(
                        f"{path} does not exist; add it, or leave {language!r} out of --languages"
                    )
                text = _part_of_file(task, read_text(path), share)
                artifacts.write_text(split_folder(workdir) / task / split / f"{language}.tsv", text)


def _part_of_file(task: str, text: str, share: Share) -> str:
    """Return the file of a share of the examples in the file of a task."""
    if task in _TABLES:
        header, rows = table_rows(text)
        return "".join([header, *part(rows, share)])
    return "".join(f"{example.strip()}\n\n" for example in part(blocks(text), share))
