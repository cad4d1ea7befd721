"""The tests that every storage must pass: a class with one subclass per storage."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from mpload.errors import OutsideRootError, StorageError
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange
from tests.support.children import check_in_a_child

__all__ = ["StorageContract", "Stored"]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A storage with known contents.

    Attributes:
        make: Opens the storage; takes the options `max_bytes` and `allow_outside_root`.
        data: Ranges and their bytes, of at least two different lengths, the greatest at most 1,000 bytes.
        missing: Ranges that cannot be read, each with a pattern that its error must match.
        outside: Ranges outside the root, and their bytes.
    """

    make: Callable[..., Storage]
    data: dict[ByteRange, bytes]
    missing: list[tuple[ByteRange, str]]
    outside: dict[ByteRange, bytes] = field(default_factory=dict)


class StorageContract:
    """Each subclass defines a fixture `stored`."""

    @pytest.mark.processes
    def test_bytes_are_returned_in_the_order_of_the_ranges_every_time(self, stored: Stored) -> None:
        storage = stored.make()
        items = list(stored.data)
        ranges = [*items[1:], *items]
        for _ in range(2):
            assert storage.read(ranges) == [stored.data[item] for item in ranges]
        assert storage.read([]) == []

    def test_a_missing_range_is_an_error_and_does_not_affect_later_reads(self, stored: Stored) -> None:
        storage, (item, data) = stored.make(), next(iter(stored.data.items()))
        for missing, message in stored.missing:
            with pytest.raises(StorageError, match=message):
                storage.read([item, missing])
            assert storage.read([item]) == [data]

    def test_no_path_leads_outside_the_root_unless_that_is_allowed(self, stored: Stored) -> None:
        for item, data in stored.outside.items():
            with pytest.raises(OutsideRootError):
                stored.make().read([item])
            assert stored.make(allow_outside_root=True).read([item]) == [data]

    def test_a_range_that_is_too_large_is_refused(self, stored: Stored) -> None:
        largest = max(len(data) for data in stored.data.values())
        storage = pickle.loads(pickle.dumps(stored.make(max_bytes=largest - 1)))  # a copy has the same limit
        for item, data in stored.data.items():
            if len(data) == largest:
                with pytest.raises(StorageError, match=f"its {largest:,} bytes exceed max_bytes={largest - 1:,}"):
                    storage.read([item])
            else:
                assert storage.read([item]) == [data]

    def test_a_pickled_storage_reads_the_same(self, stored: Stored) -> None:
        storage = stored.make()
        storage.read(list(stored.data))
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.read(list(stored.data)) == list(stored.data.values())

    @pytest.mark.processes
    def test_a_forked_process_reads_the_same(self, stored: Stored) -> None:
        storage = stored.make()
        storage.read(list(stored.data))
        for _ in range(2):
            check_in_a_child(lambda: storage.read(list(stored.data)) == list(stored.data.values()))
        assert storage.read(list(stored.data)) == list(stored.data.values())

    def test_max_parallel_reads_threads_can_read_at_the_same_time(self, stored: Stored) -> None:
        def read_all(storage: Storage) -> bool:
            return all(storage.read([item]) == [data] for item, data in stored.data.items())

        storages = [stored.make() for _ in range(2)]  # of the same files
        num_threads = getattr(storages[0], "max_parallel_reads", 1)
        with ThreadPoolExecutor(num_threads) as some, ThreadPoolExecutor(num_threads) as others:
            turns = [(some, storages[0]), (others, storages[1])] * max(num_threads, 64)
            done = [threads.submit(read_all, storage) for threads, storage in turns]
            assert all(turn.result() for turn in done)
