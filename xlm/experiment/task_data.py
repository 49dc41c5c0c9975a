"""The data of a fine-tuning run: the examples of a task and their features, by language."""

import collections
import copy
import pathlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from input_pipeline import exclusion
from input_pipeline.tasks import held_out, loading
from input_pipeline.tasks.examples import BadRow, SentencePairs
from input_pipeline.tasks.tasks import Task
from input_pipeline.tokenization import unknown_warning
from xlm.common import artifacts, places, tables
from xlm.common import languages as names
from xlm.evaluation.tasks import TaskData
from xlm.experiment.task_kinds import KINDS, SEARCHES
from xlm.experiment.task_settings import (
    BALANCED,
    EACH_LANGUAGE,
    TaskSettings,
    Tokenizer,
    task_settings,
)

SPLITS = ("train", "validation", "test")


def with_labels(config: ConfigDict, known: Sequence[str] = ()) -> ConfigDict:
    """Add the labels of the training data to the config of a user's own task.

    `known` are the labels of the same run if it has ended. Raises ValueError if there are no files;
    see `loading.load_labels`.
    """
    options = task_settings(config)
    if not options.task.is_own or options.labels:
        return config
    readers = KINDS[options.task.kind].readers
    if readers.labels is None:
        return config
    completed = copy.deepcopy(config)
    completed.task.labels = tuple(known) or _labels(options, readers)
    return completed


def _labels(options: TaskSettings, readers: loading.Readers) -> tuple[str, ...]:
    assert readers.labels is not None
    readers = readers._replace(file=readers.labels)
    counts: collections.Counter[str] = collections.Counter()
    for language in languages(options, "train", readers):
        counts.update(loading.load_labels(readers, options.source("train", language)))
    named = ", ".join(f"{label} {count}" for label, count in counts.most_common(20))
    logging.info("%d labels in the training data: %s", len(counts), named)
    _check_spelling(options.task, counts)
    return tuple(sorted(counts, key=_number_or_name))


def _check_spelling(task: Task, counts: Mapping[str, int]) -> None:
    """Raise ValueError if labels differ only in blanks, invisible characters or capitals.

    One of them is likely a slip. In tags, capitals make a difference.
    """
    found: dict[str, str] = {}
    capitals_count = KINDS[task.kind].capitals_count
    for label in counts:
        plain = unicodedata.normalize("NFC", label)
        plain = "".join(one for one in plain if unicodedata.category(one) != "Cf")
        plain = " ".join(plain.split())
        other = found.setdefault(plain if capitals_count else plain.casefold(), label)
        if other != label:
            raise ValueError(
                f"{task.name}: the labels {other!a} ({counts[other]} times) and {label!a} "
                f"({counts[label]} times) of the training data differ only in capitals, blanks or "
                "invisible characters; write them alike, or list all labels in task.labels"
            )


def _number_or_name(label: str) -> tuple[bool, int, str]:
    """Sort key: numbers by value, then names."""
    is_number = label.isdecimal()
    return not is_number, int(label) if is_number else 0, label


def languages(
    options: TaskSettings, split: str, readers: loading.Readers | None = None
) -> tuple[str, ...]:
    """The languages of a split; for development data those that the selection needs.

    `readers`, by default those of the task's kind, look into files without a language in their
    names. Raises ValueError if there are no files.
    """
    named = getattr(options, f"{split}_languages")
    if named:
        return tuple(named)
    if split == "validation" and options.selection == "english":
        return ("en",)
    if split == "validation" and holds_out(options):
        return languages(options, "train", readers)
    task, patterns = options.task, options.patterns(split)
    if readers is None and task.kind in KINDS:
        readers = KINDS[task.kind].readers
    found = loading.available_languages(readers, options.source(split))
    if any(pattern.startswith("tfds:") for pattern in patterns):
        found |= set(task.languages)
    if not found:
        raise ValueError(
            f"task.{split}: there are no files {list(patterns)} below {options.root}"
            f"{_there(places.local(options.root))}; rename files so that their language stands at "
            "{language}, such as train.en.csv, or correct task.root or the patterns"
        )
    return tuple(sorted(found))


def _there(root: pathlib.Path) -> str:
    """Describe the contents of a folder in a clause, files first."""
    if not root.is_dir():
        return ", which is no folder"
    names = [one.name for one in sorted(root.iterdir(), key=lambda one: (one.is_dir(), one))]
    return f", which has {', '.join(names[:8]) or 'nothing'}{' and others' if names[8:] else ''}"


def holds_out(options: TaskSettings) -> bool:
    """Whether the selection uses held-out training examples, for want of a development file."""
    root = places.fetched(options.root)
    return options.task.is_own and not loading.has_files(root, options.validation)


def _has_test(options: TaskSettings) -> bool:
    """Whether there are test data; without any, results report the development data."""
    root = places.fetched(options.root)
    return bool(options.test) and (not options.task.is_own or loading.has_files(root, options.test))


def featured(
    options: TaskSettings, tokenizer: Tokenizer, language: str, examples: Sequence[Any]
) -> TaskData:
    """Examples with their features."""
    args = (examples, tokenizer.processor, tokenizer.special, options.max_length)
    return TaskData(language, examples, KINDS[options.task.kind].features(options, *args))


def warn_of_unknown(where: str, data: TaskData, tokenizer: Tokenizer) -> None:
    """Warn if more than 1 % of the tokens of examples are unknown."""
    ids = [one.tokens for one in data.features]
    unknown = sum(int((one == tokenizer.special.unk).sum()) for one in ids)
    cells = (np.atleast_1d(cell) for one in data.examples for cell in vars(one).values())
    texts = (cell for some in cells for cell in some if isinstance(cell, str))
    if line := unknown_warning(where, unknown, sum(map(len, ids)), tokenizer.processor, texts):
        logging.warning("%s", line)


def read_split(
    options: TaskSettings, tokenizer: Tokenizer, split: str, bad: dict[str, BadRow] | None = None
) -> list[TaskData]:
    """Read a split in each of its languages; add malformed rows that are left out to `bad`.

    Raises ValueError if an example has no label, no rule scores a language, and as
    `loading.load_examples`.
    """
    if split == "test" and not _has_test(options):
        if patterns := list(options.test):
            logging.warning("%s: no test files %s below %s", options.name, patterns, options.root)
        return []
    if split == "validation" and options.task.is_own:
        _tell_undeveloped(options)
    found, examples = [], {}
    readers = KINDS[options.task.kind].readers
    source = "train" if (is_split := split != "test" and holds_out(options)) else split
    shared = languages(options, split) if is_split else ()
    for language in dict.fromkeys((*languages(options, source), *shared)):
        _check_scored(options, split, language)
        read = loading.load_examples(readers, options.source(source, language), bad)
        if not (split == "train" and options.task.is_embedding):  # pairs, with scores or without
            _check_labels(options, source, language, read)
        examples[language] = read
    if is_split:
        examples = _divided(options, split, examples)
    for language, some in examples.items():
        found.append(featured(options, tokenizer, language, some))
        where = f"{options.title}, {split} data in {names.label(language)}"
        warn_of_unknown(where, found[-1], tokenizer)
    if split == "validation" and options.task.is_own:
        _tell_unscored(options, examples)
    return found


def _divided(
    options: TaskSettings, split: str, examples: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """The examples to train on, or the held-out ones, with their labels counted in the log."""
    task, shared = options.task, languages(options, "validation")
    classes = KINDS[task.kind].classes or (lambda example: [0])

    def labels(example: Any) -> Sequence[int]:
        return classes(example) or [-1]  # a text may have no label

    found = held_out.held_out(examples, labels, options.validation_share, shared)
    pairs = {one: list(zip(some, found[one], strict=True)) for one, some in examples.items()}
    for language in (one for one in found if split == "validation" and any(found[one])):
        counts = collections.Counter(
            (i, out) for one, out in pairs[language] for i in {*labels(one)}
        )
        named = ", ".join(
            f"{[*task.labels, 'no label'][i] if task.labels else 'examples'} {counts[i, True]} of "
            f"{counts[i, True] + counts[i, False]}"
            for i in sorted({i for i, _ in counts})
        )
        logging.info("%s, %s: no development file; held out of training: %s",
                     options.title, language, named)  # fmt: skip
    return {
        language: [one for one, is_out in pairs[language] if is_out == (split == "validation")]
        for language in languages(options, split)
    }


def _tell_unscored(options: TaskSettings, examples: Mapping[str, Sequence[Any]]) -> None:
    classes = KINDS[options.task.kind].classes or (lambda example: ())
    there = {label for some in examples.values() for one in some for label in classes(one)}
    if absent := [name for i, name in enumerate(options.task.labels) if i not in there]:
        logging.warning("%s: no development examples of %s, so no score says how well these are "
                        "learnt; add some", options.title, tables.named(absent, 20))  # fmt: skip


def _tell_undeveloped(options: TaskSettings) -> None:
    """Warn of training languages without development data, if others have some."""
    own = languages(options, "validation")
    remedy = (
        "name them in task.validation_languages, or set task.selection to all_languages, for a "
        "part of their training data"
        if holds_out(options)
        else "add files, or leave out all of them for a part of each language's training data"
    )
    if without := [one for one in languages(options, "train") if one not in own]:
        logging.warning(
            "%s: no development data in %s, and none are held out: the checkpoint is selected on "
            "%s only; %s", options.name, ", ".join(without), ", ".join(own), remedy,
        )  # fmt: skip


def data_files(options: TaskSettings) -> list[pathlib.Path]:
    """The files that a run reads; none of tensorflow-datasets.

    Raises ValueError if there are none.
    """
    is_search = options.task.is_search  # without training, in the languages of its test
    found = []
    for split in SPLITS[1:] if is_search else SPLITS:
        if split == "test" and not _has_test(options):
            continue
        for language in languages(options, "test" if is_search else split):
            found += loading.matching_files(options.source(split, language))
    return found


def scored_files(options: TaskSettings, digests: Mapping[str, str]) -> dict[str, str]:
    """Digest of a user's own scored files by language, from `digests` by path."""
    split = "test" if _has_test(options) else "train" if holds_out(options) else "validation"
    found = {}
    for language in languages(options, split) if options.task.is_own else ():
        files = loading.matching_files(options.source(split, language))
        found[language] = artifacts.fingerprint(sorted(digests[str(path)] for path in files))
    return found


def seen_in_training(
    options: TaskSettings, data: Mapping[str, Sequence[TaskData]]
) -> dict[str, int]:
    """Number of test examples by language whose text is in the training data, too.

    Only letters, marks and digits count, see `input_pipeline.exclusion`. Held-out examples are
    training data here, since they select the checkpoint. `data` are by split. Languages without
    such examples are left out.
    """
    splits = ("train", "validation") if holds_out(options) else ("train",)
    of_training = [one for split in splits for one in data[split]]
    known = {_letters(example) for one in of_training for example in one.examples} - {()}
    found = {}
    for one in data["test"]:
        if seen := [example for example in one.examples if _letters(example) in known]:
            found[one.language] = len(seen)
            logging.warning("%d of the test examples in %s are training examples, too, such as %r: "
                            "their scores say little of other text",
                            len(seen), one.language, " ".join(seen[0].content)[:100])  # fmt: skip
    return found


def _letters(example: Any) -> tuple[str, ...]:
    parts = getattr(example, "content", ())  # a user's own kind may have none
    return tuple(exclusion.letters(part) or part for part in parts)


def selected_on(options: TaskSettings, data: Sequence[TaskData]) -> list[TaskData]:
    """The development data that select the checkpoint.

    Raises ValueError if a language that selects has none.
    """
    if options.selection == EACH_LANGUAGE:
        own = [one.language for one in data]
        tested = languages(options, "test") if _has_test(options) else ()
        if absent := [language for language in tested if language not in own]:
            raise ValueError(
                f"task.selection is {EACH_LANGUAGE!r}, but there are no development data in "
                f"{', '.join(absent)} (task.validation, task.validation_languages); add them, "
                "leave these out of task.test_languages, or set task.selection to all_languages"
            )
    if options.selection != "english":
        return list(data)
    found = [one for one in data if one.language == "en"]
    if not found:
        raise ValueError(
            f"task.selection is 'english', but task.validation_languages are "
            f"{[one.language for one in data]}; add en, or set task.selection to all_languages"
        )
    return found


def selected_on_test(options: TaskSettings, chosen_on: Sequence[str]) -> list[str]:
    """The languages of `chosen_on` with the same data for choices and for reported scores.

    The comparison follows links, so names may differ.
    """
    if not options.test or holds_out(options):
        return []

    def sources(split: str, language: str) -> set[tuple[Any, ...]]:
        return loading.identities(options.source(split, language))

    tested = set(languages(options, "test"))
    return [
        language
        for language in dict.fromkeys(chosen_on)
        if language in tested and sources("validation", language) & sources("test", language)
    ]


def class_weights(options: TaskSettings, data: Sequence[TaskData]) -> tuple[float, ...]:
    """The weight of each class in the loss; () where all weigh 1.

    Balanced weights are N / (C n_c), of N labels n_c of class c among C (scikit-learn's rule).
    Raises ValueError if the task has no classes, or another number than weights, or one is not
    positive.
    """
    given, labels = tuple(options.class_weights), options.task.labels
    if not given:
        return ()
    classes = KINDS[options.task.kind].classes
    if classes is None:
        raise ValueError(
            f"task.class_weights is {given}, but {options.name} has no classes; leave it empty"
        )
    if given == BALANCED:
        examples = [example for one in data for example in one.examples]
        counts = collections.Counter(label for one in examples for label in classes(one))
        total = counts.total()
        for rare in (label for i, label in enumerate(labels) if counts[i] == 1):
            logging.warning("task.class_weights is balanced, but class %r is there once in the "
                            "training data, and that row weighs as much as all of another class; "
                            "give more of it, or weights as numbers", rare)  # fmt: skip
        if options.task.has_label_sets:
            without = [len(examples) - counts[i] for i in range(len(labels))]
            return tuple(max(one, 1) / max(counts[i], 1) for i, one in enumerate(without))
        return tuple(total / (len(labels) * max(counts[i], 1)) for i in range(len(labels)))
    are_numbers = all(isinstance(one, int | float) and one > 0 for one in given)
    if len(given) != len(labels) or not are_numbers:
        raise ValueError(
            f"task.class_weights is {given}, must be {len(labels)} numbers above 0, one for each "
            f"of {', '.join(labels)}; or 'balanced'"
        )
    return tuple(map(float, given))


def _check_scored(options: TaskSettings, split: str, language: str) -> None:
    """Raise ValueError if no rule scores a language: now, and not after training."""
    if split == "train":
        return
    try:
        KINDS[options.task.kind].check_scored(options.task, language)
    except ValueError as error:
        raise ValueError(
            f"{error}; name languages of these in task.{split}_languages, or remove the files of "
            "others"
        ) from error


def _check_labels(
    options: TaskSettings, split: str, language: str, examples: Sequence[Any]
) -> None:
    """Raise ValueError if an example has no label to train or score on."""
    task, kind = options.task, KINDS[options.task.kind]
    without = [one.id for one in examples if not kind.is_labelled(task, one)]
    if without:
        raise ValueError(
            f"{task.name}, {language}: {len(without)} of {len(examples)} examples of "
            f"{', '.join(options.patterns(split, language))} have no {kind.target}, the first one "
            f"is {without[0]!r}; name labelled files in task.{split} (predict.py is for those "
            "without)"
        )


def read_pairs(options: TaskSettings, split: str, language: str) -> SentencePairs:
    """The two sides of a search, with their gold pairs.

    Raises ValueError if there are no gold pairs; and see `loading.load_pairs`.
    """
    patterns = options.patterns(split, language)
    reader = SEARCHES[options.task.kind].reader
    pairs = loading.load_pairs(reader, options.source(split, language))
    if not pairs.gold:
        raise ValueError(
            f"{options.name}, {language}: {', '.join(patterns)} have no gold pairs; name their "
            f"file third in task.{split} (predict.py is for texts without)"
        )
    return pairs
