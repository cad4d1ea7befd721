"""Values that no batch can hold are errors that say where they are."""

import numpy as np
import pytest

from mpload.errors import ArgumentError
from mpload.samples.leaves import as_array, put, template_of


@pytest.mark.parametrize("value", [(1 << 63) - 1, -(1 << 63)])
def test_an_integer_of_64_bits_is_kept(value: int) -> None:
    found = as_array(value, "sample")
    assert found is not None
    assert found[0].dtype == np.int64
    assert found[0].item() == value


@pytest.mark.parametrize(
    ("value", "num_bits"),
    [(1 << 63, 64), (-(1 << 63) - 1, 64), (1 << 20_000, 20_001)],
    ids=["too high", "too low", "too long to be written as text"],
)
def test_an_integer_that_does_not_fit_is_an_error_that_names_its_place(value: int, num_bits: int) -> None:
    message = rf"^sample\['id'\] is an integer of {num_bits} bits and a sign, but a batch holds int64"
    with pytest.raises(ArgumentError, match=message):
        template_of({"id": value})
    leaf = template_of({"id": 1})["id"]
    with pytest.raises(ArgumentError, match=message):
        put(np.zeros(1, np.int64), 0, leaf, value)
