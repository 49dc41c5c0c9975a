"""Parallel text and counts of pairs, as prepare_data and xlm pair-sampling read them."""

import functools
import pathlib
from collections.abc import Iterator

from tests.malformed import templates
from tests.malformed.harness import Break, Case
from tests.malformed.text_cases import prepared, write

_parallel_case = functools.partial(prepared, kind="parallel text")


def _parallel() -> Iterator[Case]:
    name = "text/en-sw.tsv"
    for what, content, says in (
        ("one column", "the cat\n", (r"en-sw\.tsv, line 1", "1 columns")),
        ("three columns", "a\tb\nc\td\te\n", (r"en-sw\.tsv, line 2", "3 columns")),
        ("commas", "the cat,paka\n", (r"en-sw\.tsv, line 1", "1 columns")),
        ("empty", "", (r"en-sw\.tsv", "empty")),
        ("blank lines", "\n\n\n", (r"en-sw\.tsv", "no sentence pairs")),
        ("Latin 1", "a\tb\nseñor\tx\n".encode("latin1"), (r"en-sw\.tsv, line 2", "iconv")),
        ("NUL bytes", "a\tb\nthe\0\tx\n", (r"en-sw\.tsv, line 2", "NUL")),
    ):
        yield _parallel_case(what, write(name, content), *says)
    for what, header, says in (
        ("no header", "the cat\tpaka\n", (r"mine\.tsv, line 1", "expected a header")),
        ("a header without id", "en\tsw\nthe\tx\n", (r"mine\.tsv, line 1", "header")),
        ("one language", "id\ten\n1\tthe\n", (r"mine\.tsv, line 1", "header")),
        ("no languages", "id\tEnglish\tSwahili\n", (r"mine\.tsv, line 1", "header")),
        (
            "a language twice",
            "id\ten\ten\n1\ta\tb\n\n2\tc\td\n",
            (r"mine\.tsv", "more than one column"),
        ),
        ("a missing cell", "id\ten\tsw\n1\ta\n", (r"mine\.tsv, line 2", "2 columns", "expected 3")),
        ("no rows", "id\ten\tsw\n", (r"mine\.tsv", "no sentence pairs")),
        ("a header of commas", "id,en,sw\n1,a,b\n", (r"mine\.tsv, line 1", "header")),
    ):
        yield _parallel_case(what, write("text/mine.tsv", header), *says)

    def aligned(files: dict[str, str]) -> Break:
        def breaks(folder: pathlib.Path) -> None:
            for path, content in files.items():
                write(f"text/both/{path}", content)(folder)

        return breaks

    changes = {"corpus__parallel": "('both',)"}
    for what, files, says in (
        (
            "sides of unequal length",
            {"en.txt": "a\nb\n", "sw.txt": "c\n"},
            (r"sw\.txt: 1 lines", "has 2"),
        ),
        (
            "one without ids",
            {"en.txt": "a\n", "sw.txt": "b\n", "en.ids": "1\n"},
            (r"sw\.txt has no ids",),
        ),
        (
            "more ids than lines",
            {"en.txt": "a\n", "sw.txt": "b\n", "en.ids": "1\n2\n", "sw.ids": "1\n"},
            (r"en\.ids: 2 lines",),
        ),
        ("an empty side", {"en.txt": "a\n", "sw.txt": ""}, (r"sw\.txt", "empty")),
        (
            "a shard",
            {"en.txt": "a\n", "sw-00000-of-00002.txt": "b\n"},
            ("sw-00000-of-00002", "part"),
        ),
    ):
        yield _parallel_case(f"aligned, {what}", aligned(files), *says, changes=changes)


def _without_pairs() -> Iterator[Case]:
    """Runs on pairs, of which the languages in use have none."""
    name = "text/en-sw.tsv"

    def renamed(other: str) -> Break:
        return lambda folder: (folder / name).rename(folder / other)

    changes = {"corpus__parallel": "('*-*.tsv',)", "data__pair_share": "0.5"}
    keys = (r"data\.pair_share is 0\.5", r"corpus\.parallel, .*'\*-\*\.tsv'", r"\('en', 'sw'\)")
    for what, other, left_out in (
        ("pairs of unknown languages", "text/de-fr.tsv", r"text/de-fr\.tsv \(de, fr\):"),
        ("pairs of one known language", "text/en-fr.tsv", r"text/en-fr\.tsv \(en, fr\):"),
        ("a pattern without files", "en-sw.tsv", "left out are no files:"),
    ):
        yield _parallel_case(
            what,
            renamed(other),
            *keys,
            left_out,
            repairs=lambda folder, other=other: (folder / other).rename(folder / name),
            changes=changes,
        )


def _counts() -> Iterator[Case]:
    plan = templates.config(data__pair_share="0.5")[:-1]
    for name, row, says in (
        ("names of languages", "English\tSwahili\t3", (r"pairs\.tsv, line 1", "such as en and")),
        ("unknown languages", "de\tfr\t3", (r"pairs\.tsv", "no pair", "en, sw", "de, fr: add")),
    ):
        yield Case(
            "tools",
            f"counts of pairs, {name}",
            "pair_sampling",
            "text",
            (*plan, "--counts=DIR/pairs.tsv", "--output=DIR/plan"),
            write("pairs.tsv", f"{row}\n"),
            says,
            write("pairs.tsv", "en\tsw\t3\nde\tfr\t3\n"),
        )


CASES = [*_parallel(), *_without_pairs(), *_counts()]
