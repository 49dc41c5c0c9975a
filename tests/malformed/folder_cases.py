"""Working directories: order of stages, damaged files, files in the way, a disk, permissions."""

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.breaks import case, changed, cut, nothing, remove, restored, write
from tests.malformed.harness import Break, Case
from xlm.common import artifacts


def _out_of_order() -> Iterator[Case]:
    kind, claim = "stages", {"train": {"seed": 5}, "rows": {}}
    yield case(kind, "training without rows", "train", nothing, "run prepare_data", template="text")
    yield case(kind, "training without a vocabulary", "train", remove("work/vocab"), "build_vocab")
    yield case(kind, "a report", "evaluate", nothing, "run train")
    yield case(kind, "weights of pairs", "pair_weights", nothing, "train")
    export = ("--workdir=DIR/work", "--output=DIR/model")
    yield case(kind, "an export", "export_model", nothing, "no run of train", flags=export)

    def another_tokenizer(folder: pathlib.Path) -> None:
        with open(folder / "work/vocab/spm.model", "ab") as file:
            file.write(b"\0")

    says, repairs = ("made with tokenizer", "run prepare_data"), restored("work/vocab/spm.model")
    yield case(kind, "another tokenizer", "train", another_tokenizer, *says, repairs=repairs)
    says = (r"(?s)rows was made under another config.*store\.length",)
    yield case(kind, "another length", "prepare_data", nothing, *says, store__length="64")
    says = ("train was made under another config", r"train\.seed: there 5, now 0")

    def another_seed(folder: pathlib.Path) -> None:
        artifacts.write_json(folder / "work/train/settings.json", claim)
        (folder / "work/train/checkpoints/1").mkdir(parents=True)  # or it would be no run yet

    yield case(kind, "another seed", "train", another_seed, *says)
    flags = (*templates.config()[:-1], "--workdir=DIR/work/rows")
    yield case(kind, "a stage as --workdir", "train", nothing, "run prepare_data", flags=flags)


def _damaged() -> Iterator[Case]:
    rows = "work/rows"
    files = changed(f"{rows}/manifest.json", lambda value: {"files": {}})
    for name, command, breaks in (
        ("meta.json", "train", cut(f"{rows}/meta.json")),
        ("settings.json", "train", write(f"{rows}/settings.json", "[]")),
        ("manifest.json", "train", files),
        ("inputs.json", "prepare_data", write(f"{rows}/inputs.json", "[]")),
        ("en.train.npy", "train", cut(f"{rows}/en.train.npy", 0.9)),
        ("en.counts.npy", "train", remove(f"{rows}/en.counts.npy")),
    ):
        says = f"{rows}/{name}" if name != "inputs.json" else rows
        yield case("damaged files", name, command, breaks, says, repairs=restored(f"{rows}/{name}"))


def _in_the_way() -> Iterator[Case]:
    kind, name = "files in the way", "work/rows/meta.json"

    def folder(folder: pathlib.Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    def loop(folder: pathlib.Path) -> None:
        (folder / "work/train").symlink_to(folder / "work/train")

    for what in ("work", "work/rows"):
        yield case(kind, f"a file as {what}", "prepare_data", write(what), what, template="text")
    yield case(kind, f"a folder as {name}", "train", folder, name)
    yield case(kind, "a link to itself as train", "train", loop, "work/train")
    flags = (*templates.config()[:-1], f"--workdir=DIR/{'x' * 300}")
    yield case(kind, "a name that is too long", "prepare_data", nothing, "x{300}",
               "shorter path|too long", template="text", flags=flags)  # fmt: skip
    flags = ("--input=DIR/text/en.txt", "--output=DIR/text/en.txt/sw.runs.gz")
    yield case(kind, "a file as folder of tables", "count_text", nothing, r"en\.txt",
               template="text", flags=flags)  # fmt: skip


@contextlib.contextmanager
def _small_disk(_: pathlib.Path) -> Iterator[None]:
    """No file may grow beyond four kilobytes: the system refuses writes as where a disk is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def _unprivileged(_: pathlib.Path) -> Iterator[None]:
    """Permissions count, which they do not for the superuser."""
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def _closed(name: str, mode: int) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        for path in (folder.parent, folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (folder / name).chmod(mode)

    return breaks


def _surrounded() -> Iterator[Case]:
    model, tokenizer = ("--model=DIR/model", "--output=DIR/out"), "work/vocab/spm.model"
    for command, template, flags, said in (
        ("prepare_data", "text", templates.config(), "rows"),
        ("export_tokenizer", "text", (f"--model=DIR/{tokenizer}", "--output=DIR/out"), "out"),
        ("import_model", "model", (*model, "--vocabulary=DIR/new.model"), "out"),
        ("prune_model", "model", (*model, "--texts=DIR/en.txt"), "out"),
    ):
        # The locked folder stays, and the same command goes on from there.
        stays = {"leaves": ("work/rows",), "repairs": nothing} if said == "rows" else {}
        yield case("full disk", command, command, long_text, said, "disk", template=template,
                   flags=flags, surroundings=_small_disk, **stays)  # fmt: skip
    for what, command, mode, said, template in (
        ("work", "prepare_data", 0o555, "work/rows", "text"),
        ("text", "prepare_data", 0o000, "text", "text"),
        (tokenizer, "prepare_data", 0o000, "spm.model", "text"),
        ("work", "train", 0o555, "work/train", "rows"),
    ):
        yield case("no permission", f"{command} {what}", command, _closed(what, mode), said,
                   "permission", template=template, surroundings=_unprivileged)  # fmt: skip


def long_text(folder: pathlib.Path) -> None:
    """Text of which more comes than the disk holds."""
    if (folder / "text").exists():
        tiny_tasks.write(folder / "text/en.txt", "the cat runs .\n\n" * 2000)


CASES = [*_out_of_order(), *_damaged(), *_in_the_way(), *_surrounded()]
