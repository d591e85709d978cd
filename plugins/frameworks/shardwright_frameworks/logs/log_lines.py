"""The lines of a log of any size, plain or compressed, one at a time."""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from profiles.errors import DocumentError

MOST_CHARACTERS = 1 << 16
"""Longest line in characters; longer ones (endless progress bars, dumped tensors) are split."""

_CHUNK = 1 << 18
# Escapes of terminals, also as viewers and log collectors write them: `^[[31m`, `\u001b[31m`,
# `#033[31m`, and `[31m` where the escape itself was lost (`[5m 3s]` is a time).
_COLOURS = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]"
    r"|(?:\\u001b|\\x1b|\\033|\\e|\^\[|#033)\[[0-9;]*[A-Za-z]"
    r"|\[(?:[0-9]|[34]\d|9\d)(?:;\d{1,3})*m(?=[^\s\d]|\s*$|\s*\[)"
)
_UNPACKED: dict[str, Callable[[IO[bytes]], Any]] = {
    "gzip": lambda raw: gzip.GzipFile(fileobj=raw),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class LogLines:
    """Iterates over the lines of a file. Carriage returns, as in progress bars, end a line too.

    Invalid UTF-8 is replaced (UTF-16 is recognized by its mark), and colors are removed.
    Afterwards, `cut` is True if the last line has no end, because the log was truncated or is still
    being written; `damaged` is the error that ended a compressed file early.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.cut = False
        self.damaged = ""
        self._stream, self._encoding = _opened(self.path)

    def __iter__(self) -> Iterator[str]:
        decode = codecs.getincrementaldecoder(self._encoding)(errors="replace").decode
        # read1 returns the data before the end of a truncated compressed file.
        read: Callable[[int], bytes] = getattr(self._stream, "read1", self._stream.read)
        with self._stream:
            rest = ""
            while True:
                try:
                    chunk = read(_CHUNK)
                except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
                    self.damaged = str(error) or type(error).__name__
                    break
                if not chunk:
                    break
                *whole, rest = _split(rest + decode(chunk))
                yield from map(without_colours, whole)
                while len(rest) > MOST_CHARACTERS:
                    yield without_colours(rest[:MOST_CHARACTERS])
                    rest = rest[MOST_CHARACTERS:]
            self.cut = bool(rest.strip()) or bool(self.damaged)
            if rest.strip():
                yield without_colours(rest)


def _split(text: str) -> list[str]:
    if "\r" in text:
        if text.endswith("\r"):  # its line feed may be the next chunk's
            lines = _split(text[:-1])
            return [*lines[:-1], lines[-1] + "\r"]
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.split("\n")


def without_colours(line: str) -> str:
    """A line without escape sequences for colors."""
    return _COLOURS.sub("", line) if "\x1b" in line or ("[" in line and "m" in line) else line


def _opened(path: Path) -> tuple[IO[bytes], str]:
    """The bytes of a file, decompressed according to its first bytes, and their encoding."""
    try:
        raw = path.open("rb")
        head = raw.read(8)
        raw.seek(0) if raw.seekable() else None
    except FileNotFoundError:
        raise DocumentError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DocumentError(f"{path}: is a folder; name the log files in it") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"{path}: cannot be read: {error}") from error
    kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    stream: IO[bytes] = raw
    if kind == "zstd":
        stream = _zstd(path, raw)
    elif kind:
        stream = _UNPACKED[kind](raw)
    encoding = "utf-8-sig"
    if not kind and head.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    return stream, encoding


def _zstd(path: Path, raw: IO[bytes]) -> IO[bytes]:
    """Opens a Zstandard file, with Python 3.14 or the package `zstandard`."""
    try:
        found: IO[bytes] = importlib.import_module("compression.zstd").ZstdFile(raw)
        return found
    except ImportError:
        pass
    try:
        found = (
            importlib.import_module("zstandard")
            .ZstdDecompressor()
            .stream_reader(raw, read_across_frames=True)
        )
    except ImportError:
        raw.close()
        raise DocumentError(
            f"{path}: is compressed with zstd, which this Python cannot read; decompress it "
            f"(zstd -d {path.name}) and name the result"
        ) from None
    return found
