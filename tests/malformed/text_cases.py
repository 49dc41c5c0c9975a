"""Text and its folders, as prepare_data, build_vocab and the tools read them."""

import gzip
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case

Changes = Mapping[str, str]  # of the config, as `templates.config` takes them
NO_CHANGES: Changes = {}
_ALONE = {"corpus__parallel": "()"}
_ROWS = ("work/rows",)  # the empty folder, with its LOCK
_TEXT = "the cat runs .\n\nthe dog sleeps .\n\n" * 3


def write(name: str, content: bytes | str) -> Break:
    data = content.encode() if isinstance(content, str) else content

    def breaks(folder: pathlib.Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return breaks


def _replace(old: str, name: str, content: bytes | str) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        (folder / old).unlink()
        write(name, content)(folder)

    return breaks


def _good(name: str = "text/sw.txt") -> Break:
    def repairs(folder: pathlib.Path) -> None:
        if name != "text/sw.txt":
            (folder / name).unlink(missing_ok=True)
        tiny_tasks.write(folder / "text/sw.txt", _TEXT)

    return repairs


def prepared(
    name: str,
    breaks: Break,
    *says: str,
    kind: str = "text",
    repairs: Break | None = None,
    changes: Changes = NO_CHANGES,
) -> Case:
    """A case of prepare_data."""
    flags = templates.config(**changes)
    return Case(kind, name, "prepare_data", "text", flags, breaks, says, repairs, leaves=_ROWS)


def _contents() -> Iterator[Case]:
    name = "text/sw.txt"
    packed = gzip.compress((_TEXT * 200).encode())
    for what, breaks, says, written in (
        (
            "text in latin1",
            write(name, "señor\n".encode("latin1")),
            ("line 1: not UTF-8", "iconv"),
            name,
        ),
        ("zeros of a crash", write(name, _TEXT + "\0" * 4096), ("line 13: a NUL byte",), name),
        ("an empty file", write(name, b""), ("empty",), name),
        ("blank lines", write(name, "\u3000\n\u00a0\n"), ("blank",), name),
        ("a cut archive", _replace(name, f"{name}.gz", packed[:99]), ("cut off",), f"{name}.gz"),
        ("a zip archive", _replace(name, f"{name}.zip", b"x"), ("unknown comp",), f"{name}.zip"),
        (
            "JSON that nests",
            _replace(name, "text/sw.jsonl", '{"text": "a"}\n' + "[" * 100_000),
            ("line 2: not JSON|nested",),
            "text/sw.jsonl",
        ),
    ):
        where = re.escape(written)
        yield prepared(what, breaks, where, *says, repairs=_good(written))
    yield prepared(
        "one sentence",
        write(name, "the cat\n"),
        "'sw'",
        "too little text",
        changes=_ALONE,
        repairs=_good(),
    )


def _shards(names: Sequence[str]) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        for name in names:
            content = json.dumps({"text": "the cat"}) + "\n" if "jsonl" in name else _TEXT
            data = content.encode()
            write(f"text/{name}", gzip.compress(data) if name.endswith("gz") else data)(folder)

    return breaks


def _names() -> Iterator[Case]:
    for present, says in (
        (("en-00000-of-00002.txt",), "of-00002 1 are missing, 00001"),
        (("en-0-of-1.txt", "en-1-of-1.txt"), "from 00000 to 00000"),
        (("en-0-of-1.txt", "en-0-of-1.jsonl"), "there once"),
    ):
        yield prepared(
            f"shards, {present[-1]}",
            _shards(present),
            "text/en",
            says,
            repairs=_good(f"text/{present[-1]}"),
        )

    def no_folder(folder: pathlib.Path) -> None:
        (folder / "text").rename(folder / "elsewhere")

    def loop(folder: pathlib.Path) -> None:
        (folder / "text/sw.txt").unlink()
        (folder / "text/sw.txt").symlink_to(folder / "text/sw.txt")

    def a_pipe(name: str) -> Break:
        return lambda folder: os.mkfifo(folder / "text" / name)

    yield prepared("a pipe", a_pipe("sw.jsonl"), r"sw\.jsonl: is a pipe")
    codes = {"corpus__language_codes": repr({"sw": "../x"})}
    yield prepared("a code that is a path", _nothing, "corpus.language_codes", changes=codes)
    yield prepared("no folder of text", no_folder, r"corpus\.root", "text is no folder")
    yield prepared("a link to itself", loop, r"sw\.txt|'sw'")
    yield prepared(
        "a missing language",
        _replace("text/sw.txt", "text/notes.md", "x"),
        r"'sw'",
        r"sw\.txt",
        changes=_ALONE,
        repairs=_good(),
    )
    yield prepared(
        "a missing path",
        _nothing,
        r"corpus\.parallel: .*none\.txt",
        "does not exist",
        changes={"corpus__parallel": "('none.txt',)"},
    )
    yield prepared(
        "a test set that is empty",
        write("text/test/x.txt", b""),
        r"x\.txt",
        "empty",
        changes={"corpus__exclude": "('test/x.txt',)"},
    )


def _tools() -> Iterator[Case]:
    count = ("--output=DIR/tables/sw.runs.gz",)
    for name, flags, breaks, says in (
        ("counting no such file", ("--input=DIR/none.txt",), None, (r"none\.txt: no such file",)),
        (
            "counting a CSV",
            ("--input=DIR/x.csv",),
            write("x.csv", b"a,b\n"),
            (r"x\.csv", "not a text file"),
        ),
        (
            "text and tables at once",
            ("--input=DIR/a", "--merge=DIR/b"),
            None,
            ("--input", "--merge"),
        ),
        ("merging no table", ("--merge=DIR/x.gz",), write("x.gz", b"abc"), (r"x\.gz",)),
        (
            "merging text",
            ("--merge=DIR/x.gz",),
            write("x.gz", gzip.compress(b"the cat\n")),
            (r"x\.gz",),
        ),
        (
            "a share of 2",
            ("--input=DIR/text/en.txt", "--heldout_fraction=2", "--heldout_output=DIR/h.gz"),
            None,
            ("heldout_fraction",),
        ),
        (
            "a share without output",
            ("--input=DIR/text/en.txt", "--heldout_fraction=0.1"),
            None,
            ("heldout_output",),
        ),
        ("no memory", ("--input=DIR/text/en.txt", "--max_runs=0"), None, ("max_runs",)),
        (
            "a table in place of its text",
            ("--input=DIR/text/*.txt", "--output=DIR/work/../text/en.txt"),
            None,
            (r"en\.txt is an input",),
        ),
        ("unquoted patterns", ("--input=DIR/text/en.txt", "DIR/text/sw.txt"), None, ("quotes",)),
    ):
        yield Case("tools", name, "count_text", "text", (*count, *flags), breaks or _nothing, says)
    yield Case(
        "tools",
        "a negative number of documents",
        "fetch_text",
        "text",
        ("--dataset=c4", "--languages=sw", "--output=DIR/fetched", "--max_documents=-3"),
        _nothing,
        ("--max_documents=-3: .*non-negative",),
    )
    for name, tokenizers, says in (
        ("a tokenizer without name", "DIR/work/vocab/spm.model", ("NAME=PATH",)),
        ("a name twice", "a=DIR/work/vocab/spm.model,a=DIR/x", ("twice",)),
        ("no such tokenizer", "a=DIR/none.model", (r"none\.model",)),
        ("text as tokenizer", "a=DIR/text/en.txt", (r"en\.txt",)),
        ("a folder without tokenizer", "a=DIR/text", ("text",)),
    ):
        flags = (f"--tokenizers={tokenizers}", "--text=DIR/text", "--output=DIR/scores")
        yield Case("tools", f"scoring, {name}", "score_tokenizer", "text", flags, _nothing, says)
    flags = ("--tokenizers=a=DIR/work/vocab/spm.model", "--output=DIR/scores")

    yield Case(
        "tools",
        "scoring an absent language",
        "score_tokenizer",
        "text",
        (*flags, "--text=DIR/text", "--languages=de"),
        _nothing,
        ("de", "en, sw"),
    )
    yield Case(
        "tools",
        "scoring an absent parallel text",
        "score_tokenizer",
        "text",
        (*flags, "--text=DIR/text", "--parallel=DIR/none.tsv"),
        _nothing,
        (r"none\.tsv",),
    )


def _nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is: the flags are wrong."""


CASES = [*_contents(), *_names(), *_tools()]
