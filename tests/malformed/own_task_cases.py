"""Files of a user's own, with a class, a number or tags, as finetune reads them."""

from collections.abc import Iterator

from tests.malformed.harness import Case
from tests.malformed.task_cases import finetune_case, write

_ROWS = "the cat,pos\nthe dog,neg\n" * 4
_TEXTS = "text,label\n" + _ROWS
_TAGS = "the O\ncat B-X\n\ndog B-X\n\nruns O\n"


def _texts() -> Iterator[Case]:
    where = r"train\.en\.csv"
    by_number = ("--config.task.text_column=1", "--config.task.label_column=2")
    broken: tuple[tuple[str, str | bytes, tuple[str, ...]], ...] = (
        ("Latin 1", (_TEXTS + "señor,pos\n").encode("latin1"), (f"{where}, line 10", "iconv")),
        ("a workbook", b"PK\3\4\0\0", (where, "xlsx", "CSV")),
        ("Parquet", b"PAR1\0\0", (where, "Parquet")),
        ("cut gzip", b"\x1f\x8b\x08\0\0\0\0\0", (where, "cut off")),
        ("names alone", "text,label\n", (where, "no rows")),
        ("other names", "sentence,class\na,b\n", (f"{where}, line 1", "'text'", "text_column")),
        ("bars", "text|label\na|b\n", (f"{where}, line 1", "commas")),
        ("two columns of one name", "text,label,text\na,b,c\n", (f"{where}, line 1", "several")),
        ("a short row", _TEXTS + "a\n", (f"{where}, line 10", "1 columns")),
        ("an open quote", _TEXTS + '"a,pos\n', (f"{where}, line 10", "quotation mark")),
        ("an empty text", _TEXTS + ",pos\n", (f"{where}, line 10", "'text' is empty")),
        ("an unseen text", _TEXTS + "\u200b,pos\n", (f"{where}, line 10", "'text' is empty")),
        ("an empty label", _TEXTS + "a,\n", (f"{where}, line 10", "'label' is empty")),
        ("a missing label of pandas", _TEXTS + "a,nan\n", (f"{where}, line 10", "'nan'")),
        ("one label", "text,label\na,pos\nb,pos\n", ("labels are pos", "label_column")),
        ("labels in two ways", _TEXTS + "a,Pos\n", ("'pos' .4 times", "'Pos'", "alike")),
        ("a list in JSON", '{"text": ["a"], "label": "b"}', (f"{where}, line 1", "'text' holds")),
        ("broken JSON", '[{"text": "a",\n', (f"{where}, line 1", "not JSON")),
        ("no object in JSON", '{"text": "a", "label": "b"}\n3\n', (f"{where}, line 2", "object")),
        ("half a character", '{"text": "\\ud800", "label": "b"}', (f"{where}, line 1", "remove")),
        ("a language that is none", "text,label,language\na,b,x\n", (f"{where}, line 2", "'x'")),
    )
    for name, content, says in broken:
        yield finetune_case("text", name, write("train.en.csv", content), *says)
    yield finetune_case(
        "text",
        "names of columns that go by number",
        write("train.en.csv", _TEXTS),
        f"{where}, line 1",
        "'label'",
        flags=by_number,
    )
    yield finetune_case(
        "text", "no language in a name", write("train.csv", _TEXTS), r"train\.csv", "rename"
    )
    yield finetune_case(
        "text",
        "a folder as file",
        write("train.en.csv/part", _TEXTS),
        f"{where}: is a folder",
    )
    yield finetune_case(
        "text",
        "labels in one text",
        write("train.en.csv", _TEXTS),
        r"task\.labels is \('neg,pos',\)",
        r"--config\.task\.labels=\"\('neg','pos'\)\"",
        flags=("--config.task.labels=neg,pos",),
    )
    for name, value in (("a decimal comma", "3,5"), ("a share", "35%"), ("words", "many")):
        content = f"text\tlabel\na\t{value}\n"
        yield finetune_case(
            "text:number,", name, write("train.en.csv", content), f"{where}, line 2", "a point"
        )


def _tags() -> Iterator[Case]:
    where = r"train\.en\.conll"
    for name, content, says in (
        ("CSV", "word,tag\nthe,O\n", (f"{where}, line 1", "CSV")),
        ("JSON lines", '{"tokens":["a"],"tags":["O"]}\n', (f"{where}, line 1", "JSON")),
        ("names of columns", "word\ttag\nthe\tO\n", (f"{where}, line 1", "names of columns")),
        ("numbers as words", "1 the O\n2 cat B-X\n\n1 a O\n", (f"{where}, line 1", "text_column")),
        ("a tag of no span", _TAGS + "a NOUN\n", (f"{where}, line 7", "'NOUN'", "words,")),
        ("a word without tag", _TAGS + "a\n", (f"{where}, line 7", "no tag")),
        ("a line too wide", _TAGS + "a b O\n", (f"{where}, line 7", "3 columns")),
        ("documents without words", "-DOCSTART- O\n\n", (where, "no words")),
        ("one tag", "the O\n\ncat O\n", ("labels are O",)),
    ):
        yield finetune_case("tags", name, write("train.en.conll", content), *says)
    for key in ("text_column", "label_column"):
        yield finetune_case(
            "tags",
            f"{key} by name",
            write("train.en.conll", _TAGS),
            rf"task\.{key} is 'word'",
            "number of a column",
            flags=(f"--config.task.{key}=word",),
        )
    for name, flags, says in (
        ("one column for both", ("--config.task.label_column=1",), ("both 1", "different columns")),
        ("a column 0", ("--config.task.text_column=0",), (r"task\.text_column is '0'", "from 1")),
    ):
        yield finetune_case("tags:words,", name, write("train.en.conll", _TAGS), *says, flags=flags)


CASES = [*_texts(), *_tags()]
