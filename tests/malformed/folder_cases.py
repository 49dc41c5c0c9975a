"""Working directories: order of stages, damaged files, files in the way, locks, permissions."""

import contextlib
import fcntl
import json
import os
import pathlib
import resource
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case
from xlm.common import artifacts


def _remove(name: str) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        path = folder / "work" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return breaks


def _write(name: str, content: bytes | str) -> Break:
    data = content.encode() if isinstance(content, str) else content

    def breaks(folder: pathlib.Path) -> None:
        path = folder / "work" / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return breaks


def _cut(name: str, share: float = 0.5) -> Break:
    return lambda folder: templates.truncate(folder / "work" / name, share)


def _changed(name: str, change: Callable[[Any], Any]) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        path = folder / "work" / name
        value = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(change(value)), encoding="utf-8")

    return breaks


def _restored(name: str) -> Break:
    def repairs(folder: pathlib.Path) -> None:
        path = folder / "work" / name
        if path.exists():
            path.unlink()
        shutil.copy(templates.template("rows") / "work" / name, path)

    return repairs


def _case(
    kind: str,
    name: str,
    command: str,
    breaks: Break,
    *says: str,
    template: str = "rows",
    repairs: Break | None = None,
    **changes: str,
) -> Case:
    return Case(kind, name, command, template, templates.config(**changes), breaks, says, repairs)


def _nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is."""


def _out_of_order() -> Iterator[Case]:
    kind = "stages"
    yield _case(
        kind,
        "rows before a vocabulary",
        "prepare_data",
        _remove("vocab"),
        r"spm\.model does not exist",
        "run build_vocab",
        template="text",
    )
    yield _case(
        kind, "training before rows", "train", _nothing, "run prepare_data", template="text"
    )
    yield _case(kind, "training without a vocabulary", "train", _remove("vocab"), "run build_vocab")
    yield _case(
        kind, "a report before rows", "evaluate", _nothing, "run prepare_data", template="text"
    )
    yield _case(kind, "a report before training", "evaluate", _nothing, "run train")

    export = (*templates.config(), "--output=DIR/model")
    yield Case(
        kind, "an export before training", "export_model", "rows", export, _nothing, ("run train",)
    )
    yield Case(
        kind,
        "weights of pairs before training",
        "pair_weights",
        "rows",
        templates.config(),
        _nothing,
        ("train",),
    )

    def another_tokenizer(folder: pathlib.Path) -> None:
        with open(folder / "work/vocab/spm.model", "ab") as file:
            file.write(b"\0")

    yield _case(
        kind,
        "rows of another tokenizer",
        "train",
        another_tokenizer,
        "made with tokenizer",
        "run prepare_data",
        repairs=_restored("vocab/spm.model"),
    )
    yield _case(
        kind,
        "rows of other text",
        "prepare_data",
        lambda folder: tiny_tasks.write(folder / "text/sw.txt", "a\n\nb\n\nc\n"),
        "rows was made under another config",
    )
    yield _case(
        kind,
        "rows of another length",
        "prepare_data",
        _nothing,
        r"(?s)rows was made under another config.*store\.length",
        store__length="64",
    )

    def claimed(folder: pathlib.Path) -> None:
        artifacts.write_json(
            folder / "work/train/settings.json", {"train": {"seed": 5}, "rows": {}}
        )

    yield _case(
        kind,
        "training of another config",
        "train",
        claimed,
        "train was made under another config",
        r"train\.seed: there 5, now 0",
    )
    flags = (*templates.config()[:-1], "--workdir=DIR/work/rows")
    yield Case(
        kind, "a stage as --workdir", "train", "rows", flags, _nothing, ("run prepare_data",)
    )


def _damaged() -> Iterator[Case]:
    kind = "damaged files"
    for name in ("rows/meta.json", "rows/settings.json"):
        for what, breaks in (("cut", _cut(name)), ("a list", _write(name, "[]"))):
            where, repairs = rf"work/{name}", _restored(name)
            yield _case(kind, f"{what} {name}", "train", breaks, where, repairs=repairs)
    meta, manifest = "rows/meta.json", "rows/manifest.json"
    breaks = _changed(meta, lambda value: {k: v for k, v in value.items() if k != "special"})
    yield _case(kind, "a key missing", "train", breaks, r"meta\.json", "special")
    breaks = _changed(manifest, lambda value: {"files": {}})
    yield _case(kind, "no files", "train", breaks, r"rows/manifest\.json: .*files")
    inputs = "rows/inputs.json"
    yield _case(kind, "a list of inputs", "prepare_data", _write(inputs, "[]"), "work/rows")
    for what, name, breaks in (
        ("cut rows", "en.train.npy", _cut("rows/en.train.npy", 0.9)),
        ("missing counts", "en.counts.npy", _remove("rows/en.counts.npy")),
    ):
        name, repairs = rf"rows/{name}", _restored(f"rows/{name}")
        yield _case(kind, what, "train", breaks, name, "prepare_data", repairs=repairs)
    breaks, where = _remove("rows/en-sw.en.ends.npy"), r"rows/en-sw\.en\.(bitext|ends)\.npy"
    yield _case(kind, "missing bitext", "train", breaks, where, data__pair_share="0.5")


def _in_the_way() -> Iterator[Case]:
    kind = "files in the way"
    yield _case(kind, "a file as working directory", "prepare_data", _write("", "x"), "work")

    yield _case(
        kind, "a file as rows", "prepare_data", _write("rows", "x"), "work/rows", template="text"
    )

    def folder_for(name: str) -> Break:
        def breaks(folder: pathlib.Path) -> None:
            _remove(name)(folder)
            (folder / "work" / name).mkdir()

        return breaks

    for name in ("vocab/spm.model", "rows/meta.json"):
        yield _case(kind, f"a folder as {name}", "train", folder_for(name), f"work/{name}")

    def loop(folder: pathlib.Path) -> None:
        (folder / "work/train").symlink_to(folder / "work/train")

    yield _case(kind, "a link to itself as train", "train", loop, "work/train")

    yield Case(
        kind,
        "a name that is too long",
        "prepare_data",
        "text",
        (*templates.config()[:-1], f"--workdir=DIR/{'x' * 300}"),
        _nothing,
        ("x{300}", "shorter path|too long"),
    )
    yield Case(
        kind,
        "a file as folder of tables",
        "count_text",
        "text",
        ("--input=DIR/text/en.txt", "--output=DIR/text/en.txt/sw.runs.gz"),
        _nothing,
        (r"en\.txt",),
    )


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """Another process's lock: locks of files opened twice exclude each other in one process too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _small_disk() -> Iterator[None]:
    """No file may grow beyond four kilobytes: the system refuses writes as where a disk is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """Permissions count, which they do not for the superuser."""
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def _closed(name: str, mode: int) -> Break:
    """Withdraw permissions from a path, and from nothing else."""

    def breaks(folder: pathlib.Path) -> None:
        for path in (folder.parent, folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (folder / name).chmod(mode)

    return breaks


def _surrounded() -> Iterator[Case]:
    for stage, command, template in (
        ("rows", "prepare_data", "text"),
        ("train", "train", "rows"),
        ("vocab", "build_vocab", "text"),
    ):
        changes = {"vocab__tokenizer": "DIR/given.model"} if stage == "vocab" else {}

        def breaks(folder: pathlib.Path, stage: str = stage) -> None:
            artifacts.write_bytes(folder / "given.model", tiny_tasks.tokenizer())
            (folder / "work" / stage).mkdir(parents=True, exist_ok=True)

        yield Case(
            "two processes",
            f"two of {command}",
            command,
            template,
            templates.config(**changes),
            breaks,
            (f"another process is at work in \\S*work/{stage}", "wait"),
            _nothing,
            lambda folder, stage=stage: _locked(folder / "work" / stage / "LOCK"),
        )
    yield Case(
        "two processes",
        "two of build_vocab, on text",
        "build_vocab",
        "text",
        templates.config(),
        _nothing,
        (r"another process is at work in \S*work/vocab",),
        None,
        lambda folder: _locked(folder / "work/vocab/LOCK"),
    )
    disk: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
        ("prepare_data", "text", templates.config(), "rows"),
        ("export_tokenizer", "text", ("--model=DIR/work/vocab/spm.model", "--output=DIR/hf"), "hf"),
        (
            "import_model",
            "model",
            ("--model=DIR/model", "--vocabulary=DIR/new.model", "--output=DIR/out"),
            "out",
        ),
        (
            "prune_model",
            "model",
            ("--model=DIR/model", "--texts=DIR/en.txt", "--output=DIR/out"),
            "out",
        ),
    )
    for command, template, flags, said in disk:
        # The locked folder stays, and the same command goes on from there.
        leaves = ("work/rows",) if said == "rows" else ()
        yield Case(
            "full disk",
            command,
            command,
            template,
            flags,
            long_text,
            (said, "disk"),
            _nothing if leaves else None,
            lambda folder: _small_disk(),
            leaves,
        )
    for what, command, breaks, said, template in (
        (
            "a folder that must not be written",
            "prepare_data",
            _closed("work", 0o555),
            "work/rows",
            "text",
        ),
        ("a folder that must not be read", "prepare_data", _closed("text", 0o000), "text", "text"),
        (
            "a tokenizer that must not be read",
            "prepare_data",
            _closed("work/vocab/spm.model", 0o000),
            "spm.model",
            "text",
        ),
        ("a run that must not be written", "train", _closed("work", 0o555), "work/train", "rows"),
    ):
        yield Case(
            "no permission",
            what,
            command,
            template,
            templates.config(),
            breaks,
            (said, "permission"),
            None,
            lambda folder: _unprivileged(),
            ("work/rows",) if said == "sw.txt" else (),
        )


def long_text(folder: pathlib.Path) -> None:
    """Text of which more comes than the disk holds."""
    if (folder / "text").exists():
        tiny_tasks.write(folder / "text/en.txt", "the cat runs .\n\n" * 2000)


CASES = [*_out_of_order(), *_damaged(), *_in_the_way(), *_surrounded()]
