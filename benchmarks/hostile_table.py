"""Conditions of hostile_conditions.py, by kind."""

import bz2
import gzip
import itertools
import lzma
import os
import pathlib
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.hostile_changes import (
    Change,
    a_file,
    a_folder,
    a_link,
    a_socket,
    added,
    all_of,
    dangling,
    deep,
    device,
    edited,
    fifo,
    flipped,
    half,
    in_json,
    leaf,
    link_to_folder,
    link_to_own,
    pickled,
    pickled_array,
    replaced,
    with_values,
    zero,
)
from benchmarks.hostile_world import JOB, Condition, World

INT, TERM = signal.SIGINT, signal.SIGTERM
_MEGABYTE = 1 << 20
_LITTLE_MEMORY = 'ulimit -v 8000000; exec "$@"'  # so this machine has enough memory
_FILES = {  # of commands that write one
    "count": "en.runs.gz", "predict": "found.jsonl", "translate": "found.txt",
}  # fmt: skip
_FOLDERS = {
    "tokenizer": "hf", "import": "imported", "tuned": "tuned", "score": "score",
}  # fmt: skip
_INPUTS = {"count": "text/en.txt", "predict": "in.txt", "translate": "in.txt"}


def conditions() -> list[Condition]:
    """All conditions."""
    kinds = (
        foreign, damaged, paths, outputs, inputs, limits, rights, streams, platforms, signals,
        processes, disks, data, flags,
    )  # fmt: skip
    return [one for kind in kinds for one in kind()]


def foreign() -> Iterator[Condition]:
    """Foreign folders: they name code, links, and paths outside them."""
    for name in (
        "runs.evil.canary:build",
        "canary:build",
        "os:system",
        "../evil:build",
        "a" * 5000,
    ):
        named = with_values(objective=name)
        for command, file in (("export", "work"), ("finetune", "work"), ("evaluate", "work")):
            if command == "export" or name.startswith("runs"):
                yield Condition(
                    "foreign", f"objective {name[:30]} of {file}, {command}", command,
                    in_json(f"{file}/train/settings.json", named),
                )  # fmt: skip
    evil = in_json("work/train/settings.json", with_values(objective="runs.evil.canary:build"))
    yield Condition("foreign", "predict with a run that starts from evil", "predict", evil)
    yield Condition("foreign", "a search with a run that starts from evil", "search", evil)
    yield Condition("foreign", "training that starts from evil", "bare", evil,
                    (f"--config.train.init_from={JOB}/work",))  # fmt: skip
    yield Condition("foreign", "a run that starts from itself", "predict",
                    in_json("tuned/settings.json",
                            with_values(init_from=f"{JOB}/tuned")))  # fmt: skip
    yield Condition("foreign", "a run that starts from a device", "retune",
                    in_json("tuned/settings.json", with_values(init_from="/dev/zero")))  # fmt: skip
    for name in ("../../../../outside/mine.txt", "/etc/passwd", "a/../../b", "nul\0byte"):
        yield Condition(
            "foreign", f"a manifest of {name!r}", "verify",
            in_json("work/rows/manifest.json", added("files", name)), statuses=(2,),
        )  # fmt: skip
    for name in ("../../../../outside/x", "/proc/none/x", "en/../../..", "<script>", "en\nka"):
        yield Condition(
            "foreign", f"a language {name!r} of rows", "evaluate",
            in_json("work/rows/meta.json", added("statistics", name)), statuses=(2,),
        )  # fmt: skip
        yield Condition(
            "foreign", f"a language {name!r} of the config", "prepare", statuses=(2,),
            flags=(f"--config.corpus.languages=({name!r},'en')",),
        )  # fmt: skip
    for file, command in (
        ("half/train/metrics.jsonl", "train"), ("half/train/speed.jsonl", "train"),
        ("half/train/LOCK", "train"), ("half/train/settings.json", "train"),
        ("voc/rows/LOCK", "prepare"), ("new/vocab/LOCK", "build"), ("fresh/LOCK", "finetune"),
        ("work/vocab/spm.model", "tokenizer"), ("work/report/report.md", "evaluate"),
        ("work/report/results.json", "evaluate"), ("tuned/best.safetensors", "predict"),
    ):  # fmt: skip
        yield Condition("foreign", f"{file} is a link to a file of the user", command,
                        replaced(file, a_link))  # fmt: skip
    yield Condition("foreign", "checkpoints are a link to a folder of the user", "train",
                    replaced("half/train/checkpoints", link_to_folder))  # fmt: skip
    for name, make in (("pytorch_model.bin", pickled), ("model.safetensors", pickled)):
        yield Condition("foreign", f"a pickle as {name}", "import", all_of(
            replaced("model/model.safetensors", make), replaced(f"model/{name}", make)),
            statuses=(2,))  # fmt: skip
    yield Condition("foreign", "an index of weights elsewhere", "import", all_of(
        replaced("model/model.safetensors", lambda path, world: None),
        replaced("model/model.safetensors.index.json", a_file(
            b'{"weight_map": {"a": "../../../outside/mine.txt"}}'))), statuses=(2,))  # fmt: skip
    yield Condition("foreign", "a model that names code", "import", in_json(
        "model/config.json", with_values(auto_map={"AutoModel": "canary.Model"})))  # fmt: skip
    for file, command in (("work/rows/en.heldout.npy", "evaluate"),
                          ("voc/vocab/cache/v2/scores/*.npy", "cached")):  # fmt: skip
        yield Condition("foreign", f"a pickle in {file}", command, edited(file, pickled_array))


_JSON_FILES = (
    ("work/rows/meta.json", "evaluate"), ("work/rows/manifest.json", "verify"),
    ("work/rows/settings.json", "prepared"), ("work/rows/inputs.json", "prepared"),
    ("work/vocab/settings.json", "built"), ("work/vocab/allocation.json", "evaluate"),
    ("work/train/settings.json", "export"), ("tuned/settings.json", "predict"),
    ("tuned/results.json", "table"), ("tuned/data.json", "retune"),
    ("model/config.json", "import"), ("model/tokenizer.json", "import"),
    ("translation/settings.json", "translate"),
)  # fmt: skip
_BINARY_FILES = (
    ("work/vocab/spm.model", "tokenizer"), ("work/rows/en.heldout.npy", "evaluate"),
    ("work/rows/en.counts.npy", "evaluate"), ("half/rows/en.train.npy", "train"),
    ("voc/vocab/cache/v2/tables/en-[0-9a-f]*.gz", "cached"),
    ("voc/vocab/cache/v2/vocabularies/en-*.npz", "cached"),
    ("tuned/best.safetensors", "predict"), ("tuned/spm.model", "predict"),
    ("translation/best.safetensors", "translate"), ("model/model.safetensors", "import"),
    ("work/train/checkpoints/4/state/d/*", "export"),
    ("work/train/checkpoints/4/state/manifest.ocdbt", "export"),
    ("work/train/checkpoints/4/state/_METADATA", "export"),
    ("work/train/checkpoints/4/_CHECKPOINT_METADATA", "export"),
)  # fmt: skip


def damaged() -> Iterator[Condition]:
    """Artefacts that are cut or overwritten, or have wrong types or impossible values."""
    edits: dict[str, Callable[[str], Change]] = {
        "null": lambda name: edited(name, lambda data: b"null"),
        "text for a number": lambda name: in_json(name, leaf(lambda one: [str(one)], (int, float))),
        "a huge number": lambda name: in_json(name, leaf(lambda one: 2**70, (int, float))),
        "NaN": lambda name: in_json(name, leaf(lambda one: float("nan"), (int, float))),
        "a path for text": lambda name: in_json(
            name, leaf(lambda one: "../../../outside", str, not_of=("labels",))
        ),
    }
    for (name, command), (edit, make) in itertools.product(_JSON_FILES, edits.items()):
        yield Condition("damaged", f"{name}, {edit}", command, make(name))
    for name, command in _JSON_FILES[::3]:
        yield Condition("damaged", f"{name}, deep", command, replaced(name, deep))
        yield Condition("damaged", f"{name}, empty", command, replaced(name, a_file(b"")))
    edits = {
        "half": lambda name: edited(name, half),
        "some bits": lambda name: edited(name, flipped),
    }
    for (name, command), (edit, make) in itertools.product(_BINARY_FILES, edits.items()):
        # Changed bits in a foreign model cannot be detected.
        is_same = (command, edit) != ("import", "some bits")
        yield Condition("damaged", f"{name}, {edit}", command, make(name), is_same=is_same)
    metrics = "half/train/metrics.jsonl"
    for edit, change in (("half", half), ("some bytes", lambda data: data[:99] + b"\0\xff{\n")):
        yield Condition("damaged", f"{metrics}, {edit}", "train", edited(metrics, change))
    best = "tuned/best.safetensors"
    weights = ((best, "predict"), (best, "tuned"), ("model/model.safetensors", "import"))
    for name, command in weights:
        yield Condition("damaged", f"{name}, weights not finite, {command}", command,
                        edited(name, _not_finite), statuses=(2,))  # fmt: skip
    yield Condition("damaged", "ids beyond the vocabulary", "evaluate",
                    edited("work/rows/en.heldout.npy", _large_ids), statuses=(2,))  # fmt: skip
    yield Condition("damaged", "a manifest of no files", "verify",
                    in_json("work/rows/manifest.json", with_values(files={})),
                    statuses=(2,))  # fmt: skip
    another = edited("work/vocab/spm.model", lambda data: data + b"\0")
    yield Condition("damaged", "a vocabulary of another run", "evaluate", another, statuses=(2,))


def _not_finite(data: bytes) -> bytes:
    return data[:-4] + np.float32(np.nan).tobytes()


def _large_ids(data: bytes) -> bytes:
    return data[:-32] + b"\xff" * 32


_NAMES = (
    "run[1]", "*", "with space", "new\nline", "tab\tname", "文字", "émoji😀", "-x", ".hidden",
    "n" * 250, "n" * 300, "trailing/", "%s{x}", "~", "quote'\"", "back\\slash",
    os.fsdecode(b"bad\xff"),
)  # fmt: skip
_PLAIN = ("with space", "文字", ".hidden", "trailing/", "~")  # must work


def paths() -> Iterator[Condition]:
    """Odd names of folders, files, results and runs."""
    for name in _NAMES:
        statuses = (0,) if name in _PLAIN else (0, 2)
        shown = name if len(name) < 20 else f"{len(name)} times {name[0]}"
        outs = {"count": f"out/{name.rstrip('/')}/en.runs.gz", "tokenizer": f"out/{name}"}
        for command, result in outs.items():
            yield Condition("paths", f"{command} to {shown}", command, result=result,
                            flags=(f"--output={JOB}/{result}",), statuses=statuses)  # fmt: skip

        def move(world: World, name: str = name) -> None:
            if len(name) <= 250:
                (world.job / "tuned").rename(world.job / name)

        yield Condition("paths", f"predict with a run in {shown}", "predict", move,
                        (f"--workdir={JOB}/{name}",), statuses)  # fmt: skip
    for name in ("run[1]", "*", "new\nline", "with space", "-x", os.fsdecode(b"bad\xff")):

        def move_run(world: World, name: str = name) -> None:
            (world.job / "half").rename(world.job / name)

        yield Condition(
            "paths", f"train in {name}, then export", "train", move_run,
            (f"--workdir={JOB}/{name}",), result=f"{name}/train",
            shell='"$@" || exit; exec "$1" -m xlm export "${@:3}" '
                  f"--output={JOB}/out/model",
        )  # fmt: skip


def outputs() -> Iterator[Condition]:
    """Outputs at a path that the user already uses."""
    things = {
        "a folder": a_folder, "a FIFO": fifo, "a device": device, "a link to a file": a_link,
        "a dangling link": dangling, "a link to a folder": link_to_folder,
    }  # fmt: skip
    for command, name in {**_FILES, **_FOLDERS}.items():
        for thing, make in things.items():
            is_folder = command in _FOLDERS and "folder" in thing
            make = link_to_own if is_folder and "link" in thing else make
            yield Condition(
                "outputs", f"{command} to {thing}", command, replaced(f"out/{name}", make),
                statuses=(0, 2) if is_folder else (2,), is_same=not is_folder,
            )  # fmt: skip
        # other commands may add to a folder
        places = (".", "..", "") if command in (*_FILES, "import", "tuned") else ()
        for place in (*places, f"{JOB}/in.txt/x"):
            yield Condition("outputs", f"{command} to {place!r}", command,
                            flags=(f"--output={place}",), statuses=(2,))  # fmt: skip
    for command, name in _INPUTS.items():
        yield Condition("outputs", f"{command} to its input", command,
                        flags=(f"--output={JOB}/{name}",), statuses=(2,))  # fmt: skip
    for command, name in (("import", "model"), ("tuned", "tuned"), ("table", "tuned")):
        yield Condition("outputs", f"{command} to its input", command, statuses=(2,),
                        flags=(f"--output={JOB}/{name}",))  # fmt: skip
    parts = "out/found.txt.parts"
    yield Condition("outputs", "a folder of the user beside a translation", "translate",
                    replaced(parts, a_folder))  # fmt: skip
    yield Condition("outputs", "a file of the user beside a translation", "translate",
                    replaced(parts, a_file(b"of the user\n")))  # fmt: skip


def inputs() -> Iterator[Condition]:
    """Inputs that never end or never start."""
    things = {"a FIFO": fifo, "/dev/zero": zero, "a folder": a_folder, "a socket": a_socket}
    files = (
        *((command, name) for command, name in _INPUTS.items()),
        ("build", "text/en.txt"), ("prepare", "text/en.txt"), ("finetune", "data/train.en.csv"),
        ("tokenizer", "work/vocab/spm.model"), ("import", "model/config.json"),
        ("import", "model/model.safetensors"), ("predict", "tuned/settings.json"),
        ("predict", "tuned/best.safetensors"), ("export", "work/train/settings.json"),
        ("score", "text/en.txt"), ("verify", "work/rows/en.train.npy"),
        ("table", "tuned/results.json"), ("retune", "tuned/data.json"),
    )  # fmt: skip
    for place, (command, name) in enumerate(files):
        few = itertools.islice(things.items(), 4 if place < 2 else 2)
        for thing, make in few:
            yield Condition("inputs", f"{command} of {thing} as {name}", command,
                            replaced(name, make), statuses=(2,), shell=_LITTLE_MEMORY)  # fmt: skip
    for command, name in files[:2]:
        yield Condition("inputs", f"{command} without {name}", command, statuses=(2,),
                        breaks=replaced(name, lambda path, world: None))  # fmt: skip
    yield from _bombs()


def _bombs() -> Iterator[Condition]:
    """Small files that decompress to 8 GB, as one line or as many."""
    for end, pack in (("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)):

        def write(path: pathlib.Path, world: World, end: str = end, pack: Any = pack) -> None:
            one = pack(b"a" * 64 * _MEGABYTE)
            path.with_name(f"{path.name}.{end}").write_bytes(one * 128)

        yield Condition("inputs", f"count of a bomb of {end}", "count",
                        replaced("zz.txt", write), (f"--input={JOB}/zz.txt.{end}",), (2, 3),
                        _LITTLE_MEMORY)  # fmt: skip
        yield Condition("inputs", f"build of a bomb of {end}", "build",
                        replaced("text/en.txt", write), (), (2, 3), _LITTLE_MEMORY)  # fmt: skip


def limits() -> Iterator[Condition]:
    """Limits on open files, file sizes and memory."""
    for command, size in itertools.product(
        ("count", "predict", "tokenizer", "import", "export", "score", "prepare", "train"), (0, 4)
    ):
        yield Condition("limits", f"{command} with files of {size} KB", command,
                        shell=f'ulimit -f {size}; exec "$@"', again=lambda world: None)  # fmt: skip
    for command, count in itertools.product(("count", "predict", "prepare", "export"), (20, 40)):
        yield Condition("limits", f"{command} with {count} open files", command,
                        shell=f'ulimit -n {count}; exec "$@"')  # fmt: skip
    for command, size in itertools.product(
        ("count", "predict", "train", "evaluate", "finetune"), (1000, 3000)
    ):
        yield Condition("limits", f"{command} with {size} MB", command, statuses=(0, 3),
                        shell=f'ulimit -v {size}000; exec "$@"')  # fmt: skip


def rights() -> Iterator[Condition]:
    """Folders and files without permission to read or write."""

    def set_mode(name: str, mode: int) -> Change:
        def change(world: World) -> None:
            if os.geteuid() == 0 and not shutil.which("setpriv"):
                raise OSError("no setpriv, by which root gives up its rights")
            (world.job / name).chmod(mode)

        return change

    for command, name in (
        ("count", "out"), ("predict", "out"), ("tokenizer", "out"), ("import", "out"),
        ("score", "out"), ("evaluate", "work/report"), ("train", "half/train"), ("prepare", "voc"),
        ("finetune", "."), ("build", "."),
    ):  # fmt: skip
        yield Condition("rights", f"{command} with a read-only {name}", command,
                        set_mode(name, 0o555), statuses=(2,), is_unprivileged=True)  # fmt: skip
    for command, name in (
        ("count", "text/en.txt"), ("predict", "in.txt"), ("build", "text/en.txt"),
        ("tokenizer", "work/vocab/spm.model"), ("import", "model/model.safetensors"),
        ("evaluate", "work/rows/en.heldout.npy"), ("export", "work/train/settings.json"),
        ("export", "work/train/checkpoints/4"), ("predict", "tuned/best.safetensors"),
        ("predict", "tuned"),
    ):  # fmt: skip
        yield Condition("rights", f"{command} with an unreadable {name}", command,
                        set_mode(name, 0), statuses=(2,), is_unprivileged=True)  # fmt: skip
    for command in ("build", "predict", "export", "score"):
        yield Condition("rights", f"{command} with a read-only TMPDIR", command,
                        set_mode("data", 0o555), is_unprivileged=True,
                        environment={"TMPDIR": f"{JOB}/data"})  # fmt: skip
        yield Condition("rights", f"{command} without a HOME", command, statuses=(0,),
                        environment={"HOME": None, "XDG_CACHE_HOME": None})  # fmt: skip
        yield Condition("rights", f"{command} with a HOME that is not there", command,
                        statuses=(0,), environment={"HOME": "/none"})  # fmt: skip
    yield Condition("rights", "predict without a cache of compiled programs", "predict",
                    environment={"JAX_COMPILATION_CACHE_DIR": "/none/x"})  # fmt: skip


_ASCII = {
    "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0",
}  # fmt: skip


def streams() -> Iterator[Condition]:
    """Console streams that are closed, full or ASCII only."""
    for command in ("predict", "evaluate", "score", "table", "retune"):
        for name, after in (
            ("closed output", ">&-"), ("closed errors", "2>&-"), ("no streams", ">&- 2>&- <&-"),
            ("full output", ">/dev/full"), ("full errors", "2>/dev/full"),
        ):  # fmt: skip
            yield Condition("streams", f"{command} with {name}", command,
                            shell=f'exec "$@" {after}')  # fmt: skip
        yield Condition(
            "streams", f"{command} to a pipe that nobody reads", command, statuses=(0, 2, 141),
            shell='"$@" | true; exit ${PIPESTATUS[0]}',
        )  # fmt: skip
        yield Condition("streams", f"{command} in ASCII", command, statuses=(0,),
                        environment=_ASCII)  # fmt: skip


def platforms() -> Iterator[Condition]:
    """Environments of other machines."""
    for command in ("predict", "train", "evaluate", "finetune", "export"):
        yield Condition("platforms", f"{command} on CUDA that is not there", command,
                        statuses=(2,), environment={"JAX_PLATFORMS": "cuda"})  # fmt: skip
    for name in ("tpu", "none", "cpu,none"):
        yield Condition("platforms", f"predict on {name}", "predict", statuses=(2,),
                        environment={"JAX_PLATFORMS": name})  # fmt: skip
    for key, value in (
        ("PYTHONOPTIMIZE", "2"), ("PYTHONHASHSEED", "7"), ("OMP_NUM_THREADS", "x"), ("TZ", "None"),
        ("LANG", "xx_YY"), ("PYTHONDONTWRITEBYTECODE", "1"),
        ("COLUMNS", "1"), ("TERM", ""),
    ):  # fmt: skip
        yield Condition("platforms", f"predict with {key}={value}", "predict",
                        environment={key: value})  # fmt: skip
    yield Condition("platforms", "score with MPLBACKEND=none", "score",
                    environment={"MPLBACKEND": "none"})  # fmt: skip


def signals() -> Iterator[Condition]:
    """Ctrl-C and SIGTERM at random moments; the same command must succeed afterwards."""
    rng = random.Random(0)
    for command, number in itertools.product(
        ("count", "tokenizer", "import", "export", "tuned", "score", "table", "build", "prepare",
         "train", "evaluate", "finetune", "predict", "translate"), (INT, TERM),
    ):  # fmt: skip
        ended = (0, 128 + number, *((75,) if command in ("train", "finetune") else ()))
        shares = (rng.uniform(0.4, 1), *([rng.uniform(0.05, 0.4)] if number == INT else []))
        for share in shares:
            yield Condition(
                "signals", f"{number.name} to {command} at {share:.0%}", command, statuses=ended,
                sent=(number, share), again=lambda world: None,
            )  # fmt: skip


def processes() -> Iterator[Condition]:
    """Two processes at once; one may be stopped and continued."""
    for command in ("count", "predict", "translate", "tokenizer", "export", "score", "build",
                    "prepare", "train", "evaluate", "finetune"):  # fmt: skip
        yield Condition("processes", f"two of {command}", command, rival=((), None))
    seeds = {"bare": "--config.train.seed=1", "finetune": "--config.train.seed=1",
             "prepare": "--config.corpus.seed=7"}  # fmt: skip
    for command, flag in seeds.items():
        for share in (0.15, 0.25, 0.35, 0.5, 0.7) if command == "bare" else (0.2, 0.4, 0.6):
            yield Condition(
                "processes", f"{command} with other settings, stopped at {share:.0%} and continued",
                command, rival=((flag,), share),
            )  # fmt: skip


def disks() -> Iterator[Condition]:
    """Disks that are full or read-only."""

    def mounted(name: str, options: str) -> Change:
        def change(world: World) -> Callable[[], Any]:
            folder = world.job / name
            folder.mkdir(parents=True, exist_ok=True)
            mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
            subprocess.run(mount, check=True, capture_output=True)
            return lambda: subprocess.run(["umount", "-l", folder], check=True)

        return change

    def enlarged(name: str) -> Change:
        return lambda world: subprocess.run(
            ["mount", "-o", "remount,size=64m,nr_inodes=1000", world.job / name], check=True
        )

    for command, name in (
        ("count", "out"), ("predict", "out"), ("translate", "out"), ("tokenizer", "out"),
        ("import", "out"), ("export", "out"), ("score", "out"), ("prepare", "voc/rows"),
        ("bare", "bare/train"), ("evaluate", "work/report"), ("finetune", "fresh"),
        ("build", "new"),
    ):  # fmt: skip
        is_small = command in ("count", "predict", "translate")
        size = "size=4k,nr_inodes=3" if is_small else "size=8k"
        yield Condition("disks", f"{command} to a full disk", command, mounted(name, size),
                        again=enlarged(name))  # fmt: skip
        if command not in ("translate", "import", "export"):
            yield Condition("disks", f"{command} to a read-only disk", command,
                            mounted(name, "ro"), statuses=(2,))  # fmt: skip


def data() -> Iterator[Condition]:
    """Text and tables with odd content."""
    texts = {
        "NUL bytes": b"a\0b\n" * 50, "no UTF-8": b"\xff\xfe\xfd\n" * 50,
        "a line of 30 MB": b"ab " * 10 * _MEGABYTE, "empty": b"", "blank lines": b"\n" * 1000,
        "control characters": "a\u2028b\x85c\x1b[31m\n".encode() * 50,
        "a BOM": b"\xef\xbb\xbfthe cat\n" * 50,
        "Windows lines": b"the cat\r\n" * 50,
    }  # fmt: skip
    for name, content in texts.items():
        for command, file in _INPUTS.items():
            if command != "translate":
                yield Condition("data", f"{command} of {name}", command, is_same=False,
                                breaks=replaced(file, a_file(content)))  # fmt: skip
    yield Condition("data", "build of NUL bytes", "build", is_same=False,
                    breaks=replaced("text/en.txt", a_file(texts["NUL bytes"])))  # fmt: skip
    rows = {
        "a lone surrogate": rb'{"text": "\ud800"}', "a deep row": b'{"text": ' + b"[" * 10**5,
        "a huge number": b'{"text": 1e999}', "keys twice": b'{"text": "a", "text": "b"}',
    }  # fmt: skip
    for name, content in rows.items():
        yield Condition(
            "data", f"count of {name} in JSON", "count",
            replaced("x.jsonl", a_file(content + b"\n")), (f"--input={JOB}/x.jsonl",),
            is_same=False,
        )  # fmt: skip
    tables = {
        "one class": b"text,label\na,x\nb,x\n", "no rows": b"text,label\n",
        "HTML": b"text,label\n<script>,<b>\nb,<i>\n", "an open quote": b'text,label\n"a,x\n',
    }  # fmt: skip
    for name, content in tables.items():
        yield Condition("data", f"finetune of {name}", "finetune", is_same=False,
                        breaks=replaced("data/train.en.csv", a_file(content)))  # fmt: skip


def flags() -> Iterator[Condition]:
    """Senseless flags and keys."""
    for command, given in (
        ("train", "--config=none.py"), ("train", "--config=/dev/zero"),
        ("train", f"--config={JOB}"), ("train", "--config.none=1"),
        ("train", "--config.train.num_steps=nan"),
        ("train", "--config.train.num_steps=99999999999999999999"), ("train", "--none"),
        ("train", "--config.optimizer.learning_rate=nan"), ("train", "--workdir="),
        ("train", "--workdir=/dev/null"), ("train", "--workdir=https://bucket/run"),
        ("prepare", "--config.store.length=-1"), ("build", "--config.vocab.target_size=0"),
        ("predict", "--input="), ("predict", "--input=a,b"), ("predict", "--workdir=/dev/zero"),
        ("predict", "--language=../../x"), ("count", "--input=*"), ("score", "--tokenizers=a"),
        ("table", "--runs=/"), ("memory", "--devices=-1"),
    ):  # fmt: skip
        yield Condition("flags", f"{command} {given}", command, flags=(given,),
                        statuses=(0, 2) if "language" in given or "*" in given else (2,),
                        is_same=False, shell=_LITTLE_MEMORY)  # fmt: skip
    for command, given in (
        ("bare", "--config.model.hidden_size=1000000"),
        ("bare", "--config.train.batch_size=100000000"),
        ("build", "--config.vocab.target_size=1000000000"),
        ("prepare", "--config.store.length=1000000000"),
    ):  # fmt: skip
        yield Condition("flags", f"{command} {given}", command, flags=(given,), statuses=(2, 3),
                        shell=_LITTLE_MEMORY)  # fmt: skip
