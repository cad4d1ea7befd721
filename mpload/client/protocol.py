"""The messages between a loader's workers and servers. They are data: nothing in them is ever unpickled or run.

All are carried by HTTP:

```
GET  /v1/dataset   -> 200, JSON: a `Description`
POST /v1/samples   a `Wanted` -> 200, an answer
```

A request or an answer is a *head* and then arrays, little-endian, end to end. The head is JSON, after its length as a
uint32. The arrays of a request are the sample_ids, int64 [n]. Those of an answer are, field by field in the order of
the slot: a fixed field's samples [n, *shape]; a ragged field's shapes, int64 [n, num_dims], and then its n values. The
place of a failure counts from the first sample of the request.

Each request names the digest of the description that the worker expects, in the header `Mpload-Dataset`. A server with
another one answers 409 and its own description.
"""

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpload.transport.messages import MAX_COUNTS, Failure, Tally, shortened
from mpload.transport.ragged import RaggedArray
from mpload.transport.slots import Field, RaggedField

__all__ = [
    "DATASET_HEADER",
    "MAX_HEAD_BYTES",
    "MAX_SAMPLES",
    "MEDIA_TYPE",
    "VERSION",
    "AnswerHead",
    "Description",
    "ProtocolError",
    "Wanted",
    "buffers_of",
    "described_fields",
    "read_answer",
]

VERSION = 1
MEDIA_TYPE = "application/vnd.mpload"
DATASET_HEADER = "Mpload-Dataset"
MAX_SAMPLES = 256
"""Maximum number of samples in a request."""
MAX_HEAD_BYTES = 4 << 20
_MAX_CHARACTERS = MAX_HEAD_BYTES // 16
"""Of all texts in a head that would be too long. JSON may write a character with 12 bytes."""
_MAX_ARRAY_BYTES = (1 << 63) - 1
"""NumPy's limit, which counts a size of 0 as 1."""
_LENGTH = struct.Struct("<I")

ReadInto = Callable[[memoryview], None]
"""Fills all of a buffer with the next bytes of a message, or raises."""


class ProtocolError(ValueError):
    """The other side sent something that this protocol does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What samples are made of, and how. Two processes with equal descriptions make equal samples."""

    version: int = VERSION
    index: str
    """Digest of the index: of its samples, their number and its columns."""
    pipeline: str
    """Decoders, transforms and error policy, as text for people."""
    fields: tuple[str, ...]
    """Name, dtype and shape of each field of a slot: see `described_fields`."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        return hashlib.blake2b(self.encode(), digest_size=16).hexdigest()

    def encode(self) -> bytes:
        """Return the description as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the description that `encode` turned into `data`.

        Raises:
            ProtocolError: it is no description.
        """
        found = _json_object(data)
        texts = found.get("index"), found.get("pipeline")
        fields = found.get("fields")
        if (
            set(found) != {"version", "index", "pipeline", "fields"}
            or type(found["version"]) is not int
            or not all(type(text) is str for text in texts)
            or not isinstance(fields, list)
            or not all(type(text) is str for text in fields)
        ):
            raise ProtocolError(f"this does not describe a dataset: {data!r:.200}")
        return cls(**{**found, "fields": tuple(fields)})


def described_fields(fields: Sequence[Field | RaggedField]) -> tuple[str, ...]:
    """Return name, dtype and shape of each field that an answer carries."""
    return tuple(
        f"{each.name}: {np.dtype(each.dtype).newbyteorder('<').str} "
        + (f"[{', '.join(map(str, each.shape))}]" if isinstance(each, Field) else f"ragged, {each.num_dims} dimensions")
        for each in fields
        if isinstance(each, Field) or not (each.is_input or each.is_whole)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A request for samples."""

    seed: int
    epoch: int
    bucket: int = 0
    """The bucket that all samples belong to, if the dataset has buckets."""
    sample_ids: NDArray[np.int64]
    """int64 [n]. An id beyond the index is a repeated draw: see `MPDataset`."""

    def encode(self) -> bytes:
        """Return the body of the request."""
        head = {"seed": self.seed, "epoch": self.epoch, "bucket": self.bucket, "samples": len(self.sample_ids)}
        return b"".join([_headed(head), self.sample_ids.astype("<i8", copy=False).tobytes()])

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return the request that `encode` turned into `body`.

        Raises:
            ProtocolError: it is no request.
        """
        if len(body) < _LENGTH.size:
            raise ProtocolError(f"a request of {len(body)} bytes has no head")
        end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
        head = _json_object(body[_LENGTH.size : end])
        if set(head) != {"seed", "epoch", "bucket", "samples"} or not all(map(_is_int64, head.values())):
            raise ProtocolError(f"the head of a request needs seed, epoch, bucket and samples, got {head!r:.200}")
        num_samples = head.pop("samples")
        if not 0 < num_samples <= MAX_SAMPLES or len(body) - end != 8 * num_samples:
            raise ProtocolError(
                f"a request has 1 to {MAX_SAMPLES} sample_ids of 8 bytes, got {num_samples} in {len(body) - end} bytes"
            )
        sample_ids = np.frombuffer(body, "<i8", offset=end).astype(np.int64)  # aligned, unlike the body
        if sample_ids.min() < 0:
            raise ProtocolError(f"a sample_id must not be negative, got {sample_ids.min()}")
        return cls(**head, sample_ids=sample_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What an answer says about its samples."""

    tally: Tally
    failures: tuple[Failure, ...] = ()
    """Places count from the first sample of the request."""

    def encode(self) -> bytes:
        """Return the head with its length, as it begins the body of an answer. Texts that are too long are cut."""
        head = self._encoded(self.failures)
        return head if len(head) <= MAX_HEAD_BYTES else self._encoded(shortened(self.failures, _MAX_CHARACTERS))

    def _encoded(self, failures: Sequence[Failure]) -> bytes:
        listed = [[each.sample, each.cause, dict(each.details)] for each in failures]
        return _headed({"busy_ns": self.tally.busy_ns, "counts": self.tally.counts, "failures": listed})

    @classmethod
    def decode(cls, data: bytes, *, num_samples: int) -> Self:
        """Return the head that `encode` made, without its length.

        Raises:
            ProtocolError: it is no head.
        """
        head = _json_object(data)
        match head:
            case {"busy_ns": busy_ns, "counts": [*counts], "failures": [*failures], **others} if not others:
                pass
            case _:
                raise ProtocolError(f"the head of an answer needs busy_ns, counts and failures, got {head!r:.200}")
        if len(counts) != MAX_COUNTS or not all(map(_is_int64, [busy_ns, *counts])):
            raise ProtocolError(f"the head of an answer needs {MAX_COUNTS} counts, got {head!r:.200}")
        tally = Tally(num_samples=num_samples, busy_ns=busy_ns, counts=counts)
        return cls(tally=tally, failures=tuple(_failure(each, num_samples) for each in failures))


def _failure(found: Any, num_samples: int) -> Failure:
    match found:
        case [int(place), str(cause), dict(details)] if (
            0 <= place < num_samples and type(place) is int and all(map(_is_detail, details.items()))
        ):
            return Failure(sample=place, cause=cause, details=details)
    raise ProtocolError(f"a failure is the place of a sample below {num_samples}, a text and facts, got {found!r:.200}")


def buffers_of(arrays: Mapping[str, Any], first: int, last: int) -> Iterator[memoryview | bytes]:
    """Yield the arrays of an answer: samples `first` to `last` (exclusive) of these arrays of a slot, not copied."""
    for array in arrays.values():
        if not isinstance(array, RaggedArray):
            yield _bytes_of(array[first:last])
            continue
        yield array.shapes[first:last].astype("<i8").tobytes()
        for place in range(first, last):
            if (value := array[place]).size:
                yield _bytes_of(value)


def read_answer(read_into: ReadInto, num_bytes: int, arrays: Mapping[str, Any], first: int, last: int) -> AnswerHead:
    """Read the body of an answer into samples `first` to `last` (exclusive) of these arrays of a slot.

    Ragged arrays must have been begun. A body that is refused may have been written in part.

    Raises:
        ProtocolError: the body is no answer for these arrays.
    """
    left = _Left(read_into, num_bytes)
    size = _LENGTH.unpack(left.take(_LENGTH.size))[0]
    if size > MAX_HEAD_BYTES:
        raise ProtocolError(f"the head of an answer may have {MAX_HEAD_BYTES} bytes, got {size}")
    head = AnswerHead.decode(left.take(size), num_samples=last - first)
    for array in arrays.values():
        if isinstance(array, RaggedArray):
            _read_ragged(left, array, first, last)
        else:
            left.fill(_bytes_of(array[first:last]))
    if left.num_bytes:
        raise ProtocolError(f"an answer has {left.num_bytes} bytes more than its samples need")
    return head


def _read_ragged(left: "_Left", array: RaggedArray, first: int, last: int) -> None:
    num_dims = array.field.num_dims
    shapes = np.frombuffer(left.take(8 * num_dims * (last - first)), "<i8").reshape(last - first, num_dims).tolist()
    for place, shape in enumerate(shapes, first):
        item_bytes = np.dtype(array.field.dtype).itemsize
        num_bytes = math.prod(shape) * item_bytes
        is_too_large = math.prod(size or 1 for size in shape) * item_bytes > _MAX_ARRAY_BYTES
        if min(shape) < 0 or is_too_large or num_bytes > left.num_bytes or not array.fits(shape):
            raise ProtocolError(
                f"field {array.field.name!r}: an answer has a value of shape {shape}, which is too large"
            )
        if num_bytes:
            left.fill(_bytes_of(array.room(place, shape)))
        elif any(shape):
            array.room(place, shape)


def _is_detail(detail: tuple[str, Any]) -> bool:
    """Return whether the loader's process can read a detail of a failure; it reads no others than these."""
    match detail:
        case ("skipped" | "substituted" | "killed", bool()) | ("traceback", str()):
            return True
        case ("at", place):
            return place is None or _is_int64(place)
        case ("bad", [*tried]):
            return all(map(_is_bad_sample, tried))
        case ("error", [str(), str(), arguments]):
            return arguments is None or isinstance(arguments, list)
    return False


def _is_bad_sample(tried: Any) -> bool:
    match tried:
        case [sample_id, str()]:
            return _is_int64(sample_id) and sample_id >= 0
    return False


class _Left:
    """The bytes of a body that were not read yet."""

    def __init__(self, read_into: ReadInto, num_bytes: int) -> None:
        self._read_into = read_into
        self.num_bytes = num_bytes

    def fill(self, buffer: memoryview) -> None:
        if buffer.nbytes > self.num_bytes:
            raise ProtocolError(f"an answer ends {buffer.nbytes - self.num_bytes} bytes before its samples do")
        self.num_bytes -= buffer.nbytes
        self._read_into(buffer)

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self.num_bytes:
            raise ProtocolError(f"an answer ends {num_bytes - self.num_bytes} bytes too early")
        taken = bytearray(num_bytes)
        self.fill(memoryview(taken))
        return bytes(taken)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _headed(head: Mapping[str, Any]) -> bytes:
    text = json.dumps(head).encode()
    return _LENGTH.pack(len(text)) + text


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"this is no JSON: {data!r:.200}") from error
    if not isinstance(found, dict):
        raise ProtocolError(f"a JSON object is needed, got {data!r:.200}")
    return found


def _is_int64(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63
