"""litData over the raw objects of a bucket."""

from pathlib import Path
from typing import Any

import litdata
from litdata.raw.indexer import BaseIndexer, FileMetadata
from litdata.streaming import downloader
from torch.utils.data import DataLoader

from peers.crops import crop_with
from peers.dataloaders import on_loader
from peers.net import TIMES, bucket_listing
from peers.race import Contestant, Race

__all__ = ["CONTESTANTS"]

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001  it knows only servers with TLS


class Listing(BaseIndexer):  # type: ignore[misc]
    """Takes the list of objects from the folder that is served, since listing a bucket is not measured."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def discover_files(self, input_dir: str, storage_options: Any) -> list[FileMetadata]:
        del storage_options
        return [
            FileMetadata(path=f"{input_dir.rstrip('/')}/{key}", size=(self.data / "photos" / key).stat().st_size)
            for key, _ in sorted(bucket_listing(self.data))
        ]

    def build_or_load_index(self, input_dir: str, cache_dir: str, storage_options: Any, *_: Any) -> Any:
        del cache_dir
        return self.discover_files(input_dir, storage_options)


class Photos(litdata.StreamingRawDataset):  # type: ignore[misc]
    def __init__(self, race: Race, library: str) -> None:
        self.labels = [label for _, label in sorted(bucket_listing(race.data))]
        self.crop = crop_with(library, race.output)
        super().__init__(
            "s3://photos",
            cache_dir=str(race.data / "lit_cache"),
            indexer=Listing(race.data),
            max_concurrent_downloads=race.batch_size,
            max_prefetch=0,  # it looks ahead only in epochs without a shuffle
            hedge_delay=0.1,
        )

    def setup(self, files: list[FileMetadata]) -> list[FileMetadata]:
        return files * TIMES

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        found = super().__getitems__(numbers)
        return [
            (self.crop(data), self.labels[number % len(self.labels)])
            for data, number in zip(found, numbers, strict=True)
        ]


CONTESTANTS: dict[str, Contestant] = {
    "litData, raw objects": on_loader(DataLoader, Photos, "simplejpeg", shuffle=True),
}
