"""The option `--on`: which machines do the work of a command."""

from enum import StrEnum
from typing import Annotated

import typer

from mpload.ingest.cluster import Cluster
from mpload.ray.cluster import RayCluster

__all__ = ["OnCluster", "cluster_of"]


class _ClusterKind(StrEnum):
    RAY = "ray"


OnCluster = Annotated[
    _ClusterKind | None,
    typer.Option(
        "--on",
        help="Do the work on the nodes of a Ray cluster: the one at RAY_ADDRESS=HOST:PORT, or else the one that this "
        "machine is a node of, or else a new one of this machine alone.",
    ),
]


def cluster_of(kind: _ClusterKind | None) -> Cluster | None:
    """Return the cluster that `--on` names; None means this machine."""
    return None if kind is None else RayCluster()
