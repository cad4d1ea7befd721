"""Batches for `pin_memory=True` keep their containers. The files of `GpuDecode` in them stay as they are."""

from collections import OrderedDict, UserList
from types import MappingProxyType
from typing import Any

import pytest
import torch

from mpload.loader.pinned import _pinned


class OwnTuple(tuple[Any, ...]):
    __slots__ = ()


@pytest.fixture(autouse=True)
def pins_by_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor.clone())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: [value, "text", b"bytes", None, 1],
        lambda value: (value,),
        lambda value: OrderedDict(a=value),
        lambda value: MappingProxyType({"a": value}),
        lambda value: OwnTuple([value]),
        lambda value: UserList([value]),
    ],
)
def test_containers_keep_their_class(wrap: Any) -> None:
    batch = wrap(torch.ones(3))
    assert type(_pinned(batch)) is type(batch)


def test_files_stay_as_they_are() -> None:
    tensor, file = torch.ones(3), memoryview(b"a file")
    images, found = _pinned(({"image": [file, file]}, tensor))
    assert images["image"] == [file, file]
    assert torch.equal(found, tensor)
    assert found.data_ptr() != tensor.data_ptr()
