"""Where mpload keeps what cannot be beside an index: in the user's cache folder, or else a private temporary one."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

__all__ = ["cache_folder"]


def cache_folder() -> Path | None:
    """Return mpload's folder in the user's cache folder, which need not exist.

    A user may have no home directory, as in `docker run --user 4321`. Then it is `mpload-4321` in the folder for
    temporary files, which only that user may open. None if another user has made that, or if there is no such folder.
    """
    if os.environ.get("HOME") != "" or os.environ.get("XDG_CACHE_HOME"):
        with suppress(RuntimeError):  # no home directory
            return platformdirs.user_cache_path("mpload")
    return _private_folder()


def _private_folder() -> Path | None:
    try:
        folder = Path(tempfile.gettempdir()) / f"mpload-{os.geteuid()}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        facts = folder.lstat()
    except OSError:
        return None
    is_private = facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return folder if stat.S_ISDIR(facts.st_mode) and is_private else None
