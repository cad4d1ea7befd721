"""GpuDecode: images that the device decodes look as if the workers had decoded them."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch

from mpload import (
    DevicePrefetcher,
    Flat,
    GpuDecode,
    ImageDecoder,
    MPDataset,
    MPLoader,
    Pad,
    RandomResizedCrop,
    ResizeCenterCrop,
    Topology,
    build_index,
)
from mpload.device.unpacking import Unpacker
from mpload.errors import ArgumentError, MploadWarning, SampleError
from mpload.images.gpu_decode import EncodedImage
from mpload.images.resize import resize_into
from tests.support.device_decoders import WholeImages
from tests.support.photos import make_special_photos

CPU = torch.device("cpu")
CROPS = [RandomResizedCrop(48), RandomResizedCrop((32, 40), antialias=True), ResizeCenterCrop(40, resize=50)]


@pytest.fixture(scope="module")
def specials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_special_photos(tmp_path_factory.mktemp("specials"))


def decode_whole(files: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Stand in for a device's decoder, which decodes whole images and fails for all if one is bad."""
    decoder = ImageDecoder()
    try:
        return [torch.from_numpy(decoder(file.numpy().tobytes())).permute(2, 0, 1) for file in files]
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def called(decoder: Any, data: bytes, seed: int = 0) -> Any:
    if isinstance(decoder, ResizeCenterCrop):
        return decoder(data)
    return decoder(data, rng=np.random.default_rng(seed))


@pytest.mark.processes
@pytest.mark.parametrize("crop", CROPS)
def test_on_the_cpu_the_loader_gives_the_same_pixels_as_the_crop(
    photo_tree: Path, crop: RandomResizedCrop | ResizeCenterCrop
) -> None:
    index = build_index(photo_tree, photo_tree.with_name("gpudecode.txt"))

    def dataset(decode: Any) -> MPDataset:
        return MPDataset(index, decode=decode, batch_size=5, shuffle=True, tail="ragged", topology=Topology())

    expected = list(dataset(crop))
    with MPLoader(dataset(GpuDecode(crop)), num_workers=2) as inner:
        loader = DevicePrefetcher(inner, device="cpu", dtype=None)
        for (images, labels), (pixels, numbers) in zip(loader, expected, strict=True):
            assert torch.equal(images, pixels)
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(labels, numbers)


@pytest.mark.parametrize("crop", CROPS)
def test_a_device_that_decodes_whole_images_shows_the_same_regions(
    photo_tree: Path, crop: RandomResizedCrop | ResizeCenterCrop
) -> None:
    files = [path.read_bytes() for path in sorted(photo_tree.rglob("*.JPEG"))]
    batch = [called_encoded(crop, data, seed) for seed, data in enumerate(files)]
    images = Unpacker(CPU, find_decoder=lambda _: WholeImages(decode_whole))([batch])[0]
    for seed, (data, sample, image) in enumerate(zip(files, batch, images, strict=True)):
        view = EncodedImage.of(sample).view
        expected = np.empty(crop.output_shape, np.uint8)
        resize_into(expected, view.box.of(ImageDecoder()(data)), view)
        difference = image.permute(1, 2, 0).numpy().astype(int) - expected
        assert abs(difference).max() <= 2, seed


def called_encoded(crop: Any, data: bytes, seed: int = 0) -> bytes:
    return GpuDecode(crop)(data, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("kind", "is_left_to_the_device"),
    [
        ("jpeg_420", True),
        ("jpeg_444", True),
        ("grayscale", True),
        ("progressive", True),
        ("cmyk", False),
        ("exif_6", False),
        ("exif_1", True),
        ("png_rgb", False),
        ("webp", False),
        ("jpeg_named", True),
    ],
)
def test_workers_decode_what_the_device_does_not_support(
    specials: dict[str, Path], kind: str, is_left_to_the_device: bool
) -> None:
    data = specials[kind].read_bytes()
    crop = RandomResizedCrop(32)
    sample = called_encoded(crop, data)
    encoded = EncodedImage.of(sample)
    assert encoded.is_jpeg == is_left_to_the_device
    assert encoded.to_bytes() == sample
    (images,) = Unpacker(CPU)([[sample]])
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), called(crop, data))


def test_a_share_of_the_jpegs_is_left_to_the_device_and_the_others_have_the_pixels_of_the_crop(
    specials: dict[str, Path],
) -> None:
    data, crop = specials["jpeg_420"].read_bytes(), RandomResizedCrop(32)
    decode = GpuDecode(crop, share=0.3)
    samples = [decode(data, np.random.default_rng(seed)) for seed in range(200)]
    assert samples == [decode(data, np.random.default_rng(seed)) for seed in range(200)]
    left = [EncodedImage.of(sample).is_jpeg for sample in samples]
    assert 40 <= sum(left) <= 80
    assert {EncodedImage.of(called_encoded(crop, data, seed)).view for seed in range(200)} == {
        EncodedImage.of(sample).view for sample in samples
    }
    images = Unpacker(CPU, find_decoder=lambda _: WholeImages(decode_whole))([samples])[0].permute(0, 2, 3, 1).numpy()
    for seed, (image, is_left) in enumerate(zip(images, left, strict=True)):
        assert is_left or np.array_equal(image, called(crop, data, seed))


@pytest.mark.parametrize(("share", "is_left"), [(0, False), (1, True)])
def test_a_share_of_none_or_all_is_exact(specials: dict[str, Path], share: float, is_left: bool) -> None:
    decode = GpuDecode(RandomResizedCrop(32), share=share)
    data = specials["jpeg_420"].read_bytes()
    samples = [decode(data, np.random.default_rng(seed)) for seed in range(50)]
    assert {EncodedImage.of(sample).is_jpeg for sample in samples} == {is_left}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_no_fraction_is_refused(share: float) -> None:
    with pytest.raises(ArgumentError, match=r"share must be in \[0, 1\], got"):
        GpuDecode(RandomResizedCrop(8), share=share)


@pytest.mark.processes
def test_a_truncated_file_is_handled_by_the_workers_error_policy(
    specials: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the error report is written to the working directory
    root = tmp_path / "photos" / "a"
    root.mkdir(parents=True)
    for number, kind in enumerate(["jpeg_420", "truncated", "jpeg_444", "grayscale"]):
        (root / f"{number}.jpg").write_bytes(specials[kind].read_bytes())
    index = build_index(tmp_path / "photos", tmp_path / "photos.txt")

    def dataset(on_error: Literal["raise", "skip", "substitute"]) -> MPDataset:
        decode = GpuDecode(RandomResizedCrop(32))
        return MPDataset(index, decode=decode, batch_size=4, on_error=on_error, topology=Topology())

    with MPLoader(dataset("raise"), num_workers=1) as inner, pytest.raises(SampleError, match="truncated"):
        list(DevicePrefetcher(inner, device="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        with MPLoader(dataset("skip"), num_workers=1) as inner:
            ((images, labels),) = DevicePrefetcher(inner, device="cpu")
    assert images.shape == (3, 3, 32, 32)
    assert len(labels) == 3


def test_encoded_images_are_found_in_nested_batches(photo_tree: Path) -> None:
    class Pair(NamedTuple):
        images: Any
        texts: list[str]

    crop = RandomResizedCrop(32)
    data = next(iter(sorted(photo_tree.rglob("*.JPEG")))).read_bytes()
    batch = {"pair": Pair([called_encoded(crop, data)], ["a"])}
    ((images, texts),) = (found["pair"] for found in DevicePrefetcher([batch], device="cpu", dtype=None))
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), called(crop, data))
    assert texts == ["a"]


def damaged(data: bytes) -> bytes:
    """Return a JPEG with a valid header and end marker, but with most of its data missing."""
    return data[: len(data) // 4] + b"\xff\xd9"


@pytest.mark.parametrize("find_decoder", [lambda _: WholeImages(decode_whole), lambda _: None])
def test_damage_found_by_the_device_is_an_error_that_names_the_sample(
    specials: dict[str, Path], find_decoder: Callable[[torch.device], Any]
) -> None:
    good, bad = specials["jpeg_420"].read_bytes(), damaged(specials["jpeg_444"].read_bytes())
    crop = ResizeCenterCrop(32, resize=200)
    with pytest.raises(SampleError, match="sample 1 of the batch, which GpuDecode left to the device: JPEG"):
        Unpacker(CPU, find_decoder=find_decoder)([[called_encoded(crop, good), called_encoded(crop, bad)]])


def test_a_file_that_the_device_refuses_does_not_affect_the_others(specials: dict[str, Path]) -> None:
    """The device refuses a whole batch because of one file; then only that file is decoded by the CPU."""
    crop = RandomResizedCrop(32)
    files = [specials[kind].read_bytes() for kind in ("jpeg_420", "grayscale", "jpeg_444")]
    taken: list[torch.Tensor] = []

    def decode(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if any(len(tensor) == len(files[1]) for tensor in tensors):
            raise RuntimeError("no grayscale")
        taken.extend(tensors)
        return decode_whole(tensors)

    (images,) = Unpacker(CPU, find_decoder=lambda _: WholeImages(decode))(
        [[called_encoded(crop, data) for data in files]]
    )
    assert len(taken) == 2
    assert np.array_equal(images[1].permute(1, 2, 0).numpy(), called(crop, files[1]))


class Recorder:
    """A side stream that writes down in what order it is used."""

    is_async = True

    def __init__(self) -> None:
        self.log: list[str] = []

    def entered(self) -> Any:
        return nullcontext()

    def mark(self) -> Any:
        done = len(self.log)
        return SimpleNamespace(synchronize=lambda: self.log.append(f"waited for {self.log[:done].count('drawn')}"))

    def lead_consumer(self, mark: Any) -> None:
        del mark

    def lend(self, tensor: torch.Tensor) -> None:
        del tensor


def test_images_are_decoded_only_when_all_earlier_ones_are_drawn_even_those_of_a_failed_batch(
    specials: dict[str, Path],
) -> None:
    crop = ResizeCenterCrop(32, resize=200)
    good = called_encoded(crop, specials["jpeg_420"].read_bytes())
    bad = called_encoded(crop, damaged(specials["jpeg_444"].read_bytes()))
    recorder = Recorder()

    def decode(files: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        images = decode_whole(files)
        recorder.log.append("decoded")
        return images

    unpacker = Unpacker(CPU, find_decoder=lambda _: WholeImages(decode))
    unpacker.__dict__.update(_stream=recorder, _draw=lambda *_: recorder.log.append("drawn"))
    with pytest.raises(SampleError):
        unpacker([[good, bad]])
    recorder.log.append("next batch")
    unpacker([[good]])
    assert recorder.log == ["decoded", "drawn", "waited for 1", "next batch", "decoded", "drawn", "waited for 2"]


def test_a_device_that_decodes_nothing_is_warned_of(specials: dict[str, Path]) -> None:
    def refuse(_: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("not compiled with nvJPEG support")

    crop = RandomResizedCrop(32)
    files = [specials[kind].read_bytes() for kind in ("jpeg_420", "jpeg_444")]
    unpacker = Unpacker(CPU, find_decoder=lambda _: WholeImages(refuse))
    with pytest.warns(MploadWarning, match="the device decodes none of 2 JPEGs, .* not compiled with nvJPEG"):
        images = unpacker([[called_encoded(crop, data) for data in files]])[0]
    for image, data in zip(images, files, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), called(crop, data))


def test_other_lists_of_bytes_are_unchanged() -> None:
    batch = ([b"abc", b"de"], {"texts": ["x"], "none": []}, torch.zeros(2))
    unpacked = Unpacker(CPU)(batch)
    assert unpacked[0] == batch[0]
    assert unpacked[1] == batch[1]
    assert unpacked[2] is batch[2]


def test_only_crops_can_be_left_to_the_device() -> None:
    with pytest.raises(ArgumentError, match="crop must be a RandomResizedCrop or ResizeCenterCrop, got ImageDecoder"):
        GpuDecode(ImageDecoder())  # type: ignore[arg-type]
    assert GpuDecode(RandomResizedCrop(8, max_pixels=99)).limits.max_pixels == 99


@pytest.mark.processes
def test_a_loader_hands_encoded_images_over_without_a_copy_and_leaves_them_unchanged_while_they_are_held(
    photo_tree: Path,
) -> None:
    index = build_index(photo_tree, photo_tree.with_name("encoded.txt"))
    decode = GpuDecode(RandomResizedCrop(32), share=0.5)

    def dataset() -> MPDataset:
        return MPDataset(index, decode=decode, batch_size=4, shuffle=True, tail="ragged", topology=Topology())

    expected = [samples for samples, _ in dataset()]
    with MPLoader(dataset(), num_workers=2) as loader:
        held = [samples for samples, _ in loader]
    assert all(isinstance(sample, memoryview) for samples in held for sample in samples)
    assert [[bytes(sample) for sample in samples] for samples in held] == expected


def first_of_each(samples: list[tuple[Any, Any]]) -> list[Any]:
    return [type(image) for image, _ in samples]


@pytest.mark.processes
def test_a_callable_that_makes_batches_gets_bytes(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("collated.txt"))
    decode = GpuDecode(RandomResizedCrop(32))
    dataset = MPDataset(index, decode=decode, batch_size=2, collate=first_of_each, topology=Topology())
    with MPLoader(dataset, num_workers=1) as loader:
        assert next(iter(loader)) == [bytes, bytes]


@pytest.mark.processes
@pytest.mark.parametrize("collate", [Pad(), Flat(), {"image": Flat()}])
def test_encoded_images_are_not_joined_as_arrays_of_bytes(photo_tree: Path, collate: Any) -> None:
    index = build_index(photo_tree, photo_tree.with_name("joined.txt"))

    def dataset(**options: Any) -> MPDataset:
        return MPDataset(index, batch_size=2, shuffle=True, topology=Topology(), **options)

    expected, _ = next(iter(dataset(decode=RandomResizedCrop(32))))
    with MPLoader(dataset(decode=GpuDecode(RandomResizedCrop(32)), collate=collate), num_workers=1) as loader:
        found, _ = next(iter(DevicePrefetcher(loader, device="cpu", dtype=None)))
    assert torch.equal(found, expected)


def test_views_of_memory_that_are_no_images_are_passed_through() -> None:
    released = memoryview(b"abc")
    released.release()
    shaped = np.zeros((2, 2)).data
    batch = [[np.zeros(()).data, released, shaped], [memoryview(b"")]]
    assert Unpacker(CPU)(batch)[0][2] is shaped
