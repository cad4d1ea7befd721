"""torch's DataLoader over objects: each worker reads the objects of a batch in parallel, and then decodes them."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset

from peers.crops import crop_with
from peers.dataloaders import on_loader
from peers.net import objects_url, repeated_keys
from peers.race import Contestant, Race

__all__ = ["CONTESTANTS"]

ReadAll = Callable[[list[str]], list[bytes]]
"""Reads the objects with these keys."""


def with_obstore(num_reads: int) -> ReadAll:
    """Return a function that has up to `num_reads` requests in flight."""
    import obstore
    from obstore.store import from_url

    store = from_url("s3://photos", client_options={"allow_http": True})
    loop = asyncio.new_event_loop()

    async def read(keys: list[str]) -> list[bytes]:
        permits = asyncio.Semaphore(num_reads)

        async def read_one(key: str) -> bytes:
            async with permits:
                answer = await obstore.get_async(store, key)
                return bytes(await answer.bytes_async())

        return await asyncio.gather(*map(read_one, keys))

    return lambda keys: loop.run_until_complete(read(keys))


def with_fsspec() -> ReadAll:
    """Return a function that lets fsspec read all objects at once, with its HTTP file system."""
    import fsspec  # type: ignore[import-untyped]

    files = fsspec.filesystem("http", skip_instance_cache=True)

    def read(keys: list[str]) -> list[bytes]:
        urls = [f"{objects_url()}/photos/{key}" for key in keys]
        found = files.cat(urls)
        return [found[url] for url in urls]

    return read


class Objects(Dataset[Any]):
    """Reads through what `connect` returns, which is made in the worker: the clients have threads."""

    def __init__(self, race: Race, library: str, *, connect: Callable[[], ReadAll]) -> None:
        self.samples = repeated_keys(race)
        self.connect = connect
        self.read: ReadAll | None = None
        self.crop = crop_with(library, race.output)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        self.read = self.read or self.connect()
        keys, labels = zip(*(self.samples[number] for number in numbers), strict=True)
        return [(self.crop(data), label) for data, label in zip(self.read(list(keys)), labels, strict=True)]


def on_objects(connect: Callable[[], ReadAll]) -> Contestant:
    return on_loader(DataLoader, partial(Objects, connect=connect), "simplejpeg", shuffle=True)


CONTESTANTS: dict[str, Contestant] = {
    "DataLoader, obstore, 32 reads at once": on_objects(lambda: with_obstore(32)),
    "DataLoader, obstore, 64 reads at once": on_objects(lambda: with_obstore(64)),
    "DataLoader, fsspec": on_objects(with_fsspec),
}
