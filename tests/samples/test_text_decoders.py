"""Texts are those that were written, without the mark that some editors put before them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import DecodeError, Text

_MARK = "\ufeff"


@given(st.text(), st.sampled_from(["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-32"]))
def test_a_text_is_read_as_it_was_written_without_a_byte_order_mark(text: str, encoding: str) -> None:
    text = text.encode("utf-8", "replace").decode().lstrip(_MARK)
    assert Text(encoding=encoding)(text.encode(encoding)) == text
    if encoding in {"utf-8", "UTF8"}:
        assert Text(encoding=encoding)(text.encode("utf-8-sig")) == text


def test_only_the_mark_of_a_file_in_utf_8_is_left_out() -> None:
    assert Text()(f"{_MARK}{_MARK}a{_MARK}".encode()) == f"{_MARK}a{_MARK}"
    assert Text()(f"{_MARK}a") == f"{_MARK}a"  # a cell is no file
    assert Text(encoding="latin-1")(b"\xef\xbb\xbfa") == "\xef\xbb\xbfa"
    with pytest.raises(DecodeError, match="not text in utf-8"):
        Text()(b"caf\xe9")
