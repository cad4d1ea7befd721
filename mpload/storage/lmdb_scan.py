"""All of an LMDB data file in the order of its keys, read by a process of its own.

liblmdb believes what a data file says of itself: a damaged one makes it end its process, by an assertion or by reading
what is not there. So a file that nobody has checked is read by a child, `python -m mpload.storage.lmdb_scan`, which
sends its keys through a pipe: 8 bytes of lengths, key, value; in the end `_END`, or `_FAILED` and what to tell.
"""

import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO

from mpload.errors import ArgumentError, MploadError, StorageError
from mpload.storage.confined import shown
from mpload.storage.lmdb import COPY_IT, open_lmdb

__all__ = ["HEAD_BYTES", "main", "scan_lmdb"]

HEAD_BYTES = 16
"""Of each value, where the whole was not asked for."""
_LENGTHS = struct.Struct("<II")
_END, _FAILED, _REFUSED = 0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFD  # in place of a key's length
_BUFFER_BYTES = 1 << 16


def scan_lmdb(path: str, *, whole: Sequence[str]) -> Generator[tuple[bytes, bytes]]:
    """Yield each key and its value, or the value's first 16 bytes where the key has none of the endings `whole`.

    Args:
        path: a data file, as `open_lmdb` takes it.
        whole: endings of keys, in lower case; keys may be in either. `""` is an ending of all of them.

    Memory: constant.
    Process: the child ends with the iteration, and with this process.

    Raises:
        ArgumentError: the package lmdb is not installed.
        StorageError: the file is truncated, damaged or cannot be read.
    """
    package_folder = str(Path(__file__).resolve().parents[2])
    paths = [package_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "mpload.storage.lmdb_scan", path, *whole],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=_BUFFER_BYTES,
        )
        assert child.stdout is not None
        try:
            yield from _received(child.stdout)
        except EOFError:
            status = child.wait()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise StorageError(
                f"{shown(path)}: the process that read it ended by {_name(status)}{said and f' ({said})'}, as liblmdb "
                f"does over a damaged file. {COPY_IT}"
            ) from None
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def _received(stream: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    while True:
        key_bytes, value_bytes = _LENGTHS.unpack(_exactly(stream, _LENGTHS.size))
        if key_bytes == _END:
            return
        if key_bytes >= _REFUSED:
            text = _exactly(stream, value_bytes).decode("utf-8", "surrogateescape")
            raise ArgumentError(text) if key_bytes == _REFUSED else StorageError(text)
        yield _exactly(stream, key_bytes), _exactly(stream, value_bytes)


def _exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) < num_bytes:
        raise EOFError
    return data


def _name(status: int) -> str:
    try:
        return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    except ValueError:  # a real-time signal
        return f"signal {-status}"


def main(arguments: Sequence[str]) -> None:
    """Send the file to standard output."""
    path, *whole = arguments
    with open(1, "wb", buffering=_BUFFER_BYTES, closefd=False) as out:
        try:
            _send(out, path, tuple(ending.encode() for ending in whole))
            out.write(_LENGTHS.pack(_END, 0))
        except MploadError as error:
            text = str(error).encode("utf-8", "surrogateescape")
            out.write(_LENGTHS.pack(_REFUSED if isinstance(error, ArgumentError) else _FAILED, len(text)) + text)


def _send(out: IO[bytes], path: str, whole: tuple[bytes, ...]) -> None:
    opened = open_lmdb(path)
    import lmdb  # noqa: PLC0415  an optional package, there since `open_lmdb`

    try:
        num_left = opened.environment.stat()["entries"]
        with opened.environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            for stored_key, stored_value in cursor:
                key = bytes(stored_key)
                value = stored_value if key.lower().endswith(whole) else stored_value[:HEAD_BYTES]
                out.write(_LENGTHS.pack(len(key), len(value)) + key)
                out.write(value)
                num_left -= 1
                if num_left < 0:
                    raise lmdb.CorruptedError("it has more keys than it says")
    except lmdb.Error as error:
        raise StorageError(f"{shown(path)}: is a damaged LMDB: {error}. {COPY_IT}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
