"""The samples that are to be read ahead, and how much memory and how many reads they take."""

from collections.abc import Callable, Collection, Iterable, Sequence

from mpload.storage.fetches import Fetch, Piece
from mpload.storage.latencies import Latencies
from mpload.units import KIB

__all__ = ["FileSizes", "PlannedReads"]

_GUESSED_FILE_BYTES = 128 * KIB


class FileSizes:
    """How large whole files are, which is not known before they are read."""

    def __init__(self) -> None:
        self._mean_bytes = float(_GUESSED_FILE_BYTES)

    def note(self, parts: Iterable[tuple[Piece, bytes | None]]) -> None:
        """Note the bytes of ranges that were read. Those that are no whole files are passed over."""
        for piece, part in parts:
            if piece.length_bytes is None and part is not None:
                self._mean_bytes += (len(part) - self._mean_bytes) / 16

    def expected_bytes(self, fetch: Fetch) -> int:
        """Return the number of bytes of a read: the mean so far if it is of a whole file."""
        num_bytes = fetch.item.length_bytes
        return round(self._mean_bytes) if num_bytes is None else num_bytes


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

    def has_begun(self, sample_id: int) -> bool:
        """Return whether a read of a sample has begun."""
        return any(piece.fetch.is_begun for piece in self.pieces.get(sample_id, ()))

    def failing_like(self, failed_ns: int) -> list[int]:
        """Return the samples with a read that has failed, or has already taken half as long as another that failed."""
        return [
            sample_id
            for sample_id, pieces in self.pieces.items()
            if any(piece.fetch.is_failing_like(failed_ns, self._clock_ns()) for piece in pieces)
        ]

    def cancel_last(self, sample_ids: Collection[int], *, until: Callable[[], bool]) -> list[int]:
        """Cancel reads that have begun, of the last sample first, until that is enough.

        Args:
            sample_ids: the samples whose reads may be cancelled. Those in use are left alone.
            until: returns whether it is enough.

        Returns:
            The samples whose reads were cancelled, in the order planned. They have no pieces that can be used.
        """
        cancelled = []
        for sample_id, pieces in reversed(self.pieces.items()):
            if until():
                break
            if sample_id in sample_ids and self.has_begun(sample_id) and not any(piece.is_used for piece in pieces):
                self.release_pieces(pieces)
                cancelled.append(sample_id)
        return cancelled[::-1]

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
