"""Loading of a task's examples for one language, from files or from tensorflow-datasets."""

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from input_pipeline.tasks import files, tfds_examples, translation
from input_pipeline.tasks.examples import BadRow, SentencePairs, TranslationExample
from input_pipeline.tasks.files import Pair, Source
from input_pipeline.tasks.tasks import Task

Found = Iterable[tuple[str | None, Any]]  # languages and examples


class Readers(NamedTuple):
    """Readers of the examples of a kind of tasks, as frozen dataclasses with an `id`.

    A `BadRow` may stand for an example or a label. Examples with id "" are numbered. The language
    is None unless file or dataset names it. `labels` reads the label names of a file when the
    task's are unknown; None without classes.
    """

    file: Callable[[pathlib.Path, Task], Found]
    tfds: tfds_examples.Convert
    unlabelled: Callable[[pathlib.Path, Task], list[Any]]
    labels: Callable[[pathlib.Path, Task], Found] | None = None


class PairsReader(NamedTuple):
    """Reader of the two sides of a search; `content` describes its files in messages."""

    numbers: range
    content: str
    read: Callable[[Sequence[pathlib.Path]], SentencePairs]


# Language of files without one in name and content.
_DEFAULT_LANGUAGE = "en"
_NAMED = 4  # bad rows that a message names
_MAX_BROKEN = 0.01  # most bad rows, as a share, of tasks with broken lines


def load_examples(
    readers: Readers, source: Source, bad: dict[str, BadRow] | None = None
) -> list[Any]:
    """Return the examples of a language in the order of the patterns and their files.

    It adds bad rows to `bad`, by their errors. Raise ValueError if there are more than the source
    allows, no examples, a file is malformed, or two examples have the same id.
    """
    examples: list[Any] = []
    bad = {} if bad is None else bad
    looked_for: list[str] = []
    for pattern in source.patterns:
        if tfds_examples.is_tfds(pattern):
            read = tfds_examples.read_examples(readers.tfds, pattern, source, looked_for)
            found: Iterable[Found] = [read]
        else:
            found = (readers.file(path, source.task) for path in source.matching(pattern))
            looked_for.append(_described(source, pattern))
        examples += _of_language(found, pattern, source, bad)
    broken = _MAX_BROKEN * len(examples) if source.task.has_broken_lines else 0
    _check_bad(bad, max(source.max_bad_rows, broken))
    if not examples:
        raise _no_data(source, looked_for, available_languages(readers, source))
    return _with_ids(examples, source)


def load_pairs(reader: PairsReader, source: Source) -> SentencePairs:
    """Read the two sides of a search, a language and English, from a pattern for each file.

    Raise ValueError if a pattern matches no file or several, or a file is malformed.
    """
    task, patterns, looked_for = source.task, source.patterns, list[str]()
    if any(map(tfds_examples.is_tfds, patterns)):
        if len(patterns) > 1:
            raise ValueError(
                f"{task.name}: {len(patterns)} patterns {list(patterns)}, but a split of "
                "tensorflow-datasets holds both sides; name one split, or files only"
            )
        pairs = tfds_examples.read_pairs(patterns[0], source, looked_for)
        if pairs is None:
            raise _no_data(source, looked_for, set())
        return pairs
    if len(patterns) not in reader.numbers:
        raise ValueError(
            f"{task.name}: {len(patterns)} patterns {list(patterns)}, expected "
            f"{' or '.join(map(str, reader.numbers))}: {reader.content}"
        )
    matches = list(map(source.matching, patterns))
    if not all(matches):
        looked_for = [_described(source, pattern) for pattern in patterns]
        raise _no_data(source, looked_for, available_languages(None, source))
    for pattern, paths in zip(patterns, matches, strict=True):
        if len(paths) > 1:
            raise ValueError(
                f"{task.name}: {pattern} matches {len(paths)} files for {source.language!r}, such "
                f"as {paths[0]} and {paths[1]}; make the pattern name one of them"
            )
    return reader.read([paths[0] for paths in matches])


def load_translations(source: Source, languages: Collection[str] = ()) -> list[TranslationExample]:
    """Read all sentence pairs of a direction; see `translations`."""
    target = translation.direction(source.language)[1]
    pairs = itertools.chain.from_iterable(translations(source, languages))
    return [TranslationExample(str(i), *pair, target) for i, pair in enumerate(pairs)]


def translations(source: Source, languages: Collection[str] = ()) -> Iterator[Iterator[Pair]]:
    """Yield the sentence pairs of each text of the direction of `source`, such as "en-de".

    Patterns name any number of texts, joined in this order: a TSV file of two columns (*.tsv,
    compressed or not), two line-aligned files (source, then target), or "tfds:NAME:SPLIT". In file
    names, {source} and {target} stand for the codes of the direction. In names of datasets,
    {language} stands for the direction's entry in `Task.tfds_codes`. `languages` are those of the
    run, see `translation.read_files`.

    Raise ValueError if there are no pairs, or a file is malformed or has no partner.
    """
    looked_for, has_any = list[str](), False
    for names in _texts(source):
        if tfds_examples.is_tfds(names[0]):
            convert = tfds_examples.translation_pairs
            read = tfds_examples.read_examples(convert, names[0], source, looked_for)
            pairs: Iterator[Pair] = (pair for _, pair in read)
        else:
            paths = [translation.matching(source, name) for name in names]
            pairs = translation.read_files(paths, source, languages)
        first = list(itertools.islice(pairs, 1))
        has_any = has_any or bool(first)
        yield itertools.chain(first, pairs)
    if not has_any:
        raise _no_data(source, looked_for, set())


def translation_files(source: Source) -> list[list[pathlib.Path]]:
    """Return the one or two files of each text of a direction; ValueError if one is missing."""
    return [
        [translation.matching(source, name) for name in names]
        for names in _texts(source)
        if not tfds_examples.is_tfds(names[0])
    ]


def _texts(source: Source) -> Iterator[list[str]]:
    """Yield the patterns of each text of a direction: one file or split, or two files."""
    rest = list(source.patterns)
    while rest:
        names = [pattern := rest.pop(0)]
        is_whole = tfds_examples.is_tfds(pattern)
        if not is_whole and ".tsv" not in pathlib.PurePath(pattern).suffixes:
            if not rest or tfds_examples.is_tfds(rest[0]):
                raise ValueError(
                    f"{source.task.name}: {pattern} has no partner; name the file of the other "
                    "language after it, or one file of two columns as *.tsv"
                )
            names.append(rest.pop(0))
        yield names


def load_labels(readers: Readers, source: Source) -> list[str]:
    """Return the label names in a language's files, one for each occurrence.

    Raise ValueError for a pattern of tensorflow-datasets or a malformed file.
    """
    assert readers.labels is not None, f"{source.task.name} has no classes"
    found: list[str] = []
    bad: dict[str, BadRow] = {}
    for pattern in source.patterns:
        if tfds_examples.is_tfds(pattern):
            raise ValueError(f"{source.task.name}: list the labels of {pattern} in task.labels")
        read = (readers.labels(path, source.task) for path in source.matching(pattern))
        found += _of_language(read, pattern, source, bad)
    _check_bad(bad, source.max_bad_rows)
    return found


def has_files(root: pathlib.Path, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a file or names tensorflow-datasets.

    Raise ValueError if a file named without wildcards is missing.
    """
    return any(
        tfds_examples.is_tfds(pattern)
        or (files.PLACEHOLDER in pattern and files.languages_of_names(root, pattern))
        or (files.PLACEHOLDER not in pattern and files.matching(root, pattern, [""]))
        for pattern in patterns
    )


def identities(source: Source) -> set[tuple[Any, ...]]:
    """Return identities of a language's files and datasets; links to one file share theirs."""
    found: set[tuple[Any, ...]] = {
        (pattern.replace(files.PLACEHOLDER, source.language),)
        for pattern in source.patterns
        if tfds_examples.is_tfds(pattern)
    }
    for path in matching_files(source):
        status = path.stat()
        found.add((status.st_dev, status.st_ino))
    return found


def matching_files(source: Source) -> list[pathlib.Path]:
    """Return all files that may have text of a language; ValueError as in `has_files`."""
    own = (pattern for pattern in source.patterns if not tfds_examples.is_tfds(pattern))
    return [path for pattern in own for path in source.matching(pattern)]


def available_languages(readers: Readers | None, source: Source) -> set[str]:
    """Return the languages of files; without `readers`, only those in file names."""
    found: set[str] = set()
    for pattern in source.patterns:
        if tfds_examples.is_tfds(pattern):
            continue
        if files.PLACEHOLDER in pattern:
            found |= files.languages_of_names(source.root, pattern)
        elif readers is not None:
            for path in files.matching(source.root, pattern, [""]):
                read = readers.file(path, source.task)
                good = (code for code, one in read if not isinstance(one, BadRow))
                found |= {code or _DEFAULT_LANGUAGE for code in good}
    return {source.language_codes.get(code, code) for code in found}


def _check_bad(bad: Mapping[str, BadRow], limit: float) -> None:
    """Raise ValueError, with the first errors, if there are more bad rows than a limit."""
    named = list(itertools.islice(bad, _NAMED))
    if len(bad) > limit:
        several = f"; {len(bad)} rows are bad, next: {'; '.join(named[1:])}" if named[1:] else ""
        raise ValueError(
            f"{named[0]}{several}; task.max_bad_rows={len(bad)} leaves such rows out, and lists "
            "them in bad_rows.jsonl"
        )
    if bad:
        logging.warning("%d bad rows are left out, the first one: %s", len(bad), named[0])


def _of_language(
    found: Iterable[Found], pattern: str, source: Source, bad: dict[str, BadRow]
) -> Iterator[Any]:
    """Yield the examples of the language, or all of a pattern for it; add bad rows to `bad`."""
    is_named, codes = files.PLACEHOLDER in pattern, source.codes
    for code, example in itertools.chain.from_iterable(found):
        if isinstance(example, BadRow):
            bad[example.error] = example
        elif is_named or (code or _DEFAULT_LANGUAGE) in codes:
            yield example


def _with_ids(examples: Sequence[Any], source: Source) -> list[Any]:
    """Number the examples without an id, and raise ValueError if two have the same."""
    found: dict[str, Any] = {}
    for number, example in enumerate(examples):
        if not example.id:
            example = dataclasses.replace(example, id=str(number))
        if example.id in found:
            raise ValueError(
                f"{source.task.name}, {source.language}: two files hold the example "
                f"{example.id!r}; name each file once, and no two versions of a dataset"
            )
        found[example.id] = example
    return list(found.values())


def _described(source: Source, pattern: str) -> str:
    if files.PLACEHOLDER not in pattern:
        return f"{source.root / pattern} (in English, unless it says otherwise)"
    names = (pattern.replace(files.PLACEHOLDER, code) for code in source.codes)
    return " or ".join(str(source.root / name) for name in names)


def _no_data(source: Source, looked_for: Sequence[str], there: set[str]) -> ValueError:
    return ValueError(
        f"{source.task.name} has no data for language {source.language!r}; looked for "
        f"{'; '.join(looked_for)}; "
        f"there are files for {', '.join(sorted(there)) or 'no language'}: add the files, leave "
        "the language out, or map its code in file names to it in language_codes"
    )
