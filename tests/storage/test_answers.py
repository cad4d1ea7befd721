"""Answers of web servers, byte by byte: whatever a server sends is either an answer or one of three errors."""

from io import BufferedReader, BytesIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpload.storage.answers import Answer, CutShortError, NoAnswerError, NotHttpError

PARTS = [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 404\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked", b"\r\n"]
PARTS += [b"\n", b"0", b"5", b"FFFFFFFF", b"Connection: close\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b":", b" ", b"-1"]


def answer(sent: bytes) -> Answer:
    return Answer(BufferedReader(BytesIO(sent)))


@given(st.lists(st.sampled_from(PARTS) | st.binary(max_size=8)).map(b"".join))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n")
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\n")
def test_any_bytes_are_an_answer_or_an_error(sent: bytes) -> None:
    try:
        found = answer(sent)
        found.read(1000)
        found.read()
    except (NoAnswerError, NotHttpError, CutShortError):
        return
    assert found.is_complete


@given(
    body=st.binary(max_size=300),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    reads=st.lists(st.integers(1, 60), max_size=8),
)
def test_the_body_does_not_depend_on_how_it_is_sent_or_read(body: bytes, sizes: list[int], reads: list[int]) -> None:
    chunks, start = b"", 0
    for number in range(len(body)):
        part = body[start : start + sizes[number % len(sizes)]]
        if part:
            chunks += b"%x\r\n%s\r\n" % (len(part), part)
        start += len(part)
    encoded = {
        b"Content-Length: %d" % len(body): body,
        b"Transfer-Encoding: chunked": chunks + b"0\r\nTrailer: x\r\n\r\n",
    }
    for header, data in encoded.items():
        head = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n" + header + b"\r\n\r\n"
        found = answer(head + data + b"what comes next")
        assert b"".join([*(found.read(num_bytes) for num_bytes in reads), found.read()]) == body
        assert found.is_reusable
        if data:
            with pytest.raises((CutShortError, NotHttpError)):
                answer(head + data[:-1]).read()
    assert answer(b"HTTP/1.1 200 OK\r\n\r\n" + body).read() == body


def test_a_server_that_sends_nothing_has_not_answered() -> None:
    with pytest.raises(NoAnswerError):
        answer(b"")
