"""Manifest of a packed dataset: size and SHA-256 of each file, and a CRC of each of its MiB.

By the CRCs a starting run checks a sample.
"""

import hashlib
import pathlib
import random
import re
import time
import zlib
from collections.abc import Collection
from typing import Annotated, NotRequired, TypedDict

import msgspec
import numpy as np

from xlm.common import declarations
from xlm.common.declarations import Artefact, Count, Digest

MANIFEST = "manifest.json"
_BLOCK_BYTES = 1 << 20
# Files whose numbers are not ids.
_NO_IDS = re.compile(r"\.(counts|ends|pairs|rows)(-\d+-of-\d+)?\.npy$")
# Time for `check_sample`; a block takes a millisecond or two.
_SECONDS = 0.5

# Name of a language or set, and a suffix.
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.)[^/\\\x00-\x1f\x7f]{1,250}\Z")]


class FileRecord(TypedDict):
    """Size and checksums of a file; older versions lack `blocks`, the CRCs."""

    bytes: Count
    sha256: Digest
    blocks: NotRequired[Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{8})*\Z")]]


class Manifest(Artefact, frozen=True):
    """Files, and by set of parallel text the number of pairs that repeat held-out text."""

    files: dict[FileName, FileRecord]
    left_out: dict[str, Count] = {}


def describe(path: pathlib.Path) -> FileRecord:
    """Describe a file, reading it once."""
    whole, checksums, size = hashlib.sha256(), [], 0
    buffer = memoryview(bytearray(1 << 16))
    with path.open("rb") as file:
        while count := file.readinto(buffer):
            whole.update(buffer[:count])
            if size % _BLOCK_BYTES == 0:
                checksums.append(0)
            checksums[-1] = zlib.crc32(buffer[:count], checksums[-1])
            size += count
    blocks = "".join(f"{one:08x}" for one in checksums)
    return {"bytes": size, "sha256": whole.hexdigest(), "blocks": blocks}


def remedy(folder: pathlib.Path) -> str:
    return f"copy the dataset again, or remove {folder}/meta.json and run prepare_data.py again"


def read(folder: pathlib.Path, implied: Collection[str]) -> dict[str, FileRecord]:
    """Read a manifest; check that it has the `implied` files, and their sizes.

    Raise ValueError if it is missing, damaged or incomplete, or a file has another size.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise ValueError(f"{path} does not exist: the dataset has no checksums; {remedy(folder)}")
    files = declarations.read(path, Manifest, remedy=remedy(folder)).files
    if missing := sorted(set(implied) - set(files)):
        raise ValueError(
            f"{path}: lacks {missing[0]} and {len(missing) - 1} other files that meta.json "
            f"implies; {remedy(folder)}"
        )
    for name, record in files.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else None
        if size != record["bytes"]:
            raise ValueError(
                f"{folder / name}: {'missing' if size is None else f'{size} bytes'}, must have "
                f"{record['bytes']}; {remedy(folder)}"
            )
    return files


def verify(folder: pathlib.Path, implied: Collection[str]) -> int:
    """Compare all files with their records, as `read` and by SHA-256; return their number."""
    files = read(folder, implied)
    for name, record in files.items():
        if (found := describe(folder / name)["sha256"]) != record["sha256"]:
            raise ValueError(
                f"{folder / name}: its SHA-256 is {found[:12]}, must be {record['sha256'][:12]} by "
                f"{MANIFEST}: the file is damaged; {remedy(folder)}"
            )
    return len(files)


def check_sample(
    folder: pathlib.Path, implied: Collection[str], vocab_size: int, seed: int | None = None
) -> None:
    """Check a dataset as `read`, and a random MiB of as many files as half a second allows.

    Raise ValueError if a CRC differs, or a file of ids has an id that is not below `vocab_size`.
    """
    files, draw = read(folder, implied), random.Random(seed)
    end = time.monotonic() + _SECONDS
    for name in draw.sample(sorted(files), len(files)):
        number = draw.randrange(max(-(-files[name]["bytes"] // _BLOCK_BYTES), 1))
        with (folder / name).open("rb") as file:
            file.seek(number * _BLOCK_BYTES)
            block = file.read(_BLOCK_BYTES)
        checksums = files[name].get("blocks", "")
        if checksums and f"{zlib.crc32(block):08x}" != checksums[8 * number :][:8]:
            fault = f"has another checksum than {MANIFEST} says"
        elif not _NO_IDS.search(name) and _largest_id(block, number, vocab_size) >= vocab_size:
            fault = f"holds token ids that are not below {vocab_size}, the vocabulary's size"
        else:
            fault = ""
        if fault:
            raise ValueError(
                f"{folder / name}: the MiB from byte {number * _BLOCK_BYTES} on {fault}; the file "
                f"is damaged: {remedy(folder)}"
            )
        if time.monotonic() > end:
            break


def _largest_id(block: bytes, number: int, vocab_size: int) -> int:
    """Return the largest id in block `number` of a .npy file; block 0 begins with a header."""
    dtype = id_dtype(vocab_size)
    header = 10 + int.from_bytes(block[8:10], "little") if number == 0 else 0
    end = len(block) - (len(block) - header) % dtype.itemsize
    return int(np.frombuffer(block[header:end], dtype).max(initial=0))


def id_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest dtype that holds all ids: uint16 up to 65,536 pieces, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
