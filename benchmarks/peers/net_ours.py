"""mpload over objects of a bucket or a web server, and over tar shards in a bucket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mpload
from peers.net import TIMES, bucket_listing, objects_url
from peers.race import CROP, Batch, Contestant, Epoch, Race

__all__ = ["CONTESTANTS", "prepare"]

SHARD_BYTES = 8 << 20


def prepare(data: Path) -> None:
    """Write an index of the objects, and pack them into tar shards."""
    lines = [f"{key}\t{label}\n" for key, label in sorted(bucket_listing(data))]
    for root, times in ((data / "photos", 1), ("s3://photos", TIMES)):
        header = f"#mpload 1\n#root {root}\n#columns image:path label:int\n"
        (data / f"photos-{times}.txt").write_text(header + "".join(lines) * times, encoding="utf-8")
    mpload.open_index(data / f"photos-{TIMES}.txt")
    options = mpload.PackOptions(shard_bytes=SHARD_BYTES, shuffle_seed=0)
    packed = mpload.pack_index(data / "photos-1.txt", data / "packed", options)
    head, _, lines_of_spans = packed.read_text(encoding="utf-8").partition("#columns")
    columns, _, spans = lines_of_spans.partition("\n")
    (data / "spans.txt").write_text(f"{head}#root s3://packed\n#columns{columns}\n{spans * TIMES}", encoding="utf-8")
    mpload.open_index(data / "spans.txt")


def ours(index: str, shuffle: Any) -> Contestant:
    def start(race: Race) -> Epoch:
        dataset = mpload.MPDataset(
            race.data / index,
            decode=mpload.RandomResizedCrop(CROP),
            batch_size=race.batch_size,
            shuffle=shuffle,
            tail="drop",
        )
        loader = mpload.MPLoader(dataset, num_workers=race.num_workers)

        def epoch(number: int) -> Iterator[Batch]:
            loader.set_epoch(number)
            yield from loader

        return epoch

    return Contestant(start=start, library="mpload")


def ours_at_urls() -> Contestant:
    """Return mpload over the same objects at the http URL that the environment names."""

    def start(race: Race) -> Epoch:
        url = objects_url()
        index = race.data / f"photos-{urlsplit(url).port}.txt"
        text = (race.data / f"photos-{TIMES}.txt").read_text(encoding="utf-8")
        index.write_text(text.replace("#root s3://", f"#root {url}/", 1), encoding="utf-8")
        return ours(index.name, shuffle=True).start(race)

    return Contestant(start=start, library="mpload")


CONTESTANTS: dict[str, Contestant] = {
    "mpload": ours(f"photos-{TIMES}.txt", shuffle=True),
    "mpload, http": ours_at_urls(),
    "mpload, tar shards": ours("spans.txt", shuffle=mpload.BlockShuffle(block_samples=128, window_blocks=8)),
}
