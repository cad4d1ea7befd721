"""Messages survive the way, and no bytes whatever make a reader fail in another way than with `ProtocolError`."""

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.client.protocol import (
    MAX_HEAD_BYTES,
    MAX_SAMPLES,
    AnswerHead,
    Description,
    ProtocolError,
    Wanted,
    buffers_of,
    described_fields,
    read_answer,
)
from mpload.transport.messages import MAX_COUNTS, Failure, Tally
from mpload.transport.ragged import RaggedArray
from mpload.transport.ring import SlotRing
from mpload.transport.slots import Field, RaggedField, SlotLayout

NUM_SAMPLES = 3
FIELDS = (
    Field(name="image", shape=(2, 3), dtype="uint8"),
    Field(name="label", dtype=">i8"),
    RaggedField(name="text", max_sample_bytes=64),
    RaggedField(name="boxes", dtype="float32", num_dims=2, max_sample_bytes=256),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


class _Body:
    """The bytes of a body, and how many of them a reader may ask for."""

    def __init__(self, data: bytes) -> None:
        self.num_bytes = len(data)
        self._stream = BytesIO(data)

    def __call__(self, buffer: memoryview) -> None:
        assert buffer.nbytes <= self.num_bytes - self._stream.tell(), "asks for more than there is, and would hang"
        self._stream.readinto(buffer)


def _arrays() -> dict[str, Any]:
    ring = SlotRing(num_slots=1, layout=SlotLayout(num_samples=NUM_SAMPLES, fields=FIELDS))
    slot = ring.take()
    assert slot is not None
    arrays = ring.lend(slot, NUM_SAMPLES)
    for array in arrays.values():
        if isinstance(array, RaggedArray):
            array.begin(0, NUM_SAMPLES)
    ring.close()
    return arrays


def _filled(texts: list[bytes], num_boxes: list[int]) -> dict[str, Any]:
    arrays = _arrays()
    arrays["image"][:] = np.arange(18).reshape(3, 2, 3)
    arrays["label"][:] = [1, -1, 1 << 40]
    for place, (text, count) in enumerate(zip(texts, num_boxes, strict=True)):
        arrays["text"].put(place, text)
        arrays["boxes"].put(place, np.arange(4 * count, dtype=np.float32).reshape(count, 4))
    return arrays


def _body(head: AnswerHead, arrays: Mapping[str, Any]) -> bytes:
    return b"".join([head.encode(), *buffers_of(arrays, 0, NUM_SAMPLES)])


HEAD = AnswerHead(tally=Tally(num_samples=NUM_SAMPLES, busy_ns=7, counts=[1] * MAX_COUNTS))
BODY = _body(HEAD, _filled([b"", b"abc", b"x" * 64], [0, 2, 1]))


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=20), st.integers(0, (1 << 63) - 1))
def test_a_request_survives_the_way(sample_ids: list[int], seed: int) -> None:
    request = Wanted(seed=seed, epoch=3, bucket=1, sample_ids=np.array(sample_ids, np.int64))
    found = Wanted.decode(request.encode())
    assert (found.seed, found.epoch, found.bucket, found.sample_ids.tolist()) == (seed, 3, 1, sample_ids)


@given(st.lists(st.binary(max_size=64), min_size=3, max_size=3), st.lists(st.integers(0, 9), min_size=3, max_size=3))
def test_an_answer_survives_the_way(texts: list[bytes], num_boxes: list[int]) -> None:
    sent, received = _filled(texts, num_boxes), _arrays()
    failure = Failure(sample=2, cause="why", details={"skipped": True, "bad": [[5, "why"]]})
    body = _body(replace(HEAD, failures=(failure,)), sent)
    head = read_answer(_Body(body), len(body), received, 0, NUM_SAMPLES)
    assert head == replace(HEAD, failures=(failure,))
    for name, array in sent.items():
        assert [value.tobytes() for value in array] == [value.tobytes() for value in received[name]]
        assert [value.shape for value in array] == [value.shape for value in received[name]]


def test_a_description_survives_the_way_and_its_digest_tells_all_of_it_apart() -> None:
    first = Description(index="a", pipeline="b", fields=described_fields(FIELDS))
    assert Description.decode(first.encode()) == first
    others = [
        replace(first, **change) for change in ({"index": "x"}, {"pipeline": "x"}, {"fields": ()}, {"version": 2})
    ]
    assert len({each.digest for each in (first, *others)}) == 5


def _damaged(data: st.DataObject, message: bytes) -> bytes:
    """Return a message of which some bytes are changed, left out or added."""
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        num_dropped = data.draw(st.sampled_from([0, 1, 4, len(damaged)]))
        damaged[at : at + num_dropped] = data.draw(st.binary(max_size=8))
    return bytes(damaged)


@given(st.data())
def test_a_damaged_answer_is_refused_or_is_an_answer(data: st.DataObject) -> None:
    body = _damaged(data, BODY)
    try:
        read_answer(_Body(body), len(body), _arrays(), 0, NUM_SAMPLES)
    except ProtocolError:
        return


@pytest.mark.slow
@given(JSON)
@settings(max_examples=300)
def test_any_head_of_an_answer_is_refused_or_can_be_read(found: Any) -> None:
    heads = [
        {"busy_ns": 1, "counts": [0] * MAX_COUNTS, "failures": found},
        {"busy_ns": 1, "counts": found, "failures": []},
        {"busy_ns": 1, "counts": [0] * MAX_COUNTS, "failures": [[0, "why", found]]},
        {"busy_ns": 1, "counts": [0] * MAX_COUNTS, "failures": [[0, "why", {"error": found}]]},
        {
            "busy_ns": 1,
            "counts": [0] * MAX_COUNTS,
            "failures": [[0, "why", {"traceback": "t", "error": ["a", "b", found]}]],
        },
        {"busy_ns": 1, "counts": [0] * MAX_COUNTS, "failures": [[0, "why", {"bad": found}]]},
        found,
    ]
    for head in heads:
        try:
            decoded = AnswerHead.decode(json.dumps(head).encode(), num_samples=NUM_SAMPLES)
        except ProtocolError:
            continue
        for failure in decoded.failures:
            failure.origin  # noqa: B018  rebuilds the error
            assert all(len(each) == 2 for each in failure.details.get("bad", []))


@given(st.data())
def test_a_damaged_request_is_refused_or_is_a_request(data: st.DataObject) -> None:
    body = _damaged(data, Wanted(seed=1, epoch=2, sample_ids=np.arange(5)).encode())
    try:
        found = Wanted.decode(body)
    except ProtocolError:
        return
    assert 0 < len(found.sample_ids) <= MAX_SAMPLES
    assert found.sample_ids.min() >= 0


@given(st.binary(max_size=64) | JSON.map(lambda found: json.dumps(found).encode()))
def test_any_bytes_are_refused_or_describe_a_dataset(data: bytes) -> None:
    try:
        Description.decode(data)
    except ProtocolError:
        return


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<I", MAX_HEAD_BYTES + 1) + bytes(100),
        struct.pack("<I", 1 << 20) + b"{}",
        BODY[:-1],
        BODY + b"\0",
        b"[" * 100_000,
    ],
)
def test_a_length_that_lies_reserves_no_memory(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_answer(_Body(body), len(body), _arrays(), 0, NUM_SAMPLES)


@pytest.mark.parametrize(
    "shape", [[1 << 62, 1 << 62], [-1, 4], [1 << 40, 4], [0, -5], [1 << 20, 0], [(1 << 63) - 1, 0]]
)
def test_a_ragged_value_whose_shape_lies_is_refused_or_empty(shape: list[int]) -> None:
    shapes = np.array([[0, 4], shape, [0, 4]], "<i8")
    arrays = {"boxes": _arrays()["boxes"]}
    body = HEAD.encode() + shapes.tobytes()
    try:
        read_answer(_Body(body), len(body), arrays, 0, NUM_SAMPLES)
    except ProtocolError:
        return
    assert arrays["boxes"][1].size == 0


@pytest.mark.parametrize("character", ["x", "\0", "\N{GRINNING FACE}"])
def test_a_head_with_many_long_texts_is_cut_to_its_limit(character: str) -> None:
    details = {"traceback": character * 8000, "error": ["builtins", "ValueError", ["why"]], "skipped": True}
    failures = tuple(
        Failure(sample=place, cause=character * 8000, details=details) for place in range(MAX_SAMPLES) for _ in range(2)
    )
    encoded = AnswerHead(tally=Tally(num_samples=MAX_SAMPLES), failures=failures).encode()
    assert len(encoded) <= MAX_HEAD_BYTES
    found = AnswerHead.decode(encoded[4:], num_samples=MAX_SAMPLES)
    assert [failure.sample for failure in found.failures] == [failure.sample for failure in failures]
    assert all(failure.details["skipped"] for failure in found.failures)
