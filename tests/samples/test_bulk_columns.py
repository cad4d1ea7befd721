"""Samples with column decoders that are made chunk by chunk are those that are made one by one, failures included."""

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import Boxes, Json, Mask, MPDataset, RandomResizedCrop, RawBytes, ResizeCenterCrop, Text, Topology, Views
from mpload.images import many_masks
from mpload.samples import bulk_boxes, index_work
from mpload.samples.leaf_arrays import columns_of_leaves
from mpload.storage.local import LocalStorage
from mpload.storage.many import ManyReader
from tests.golden.make_formats import FOLDER
from tests.support.chunks import OneWorker
from tests.support.fuzz_seeds import write_seeds
from tests.support.hostile import HOSTILE_JSON
from tests.support.native import needs_native
from tests.support.photos import encode, photo
from tests.support.typed import read
from tests.support.typed_decoders import Told
from tests.support.value_files import png, value_files

pytestmark = [needs_native, pytest.mark.processes]

NUM_PLAIN, NUM_SAMPLES = 12, 72
COLUMNS = "image:path mask:path boxes:path number:int weight:float text:str note:str"
BASE: dict[str, Any] = {"image": RandomResizedCrop(24, scale=(0.3, 1)), "mask": Mask(), "boxes": Boxes("xywh")}


DECODERS: dict[str, dict[str, Any]] = {
    "image, mask, boxes": BASE,
    "the image comes last": {"boxes": Boxes("xyxy", values=("labels:int", "area:float")), "mask": Mask(dtype="uint8"),
                             "image": ResizeCenterCrop(16, exif_orientation=False)},
    "a user's decoders": {**BASE, "note": Told(), "boxes": Boxes("xywh", min_visible=0.3)},
    "a second image": {**BASE, "mask": RandomResizedCrop((8, 9), antialias=True), "text": Text()},
    "small lists": {**BASE, "boxes": Boxes("xywh", max_bytes=150)},
    "views": {**BASE, "views": Views(of="image", two=(2, RandomResizedCrop(8)))},
    "boxes as JSON": {"image": RandomResizedCrop(9), "mask": Mask(dtype="float32"), "boxes": Json()},
}  # fmt: skip


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an index of plain samples, then of others, each of them perhaps with a file that is odd or damaged."""
    folder = tmp_path_factory.mktemp("columns")
    write_seeds(folder / "photos")
    for path in FOLDER.iterdir():
        shutil.copy(path, folder / "photos")
    (folder / "plain").mkdir()
    rng = np.random.default_rng(0)
    for number in range(NUM_PLAIN):  # of the ratio of most of the other photos, so that masks belong to all of them
        pixels = photo(40 * (4 + number % 6), 56 * (4 + number % 6), rng)
        subsampling = "4:4:4" if number % 4 else "4:2:0"
        data = encode(Image.fromarray(pixels), "JPEG", subsampling=subsampling)
        (folder / f"plain/{number:02d}.jpg").write_bytes(data)
    masks = {name: data for name, (data, _) in value_files(30, 42).items()}
    masks |= {"empty": b"", "cut": masks["png_gray_8"][:-30], "colours": (FOLDER / "png_rgb.png").read_bytes()}
    box = '[{"bbox": [1, 2, 30, 20], "category_id": 1, "area": 3.5}]'
    texts = {f"hostile{number}": text for number, (text, _) in enumerate(HOSTILE_JSON)}
    texts |= {"none": "[]", "lists": "[[1, 2, 3, 4, 5]]", "accents": box.replace("area", "é"), "latin": "[é]"}
    texts |= {"size": f'{{"annotations": {box}, "width": 80, "height": 60}}', "negative": box.replace("30", "-3")}
    plain = sorted(str(path.relative_to(folder)) for path in folder.glob("plain/*"))
    lines = []
    (folder / "masks").mkdir()
    (folder / "boxes").mkdir()
    for name, data in masks.items():
        (folder / "masks" / name).write_bytes(data)
    for name, text in texts.items():
        (folder / "boxes" / name).write_bytes(text.encode("latin-1" if name == "latin" else "utf-8"))
    for number in range(NUM_PLAIN):
        ids = np.full((60, 84), number, np.uint8) + np.tri(60, 84, dtype=np.uint8)
        (folder / f"masks/plain{number}").write_bytes(png(ids, 8, 0, filters=[number % 5, 0]))
        objects = [
            {"bbox": [each, 2 * each, 9.5, 20], "category_id": each, "area": each / 3} for each in range(number % 5)
        ]
        (folder / f"boxes/plain{number}").write_text(json.dumps(objects))
    photos = sorted(str(path.relative_to(folder)) for path in folder.glob("photos/*.*"))
    odd = [photos, [f"masks/{name}" for name in masks], [f"boxes/{name}" for name in texts], ["7"], ["0.5", "1e3"]]
    odd = [[*names, *["missing"] * 4] if place < 3 else names for place, names in enumerate(odd)]
    odd += [["émile", r"a\ttab"], ["bad note", "émile"]]
    for number in range(NUM_SAMPLES):
        cells = [plain[number % NUM_PLAIN], f"masks/plain{number % NUM_PLAIN}", f"boxes/plain{number % NUM_PLAIN}"]
        cells += [str(number), str(number / 3), f"word {number}", f"note {number}"]
        if number >= NUM_PLAIN and rng.random() < 0.8:
            column = int(rng.choice([0, 1, 2, *range(len(odd))]))
            cells[column] = str(rng.choice(odd[column]))
        if number == NUM_SAMPLES - 1:
            cells[5] = "not UTF-8: \udcff"
        lines.append("\t".join(cells) + "\n")
    for name, some in ("all.txt", lines), ("plain.txt", lines[:NUM_PLAIN]):
        text = f"#mpload 1\n#columns {COLUMNS}\n{''.join(some)}"
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return folder / "all.txt"


def dataset(index: Path, decode: Any, **options: Any) -> MPDataset:
    size = NUM_PLAIN if index.name == "plain.txt" else NUM_SAMPLES
    options = {"shuffle": True, "batch_size": size, "tail": "ragged", "topology": Topology(), **options}
    return MPDataset(index, decode=decode, **options)


def made(worker: OneWorker, chunk_samples: int) -> tuple[Any, Any]:
    """Return the values of a batch that were made, and its failures."""
    size, failures = worker.source.batch_size, []
    for first in range(0, size, chunk_samples):
        failures += worker.fill(0, first, min(first + chunk_samples, size)).failures
    skipped = [failure.sample for failure in failures if not failure.details.get("substituted")]
    columns = columns_of_leaves(worker.source._template, worker.arrays, np.setdiff1d(np.arange(size), skipped))
    values = [[plain(value) for value in column] for column in columns.values()]
    return values, [(failure.sample, failure.cause, failure.details.get("bad")) for failure in failures]


def plain(value: Any) -> Any:
    is_array = isinstance(value, np.ndarray | np.generic)
    return (value.shape, value.dtype, value.tobytes()) if is_array else repr(value)  # JSON may hold NaNs


@pytest.mark.slow
@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize(
    ("name", "action"), [*itertools.product(DECODERS, ["skip"]), ("image, mask, boxes", "substitute")]
)
def test_chunks_are_the_same_as_samples_made_one_by_one(index: Path, name: str, action: str, is_far: bool) -> None:
    worker = OneWorker(dataset(index, DECODERS[name], on_error=action), is_far=is_far, outage_every=9)
    assert worker.work._bulk is not None
    found = [made(worker, NUM_SAMPLES)]
    worker.work.open(0)  # else chunks that were mostly declined are followed by some that are not tried
    found.append(made(worker, 5))
    values, failures = made(OneWorker(dataset(index, DECODERS[name], on_error=action)).without_bulk(), 16)
    assert found == [(values, failures)] * 2
    assert 3 < len(failures) < NUM_SAMPLES - 5
    assert all(cause.startswith("column '") for _, cause, _ in failures)


@pytest.mark.skipif(not (many_masks.NATIVE and bulk_boxes.NATIVE), reason="a native module is not built")
@pytest.mark.parametrize("name", ["image, mask, boxes", "the image comes last"])
@pytest.mark.parametrize("is_far", [False, True])
def test_plain_samples_are_never_made_one_by_one(index: Path, name: str, is_far: bool) -> None:
    chosen = dataset(index.with_name("plain.txt"), DECODERS[name])
    worker = OneWorker(chosen, is_far=is_far)
    worker.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    values, failures = made(worker, 5)
    assert (values, failures) == (made(OneWorker(chosen).without_bulk(), 5)[0], [])


@pytest.mark.slow
@pytest.mark.parametrize("arena_bytes", [1, 3_000, 20_000, 60_000, 150_000, 400_000])
@pytest.mark.parametrize("name", ["image, mask, boxes", "a second image"])
def test_samples_do_not_depend_on_how_many_files_are_read_at_once(
    index: Path, name: str, arena_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = dataset(index, DECODERS[name], on_error="skip")
    expected = made(OneWorker(chosen).without_bulk(), 16)
    monkeypatch.setattr(index_work, "ARENA_BYTES", arena_bytes)
    worker = OneWorker(chosen)
    assert len(worker.work._arena) == arena_bytes
    assert made(worker, NUM_SAMPLES) == expected


@pytest.mark.skipif(not (many_masks.NATIVE and bulk_boxes.NATIVE), reason="a native module is not built")
def test_all_files_of_a_chunk_are_read_with_one_call(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []  # and the sample that was noted last
    read = ManyReader.read

    def counted(self: ManyReader, area: Any, **options: Any) -> Any:
        found = read(self, area, **options)
        assert self._ranges.at is not None
        calls.append((len(found.lengths), self._ranges.at[0]))
        return found

    monkeypatch.setattr(ManyReader, "read", counted)
    made(OneWorker(dataset(index.with_name("plain.txt"), BASE)), NUM_PLAIN // 2)
    assert calls == [(18, 5), (18, 11)]


@pytest.mark.slow
@pytest.mark.skipif(not (many_masks.NATIVE and bulk_boxes.NATIVE), reason="a native module is not built")
@pytest.mark.parametrize("spans", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_only_shards_are_opened_as_shards_and_each_column_may_use_as_many(
    index: Path, spans: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = index.with_name("plain.txt").read_text(encoding="utf-8").splitlines()[2:]
    rows = [line.split("\t") for line in lines]
    for row, column in itertools.product(rows, spans):
        row[column] = f"0+{(index.parent / row[column]).stat().st_size}@{row[column]}"
    types = ["span" if column in spans else "path" for column in range(3)]
    header = "#mpload 1\n#columns image:{} mask:{} boxes:{} number:int weight:float text:str note:str\n".format(*types)
    text = index.with_name(f"spans{len(spans)}{spans[0]}.txt")
    text.write_text(header + "".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    opened: list[str] = []
    real = LocalStorage._shard

    def noting(self: LocalStorage, path: str) -> Any:
        opened.append(path)
        return real(self, path)

    monkeypatch.setattr(LocalStorage, "_shard", noting)
    storage = LocalStorage(index.parent, max_open_files=NUM_PLAIN)
    worker = OneWorker(dataset(text, BASE, batch_size=NUM_PLAIN, storage=storage))
    worker.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    opened.clear()  # of what was looked at before
    values, failures = made(worker, NUM_PLAIN)
    assert sorted(opened) == sorted(row[column].partition("@")[2] for row in rows for column in spans)
    assert (values, failures) == (made(OneWorker(dataset(text, BASE, batch_size=NUM_PLAIN)).without_bulk(), 5)[0], [])


def test_the_image_beside_a_users_decoder_is_not_made_again(index: Path) -> None:
    chosen = dataset(index.with_name("plain.txt"), DECODERS["a user's decoders"], shuffle=False)
    worker = OneWorker(chosen)
    needed: list[Any] = []
    read_rest = worker.work.pipeline._read_rest

    def watched(record: Any, ready: Any) -> Any:
        needed.append(sorted(ready.keys))
        return read_rest(record, ready)

    worker.work.pipeline._read_rest = watched  # type: ignore[method-assign]
    made(worker, 4)
    assert needed == [["image", "mask"] if many_masks.NATIVE else ["image"]] * NUM_PLAIN


def test_what_no_call_can_make_is_left_to_the_pipeline(index: Path) -> None:
    decode = {"image": RandomResizedCrop(8), "mask": Mask(), "boxes": Json()}
    for options in (
        {"decode": {**decode, "image": RandomResizedCrop(8, backend="simplejpeg")}},
        {"decode": {"image": RawBytes(), "mask": RawBytes(), "boxes": Json()}},
        {"decode": decode, "transform": dict},
    ):
        assert OneWorker(dataset(index.with_name("plain.txt"), **options)).work._bulk is None, options


@pytest.mark.parametrize("how", ["0", "1", "2"] if sys.platform == "linux" else [])
def test_batches_of_workers_are_those_of_the_dataset(index: Path, how: str) -> None:
    options = {"decode": DECODERS["a user's decoders"], "on_error": "skip"}
    expected = read(index.with_name("plain.txt"), "alone", **options)
    assert read(index.with_name("plain.txt"), how, **options) == expected
