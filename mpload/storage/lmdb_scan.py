"""Reads all keys and values of an LMDB data file, in the order of the keys, in a separate process.

liblmdb trusts the contents of a data file. A damaged file makes it crash its process, by a failed assertion or by
reading outside the file. So a file that has not been checked is read by a child process, `python -m
mpload.storage.lmdb_scan`, which sends the contents through a pipe. Each message consists of two lengths (8 bytes), the
key and the value. In the last message, the key's length is replaced by `_END`, or by `_FAILED` or `_REFUSED` and the
text of an error.
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
from mpload.storage.lmdb import COPY_IT, open_lmdb
from mpload.units import printable

__all__ = ["HEAD_BYTES", "main", "scan_lmdb"]

HEAD_BYTES = 16
"""How many bytes of a value are sent if the whole value was not requested."""
_LENGTHS = struct.Struct("<II")
_END, _FAILED, _REFUSED = 0xFFFF_FFFF, 0xFFFF_FFFE, 0xFFFF_FFFD  # these replace a key's length
_BUFFER_BYTES = 1 << 16


def scan_lmdb(path: str, *, whole: Sequence[str]) -> Generator[tuple[bytes, bytes]]:
    """Yield each key with its value, or with the first 16 bytes of it if the key has none of the endings `whole`.

    Args:
        path: a data file, as for `open_lmdb`.
        whole: endings of the keys whose whole values are wanted, in lower case. The case of keys does not matter. `""`
            matches every key.

    Memory: constant.
    Process: the child ends when the iteration ends, or when this process ends.

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
            message = errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise StorageError(
                f"{printable(path)}: the process that read it ended by {_name(status)}{message and f' ({message})'}, "
                f"as liblmdb does over a damaged file. {COPY_IT}"
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
    """Write the contents of the file to standard output."""
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
    import lmdb  # noqa: PLC0415  an optional package, already imported by `open_lmdb`

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
                    raise lmdb.CorruptedError("it holds more keys than its header says")
    except lmdb.Error as error:
        raise StorageError(f"{printable(path)}: is a damaged LMDB: {error}. {COPY_IT}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
