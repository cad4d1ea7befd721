"""The contract of decoders: a class of tests, subclassed for each decoder."""

import copy
import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import mpload
from mpload.errors import ArgumentError, DecodeError

__all__ = ["DecoderContract"]


class DecoderContract:
    """Subclasses have an attribute `decoder` and a fixture `whole`, the contents of files that it decodes.

    Attributes:
        decoder: The decoder under test.
        broken: Bytes that it must refuse.
    """

    decoder: Any
    broken: tuple[bytes, ...] = (b"", b"<html>404 Not Found</html>")

    def decode(self, data: Any, seed: int = 0, **more: Any) -> Any:
        if "rng" in inspect.signature(self.decoder).parameters:
            more["rng"] = np.random.default_rng(seed)
        return self.decoder(data, **more)

    def test_a_decoder_is_a_value(self) -> None:
        assert pickle.loads(pickle.dumps(self.decoder)) == self.decoder
        assert eval(repr(self.decoder), {name: getattr(mpload, name) for name in mpload.__all__}) == self.decoder
        assert hash(copy.copy(self.decoder)) == hash(self.decoder)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer_of_bytes_is_decoded(self, kind: type, whole: list[bytes]) -> None:
        for data in whole:
            np.testing.assert_array_equal(self.decode(kind(data)), self.decode(data))

    def test_equal_generators_give_equal_samples(self, whole: list[bytes]) -> None:
        for data in whole:
            first, second, other = (self.decode(data, seed) for seed in (7, 7, 8))
            np.testing.assert_array_equal(first, second)
            assert ("rng" in inspect.signature(self.decoder).parameters) is not np.array_equal(first, other)

    def test_every_file_draws_the_same_number_of_random_numbers(self, whole: list[bytes]) -> None:
        if "rng" not in inspect.signature(self.decoder).parameters:
            return
        generators = [np.random.default_rng(3) for _ in whole]
        for data, rng in zip(whole, generators, strict=True):
            self.decoder(data, rng)
        assert len({rng.random() for rng in generators}) == 1

    def test_bytes_that_cannot_be_decoded_are_a_decode_error(self, whole: list[bytes]) -> None:
        for data in (*self.broken, *(data[: len(data) // 2] for data in whole if self.broken)):
            with pytest.raises(DecodeError):
                self.decode(data)

    def test_a_file_that_exceeds_its_limits_is_a_decode_error(self, whole: list[bytes]) -> None:
        if hasattr(self.decoder, "limits"):
            size = self.decoder.limits.max_bytes + 1
            with pytest.raises(DecodeError, match=f"{size:,} bytes exceed max_bytes={size - 1:,}"):
                self.decode(whole[0] + bytes(size - len(whole[0])))

    def test_results_have_the_declared_shape_and_are_written_to_out(self, whole: list[bytes]) -> None:
        if not hasattr(self.decoder, "output_shape"):
            has_size_of_its_own = not getattr(self.decoder, "has_geometry_size", False)
            assert not has_size_of_its_own or "out" not in inspect.signature(self.decoder).parameters
            return
        shape, dtype = self.decoder.output_shape, np.dtype(getattr(self.decoder, "output_dtype", np.uint8))
        batch = np.zeros((3, *shape), dtype)
        for data in whole:
            for seed in range(6):
                expected = self.decode(data, seed)
                assert (expected.shape, expected.dtype) == (shape, dtype)
                assert np.shares_memory(self.decode(data, seed, out=batch[1]), batch)
                np.testing.assert_array_equal(batch[1], expected)
        assert not batch[0].any()
        assert not batch[2].any()
        turned = np.zeros(shape[::-1], dtype)
        for out in (np.zeros(shape, np.complex64), turned, turned.T):
            with pytest.raises(ArgumentError, match="out must be"):
                self.decode(whole[0], out=out)
