"""Laws of the number of workers that a loader chooses, with simulated work and 20% noise."""

from dataclasses import replace
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload.loader.scaling import Bounds, ScalerState, Window, decide, suited_to_cores
from tests.support.simulated_loader import SimulatedLoader, Work, best_rate, noisy

WAITS = Work(wait_seconds=0.1)
COMPUTES = Work(compute_seconds=0.005)
MIXED = Work(wait_seconds=0.01, compute_seconds=0.005)
LIMITED_STORAGE = Work(wait_seconds=0.05, storage_samples_per_second=300)
SLOW_CONSUMER = Work(wait_seconds=0.05, consumer_samples_per_second=100)
MOVING_HEAD = Work(wait_seconds=0.01, storage_samples_per_second=400, is_slowed_by_competition=True)
FEW_SLOTS = Work(wait_seconds=0.1, slots_for_workers=10)
ALL = [WAITS, COMPUTES, MIXED, LIMITED_STORAGE, SLOW_CONSUMER, MOVING_HEAD, FEW_SLOTS]
SEEDS = range(30)
TWO_CORES = Bounds(num_cores=2, max_workers=64)


def runs(work: Work, *, seconds: float = 60.0, bounds: Bounds = TWO_CORES) -> list[SimulatedLoader]:
    """Return loaders that have run a work with different noise: fewer of them if they run for long."""
    seeds = SEEDS if seconds < 100 else SEEDS[:10]
    return [SimulatedLoader(bounds=bounds, noise=noisy(seed)).run(work, seconds=seconds) for seed in seeds]


@pytest.mark.parametrize("work", ALL)
def test_80_percent_of_the_best_rate_is_reached_within_10_seconds(work: Work) -> None:
    times = [loader.seconds_to(work, share=0.8) for loader in runs(work)]
    assert max(times) < 10


@pytest.mark.parametrize("num_cores", [1, 2, 8, 32])
@pytest.mark.parametrize("work", [COMPUTES, replace(COMPUTES, neighbours=1)])
def test_work_that_computes_has_one_worker_per_core_from_the_beginning(work: Work, num_cores: int) -> None:
    for loader in runs(work, bounds=Bounds(num_cores=num_cores, max_workers=64)):
        assert set(loader.last(100)) == {num_cores}


@pytest.mark.parametrize("work", ALL)
def test_trials_and_mistakes_together_cost_less_than_a_tenth_of_the_best_rate(work: Work) -> None:
    shares = []
    for loader in runs(work, seconds=180):
        numbers = [number for seconds, number in loader.history if seconds > 20]
        rates = [min(work.rate(number, num_cores=2), work.consumer_samples_per_second) for number in numbers]
        shares.append(mean(rates) / best_rate(work, TWO_CORES))
    assert min(shares) > 0.75
    assert mean(shares) > 0.9


def test_noise_takes_hardly_any_worker_from_work_that_waits() -> None:
    histories = [[number for _, number in loader.history] for loader in runs(WAITS, seconds=300)]
    assert sum(numbers != sorted(numbers) for numbers in histories) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("work", ALL)
def test_the_number_of_workers_does_not_oscillate(work: Work) -> None:
    early, late = [], []
    for loader in runs(work, seconds=1200):
        early.append(loader.num_changes() - loader.num_changes(since=300))
        late.append(loader.num_changes(since=900))
    assert mean(late) < 3
    assert sum(late) <= sum(early)


def test_work_that_changes_from_computing_to_waiting_gets_more_workers_and_loses_them_again() -> None:
    for loader in runs(COMPUTES, seconds=60):
        loader.run(WAITS, seconds=30)
        assert loader.seconds_to(WAITS, share=0.8, since=60) < 12
        loader.run(COMPUTES, seconds=30)
        back = next(seconds for seconds, number in loader.history if seconds > 90 and number <= 3)
        assert back - 90 < 5
        assert set(loader.last(10)) == {2}


def test_work_that_becomes_slower_is_tried_with_more_workers_even_if_that_did_not_help_before() -> None:
    slower = Work(wait_seconds=0.5)
    for loader in runs(LIMITED_STORAGE, seconds=300):
        loader.state = replace(loader.state, num_workers=16)
        loader.run(slower, seconds=20)
        assert loader.seconds_to(slower, share=0.8, since=300) < 15


def test_steps_that_failed_do_not_count_any_more_after_the_work_has_computed() -> None:
    for loader in runs(Work(wait_seconds=0.05, storage_samples_per_second=40), seconds=300):
        loader.run(COMPUTES, seconds=10)
        start = loader.seconds
        loader.run(WAITS, seconds=30)
        assert loader.seconds_to(WAITS, share=0.8, since=start) < 12


def test_a_consumer_that_waits_a_little_gets_a_few_more_workers() -> None:
    almost = Work(wait_seconds=0.1, consumer_samples_per_second=120)
    state = ScalerState(num_workers=10)
    for _ in range(2):
        state = decide(almost.window(10, num_cores=2), state, TWO_CORES)
    assert 12 <= state.num_workers <= 15


def test_workers_that_are_needed_again_and_again_are_kept() -> None:
    loader = SimulatedLoader(bounds=TWO_CORES)
    for _ in range(60):
        loader.run(replace(WAITS, consumer_samples_per_second=400), seconds=15)
        loader.run(replace(WAITS, consumer_samples_per_second=80), seconds=15)
    assert min(loader.last(300)) >= 40


def test_a_slow_consumer_gets_no_more_workers_than_it_needs() -> None:
    for loader in runs(SLOW_CONSUMER):
        assert max(loader.last(1000)) <= 24  # five would do if they never had a slow second


def test_workers_are_stopped_when_the_consumer_becomes_the_limit() -> None:
    for loader in runs(WAITS, seconds=20):
        assert loader.state.num_workers > 32
        loader.run(replace(WAITS, consumer_samples_per_second=80), seconds=60)
        assert loader.state.num_workers <= 32
        assert WAITS.rate(loader.state.num_workers, num_cores=2) >= 80


def test_storage_with_a_moving_head_is_not_given_more_requests_than_help() -> None:
    for loader in runs(MOVING_HEAD):
        assert sum(number > 16 for number in loader.last(60)) < 20


def test_one_bad_window_changes_nothing() -> None:
    steady = SimulatedLoader(bounds=TWO_CORES).run(WAITS, seconds=40)
    for bad in range(20):
        draws = iter([0.1 if window == bad else 1.0 for window in range(1000)])
        loader = SimulatedLoader(bounds=TWO_CORES, noise=lambda draws=draws: next(draws)).run(WAITS, seconds=40)  # type: ignore[misc]
        assert loader.state.num_workers == steady.state.num_workers == 64
        numbers = [number for _, number in loader.history]
        assert numbers == sorted(numbers)


def test_workers_grow_by_doubling_at_most() -> None:
    numbers = [number for _, number in SimulatedLoader(bounds=TWO_CORES).run(WAITS, seconds=30).history]
    assert sorted(set(numbers)) == [2, 4, 8, 16, 32, 64]


@settings(max_examples=300)
@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 128),
    st.tuples(*[st.floats(0, 1) for _ in range(4)]),
    st.integers(0, 10_000),
)
def test_the_number_is_always_within_its_bounds(
    number: int, num_cores: int, max_workers: int, shares: tuple[float, ...], num_samples: int
) -> None:
    running, delayed, idle, wait = shares
    state = ScalerState(num_workers=number)
    for _ in range(20):
        workers = state.num_workers
        window = Window(
            seconds=1.0,
            num_samples=num_samples,
            wait_seconds=wait,
            running=running * workers,
            delayed=delayed * (1 - running) * workers,
            idle=idle * workers,
            occupied=(1 - idle) * workers,
        )
        state = decide(window, state, Bounds(num_cores=num_cores, max_workers=max_workers))
        assert 1 <= state.num_workers <= max(max_workers, 1)
        assert state.num_workers <= max(number, max_workers)
        assert state.num_workers <= 2 * workers


@pytest.mark.parametrize(
    ("computing", "num_cores", "suited"),
    [(1.0, 4, 4), (0.95, 4, 4), (0.5, 4, 10), (1 / 3, 2, 8), (0.001, 2, 2400)],
)
def test_workers_that_wait_more_need_more_of_them_to_fill_the_cores(
    computing: float, num_cores: int, suited: int
) -> None:
    window = Window(
        seconds=1.0, num_samples=9, wait_seconds=1.0, running=2 * computing, delayed=0.0, idle=0.0, occupied=2.0
    )  # fmt: skip
    assert suited_to_cores(window, num_workers=2, num_cores=num_cores) == suited
    contended = replace(window, running=4 * computing, delayed=6.0)
    assert suited_to_cores(contended, num_workers=10, num_cores=num_cores) == suited


def test_simulation_agrees_with_arithmetic() -> None:
    """The judge of the tests above: waiting workers scale, computing ones fill the cores, and delays are seen."""
    assert WAITS.rate(10, num_cores=2) == pytest.approx(100)
    assert COMPUTES.rate(10, num_cores=2) == pytest.approx(400)
    assert MIXED.rate(3, num_cores=2) == pytest.approx(200)
    window = COMPUTES.window(10, num_cores=2)
    assert window.running == pytest.approx(2)
    assert window.delayed == pytest.approx(8)
