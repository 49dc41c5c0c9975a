"""Loading of a task's examples for one language, from files or from tensorflow-datasets."""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from input_pipeline.tasks import files, tfds_examples, translation
from input_pipeline.tasks.examples import SentencePairs, TranslationExample
from input_pipeline.tasks.tasks import Task

Found = Iterable[tuple[str | None, Any]]  # languages and examples


class Readers(NamedTuple):
    """Readers of the examples of one kind of tasks, as frozen dataclasses with an `id`.

    Examples with id "" are numbered. The language is None unless file or dataset names it. `labels`
    reads the label names of a file before the task's are known; None without classes.
    """

    file: Callable[[pathlib.Path, Task], Found]
    tfds: tfds_examples.Convert
    unlabelled: Callable[[pathlib.Path, Task], list[Any]]
    labels: Callable[[pathlib.Path, Task], Found] | None = None


class PairsReader(NamedTuple):
    """Reader of the two sides of a search; messages describe its files by `content`."""

    numbers: range
    content: str
    read: Callable[[Sequence[pathlib.Path]], SentencePairs]


# Language of files whose name and content do not tell it.
_DEFAULT_LANGUAGE = "en"
_NO_CODES: Mapping[str, str] = MappingProxyType({})


def load_examples(
    readers: Readers,
    task: Task,
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
    data_dir: str | None = None,
) -> list[Any]:
    """Return the examples of a language in the order of the patterns and their files.

    Args:
      root: folder that the patterns start from.
      patterns: as in `files`, or splits of tensorflow-datasets as "tfds:NAME:SPLIT".
      language_codes: other names of languages in files, such as {"deu": "de"}.
      data_dir: where tensorflow-datasets keeps its data; None for its own default.

    Raises:
      ValueError: there are no examples, a file is malformed, or two examples have the same id.
    """
    codes = files.spellings(language, language_codes)
    examples: list[Any] = []
    looked_for: list[str] = []
    for pattern in patterns:
        if tfds_examples.is_tfds(pattern):
            args = (pattern, task, language, looked_for, data_dir)
            sources: Iterable[Found] = [tfds_examples.read_examples(readers.tfds, *args)]
        else:
            paths = files.matching(root, pattern, codes)
            sources = (readers.file(path, task) for path in paths)
            looked_for.append(_described(root, pattern, codes))
        wanted = None if files.PLACEHOLDER in pattern else codes
        examples += _of_language(sources, wanted)
    if not examples:
        there = available_languages(readers, task, root, patterns, language_codes)
        raise _no_data(task, language, looked_for, there)
    return _with_ids(examples, f"{task.name}, {language}")


def load_pairs(
    reader: PairsReader,
    task: Task,
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
    data_dir: str | None = None,
) -> SentencePairs:
    """Read the two sides of a search, a language and English, from one pattern for each file.

    Raise ValueError if a pattern matches no file or several, or a file is malformed.
    """
    looked_for: list[str] = []
    if any(map(tfds_examples.is_tfds, patterns)):
        pairs = tfds_examples.read_pairs(patterns[0], task, language, looked_for, data_dir)
        if pairs is None:
            raise _no_data(task, language, looked_for, set())
        return pairs
    if len(patterns) not in reader.numbers:
        raise ValueError(
            f"{task.name}: {len(patterns)} patterns {list(patterns)}, expected "
            f"{' or '.join(map(str, reader.numbers))}: {reader.content}"
        )
    codes = files.spellings(language, language_codes)
    matches = [files.matching(root, pattern, codes) for pattern in patterns]
    looked_for += [_described(root, pattern, codes) for pattern in patterns]
    if not all(matches):
        there = available_languages(None, task, root, patterns, language_codes)
        raise _no_data(task, language, looked_for, there)
    for pattern, paths in zip(patterns, matches, strict=True):
        if len(paths) > 1:
            raise ValueError(
                f"{task.name}: {pattern} matches {len(paths)} files for {language!r}, such as "
                f"{paths[0]} and {paths[1]}; make the pattern name one of them"
            )
    return reader.read([paths[0] for paths in matches])


def load_translations(
    task: Task,
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
    data_dir: str | None = None,
    *,
    languages: Collection[str] = (),
) -> list[TranslationExample]:
    """Read the sentence pairs of a direction such as "en-de", the given `language`.

    Args:
      patterns: any number of texts, joined in this order: a TSV file of two columns (*.tsv,
        compressed or not), two line-aligned files (source, then target), or "tfds:NAME:SPLIT". File
        names may hold {source} and {target}, the codes of the direction. Names of datasets may hold
        {language}, which becomes the direction's entry in `Task.tfds_codes`.
      languages: all languages of the run, see `translation.read_files`.

    Raises:
      ValueError: there are no pairs, or a file is malformed or has no partner.
    """
    found: list[TranslationExample] = []
    looked_for: list[str] = []
    for names in _texts(task, patterns):
        if tfds_examples.is_tfds(names[0]):
            args = (names[0], task, language, looked_for, data_dir)
            read = tfds_examples.read_examples(tfds_examples.translation_examples, *args)
            found += [example for _, example in read]
            continue
        paths = [translation.matching(root, name, language, language_codes) for name in names]
        found += translation.read_files(paths, language, language_codes, languages)
    if not found:
        raise _no_data(task, language, looked_for, set())
    return _with_ids(found, f"{task.name}, {language}")


def translation_files(
    task: Task,
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
) -> list[list[pathlib.Path]]:
    """Return the one or two files of each text of a direction; ValueError if one is missing."""
    return [
        [translation.matching(root, name, language, language_codes) for name in names]
        for names in _texts(task, patterns)
        if not tfds_examples.is_tfds(names[0])
    ]


def _texts(task: Task, patterns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the patterns of each text of a direction: one file or split, or two files."""
    rest = list(patterns)
    while rest:
        names = [pattern := rest.pop(0)]
        if tfds_examples.is_tfds(pattern):
            yield names
            continue
        if ".tsv" not in pathlib.PurePath(pattern).suffixes:
            if not rest or tfds_examples.is_tfds(rest[0]):
                raise ValueError(
                    f"{task.name}: {pattern} has no partner; name the file of the other language "
                    "after it, or one file of two columns as *.tsv"
                )
            names.append(rest.pop(0))
        yield names


def load_labels(
    readers: Readers,
    task: Task,
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
    data_dir: str | None = None,
) -> list[str]:
    """Return the label names in a language's files, one for each occurrence.

    Raise ValueError for a pattern of tensorflow-datasets or a malformed file.
    """
    del data_dir
    assert readers.labels is not None, f"{task.name} has no classes"
    codes = files.spellings(language, language_codes)
    found: list[str] = []
    for pattern in patterns:
        if tfds_examples.is_tfds(pattern):
            raise ValueError(
                f"{task.name}: labels of {pattern} cannot be looked up; list them in task.labels"
            )
        paths = files.matching(root, pattern, codes)
        sources = (readers.labels(path, task) for path in paths)
        found += _of_language(sources, None if files.PLACEHOLDER in pattern else codes)
    return found


def has_files(root: pathlib.Path, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a file or names tensorflow-datasets.

    Raise ValueError if a pattern without wildcards names a missing file.
    """
    return any(
        tfds_examples.is_tfds(pattern)
        or (files.PLACEHOLDER in pattern and files.languages_of_names(root, pattern))
        or (files.PLACEHOLDER not in pattern and files.matching(root, pattern, [""]))
        for pattern in patterns
    )


def sources(
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
) -> set[tuple[Any, ...]]:
    """Return identities of a language's files and datasets; two links to one file share one."""
    found: set[tuple[Any, ...]] = {
        (pattern.replace(files.PLACEHOLDER, language),)
        for pattern in patterns
        if tfds_examples.is_tfds(pattern)
    }
    for path in matching_files(root, patterns, language, language_codes):
        status = path.stat()  # links, symbolic or hard, are the same file
        found.add((status.st_dev, status.st_ino))
    return found


def matching_files(
    root: pathlib.Path,
    patterns: Sequence[str],
    language: str,
    language_codes: Mapping[str, str] = _NO_CODES,
) -> list[pathlib.Path]:
    """Return all files that may hold text of a language; ValueError as in `has_files`."""
    codes = files.spellings(language, language_codes)
    own = (pattern for pattern in patterns if not tfds_examples.is_tfds(pattern))
    return [path for pattern in own for path in files.matching(root, pattern, codes)]


def available_languages(
    readers: Readers | None,
    task: Task,
    root: pathlib.Path,
    patterns: Sequence[str],
    language_codes: Mapping[str, str] = _NO_CODES,
) -> set[str]:
    """Return the languages of files; without `readers`, only those that file names tell."""
    found: set[str] = set()
    for pattern in patterns:
        if tfds_examples.is_tfds(pattern):
            continue
        if files.PLACEHOLDER in pattern:
            found |= files.languages_of_names(root, pattern)
        elif readers is not None:
            for path in files.matching(root, pattern, [""]):
                found |= {code or _DEFAULT_LANGUAGE for code, _ in readers.file(path, task)}
    return {language_codes.get(code, code) for code in found}


def _of_language(sources: Iterable[Found], wanted: Sequence[str] | None) -> Iterator[Any]:
    for source in sources:
        for code, example in source:
            if wanted is None or (code or _DEFAULT_LANGUAGE) in wanted:
                yield example


def _with_ids(examples: Sequence[Any], where: str) -> list[Any]:
    """Number the examples that have no id, and raise ValueError if two have the same."""
    found: dict[str, Any] = {}
    for number, example in enumerate(examples):
        if not example.id:
            example = dataclasses.replace(example, id=str(number))
        if example.id in found:
            raise ValueError(
                f"{where}: two files hold the example {example.id!r}; name each file once, and "
                "no two versions of a dataset"
            )
        found[example.id] = example
    return list(found.values())


def _described(root: pathlib.Path, pattern: str, codes: Sequence[str]) -> str:
    if files.PLACEHOLDER not in pattern:
        return f"{root / pattern} (in English, unless it says otherwise)"
    return " or ".join(str(root / pattern.replace(files.PLACEHOLDER, code)) for code in codes)


def _no_data(task: Task, language: str, looked_for: Sequence[str], there: set[str]) -> ValueError:
    return ValueError(
        f"{task.name} has no data for language {language!r}; looked for {'; '.join(looked_for)}; "
        f"there are files for {', '.join(sorted(there)) or 'no language'}: add the files, leave "
        "the language out, or map the code that file names use to it in language_codes"
    )
