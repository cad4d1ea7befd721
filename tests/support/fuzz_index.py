"""Coverage-guided fuzzing of the readers of index texts, sidecars and conditions: no crash and no wrong record.

    pip install atheris && python tests/support/fuzz_index.py -max_total_time=600

Pytest does not collect this file; it tests the same laws with Hypothesis.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["mpload"]):
    from mpload.errors import ArgumentError, MploadError
    from mpload.index.blocks import blocks_of
    from mpload.index.index import sidecar_of
    from mpload.index.opening import open_index
    from mpload.index.text import parse_line, read_header
    from mpload.index.where import parse_condition

FOLDER = Path(tempfile.mkdtemp(prefix="mpload-fuzz-"))
GOOD = FOLDER / "good.txt"
GOOD.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(f"d/{i}.jpg\t{i}\n" for i in range(50)))
CELLS = [record.cells for record in open_index(GOOD)]
SIDECAR = sidecar_of(open_index(GOOD)).path
BYTES = SIDECAR.read_bytes()


def fuzz_text(data: bytes, suffix: str) -> None:
    """Open any bytes as an index: expect an MploadError, or the same records as when lines are parsed one by one."""
    path = FOLDER / f"any.{suffix}"
    path.write_bytes(data)
    try:
        index = open_index(path)
        found = [list(record.cells) for record in index]
    except MploadError:
        return
    header = read_header(path)
    lines = [line for line in data[header.body_bytes :].split(b"\n") if line.strip()]
    if repr(found) != repr([parse_line(header, line) for line in lines]):  # repr: nan is not equal to itself
        raise AssertionError(found)


def fuzz_sidecar(data: bytes) -> None:
    """Open an index with a damaged sidecar: expect an MploadError, or the right records."""
    provider = atheris.FuzzedDataProvider(data)
    damaged = bytearray(BYTES)
    for _ in range(provider.ConsumeIntInRange(1, 8)):
        damaged[provider.ConsumeIntInRange(0, len(damaged) - 1)] = provider.ConsumeIntInRange(0, 255)
    SIDECAR.write_bytes(damaged[: provider.ConsumeIntInRange(0, len(damaged))] if provider.ConsumeBool() else damaged)
    try:
        found = [record.cells for record in open_index(GOOD)]
    except MploadError:
        return
    finally:
        SIDECAR.write_bytes(BYTES)
    if found != CELLS:
        raise AssertionError(found)


def fuzz_condition(text: str) -> None:
    """Parse any text as a condition: expect an ArgumentError, or an answer for each sample."""
    index = open_index(GOOD)
    try:
        condition = parse_condition(text, index)
        num_answers = sum(len(condition(block)) for block in blocks_of(index))
    except ArgumentError:
        return
    if num_answers != len(index):
        raise AssertionError(text)


def fuzz(data: bytes) -> None:
    """Test one input as a text, as a condition or as damage to a sidecar."""
    if data[:1] >= b"\xd5":
        fuzz_condition(data[1:].decode("utf-8", "surrogateescape"))
    elif data[:1] < b"\x55":
        fuzz_sidecar(data[1:])
    else:
        fuzz_text(data[1:], "csv" if data[:1] < b"\xaa" else "txt")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
