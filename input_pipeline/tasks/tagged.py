"""Sentences with a tag for each word: CoNLL in columns, the same of WikiANN, and CoNLL-U."""

import pathlib
import re
from collections.abc import Iterator

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import TaggedExample
from input_pipeline.tasks.tasks import Task

_CONLLU_COLUMNS = 10
# Of CoNLL-U, "3-4" is a word in writing that stands for two words of syntax, "5.1" one that was
# left out of the text.
_CONLLU_WORD = re.compile(r"[0-9]+")
_CONLLU_OTHER = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)")
_PREFIX = re.compile(r"[a-z]{2,}(-[a-z]+)*:")  # of a word of WikiANN: its language
# XTREME leaves out words of Universal Dependencies of which word or tag is this.
_NOTHING = "_"
_DOCUMENT = "-DOCSTART-"  # first cell of a line of CoNLL-2003 between documents, which is no word

_Word = tuple[str, str, str | None]  # where, word, tag


def read_tagged(path: pathlib.Path, task: Task) -> Iterator[tuple[None, TaggedExample]]:
    """Yields (None, example) of each sentence of a file; ids are left empty.

    CoNLL-U is known by its ten columns. Otherwise the first cell of a line is a word and the last
    one its tag, or those of the columns that the task names by number; a file with one column has
    no tags. Columns are separated by tabs, or by blanks in a file without tabs. If all words of a
    file begin with the same language code and a colon, as in the original files of WikiANN, these
    are taken off.

    Raises:
      ValueError: a line that is neither, a tag that the task does not have, or tags on some lines
        only.
    """
    sentences = list(_sentences(path, _columns(task)))
    words = [word for sentence in sentences for word in sentence]
    if not words:
        raise ValueError(f"{path}: no words; add sentences or remove the file")
    has_tags = words[0][2] is not None
    first = _PREFIX.match(words[0][1])
    prefix = first[0] if first and all(word.startswith(first[0]) for _, word, _ in words) else ""
    for sentence in sentences:
        if task.skips_underscores:
            sentence = [word for word in sentence if _NOTHING not in word[1:]]
        tags = [_tag(word, task) for word in sentence] if has_tags else []
        texts = tuple(word.removeprefix(prefix) for _, word, _ in sentence)
        if texts:
            yield None, TaggedExample("", texts, tuple(tags))


def read_tags(path: pathlib.Path, task: Task) -> Iterator[tuple[None, str]]:
    """Yields (None, tag) of each word of a file; as `read_tagged`, of any tag."""
    for sentence in _sentences(path, _columns(task)):
        for word in sentence:
            yield None, _named_tag(word)


def _columns(task: Task) -> tuple[int, int]:
    """Places of the word and its tag in a line, from 0; negative ones count from its end."""
    if task.columns is None:
        return 0, -1
    (word,), (tag,) = (int(name) for name in task.columns.text), map(int, task.columns.label)
    return word - (word > 0), tag - (tag > 0)


def _tag(word: _Word, task: Task) -> int:
    return task.class_index(_named_tag(word), word[0])


def _named_tag(word: _Word) -> str:
    where, text, tag = word
    if not text.strip():
        raise ValueError(
            f"{where}: the tag {tag!r} has no word before its tab; correct or remove the line"
        )
    if not tag:
        raise ValueError(
            f"{where}: {text!r} has no tag, though other words of the file have; a line is word, "
            "tab, tag"
        )
    return tag


def _sentences(path: pathlib.Path, columns: tuple[int, int]) -> Iterator[list[_Word]]:
    """Yields the words of each sentence as they are in the file."""
    is_conllu: bool | None = None
    sentence: list[_Word] = []
    lines = list(files.numbered_lines(path))
    has_tabs = any("\t" in line for _, line in lines)
    width: int | None = None
    for where, line in lines:
        if not line.strip() or line.startswith(_DOCUMENT):
            if sentence:
                yield sentence
            sentence = []
            continue
        cells = line.split("\t") if has_tabs else line.split()
        if is_conllu is None and not (line.startswith("# ") and "\t" not in line):
            is_conllu = len(cells) == _CONLLU_COLUMNS
        if is_conllu is None or (is_conllu and line.startswith("#")):
            continue  # a comment
        if is_conllu:
            sentence += _conllu_word(cells, where)
        else:
            width = width or len(cells)
            sentence.append(_word(cells, width, columns, where))
    if sentence:
        yield sentence


def _word(cells: list[str], width: int, columns: tuple[int, int], where: str) -> _Word:
    """The word of a line, and its tag where lines have more than one column.

    Raises:
      ValueError: the line has another number of columns than the first one, or too few.
    """
    if len(cells) == 1:
        return where, cells[0], None
    if len(cells) != width:
        raise ValueError(
            f"{where}: {len(cells)} columns, expected {width} as in the first line of the file; a "
            "line is a word, other columns and its tag, separated by tabs, or by blanks in a file "
            "without tabs"
        )
    if max(*columns, *(-place - 1 for place in columns)) >= width:
        raise ValueError(
            f"{where}: {width} columns, but task.text_column and task.label_column name column "
            f"{max(columns) + 1}; correct them, -1 is the last column"
        )
    word, tag = (cells[place] for place in columns)
    return where, word, tag.strip()


def _conllu_word(cells: list[str], where: str) -> list[_Word]:
    """The word of a line, or nothing where the line is of another kind."""
    if len(cells) == _CONLLU_COLUMNS and _CONLLU_WORD.fullmatch(cells[0]):
        return [(where, cells[1], cells[3])]
    if len(cells) == _CONLLU_COLUMNS and _CONLLU_OTHER.fullmatch(cells[0]):
        return []
    raise ValueError(
        f"{where}: not a line of CoNLL-U ({len(cells)} columns, first one {cells[0][:20]!r}); "
        f"expected {_CONLLU_COLUMNS} columns and a number such as 1, 1-2 or 1.1"
    )
