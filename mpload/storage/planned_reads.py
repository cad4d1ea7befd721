"""The samples that are to be read ahead, and how much memory and how many reads they take."""

from collections.abc import Callable, Iterable, Sequence

from mpload.storage.fetches import Fetch, Piece
from mpload.storage.latencies import Latencies

__all__ = ["PlannedReads"]


class PlannedReads:
    """The pieces of samples that are to be read ahead, and counts of those that have begun.

    Args:
        latencies: where to note the time of each read when its bytes are used.
        clock_ns: the clock.
    """

    def __init__(self, latencies: Latencies, clock_ns: Callable[[], int]) -> None:
        self.pieces: dict[int, list[Piece]] = {}
        """By sample_id, in the order planned."""
        self.held_bytes = 0
        """Bytes of the reads that have begun and are still wanted."""
        self.kept_bytes = 0
        """Bytes of ranges that are in use, and not released yet."""
        self.num_ahead = 0
        """Ranges whose read has begun and that have not been requested yet."""
        self._latencies = latencies
        self._clock_ns = clock_ns

    def begin(self, fetch: Fetch, num_bytes: int) -> None:
        """Count a read of so many bytes that is about to begin."""
        fetch.begin()
        fetch.held_bytes = num_bytes
        self.held_bytes += num_bytes
        self.num_ahead += fetch.num_wanting

    def use(self, sample_id: int) -> bool:
        """Count the ranges of a sample as in use, as far as their reads have begun. Return whether none was before."""
        pieces = self.pieces[sample_id]
        is_first = not any(piece.is_used for piece in pieces)
        for piece in pieces:
            if piece.fetch.is_begun and not piece.is_used:
                piece.is_used = True
                self.num_ahead -= 1
                self.kept_bytes += piece.num_bytes
                self._note_time(piece.fetch)
        return is_first

    def release(self, sample_ids: Iterable[int]) -> None:
        """Forget samples, and let go of their bytes."""
        for sample_id in sample_ids:
            self.release_pieces(self.pieces.pop(sample_id, ()))

    def release_pieces(self, pieces: Sequence[Piece]) -> None:
        """Let go of bytes, and cancel reads, unless other samples want them too."""
        for piece in pieces:
            fetch = piece.fetch
            fetch.num_wanting -= 1
            if fetch.is_begun:
                self.num_ahead -= not piece.is_used
                if not fetch.num_wanting:
                    self.held_bytes -= fetch.held_bytes
                    self._note_time(fetch)
                    fetch.drop()

    def _note_time(self, fetch: Fetch) -> None:
        if fetch.data is not None and not fetch.is_timed:
            fetch.is_timed = True
            self._latencies.add(fetch.read_ns or self._clock_ns() - fetch.began_ns, fetch.item.length_bytes)
