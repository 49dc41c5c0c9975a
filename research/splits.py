"""Training data of tasks in languages other than English, made from development data.

    python -m research.splits --data=DATA --output=FOLDER --tasks=udpos,xnli --languages=de,en

Files keep their order. POS trains on the first nine tenths of the development data, selects on the
last tenth, and tests on the test data. NER and XNLI have no other data. They train on the first six
tenths of the development data, select on the next tenth, and test on the last three. XNLI's files
are line-by-line translations, so training on all is the papers' translate-train-all. Each of its
830 premises has three lines, and splits keep these together.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags

from input_pipeline.tasks.files import read_text
from research.study import Run, Step
from xlm.common import artifacts, entry_point


class Share(NamedTuple):
    """Slice of a file of examples; `begin` and `end` are fractions of their number."""

    source: str
    begin: float
    end: float


def _of_dev(folder: str) -> dict[str, Share]:
    source = f"{folder}/dev/{{}}.tsv.xz"
    cuts = {"train": (0.0, 0.6), "validation": (0.6, 0.7), "test": (0.7, 1.0)}
    return {split: Share(source, *ends) for split, ends in cuts.items()}


# Source of each split of a task.
SPLITS = {
    "udpos": {
        "train": Share("udpos/dev/{}.tsv.xz", 0.0, 0.9),
        "validation": Share("udpos/dev/{}.tsv.xz", 0.9, 1.0),
        "test": Share("udpos/test/{}.tsv.xz", 0.0, 1.0),
    },
    "wikiann": _of_dev("wikiann_ner"),
    "xnli": _of_dev("xnli"),
}
# Tasks with tables: a header, then a line per example. In others a blank line ends an example.
_TABLES = ("xnli",)


def run(tasks: Sequence[str], languages: Sequence[str]) -> Run:
    """Return the run that writes the splits of tasks in their languages."""
    words = (
        "-m", "research.splits", "--data=DATA", "--output=WORKDIR/splits",
        f"--tasks={','.join(tasks)}", f"--languages={','.join(languages)}",
    )  # fmt: skip
    return Run("splits", None, (Step(words, has_config=False),))


def keys(task: str, languages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys of fine-tuning on the splits, all in `languages` if given."""
    own = SPLITS[task]
    return {
        "task.root": "WORKDIR/splits",
        **{f"task.{split}": (f"{task}/{split}/{{language}}.tsv",) for split in own},
        **({f"task.{split}_languages": tuple(languages) for split in own} if languages else {}),
    }


def part(examples: Sequence[str], share: Share) -> Sequence[str]:
    """Select the examples of a share; adjacent shares neither overlap nor leave a gap."""
    return examples[round(share.begin * len(examples)) : round(share.end * len(examples))]


def write(
    data: pathlib.Path, output: pathlib.Path, tasks: Sequence[str], languages: Sequence[str]
) -> None:
    """Write all splits of some tasks, in those of the `languages` that a task has.

    Raise ValueError if a task has none of them, or a file is empty or damaged.
    """
    for task in tasks:
        own = SPLITS[task].items()
        found = [
            one
            for one in languages
            if all((data / share.source.format(one)).exists() for _, share in own)
        ]
        if not found:
            raise ValueError(f"{data} has no {task} in any of {', '.join(languages)}; add them")
        for language in found:
            for split, share in own:
                text = read_text(data / share.source.format(language))
                part_of_file = _part_of_file(task, text, share)
                artifacts.write_text(output / task / split / f"{language}.tsv", part_of_file)


def _part_of_file(task: str, text: str, share: Share) -> str:
    """Return the text of a share of the examples in a task's file."""
    if task in _TABLES:
        header, *rows = (f"{line}\n" for line in text.rstrip("\n").split("\n"))
        return "".join([header, *part(rows, share)])
    blocks = [block for block in text.split("\n\n") if block.strip()]
    return "".join(f"{example.strip()}\n\n" for example in part(blocks, share))


def main(_) -> None:
    given = flags.FLAGS
    write(pathlib.Path(given.data), pathlib.Path(given.output), given.tasks, given.languages)


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Data folder.")
    flags.DEFINE_string("output", None, "Output folder.")
    flags.DEFINE_list("tasks", list(SPLITS), "Tasks.")
    flags.DEFINE_list("languages", None, "Languages.")
    entry_point.run(main, required=("data", "output", "languages"))
