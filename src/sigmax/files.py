"""Files: atomic writing, locked folders and the cache folder."""

import os
from pathlib import Path

from filelock import FileLock, Timeout

from sigmax.errors import RecordError


def cache_folder() -> Path:
    """The folder for what can be computed or downloaded again: $SIGMAX_CACHE, else the user's cache folder."""
    if os.environ.get("SIGMAX_CACHE"):
        return Path(os.environ["SIGMAX_CACHE"]).expanduser()
    import pooch

    return Path(pooch.os_cache("sigmax"))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that an interruption leaves the old or the new content; it is on disk on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would only take room
        raise
    if os.name == "posix":  # only there can a folder be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def lock_folder(folder: Path) -> FileLock:
    """Make the folder and become its only writer until the lock is released."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise RecordError(f"expected to be the only writer of {folder}, got another process; wait for it") from None
    except OSError as error:
        raise RecordError(f"expected a folder for the run, got {folder}: {error}") from error
    return lock
