"""WebDataset over tar shards at URLs, which it reads through curl."""

from pathlib import Path

import peers.wds
from peers.net import TIMES, objects_url
from peers.race import Contestant, Race

__all__ = ["CONTESTANTS", "prepare"]

prepare = peers.wds.prepare


def urls(race: Race) -> list[str]:
    """Return the URLs of the shards of an epoch."""
    return [f"{objects_url()}/wds/{path.name}" for path in sorted(Path(race.data / "wds").glob("*.tar"))] * TIMES


CONTESTANTS: dict[str, Contestant] = {"WebDataset": peers.wds.wds("simplejpeg", find_shards=urls)}
