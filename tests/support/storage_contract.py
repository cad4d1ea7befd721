"""What every storage promises: a class of tests, subclassed for each."""

import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from mpload.errors import OutsideRootError, StorageError
from mpload.storage.protocols import Storage
from mpload.storage.ranges import ByteRange

__all__ = ["StorageContract", "Stored", "check_in_a_child"]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A storage that was filled.

    Attributes:
        make: Opens it, with the options `max_bytes` and `allow_outside_root`.
        data: What lies where; of more than one length, the longest at most 1,000 bytes.
        missing: What is not there, and a part of the error.
        outside: What lies outside of the root, and its bytes.
    """

    make: Callable[..., Storage]
    data: dict[ByteRange, bytes]
    missing: list[tuple[ByteRange, str]]
    outside: dict[ByteRange, bytes] = field(default_factory=dict)


def check_in_a_child(check: Callable[[], bool]) -> None:
    """Fork, and have the child make a check, in 20 s at most."""
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class StorageContract:
    """Subclasses have a fixture `stored`."""

    @pytest.mark.processes
    def test_bytes_come_in_the_order_asked_each_time(self, stored: Stored) -> None:
        storage = stored.make()
        items = list(stored.data)
        ranges = [*items[1:], *items]
        for _ in range(2):
            assert storage.read(ranges) == [stored.data[item] for item in ranges]
        assert storage.read([]) == []

    def test_what_is_not_there_says_so_and_harms_no_other_read(self, stored: Stored) -> None:
        storage, (item, data) = stored.make(), next(iter(stored.data.items()))
        for missing, message in stored.missing:
            with pytest.raises(StorageError, match=message):
                storage.read([item, missing])
            assert storage.read([item]) == [data]

    def test_no_path_leads_out_of_the_root_unless_that_is_wished(self, stored: Stored) -> None:
        for item, data in stored.outside.items():
            with pytest.raises(OutsideRootError):
                stored.make().read([item])
            assert stored.make(allow_outside_root=True).read([item]) == [data]

    def test_what_is_too_large_is_not_read(self, stored: Stored) -> None:
        largest = max(len(data) for data in stored.data.values())
        storage = pickle.loads(pickle.dumps(stored.make(max_bytes=largest - 1)))  # a copy has the same bound
        for item, data in stored.data.items():
            if len(data) == largest:
                with pytest.raises(StorageError, match=f"its {largest:,} bytes exceed max_bytes={largest - 1:,}"):
                    storage.read([item])
            else:
                assert storage.read([item]) == [data]

    def test_a_pickled_one_reads_the_same(self, stored: Stored) -> None:
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

    def test_as_many_threads_as_it_says_read_at_once(self, stored: Stored) -> None:
        def read_all(storage: Storage) -> bool:
            return all(storage.read([item]) == [data] for item, data in stored.data.items())

        storages = [stored.make() for _ in range(2)]  # of the same files
        num_threads = getattr(storages[0], "max_parallel_reads", 1)
        with ThreadPoolExecutor(num_threads) as some, ThreadPoolExecutor(num_threads) as others:
            turns = [(some, storages[0]), (others, storages[1])] * (2 * num_threads)
            done = [threads.submit(read_all, storage) for threads, storage in turns]
            assert all(turn.result() for turn in done)
