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
    yield _parallel_case("three columns", write(name, "a\tb\nc\td\te\n"), r"en-sw\.tsv, line 2")
    header = write("text/mine.tsv", "id\ten\n1\tthe\n")
    yield _parallel_case("a header of one language", header, r"mine\.tsv, line 1", "header")

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
