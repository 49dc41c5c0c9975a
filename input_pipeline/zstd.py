"""Zstandard files as streams of lines; zstandard is imported when one is opened."""

import io
import pathlib
from typing import Any

from xlm.common import packages

# Level 19 and --long use windows of up to 2 GiB; the decoder's default refuses those above 128 MiB.
_MAX_WINDOW = 1 << 31
_CHUNK = 1 << 16
# A frame of one repeated byte has 32,768 times its compressed bytes: 64 MiB at most at a time.
_COMPRESSED_CHUNK = 1 << 11


def open_file(path: pathlib.Path, mode: str = "rb") -> io.BufferedReader:
    """Open a `.zst` file, of one frame or several, for reading bytes.

    Raise ValueError if zstandard is not installed. Reading raises EOFError or OSError if the file
    is cut off or damaged.
    """
    with packages.needed(str(path)):
        import zstandard  # noqa: F401
    return io.BufferedReader(_Frames(path), _CHUNK)


class _Frames(io.RawIOBase):
    """Decompressed bytes of all frames; zstandard's own reader ends silently at a cut-off frame."""

    def __init__(self, path: pathlib.Path):
        import zstandard

        self._file = path.open("rb")
        self._error = zstandard.ZstdError
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        self._frame: Any = None  # decoder of a frame that was read in part
        self._compressed = b""
        self._found = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._found:
            self._compressed = self._compressed or self._file.read(_COMPRESSED_CHUNK)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end of its last frame")
                return 0
            if self._frame is None:
                self._frame = self._decoder.decompressobj()
            try:
                self._found = memoryview(self._frame.decompress(self._compressed))
            except self._error as error:
                raise EOFError(str(error)) from error
            self._compressed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        size = min(len(buffer), len(self._found))
        buffer[:size] = self._found[:size]
        self._found = self._found[size:]
        return size
