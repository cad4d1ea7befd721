"""How far a worker reads ahead over a network, from how long requests and samples take."""

from itertools import pairwise

from mpload.storage.depths import DepthByLatency, UseTimes
from mpload.storage.latencies import Latencies

MS = 1_000_000


class Clock:
    now_ns = 1

    def __call__(self) -> int:
        return self.now_ns


def after(
    num_samples: int, *, latency_ms: float, use_ms: float, first_use_ms: float = 0.0, tenth_latency_ms: float = 0.0
) -> list[tuple[int, int]]:
    """Return depth and number of threads after each sample."""
    clock, latencies = Clock(), Latencies()
    uses = UseTimes(clock)
    depths = DepthByLatency(latencies, uses, max_threads=128)
    found = []
    for number in range(num_samples):
        uses.asked()
        latencies.add(round((tenth_latency_ms if number % 10 == 9 and tenth_latency_ms else latency_ms) * MS), None)
        depths.requested(is_late=False)
        uses.given(1)
        uses.begun()
        clock.now_ns += round((first_use_ms if number < 2 and first_use_ms else use_ms) * MS)
        found.append((depths.depth, depths.num_threads))
    return found


def test_a_server_gets_one_request_until_it_has_answered_and_then_soon_as_many_as_are_needed() -> None:
    found = after(200, latency_ms=50, use_ms=0.5)
    assert Latencies().mean_ns == 0
    assert DepthByLatency(Latencies(), UseTimes(Clock()), max_threads=128).depth == 1
    assert found[0] == (16, 16)
    assert all(later[0] <= 2 * depth[0] and later[1] <= 2 * depth[1] for depth, later in pairwise(found))
    depth, num_threads = found[-1]
    assert 100 < num_threads <= 128  # 50 ms of 0.5 ms
    assert depth > num_threads


def test_first_times_that_mislead_do_not_count_for_long() -> None:
    usual, misled = after(200, latency_ms=50, use_ms=2), after(200, latency_ms=50, use_ms=2, first_use_ms=0.1)
    assert max(depth for depth, _ in misled[64:]) <= 1.3 * max(depth for depth, _ in usual)
    assert abs(misled[-1][0] - usual[-1][0]) <= 0.1 * usual[-1][0]


def test_as_few_requests_as_suffice_are_made_at_once_of_a_server_that_answers_soon() -> None:
    depth, num_threads = after(200, latency_ms=0.2, use_ms=1)[-1]
    assert num_threads <= 6
    assert depth <= 32


def test_samples_are_read_ahead_until_the_second_request_for_a_late_one_has_been_made() -> None:
    depth, num_threads = after(400, latency_ms=10, tenth_latency_ms=20, use_ms=1)[-1]
    assert 50 <= depth <= 100  # a request is late after 50 ms
    assert num_threads <= 20
    assert after(400, latency_ms=10, tenth_latency_ms=400, use_ms=1)[-1][0] <= 150
