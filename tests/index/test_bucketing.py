"""Edges and shapes of buckets, and arguments that contradict each other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mpload import ArgumentError, Buckets
from mpload.index.edges import aspect_shapes, least_padding_edges

LENGTHS = np.random.default_rng(0).lognormal(4, 0.6, 400).astype(int) + 1


def best_padding(values: np.ndarray[Any, Any], num_buckets: int) -> float:
    """Return the least sum of padded lengths, by trying all edges."""
    edges = np.unique(values)
    best = {0: 0.0}
    counts = [0, *np.searchsorted(values, edges, side="right").tolist()]
    for _ in range(num_buckets):
        best = {
            stop: min(
                cost + edges[stop - 1] * (counts[stop] - counts[start]) for start, cost in best.items() if start < stop
            )
            for stop in range(1, len(edges) + 1)
            if any(start < stop for start in best)
        } | ({0: 0.0} if 0 in best else {})
    return best[len(edges)]


def test_edges_are_those_that_pad_least() -> None:
    values = np.sort(LENGTHS).astype(float)
    for num_buckets in (1, 2, 5):
        edges = least_padding_edges(values, num_buckets)
        assert len(edges) == num_buckets - 1
        uppers = np.array([*edges, values[-1]])
        assert uppers[np.searchsorted(edges, values)].sum() == best_padding(values, num_buckets)
    assert least_padding_edges(np.array([3.0, 3.0, 7.0]), 9) == [3.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Buckets(by="aspect"), "needs either shapes"),
        (lambda: Buckets(by="aspect", shapes=[(8, 8)], area=64), "needs either shapes"),
        (lambda: Buckets(by="aspect", shapes=[(8, 8), (16, 16)]), "different ratios"),
        (lambda: Buckets(by="aspect", shapes=[8, 8]), "pairs"),  # type: ignore[list-item]
        (lambda: Buckets(by="aspect", area=100, step=64), "Raise area"),
        (lambda: Buckets(by="aspect", area=1024 * 1024, step=1), "Raise step"),
        (lambda: Buckets(by="aspect", area=4096, max_ratio="2"), "max_ratio must be"),  # type: ignore[arg-type]
        (lambda: Buckets(by="aspect", shapes=[(float("inf"), 8)]), "pairs"),  # type: ignore[list-item]
        (lambda: Buckets(by="length", shapes=[(8, 8)]), 'are for by="aspect"'),
        (lambda: Buckets(by="length", edges=[3], num_buckets=2), "takes edges= or num_buckets="),
        (lambda: Buckets(by="length", edges=[3, 2]), "ascending"),
        (lambda: Buckets(by="length", edges=np.array([3, 2])), "ascending"),  # type: ignore[arg-type]
        (lambda: Buckets(by="length", edges=[10**400]), "ascending"),
        (lambda: Buckets(by="length", edges=3), "ascending"),  # type: ignore[arg-type]
        (lambda: Buckets(by="length", edges={2, 3}), "ascending"),  # type: ignore[arg-type]
        (lambda: Buckets(by="length", max_cost="9"), "positive"),  # type: ignore[arg-type]
        (lambda: Buckets(by="length", num_buckets=0), "num_buckets must be in"),
        (lambda: Buckets(by="length", batch_size=1, max_cost=2), "not both"),
        (lambda: Buckets(by="length", max_cost=-1), "positive"),
    ],
)  # fmt: skip
def test_arguments_that_contradict_each_other_are_refused(make: Callable[[], Buckets], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_numpy_arrays_are_as_good_as_lists() -> None:
    edges: Any = np.array([30.5, 90.5])
    batch_sizes: Any = np.array([8, 4, 2])
    shapes: Any = np.array([[32, 64], [64, 32]])
    assert Buckets(by="length", edges=edges, batch_size=batch_sizes) == Buckets(
        by="length", edges=[30.5, 90.5], batch_size=[8, 4, 2]
    )
    found: Any = Buckets(by="aspect", shapes=shapes).shapes
    assert found == [[32, 64], [64, 32]]


def test_shapes_of_an_area_are_as_large_as_it_allows() -> None:
    shapes = aspect_shapes(area=512 * 512, step=64, max_ratio=2)
    assert shapes == ((640, 384), (576, 448), (512, 512), (448, 576), (384, 640))
