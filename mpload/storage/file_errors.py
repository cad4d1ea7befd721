"""`file_error`: what an error of the system says of a file that an index names, and what to do about it."""

import errno
import re

from mpload.errors import StorageError
from mpload.units import printable

__all__ = ["file_error"]

_NEXT_STEPS = {
    errno.ENOENT: "Does #root of the index point to the right folder, and was the file moved or deleted?",
    errno.ENOTDIR: "Does #root of the index point to the right folder?",
    errno.EISDIR: "A path must name a file: index the files inside the folder.",
    errno.EACCES: "Give this user permission to read it (chmod), or run as a user who has it.",
    errno.EPERM: "Give this user permission to read it, or run as a user who has it.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n), or lower max_open_files.",
    errno.ENFILE: "Raise the machine's limit on open files (fs.file-max).",
    errno.ELOOP: "A symbolic link leads back to itself. Fix the link, or this line of the index.",
    errno.ENAMETOOLONG: "Check that this line of the index really holds a path.",
    errno.EIO: "The disk or network failed: look at the kernel's log (dmesg).",
    errno.ESTALE: "The file was replaced on the file server. Remount the file system, or restart the job.",
}

_WORD_BEHIND_NAME = re.compile(r"\.\w{2,5}[ ,;|]+\S+\Z")
"""`dog/1.jpg beagle`."""


def file_error(path: str, error: OSError) -> StorageError:
    """Return the error that a file could not be read, with a next step.

    Args:
        path: the file, as the index names it.
        error: what the system said.
    """
    next_step = _NEXT_STEPS.get(error.errno or 0, "")
    if error.errno == errno.ENOENT and _WORD_BEHIND_NAME.search(path):
        next_step = (
            "If a label is behind the name of the file, say so when you index the list: `mpload index LIST --columns "
            "'image:path label:str'`"
        )
    result = StorageError(f"{printable(path)}: {error.strerror or error}. {next_step}".rstrip())
    result.errno = error.errno
    return result
