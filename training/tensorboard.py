"""Scalars for TensorBoard, which reads event files; neither it nor TensorFlow is needed to write.

An event file is a TFRecord file of `Event` messages. Both formats are small, public and frozen:
tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto, summary.proto, and
https://protobuf.dev/programming-guides/encoding.
"""

import functools
import os
import pathlib
import struct
import time
from collections.abc import Mapping

# Field numbers of the messages, and types as protobuf encodes them.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = 1, 2, 3, 5, 7  # of Event
_VALUE = 1  # of Summary
_TAG, _SIMPLE_VALUE = 1, 2  # of Summary.Value
_STATUS, _START = 1, 1  # of SessionLog, and what it says at a start
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


class EventWriter:
    """Appends scalars to an event file of its own; TensorBoard joins the files of a folder."""

    def __init__(self, folder: pathlib.Path, resume_step: int = 0):
        """Opens a file in `folder`; records of later steps in older files are taken back."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000:020}.{os.getpid()}"
        self._path = folder / name
        self._append(0, _bytes(_FILE_VERSION, b"brain.Event:2"))
        # Of a file that starts at a step, TensorBoard drops what others have from that step on.
        start = _varint(_STATUS << 3 | _VARINT) + _varint(_START)
        self._append(resume_step + 1, _bytes(_SESSION_LOG, start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends the metrics after `step` steps."""
        summary = b""
        for name, value in values.items():
            number = _key(_SIMPLE_VALUE, _FLOAT) + struct.pack("<f", value)
            summary += _bytes(_VALUE, _bytes(_TAG, name.encode()) + number)
        self._append(step, _bytes(_SUMMARY, summary))

    def _append(self, step: int, what: bytes) -> None:
        wall_time = _key(_WALL_TIME, _DOUBLE) + struct.pack("<d", time.time())
        event = wall_time + _key(_STEP, _VARINT) + _varint(step) + what
        length = struct.pack("<Q", len(event))
        with open(self._path, "ab") as file:
            file.write(length + _checksum(length) + event + _checksum(event))


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """A number of at least zero, seven bits a byte, low ones first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _checksum(data: bytes) -> bytes:
    """The masked CRC-32C of a TFRecord."""
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc_table() -> list[int]:
    """CRC-32C (Castagnoli) of every byte."""
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table
