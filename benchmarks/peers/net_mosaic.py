"""mosaicml-streaming over its own shards in a bucket, which it copies to a local folder once."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from streaming import StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from peers.crops import crop_with
from peers.dataloaders import on_loader
from peers.mosaic import write_shards
from peers.net import TIMES
from peers.race import Contestant, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS", "prepare"]

SHARD_BYTES = 8 << 20


def prepare(data: Path) -> None:
    """Write the shards. Each gets several names, since the contestant never reads the same shard twice."""
    samples = paths_and_labels(Race(data=data, output=Output.BYTES, batch_size=1, num_workers=0))
    random.Random(0).shuffle(samples)
    bucket = data / "mds"
    write_shards(bucket, samples, size_limit=SHARD_BYTES)
    listing = json.loads((bucket / "index.json").read_text(encoding="utf-8"))
    shards = []
    for time in range(TIMES):
        for shard in listing["shards"]:
            name = shard["raw_data"]["basename"]
            alias = f"{time}-{name}"
            os.link(bucket / name, bucket / alias)
            shards.append(shard | {"raw_data": shard["raw_data"] | {"basename": alias}})
    (bucket / "index.json").write_text(json.dumps(listing | {"shards": shards}), encoding="utf-8")


class Photos(StreamingDataset):  # type: ignore[misc]
    def __init__(self, race: Race, library: str) -> None:
        local = race.data / "mds_local"
        shutil.rmtree(local, ignore_errors=True)
        clean_stale_shared_memory()  # of an earlier process, which was killed
        super().__init__(
            remote="s3://mds",
            local=str(local),
            shuffle=True,
            shuffle_block_size=2000,
            batch_size=race.batch_size,
        )
        for stream in self.streams:  # else forked workers share a connection, and get each other's shards
            stream._downloader.clean_up()  # noqa: SLF001
        self.crop = crop_with(library, race.output)

    def __getitem__(self, number: int) -> Any:
        sample = super().__getitem__(number)
        return self.crop(sample["image"]), sample["label"]


CONTESTANTS: dict[str, Contestant] = {
    "mosaicml-streaming": on_loader(DataLoader, Photos, "simplejpeg"),
}
