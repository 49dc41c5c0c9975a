"""Text and its folders, as prepare_data, build_vocab and the tools read them."""

import bz2
import gzip
import json
import lzma
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import zstandard

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


def _encodings() -> Iterator[Case]:
    word = "señor duerme\n"
    for encoding in ("latin1", "cp1252", "utf-16", "utf-16-le", "utf-32", "mac_roman"):
        content = ("the cat .\n" + word * 3).encode(encoding)
        yield prepared(
            f"text in {encoding}",
            write("text/sw.txt", content),
            r"sw\.txt, line [12]",
            "(?i)utf-8|NUL",
            "iconv",
            repairs=_good() if encoding == "latin1" else None,
        )
    for encoding, word in (
        ("shift_jis", "猫は走る"),
        ("euc_jp", "猫は走る"),
        ("gb18030", "猫跑"),
        ("big5", "貓跑"),
        ("koi8_r", "кошка"),
        ("euc_kr", "고양이"),
        ("cp1256", "قطة"),
        ("tis_620", "แมว"),
    ):
        content = ("the cat .\n" + f"{word}\n" * 3).encode(encoding)
        yield prepared(
            f"text in {encoding}", write("text/sw.txt", content), r"sw\.txt, line 2", "iconv"
        )
    yield prepared(
        "a character cut at the end",
        write("text/sw.txt", (_TEXT + "ñ").encode()[:-1]),
        r"sw\.txt, line 13",
        "UTF-8",
    )
    yield prepared(
        "a surrogate in UTF-8",
        write("text/sw.txt", _TEXT.encode() + b"\xed\xa0\x80\n"),
        r"sw\.txt, line 13",
        "UTF-8",
    )
    yield prepared(
        "NUL bytes", write("text/sw.txt", _TEXT + "the \0 cat\n"), r"sw\.txt, line 13", "NUL"
    )
    yield prepared(
        "a block of zeros, as a crash leaves it",
        write("text/sw.txt", _TEXT + "\0" * 4096),
        r"sw\.txt, line 13",
        "NUL",
        repairs=_good(),
    )


def _contents() -> Iterator[Case]:
    for name, content in (
        ("empty", b""),
        ("blank lines", b"\n\n \t\n"),
        ("a byte order mark alone", b"\xef\xbb\xbf"),
        ("white space of Unicode", "\u3000\n\u00a0\n".encode()),
    ):
        yield prepared(
            f"{name}", write("text/sw.txt", content), r"sw\.txt", "empty|blank", repairs=_good()
        )
    yield prepared(
        "one sentence",
        write("text/sw.txt", "the cat\n"),
        "'sw'",
        "too little text",
        changes=_ALONE,
        repairs=_good(),
    )
    for name, content in (
        ("a PNG", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
        ("a PDF", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"),
        ("an ELF program", b"\x7fELF\x02\x01\x01\0\0"),
        ("gzip without its name", gzip.compress(b"a")),
        ("zip", b"PK\x03\x04\x14\0\0\0\x08\0\xff\xfe"),
        ("parquet", b"PAR1\x15\x04\x15\xff\xfe"),
    ):
        yield prepared(
            f"{name} as text", write("text/sw.txt", content), r"sw\.txt, line \d", "iconv|NUL"
        )


def _compressed() -> Iterator[Case]:
    for kind, pack in (
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("bz2", bz2.compress),
        ("zst", zstandard.compress),
    ):
        whole, name = pack((_TEXT * 200).encode()), f"text/sw.txt.{kind}"
        yield prepared(
            f"cut {kind}",
            _replace("text/sw.txt", name, whole[: len(whole) // 2]),
            rf"sw\.txt\.{kind}, after line \d+",
            "cut off",
            repairs=_good(name),
        )
        damaged = bytearray(whole)
        damaged[len(damaged) // 2] ^= 0xFF
        damaged[len(damaged) // 2 + 1] ^= 0xFF
        yield prepared(
            f"damaged {kind}",
            _replace("text/sw.txt", name, bytes(damaged)),
            rf"sw\.txt\.{kind}",
            "damaged|UTF-8",
        )
        yield prepared(
            f"plain text called {kind}",
            _replace("text/sw.txt", name, _TEXT),
            rf"sw\.txt\.{kind}",
            "cannot be read",
        )
        yield prepared(
            f"empty {kind}", _replace("text/sw.txt", name, b""), rf"sw\.txt\.{kind}", "empty|cut"
        )
    for kind in ("zip", "7z", "lz4", "tar", "rar"):
        yield prepared(
            f"unknown compression {kind}",
            _replace("text/sw.txt", f"text/sw.txt.{kind}", b"x"),
            rf"sw\.txt\.{kind}",
            "unknown compression",
            repairs=_good(f"text/sw.txt.{kind}"),
        )
    yield prepared(
        "txt after gz", _replace("text/sw.txt", "text/sw.gz.txt.zip", b"x"), r"sw\.gz\.txt\.zip"
    )


def _json() -> Iterator[Case]:
    good = json.dumps({"text": "the cat"})
    for name, line, says in (
        ("cut", '{"text": "the', "not JSON"),
        ("a list", '["the cat"]', "no text field"),
        ("a string", '"the cat"', "no text field"),
        ("another field", '{"content": "the cat"}', "no text field"),
        ("a number as text", '{"text": 3}', "no text field"),
        ("null", '{"text": null}', "no text field"),
        ("two objects", good + good, "not JSON"),
        ("NaN alone", "NaN", "no text field"),
        ("half a surrogate", '{"text": "\\ud800"}', "cut in two"),
        ("single quotes", "{'text': 'the cat'}", "not JSON"),
        ("deep nesting", "[" * 100_000, "not JSON|nested"),
    ):
        yield prepared(
            f"JSON lines, {name}",
            _replace("text/sw.txt", "text/sw.jsonl", f"{good}\n{line}\n"),
            r"sw\.jsonl, line 2",
            says,
            repairs=_good("text/sw.jsonl") if name == "cut" else None,
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
        (("en-00001-of-00002.txt.gz",), "of-00002 1 are missing, 00000"),
        (("en.00000-of-00009.jsonl",), "of-00009 8 are missing, 00001, .* and others"),
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

    def as_folder(folder: pathlib.Path) -> None:
        (folder / "text/sw.txt").unlink()
        (folder / "text/sw.txt").mkdir()

    def no_folder(folder: pathlib.Path) -> None:
        (folder / "text").rename(folder / "elsewhere")

    def a_file(folder: pathlib.Path) -> None:
        no_folder(folder)
        (folder / "text").write_text("the cat\n", encoding="utf-8")

    def loop(folder: pathlib.Path) -> None:
        (folder / "text/sw.txt").unlink()
        (folder / "text/sw.txt").symlink_to(folder / "text/sw.txt")

    def a_pipe(name: str) -> Break:
        return lambda folder: os.mkfifo(folder / "text" / name)

    for name in ("sw.jsonl", "x.en-sw.tsv"):
        yield prepared(f"a pipe called {name}", a_pipe(name), rf"{name}: is a pipe")
    for code in ("../x", "", ".x", "a\nb", "x" * 101):
        codes = {"corpus__language_codes": repr({"sw": code})}
        yield prepared(f"the code {code!r}", _nothing, "corpus.language_codes", changes=codes)
    yield prepared("a folder called sw.txt", as_folder, r"'sw'", r"sw\.txt", changes=_ALONE)
    yield prepared("no folder of text", no_folder, r"corpus\.root", "text is no folder")
    yield prepared("a file as folder of text", a_file, r"corpus\.root", "text is no folder")
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
        "upper-case name",
        _replace("text/sw.txt", "text/SW.txt", _TEXT),
        r"'sw'",
        r"sw\.txt",
        changes=_ALONE,
    )
    for key in ("text", "exclude", "parallel", "parallel_eval"):
        yield prepared(
            f"a missing path in corpus.{key}",
            _nothing,
            rf"corpus\.{key}: .*none\.txt",
            "no folder|does not exist",
            changes={f"corpus__{key}": "('none.txt',)"},
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
        ("counting TSV", ("--input=DIR/text/en-sw.tsv",), None, (r"en-sw\.tsv", "parallel text")),
        (
            "counting Latin 1",
            ("--input=DIR/l.txt",),
            write("l.txt", b"a\n\xf1\n"),
            (r"l\.txt, line 2",),
        ),
        (
            "counting an empty file",
            ("--input=DIR/e.txt",),
            write("e.txt", b""),
            (r"e\.txt", "empty"),
        ),
        (
            "counting NUL bytes",
            ("--input=DIR/n.txt",),
            write("n.txt", b"a\0b\n"),
            (r"n\.txt, line 1", "NUL"),
        ),
        (
            "counting a CSV",
            ("--input=DIR/x.csv",),
            write("x.csv", b"a,b\n"),
            (r"x\.csv", "not a text file"),
        ),
        ("counting a folder", ("--input=DIR/text",), None, ("text",)),
        (
            "text and tables at once",
            ("--input=DIR/a", "--merge=DIR/b"),
            None,
            ("--input", "--merge"),
        ),
        ("neither text nor tables", (), None, ("--input", "--merge")),
        ("merging no table", ("--merge=DIR/x.gz",), write("x.gz", b"abc"), (r"x\.gz",)),
        (
            "merging a cut table",
            ("--merge=DIR/x.gz",),
            write("x.gz", gzip.compress(b"vocap runs\n" * 50)[:20]),
            (r"x\.gz",),
        ),
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
        "scoring no text",
        "score_tokenizer",
        "text",
        (*flags, "--text=DIR/none"),
        _nothing,
        ("none",),
    )
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


CASES = [*_encodings(), *_contents(), *_compressed(), *_json(), *_names(), *_tools()]
