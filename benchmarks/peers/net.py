"""What the contestants of `bench_network.py` share: the objects, and the server that they are read from.

The folder of data is served. Its subfolders are buckets of S3, and `OBJECTS_URL` is its URL. An epoch reads every
object several times, so that no turn meets the end of an epoch.
"""

import os
from pathlib import Path

from peers.race import Race

__all__ = ["TIMES", "bucket_listing", "objects_url", "repeated_keys"]

TIMES = 10
"""How often an epoch reads each object."""


def objects_url() -> str:
    """Return the URL of the served folder; the server of S3 has the same."""
    return os.environ["OBJECTS_URL"]


def bucket_listing(data: Path) -> list[tuple[str, int]]:
    """Return the key in the bucket `photos` and the label of each photograph."""
    folders = sorted(path for path in (data / "photos").iterdir() if path.is_dir())
    return [(f"{folder.name}/{path.name}", label) for label, folder in enumerate(folders) for path in folder.iterdir()]


def repeated_keys(race: Race) -> list[tuple[str, int]]:
    """Return the samples of an epoch."""
    return sorted(bucket_listing(race.data)) * TIMES
