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
        help="Do the work on a Ray cluster: that at RAY_ADDRESS, or that of this machine.",
    ),
]


def cluster_of(kind: _ClusterKind | None) -> Cluster | None:
    """Return the cluster that `--on` names; None means this machine."""
    return None if kind is None else RayCluster()
