"""Objects at az URLs: read, listed and indexed from Microsoft's emulator, if it is installed."""

from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import StorageError
from mpload.storage.ranges import ByteRange, Span
from mpload.storage.remote import RemoteObjects, list_objects
from tests.support.azurite import azurite
from tests.support.photos import make_photo_tree


@pytest.mark.processes
def test_a_container_is_listed_and_read_and_its_index_opened(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    make_photo_tree(folder, num_images=6, num_classes=2, seed=0)
    objects = {f"train/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*.*")}
    build_index(folder, tmp_path / "local.txt")
    lines = [line for line in (tmp_path / "local.txt").read_text().splitlines() if not line.startswith("#root")]
    text = "\n".join([lines[0], "#root ../train", *lines[1:], ""]).encode()
    with azurite({**objects, "lists/x.txt": text}):
        sizes = {f"train/{path}": num_bytes for path, num_bytes in list_objects("az://photos/train")}
        assert sizes == {path: len(data) for path, data in objects.items()}
        storage, name = RemoteObjects("az://photos"), min(objects)
        assert storage.read([ByteRange(name), Span(name, 5, 10)]) == [objects[name], objects[name][5:15]]
        with pytest.raises(StorageError, match="no such object"):
            storage.read([ByteRange("missing")])
        build_index("az://photos/train", tmp_path / "listed.txt")
        assert open_index("az://photos/lists/x.txt").fingerprint == open_index(tmp_path / "listed.txt").fingerprint

        def samples(index: str) -> list[bytes]:
            dataset = MPDataset(index, decode=RawBytes(), batch_size=2, topology=Topology())
            with MPLoader(dataset, num_workers=1) as loader:
                return [image for images, _ in loader for image in images]

        assert samples("az://photos/lists/x.txt") == samples(str(tmp_path / "local.txt"))
