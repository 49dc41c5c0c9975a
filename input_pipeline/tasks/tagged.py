"""Sentences with a tag for each word: CoNLL (also WikiANN's), CoNLL-U, and lists of words.

Lists come from JSON lines, Parquet and Arrow, a sentence a row, as in `datasets`.
"""

import logging
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from input_pipeline.tasks import delimited, files, tables, unlabelled
from input_pipeline.tasks.examples import BadRow, TaggedExample
from input_pipeline.tasks.tasks import NO_SPAN, Task, is_span_tag

_CONLLU_COLUMNS = 10
_FORM, _UPOS = 1, 3  # columns of CoNLL-U, unless the task names others
# In CoNLL-U, "3-4" is a written word for two words of syntax, "5.1" a word that the text omits.
_CONLLU_WORD = re.compile(r"[0-9]+")
_CONLLU_OTHER = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)")
_NUMBER = re.compile(r"-?[0-9]+")
_PREFIX = re.compile(r"[a-z]{2,}(-[a-z]+)*:")  # of a word of WikiANN: its language
# XTREME leaves out words of Universal Dependencies with this word or tag.
_NOTHING = "_"
_DOCUMENT = "-DOCSTART-"  # first cell of a line between documents, CoNLL-2003
_CONLL = (".conll", ".conllu", ".iob", ".bio")
# Names of columns: for lists, the best first; in a first line, that it is not a word.
_WORD_NAMES = ("tokens", "words", "token", "word", "form")
_TAG_NAMES = ("tags", "ner_tags", "labels", "ner", "pos_tags", "upos", "tag", "label", "ner_tag",
              "pos")  # fmt: skip

_Word = tuple[str, str, str | None]  # where, word, tag


class _Sentence(NamedTuple):
    """Words of a sentence; `line` is the number of its first line, or of its row."""

    line: int
    words: Sequence[_Word]
    language: str | None = None
    cells: Mapping[str, Any] = {}
    prefix: str = ""


def read_tagged(path: pathlib.Path, task: Task) -> delimited.Found:
    """Yield (language, example) of each sentence; language None unless a column names it.

    A file of ten columns is CoNLL-U. Otherwise a line has a word first and its tag last, or in the
    columns that the task numbers. A file with one column has no tags. Tabs separate columns, or
    blanks in a file without tabs. A line "# ..." at the start of a sentence is a comment if it has
    another number of columns than words or, for a task on spans, no tag of a span. A language code
    and a colon before all words, as in the original WikiANN, are removed.

    A `BadRow` stands for a sentence with any other line, with an unknown tag, or with tags on some
    lines only. Raise ValueError if words are running numbers.
    """

    def example(one: _Sentence) -> TaggedExample:
        words = one.words
        if task.skips_underscores:
            words = [word for word in words if _NOTHING not in word[1:]]
        has_tags = any(tag is not None for _, _, tag in words)
        tags = [task.class_index(_named_tag(word), word[0]) for word in words if has_tags]
        name, group = (delimited.identity(task, one.cells, is_group=way) for way in (False, True))
        return TaggedExample(
            name, tuple(word.removeprefix(one.prefix) for _, word, _ in words), tuple(tags), group
        )

    found = _found(path, task, example)
    return ((language, one) for language, one in found if isinstance(one, BadRow) or one.words)


def read_tags(path: pathlib.Path, task: Task) -> delimited.Found:
    """Yield (language, tag) of each word of a file as `read_tagged`, with any tag."""
    for language, words in _found(path, task, lambda one: one.words):
        if isinstance(words, BadRow):
            yield None, words
            continue
        for word in words:
            tag = _named_tag(word)
            if task.has_spans and not is_span_tag(tag):
                raise ValueError(
                    f"{word[0]}: {tag[:40]!r} is {NO_SPAN}; or correct it or task.label_column; "
                    "if numbers stand for tags, list the tags in their order in task.labels"
                )
            yield language, tag


def read_untagged(path: pathlib.Path, task: Task) -> list[TaggedExample | BadRow]:
    """Read sentences to predict on: one per line, words separated by blanks, CoNLL, or lists.

    A file is CoNLL if most lines have tabs, all lines end with a tag, or it is called *.conll,
    *.conllu, *.iob or *.bio. Tags are ignored. Ids come from the task's column, or number (first)
    lines from 1. Raise ValueError if there is no file.
    """
    if not path.is_file() or not (_has_lists(path) or _is_conll(path, task)):
        return unlabelled.read_words(path, task)

    def example(one: _Sentence) -> TaggedExample:
        name = delimited.identity(task, one.cells) or str(one.line)
        return TaggedExample(
            name,
            tuple(word.removeprefix(one.prefix) for _, word, _ in one.words),
            (),
            cells=one.cells,
        )

    found = [one for _, one in _found(path, task, example, has_tags=False)]
    logging.info("%s: %d sentences, with columns or lists", path, len(found))
    return delimited.numbered(found, task)


def _found(
    path: pathlib.Path, task: Task, make: Callable[[_Sentence], Any], *, has_tags: bool = True
) -> delimited.Found:
    """Yield (language, result of `make`) of each sentence; `has_tags` if none may be missing."""
    if is_of_lists := _has_lists(path):
        found: list[Any] = list(tables.read_records(path, tables.content(path), ()))
    else:
        found = list(_sentences(path, task, has_tags))
    if not found:
        raise ValueError(f"{path}: no words; add sentences or remove the file")
    words = [] if is_of_lists else [one.words for one in found if not isinstance(one, BadRow)]
    prefix = _checked_prefix(words) if words else ""
    for one in found:
        if isinstance(one, BadRow):
            yield None, one
            continue
        try:
            read = _of_lists(one, task) if is_of_lists else one
            yield read.language, make(read._replace(prefix=prefix))
        except ValueError as error:
            name = delimited.identity(task, one.cells) or str(one.line)
            yield None, BadRow(name, str(error), one.cells)


def _has_lists(path: pathlib.Path) -> bool:
    if delimited.is_called(path, ".json", ".jsonl"):
        return True
    return tables.has_names(tables.content(path), (), may_be_lines=True)


def _of_lists(row: tables.Record, task: Task) -> _Sentence:
    line, where, cells = row
    words, tags = (_list(cells, place, task, where) for place in (0, 1))
    if not words or (tags and len(tags) != len(words)):
        raise ValueError(f"{where}: {len(words)} words, {len(tags)} tags; correct the row")
    named = [(where, word, tags[i] if tags else None) for i, word in enumerate(words)]
    return _Sentence(line, named, delimited.language_of(cells, where), cells)


def _list(cells: Mapping[str, Any], place: int, task: Task, where: str) -> list[str]:
    """Return the words, or the tags by name, of a row; no tags without their column."""
    given = (task.columns.text, task.columns.label)[place] if task.columns else ()
    known = (_WORD_NAMES, _TAG_NAMES)[place] if not given or _NUMBER.fullmatch(given[0]) else given
    column = next((one for one in known if one in cells), None)
    if column is None and place:
        return []
    found = cells[column] if column else None
    if not isinstance(found, list) or not all(isinstance(one, str | int) for one in found):
        raise ValueError(
            f"{where}: {' or '.join(known)} must be a list of {('words', 'tags')[place]}; the "
            f"columns there are {', '.join(cells)}: set task.text_column and task.label_column"
        )
    # Numbers stand for tags by their order, unless they are the tags.
    tags = dict(enumerate(task.labels)) if place else {}
    return [str(one) if str(one) in task.labels else tags.get(one, str(one)) for one in found]


def _is_conll(path: pathlib.Path, task: Task) -> bool:
    if any(suffix.lower() in _CONLL for suffix in path.suffixes):
        return True
    lines = [line for _, line in files.numbered_lines(path) if line.strip()]
    of_words = [line for line in lines if not line.startswith(("#", _DOCUMENT))]
    if 2 * sum("\t" in line for line in of_words) > len(of_words):
        return True
    return all(len(words := line.split()) > 1 and words[-1] in task.labels for line in lines)


def _checked_prefix(sentences: Sequence[Sequence[_Word]]) -> str:
    """Return the prefix of all words of WikiANN, or ""; ValueError for names or numbers instead."""
    where, text, tag = sentences[0][0]
    if text.casefold() in _WORD_NAMES and (tag or "").casefold() in _TAG_NAMES:
        raise ValueError(f"{where}: {text!r} and {tag!r} are names of columns; remove the line")
    if sum(map(len, sentences)) > 2 and all(
        word[1] == str(number) for one in sentences for number, word in enumerate(one, start=1)
    ):
        raise ValueError(
            f"{where}: the words are running numbers; set task.text_column to the column of the "
            "words (--config.task.text_column=2)"
        )
    first = _PREFIX.match(sentences[0][0][1])
    is_of_all = first and all(word[1].startswith(first[0]) for one in sentences for word in one)
    return first[0] if first and is_of_all else ""


def _columns(task: Task) -> tuple[int, int]:
    """Return places of word and tag in a line, negative from its end; ValueError if invalid."""
    if task.columns is None:
        return 0, -1
    (word,), (tag,) = task.columns.text, task.columns.label
    for key, name in (("text_column", word), ("label_column", tag)):
        if not _NUMBER.fullmatch(name) or not int(name):
            raise ValueError(
                f"task.{key} is {name!r}, must be the number of a column, from 1, or -1 for the "
                "last: files of tags have no names of columns"
            )
    if int(word) == int(tag):
        raise ValueError(
            f"task.text_column and task.label_column are both {word}, must be the different "
            "columns of words and tags; correct one of them"
        )
    return int(word) - (int(word) > 0), int(tag) - (int(tag) > 0)


def _named_tag(word: _Word) -> str:
    where, text, tag = word
    if not text.strip():
        raise ValueError(
            f"{where}: the tag {tag!r} has no word before its tab; correct or remove the line"
        )
    if not tag:
        raise ValueError(
            f"{where}: {text[:40]!r} has no tag; a line must be a word, a tab or blank, and its "
            "tag, or a row of JSON or Parquet two lists (tags cannot be CSV)"
        )
    return tag


def _check_columns(columns: tuple[int, int], width: int, where: str, has_tags: bool) -> None:
    """Raise ValueError if lines of `width` columns lack a column, or word and tag share one."""
    if beyond := [place for place in columns if not -width <= place < width]:
        raise ValueError(
            f"{where}: {width} columns, but task.text_column and task.label_column name column "
            f"{beyond[0] + (beyond[0] >= 0)}; correct them, -1 is the last column"
        )
    word, tag = (place % width for place in columns)
    if has_tags and word == tag:
        raise ValueError(
            f"{where}: {width} columns; task.text_column and task.label_column both name column "
            f"{word + 1}; correct one of them, -1 is the last column"
        )


def _sentences(path: pathlib.Path, task: Task, has_tags: bool) -> Iterator[_Sentence | BadRow]:
    columns = _columns(task)
    sentence: list[_Word] = []
    fault: ValueError | None = None  # the first one of the sentence
    has_tabs, lines = _cells(path)
    lines_of_words = [line for line in lines if line[1] and not line[1][0].startswith(_DOCUMENT)]
    filled = [line for line in lines_of_words if not _may_be_comment(line[1])]
    # If all lines may be comments, lines with tabs are words such as "#".
    filled = filled or [line for line in lines_of_words if len(line[1]) > 1 and has_tabs]
    width = len(filled[0][1]) if filled else 0
    if is_conllu := width == _CONLLU_COLUMNS:
        columns = columns[0] or _FORM, _UPOS if columns[1] == -1 else columns[1]
    if width > 1:
        _check_columns(columns, width, filled[0][0], has_tags)
    for where, cells in [*lines, ("", [])]:
        if not cells or cells[0].startswith(_DOCUMENT):
            if sentence:
                number = int(sentence[0][0].rpartition(" ")[2])
                yield BadRow(str(number), str(fault)) if fault else _Sentence(number, sentence)
            sentence, fault = [], None
            continue
        try:
            if is_conllu:
                sentence += _conllu_word(cells, where, columns)
            elif sentence or not _is_comment(cells, width, columns, task):
                sentence.append(_word(cells, width, columns, where))
        except ValueError as error:
            sentence.append((where, "", None))
            fault = fault or error


def _cells(path: pathlib.Path) -> tuple[bool, list[tuple[str, list[str]]]]:
    """Return whether tabs separate columns, and place and cells of each line, [] of a blank one."""
    lines = list(files.numbered_lines(path))
    tabbed = [line for _, line in lines if "\t" in line]
    end = "\t" if all(line.endswith("\t") for line in tabbed) else ""  # makes no column

    def split(line: str) -> list[str]:
        if tabbed:
            return line.removesuffix(end).split("\t")
        # Other blanks, as in 10\u00a0000, are part of a word.
        return [cell for cell in line.split(" ") if cell]

    return bool(tabbed), [(where, split(line) if line.strip() else []) for where, line in lines]


def _may_be_comment(cells: list[str]) -> bool:
    return cells[0].startswith("# ") or cells[0] == "#"


def _is_comment(cells: list[str], width: int, columns: tuple[int, int], task: Task) -> bool:
    """Return whether the first line of a sentence is a comment, not a word."""
    if not _may_be_comment(cells):
        return False
    if len(cells) != width:
        return True
    return task.has_spans and width > 1 and not is_span_tag(cells[columns[1]])


def _word(cells: list[str], width: int, columns: tuple[int, int], where: str) -> _Word:
    """Return word of a line, and tag if it has columns; ValueError unless there are `width`."""
    if len(cells) == 1:
        return where, cells[0], None
    if len(cells) != width:
        raise ValueError(
            f"{where}: {len(cells)} columns, expected {width} as in the first line of the file; a "
            "line is a word, other columns and its tag, separated by tabs or else by blanks"
        )
    word, tag = (cells[place] for place in columns)
    return where, word, tag.strip()


def _conllu_word(cells: list[str], where: str, columns: tuple[int, int]) -> list[_Word]:
    """Return the word of a line, or nothing if the line is of another kind."""
    if cells[0].startswith("#"):
        return []  # a comment
    if len(cells) == _CONLLU_COLUMNS and _CONLLU_WORD.fullmatch(cells[0]):
        word, tag = (cells[place] for place in columns)
        return [(where, word, tag)]
    if len(cells) == _CONLLU_COLUMNS and _CONLLU_OTHER.fullmatch(cells[0]):
        return []
    raise ValueError(
        f"{where}: not a line of CoNLL-U ({len(cells)} columns, first one {cells[0][:20]!r}); "
        f"expected {_CONLLU_COLUMNS} columns and a number such as 1, 1-2 or 1.1"
    )
