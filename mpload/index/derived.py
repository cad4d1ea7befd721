"""Where files that are derived from an index text are kept."""

import hashlib
import os
from pathlib import Path

import platformdirs

__all__ = ["derived_paths"]


def derived_paths(text: Path, *, suffix: str, folder: str) -> list[Path]:
    """Return the possible paths of a derived file: beside the text, or else in a folder of the user's cache folder."""
    name = hashlib.blake2b(os.fsencode(text.absolute()), digest_size=16).hexdigest()
    return [text.with_name(text.name + suffix), platformdirs.user_cache_path("mpload") / folder / f"{name}{suffix}"]
