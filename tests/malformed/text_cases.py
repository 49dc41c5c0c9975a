"""Text, tokenizers and tables, as prepare_data, build_vocab and the tools read them."""

import pathlib
from collections.abc import Iterator

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.breaks import case, cut, nothing, restored, write
from tests.malformed.harness import Case

# What is left is the empty folder, with its LOCK.
_ROWS = {"template": "text", "leaves": ("work/rows",)}


def _text() -> Iterator[Case]:
    latin = write("text/sw.txt", "señor\n".encode("latin1"))
    says = (r"sw\.txt, line 1: not UTF-8", "iconv")
    good = restored("text/sw.txt", "text")
    yield case("text", "latin1", "prepare_data", latin, *says, repairs=good, **_ROWS)

    def loop(folder: pathlib.Path) -> None:
        (folder / "text/sw.txt").unlink()
        (folder / "text/sw.txt").symlink_to(folder / "text/sw.txt")

    yield case("text", "a link to itself", "prepare_data", loop, r"sw\.txt|'sw'", **_ROWS)
    # A run on pairs, of which the languages in use have none.
    pairs = "text/en-sw.tsv"
    keys = (r"data\.pair_share is 0\.5", r"corpus\.parallel, .*'\*-\*\.tsv'", r"\('en', 'sw'\)")
    for other, left_out in (
        ("text/en-fr.tsv", r"text/en-fr\.tsv \(en, fr\):"), ("en-sw.tsv", "left out are no files:"),
    ):  # fmt: skip
        yield case(
            "text", f"pairs in {other}", "prepare_data",
            lambda folder, other=other: (folder / pairs).rename(folder / other), *keys, left_out,
            **_ROWS, corpus__parallel="('*-*.tsv',)", data__pair_share="0.5",
            repairs=lambda folder, other=other: (folder / other).rename(folder / pairs),
        )  # fmt: skip


def _tools() -> Iterator[Case]:
    tables = ("--output=DIR/tables/sw.runs.gz",)
    scores = ("--text=DIR/text", "--output=DIR/scores", "--tokenizers=a=DIR/none.model")
    fetch = ("--dataset=c4", "--languages=sw", "--output=DIR/fetched", "--max_documents=-3")
    plan = (
        *templates.config(data__pair_share="0.5")[:-1], "--counts=DIR/x.tsv", "--output=DIR/plan",
    )  # fmt: skip
    hf = ("--model=DIR/work/vocab/spm.model", "--output=DIR/hf")
    model = "work/vocab/spm.model"
    for command, flags, breaks, says, repairs in (
        ("count_text", (*tables, "--input=DIR/none.txt"), nothing, r"none\.txt: no such file",
         write("none.txt", "a\n")),
        ("count_text", (*tables, "--merge=DIR/x.gz"), write("x.gz", b"abc"), r"x\.gz", None),
        ("fetch_text", fetch, nothing, "--max_documents=-3: .*non-negative", None),
        ("score_tokenizer", scores, nothing, r"none\.model", None),
        ("pair_sampling", plan, write("x.tsv", "English\tSwahili\t3\n"), "line 1.*such as en and",
         write("x.tsv", "en\tsw\t3\nde\tfr\t3\n")),
        ("export_tokenizer", hf, cut(model), r"spm\.model", restored(model, "text")),
        ("prepare_data", templates.config(), cut(model), model, restored(model, "text")),
        ("build_vocab", templates.config(vocab__tokenizer="DIR/x"), write("x", b"x"),
         r"x: .*SentencePiece", write("x", tiny_tasks.tokenizer())),
    ):  # fmt: skip
        yield case("tools", f"{command} {flags[-1]}", command, breaks, says, template="text",
                   flags=flags, repairs=repairs)  # fmt: skip


CASES = [*_text(), *_tools()]
