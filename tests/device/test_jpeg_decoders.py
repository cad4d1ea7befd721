"""The decoders of a device: which one is taken, and what becomes of files that it refuses.

nvImageCodec needs a GPU, so a stand-in decodes here; tests/device/test_on_gpu.py has the real one.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from enum import Enum, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from mpload import DecodeError, ImageDecoder
from mpload.device.jpeg_decoders import EngineDecoder, device_decoder
from mpload.errors import MploadWarning
from mpload.images.resize import Box
from tests.support.device_decoders import WholeImages

CUDA = torch.device("cuda", 0)


class Region(NamedTuple):
    """As nvImageCodec has it."""

    top: int
    left: int
    bottom: int
    right: int


class CodeStream:
    """A file, or a region of it. As nvImageCodec does, it raises RuntimeError for what is no image."""

    def __init__(self, data: Any, region: Region | None = None) -> None:
        if bytes(data[:2]) != b"\xff\xd8":
            raise RuntimeError("unsupported code stream")
        self.data, self.region = data, region

    def get_sub_code_stream(self, *, region: Region) -> "CodeStream":
        return CodeStream(self.data, region)


class BackendKind(Enum):
    """As nvImageCodec has them."""

    HW_GPU_ONLY = auto()
    GPU_ONLY = auto()
    HYBRID_CPU_GPU = auto()


class Codec(ModuleType):
    """Stands in for nvidia.nvimgcodec: decodes on the CPU, and remembers which memory it was given."""

    def __init__(self, *, has_engines: bool = True) -> None:
        super().__init__("nvidia.nvimgcodec")
        for kind in (Region, CodeStream, BackendKind):
            setattr(self, kind.__name__, kind)
        self.SampleFormat = SimpleNamespace(I_RGB=3)
        self.has_engines = has_engines
        self.memories: list[Any] = []
        self.error: RuntimeError | None = None
        self.is_old = False

    def Backend(self, kind: BackendKind) -> BackendKind:  # noqa: N802  named by nvImageCodec
        return kind

    def DecodeParams(self, **options: Any) -> Any:  # noqa: N802  named by nvImageCodec
        assert options == {"apply_exif_orientation": False, "sample_format": 3}
        if self.is_old:
            raise TypeError("__init__(): incompatible constructor arguments")
        return options

    def Decoder(self, *, backends: Sequence[BackendKind], **options: Any) -> "Codec":  # noqa: N802
        assert options["device_id"] == 0
        if not self.has_engines and BackendKind.HYBRID_CPU_GPU not in backends:
            raise RuntimeError("Could not create decoder")
        return self

    def decode(self, streams: Sequence[CodeStream], *, images: Any, params: Any, cuda_stream: int) -> list[Any]:
        assert params
        assert cuda_stream == 7
        self.memories.append(images)
        if self.error is not None:
            raise self.error
        return list(map(self.decoded, streams))

    def decoded(self, stream: CodeStream) -> Any:
        assert stream.region is not None
        top, left, bottom, right = stream.region
        try:
            return ImageDecoder()(stream.data.tobytes())[top:bottom, left:right]
        except DecodeError:
            return None


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch) -> Iterator[Codec]:
    codec = Codec()
    monkeypatch.setitem(sys.modules, "nvidia", ModuleType("nvidia"))
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", codec)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
    return codec


@pytest.fixture
def files(photo_tree: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(photo_tree.rglob("*.JPEG"))[:3]]


BOXES = [Box(top=number, left=2 * number, height=20 + number, width=30) for number in range(4)]


def test_engines_are_used_where_there_are_some(codec: Codec) -> None:
    assert isinstance(device_decoder(CUDA), EngineDecoder)
    codec.has_engines = False
    assert not isinstance(device_decoder(CUDA), EngineDecoder)
    assert device_decoder(torch.device("cpu")) is None


def test_an_nvimagecodec_that_is_too_old_is_not_used(codec: Codec) -> None:
    codec.is_old = True
    assert not isinstance(device_decoder(CUDA), EngineDecoder)


def test_each_image_is_the_box_of_its_file(codec: Codec, files: list[bytes]) -> None:
    del codec
    images = EngineDecoder(CUDA)(files, BOXES[:3])
    for file, box, image in zip(files, BOXES, images, strict=False):
        assert image is not None
        assert np.array_equal(image.permute(1, 2, 0).numpy(), box.of(ImageDecoder()(file)))


def test_what_is_refused_is_none_and_the_others_keep_their_places(codec: Codec, files: list[bytes]) -> None:
    del codec
    images = EngineDecoder(CUDA)([b"no image", files[0], files[1][:200], files[2]], BOXES)
    assert [image is None for image in images] == [True, False, True, False]
    for number, file in ((1, files[0]), (3, files[2])):
        found = images[number]
        assert found is not None
        assert np.array_equal(found.permute(1, 2, 0).numpy(), BOXES[number].of(ImageDecoder()(file)))


def test_memory_is_used_again_for_as_many_images_as_it_has(codec: Codec, files: list[bytes]) -> None:
    decoder = EngineDecoder(CUDA)
    decoder(files[:2], BOXES[:2])
    decoder(files[:1], BOXES[:1])
    decoder(files[:2], BOXES[:2])
    decoder(files, BOXES[:3])
    decoder([files[0], files[1][:200]], BOXES[:2])
    decoder(files[:1], BOXES[:1])
    assert [memory and len(memory) for memory in codec.memories] == [None, 1, 2, None, 2, None]


@pytest.mark.parametrize(("num_files", "warns"), [(1, False), (3, True)])
def test_if_the_engines_fail_all_images_are_left_to_the_cpu(
    codec: Codec, files: list[bytes], num_files: int, *, warns: bool
) -> None:
    decoder = EngineDecoder(CUDA)
    codec.error = RuntimeError("out of memory")
    warning = "the device decodes none of 3 JPEGs, so this process does, which is slow: out of memory"
    with pytest.warns(MploadWarning, match=warning) if warns else nullcontext():
        assert decoder(files[:num_files], BOXES[:num_files]) == [None] * num_files


def test_it_is_said_that_all_images_are_left_to_the_cpu_though_nvimagecodec_does_not_say_why(
    codec: Codec, files: list[bytes]
) -> None:
    del codec
    damaged = [file[:200] for file in files]
    with pytest.warns(MploadWarning, match="the device decodes none of 3 JPEGs, .*does not say why"):
        assert EngineDecoder(CUDA)(damaged, BOXES[:3]) == [None] * 3


def test_new_tensors_are_not_filled_while_torchvision_writes_to_them(files: list[bytes]) -> None:
    deterministic: Any = torch.utils.deterministic
    seen = []

    def decode(encoded: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        seen.append(deterministic.fill_uninitialized_memory)
        if len(encoded) > 1:
            raise RuntimeError("one of them is damaged")
        return [torch.empty(3, 100, 100, dtype=torch.uint8)]

    WholeImages(decode)(files[:2], BOXES[:2])
    assert seen == [False] * 3
    assert deterministic.fill_uninitialized_memory


def test_new_tensors_are_filled_again_when_the_last_of_several_threads_has_decoded(files: list[bytes]) -> None:
    deterministic: Any = torch.utils.deterministic
    both_decode, seen = threading.Barrier(2), list[bool]()

    def decode(encoded: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        both_decode.wait(10)
        if threading.current_thread() is not threading.main_thread():
            other_is_done.wait(10)
        seen.append(deterministic.fill_uninitialized_memory)
        return [torch.empty(3, 100, 100, dtype=torch.uint8) for _ in encoded]

    other_is_done = threading.Event()
    other = threading.Thread(target=lambda: WholeImages(decode)(files[:1], BOXES[:1]))
    other.start()
    WholeImages(decode)(files[:1], BOXES[:1])
    other_is_done.set()
    other.join()
    assert seen == [False, False]
    assert deterministic.fill_uninitialized_memory
